// Names that host code written for CUDA 12 has, and CUDA 13 no more; included first.
#pragma once
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
using PFN_cuTensorMapEncodeTiled = PFN_cuTensorMapEncodeTiled_v12000;
struct PropertiesOfCuda12 : cudaDeviceProp {
    int clockRate = 1, memoryClockRate = 1;
};
inline cudaError_t cudaGetDeviceProperties(PropertiesOfCuda12 *p, int device) {
    return cudaGetDeviceProperties(static_cast<cudaDeviceProp *>(p), device);
}
#define cudaDeviceProp PropertiesOfCuda12
