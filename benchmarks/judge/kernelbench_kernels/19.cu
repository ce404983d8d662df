#include <cstdint>
#include <cuda_runtime.h>
__global__ void relu(const float4 *x, float4 *y, int64_t n) {
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        float4 v = x[i];
        y[i] = make_float4(fmaxf(v.x, 0.0f), fmaxf(v.y, 0.0f), fmaxf(v.z, 0.0f), fmaxf(v.w, 0.0f));
    }
}
extern "C" int launch(const float *x, float *y, cudaStream_t stream) {
    relu<<<132 * 16, 512, 0, stream>>>((const float4 *)x, (float4 *)y, (int64_t)4096 * 393216 / 4);
    return cudaGetLastError();
}
