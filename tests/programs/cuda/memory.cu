// Constant, device and managed memory, structures with pointers, templates, namespaces, errors that are looked at.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#define REQUIRE(what) \
    if (!(what)) std::printf("%s\n", #what), std::exit(3)

__constant__ int weights[2][4];
__device__ int calls = 5;

namespace outer {
namespace inner {
struct Row {
    const int *in;
    int *out, n;
};
__global__ void weigh(Row row, int which) {
    if (threadIdx.x < row.n) row.out[threadIdx.x] = weights[which][threadIdx.x % 4] * row.in[threadIdx.x];
    if (threadIdx.x == 0) atomicAdd(&calls, 1);
}
}  // namespace inner
template <class T, int N> __global__ void shift(T *x) { x[threadIdx.x] += N; }
}  // namespace outer

__global__ void count(int *out) { *out = calls; }
__global__ void of_a_texture(cudaTextureObject_t texture, float *out) { *out = tex1Dfetch<float>(texture, 0); }

int main(int argc, char **argv) {
    int table[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}}, *in, *out, n = 0;
    cudaMemcpyToSymbol(weights, table[1], sizeof table[1], sizeof table[1]);
    REQUIRE(cudaMallocManaged(&in, 40) == cudaSuccess);
    REQUIRE(cudaMallocManaged(&out, 40) == cudaSuccess);
    for (int i = 0; i < 10; i++) in[i] = i + 1;
    outer::inner::weigh<<<1, 32>>>({in, out, 10}, 1);
    outer::shift<int, 3><<<1, 10>>>(out);
    outer::shift<unsigned, 4><<<1, 10>>>((unsigned *)out);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    for (int i = 0; i < 10; i++) REQUIRE(out[i] == (i + 1) * (5 + i % 4) + 7);
    count<<<1, 1>>>(out);
    cudaMemcpyFromSymbol(&n, calls, sizeof n);
    REQUIRE(n == 6 && out[0] == 6);

    int rows[3][8], *device;
    size_t pitch, free_bytes, all;
    REQUIRE(cudaMallocPitch(&device, &pitch, sizeof rows[0], 3) == cudaSuccess && pitch >= sizeof rows[0]);
    for (int i = 0; i < 24; i++) rows[0][i] = i;
    cudaMemcpy2D(device, pitch, rows, sizeof rows[0], sizeof rows[0], 3, cudaMemcpyHostToDevice);
    outer::shift<int, 1><<<1, 8>>>((int *)((char *)device + pitch));
    std::memset(rows, 0, sizeof rows);
    cudaMemcpy2D(rows, sizeof rows[0], device, pitch, sizeof rows[0], 3, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 24; i++) REQUIRE(rows[0][i] == i + (i / 8 == 1));

    count<<<1, 2000>>>(out);
    REQUIRE(cudaPeekAtLastError() == cudaErrorInvalidConfiguration);
    REQUIRE(cudaGetLastError() == cudaErrorInvalidConfiguration && cudaGetLastError() == cudaSuccess);
    REQUIRE(!std::strcmp(cudaGetErrorName(cudaErrorInvalidValue), "cudaErrorInvalidValue"));
    REQUIRE(cudaMemGetInfo(&free_bytes, &all) == cudaSuccess && free_bytes < all);
    REQUIRE(cudaMalloc(&device, all + 1) == cudaErrorMemoryAllocation);
    REQUIRE(cudaGetLastError() == cudaErrorMemoryAllocation && cudaSetDevice(1) == cudaErrorInvalidDevice);
    cudaPointerAttributes of;
    REQUIRE(cudaPointerGetAttributes(&of, in + 1) == cudaSuccess && of.type == cudaMemoryTypeManaged);
    if (argc > 1 && !std::strcmp(argv[1], "texture")) of_a_texture<<<1, 1>>>(0, (float *)out);
    if (argc > 1 && !std::strcmp(argv[1], "graph")) {
        cudaGraph_t graph;
        cudaGraphCreate(&graph, 0);
    }
    if (argc > 1 && !std::strcmp(argv[1], "crash")) std::abort();
    std::exit(9);
}
