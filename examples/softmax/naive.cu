// Row-wise softmax, the plain way: one thread a row, three passes.
#include <cstdint>
#include <cuda_runtime.h>

__global__ void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    int64_t r = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (r >= rows) return;
    const float *in = x + r * cols;
    float *out = y + r * cols;
    float top = in[0], sum = 0.0f;
    for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
    for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
    for (int64_t c = 0; c < cols; c++) out[c] /= sum;
}

extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    softmax<<<(unsigned)((rows + 127) / 128), 128, 0, stream>>>(x, y, rows, cols);
    return cudaGetLastError();
}
