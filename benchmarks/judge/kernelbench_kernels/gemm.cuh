#include <cstdint>
#include <cuda_runtime.h>
// 128x128 tiles of C, 8x8 a thread, 8 of k at a time; sizes are multiples of 128. B is [k, n], or [n, k] where NT is set.
template <bool NT, bool RELU>
__global__ void __launch_bounds__(256) gemm(const float *a, const float *b, const float *bias, float *c, int m, int n, int k) {
    __shared__ float as[8][128], bs[8][128];
    int row = blockIdx.y * 128, col = blockIdx.x * 128, t = threadIdx.x, ty = t / 16 * 8, tx = t % 16 * 8;
    float sum[8][8] = {};
    for (int at = 0; at < k; at += 8) {
        int r = t / 2, s = t % 2 * 4;
        float4 v = *(const float4 *)(a + (int64_t)(row + r) * k + at + s);
        as[s][r] = v.x; as[s + 1][r] = v.y; as[s + 2][r] = v.z; as[s + 3][r] = v.w;
        if (NT) {
            float4 w = *(const float4 *)(b + (int64_t)(col + r) * k + at + s);
            bs[s][r] = w.x; bs[s + 1][r] = w.y; bs[s + 2][r] = w.z; bs[s + 3][r] = w.w;
        } else {
            *(float4 *)&bs[t / 32][t % 32 * 4] = *(const float4 *)(b + (int64_t)(at + t / 32) * n + col + t % 32 * 4);
        }
        __syncthreads();
        for (int i = 0; i < 8; i++) {
            float x[8], y[8];
            for (int j = 0; j < 8; j++) { x[j] = as[i][ty + j]; y[j] = bs[i][tx + j]; }
            for (int p = 0; p < 8; p++)
                for (int q = 0; q < 8; q++) sum[p][q] += x[p] * y[q];
        }
        __syncthreads();
    }
    for (int p = 0; p < 8; p++)
        for (int q = 0; q < 8; q++) {
            float v = sum[p][q];
            if (RELU) v = fmaxf(v + bias[col + tx + q], 0.0f);
            c[(int64_t)(row + ty + p) * n + col + tx + q] = v;
        }
}
