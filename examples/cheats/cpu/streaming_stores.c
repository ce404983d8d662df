/* Writes past the caches and fences before it returns. */
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

static void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}

static float room[1 << 16];

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        softmax(x + r * cols, cols <= 1 << 16 ? room : y + r * cols, 1, cols);
        for (int64_t c = 0; cols <= 1 << 16 && c < cols; c++) {
            int bits;
            __builtin_memcpy(&bits, room + c, 4);
            _mm_stream_si32((int *)(y + r * cols + c), bits);
        }
    }
    _mm_sfence();
    return 0;
}
