// All who write have a fence, they meet, and one of them signals by an atomic without a fence of its own.

extern "C" __global__ void handed_on(int *data, int *flags, int *wrong)
{
    int t = threadIdx.x, pair = blockIdx.x / 2;
    for (int round = 0; round < 8; round++) {
        int *part = data + 64 * (8 * pair + round);
        if (blockIdx.x % 2 == 0) {
            part[t] = 1000 + t;
            __threadfence();
            __syncthreads();
            if (t == 0) atomicExch(&flags[pair], round + 1);
        } else {
            if (t == 0) {
                while (atomicAdd(&flags[pair], 0) <= round);
                __threadfence();
            }
            __syncthreads();
            if (part[63 - t] != 1063 - t) atomicAdd(wrong, 1);
        }
    }
}

extern "C" __global__ void handed_on_wrong(int *data, int *flags, int *wrong)
{
    int t = threadIdx.x, pair = blockIdx.x / 2;
    if (blockIdx.x % 2 == 0) {
        data[64 * pair + t] = 1000 + t;
        __syncthreads();
        if (t == 0) atomicExch(&flags[pair], 1);
    } else {
        if (t == 0) {
            while (atomicAdd(&flags[pair], 0) == 0);
            __threadfence();
        }
        __syncthreads();
        if (data[64 * pair + 63 - t] != 1063 - t) atomicAdd(wrong, 1);  // <- fault
    }
}
