// scale_add of own_triton.py at 2^24 elements, four to a thread.
#include <cuda_runtime.h>
__global__ void scale_add(const float4 *x, const float4 *bias, const float4 *before, float4 *total, float4 *y) {
    int i = blockIdx.x * 256 + threadIdx.x;
    float4 a = x[i], b = bias[i], t = before[i];
    float4 v = {a.x * 0.5f + b.x, a.y * 0.5f + b.y, a.z * 0.5f + b.z, a.w * 0.5f + b.w};
    y[i] = v;
    total[i] = {t.x + v.x, t.y + v.y, t.z + v.z, t.w + v.w};
}
extern "C" int launch(const float *x, const float *bias, const float *before, float *total, float *y,
                      cudaStream_t stream) {
    scale_add<<<(1 << 22) / 256, 256, 0, stream>>>((const float4 *)x, (const float4 *)bias, (const float4 *)before,
                                                   (float4 *)total, (float4 *)y);
    return cudaGetLastError();
}
