// ChannelNorm of examples/programs/image_model.py at 4 x 32 x 16 x 16.
#include <math.h>
int launch(const float *x, const float *gain, const float *offset, float *y) {
    for (int n = 0; n < 4; n++)
        for (int p = 0; p < 256; p++) {
            const float *from = x + n * 32 * 256 + p;
            float *to = y + n * 32 * 256 + p;
            float mean = 0, spread = 0;
            for (int c = 0; c < 32; c++) mean += from[c * 256];
            mean /= 32;
            for (int c = 0; c < 32; c++) spread += (from[c * 256] - mean) * (from[c * 256] - mean);
            float scale = 1 / sqrtf(spread / 32 + 1e-6f);
            for (int c = 0; c < 32; c++) to[c * 256] = (from[c * 256] - mean) * scale * gain[c] + offset[c];
        }
    return 0;
}
