#include <cuda_runtime.h>

#include <cstdint>
#include <cub/cub.cuh>
extern "C" int launch(const float* x, float* y, int64_t n, cudaStream_t st) {
    static void* tmp = nullptr;
    static size_t have = 0;
    size_t bytes = 0;
    cub::DeviceScan::InclusiveSum(nullptr, bytes, x, y, (int)n, st);
    if (bytes > have) {
        cudaFree(tmp);
        cudaMalloc(&tmp, bytes);
        have = bytes;
    }
    cub::DeviceScan::InclusiveSum(tmp, bytes, x, y, (int)n, st);
    return cudaGetLastError();
}
