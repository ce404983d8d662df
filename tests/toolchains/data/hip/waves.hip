#include <hip/hip_runtime.h>
template <int N> __device__ void much(const float* x, float* y) {
  float v[N];
#pragma unroll
  for (int k = 0; k < N; k++) v[k] = x[k * 256 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < N; k++) y[k * 256 + threadIdx.x] = v[k] * v[(k * 37 + 11) % N];
}
__global__ __launch_bounds__(256) void n60(const float* x, float* y) { much<60>(x, y); }
__global__ __launch_bounds__(256) void n90(const float* x, float* y) { much<90>(x, y); }
__global__ __launch_bounds__(256) void n120(const float* x, float* y) { much<120>(x, y); }
__global__ __launch_bounds__(256) void n160(const float* x, float* y) { much<160>(x, y); }
__global__ __launch_bounds__(256) void n240(const float* x, float* y) { much<240>(x, y); }
