/* Measures what this processor reaches at best: STREAM's triad, and multiply-adds on vectors; prints both as JSON.

   Source: J. D. McCalpin, STREAM: the triad counts three arrays of doubles, 24 bytes an element, arrays of four times
   the last cache. GCC manual, "Vector Extensions". */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#if defined(__AVX512F__)
#define VECTOR 64
#elif defined(__AVX__)
#define VECTOR 32
#else
#define VECTOR 16
#endif
#define MOST_THREADS 512
#define REPEATS 9
#define LOOPS 4000000L
typedef float floats __attribute__((vector_size(VECTOR)));
typedef double doubles __attribute__((vector_size(VECTOR)));

/* Ten sums: two units of four cycles need eight, and sixteen registers hold them with both factors. */
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9)
#define SUMS 10
#define BEGIN(n) s##n = start + (float)n;
#define STEP(n) s##n = s##n * factor + term;
#define ADD(n) all += s##n;
#define LOOP(name, vector, scalar)                                                     \
    static double name(long loops, double from) {                                      \
        vector s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, start, factor, term, all;       \
        start = (vector){0} + (scalar)from;                                            \
        factor = (vector){0} + (scalar)0.999, term = (vector){0} + (scalar)(from / 7); \
        EACH(BEGIN)                                                                    \
        for (long i = 0; i < loops; i++) { EACH(STEP) }                                \
        all = (vector){0};                                                             \
        EACH(ADD)                                                                      \
        return (double)all[0];                                                         \
    }
LOOP(fma_float, floats, float)
LOOP(fma_double, doubles, double)

static double *a, *b, *c;
static int64_t elements;
static int threads, kind;
static pthread_barrier_t gate;
static volatile double kept[MOST_THREADS * 8];
static double began[MOST_THREADS], ended[MOST_THREADS];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *work(void *given) {
    long me = (long)given;
    int64_t from = elements * me / threads, to = elements * (me + 1) / threads;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        pthread_barrier_wait(&gate);
        began[me] = now();
        if (kind == 1) kept[me * 8] += fma_float(LOOPS, (double)me + 1);
        else if (kind == 2) kept[me * 8] += fma_double(LOOPS, (double)me + 1);
        else for (int64_t i = from; i < to; i++) a[i] = b[i] + 3.0 * c[i];
        ended[me] = now();
        pthread_barrier_wait(&gate);
    }
    return 0;
}

static double shortest_s(int what, int count) {
    static pthread_t started[MOST_THREADS];
    double best = 1e30;
    kind = what, threads = count;
    pthread_barrier_init(&gate, 0, (unsigned)count + 1);
    for (long n = 0; n < count; n++)
        if (pthread_create(&started[n], 0, work, (void *)n)) exit(2);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        pthread_barrier_wait(&gate);
        pthread_barrier_wait(&gate); /* between two gates all wait for this thread: their times are whole */
        double first = began[0], last = ended[0];
        for (int n = 1; n < count; n++) {
            first = began[n] < first ? began[n] : first;
            last = ended[n] > last ? ended[n] : last;
        }
        best = last - first < best ? last - first : best;
    }
    for (int n = 0; n < count; n++) pthread_join(started[n], 0);
    pthread_barrier_destroy(&gate);
    return best;
}

int main(void) {
    cpu_set_t set;
    double load = 0;
    int all = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    all = all > MOST_THREADS ? MOST_THREADS : all;
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    int64_t most = (int64_t)sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE) / 8, size = 4 * (int64_t)cache;
    if (getloadavg(&load, 1) != 1) load = 0;
    most = most > 256 << 20 ? 256 << 20 : most;
    size = size < 64 << 20 ? 64 << 20 : size;
    size = size > most ? most : size;
    elements = size / 8;
    a = malloc((size_t)size), b = malloc((size_t)size), c = malloc((size_t)size);
    if (!a || !b || !c) return 3;
    for (int64_t i = 0; i < elements; i++) a[i] = 0, b[i] = 1, c[i] = 2;
    printf("{\"threads\": %d, \"array_bytes\": %lld, \"cache_bytes\": %ld, \"load\": %.2f", all, (long long)size,
           cache > 0 ? cache : 0, load);
    for (int n = 0; n < 2; n++) {
        int count = n ? all : 1;
        const char *of = n ? "" : "one_";
        double bytes = 24.0 * (double)elements, done = 2.0 * SUMS * LOOPS * count;
        printf(", \"%sstream_gb_s\": %.6g", of, 1e-9 * bytes / shortest_s(0, count));
        printf(", \"%sfloat32_gflop_s\": %.6g", of, 1e-9 * done * (VECTOR / 4) / shortest_s(1, count));
        printf(", \"%sfloat64_gflop_s\": %.6g", of, 1e-9 * done * (VECTOR / 8) / shortest_s(2, count));
    }
    printf("}\n");
    return a[elements / 2] == 7.0 ? 0 : 4;
}
