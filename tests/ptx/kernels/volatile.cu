// Volatile memory: it makes flags, and orders no numbers. Kernels that end in _wrong count on more than that.

extern "C" __global__ void scan_wrong(const int *in, int *out)
{
    __shared__ int sums[64];
    volatile int *sum = sums;
    int t = threadIdx.x;
    sum[t] = in[t];
    for (int d = 1; d < 64; d *= 2)
        if (t >= d) sum[t] = sum[t] + sum[t - d];  // <- fault
    out[t] = sum[t];
}

extern "C" __global__ void scan(const int *in, int *out)
{
    __shared__ int sums[64];
    volatile int *sum = sums;
    int t = threadIdx.x, own = in[t];
    sum[t] = own;
    for (int d = 1; d < 64; d *= 2) {
        __syncthreads();
        if (t >= d) own += sum[t - d];
        __syncthreads();
        sum[t] = own;
    }
    out[t] = own;
}

extern "C" __global__ void last_warp_wrong(const int *in, int *out)
{
    __shared__ int sums[64];
    int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    if (t < 32) {
        volatile int *sum = sums;
        for (int d = 32; d > 0; d /= 2) sum[t] += sum[t + d];  // <- fault
    }
    if (t == 0) out[0] = sums[0];
}

extern "C" __global__ void last_warp(const int *in, int *out)
{
    __shared__ int sums[64];
    int t = threadIdx.x;
    sums[t] = in[t];
    __syncthreads();
    if (t < 32) {
        volatile int *sum = sums;
        for (int d = 32; d > 0; d /= 2) {
            int own = sum[t] + sum[t + d];
            __syncwarp();
            sum[t] = own;
            __syncwarp();
        }
    }
    if (t == 0) out[0] = sums[0];
}

extern "C" __global__ void flag(const int *in, int *out)
{
    __shared__ int kept[32];
    __shared__ volatile int ready;
    int t = threadIdx.x;
    if (t == 0) ready = 0;
    __syncthreads();
    if (t < 32) {
        kept[t] = in[t] + in[t + 32];
        __syncwarp();
        __threadfence_block();
        if (t == 0) ready = 1;
        out[t] = 0;
    } else {
        while (ready == 0) {}
        __threadfence_block();
        out[t] = kept[63 - t];
    }
}

extern "C" __global__ void look_back(const int *in, int *out, volatile unsigned long long *states)
{
    int block = blockIdx.x;
    if (threadIdx.x == 0) {
        unsigned long long state = 1ull << 32;
        if (block) do state = states[block - 1]; while (!(state >> 32));
        states[block] = state + in[block];  // what is looked at and what is added come in one word
        out[block] = (int)state + in[block];
    }
}

__device__ unsigned int tickets;

extern "C" __global__ void last_block_wrong(const int *in, int *out, volatile int *kept)
{
    if (threadIdx.x) return;
    kept[blockIdx.x] = in[blockIdx.x];
    __threadfence();
    if (atomicInc(&tickets, gridDim.x - 1) < gridDim.x - 1) return;
    int sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += kept[i];  // <- fault
    out[0] = sum;
}
