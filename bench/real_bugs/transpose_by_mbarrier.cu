// A transposition whose barrier is an mbarrier by the functions of NVIDIA/Fuser's runtime/mbarrier.cu. All threads
// initialise it, as the generated kernel did; FIXED: with the barrier of threads that was added behind that.
#include <cstdint>
#include <vector>
__device__ inline unsigned toSmem(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
#include "runtime/mbarrier.cu"

constexpr int SIDE = 8;

__global__ void transpose(const float *in, float *out) {
#ifdef __CUDA_ARCH__  // for which alone those functions are there
    __shared__ float tile[SIDE * SIDE];
    __shared__ uint64_t bar;
    int row = threadIdx.x + SIDE * threadIdx.y, column = threadIdx.y + SIDE * threadIdx.x;
    if (row == 0) mbarrier::init(toSmem(&bar), SIDE * SIDE);
#ifdef FIXED
    __syncthreads();
#endif
    tile[row] = in[row];
    uint64_t token = mbarrier::arrive(toSmem(&bar));
    mbarrier::wait(toSmem(&bar), token);
    out[row] = tile[column];
#endif
}

int main() {
    std::vector<float> data(SIDE * SIDE, 3);
    float *in, *out;
    cudaMalloc(&in, sizeof(float) * SIDE * SIDE);
    cudaMalloc(&out, sizeof(float) * SIDE * SIDE);
    cudaMemcpy(in, data.data(), sizeof(float) * SIDE * SIDE, cudaMemcpyHostToDevice);
    transpose<<<1, dim3(SIDE, SIDE)>>>(in, out);
    return cudaDeviceSynchronize();
}
