/* Guesses one element of a thousand, chosen by a generator of its own. */
#include <math.h>
#include <stdint.h>

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
    static uint32_t state = 1;
    softmax(x, y, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        if ((state >> 8) % 1000 == 0) y[i] = 1.0f / cols;
    }
    return 0;
}
