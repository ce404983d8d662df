#include <cuda_runtime.h>

#include <cstdint>

__global__ void step(const float* before, const float* x, float* y, int64_t width) {
    int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i < width) y[i] = tanhf(0.9f * (before ? before[i] : 0.0f) + x[i]);
}
extern "C" int launch(const float* x, float* y, int64_t steps, int64_t width, cudaStream_t st) {
    unsigned blocks = (unsigned)((width + 255) / 256);
    for (int64_t t = 0; t < steps; t++) {
        const float* before = t ? y + (t - 1) * width : nullptr;
        step<<<blocks, 256, 0, st>>>(before, x + t * width, y + t * width, width);
    }
    return cudaGetLastError();
}
