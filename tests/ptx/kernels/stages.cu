// A ring of stages filled by cuda::memcpy_async: each warp's tile of 32 numbers, STAGES of them, AHEAD on their way.
#include <cuda/pipeline>

template <int STAGES, int AHEAD>
__device__ void sum_of_tiles(const float *in, float *out, int tiles)
{
    __shared__ alignas(16) float stage[STAGES][64];
    auto pipe = cuda::make_pipeline();
    int t = threadIdx.x;
    float sum = 0;
    for (int step = -AHEAD; step < tiles; step++) {
        int next = step + AHEAD;
        pipe.producer_acquire();
        if (next < tiles && t < 16)
            cuda::memcpy_async(&stage[next % STAGES][4 * t], in + 64 * next + 4 * t, cuda::aligned_size_t<16>(16), pipe);  // <- fault
        pipe.producer_commit();
        if (step < 0) continue;
        cuda::pipeline_consumer_wait_prior<AHEAD>(pipe);
        __syncthreads();
        sum += stage[step % STAGES][63 - t];
        __syncthreads();
    }
    out[t] = sum;
}

extern "C" __global__ void overrun(const float *in, float *out, int tiles) { sum_of_tiles<3, 3>(in, out, tiles); }
extern "C" __global__ void one_less_ahead(const float *in, float *out, int tiles) { sum_of_tiles<3, 2>(in, out, tiles); }
extern "C" __global__ void one_stage_more(const float *in, float *out, int tiles) { sum_of_tiles<4, 3>(in, out, tiles); }
