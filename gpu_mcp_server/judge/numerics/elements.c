// What the owner does with every element on the processor: comparing, and making inputs. Compiled once a host; NumPy
// does the same where it is not there.
#include <math.h>
#include <stdint.h>
#include <string.h>

#define BLOCK 1024

static inline int32_t bits_of(float value) {
  int32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

// Marks elements that are wrong: a NaN is right where one is expected, an infinity where the same
// is. The largest absolute error is of the finite ones, the largest relative one of those whose size is a number. Floats
// that are not negative are ordered as their bits are, NaN comes last.
void mark_float32(const float *expected, const float *got, int64_t n, float rtol, float atol, float least,
                  uint8_t *wrong, float *worst) {
  int32_t most[2] = {0, 0};
  for (int64_t at = 0; at < n; at += BLOCK) {
    int count = n - at < BLOCK ? (int)(n - at) : BLOCK;
    for (int i = 0; i < count; i++) {
      float want = expected[at + i], have = got[at + i];
      float size = fabsf(want), error = fabsf(have - want), bound = size * rtol;
      bound = bound + atol;
      int same = (have == want) | ((have != have) & (want != want));
      int off = (!(error <= bound) | (bound == INFINITY)) & !same;
      float finite = error < INFINITY ? error : 0, relative = finite / (size > least ? size : least);
      wrong[at + i] = (uint8_t)off;
      int32_t e = bits_of(finite), r = bits_of(relative);
      most[0] = e > most[0] ? e : most[0];
      most[1] = r > most[1] ? r : most[1];
    }
  }
  memcpy(worst, most, 8);
}

static inline uint64_t next(uint64_t *s) {
  uint64_t word = s[0] + s[1] + s[3]++;
  s[0] = s[1] ^ (s[1] >> 11);
  s[1] = s[2] + (s[2] << 3);
  s[2] = ((s[2] << 24) | (s[2] >> 40)) + word;
  return word;
}

// Fills n elements, a chunk at a time: a word whose highest 16 bits are the jitter's offset, then 16 bits an element.
void draw_float32(float *into, int64_t n, int64_t chunk, const float *table, const float *jitter, uint64_t *state) {
  uint64_t s[4];
  memcpy(s, state, 32);
  for (int64_t at = 0; at < n; at += chunk) {
    int64_t size = n - at < chunk ? n - at : chunk;
    const float *add = jitter + (next(s) >> 48);
    float *out = into + at;
    int64_t i = 0;
    for (; i + 4 <= size; i += 4) {
      uint64_t w = next(s);
      out[i] = table[w & 0xffff] + add[i];
      out[i + 1] = table[w >> 16 & 0xffff] + add[i + 1];
      out[i + 2] = table[w >> 32 & 0xffff] + add[i + 2];
      out[i + 3] = table[w >> 48] + add[i + 3];
    }
    if (i < size)
      for (uint64_t w = next(s); i < size; i++, w >>= 16) out[i] = table[w & 0xffff] + add[i];
  }
  memcpy(state, s, 32);
}
