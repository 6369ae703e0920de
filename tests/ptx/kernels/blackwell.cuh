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
