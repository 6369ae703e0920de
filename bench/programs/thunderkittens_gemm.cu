// Launches the bf16 GEMM of HazyResearch/ThunderKittens for Hopper on a small problem.
#define main main_of_the_benchmark
#include "kernels/gemm/bf16_h100/bf16_h100_gemm.cu"
#undef main

int main() {
    using gemm = matmul_template<1, 1, 1>;
    size_t m = 64, n = 64, k = 384;
    std::vector<uint16_t> data(m * k, 0x3f00);  // 0.5
    bf16 *a, *b, *c;
    cudaMalloc(&a, 2 * m * k);
    cudaMalloc(&b, 2 * n * k);
    cudaMalloc(&c, 2 * m * n);
    cudaMemcpy(a, data.data(), 2 * m * k, cudaMemcpyHostToDevice);
    cudaMemcpy(b, data.data(), 2 * n * k, cudaMemcpyHostToDevice);
    cudaMemset(c, 0, 2 * m * n);
    cudaFuncSetAttribute(kittens::prototype::lcf::kernel<gemm>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         kittens::MAX_SHARED_MEMORY - 1024);
    inner_run<gemm>(a, b, c, m, n, k, dim3(1), dim3(kittens::prototype::detail::NUM_THREADS_v<gemm>));
    return cudaGetLastError() + cudaDeviceSynchronize();
}
