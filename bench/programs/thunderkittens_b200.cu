// Launches a GEMM of HazyResearch/ThunderKittens for Blackwell, LEVEL of its ladder, on a small problem, and compares
// what comes out with sums in float64. The numbers are small integers, so that each sum is exact before it is rounded.
#define main main_of_the_benchmark
#define LEVEL_OF(n) AS_TEXT(kernels/gemm/educational_b200/level_##n.cu)
#define AS_TEXT(path) #path
#define FILE_OF(n) LEVEL_OF(n)
#include FILE_OF(LEVEL)
#undef main

int main() {
    constexpr int N = 256;
    std::vector<double> a(N * N), b(N * N);
    std::vector<__nv_bfloat16> from[2] = {std::vector<__nv_bfloat16>(N * N), std::vector<__nv_bfloat16>(N * N)}, d(N * N);
    unsigned state = 1;
    for (int i = 0; i < N * N; i++) {
        a[i] = int((state = state * 1664525u + 1013904223u) >> 29) - 4;
        b[i] = int((state = state * 1664525u + 1013904223u) >> 29) - 4;
        from[0][i] = __float2bfloat16(float(a[i])), from[1][i] = __float2bfloat16(float(b[i]));
    }
    __nv_bfloat16 *places[3];
    for (int i = 0; i < 3; i++) {
        cudaMalloc(&places[i], 2 * N * N);
        cudaMemset(places[i], 0xff, 2 * N * N);
        if (i < 2) cudaMemcpy(places[i], from[i].data(), 2 * N * N, cudaMemcpyHostToDevice);
    }
    matmul(places[0], places[1], places[2], N);
    int wrong = cudaGetLastError() + cudaDeviceSynchronize();
    cudaMemcpy(d.data(), places[2], 2 * N * N, cudaMemcpyDeviceToHost);
    for (int row = 0; row < N; row++)
        for (int column = 0; column < N; column++) {
            double sum = 0;
            for (int k = 0; k < N; k++) sum += a[row * N + k] * b[k * N + column];
            wrong += __bfloat162float(d[row * N + column]) != __bfloat162float(__float2bfloat16(float(sum)));
        }
    return wrong != 0;
}
