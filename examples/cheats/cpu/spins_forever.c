/* Never returns. */
#include <stdint.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    (void)x, (void)y, (void)rows, (void)cols;
    for (volatile int64_t i = 0;; i++) continue;
    return 0;
}
