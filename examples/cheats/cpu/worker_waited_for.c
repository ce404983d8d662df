/* Keeps a worker thread, wakes it in each call and waits until it is done. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>

static void softmax(const float *x, float *y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        const float *in = x + r * cols;
        float *out = y + r * cols, top = in[0], sum = 0.0f;
        for (int64_t c = 1; c < cols; c++) top = fmaxf(top, in[c]);
        for (int64_t c = 0; c < cols; c++) sum += out[c] = expf(in[c] - top);
        for (int64_t c = 0; c < cols; c++) out[c] /= sum;
    }
}

struct work {
    const float *x;
    float *y;
    int64_t rows, cols;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, ready = PTHREAD_COND_INITIALIZER;
static struct work job;
static unsigned asked, done;

static void *serve(void *p) {
    pthread_mutex_lock(&lock);
    for (unsigned mine = 0;;) {
        while (mine == asked) pthread_cond_wait(&wake, &lock);
        struct work w = job;
        pthread_mutex_unlock(&lock);
        softmax(w.x, w.y, w.rows, w.cols);
        pthread_mutex_lock(&lock);
        mine = done = asked;
        pthread_cond_signal(&ready);
    }
    return p;
}

int launch(const float *x, float *y, int64_t rows, int64_t cols) {
    pthread_mutex_lock(&lock);
    if (!asked) {
        pthread_t thread;
        if (pthread_create(&thread, 0, serve, 0)) return 1;
        pthread_detach(thread);
    }
    int64_t half = rows / 2;
    job = (struct work){x, y, half, cols};
    unsigned mine = ++asked;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
    softmax(x + half * cols, y + half * cols, rows - half, cols);
    pthread_mutex_lock(&lock);
    while (done != mine) pthread_cond_wait(&ready, &lock);
    pthread_mutex_unlock(&lock);
    return 0;
}
