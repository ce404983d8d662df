// Planted mistakes for check_memory, and kernels with known limits for profile_kernel: planted MODE [N]
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

__global__ void past_end(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i <= n) x[i] = 1.0f;  // BUG past_end
}
__global__ void wild(float *x) {
    x[(size_t)(threadIdx.x + 1) << 36] = 1.0f;  // BUG wild
}
__global__ void race(float *out, const float *in) {
    __shared__ float tile[256];
    tile[threadIdx.x] = in[threadIdx.x];  // BUG race
    out[threadIdx.x] = tile[255 - threadIdx.x];
}
__global__ void unwritten(float *out, const float *in) {
    out[threadIdx.x] = in[threadIdx.x] * 2.0f;  // BUG unwritten
}
__global__ void bad_mask(int *out) {
    if (threadIdx.x < 16) __syncwarp(0x0000ff00u);  // BUG bad_mask
    out[threadIdx.x] = threadIdx.x;
}
__global__ void saxpy(int n, float a, const float *__restrict__ x, float *__restrict__ y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
template <int T> __global__ void tiled(const float *__restrict__ a, const float *__restrict__ b, float *c, int n) {
    __shared__ float s[T][T], t[T][T];
    int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n / T; ++k) {
        s[threadIdx.y][threadIdx.x] = a[row * n + k * T + threadIdx.x];
        t[threadIdx.y][threadIdx.x] = b[(k * T + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < T; ++i) sum += s[threadIdx.y][i] * t[i][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "clean";
    int n = argc > 2 ? atoi(argv[2]) : 2048;
    size_t bytes = (size_t)n * n * sizeof(float);
    if (!strcmp(mode, "perf")) {
        float *a, *b, *c;
        cudaMalloc(&a, bytes), cudaMalloc(&b, bytes), cudaMalloc(&c, bytes);
        cudaMemset(a, 0, bytes), cudaMemset(b, 0, bytes);
        for (int i = 0; i < 3; ++i) {
            tiled<32><<<dim3(n / 32, n / 32), dim3(32, 32)>>>(a, b, c, n);
            saxpy<<<(n * n + 255) / 256, 256>>>(n * n, 2.0f, a, c);
        }
    } else {
        float *x, *y;
        cudaMalloc(&x, 1024), cudaMalloc(&y, 1024);
        if (!strcmp(mode, "past_end")) past_end<<<2, 256>>>(x, 256);
        if (!strcmp(mode, "wild")) wild<<<1, 32>>>(x);
        if (!strcmp(mode, "race")) cudaMemset(y, 0, 1024), race<<<1, 256>>>(x, y);
        if (!strcmp(mode, "unwritten")) unwritten<<<1, 256>>>(x, y);
        if (!strcmp(mode, "bad_mask")) bad_mask<<<1, 32>>>((int *)x);
        if (!strcmp(mode, "clean")) cudaMemset(x, 0, 1024), saxpy<<<1, 256>>>(256, 2.0f, x, x);
    }
    cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess) error = cudaGetLastError();
    printf("%s: %s\n", mode, cudaGetErrorString(error));
    return error != cudaSuccess;
}
