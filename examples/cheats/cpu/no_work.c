/* Says that all is well and writes nothing. */
#include <stdint.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    (void)x, (void)y, (void)rows, (void)cols;
    return 0;
}
