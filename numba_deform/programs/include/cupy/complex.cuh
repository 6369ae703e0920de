// complex<float> and complex<double> under the name that CuPy's header has, for kernels that check judges.
#pragma once

template <typename T> struct __align__(2 * sizeof(T)) complex {
    typedef T value_type;
    T re, im;
    complex() = default;
    __device__ complex(const T &re, const T &im = T()) : re(re), im(im) {}
    template <typename U> __device__ complex(const complex<U> &z) : re(T(z.re)), im(T(z.im)) {}
    __device__ T real() const { return re; }
    __device__ T imag() const { return im; }
    __device__ void real(T x) { re = x; }
    __device__ void imag(T y) { im = y; }
    __device__ complex &operator+=(const complex &z) { return *this = complex(re + z.re, im + z.im); }
    __device__ complex &operator-=(const complex &z) { return *this = complex(re - z.re, im - z.im); }
    __device__ complex &operator*=(const complex &z) {
        return *this = complex(re * z.re - im * z.im, re * z.im + im * z.re);
    }
    __device__ complex &operator/=(const complex &z) {
        // By the larger part of the divisor, so that nothing overflows.
        if (fabs(z.re) < fabs(z.im)) {
            const T ratio = z.re / z.im, by = z.im + z.re * ratio;
            return *this = complex((re * ratio + im) / by, (im * ratio - re) / by);
        }
        const T ratio = z.im / z.re, by = z.re + z.im * ratio;
        return *this = complex((re + im * ratio) / by, (im - re * ratio) / by);
    }
};

#define CUPY_BINARY(OP)                                                                                          \
    template <typename T> __device__ complex<T> operator OP(const complex<T> &x, const complex<T> &y) {          \
        complex<T> z = x;                                                                                        \
        return z OP##= y;                                                                                       \
    }                                                                                                            \
    template <typename T> __device__ complex<T> operator OP(const complex<T> &x, const T &y) {                   \
        return x OP complex<T>(y);                                                                               \
    }                                                                                                            \
    template <typename T> __device__ complex<T> operator OP(const T &x, const complex<T> &y) {                   \
        return complex<T>(x) OP y;                                                                               \
    }
CUPY_BINARY(+)
CUPY_BINARY(-)
CUPY_BINARY(*)
CUPY_BINARY(/)
#undef CUPY_BINARY

#define CUPY_EQUAL(X, Y)                                                                                         \
    template <typename T> __device__ bool operator==(const X &x, const Y &y) {                                   \
        const complex<T> a(x), b(y);                                                                             \
        return a.re == b.re && a.im == b.im;                                                                     \
    }                                                                                                            \
    template <typename T> __device__ bool operator!=(const X &x, const Y &y) { return !(x == y); }
CUPY_EQUAL(complex<T>, complex<T>)
CUPY_EQUAL(complex<T>, T)
CUPY_EQUAL(T, complex<T>)
#undef CUPY_EQUAL

template <typename T> __device__ complex<T> operator+(const complex<T> &z) { return z; }
template <typename T> __device__ complex<T> operator-(const complex<T> &z) { return complex<T>(-z.re, -z.im); }
template <typename T> __device__ T real(const complex<T> &z) { return z.re; }
template <typename T> __device__ T imag(const complex<T> &z) { return z.im; }
template <typename T> __device__ T norm(const complex<T> &z) { return z.re * z.re + z.im * z.im; }
template <typename T> __device__ T abs(const complex<T> &z) { return hypot(z.re, z.im); }
template <typename T> __device__ T arg(const complex<T> &z) { return atan2(z.im, z.re); }
template <typename T> __device__ complex<T> conj(const complex<T> &z) { return complex<T>(z.re, -z.im); }
template <typename T> __device__ complex<T> polar(const T &length, const T &angle = T()) {
    return complex<T>(length * cos(angle), length * sin(angle));
}
template <typename T> __device__ complex<T> exp(const complex<T> &z) { return polar(T(exp(z.re)), z.im); }
template <typename T> __device__ complex<T> log(const complex<T> &z) { return complex<T>(log(abs(z)), arg(z)); }
template <typename T> __device__ complex<T> sqrt(const complex<T> &z) {
    const T larger = sqrt((abs(z) + fabs(z.re)) / 2), other = larger ? z.im / (2 * larger) : T();
    return z.re < 0 ? complex<T>(fabs(other), copysign(larger, z.im)) : complex<T>(larger, other);
}
template <typename T> __device__ complex<T> pow(const complex<T> &z, const complex<T> &w) {
    return norm(z) ? exp(w * log(z)) : complex<T>(norm(w) ? T(0) : T(1));
}
template <typename T> __device__ complex<T> pow(const complex<T> &z, const T &w) { return pow(z, complex<T>(w)); }
template <typename T> __device__ complex<T> pow(const T &z, const complex<T> &w) { return pow(complex<T>(z), w); }
template <typename T> __device__ complex<T> sin(const complex<T> &z) {
    return complex<T>(sin(z.re) * cosh(z.im), cos(z.re) * sinh(z.im));
}
template <typename T> __device__ complex<T> cos(const complex<T> &z) {
    return complex<T>(cos(z.re) * cosh(z.im), -sin(z.re) * sinh(z.im));
}

namespace thrust {
using ::complex;
}
