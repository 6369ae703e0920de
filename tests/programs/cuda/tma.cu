// Tiles by a tensor map that the driver's function encodes, in dynamic shared memory of more than 48 KB.
#include <cstdio>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cudaTypedefs.h>
#include <cstdint>
#include <vector>
#ifndef FAULT
#define FAULT 0
#endif
constexpr int COLUMNS = 64, ROWS = 256, BYTES = COLUMNS * ROWS * sizeof(float);

__global__ void doubled(const __grid_constant__ CUtensorMap map, float *out) {
    extern __shared__ __align__(1024) float tile[];
    __shared__ uint64_t full;
    uint32_t bar = __cvta_generic_to_shared(&full), place = __cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(BYTES) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                     ::"r"(place), "l"(&map), "r"(0), "r"((int)blockIdx.x * ROWS), "r"(bar) : "memory");  // fault 3
    }
    __syncthreads();
#if FAULT != 1
    uint32_t done = 0;
    while (!done)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar) : "memory");
#endif
    for (int i = threadIdx.x; i < COLUMNS * ROWS; i += blockDim.x)
        out[blockIdx.x * COLUMNS * ROWS + i] = 2 * tile[i];  // fault 1
}

int main() {
    std::vector<float> host(2 * COLUMNS * ROWS);
    for (size_t i = 0; i < host.size(); i++) host[i] = i % 1000;
    float *in, *out;
    cudaMalloc(&in, 2 * BYTES);
    cudaMalloc(&out, 2 * BYTES);
    cudaMemcpy(in, host.data(), 2 * BYTES, cudaMemcpyHostToDevice);
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &status);
    if (status != cudaDriverEntryPointSuccess) return 5;
    CUtensorMap map;
    cuuint64_t sizes[] = {COLUMNS, 2 * ROWS}, strides[] = {COLUMNS * sizeof(float)};
    cuuint32_t box[] = {COLUMNS, ROWS}, steps[] = {1, 1};
    auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
    if (encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, in, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               FAULT == 4 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)) return 6;  // fault 4
#if FAULT != 2
    if (cudaFuncSetAttribute(doubled, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES)) return 7;
#endif
    doubled<<<2, 128, FAULT == 3 ? 0 : BYTES>>>(map, out);  // fault 2
    cudaMemcpy(host.data(), out, 2 * BYTES, cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < host.size(); i++)
        if (host[i] != 2 * (i % 1000)) return 3;
    return 0;
}
