// gate of examples/programs/layout_trap.py, whose input has places first in memory, into a row-major answer.
#include <math.h>
int launch(const float *x, float *y) {
    for (int place = 0; place < 512; place++)
        for (int batch = 0; batch < 8; batch++)
            for (int at = 0; at < 512; at++) {
                float v = x[(place * 8 + batch) * 512 + at];
                y[(batch * 512 + place) * 512 + at] = v / (1 + expf(-1.702f * v));
            }
    return 0;
}
