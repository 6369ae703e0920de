// Launches the bf16 GEMM of deepseek-ai/DeepGEMM for Hopper: two tiles of 64 x 64, four of K, three stages.
#include <cuda.h>
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>
#include <vector>

using namespace deep_gemm;
constexpr int M = 64, N = 128, K = 256, TILE = 64, STAGES = 3;
constexpr auto kernel = &sm90_bf16_gemm_impl<cute::UMMA::Major::K, cute::UMMA::Major::K, 0, 0, 0, 1, TILE, TILE, TILE,
                                             128, 128, 128, STAGES, 128, 128, 1, false, 1, GemmType::Normal, false,
                                             cutlass::bfloat16_t>;

static CUtensorMap mapped(void *start, cuuint64_t columns, cuuint64_t rows) {
    CUtensorMap map;
    cuuint64_t dims[] = {columns, rows}, strides[] = {2 * columns};
    cuuint32_t box[] = {TILE, TILE}, steps[] = {1, 1};
    cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, start, dims, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

int main() {
    std::vector<uint16_t> data(N * K, 0x3f00);  // 0.5
    void *a, *b, *d;
    cudaMalloc(&a, 2 * M * K);
    cudaMalloc(&b, 2 * N * K);
    cudaMalloc(&d, 2 * M * N);
    cudaMemcpy(a, data.data(), 2 * M * K, cudaMemcpyHostToDevice);
    cudaMemcpy(b, data.data(), 2 * N * K, cudaMemcpyHostToDevice);
    int shared = 2 * TILE * TILE * (1 + 2 * STAGES) + 16 * STAGES;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    kernel<<<1, 256, shared>>>(nullptr, M, N, K, mapped(a, K, M), mapped(b, K, N), mapped(d, N, M));
    return cudaGetLastError() + cudaDeviceSynchronize();
}
