// What the captures beside this folder are of: `kernels profiled` for ncu, `kernels MISTAKE` for compute-sanitizer.
#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

__global__ void product(const float *__restrict__ a, const float *__restrict__ b, float *c, int n) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; ++k) sum += a[row * n + k] * b[k * n + column];
    c[row * n + column] = sum;
}
template <int T> __global__ void tiled(const float *__restrict__ a, const float *__restrict__ b, float *c, int n) {
    __shared__ float s[T][T], t[T][T];
    int row = blockIdx.y * T + threadIdx.y, column = blockIdx.x * T + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += T) {
        s[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        t[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int i = 0; i < T; ++i) sum += s[threadIdx.y][i] * t[i][threadIdx.x];  // HOT
        __syncthreads();
    }
    c[row * n + column] = sum;
}
__global__ void saxpy(int n, float a, const float *__restrict__ x, float *__restrict__ y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
__global__ void transpose(const float *__restrict__ x, float *__restrict__ y, int n) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    y[column * n + row] = x[row * n + column];
}

__global__ void past_end(float *x) {
    x[threadIdx.x + 1] = 1.0f;  // BUG past_end
}
__global__ void wild(float *x) {
    x[(size_t)(threadIdx.x + 1) << 36] = 1.0f;  // BUG wild
}
__global__ void race(float *out, const float *in) {
    __shared__ float tile[256];
    tile[threadIdx.x] = in[threadIdx.x];  // BUG race
    out[threadIdx.x] = tile[255 - threadIdx.x];  // BUG race, its other side
}
__global__ void unwritten(float *out, const float *in) {
    out[threadIdx.x] = in[threadIdx.x] * 2.0f;  // BUG unwritten
}
__global__ void bad_mask(int *out) {
    if (threadIdx.x < 16) __syncwarp(0x0000ff00u);  // BUG bad_mask
    out[threadIdx.x] = threadIdx.x;
}

static cudaError_t profiled() {
    const int n = 2048, many = 1 << 26;
    float *a, *b, *c, *x, *y;
    cudaMalloc(&a, n * n * 4), cudaMalloc(&b, n * n * 4), cudaMalloc(&c, n * n * 4);
    cudaMalloc(&x, many * 4ll), cudaMalloc(&y, many * 4ll);
    cudaMemset(a, 0, n * n * 4), cudaMemset(b, 0, n * n * 4), cudaMemset(x, 0, many * 4ll), cudaMemset(y, 0, many * 4ll);
    dim3 grid(n / 32, n / 32), block(32, 32);
    product<<<grid, block>>>(a, b, c, n);
    tiled<32><<<grid, block>>>(a, b, c, n);
    saxpy<<<many / 256, 256>>>(many, 2.0f, x, y);
    transpose<<<grid, block>>>(a, c, n);
    return cudaDeviceSynchronize();
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "clean";
    float *x, *y;
    cudaMalloc(&x, 1024), cudaMalloc(&y, 1024);
    cudaError_t error = cudaSuccess;
    if (!strcmp(mode, "profiled")) error = profiled();
    if (!strcmp(mode, "clean")) cudaMemset(x, 0, 1024), saxpy<<<1, 256>>>(256, 2.0f, x, x);
    if (!strcmp(mode, "past_end")) past_end<<<1, 256>>>(x);
    if (!strcmp(mode, "wild")) wild<<<1, 256>>>(x);
    if (!strcmp(mode, "race")) cudaMemset(y, 0, 1024), race<<<1, 256>>>(x, y);
    if (!strcmp(mode, "unwritten")) unwritten<<<1, 256>>>(x, y);
    if (!strcmp(mode, "bad_mask")) bad_mask<<<1, 32>>>((int *)x);
    if (!strcmp(mode, "refused")) past_end<<<1, 2048>>>(x);
    if (!strcmp(mode, "leak")) return cudaFree(x);  // and y is not freed
    if (error == cudaSuccess) error = cudaGetLastError();
    if (error == cudaSuccess) error = cudaDeviceSynchronize();
    printf("%s: %s\n", mode, cudaGetErrorString(error));
    if (strcmp(mode, "refused")) cudaFree(x), cudaFree(y);
    return error != cudaSuccess;
}
