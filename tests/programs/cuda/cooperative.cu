// As many blocks as fit, which meet in a barrier of the grid.
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_runtime.h>
#ifndef FAULT
#define FAULT 0
#endif

__global__ void reversed(const int *in, int *mid, int *out, int n) {
    int threads = gridDim.x * blockDim.x, first = blockIdx.x * blockDim.x + threadIdx.x;
    for (int i = first; i < n; i += threads) mid[i] = in[i] + 1;
#if FAULT != 1
    cooperative_groups::this_grid().sync();
#endif
    for (int i = first; i < n; i += threads) out[i] = mid[n - 1 - i];  // fault 1
}

int main() {
    int n = 200, host[200], *in, *mid, *out, threads = 0, blocks = 0, least = 0, can = 0;
    for (int i = 0; i < n; i++) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&mid, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    cudaDeviceGetAttribute(&can, cudaDevAttrCooperativeLaunch, 0);
    if (cudaOccupancyMaxPotentialBlockSize(&least, &threads, reversed) || threads % 32 || least < 1) return 5;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, reversed, 64, 0) || blocks < 1 || !can) return 6;
    blocks = blocks < 3 ? blocks : 3;
#if FAULT == 2
    reversed<<<blocks, 64>>>(in, mid, out, n);  // fault 2
#else
    void *args[] = {&in, &mid, &out, &n};
    if (cudaLaunchCooperativeKernel((const void *)reversed, blocks, 64, args, 0, 0)) return 4;
#endif
    if (cudaDeviceSynchronize()) return 7;
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    for (int i = 0; i < n; i++)
        if (host[i] != n - i) return 3;
    return 0;
}
