// What PyTorch's CUDA headers give the host code of an extension, over tensors on the CPU: streams are those of the
// stand-in for the CUDA runtime, guards do nothing, since there is one device. See torch_extension.py.
#pragma once
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <cuda_runtime.h>

#define C10_CUDA_API
#define C10_CUDA_CHECK(call)                                                                     \
    do {                                                                                         \
        const cudaError_t status = call;                                                         \
        TORCH_CHECK(status == cudaSuccess, "CUDA error: ", cudaGetErrorString(status));          \
    } while (0)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() C10_CUDA_CHECK(cudaGetLastError())
#define C10_CUDA_IGNORE_ERROR(call) (void)(call)
#define C10_CUDA_CLEAR_ERROR() (void)cudaGetLastError()
#define AT_CUDA_CHECK(call) C10_CUDA_CHECK(call)

namespace c10::cuda {
class CUDAStream {
    cudaStream_t of;

  public:
    CUDAStream(cudaStream_t stream = nullptr) : of(stream) {}
    operator cudaStream_t() const { return of; }
    cudaStream_t stream() const { return of; }
    void synchronize() const { C10_CUDA_CHECK(cudaStreamSynchronize(of)); }
    bool query() const { return cudaStreamQuery(of) == cudaSuccess; }
    DeviceIndex device_index() const { return 0; }
    Device device() const { return Device(DeviceType::CPU); }
};
inline CUDAStream &current_stream() {
    static thread_local CUDAStream stream;
    return stream;
}
inline CUDAStream getCurrentCUDAStream(DeviceIndex = -1) { return current_stream(); }
inline CUDAStream getDefaultCUDAStream(DeviceIndex = -1) { return {}; }
inline CUDAStream getStreamFromPool(int = 0, DeviceIndex = -1) {
    cudaStream_t stream;
    C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}
inline void setCurrentCUDAStream(CUDAStream stream) { current_stream() = stream; }
struct CUDAGuard {
    template <class... T> explicit CUDAGuard(T &&...) {}
    template <class T> void set_device(T) {}
    void set_index(DeviceIndex) {}
};
struct OptionalCUDAGuard : CUDAGuard {
    using CUDAGuard::CUDAGuard;
};
struct CUDAStreamGuard {
    const CUDAStream before = current_stream();
    explicit CUDAStreamGuard(CUDAStream stream) { current_stream() = stream; }
    ~CUDAStreamGuard() { current_stream() = before; }
};
inline DeviceIndex device_count() { return 1; }
inline DeviceIndex current_device() { return 0; }
inline void set_device(DeviceIndex) {}
inline void device_synchronize() { C10_CUDA_CHECK(cudaDeviceSynchronize()); }
namespace CUDACachingAllocator {
inline void emptyCache() {}
}  // namespace CUDACachingAllocator
}  // namespace c10::cuda

namespace at::cuda {
using namespace c10::cuda;
inline cudaDeviceProp *getDeviceProperties(c10::DeviceIndex) {
    static cudaDeviceProp properties;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
    return &properties;
}
inline cudaDeviceProp *getCurrentDeviceProperties() { return getDeviceProperties(0); }
inline int warp_size() { return 32; }
inline bool is_available() { return true; }
}  // namespace at::cuda
