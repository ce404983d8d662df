/* C++ with containers, and an exception that is thrown and caught in each call. */
#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <stdint.h>
#include <vector>

static void row(const float *in, float *out, int64_t cols) {
    std::vector<float> powers(in, in + cols);
    const float top = *std::max_element(powers.begin(), powers.end());
    for (float &v : powers) v = std::exp(v - top);
    const float sum = std::accumulate(powers.begin(), powers.end(), 0.0f);
    std::transform(powers.begin(), powers.end(), out, [sum](float v) { return v / sum; });
}

extern "C" int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    try {
        for (int64_t r = 0;; r++) {
            if (r == rows) throw std::out_of_range("that was the last row");
            row(x + r * cols, y + r * cols, cols);
        }
    } catch (const std::out_of_range &) {
        return 0;
    }
}
