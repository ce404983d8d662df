#include <hip/hip_runtime.h>
__global__ __launch_bounds__(1024, 8) void spilled(const float* x, float* y) {
  float v[96];
#pragma unroll
  for (int k = 0; k < 96; k++) v[k] = x[k * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 96; k++) y[k * 1024 + threadIdx.x] = v[k] * v[(k * 37 + 11) % 96] + v[(k * 53 + 29) % 96];
}
__global__ void plain(float* y) { __shared__ float s[256]; s[threadIdx.x] = y[threadIdx.x]; __syncthreads(); y[threadIdx.x] = s[255 - threadIdx.x]; }
