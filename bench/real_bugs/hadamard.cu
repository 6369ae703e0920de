// Launches HadamardAmaxTmaKernel of NVIDIA/TransformerEngine: two blocks, each with 128 x 128 numbers in four boxes through
// two stages. The largest numbers before the transform, behind it, and behind it of the transpose come out, and are
// compared with sums in float64; numbers are small integers, so all is exact.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cmath>
#include <cstdio>
#include <vector>
#include "common/common.h"
#include "hadamard_transform_utils.cuh"

namespace transformer_engine {
namespace {
#include "excerpt.cuh"
constexpr auto kernel = &HadamardAmaxTmaKernel<__nv_bfloat16, 16, 128, 128, 64, 64, 128, 1, true, true, true>;
}  // namespace
}  // namespace transformer_engine

constexpr int ROWS = 128, COLUMNS = 256, MASK = 0x5a3c, MASK_T = 0x1234;

// The largest number of all 16 x 16 tiles times a Hadamard matrix whose columns have the signs of a mask.
static double largest(const std::vector<double> &x, int mask, bool transposed) {
    double most = 0;
    for (int tile = 0; tile < ROWS / 16 * (COLUMNS / 16); tile++)
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++) {
                double sum = 0;
                for (int k = 0; k < 16; k++) {
                    int row = tile / (COLUMNS / 16) * 16 + (transposed ? k : m);
                    int column = tile % (COLUMNS / 16) * 16 + (transposed ? m : k);
                    bool minus = (__builtin_popcount(n & k) ^ mask >> k) & 1;
                    sum += (minus ? -1 : 1) * x[row * COLUMNS + column] / 4;
                }
                most = std::fmax(most, std::fabs(sum));
            }
    return most;
}

int main() {
    std::vector<double> x(ROWS * COLUMNS);
    std::vector<__nv_bfloat16> data(x.size());
    unsigned state = 1;
    double most = 0;
    for (size_t i = 0; i < x.size(); i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = int(state >> 28) - 8, data[i] = __float2bfloat16(float(x[i])), most = std::fmax(most, std::fabs(x[i]));
    }
    void *from;
    float *amax, zeros[3] = {};
    cudaMalloc(&from, 2 * x.size());
    cudaMalloc((void **)&amax, sizeof zeros);
    cudaMemcpy(from, data.data(), 2 * x.size(), cudaMemcpyHostToDevice);
    cudaMemcpy(amax, zeros, sizeof zeros, cudaMemcpyHostToDevice);
    CUtensorMap map;
    cuuint64_t dims[] = {COLUMNS, ROWS}, strides[] = {2 * COLUMNS};
    cuuint32_t box[] = {64, 64}, steps[] = {1, 1};
    cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, from, dims, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    using namespace transformer_engine;
    kernel<<<dim3(COLUMNS / 128, ROWS / 128), dim3(128, 1), 2 * 2 * 64 * 64 + 4 * 8 + 3 * 4 * 4 + 128>>>(
        map, amax, amax + 1, amax + 2, MASK, MASK_T, ROWS, COLUMNS);
    int failed = cudaGetLastError() + cudaDeviceSynchronize();
    float got[3];
    cudaMemcpy(got, amax, sizeof got, cudaMemcpyDeviceToHost);
    return failed || got[0] != most || got[1] != largest(x, MASK, false) || got[2] != largest(x, MASK_T, true);
}
