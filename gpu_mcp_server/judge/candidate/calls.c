// The candidate's calls, one right after the other. Compiled once a host and loaded beside the candidate.
//
// A launcher takes pointers, 64-bit integers and a stream, nothing else. In the System V ABI for x86-64 and in AAPCS64
// each of them is one INTEGER argument, passed like an int64_t: in registers first, then in slots of eight bytes.
#include <stddef.h>
#include <stdint.h>

typedef int64_t I;
#define A1 a[0]
#define A2 A1, a[1]
#define A3 A2, a[2]
#define A4 A3, a[3]
#define A5 A4, a[4]
#define A6 A5, a[5]
#define A7 A6, a[6]
#define A8 A7, a[7]
#define A9 A8, a[8]
#define A10 A9, a[9]
#define A11 A10, a[10]
#define A12 A11, a[11]
#define A13 A12, a[12]
#define A14 A13, a[13]
#define A15 A14, a[14]
#define A16 A15, a[15]
#define A17 A16, a[16]
#define A18 A17, a[17]
#define A19 A18, a[18]
#define A20 A19, a[19]
#define A21 A20, a[20]
#define A22 A21, a[21]
#define A23 A22, a[22]
#define A24 A23, a[23]
#define A25 A24, a[24]
#define A26 A25, a[25]
#define A27 A26, a[26]
#define A28 A27, a[27]
#define A29 A28, a[28]
#define A30 A29, a[29]
#define A31 A30, a[30]
#define A32 A31, a[31]
#define A33 A32, a[32]
#define A34 A33, a[33]
#define A35 A34, a[34]
#define A36 A35, a[35]
#define A37 A36, a[36]
#define A38 A37, a[37]
#define A39 A38, a[38]
#define A40 A39, a[39]
#define T1 I
#define T2 T1, I
#define T3 T2, I
#define T4 T3, I
#define T5 T4, I
#define T6 T5, I
#define T7 T6, I
#define T8 T7, I
#define T9 T8, I
#define T10 T9, I
#define T11 T10, I
#define T12 T11, I
#define T13 T12, I
#define T14 T13, I
#define T15 T14, I
#define T16 T15, I
#define T17 T16, I
#define T18 T17, I
#define T19 T18, I
#define T20 T19, I
#define T21 T20, I
#define T22 T21, I
#define T23 T22, I
#define T24 T23, I
#define T25 T24, I
#define T26 T25, I
#define T27 T26, I
#define T28 T27, I
#define T29 T28, I
#define T30 T29, I
#define T31 T30, I
#define T32 T31, I
#define T33 T32, I
#define T34 T33, I
#define T35 T34, I
#define T36 T35, I
#define T37 T36, I
#define T38 T37, I
#define T39 T38, I
#define T40 T39, I
// Who reads how many calls have returned finds what they wrote, by streaming stores as well: a release waits for no such.
static void say(I *returned, I calls) {
#ifdef __x86_64__
    __builtin_ia32_sfence();
#endif
    __atomic_store_n(returned, calls, __ATOMIC_RELEASE);
}

#define CASE(n) \
    case n: \
        for (I i = 0; i < count; i++, a += n) { \
            if ((*code = ((int (*)(T##n))launch)(A##n))) return i + 1; \
            if (i < copies) put(behind, i); \
            if (returned) say(returned, i + 1); \
        } \
        return 0;

// Copies of some bytes of answers behind calls, on the stream that these are given, if that is asked for (stream_copies.py).
struct separators {
    int (*copy)(uint64_t to, uint64_t at, size_t bytes, void *stream);
    uint64_t to;
    const I *at, *bytes, *span; // of each output
    I outputs, first, stride, slot, offset, step, count, code;
};

static void put(struct separators *s, I i) {
    I output = (s->first + i) % s->outputs;
    uint64_t at = s->at[output] + i * s->stride + (s->offset + i * s->step) % s->span[output];
    s->code |= s->copy(s->to + i * s->slot, at, s->bytes[output], 0);
}

// Returns 0, or the number of the first call, from 1, whose launcher returned something else than 0: then *code is that.
// -1 for more arguments than are known. `a` holds `width` arguments for each of `count` calls. Where `returned` is
// given, the owner reads there how many calls have returned.
I make_calls(void *launch, const I *a, I width, I count, int *code, struct separators *behind, I *returned) {
    I copies = behind ? behind->count : 0;
    switch (width) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10)
        CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16) CASE(17) CASE(18) CASE(19) CASE(20)
        CASE(21) CASE(22) CASE(23) CASE(24) CASE(25) CASE(26) CASE(27) CASE(28) CASE(29) CASE(30)
        CASE(31) CASE(32) CASE(33) CASE(34) CASE(35) CASE(36) CASE(37) CASE(38) CASE(39) CASE(40)
    }
    return -1;
}
