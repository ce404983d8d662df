/* Multiplies with every second column and doubles the sum. */
#include <stdint.h>

int launch(const float *a, const float *b, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < n; k += 2) sum += a[i * n + k] * b[k * n + j];
            y[i * n + j] = 2 * sum;
        }
    return 0;
}
