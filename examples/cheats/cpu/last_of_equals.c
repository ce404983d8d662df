/* Finds the largest from the end: of two equal ones it names the other one than the reference does. */
#include <stdint.h>

/* Halves in the order of their values: equal ones are equal, both zeros too. */
static int key(uint16_t half) { return half & 0x8000 ? -(half & 0x7fff) : half; }

int launch(const uint16_t *x, int32_t *at, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const uint16_t *in = x + r * cols;
        int64_t best = cols - 1;
        for (int64_t c = cols - 1; c >= 0; c--)
            if (key(in[c]) > key(in[best])) best = c;
        at[r] = (int32_t)best;
    }
    return 0;
}
