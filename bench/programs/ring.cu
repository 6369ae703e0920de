// Launches the ring of tests/ptx/kernels/ring.cu.
#include <cuda.h>
#include <vector>
#include "tests/ptx/kernels/ring.cu"

int main() {
    std::vector<float> data(80 * COLUMNS, 3);
    float *in, *out;
    cudaMalloc(&in, 4 * data.size());
    cudaMalloc(&out, 4 * data.size());
    cudaMemcpy(in, data.data(), 4 * data.size(), cudaMemcpyHostToDevice);
    CUtensorMap map;
    cuuint64_t dims[] = {COLUMNS, 80}, strides[] = {4 * COLUMNS};
    cuuint32_t box[] = {COLUMNS, ROWS}, steps[] = {1, 1};
    cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, in, dims, strides, box, steps,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                           CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    ring<<<1, CONSUMERS + 32>>>(*reinterpret_cast<TensorMap *>(&map), out, 10);
    return cudaGetLastError() + cudaDeviceSynchronize();
}
