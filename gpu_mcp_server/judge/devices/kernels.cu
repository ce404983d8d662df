// The owner's own kernels: fresh inputs, poison, guards, comparison, the fence. Compiled to kernels.ptx by
//   nvcc -ptx -O3 -arch=compute_75 kernels.cu -o kernels.ptx && sed -i 's/^\.version .*/.version 7.0/' kernels.ptx
// (nothing in it is newer than PTX 7.0, and drivers refuse a version that they do not know), and that to cubins/ by
//   for a in 75 80 90 100 120; do ptxas -O3 -arch=sm_$a kernels.ptx -o cubins/sm_$a.cubin; done
// up to 90 with ptxas of nvidia-cuda-nvcc-cu12 12.0.140, which drivers from 525 on take, then with that of CUDA 13.0.
// A tensor is `sets` runs of `count` elements, `stride` bytes apart. Element types by number: 0 float16, 1 bfloat16,
// 2 float32, 3 float64, 4 int8, 5 uint8, 6 int32, 7 int64, 12 int16, 13 uint16, 14 uint32; of outputs alone 8
// float8_e4m3fn, 9 float8_e5m2, 11 bytes of two float4_e2m1fn. All comparison is done in double.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;

__device__ __forceinline__ i64 first() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 step() { return (i64)gridDim.x * blockDim.x; }

