// Variables that some threads leave without a value. Nothing may depend on what they hold; in kernels that end in
// _wrong something does. Blocks of 64 threads, of which 41 have work.

extern "C" __global__ void tickets(const int *in, int *out, int *count)
{
    int t = threadIdx.x, ticket, next = 0;
    if (t < 41) ticket = atomicAdd(count, in[t]);
    if (t < 41) next = ticket + in[t];
    out[t] = next;
}

extern "C" __global__ void leader(const int *in, int *out, int *count)
{
    int t = threadIdx.x, first;
    if (t % 32 == 0) first = atomicAdd(count, 32);
    first = __shfl_sync(0xffffffff, first, 0);
    out[first + t % 32] = in[t];
}

extern "C" __global__ void tile(const int *in, int *out, int *count)
{
    __shared__ int all[64];
    int t = threadIdx.x, own;
    if (t < 41) own = in[t];
    all[t] = own;
    __syncthreads();
    int sum = all[t] + all[t ^ 1];
    if ((t ^ 1) < 41 && t < 41) out[t] = sum;
}

extern "C" __global__ void stored_wrong(const int *in, int *out, int *count)
{
    int t = threadIdx.x, ticket;
    if (t < 41) ticket = atomicAdd(count, in[t]);
    out[t] = ticket;  // <- fault
}

extern "C" __global__ void tile_wrong(const int *in, int *out, int *count)
{
    __shared__ int all[64];
    int t = threadIdx.x, own;
    if (t < 41) own = in[t];
    all[t] = own;
    __syncthreads();
    int sum = all[t] + all[t ^ 1];
    if (t < 41) out[t] = sum;  // <- fault
}

extern "C" __global__ void branch_wrong(const int *in, int *out, int *count)
{
    int t = threadIdx.x, ticket;
    if (t < 41) ticket = atomicAdd(count, 1);
    __syncthreads();
    if (ticket + in[t] > 20)  // <- fault
        atomicAdd(count, in[t]);
    out[t] = in[t];
}

extern "C" __global__ void leader_wrong(const int *in, int *out, int *count)
{
    int t = threadIdx.x, first;
    if (t % 32 == 0) first = atomicAdd(count, 32);
    first = __shfl_sync(0xffffffff, first, 1);
    out[first + t % 32] = in[t];  // <- fault
}
