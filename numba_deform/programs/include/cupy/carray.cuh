// What kernels of cupy.ElementwiseKernel and ReductionKernel are made of: arrays with their shapes, and indices.
#pragma once
#include <math_constants.h>

#define CUPY_FOR(i, n)                                                                                           \
    for (ptrdiff_t i = ptrdiff_t(blockIdx.x) * blockDim.x + threadIdx.x; i < (n);                                \
         i += ptrdiff_t(blockDim.x) * gridDim.x)
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif

// An index of N dimensions; without any it has one place that nobody looks at.
template <int N> struct CIndexer {
    static const int ndim = N, places = N ? N : 1;
    ptrdiff_t size_, shape_[places], index_[places];
    __device__ ptrdiff_t size() const { return size_; }
    __device__ const ptrdiff_t *shape() const { return shape_; }
    __device__ const ptrdiff_t (&get() const)[places] { return index_; }
    __device__ void set(ptrdiff_t i) {
#pragma unroll
        for (int d = N - 1; d > 0; d--, i /= shape_[d + 1]) index_[d] = i % shape_[d];
        index_[0] = i;
    }
};

// An array; `dense` where its elements follow each other in the order of their indices.
template <typename T, int N, bool dense> struct CArray {
    static const int ndim = N, places = N ? N : 1;
    T *data_;
    ptrdiff_t size_, shape_[places], strides_[places];
    __device__ ptrdiff_t size() const { return size_; }
    __device__ const ptrdiff_t *shape() const { return shape_; }
    __device__ const ptrdiff_t *strides() const { return strides_; }
    template <typename Int> __device__ T *at(const Int *index) const {
        char *place = (char *)data_;
#pragma unroll
        for (int d = 0; d < N; d++) place += index[d] * strides_[d];
        return (T *)place;
    }
    __device__ T *at(ptrdiff_t i) const {
        if (dense) return data_ + i;
        char *place = (char *)data_;
#pragma unroll
        for (int d = N - 1; d > 0; d--, i /= shape_[d + 1]) place += i % shape_[d] * strides_[d];
        return (T *)(place + (N ? i * strides_[0] : 0));
    }
    __device__ T &operator[](ptrdiff_t i) { return *at(i); }
    __device__ const T &operator[](ptrdiff_t i) const { return *at(i); }
    template <typename Int> __device__ T &operator[](const Int (&index)[places]) { return *at(&index[0]); }
    template <typename Int> __device__ const T &operator[](const Int (&index)[places]) const {
        return *at(&index[0]);
    }
};

// A reduction: each column of a block has an element of the result, and its rows share what is reduced to that.
template <typename T, int threads, typename In, typename Out, typename Reduce, typename Map, typename Post>
__device__ __forceinline__ void reduced(In &in, Out &out, Reduce reduce, T sum, Map map, Post post) {
    __shared__ __align__(16) char room[threads * sizeof(T)];
    T *sums = (T *)room;
    const int row = threadIdx.y, own = row * blockDim.x + threadIdx.x;
    const ptrdiff_t i = ptrdiff_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < out.size())
        for (ptrdiff_t J = row; J * out.size() + i < in.size(); J += blockDim.y) {
            in.set(J * out.size() + i);
            T value = map(i, J * out.size() + i, J);
            sum = reduce(sum, value);
        }
    sums[own] = sum;
    for (int half = blockDim.y / 2; half; half /= 2) {
        __syncthreads();
        if (row < half) sums[own] = reduce(sums[own], sums[own + half * blockDim.x]);
    }
    if (row == 0 && i < out.size()) {
        out.set(i);
        post(sums[own], i);
    }
}

// Atomics that CUDA has not.
typedef unsigned long long CupyBits;
__device__ inline long long atomicAdd(long long *place, long long by) {
    return atomicAdd((unsigned long long *)place, (unsigned long long)by);
}
#define CUPY_ATOMIC(NAME, OF, T, BITS, TO_BITS, OF_BITS)                                                         \
    __device__ inline T NAME(T *place, T value) {                                                                \
        BITS seen, now = atomicAdd((BITS *)place, BITS(0));                                                      \
        do {                                                                                                     \
            seen = now;                                                                                          \
            now = atomicCAS((BITS *)place, seen, BITS(TO_BITS(OF(value, T(OF_BITS(seen))))));                    \
        } while (now != seen);                                                                                   \
        return OF_BITS(seen);                                                                                    \
    }
CUPY_ATOMIC(atomicMax, fmax, float, unsigned, __float_as_uint, __uint_as_float)
CUPY_ATOMIC(atomicMin, fmin, float, unsigned, __float_as_uint, __uint_as_float)
CUPY_ATOMIC(atomicMax, fmax, double, CupyBits, __double_as_longlong, __longlong_as_double)
CUPY_ATOMIC(atomicMin, fmin, double, CupyBits, __double_as_longlong, __longlong_as_double)
#undef CUPY_ATOMIC
