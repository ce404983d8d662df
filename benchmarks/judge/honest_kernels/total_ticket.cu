#include <cuda_runtime.h>

#include <cstdint>

__device__ float part[1024];
__device__ unsigned ticket;
__global__ void kernel(const float* x, float* y, int64_t n) {
    __shared__ float s[256];
    __shared__ bool last;
    float v = 0;
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) v += x[i];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int o = 128; o; o >>= 1) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x) {
        part[blockIdx.x] = s[0];
        __threadfence();
        last = atomicInc(&ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    v = 0;
    for (int i = threadIdx.x; i < gridDim.x; i += 256) v += ((volatile float*)part)[i];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int o = 128; o; o >>= 1) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x) *y = s[0];
}
extern "C" int launch(const float* x, float* y, int64_t n, cudaStream_t st) {
    kernel<<<528, 256, 0, st>>>(x, y, n);
    return cudaGetLastError();
}
