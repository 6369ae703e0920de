// Launches the GEMM of NVIDIA/cutlass's tutorial wgmma_tma_sm90.cu on a small problem.
#define main main_of_the_tutorial
#include "examples/cute/tutorial/hopper/wgmma_tma_sm90.cu"
#undef main
#include <vector>

int main() {
    using cute::half_t;
    int m = 256, n = 128, k = 256;
    std::vector<half_t> data(m * k, half_t(0.5f));
    half_t *a, *b, *c;
    cudaMalloc(&a, 2 * m * k);
    cudaMalloc(&b, 2 * n * k);
    cudaMalloc(&c, 2 * m * n);
    cudaMemcpy(a, data.data(), 2 * m * k, cudaMemcpyHostToDevice);
    cudaMemcpy(b, data.data(), 2 * n * k, cudaMemcpyHostToDevice);
    cudaMemset(c, 0, 2 * m * n);
    gemm('T', 'N', m, n, k, half_t(1.0f), a, k, b, k, half_t(0.0f), c, m);
    return cudaDeviceSynchronize();
}
