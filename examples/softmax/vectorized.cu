// Row-wise softmax: one block a row, maximum and sum in a single pass, 16-byte loads and stores where rows allow them.
#include <cstdint>
#include <cuda_runtime.h>

constexpr int THREADS = 256;

struct Running {
    float top, sum;
};

__device__ Running joined(Running a, Running b) {
    float top = fmaxf(a.top, b.top);
    float sum = (a.sum ? a.sum * __expf(a.top - top) : 0.0f) + (b.sum ? b.sum * __expf(b.top - top) : 0.0f);
    return {top, sum};
}

__device__ Running of_warp(Running mine) {
    for (int lane = 16; lane; lane /= 2)
        mine = joined(mine, {__shfl_xor_sync(~0u, mine.top, lane), __shfl_xor_sync(~0u, mine.sum, lane)});
    return mine;
}

__device__ Running of_block(Running mine) {
    __shared__ Running warps[THREADS / 32];
    mine = of_warp(mine);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = warps[0];
    for (int w = 1; w < THREADS / 32; w++) mine = joined(mine, warps[w]);
    return mine;
}

__device__ Running of_four(float4 v) {
    float top = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
    return {top, __expf(v.x - top) + __expf(v.y - top) + __expf(v.z - top) + __expf(v.w - top)};
}

__global__ void __launch_bounds__(THREADS) by_fours(const float4 *x, float4 *y, int64_t cols) {
    const float4 *in = x + blockIdx.x * cols;
    float4 *out = y + blockIdx.x * cols;
    Running mine = {-INFINITY, 0.0f};
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) mine = joined(mine, of_four(in[c]));
    Running all = of_block(mine);
    float scale = 1.0f / all.sum;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) {
        float4 v = in[c];
        out[c] = make_float4(__expf(v.x - all.top) * scale, __expf(v.y - all.top) * scale, __expf(v.z - all.top) * scale,
                             __expf(v.w - all.top) * scale);
    }
}

__global__ void __launch_bounds__(THREADS) by_ones(const float *x, float *y, int64_t cols) {
    const float *in = x + blockIdx.x * cols;
    float *out = y + blockIdx.x * cols;
    Running mine = {-INFINITY, 0.0f};
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) mine = joined(mine, {in[c], 1.0f});
    Running all = of_block(mine);
    float scale = 1.0f / all.sum;
    for (int64_t c = threadIdx.x; c < cols; c += THREADS) out[c] = __expf(in[c] - all.top) * scale;
}

extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (cols % 4 == 0)
        by_fours<<<(unsigned)rows, THREADS, 0, stream>>>((const float4 *)x, (float4 *)y, cols / 4);
    else
        by_ones<<<(unsigned)rows, THREADS, 0, stream>>>(x, y, cols);
    return cudaGetLastError();
}
