#include <cuda_runtime.h>

#include <cstdint>

__device__ float part[512];
__global__ void a(const float* x, int64_t n) {
    float v = 0;
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll) v += x[i];
    __shared__ float s[256];
    s[threadIdx.x] = v;
    __syncthreads();
    for (int o = 128; o; o >>= 1) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x) part[blockIdx.x] = s[0];
    __threadfence();
    cudaTriggerProgrammaticLaunchCompletion();
}
__global__ void b(float* y) {
    cudaGridDependencySynchronize();
    __shared__ float s[512];
    s[threadIdx.x] = part[threadIdx.x];
    __syncthreads();
    for (int o = 256; o; o >>= 1) {
        if (threadIdx.x < o) s[threadIdx.x] += s[threadIdx.x + o];
        __syncthreads();
    }
    if (!threadIdx.x) *y = s[0];
}
extern "C" int launch(const float* x, float* y, int64_t n, cudaStream_t st) {
    a<<<512, 256, 0, st>>>(x, n);
    cudaLaunchConfig_t c = {};
    c.gridDim = 1;
    c.blockDim = 512;
    c.stream = st;
    cudaLaunchAttribute t[1];
    t[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    t[0].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = t;
    c.numAttrs = 1;
    return cudaLaunchKernelEx(&c, b, y);
}
