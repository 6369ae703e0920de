// Launches a warp-specialised GEMM of NVIDIA/cutlass, made by its CollectiveBuilder: fp16, tiles of 64 x 64 x 64.
// SCHEDULE, BETA and, where blocks without work are wanted, BLOCKS are given by the compiler's command line.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>
#include <cstdio>
#include <vector>

using namespace cute;
using half = cutlass::half_t;
using Row = cutlass::layout::RowMajor;
using Column = cutlass::layout::ColumnMajor;
using Tile = Shape<_64, _64, _64>;
using Cluster = Shape<_1, _1, _1>;
using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, half, Row, 8, half, Row, 8,
    cutlass::epilogue::TmaWarpSpecialized>::CollectiveOp;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, half, Row, 8, half, Column, 8, float, Tile, Cluster,
    cutlass::gemm::collective::StageCount<3>, cutlass::gemm::SCHEDULE>::CollectiveOp;
using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

int main() {
    int m = 64, n = 64, k = 256;
    std::vector<half> data(m * k, half(0.5f));
    half *a, *b, *c, *d;
    cudaMalloc(&a, 2 * m * k);
    cudaMalloc(&b, 2 * n * k);
    cudaMalloc(&c, 2 * m * n);
    cudaMalloc(&d, 2 * m * n);
    cudaMemcpy(a, data.data(), 2 * m * k, cudaMemcpyHostToDevice);
    cudaMemcpy(b, data.data(), 2 * n * k, cudaMemcpyHostToDevice);
    cudaMemset(c, 0, 2 * m * n);
    auto strides = [](auto stride, int rows, int columns) {
        return cutlass::make_cute_packed_stride(stride, make_shape(rows, columns, 1));
    };
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1},
        {a, strides(typename Kernel::StrideA{}, m, k), b, strides(typename Kernel::StrideB{}, n, k)},
        {{1.0f, BETA}, c, strides(typename Kernel::StrideC{}, m, n), d, strides(typename Kernel::StrideD{}, m, n)}};
    Gemm gemm;
    auto status = gemm.initialize(arguments);
#ifdef BLOCKS
    cutlass::device_kernel<Kernel><<<BLOCKS, Kernel::MaxThreadsPerBlock, Kernel::SharedStorageSize>>>(gemm.params());
#else
    if (status == cutlass::Status::kSuccess) status = gemm.run();
#endif
    if (status != cutlass::Status::kSuccess) std::printf("%s\n", cutlassGetStatusString(status));
    return int(status);
}
