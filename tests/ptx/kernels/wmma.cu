// Tiles of nvcuda::wmma. Kernels that end in _wrong have a fault, at the line that says so. One block each.

#include <mma.h>

using namespace nvcuda::wmma;
typedef fragment<matrix_a, 16, 16, 16, half, row_major> A;
typedef fragment<matrix_b, 16, 16, 16, half, col_major> B;
typedef fragment<matrix_b, 16, 16, 16, half, row_major> B_rows;
typedef fragment<accumulator, 16, 16, 16, float> C;
typedef fragment<accumulator, 16, 16, 16, half> C_half;
constexpr int SKEW = 24;  // rows of shared memory, of 16 halves and as many as keep 16 bytes

// d = 2 (a b) + c of 32x32 by 4 warps, by tiles in shared memory, with a skew that the guide of CUDA allows.
extern "C" __global__ void tiled(const half *a, const half *b, const float *c, float *d)
{
    __shared__ __align__(32) half left[32 * SKEW], right[32 * SKEW];
    int warp = threadIdx.x / 32, row = warp / 2 * 16, column = warp % 2 * 16;
    C sums, old;
    fill_fragment(sums, 0.0f);
    for (int k = 0; k < 32; k += 16) {
        for (int i = threadIdx.x; i < 512; i += blockDim.x) {
            left[i / 16 * SKEW + i % 16] = a[i / 16 * 32 + k + i % 16];
            right[i / 16 * SKEW + i % 16] = b[i / 16 * 32 + k + i % 16];
        }
        __syncthreads();
        A of_a;
        B of_b;
        load_matrix_sync(of_a, left + row * SKEW, SKEW);
        load_matrix_sync(of_b, right + column * SKEW, SKEW);
        mma_sync(sums, of_a, of_b, sums);
        __syncthreads();
    }
    load_matrix_sync(old, c + row * 32 + column, 32, mem_row_major);
    for (int i = 0; i < sums.num_elements; i++) sums.x[i] = 2 * sums.x[i] + old.x[i];
    store_matrix_sync(d + row * 32 + column, sums, 32, mem_row_major);
}

// d = (a b) b, the product in between as halves in shared memory.
template <typename Right, bool WAITS> __device__ void chain(const half *a, const half *b, float *d)
{
    __shared__ __align__(32) half between[256];
    A of_a;
    Right of_b;
    C sums;
    C_half first;
    load_matrix_sync(of_a, a, 16);
    load_matrix_sync(of_b, b, 16);
    fill_fragment(first, half(0));
    fill_fragment(sums, 0.0f);
    mma_sync(first, of_a, of_b, first);
    store_matrix_sync(between, first, 16, mem_row_major);
    if (WAITS) __syncwarp();
    load_matrix_sync(of_a, between, 16);  // <- fault
    mma_sync(sums, of_a, of_b, sums);
    store_matrix_sync(d, sums, 16, mem_row_major);
}

extern "C" __global__ void chained(const half *a, const half *b, float *d)
{
    chain<B, true>(a, b, d);
}

extern "C" __global__ void chained_wrong(const half *a, const half *b, float *d)
{
    chain<B, false>(a, b, d);
}

// One tile, with a bias that all rows share: a stride of 0.
extern "C" __global__ void bias(const half *a, const half *b, const float *row, float *d)
{
    A of_a;
    B_rows of_b;
    C sums;
    load_matrix_sync(of_a, a, 16);
    load_matrix_sync(of_b, b, 16);
    load_matrix_sync(sums, row, 0, mem_row_major);
    mma_sync(sums, of_a, of_b, sums);
    store_matrix_sync(d, sums, 16, mem_row_major);
}

// What a thread finds in its part of a tile: all elements of a fragment are elements of the tile.
extern "C" __global__ void elements(const half *a, const half *b, float *d)
{
    A of_a;
    fragment<matrix_b, 32, 8, 16, half, col_major> narrow;
    load_matrix_sync(of_a, a, 16);
    load_matrix_sync(narrow, b, 16);
    for (int i = 0; i < of_a.num_elements; i++) d[32 * i + threadIdx.x] = float(of_a.x[i]) + float(narrow.x[i]);
}

// Of 2 warps, the second writes what the first loads.
extern "C" __global__ void race_wrong(const half *a, const half *b, float *d)
{
    __shared__ __align__(32) half tile[256];
    if (threadIdx.x >= 32)
        for (int i = threadIdx.x - 32; i < 256; i += 32) tile[i] = a[i];
    __syncwarp();  // where __syncthreads() is needed
    if (threadIdx.x >= 32) return;
    A of_a;
    load_matrix_sync(of_a, tile, 16);  // <- fault
    d[threadIdx.x] = of_a.x[0];
}

// All warps store the same tile.
extern "C" __global__ void stores_wrong(const half *a, const half *b, float *d)
{
    C sums;
    fill_fragment(sums, float(threadIdx.x / 32));
    store_matrix_sync(d, sums, 16, mem_col_major);  // <- fault
}

// A tile begins in the last row of a matrix of 16x16.
extern "C" __global__ void outside_wrong(const half *a, const half *b, float *d)
{
    A of_a;
    load_matrix_sync(of_a, a + 15 * 16, 16);  // <- fault
    d[threadIdx.x] = of_a.x[0];
}

extern "C" __global__ void stored_outside_wrong(const half *a, const half *b, float *d)
{
    C sums;
    fill_fragment(sums, 1.0f);
    store_matrix_sync(d, sums, 32, mem_row_major);  // <- fault
}

extern "C" __global__ void pointer_wrong(const half *a, const half *b, float *d)
{
    A of_a;
    load_matrix_sync(of_a, a + 8, 16);  // <- fault
    d[threadIdx.x] = of_a.x[0];
}

extern "C" __global__ void stride_wrong(const half *a, const half *b, float *d)
{
    A of_a;
    load_matrix_sync(of_a, a, 12);  // <- fault
    d[threadIdx.x] = of_a.x[0];
}

// Only 15 rows are written.
extern "C" __global__ void unwritten_wrong(const half *a, const half *b, float *d)
{
    __shared__ __align__(32) half tile[256];
    for (int i = threadIdx.x; i < 240; i += 32) tile[i] = a[i];
    __syncwarp();
    A of_a;
    B of_b;
    C sums;
    fill_fragment(sums, 0.0f);
    load_matrix_sync(of_b, b, 16);
    load_matrix_sync(of_a, tile, 16);  // <- fault
    mma_sync(sums, of_a, of_b, sums);
    store_matrix_sync(d, sums, 16, mem_row_major);
}

extern "C" __global__ void divergent_wrong(const half *a, const half *b, float *d)
{
    A of_a;
    fill_fragment(of_a, half(0));
    if (threadIdx.x % 32 < 16) load_matrix_sync(of_a, a, 16);  // <- fault
    d[threadIdx.x] = of_a.x[0];
}

extern "C" __global__ void product_wrong(const half *a, const half *b, float *d)
{
    A of_a;
    B of_b;
    C sums;
    fill_fragment(sums, 0.0f);
    load_matrix_sync(of_a, a, 16);
    load_matrix_sync(of_b, b, 16);
    if (threadIdx.x % 32 < d[0]) mma_sync(sums, of_a, of_b, sums);  // <- fault
    store_matrix_sync(d, sums, 16, mem_row_major);
}

// Half a warp with another tile.
extern "C" __global__ void tiles_wrong(const half *a, const half *b, float *d)
{
    A of_a;
    load_matrix_sync(of_a, a + threadIdx.x % 32 / 16 * 256, 16);  // <- fault
    d[threadIdx.x] = of_a.x[0];
}
