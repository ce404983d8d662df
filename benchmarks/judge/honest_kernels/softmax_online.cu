#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>
__global__ void kernel(const float* __restrict__ x, float* __restrict__ y, int64_t rows, int64_t cols) {
    int64_t r = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    int lane = threadIdx.x & 31;
    const float* in = x + r * cols;
    float m = -FLT_MAX, s = 0;
    for (int64_t c = lane; c < cols; c += 32) {
        float v = in[c], n = fmaxf(m, v);
        s = s * __expf(m - n) + __expf(v - n);
        m = n;
    }
    for (int o = 16; o; o >>= 1) {
        float m2 = __shfl_xor_sync(~0u, m, o), s2 = __shfl_xor_sync(~0u, s, o), n = fmaxf(m, m2);
        s = s * __expf(m - n) + s2 * __expf(m2 - n);
        m = n;
    }
    float inv = 1.0f / s;
    for (int64_t c = lane; c < cols; c += 32) y[r * cols + c] = __expf(in[c] - m) * inv;
}
extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols, cudaStream_t st) {
    kernel<<<(rows + 7) / 8, 256, 0, st>>>(x, y, rows, cols);
    return cudaGetLastError();
}
