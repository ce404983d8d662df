#include <cuda_runtime.h>

#include <cstdint>
#include <cub/cub.cuh>
extern "C" int launch(const float* x, float* y, int64_t n, cudaStream_t st) {
    size_t bytes = 0;
    void* tmp = nullptr;
    cub::DeviceReduce::Sum(nullptr, bytes, x, y, n, st);
    cudaMallocAsync(&tmp, bytes, st);
    cub::DeviceReduce::Sum(tmp, bytes, x, y, n, st);
    cudaFreeAsync(tmp, st);
    return cudaGetLastError();
}
