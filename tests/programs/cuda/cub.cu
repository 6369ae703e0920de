// A function of CUB's for the device.
#include <cub/cub.cuh>

int main() {
    int host[300], n = 300, right = 0, *in, *out;
    void *room = nullptr;
    size_t bytes = 0;
    for (int i = 0; i < n; i++) right += host[i] = i * 7 % 31;
    cudaMalloc(&in, sizeof host);
    cudaMalloc(&out, sizeof host);
    cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice);
    if (cub::DeviceScan::InclusiveSum(room, bytes, in, out, n)) return 4;
    if (cudaMalloc(&room, bytes) || cub::DeviceScan::InclusiveSum(room, bytes, in, out, n)) return 5;
    cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost);
    return host[n - 1] == right ? 0 : 3;
}
