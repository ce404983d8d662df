#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>
__global__ void kernel(const float* x, int64_t* y, int64_t cols) {
    const float* in = x + blockIdx.x * cols;
    float m = -INFINITY;
    int64_t at = INT64_MAX;
    for (int64_t c = threadIdx.x; c < cols; c += 128)
        if (at == INT64_MAX || in[c] > m) {
            m = in[c];
            at = c;
        }
    __shared__ float s[128];
    __shared__ int64_t t[128];
    s[threadIdx.x] = m;
    t[threadIdx.x] = at;
    __syncthreads();
    for (int o = 64; o; o >>= 1) {
        if (threadIdx.x < o) {
            float m2 = s[threadIdx.x + o];
            int64_t a2 = t[threadIdx.x + o];
            if (m2 > s[threadIdx.x] || (m2 == s[threadIdx.x] && a2 < t[threadIdx.x])) {
                s[threadIdx.x] = m2;
                t[threadIdx.x] = a2;
            }
        }
        __syncthreads();
    }
    if (!threadIdx.x) y[blockIdx.x] = t[0] == INT64_MAX ? 0 : t[0];
}
extern "C" int launch(const float* x, int64_t* y, int64_t rows, int64_t cols, cudaStream_t st) {
    kernel<<<rows, 128, 0, st>>>(x, y, cols);
    return cudaGetLastError();
}
