// Two streams that share an array, ordered by an event; pinned memory, copies that do not wait, error codes.
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#ifndef FAULT
#define FAULT 0
#endif
#define CHECK(call)                                                                                  \
    do {                                                                                             \
        cudaError_t status = (call);                                                                 \
        if (status != cudaSuccess) {                                                                 \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));     \
            std::exit(4);                                                                            \
        }                                                                                            \
    } while (0)

__global__ void add(const float *x, const float *y, float *out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
#if FAULT == 2
    out[i] = x[i] + y[i];  // fault 2: n is no multiple of the block
#else
    if (i < n) out[i] = x[i] + y[i];
#endif
}

int main(int argc, char **argv) {
    int n = argc > 1 ? std::atoi(argv[1]) : 200, bytes = n * sizeof(float), blocks = (n + 63) / 64;
    float *host, *x, *y, *sum, *twice;
    CHECK(cudaMallocHost(&host, bytes));
    for (int i = 0; i < n; i++) host[i] = i;
    CHECK(cudaMalloc(&x, bytes));
    CHECK(cudaMalloc(&y, bytes));
    CHECK(cudaMalloc(&sum, bytes));
    CHECK(cudaMalloc(&twice, bytes));
    cudaStream_t a, b;
    cudaEvent_t start, ready;
    CHECK(cudaStreamCreate(&a));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&ready));
    CHECK(cudaEventRecord(start, a));
    CHECK(cudaMemcpyAsync(x, host, FAULT == 3 ? bytes + 4 : bytes, cudaMemcpyHostToDevice, a));  // fault 3
#if FAULT != 5
    CHECK(cudaMemsetAsync(y, 0, bytes, a));
#endif
    add<<<blocks, FAULT == 4 ? 2048 : 64, 0, a>>>(x, y, sum, n);  // fault 4, fault 5
    CHECK(cudaEventRecord(ready, a));
#if FAULT == 7
    host[0] = 1;  // fault 7: the copy from there may not be over
#endif
#if FAULT != 1
    CHECK(cudaStreamWaitEvent(b, ready, 0));
#endif
    add<<<blocks, 64, 0, b>>>(sum, sum, twice, n);  // fault 1
    CHECK(cudaMemcpyAsync(host, twice, bytes, cudaMemcpyDeviceToHost, b));
#if FAULT != 6
    CHECK(cudaStreamSynchronize(b));
#endif
    float ms;
    CHECK(cudaEventElapsedTime(&ms, start, ready));
    for (int i = 0; i < n; i++)
        if (host[i] != 2 * i) return 3;  // fault 6
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    CHECK(cudaFree(sum));
    CHECK(cudaFree(twice));
    CHECK(cudaFreeHost(host));
    std::printf("%d right\n", n);
    return argc > 2 ? std::atoi(argv[2]) : 0;
}
