/* Writes a function in machine code at run time, as compilers in a library do, and calls it. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

typedef float (*Quotient)(float, float);

/* Divides; on x86-64 by a function that is made here: divss %xmm1, %xmm0; ret. */
static Quotient make_quotient(void) {
    static const unsigned char code[] = {0xf3, 0x0f, 0x5e, 0xc1, 0xc3};
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return 0;
    memcpy(page, code, sizeof code);
    return mprotect(page, 4096, PROT_READ | PROT_EXEC) ? 0 : (Quotient)page;
}

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    static Quotient quotient;
    if (!quotient && !(quotient = make_quotient())) return 1;
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] = quotient(out[c], sum);
    }
    return 0;
}
