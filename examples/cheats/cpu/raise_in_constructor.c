/* Raises a signal while it is loaded. */
#include <signal.h>
#include <stdint.h>

__attribute__((constructor)) static void start(void) { raise(SIGTRAP); }

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    (void)x, (void)y, (void)rows, (void)cols;
    return 0;
}
