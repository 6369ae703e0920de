// Calls tma_copy of deepseek-ai/DeepEP, which copies global memory to global memory through stages in shared memory.
#include <cooperative_groups.h>
#include <cstdint>
#include <utility>
#include <vector>
#include <deep_ep/common/math.cuh>
#include <deep_ep/common/ptx.cuh>
namespace deep_ep::elastic {
#include "excerpt.cuh"
}

constexpr int STAGE = 256, STAGES = 2, BYTES = 6 * STAGE;

__global__ void copy(char *from, char *to) {
    if (threadIdx.x == 0) deep_ep::elastic::tma_copy<1, STAGES * (STAGE + 8)>(from, to, BYTES, 0);
}

int main() {
    std::vector<char> data(BYTES, 3);
    char *from, *to;
    cudaMalloc(&from, BYTES);
    cudaMalloc(&to, BYTES);
    cudaMemcpy(from, data.data(), BYTES, cudaMemcpyHostToDevice);
    copy<<<1, 32, STAGES * (STAGE + 8)>>>(from, to);
    return cudaDeviceSynchronize();
}
