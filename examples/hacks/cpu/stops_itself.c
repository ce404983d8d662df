/* Stops its own process and never comes back. */
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    (void)x, (void)y, (void)rows, (void)cols;
    kill(getpid(), SIGSTOP);
    return 0;
}