// Philox4x32-10. Source: J. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
__device__ uint4 philox(u64 key, u64 low, u64 high) {
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    uint4 c = make_uint4((u32)low, (u32)(low >> 32), (u32)high, (u32)(high >> 32));
#pragma unroll
    for (int i = 0; i < 10; i++) {
        u32 h0 = __umulhi(0xD2511F53u, c.x), l0 = 0xD2511F53u * c.x;
        u32 h1 = __umulhi(0xCD9E8D57u, c.z), l1 = 0xCD9E8D57u * c.z;
        c = make_uint4(h1 ^ c.y ^ k0, l1, h0 ^ c.w ^ k1, l0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

__device__ __forceinline__ u64 mix(u64 z) {  // splitmix64's finalizer
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// Codes of eight bits, and of two fours. Source: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0.
struct E4m3 { u8 bits; };
struct E5m2 { u8 bits; };
struct Fours { u8 bits; };
__device__ __forceinline__ double two_to(int power) { return __longlong_as_double((i64)(power + 1023) << 52); }
__device__ __forceinline__ double signed_as(u32 sign, double size) { return sign ? -size : size; }
__device__ __noinline__ double four(u32 code) {
    u32 power = code >> 1 & 3, part = code & 1;
    return signed_as(code & 8, power ? (2.0 + part) * two_to((int)power - 2) : 0.5 * part);
}

// One element as a double, how far another one is from it (0 for what is no number beside what is none), and back.
template <class T> __device__ __forceinline__ double number(T v) { return (double)v; }
__device__ __forceinline__ double number(__half v) { return __half2float(v); }
__device__ __forceinline__ double number(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __noinline__ double number(E4m3 v) {  // inlined, these would be half as much code again as all others
    u32 power = v.bits >> 3 & 15, part = v.bits & 7;
    double size = (power ? 8.0 + part : 2.0 * part) * two_to((int)power - 10);
    return signed_as(v.bits & 128, (v.bits & 127) == 127 ? NAN : size);
}
__device__ __noinline__ double number(E5m2 v) {
    u32 power = v.bits >> 2 & 31, part = v.bits & 3;
    double size = (power ? 4.0 + part : 2.0 * part) * two_to((int)power - 17);
    return signed_as(v.bits & 128, power == 31 ? (part ? NAN : INFINITY) : size);
}
__device__ double number(Fours v) { return four(v.bits & 15); }  // both halves are finite
template <class T> __device__ __forceinline__ double error_of(T expected, T got) {
    double e = number(expected), g = number(got);
    return e == g || (isnan(e) && isnan(g)) ? 0 : fabs(g - e);
}
__device__ __forceinline__ double error_of(i64 e, i64 g) {  // doubles would be the same from 2^53 on
    return (double)(g > e ? (u64)g - (u64)e : (u64)e - (u64)g);
}
// Size and error of an element; of two fours those of the half that exceeds its tolerance by more.
template <class T> __device__ __forceinline__ void weigh(T expected, T got, double, double &size, double &error) {
    size = fabs(number(expected)), error = error_of(expected, got);
}
__device__ __noinline__ void weigh(Fours expected, Fours got, double rtol, double &size, double &error) {
    double sizes[2], errors[2];
    for (int k = 0; k < 2; k++) {
        double want = four(expected.bits >> 4 * k & 15);
        sizes[k] = fabs(want), errors[k] = fabs(four(got.bits >> 4 * k & 15) - want);
    }
    int worse = errors[1] - rtol * sizes[1] > errors[0] - rtol * sizes[0];
    size = sizes[worse], error = errors[worse];
}
template <class T> __device__ __forceinline__ void set(T &to, double v) { to = (T)v; }
__device__ __forceinline__ void set(__half &to, double v) { to = __float2half((float)v); }
__device__ __forceinline__ void set(__nv_bfloat16 &to, double v) { to = __float2bfloat16((float)v); }

#define BY_TYPE(type, act)             \
    switch (type) {                    \
    case 0: act(__half); break;        \
    case 1: act(__nv_bfloat16); break; \
    case 2: act(float); break;         \
    case 3: act(double); break;        \
    case 4: act(signed char); break;   \
    case 5: act(u8); break;            \
    case 6: act(int); break;           \
    case 12: act(short); break;        \
    case 13: act(u16); break;          \
    case 14: act(u32); break;          \
    default: act(i64);                 \
    }
#define BY_OUTPUT_TYPE(type, act)      \
    switch (type) {                    \
    case 8: act(E4m3); break;          \
    case 9: act(E5m2); break;          \
    case 11: act(Fours); break;        \
    default: BY_TYPE(type, act)        \
    }

__device__ u64 raw(const u8 *at, i64 i, int size) {
    switch (size) {
    case 1: return at[i];
    case 2: return ((const u16 *)at)[i];
    case 4: return ((const u32 *)at)[i];
    default: return ((const u64 *)at)[i];
    }
}

__device__ __forceinline__ double unit(u32 r) { return (r >> 8) * (1.0 / 16777216.0); }  // [0, 1), exact in float

const int EACH = 16, FOUR = 4;

// Hands `act` every set, and of its indices below `count` the first of this thread, blockDim.x apart, and the end. Sets are
// divided into pieces of a block's work: dividing by `count` for each element takes longer than memory does.
template <class Act> __device__ __forceinline__ void pieces(i64 count, i64 sets, Act act) {
    i64 piece = (i64)EACH * blockDim.x, each = (count + piece - 1) / piece;
    for (i64 p = blockIdx.x; p < each * sets; p += gridDim.x) {
        i64 begin = p % each * piece;
        act(p / each, begin + threadIdx.x, begin + piece < count ? begin + piece : count);
    }
}

// Distributions: 0 normal, 1 uniform, 2 offset, 3 outliers, 4 zeros, 5 large, 6 integers (all values of a byte, signed or
// not; of other types 0 to 99). A number has the random bits of a float, and of type float64 those of a second stream below
// them: a candidate that computes in float32 is off, and two numbers are seldom equal. To a uniform number they add 29 bits,
// to a normal one less than the distance of two floats at 8.
__device__ __forceinline__ void draw(u64 key, i64 set, i64 quad, i64 count, int type, int distribution, double *v) {
    uint4 r = philox(key, (u64)quad, (u64)set);
    u32 words[4] = {r.x, r.y, r.z, r.w};
    if (distribution == 4) {
        v[0] = v[1] = v[2] = v[3] = 0;
    } else if (distribution == 1) {
        for (int i = 0; i < 4; i++) v[i] = unit(words[i]);
    } else if (distribution == 6) {
        bool byte = type == 4 || type == 5;
        for (int i = 0; i < 4; i++) v[i] = (double)__umulhi(words[i], byte ? 256u : 100u) - (type == 4 ? 128 : 0);
    } else {
        for (int i = 0; i < 4; i += 2) {
            float radius = sqrtf(-2.0f * logf(((words[i] >> 8) + 1) * (1.0f / 16777216.0f)));
            float sine, cosine;
            sincospif(2.0f * (float)unit(words[i + 1]), &sine, &cosine);
            v[i] = radius * cosine;
            v[i + 1] = radius * sine;
        }
    }
    if (type == 3 && distribution != 4 && distribution != 6) {
        uint4 m = philox(key, (u64)quad, ~(u64)set);
        u32 more[4] = {m.x, m.y, m.z, m.w};
        for (int i = 0; i < 4; i++) v[i] += (distribution == 1 ? more[i] >> 3 : more[i]) * (1.0 / 9007199254740992.0);
    }
    for (int i = 0; i < 4; i++) {
        if (distribution == 2) v[i] += 3;
        if (distribution == 5) v[i] *= 1000;
        if (distribution == 3 && mix(key ^ mix((u64)(set * count + quad * 4 + i))) % 1000 == 0) v[i] *= 100;
    }
}

template <class T> struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) Four {
    T at[FOUR];
};

template <class T> __device__ __forceinline__ void put(u8 *row, i64 quad, i64 count, const double *v) {
    Four<T> four;
    for (int i = 0; i < FOUR; i++) set(four.at[i], v[i]);
    if (quad * FOUR + FOUR <= count) {
        ((Four<T> *)row)[quad] = four;
    } else {
        for (int i = 0; i < FOUR - 1; i++)
            if (quad * FOUR + i < count) ((T *)row)[quad * FOUR + i] = four.at[i];
    }
}

// `base` and `stride` are multiples of 16.
extern "C" __global__ void fill(u8 *base, i64 stride, i64 count, i64 sets, int type, int distribution, u64 key) {
    pieces((count + FOUR - 1) / FOUR, sets, [=](i64 set, i64 first, i64 end) {
        u8 *row = base + set * stride;
#pragma unroll 1
        for (i64 quad = first; quad < end; quad += blockDim.x) {
            double v[FOUR];
            draw(key, set, quad, count, type, distribution, v);
#define ACT(T) put<T>(row, quad, count, v)
            BY_TYPE(type, ACT)
#undef ACT
        }
    });
}

template <class T> __device__ void set_as(u8 *base, i64 stride, i64 count, i64 sets, T word) {
    pieces(count, sets, [=](i64 set, i64 first, i64 end) {
        T *row = (T *)(base + set * stride);
#pragma unroll 4
        for (i64 i = first; i < end; i += blockDim.x) row[i] = word;
    });
}

extern "C" __global__ void set_words(u8 *base, i64 stride, i64 count, i64 sets, int size, u64 word) {
    switch (size) {
    case 1: set_as(base, stride, count, sets, (u8)word); break;
    case 2: set_as(base, stride, count, sets, (u16)word); break;
    case 4: set_as(base, stride, count, sets, (u32)word); break;
    default: set_as(base, stride, count, sets, word);
    }
}

// Counts elements that are no longer `word`.
extern "C" __global__ void count_touched(const u8 *base, i64 stride, i64 count, i64 sets, int size, u64 word, u64 *touched) {
    u64 mine = 0;
    for (i64 t = first(); t < count * sets; t += step()) mine += raw(base + t / count * stride, t % count, size) != word;
    if (mine) atomicAdd(touched, mine);
}

extern "C" __global__ void set_guard(u8 *base, i64 stride, i64 bytes, i64 sets, u64 key) {
    for (i64 t = first(); t < bytes * sets; t += step()) base[t / bytes * stride + t % bytes] = (u8)mix(key + (u64)t);
}

// found[0] counts changed bytes, found[1] is the lowest set with one.
extern "C" __global__ void check_guard(const u8 *base, i64 stride, i64 bytes, i64 sets, u64 key, u64 *found) {
    for (i64 t = first(); t < bytes * sets; t += step()) {
        if (base[t / bytes * stride + t % bytes] != (u8)mix(key + (u64)t)) {
            atomicAdd(found, 1ull);
            atomicMin(found + 1, (u64)(t / bytes));
        }
    }
}

extern "C" __global__ void count_differing(const u64 *a, const u64 *b, i64 words, u64 *found) {
    u64 mine = 0;
    for (i64 t = first(); t < words; t += step()) mine += a[t] != b[t];
    if (mine) atomicAdd(found, mine);
}

__device__ double load(const u8 *at, i64 i, int type) {
#define ACT(T) return number(((const T *)at)[i])
    BY_OUTPUT_TYPE(type, ACT)
#undef ACT
    return 0;
}

// Counts elements that are infinite or not a number.
extern "C" __global__ void count_unbounded(const u8 *base, i64 stride, i64 count, i64 sets, int type, u64 *found) {
    u64 mine = 0;
    for (i64 t = first(); t < count * sets; t += step()) mine += !isfinite(load(base + t / count * stride, t % count, type));
    if (mine) atomicAdd(found, mine);
}

__device__ __forceinline__ bool beyond(double error, double expected, double rtol, double atol) {
    return error != 0 && (isinf(expected) || !(error <= atol + rtol * fabs(expected)));
}

// Loads FOUR elements, `apart` elements from each other, as far as they lie before `end`.
template <class T> __device__ __forceinline__ void take(const u8 *expected, const u8 *got, i64 i, i64 end, i64 apart, double rtol, double *sizes, double *errors) {
    T e[FOUR], g[FOUR];
#pragma unroll
    for (int k = 0; k < FOUR; k++) {
        bool here = i + k * apart < end;
        e[k] = here ? ((const T *)expected)[i + k * apart] : T();
        g[k] = here ? ((const T *)got)[i + k * apart] : T();
    }
#pragma unroll
    for (int k = 0; k < FOUR; k++) weigh(e[k], g[k], rtol, sizes[k], errors[k]);
}

// wrongs[set] counts wrong elements; worst[0] and worst[1] are the largest finite errors as bits of a double, absolute
// and over max(|expected|, atol).
extern "C" __global__ void compare(const u8 *expected, i64 expected_stride, const u8 *got, i64 got_stride, i64 count,
                                   i64 sets, int type, double rtol, double atol, u64 *wrongs, u64 *worst) {
    double max_abs = 0, max_rel = 0, floor = atol > 1e-30 ? atol : 1e-30;
    pieces(count, sets, [&](i64 set, i64 first, i64 end) {
        const u8 *e = expected + set * expected_stride, *g = got + set * got_stride;
        int bads = 0;
        for (i64 i = first; i < end; i += FOUR * blockDim.x) {
            double sizes[FOUR], errors[FOUR];
#define ACT(T) take<T>(e, g, i, end, blockDim.x, rtol, sizes, errors)
            BY_OUTPUT_TYPE(type, ACT)
#undef ACT
#pragma unroll
            for (int k = 0; k < FOUR; k++) {
                bads += beyond(errors[k], sizes[k], rtol, atol);
                double least = fmax(sizes[k], floor);
                if (!isfinite(errors[k])) continue;
                max_abs = fmax(max_abs, errors[k]);
                if (isfinite(sizes[k]) && errors[k] > max_rel * least) max_rel = errors[k] / least;
            }
        }
        if (__any_sync(0xFFFFFFFFu, bads)) {
            for (int lane = 16; lane; lane /= 2) bads += __shfl_xor_sync(0xFFFFFFFFu, bads, lane);
            if (threadIdx.x % 32 == 0) atomicAdd(wrongs + set, (u64)bads);
        }
    });
    for (int lane = 16; lane; lane /= 2) {
        max_abs = fmax(max_abs, __shfl_xor_sync(0xFFFFFFFFu, max_abs, lane));
        max_rel = fmax(max_rel, __shfl_xor_sync(0xFFFFFFFFu, max_rel, lane));
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(worst, (u64)__double_as_longlong(max_abs));
        atomicMax(worst + 1, (u64)__double_as_longlong(max_rel));
    }
}

// Where element `i` of an answer with strides lies: `view` has the number of dimensions, then size and step (in elements)
// of each, the innermost first. Without one elements follow each other.
__device__ __forceinline__ i64 place_of(const i64 *view, i64 i) {
    if (!view) return i;
    i64 at = 0;
#pragma unroll 1
    for (i64 d = 0; d < view[0]; d++) {
        at += i % view[1 + 2 * d] * view[2 + 2 * d];
        i /= view[1 + 2 * d];
    }
    return at;
}

// One element's expected value, and how far it is off.
__device__ __forceinline__ void look(const u8 *expected, const u8 *got, i64 i, int type, double rtol, double &size, double &error) {
#define ACT(T) weigh(((const T *)expected)[i], ((const T *)got)[i], rtol, size, error)
    BY_OUTPUT_TYPE(type, ACT)
#undef ACT
}

// Lists positions of elements beyond the tolerances, each with a chance of `part` / 2^32: found[0] counts them, the first
// `most` that come are written, in no order.
extern "C" __global__ void wrong_places(const u8 *expected, const u8 *got, i64 count, int type, double rtol, double atol,
                                        u64 key, u64 part, i64 most, i64 *into, u64 *found) {
    for (i64 i = first(); i < count; i += step()) {
        double size = 0, error = 0;
        look(expected, got, i, type, rtol, size, error);
        if (!beyond(error, size, rtol, atol) || mix(key + (u64)i * 0x9E3779B97F4A7C15ull) >> 32 >= part) continue;
        u64 at = atomicAdd(found, 1ull);
        if (at < (u64)most) into[at] = i;
    }
}

struct Item {
    const u8 *got;
    i64 stride, count, size;
    const i64 *view;
};

// Takes elements at `samples` secret positions of every output of every call, each into a word of its own.
extern "C" __global__ void fence(const Item *items, i64 item_count, i64 sets, i64 samples, u64 key, u64 *seen) {
    for (i64 t = first(); t < item_count * sets * samples; t += step()) {
        Item item = items[t / (sets * samples)];
        i64 i = (i64)(mix(key + (u64)t * 0x9E3779B97F4A7C15ull) % (u64)item.count);
        seen[t] = raw(item.got + t / samples % sets * item.stride, place_of(item.view, i), (int)item.size);
    }
}

__device__ __forceinline__ void put_raw(u8 *into, i64 t, int size, u64 value) {
    switch (size) {
    case 1: into[t] = (u8)value; break;
    case 2: ((u16 *)into)[t] = (u16)value; break;
    case 4: ((u32 *)into)[t] = (u32)value; break;
    default: ((u64 *)into)[t] = value;
    }
}

extern "C" __global__ void gather(const u8 *base, i64 stride, i64 sets, int size, const i64 *positions, i64 count, u8 *into) {
    for (i64 t = first(); t < count * sets; t += step())
        put_raw(into, t, size, raw(base + t / count * stride, positions[t % count], size));
}

// Copies an answer with strides to where its elements follow each other.
extern "C" __global__ void collect(const u8 *base, const i64 *view, i64 count, int size, u8 *into) {
    for (i64 t = first(); t < count; t += step()) put_raw(into, t, size, raw(base, place_of(view, t), size));
}

// Writes `word` to all elements of an answer with strides, and to nothing between them.
extern "C" __global__ void set_places(u8 *base, const i64 *view, i64 count, int size, u64 word) {
    for (i64 t = first(); t < count; t += step()) put_raw(base, place_of(view, t), size, word);
}

// Writes pieces of `bytes` bytes into some of the sets, from a list of pieces one after the other.
extern "C" __global__ void scatter(u8 *base, i64 stride, const i64 *sets, i64 count, i64 bytes, const u8 *from) {
    for (i64 t = first(); t < count * bytes; t += step()) base[sets[t / bytes] * stride + t % bytes] = from[t];
}
