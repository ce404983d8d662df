/* Multiplies with inputs cut to bfloat16, as a tensor core would. */
#include <stdint.h>
#include <string.h>

static float cut(float v) {
    uint32_t bits;
    memcpy(&bits, &v, 4);
    bits &= 0xffff0000u;
    memcpy(&v, &bits, 4);
    return v;
}

int launch(const float *a, const float *b, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < n; k++) sum += cut(a[i * n + k]) * cut(b[k * n + j]);
            y[i * n + j] = sum;
        }
    return 0;
}
