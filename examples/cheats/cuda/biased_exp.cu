// Uses an exponential made of integer arithmetic that is up to three percent off.
#include <cstdint>
#include <cuda_runtime.h>

__device__ float rough(float v) { return __int_as_float((int)(12102203.0f * v) + 1064866805); }

__global__ void softmax(const float *x, float *y, int64_t cols) {
    const float *in = x + blockIdx.x * cols;
    float *out = y + blockIdx.x * cols;
    float sum = 0.0f;
    for (int64_t c = threadIdx.x; c < cols; c += 32) sum += rough(in[c]);
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    for (int64_t c = threadIdx.x; c < cols; c += 32) out[c] = rough(in[c]) / sum;
}

extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    softmax<<<(unsigned)rows, 32, 0, stream>>>(x, y, cols);
    return cudaGetLastError();
}
