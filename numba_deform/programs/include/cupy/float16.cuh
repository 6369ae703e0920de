// float16, which computes as float, under the name that CuPy has for it.
#pragma once
#include <cuda_fp16.h>

struct float16 {
    __half value;
    float16() = default;
    template <typename T> __device__ float16(const T &x) : value(__float2half_rn(float(x))) {}
    __device__ operator float() const { return __half2float(value); }
    template <typename T> __device__ float16 &operator+=(const T &x) { return *this = float(*this) + float(x); }
    template <typename T> __device__ float16 &operator-=(const T &x) { return *this = float(*this) - float(x); }
    template <typename T> __device__ float16 &operator*=(const T &x) { return *this = float(*this) * float(x); }
    template <typename T> __device__ float16 &operator/=(const T &x) { return *this = float(*this) / float(x); }
};
