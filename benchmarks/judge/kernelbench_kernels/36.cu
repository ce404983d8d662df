#include <cstdint>
#include <cuda_runtime.h>
__global__ void rmsnorm(const float *x, float *y) {
    int64_t plane = 512 * 512, at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, first = at / plane * 64 * plane + at % plane;
    float values[64], sum = 0.0f;
#pragma unroll
    for (int f = 0; f < 64; f++) { values[f] = x[first + f * plane]; sum += values[f] * values[f]; }
    float scale = rsqrtf(sum / 64 + 1e-5f);
#pragma unroll
    for (int f = 0; f < 64; f++) y[first + f * plane] = values[f] * scale;
}
extern "C" int launch(const float *x, float *y, cudaStream_t stream) {
    rmsnorm<<<112 * 512 * 512 / 256, 256, 0, stream>>>(x, y);
    return cudaGetLastError();
}
