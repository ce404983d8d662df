/* Sends packets of a hundred kilobytes, and as many as fit. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    static char packet[100000];
    (void)x, (void)y, (void)rows, (void)cols;
    while (send(atoi(getenv("LINK_OWNER")), packet, sizeof packet, MSG_DONTWAIT) > 0) continue;
    return 0;
}
