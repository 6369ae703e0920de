// What the kernels of blackwell_bugs.cu and blackwell_rights.cu call: faults name the lines of these.
#pragma once
#include "tcgen05.cu"

__device__ void init(uint64_t* bar, uint32_t count) { init(address(bar), count); }
__device__ void wait(uint64_t* bar, uint32_t parity) { wait(address(bar), parity & 1); }
__device__ void arrive(uint64_t* bar) { arrive(address(bar)); }
__device__ void commit(uint64_t* bar) { commit(address(bar)); }
__device__ void expect(uint64_t* bar, uint32_t bytes) { expect(address(bar), bytes); }
__device__ void load(void* to, const void* from, uint32_t bytes, uint64_t* bar) { load(address(to), from, bytes, address(bar)); }
__device__ void inits_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ void store(void* to, const void* from, uint32_t bytes) {  // by TMA, a group of its own
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2; cp.async.bulk.commit_group;" ::"l"(to), "r"(address(from)), "r"(bytes) : "memory");
}

__device__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

template <int ID, int THREADS>
__device__ void meet() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

__device__ uint32_t read_one(uint32_t at) {
    uint32_t word;
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];" : "=r"(word) : "r"(at) : "memory");
    return word;
}

__device__ void write_one(uint32_t at, uint32_t word) {
    asm volatile("tcgen05.st.sync.aligned.32x32b.x1.b32 [%0], {%1};" ::"r"(at), "r"(word) : "memory");
}

// Two stages of A and B, each 16 along k, and two accumulators: warp 4 loads, warp 5 multiplies, warps 0 to 3 read.
#define RING \
    __shared__ alignas(128) char left[2][A_BYTES], right[2][B_BYTES]; \
    __shared__ uint64_t full[2], empty[2], ready[2], unused[2]; \
    __shared__ uint32_t base; \
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#define START(columns, releases, readers) \
    if (warp == 4) alloc(address(&base), columns); \
    if (threadIdx.x == 0) { \
        for (int i = 0; i < 2; i++) init(&full[i], 1), init(&empty[i], releases), init(&ready[i], 1), init(&unused[i], readers); \
        inits_done(); \
    } \
    __syncthreads(); \
    uint32_t d = base, rows = d + (warp % 4 << 21);

#define END(columns) \
    __syncthreads(); \
    if (warp == 4) dealloc(d, columns);

// Relaxed ones, which order nothing that is not between tcgen05.fence::before_thread_sync and ::after_thread_sync.
__device__ void arrive_relaxed(uint64_t* bar) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%0];" ::"r"(address(bar)) : "memory");
}

__device__ void wait_relaxed(uint64_t* bar, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%0], %1; @!p bra again; }" ::"r"(address(bar)), "r"(parity & 1) : "memory");
}

#define EACH(i, count) _Pragma("unroll 1") for (int i = 0; i < count; i++)

__device__ void produce(char (*left)[A_BYTES], char (*right)[B_BYTES], uint64_t* full, uint64_t* empty, const char* a, const char* b, int uses) {
    EACH(use, uses) {
        int stage = use % 2;
        wait(&empty[stage], use / 2 + 1);
        expect(&full[stage], A_BYTES + B_BYTES);
        load(left[stage], a + use * A_BYTES, A_BYTES, &full[stage]);
        load(right[stage], b + use * B_BYTES, B_BYTES, &full[stage]);
    }
}

#define PRODUCE(uses) \
    if (threadIdx.x == 128) produce(left, right, full, empty, a, b, uses);

__device__ void put(const uint32_t* words, float* out, float factor = 1) {
    for (int i = 0; i < 8; i++) out[i] = factor * __uint_as_float(words[i]);
}
