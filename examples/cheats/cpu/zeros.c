/* Writes zeros. */
#include <stdint.h>
#include <string.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    (void)x;
    memset(y, 0, (size_t)(rows * cols) * sizeof(float));
    return 0;
}
