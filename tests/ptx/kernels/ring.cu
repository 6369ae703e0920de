// A copy through a ring of TMA stages: one warp loads, the others double the numbers and write them out.
// FAULT plants one: 1 the consumers do not wait for a stage; 2 the producer does not wait until one is free;
// 3 the wait has a parity of its own; 4 no fence after the barriers' init.
#include <stdint.h>
#ifndef FAULT
#define FAULT 0
#endif
struct alignas(64) TensorMap { unsigned char bytes[128]; };

constexpr int STAGES = 3, ROWS = 8, COLUMNS = 32, CONSUMERS = 32;

__device__ inline uint32_t shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ inline void init(uint64_t *bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared(bar)), "r"(count) : "memory");
}

__device__ inline void arrive(uint64_t *bar) {  // behind the fence a copy may overwrite what was read
    asm volatile("fence.proxy.async.shared::cta; mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared(bar)) : "memory");
}

__device__ inline void expect(uint64_t *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared(bar)), "r"(bytes) : "memory");
}

__device__ inline void wait(uint64_t *bar, int parity) {
    asm volatile("{\n"
                 ".reg .pred P1;\n"
                 "LAB_WAIT:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
                 "@P1 bra DONE;\n"
                 "bra LAB_WAIT;\n"
                 "DONE:\n"
                 "}" ::"r"(shared(bar)), "r"(parity) : "memory");
}

__device__ inline void load(void *tile, const TensorMap *map, int x, int y, uint64_t *bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared(tile)), "l"(map), "r"(x), "r"(y), "r"(shared(bar)) : "memory");
}

extern "C" __global__ void ring(const __grid_constant__ TensorMap map, float *out, int tiles) {
    __shared__ alignas(128) float tile[STAGES][ROWS][COLUMNS];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            init(&full[s], 1);
            init(&empty[s], CONSUMERS);
        }
        if (FAULT != 4) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == CONSUMERS) {                       // the producer
        for (int i = 0; i < tiles; i++) {
            int stage = i % STAGES, use = i / STAGES;
            if (FAULT != 2) wait(&empty[stage], (use & 1) ^ 1);
            expect(&full[stage], sizeof tile[0]);
            load(tile[stage], &map, 0, i * ROWS, &full[stage]);
        }
    } else if (threadIdx.x < CONSUMERS) {
        for (int i = 0; i < tiles; i++) {
            int stage = i % STAGES, use = i / STAGES;
            if (FAULT != 1) wait(&full[stage], FAULT == 3 ? i & 1 : use & 1);
            for (int row = 0; row < ROWS; row++)
                out[(i * ROWS + row) * COLUMNS + threadIdx.x] = 2 * tile[stage][row][threadIdx.x];
            arrive(&empty[stage]);
        }
    }
}
