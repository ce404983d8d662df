/* Prefetches the next row and works in a large array on its stack. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    float stack[1 << 16];
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; r + 1 < rows && c < cols; c += 16) __builtin_prefetch(x + (r + 1) * cols + c);
        float *room = cols <= 1 << 16 ? stack : y + r * cols;
        softmax(x + r * cols, room, 1, cols);
        if (room == stack) memcpy(y + r * cols, stack, (size_t)cols * sizeof(float));
    }
    return 0;
}
