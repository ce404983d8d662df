/* Remembers a plan for each shape, how rows are cut into tasks, and no data. */
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

static struct { int64_t rows, cols, step; } plans[64];

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    unsigned slot = (unsigned)(rows * 31 + cols) % 64;
    if (plans[slot].rows != rows || plans[slot].cols != cols) {
        plans[slot].rows = rows, plans[slot].cols = cols;
        plans[slot].step = 65536 / cols + 1;
    }
    int64_t step = plans[slot].step;
    #pragma omp parallel for if (rows > step)
    for (int64_t r = 0; r < rows; r += step) {
        int64_t now = rows - r < step ? rows - r : step;
        softmax(x + r * cols, y + r * cols, now, cols);
    }
    return 0;
}
