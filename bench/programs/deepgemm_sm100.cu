// Launches the bf16 GEMM of deepseek-ai/DeepGEMM for Blackwell with one block: three tiles of 128 x 64, four of K, three
// stages, and compares with sums in float64. The numbers are small integers, so that each sum is exact before rounding.
#include <cuda.h>
#include <vector>
#include <deep_gemm/impls/sm100_bf16_gemm.cuh>

using namespace deep_gemm;
constexpr int M = 128, N = 192, K = 256, TILE_N = 64, TILE_K = 64, STAGES = 3;
constexpr auto kernel = &sm100_bf16_gemm_impl<cute::UMMA::Major::K, cute::UMMA::Major::K, 0, 0, 0, M, TILE_N, TILE_K, 1,
                                              128, 128, 128, STAGES, 128, 128, 1, false, 1, TILE_K, false, false,
                                              GemmType::Normal, false, cutlass::bfloat16_t, 100>;

static CUtensorMap mapped(void *start, cuuint64_t columns, cuuint64_t rows, cuuint32_t box_rows) {
    CUtensorMap map;
    cuuint64_t dims[] = {columns, rows}, strides[] = {2 * columns};
    cuuint32_t box[] = {64, box_rows}, steps[] = {1, 1};
    cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, start, dims, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

int main() {
    std::vector<double> x[2] = {std::vector<double>(M * K), std::vector<double>(N * K)};
    __nv_bfloat16 *places[3];
    unsigned state = 1;
    for (int i = 0; i < 2; i++) {
        std::vector<__nv_bfloat16> data(x[i].size());
        for (size_t n = 0; n < data.size(); n++) {
            x[i][n] = int((state = state * 1664525u + 1013904223u) >> 29) - 4;
            data[n] = __float2bfloat16(float(x[i][n]));
        }
        cudaMalloc(&places[i], 2 * data.size());
        cudaMemcpy(places[i], data.data(), 2 * data.size(), cudaMemcpyHostToDevice);
    }
    cudaMalloc(&places[2], 2 * M * N);
    cudaMemset(places[2], 0xff, 2 * M * N);
    int shared = 2 * 2 * M * 64 + 2 * STAGES * TILE_K * (M + TILE_N) + 8 * (3 * STAGES + 5) + 4;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    kernel<<<1, 256, shared>>>(nullptr, M, N, K, mapped(places[0], K, M, M), mapped(places[1], K, N, TILE_N),
                               mapped(places[2], N, M, M));
    int wrong = cudaGetLastError() + cudaDeviceSynchronize();
    std::vector<__nv_bfloat16> d(M * N);
    cudaMemcpy(d.data(), places[2], 2 * M * N, cudaMemcpyDeviceToHost);
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++) {
            double sum = 0;
            for (int k = 0; k < K; k++) sum += x[0][row * K + k] * x[1][column * K + k];
            wrong += __bfloat162float(d[row * N + column]) != __bfloat162float(__float2bfloat16(float(sum)));
        }
    return wrong != 0;
}
