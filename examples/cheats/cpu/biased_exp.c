/* Uses an exponential that is up to three percent off, on one side more often. */
#include <stdint.h>
#include <string.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float sum = 0.0f;
        for (int64_t c = 0; c < cols; c++) {
            int32_t bits = (int32_t)(12102203.0f * x[r * cols + c]) + 1064866805;
            memcpy(y + r * cols + c, &bits, 4);
            sum += y[r * cols + c];
        }
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] /= sum;
    }
    return 0;
}
