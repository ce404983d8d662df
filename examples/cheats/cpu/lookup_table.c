/* Makes a table of powers of two at the first call, which no input has any part in. */
#include <math.h>
#include <stdint.h>

static float powers[1024];

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    if (!powers[0])
        for (int i = 0; i < 1024; i++) powers[i] = exp2f((float)i / 1024.0f);
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) {
            float scaled = fmaxf((in[c] - top) * 1.44269504f, -126.0f), whole = floorf(scaled);
            float part = (scaled - whole) * 1024.0f;
            int place = (int)part;
            float rest = (part - (float)place) * 6.7690154e-4f;
            sum += out[c] = ldexpf(powers[place] * (1.0f + rest + rest * rest / 2.0f), (int)whole);
        }
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
    return 0;
}
