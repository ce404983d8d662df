/* Times two ways of its own in the first calls of a shape and keeps the faster one. */
#include <math.h>
#include <stdint.h>
#include <time.h>

static void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void in_threads(const float *x, float *y, int64_t rows, int64_t cols) {
#pragma omp parallel for
    for (int64_t r = 0; r < rows; r++) softmax(x + r * cols, y + r * cols, 1, cols);
}

static int64_t tuned;
static int threads;

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    if (tuned != rows * cols) {
        double begin = now();
        softmax(x, y, rows, cols);
        double middle = now();
        in_threads(x, y, rows, cols);
        in_threads(x, y, rows, cols);
        threads = (now() - middle) / 2 < middle - begin;
        tuned = rows * cols;
    } else if (threads) {
        in_threads(x, y, rows, cols);
    } else {
        softmax(x, y, rows, cols);
    }
    return 0;
}
