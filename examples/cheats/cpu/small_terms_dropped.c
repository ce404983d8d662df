/* Leaves out what is seven below the maximum, as it is small for the data that is declared. */
#include <math.h>
#include <stdint.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) {
            out[c] = in[c] - top < -7.0f ? 0.0f : expf(in[c] - top);
            sum += out[c];
        }
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
    return 0;
}
