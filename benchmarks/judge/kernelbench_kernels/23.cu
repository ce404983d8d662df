#include <cstdint>
#include <cuda_runtime.h>
__device__ void join(float &top, float &sum, float other, float more) {
    float high = fmaxf(top, other);
    sum = sum * __expf(top - high) + more * __expf(other - high);
    top = high;
}
__global__ void __launch_bounds__(1024) softmax(const float *x, float *y, int64_t cols) {
    const float4 *in = (const float4 *)(x + blockIdx.x * cols);
    float4 *out = (float4 *)(y + blockIdx.x * cols);
    __shared__ float tops[32], sums[32];
    float top = -1e30f, sum = 0.0f;
    for (int64_t i = threadIdx.x; i < cols / 4; i += 1024) {
        float4 v = in[i];
        float high = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
        join(top, sum, high, __expf(v.x - high) + __expf(v.y - high) + __expf(v.z - high) + __expf(v.w - high));
    }
    for (int lane = 16; lane; lane /= 2)
        join(top, sum, __shfl_xor_sync(~0u, top, lane), __shfl_xor_sync(~0u, sum, lane));
    if (threadIdx.x % 32 == 0) { tops[threadIdx.x / 32] = top; sums[threadIdx.x / 32] = sum; }
    __syncthreads();
    top = tops[0]; sum = sums[0];
    for (int i = 1; i < 32; i++) join(top, sum, tops[i], sums[i]);
    float scale = 1.0f / sum;
    for (int64_t i = threadIdx.x; i < cols / 4; i += 1024) {
        float4 v = in[i];
        out[i] = make_float4(__expf(v.x - top) * scale, __expf(v.y - top) * scale, __expf(v.z - top) * scale, __expf(v.w - top) * scale);
    }
}
extern "C" int launch(const float *x, float *y, cudaStream_t stream) {
    softmax<<<4096, 1024, 0, stream>>>(x, y, 393216);
    return cudaGetLastError();
}
