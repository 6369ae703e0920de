// A barrier of all blocks, by cooperative groups.
#include <cooperative_groups.h>

extern "C" __global__ void reversed(const int *in, int *mid, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, last = gridDim.x * blockDim.x - 1;
    for (int round = 0; round < 2; round++) {
        mid[i] = in[i] + round;
        cooperative_groups::this_grid().sync();
        out[i] = mid[last - i];
        cooperative_groups::this_grid().sync();
    }
}

extern "C" __global__ void early_wrong(const int *in, int *mid, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x, last = gridDim.x * blockDim.x - 1;
    for (int round = 0; round < 2; round++) {
        mid[i] = in[i] + round;  // <- fault
        cooperative_groups::this_grid().sync();
        out[i] = mid[last - i];  // <- fault
    }
}

extern "C" __global__ void absent_wrong(const int *in, int *mid, int *out)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    mid[i] = in[i];
    if (blockIdx.x) cooperative_groups::this_grid().sync();
    out[i] = mid[i];
}
