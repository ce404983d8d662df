#include <cuda_runtime.h>

#include <cstdint>

__global__ void kernel(const float* x, float* y, int64_t rows, int64_t cols) {
    __shared__ float t[32][33];
    int64_t c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (c < cols && r + i < rows) t[threadIdx.y + i][threadIdx.x] = x[(r + i) * cols + c];
    __syncthreads();
    c = blockIdx.y * 32 + threadIdx.x;
    r = blockIdx.x * 32 + threadIdx.y;
    for (int i = 0; i < 32; i += 8)
        if (c < rows && r + i < cols) y[(r + i) * rows + c] = t[threadIdx.x][threadIdx.y + i];
}
extern "C" int launch(const float* x, float* y, int64_t rows, int64_t cols, cudaStream_t st) {
    kernel<<<dim3((cols + 31) / 32, (rows + 31) / 32), dim3(32, 8), 0, st>>>(x, y, rows, cols);
    return cudaGetLastError();
}
