// Launches a warp-specialised GEMM of NVIDIA/cutlass for Blackwell, made by its CollectiveBuilder: fp16, tiles of
// 128 x 64 x 64, one block each. Its tile scheduler takes the tiles of blocks that have not started
// (clusterlaunchcontrol). The numbers are small integers, so that sums are exact; they are compared with float64.
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
using TileShape = Shape<_128, _64, _64>;
using ClusterShape = Shape<_1, _1, _1>;
using CollectiveEpilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, float, RowMajor, 4, float, RowMajor, 4,
    cutlass::epilogue::collective::EpilogueScheduleAuto>::CollectiveOp;
using CollectiveMainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, Element, RowMajor, 8, Element, ColumnMajor, 8, float, TileShape,
    ClusterShape, cutlass::gemm::collective::StageCount<3>, cutlass::gemm::collective::KernelScheduleAuto>::CollectiveOp;
using GemmKernel = cutlass::gemm::kernel::GemmUniversal<
    Shape<int, int, int, int>, CollectiveMainloop, CollectiveEpilogue, void>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;

int main() {
    int m = 256, n = 192, k = 192;
    std::vector<double> x[2] = {std::vector<double>(m * k), std::vector<double>(n * k)};
    Element *places[2];
    float *c, *d;
    unsigned state = 1;
    for (int i = 0; i < 2; i++) {
        std::vector<Element> data(x[i].size());
        for (size_t at = 0; at < data.size(); at++) {
            x[i][at] = int((state = state * 1664525u + 1013904223u) >> 29) - 4;
            data[at] = Element(float(x[i][at]));
        }
        cudaMalloc(&places[i], 2 * data.size());
        cudaMemcpy(places[i], data.data(), 2 * data.size(), cudaMemcpyHostToDevice);
    }
    cudaMalloc(&c, 4 * m * n);
    cudaMalloc(&d, 4 * m * n);
    cudaMemset(c, 0, 4 * m * n);
    cudaMemset(d, 0xff, 4 * m * n);
    auto strides = [](auto stride, int rows, int columns) {
        return cutlass::make_cute_packed_stride(stride, make_shape(rows, columns, 1));
    };
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm, {m, n, k, 1},
        {places[0], strides(typename GemmKernel::StrideA{}, m, k), places[1],
         strides(typename GemmKernel::StrideB{}, n, k)},
        {{1.0f, 0.0f}, c, strides(typename GemmKernel::StrideC{}, m, n), d,
         strides(typename GemmKernel::StrideD{}, m, n)}};
    Gemm gemm;
    auto status = gemm.initialize(arguments);
    if (status == cutlass::Status::kSuccess) status = gemm.run();
    if (status != cutlass::Status::kSuccess) std::printf("%s\n", cutlassGetStatusString(status));
    std::vector<float> got(m * n);
    cudaMemcpy(got.data(), d, 4 * m * n, cudaMemcpyDeviceToHost);
    int wrong = int(status);
    for (int row = 0; row < m; row++)
        for (int column = 0; column < n; column++) {
            double sum = 0;
            for (int i = 0; i < k; i++) sum += x[0][row * k + i] * x[1][column * k + i];
            wrong += got[row * n + column] != sum;
        }
    return wrong != 0;
}
