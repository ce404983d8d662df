/* Keeps a worker thread that two semaphores wake and wait for. */
#include <math.h>
#include <stdint.h>
#include <pthread.h>
#include <semaphore.h>

static void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}

static sem_t begun, ended;
static const float *half_x;
static float *half_y;
static int64_t half_rows, half_cols;

static void *serve(void *nothing) {
    for (;;) {
        sem_wait(&begun);
        softmax(half_x, half_y, half_rows, half_cols);
        sem_post(&ended);
    }
    return nothing;
}

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    static int made;
    if (!made++) {
        pthread_t thread;
        sem_init(&begun, 0, 0);
        sem_init(&ended, 0, 0);
        if (pthread_create(&thread, 0, serve, 0)) return 1;
    }
    int64_t half = rows / 2;
    half_x = x, half_y = y, half_rows = half, half_cols = cols;
    sem_post(&begun);
    softmax(x + half * cols, y + half * cols, rows - half, cols);
    sem_wait(&ended);
    return 0;
}
