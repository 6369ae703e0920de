// A ring of bulk copies with the barriers of NVIDIA/cutlass's PipelineTmaAsync: warp 0 loads, warp 1 reads.
#include <cute/arch/copy_sm90_tma.hpp>
#include <cutlass/pipeline/sm90_pipeline.hpp>
#include <vector>

using Pipeline = cutlass::PipelineTmaAsync<2>;
constexpr int TILES = 4, LANES = 32, BYTES = LANES * 16;

__global__ void ring(const uint4 *in, uint4 *out) {
    __shared__ alignas(128) uint4 tile[2][LANES];
    __shared__ alignas(Pipeline::SharedStorage) char room[sizeof(Pipeline::SharedStorage)];
    auto &storage = *reinterpret_cast<Pipeline::SharedStorage *>(room);
    Pipeline::Params params;
    params.transaction_bytes = BYTES;
    params.role = threadIdx.x < LANES ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
    params.is_leader = threadIdx.x == 0;
    params.num_consumers = LANES;
    Pipeline pipeline(storage, params, cute::Shape<cute::_1, cute::_1, cute::_1>{});
    __syncthreads();
    if (threadIdx.x == 0) {
        auto state = cutlass::make_producer_start_state<Pipeline>();
        for (int i = 0; i < TILES; i++, ++state) {
            pipeline.producer_acquire(state);
            cute::SM90_BULK_COPY_G2S::copy(in + i * LANES, pipeline.producer_get_barrier(state),
                                           tile[state.index()], BYTES);
        }
    } else if (threadIdx.x >= LANES) {
        cutlass::PipelineState<2> state;
        for (int i = 0; i < TILES; i++, ++state) {
            pipeline.consumer_wait(state);
            out[i * LANES + threadIdx.x - LANES] = tile[state.index()][threadIdx.x - LANES];
            pipeline.consumer_release(state);
        }
    }
}

int main() {
    std::vector<char> data(TILES * BYTES, 3);
    uint4 *in, *out;
    cudaMalloc(&in, TILES * BYTES);
    cudaMalloc(&out, TILES * BYTES);
    cudaMemcpy(in, data.data(), TILES * BYTES, cudaMemcpyHostToDevice);
    ring<<<1, 2 * LANES>>>(in, out);
    return cudaDeviceSynchronize();
}
