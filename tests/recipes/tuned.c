#include <stdint.h>
#define REPEATS 250
#define OFFSET 1 // what is added
int launch(const float *x, float *y, int64_t n) {
    for (volatile int k = 0; k < REPEATS; k++)
        for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i] + OFFSET;
    return 0;
}
