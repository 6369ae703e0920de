// Doubles numbers: thread 32 brings tiles by TMA into a ring of stages, and threads 0 to 31 double them.
typedef unsigned int u32;
typedef unsigned long long Barrier;
struct alignas(64) TensorMap { char bytes[128]; };

constexpr int STAGES = 3, ROWS = 8, LANES = 32;

__device__ inline u32 address(const void *shared) { return __cvta_generic_to_shared(shared); }

__device__ inline void init(Barrier *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(address(bar)), "r"(count) : "memory");
}

__device__ inline void arrive(Barrier *bar) {  // past the fence, a copy may overwrite what was read
    asm volatile("fence.proxy.async.shared::cta; mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(address(bar)) : "memory");
}

__device__ inline void expect(Barrier *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address(bar)), "r"(bytes) : "memory");
}

__device__ inline bool is_over(Barrier *bar, int parity) {
    int over;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(over) : "r"(address(bar)), "r"(parity) : "memory");
    return over;
}

__device__ inline void wait(Barrier *bar, int parity) { while (!is_over(bar, parity)); }

__device__ inline void load(void *tile, const TensorMap *map, int x, int y, Barrier *bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(address(tile)), "l"(map), "r"(x), "r"(y), "r"(address(bar)) : "memory");
}

extern "C" __global__ void ring(const __grid_constant__ TensorMap map, float *out, int tiles) {
    __shared__ alignas(128) float tile[STAGES][ROWS][LANES];
    __shared__ Barrier full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
#pragma unroll 1
        for (int s = 0; s < STAGES; s++) {
            init(&full[s], 1);
            init(&empty[s], LANES);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == LANES) {  // the producer
#pragma unroll 1
        for (int i = 0; i < tiles; i++) {
            int stage = i % STAGES, round = i / STAGES;
            wait(&empty[stage], round % 2 ^ 1);
            expect(&full[stage], sizeof tile[0]);
            load(tile[stage], &map, 0, ROWS * i, &full[stage]);
        }
    } else if (threadIdx.x < LANES) {  // the consumers
#pragma unroll 1
        for (int i = 0; i < tiles; i++) {
            int stage = i % STAGES, round = i / STAGES;
            wait(&full[stage], round % 2);
#pragma unroll 1
            for (int row = 0; row < ROWS; row++)
                out[(ROWS * i + row) * LANES + threadIdx.x] = 2 * tile[stage][row][threadIdx.x];
            arrive(&empty[stage]);
        }
    }
}
