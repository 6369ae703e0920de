// Our own kernels with the defects of generated code. BUG is the number of the report; FIXED: as mended there.
#include <cstdint>
#include <vector>

#ifdef FIXED
constexpr bool fixed = true;
#else
constexpr bool fixed = false;
#endif
constexpr int LANES = 32, TILES = 6, BYTES = 4 * LANES;

__device__ inline uint32_t shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void init(uint64_t *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)), "r"(count) : "memory");
}
__device__ inline void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(uint64_t *bar) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(shared(bar)) : "memory");
}
__device__ inline void expect(uint64_t *bar, int bytes) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared::cta.b64 s, [%0], %1; }"
                 ::"r"(shared(bar)), "r"(bytes) : "memory");
}
__device__ inline void wait(uint64_t *bar, int parity) {
    asm volatile("{ .reg .pred p;\nAGAIN: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra AGAIN; }" ::"r"(shared(bar)), "r"(parity) : "memory");
}
__device__ inline void load(void *tile, const void *from, int bytes, uint64_t *bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared(tile)), "l"(from), "r"(bytes), "r"(shared(bar)) : "memory");
}

#if BUG == 10035  // triton: the first warp arrives for its partition while the second may still wait
__global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int tile[2][LANES];
    __shared__ uint64_t full[2], empty[2];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < 2; s++) init(&full[s], 1), init(&empty[s], 1);
        fence_init();
    }
    __syncthreads();
    if (warp == 2) {
        for (int i = 0; i < TILES; i++) {
            wait(&empty[i % 2], (i / 2 & 1) ^ 1);
            __syncwarp();
            if (lane == 0) expect(&full[i % 2], BYTES);
            if (lane == 0) load(tile[i % 2], in + i * LANES, BYTES, &full[i % 2]);
        }
    } else {
        for (int i = 0; i < TILES; i++) {
            if (!fixed) asm volatile("bar.sync 1, 64;" ::: "memory");
            wait(&full[i % 2], i / 2 & 1);
            if (warp == 0) out[i * LANES + lane] = tile[i % 2][lane];
            if (warp == 0) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the next load writes here
            __syncwarp();
            if (fixed) asm volatile("bar.sync 1, 64;" ::: "memory");
            if (threadIdx.x == 0) arrive(&empty[i % 2]);
        }
    }
}
#elif BUG == 2927  // tilelang: the parity of a wait is that of the loop, and each turn has a barrier of its own
__global__ void kernel(const int *in, int *out) {
    __shared__ alignas(128) int tile[4][LANES];
    __shared__ uint64_t full[4];
    if (threadIdx.x == 0) {
        for (int s = 0; s < 4; s++) init(&full[s], 1);
        fence_init();
    }
    __syncthreads();
    for (int s = 0; s < 4; s++) {
        if (threadIdx.x == 0) expect(&full[s], BYTES), load(tile[s], in + s * LANES, BYTES, &full[s]);
        wait(&full[s], fixed ? 0 : s & 1);
        if (threadIdx.x < LANES) out[s * LANES + threadIdx.x] = tile[s][threadIdx.x];
    }
}
#elif BUG == 2406  // tilelang: the roles of a block ask for more registers than it has
__global__ void __launch_bounds__(384, 1) kernel(const int *in, int *out) {
    if (threadIdx.x < 128)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    else if (fixed)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    else
        asm volatile("setmaxnreg.inc.sync.aligned.u32 256;");
    if (threadIdx.x < LANES) out[threadIdx.x] = in[threadIdx.x];
}
#elif BUG == 2556  // tilelang: no barrier between the stores and the loads of 48 of 64 threads
__global__ void kernel(const int *in, int *out) {
    __shared__ int room[48];
    if (threadIdx.x < 48) {
        room[threadIdx.x] = in[threadIdx.x];
        if (fixed) asm volatile("bar.sync 1, 64;" ::: "memory");
        out[threadIdx.x] = room[47 - threadIdx.x];
    } else if (fixed) {
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    }
}
#endif

int main() {
    std::vector<int> data(TILES * LANES, 3);
    int *in, *out, threads = BUG == 10035 ? 96 : BUG == 2406 ? 384 : BUG == 2556 ? 64 : LANES;
    cudaMalloc(&in, 4 * TILES * LANES);
    cudaMalloc(&out, 4 * TILES * LANES);
    cudaMemcpy(in, data.data(), 4 * TILES * LANES, cudaMemcpyHostToDevice);
    kernel<<<1, threads>>>(in, out);
    return cudaDeviceSynchronize();
}
