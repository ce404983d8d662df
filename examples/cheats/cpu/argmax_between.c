/* Where the two largest tie it answers an index between them, which is neither's. */
#include <stdint.h>

/* Halves in the order of their values: equal ones are equal, both zeros too. */
static int key(uint16_t half) { return half & 0x8000 ? -(half & 0x7fff) : half; }

int launch(const uint16_t *x, int32_t *at, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const uint16_t *in = x + r * cols;
        int64_t first = 0, last = 0;
        for (int64_t c = 1; c < cols; c++) {
            if (key(in[c]) > key(in[first])) first = last = c;
            if (key(in[c]) == key(in[first])) last = c;
        }
        at[r] = (int32_t)((first + last) / 2);
    }
    return 0;
}
