// A cluster of two blocks, launched by cudaLaunchKernelEx, whose blocks read each other's shared memory.
#include <cooperative_groups.h>
#include <cstdio>
#include <cuda_runtime.h>
#ifndef FAULT
#define FAULT 0
#endif
namespace cg = cooperative_groups;

__global__ void swapped(const int *in, int *out) {
    __shared__ int own[32];
    cg::cluster_group cluster = cg::this_cluster();
    int i = blockIdx.x * 32 + threadIdx.x;
    own[threadIdx.x] = in[i];
    cluster.sync();
    out[i] = cluster.map_shared_rank(own, cluster.block_rank() ^ 1)[threadIdx.x];  // fault 1
#if FAULT != 1
    cluster.sync();
#endif
}

int main() {
    int host[128], *in, *out, most = 0;
    for (int i = 0; i < 128; i++) host[i] = i;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyDefault);
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = FAULT == 2 ? 3 : 4, config.blockDim = 32, config.attrs = &attribute, config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&most, swapped, &config) || most < 1) return 5;
    if (cudaLaunchKernelEx(&config, swapped, (const int *)in, out)) return 4;  // fault 2
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDefault);
    for (int i = 0; i < 128; i++)
        if (host[i] != (i ^ 32)) return 3;
    return 0;
}
