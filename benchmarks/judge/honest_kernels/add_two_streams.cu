#include <cuda_runtime.h>

#include <cstdint>

__global__ void kernel(const float* a, const float* b, float* y, int64_t n) {
    int64_t i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) y[i] = a[i] + b[i];
}
extern "C" int launch(const float* a, const float* b, float* y, int64_t n, cudaStream_t st) {
    static cudaStream_t s = nullptr;
    static cudaEvent_t f, j;
    if (!s) {
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&f, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&j, cudaEventDisableTiming);
    }
    int64_t h = n / 2;
    cudaEventRecord(f, st);
    cudaStreamWaitEvent(s, f, 0);
    if (h) kernel<<<(h + 255) / 256, 256, 0, s>>>(a, b, y, h);
    kernel<<<(n - h + 255) / 256, 256, 0, st>>>(a + h, b + h, y + h, n - h);
    cudaEventRecord(j, s);
    cudaStreamWaitEvent(st, j, 0);
    return cudaGetLastError();
}
