// Launches a warp-specialised GEMM of NVIDIA/cutlass, made by its CollectiveBuilder: fp16, tiles of
// 64 x 64 x 64. SCHEDULE, BETA and, where blocks without work are wanted, BLOCKS are given by the compiler's command
// line.
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>
#include <cstdio>
#include <vector>

using namespace cute;
using Element = cutlass::half_t;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
using TileShape = Shape<_64, _64, _64>;
using ClusterShape = Shape<_1, _1, _1>;
using CollectiveEpilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, Element, RowMajor, 8, Element, RowMajor, 8,
    cutlass::epilogue::TmaWarpSpecialized>::CollectiveOp;
using CollectiveMainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, 8, Element, ColumnMajor, 8, float, TileShape,
    ClusterShape,
    cutlass::gemm::collective::StageCount<3>, cutlass::gemm::SCHEDULE>::CollectiveOp;
using GemmKernel = cutlass::gemm::kernel::GemmUniversal<
    Shape<int, int, int, int>, CollectiveMainloop, CollectiveEpilogue>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;

int main() {
    int m = 64, n = 64, k = 256;
    std::vector<Element> data(m * k, Element(0.5f));
    Element *a, *b, *c, *d;
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
        {a, strides(typename GemmKernel::StrideA{}, m, k), b, strides(typename GemmKernel::StrideB{}, n, k)},
        {{1.0f, BETA}, c, strides(typename GemmKernel::StrideC{}, m, n), d,
         strides(typename GemmKernel::StrideD{}, m, n)}};
    Gemm gemm;
    auto status = gemm.initialize(arguments);
#ifdef BLOCKS
    cutlass::device_kernel<GemmKernel>
        <<<BLOCKS, GemmKernel::MaxThreadsPerBlock, GemmKernel::SharedStorageSize>>>(gemm.params());
#else
    if (status == cutlass::Status::kSuccess) status = gemm.run();
#endif
    if (status != cutlass::Status::kSuccess) std::printf("%s\n", cutlassGetStatusString(status));
    return int(status);
}
