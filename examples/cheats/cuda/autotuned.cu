// Times two block sizes of its own at the first call of a shape and keeps the faster one.
#include <cstdint>
#include <cuda_runtime.h>

// One warp a row, several warps a block.
__global__ void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    const int64_t r = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (r >= rows) return;
    const int lane_of = threadIdx.x % 32;
    const float *in = x + r * cols;
    float *out = y + r * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int64_t c = lane_of; c < cols; c += 32) top = fmaxf(top, in[c]);
    for (int lane = 16; lane; lane /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, lane));
    for (int64_t c = lane_of; c < cols; c += 32) sum += expf(in[c] - top);
    for (int lane = 16; lane; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    for (int64_t c = lane_of; c < cols; c += 32) out[c] = expf(in[c] - top) / sum;
}

static int64_t tuned;
static int best = 32;

static float timed(const float *x, float *y, int64_t rows, int64_t cols, int threads, cudaStream_t stream) {
    cudaEvent_t begin, end;
    float ms = 0.0f;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    cudaEventRecord(begin, stream);
    softmax<<<(unsigned)((rows * 32 + threads - 1) / threads), threads, 0, stream>>>(x, y, rows, cols);
    cudaEventRecord(end, stream);
    cudaEventSynchronize(end);
    cudaEventElapsedTime(&ms, begin, end);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return ms;
}

extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols, cudaStream_t stream) {
    if (tuned != rows * cols) {
        timed(x, y, rows, cols, 32, stream);
        best = timed(x, y, rows, cols, 32, stream) < timed(x, y, rows, cols, 256, stream) ? 32 : 256;
        tuned = rows * cols;
    }
    softmax<<<(unsigned)((rows * 32 + best - 1) / best), best, 0, stream>>>(x, y, rows, cols);
    return cudaGetLastError();
}
