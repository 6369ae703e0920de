// Products by tcgen05 for sm_100a, by PTX's text: never run on hardware. The PTX beside it was made by
//     nvcc -ptx -arch=sm_100a -lineinfo tcgen05.cu
// A and B are fp16, K-major, without a swizzle: core matrices of 8 rows of 16 bytes, 128 bytes from one to the
// next along k and 256 from one group of 8 rows to the next, for each 16 of k.
#include <stdint.h>

constexpr uint32_t F16_64 = 1 << 4 | 64 / 8 << 17 | 128 / 16 << 24;  // D of float32, 128 x 64
constexpr int A_BYTES = 128 * 32, B_BYTES = 64 * 32;                  // for 16 of k

__device__ uint32_t address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ uint64_t descriptor(uint32_t at) {
    return (at & 0x3FFFF) >> 4 | (uint64_t)(128 >> 4) << 16 | (uint64_t)(256 >> 4) << 32 | 1ull << 46;
}

__device__ void init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ void wait(uint32_t bar, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(bar), "r"(parity) : "memory");
}

__device__ void arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ void load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

__device__ void expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ void alloc(uint32_t to, uint32_t columns) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "r"(columns) : "memory");
}

__device__ void dealloc(uint32_t at, uint32_t columns) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "r"(columns) : "memory");
}

__device__ void multiply(uint32_t d, uint32_t a, uint32_t b, uint32_t adds) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %4, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d), "l"(descriptor(a)), "l"(descriptor(b)), "r"(F16_64), "r"(adds) : "memory");
}

__device__ void multiply_tensor(uint32_t d, uint32_t a, uint32_t b) {  // A is in tensor memory
    asm volatile("{ .reg .pred p; setp.ne.u32 p, 0, 0; tcgen05.mma.cta_group::1.kind::f16 [%0], [%1], %2, %3, p; }" ::"r"(d), "r"(a), "l"(descriptor(b)), "r"(F16_64) : "memory");
}

__device__ void commit(uint32_t bar) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(bar) : "memory");
}

__device__ void before() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ void after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
__device__ void loaded() { asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory"); }
__device__ void stored() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

__device__ void read(uint32_t at, uint32_t* to) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]), "=r"(to[4]), "=r"(to[5]), "=r"(to[6]), "=r"(to[7]) : "r"(at) : "memory");
}

__device__ void write(uint32_t at, const uint32_t* from) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};" ::"r"(at), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(from[4]), "r"(from[5]), "r"(from[6]), "r"(from[7]) : "memory");
}

__device__ void take(uint32_t at, float* out) {  // a warp's 32 lanes of 64 columns
#pragma unroll 1
    for (int column = 0; column < 64; column += 8) {
        uint32_t words[8];
        read(at + column, words);
        loaded();
        for (int i = 0; i < 8; i++) out[column + i] = __uint_as_float(words[i]);
    }
}

// One tile of D, of 32 along k, that one warp issues and all read.
extern "C" __global__ void __launch_bounds__(128) tile(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[2 * A_BYTES], right[2 * B_BYTES];
    __shared__ uint64_t full, done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 64);
    if (threadIdx.x == 0) {
        init(address(&full), 1);
        init(address(&done), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    uint32_t d = base;
    if (threadIdx.x == 0) {
        expect(address(&full), 2 * (A_BYTES + B_BYTES));
        load(address(left), a, 2 * A_BYTES, address(&full));
        load(address(right), b, 2 * B_BYTES, address(&full));
        wait(address(&full), 0);
#pragma unroll 1
        for (int k = 0; k < 2; k++) multiply(d, address(left) + k * A_BYTES, address(right) + k * B_BYTES, k);
        commit(address(&done));
    }
    wait(address(&done), 0);
    after();
    take(d + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(d, 64);
}

// Two tiles of D, one after the other, in two accumulators: a warp loads, one multiplies, four read.
constexpr int STAGES = 2, STEPS = 4, TILES = 3;

extern "C" __global__ void __launch_bounds__(192) ring(const char* a, const char* b, float* out) {
    __shared__ alignas(128) char left[STAGES][A_BYTES], right[STAGES][B_BYTES];
    __shared__ uint64_t full[STAGES], empty[STAGES], ready[2], free_[2];
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 4) alloc(address(&base), 128);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            init(address(&full[i]), 1);
            init(address(&empty[i]), 1);
            init(address(&ready[i]), 1);
            init(address(&free_[i]), 128);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    uint32_t d = base;
    if (threadIdx.x == 128) {
#pragma unroll 1
        for (int use = 0; use < TILES * STEPS; use++) {
            int stage = use % STAGES;
            wait(address(&empty[stage]), (use / STAGES + 1) % 2);
            expect(address(&full[stage]), A_BYTES + B_BYTES);
            load(address(left[stage]), a + use * A_BYTES, A_BYTES, address(&full[stage]));
            load(address(right[stage]), b + use * B_BYTES, B_BYTES, address(&full[stage]));
        }
    } else if (threadIdx.x == 160) {
#pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            wait(address(&free_[tile % 2]), (tile / 2 + 1) % 2);
            after();
#pragma unroll 1
            for (int k = 0; k < STEPS; k++) {
                int use = tile * STEPS + k, stage = use % STAGES;
                wait(address(&full[stage]), use / STAGES % 2);
                multiply(d + tile % 2 * 64, address(left[stage]), address(right[stage]), k);
                commit(address(&empty[stage]));
            }
            commit(address(&ready[tile % 2]));
        }
    } else if (warp < 4) {
#pragma unroll 1
        for (int tile = 0; tile < TILES; tile++) {
            wait(address(&ready[tile % 2]), tile / 2 % 2);
            after();
            take(d + tile % 2 * 64 + (warp << 21), out + (tile * 128 + threadIdx.x) * 64);
            before();
            arrive(address(&free_[tile % 2]));
        }
    }
    __syncthreads();
    if (warp == 4) dealloc(d, 128);
}

// What threads write to tensor memory is A of a product.
extern "C" __global__ void __launch_bounds__(128) chain(const uint32_t* a, const char* b, float* out) {
    __shared__ alignas(128) char right[B_BYTES];
    __shared__ uint64_t full, done;
    __shared__ uint32_t base;
    int warp = threadIdx.x / 32;
    if (warp == 0) alloc(address(&base), 128);
    if (threadIdx.x == 0) {
        init(address(&full), 1);
        init(address(&done), 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        expect(address(&full), B_BYTES);
        load(address(right), b, B_BYTES, address(&full));
    }
    __syncthreads();
    uint32_t d = base, left = base + 64, words[8];
    for (int i = 0; i < 8; i++) words[i] = a[threadIdx.x * 8 + i];
    write(left + (warp << 21), words);
    stored();
    before();
    __syncthreads();
    if (threadIdx.x == 0) {
        after();
        wait(address(&full), 0);
        multiply_tensor(d, left, address(right));
        commit(address(&done));
    }
    wait(address(&done), 0);
    after();
    take(d + (warp << 21), out + threadIdx.x * 64);
    before();
    __syncthreads();
    if (warp == 0) dealloc(d, 128);
}
