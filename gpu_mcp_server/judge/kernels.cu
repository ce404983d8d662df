// The owner's own kernels: fresh inputs, poison, guards, comparison, the fence. Compiled to kernels.ptx by
//   nvcc -ptx -O3 -arch=compute_75 kernels.cu -o kernels.ptx && sed -i 's/^\.version .*/.version 7.0/' kernels.ptx
// (nothing in it is newer than PTX 7.0, and drivers refuse a version that they do not know).
// A tensor is `sets` runs of `count` elements, `stride` bytes apart. Element types by number: 0 float16, 1 bfloat16,
// 2 float32, 3 float64, 4 int8, 5 uint8, 6 int32, 7 int64. All comparison is done in double.
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

__device__ double load(const u8 *at, i64 i, int type) {
    switch (type) {
    case 0: return __half2float(((const __half *)at)[i]);
    case 1: return __bfloat162float(((const __nv_bfloat16 *)at)[i]);
    case 2: return ((const float *)at)[i];
    case 3: return ((const double *)at)[i];
    case 4: return ((const signed char *)at)[i];
    case 5: return at[i];
    case 6: return ((const int *)at)[i];
    default: return (double)((const i64 *)at)[i];
    }
}

__device__ void store(u8 *at, i64 i, int type, double v) {
    switch (type) {
    case 0: ((__half *)at)[i] = __float2half((float)v); break;
    case 1: ((__nv_bfloat16 *)at)[i] = __float2bfloat16((float)v); break;
    case 2: ((float *)at)[i] = (float)v; break;
    case 3: ((double *)at)[i] = v; break;
    case 4: ((signed char *)at)[i] = (signed char)v; break;
    case 5: at[i] = (u8)v; break;
    case 6: ((int *)at)[i] = (int)v; break;
    default: ((i64 *)at)[i] = (i64)v;
    }
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

// Distributions: 0 normal, 1 uniform, 2 offset, 3 outliers, 4 zeros, 5 large, 6 integers.
extern "C" __global__ void fill(u8 *base, i64 stride, i64 count, i64 sets, int type, int distribution, u64 key) {
    i64 quads = (count + 3) / 4;
    for (i64 t = first(); t < quads * sets; t += step()) {
        i64 set = t / quads, quad = t % quads;
        uint4 r = philox(key, (u64)quad, (u64)set);
        u32 words[4] = {r.x, r.y, r.z, r.w};
        double v[4];
        if (distribution == 4) {
            v[0] = v[1] = v[2] = v[3] = 0;
        } else if (distribution == 1) {
            for (int i = 0; i < 4; i++) v[i] = unit(words[i]);
        } else if (distribution == 6) {
            for (int i = 0; i < 4; i++) v[i] = (double)__umulhi(words[i], 100u);
        } else {
            for (int i = 0; i < 4; i += 2) {
                float radius = sqrtf(-2.0f * logf(((words[i] >> 8) + 1) * (1.0f / 16777216.0f)));
                float sine, cosine;
                sincospif(2.0f * (float)unit(words[i + 1]), &sine, &cosine);
                v[i] = radius * cosine;
                v[i + 1] = radius * sine;
            }
        }
        for (int i = 0; i < 4 && quad * 4 + i < count; i++) {
            double value = v[i];
            if (distribution == 2) value += 3;
            if (distribution == 5) value *= 1000;
            if (distribution == 3 && mix(key ^ mix((u64)(set * count + quad * 4 + i))) % 1000 == 0) value *= 100;
            store(base + set * stride, quad * 4 + i, type, value);
        }
    }
}

extern "C" __global__ void set_words(u8 *base, i64 stride, i64 count, i64 sets, int size, u64 word) {
    for (i64 t = first(); t < count * sets; t += step()) {
        u8 *at = base + t / count * stride;
        i64 i = t % count;
        switch (size) {
        case 1: at[i] = (u8)word; break;
        case 2: ((u16 *)at)[i] = (u16)word; break;
        case 4: ((u32 *)at)[i] = (u32)word; break;
        default: ((u64 *)at)[i] = word;
        }
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

// Counts elements that are infinite or not a number.
extern "C" __global__ void count_unbounded(const u8 *base, i64 stride, i64 count, i64 sets, int type, u64 *found) {
    u64 mine = 0;
    for (i64 t = first(); t < count * sets; t += step()) mine += !isfinite(load(base + t / count * stride, t % count, type));
    if (mine) atomicAdd(found, mine);
}

__device__ bool wrong_at(const u8 *expected, const u8 *got, i64 i, int type, double rtol, double atol, double *error, double *size) {
    *error = 0;
    double e = load(expected, i, type), g = load(got, i, type);
    *size = fabs(e);
    if (type == 7) {
        if (((const i64 *)expected)[i] == ((const i64 *)got)[i]) return false;
    } else if (e == g || (isnan(e) && isnan(g))) {
        return false;
    }
    *error = fabs(g - e);
    if (isinf(e)) return true;
    return !(*error <= atol + rtol * *size);
}

// wrong[set] counts wrong elements; worst[0] and worst[1] are the largest finite errors as bits of a double, absolute
// and over max(|expected|, atol).
extern "C" __global__ void compare(const u8 *expected, i64 expected_stride, const u8 *got, i64 got_stride, i64 count,
                                   i64 sets, int type, double rtol, double atol, u64 *wrong, u64 *worst) {
    double max_abs = 0, max_rel = 0, floor = atol > 1e-30 ? atol : 1e-30;
    i64 blocks = (count + blockDim.x - 1) / blockDim.x;
    for (i64 block = blockIdx.x; block < blocks * sets; block += gridDim.x) {
        i64 set = block / blocks, i = block % blocks * blockDim.x + threadIdx.x;
        bool bad = false;
        if (i < count) {
            double error, size;
            bad = wrong_at(expected + set * expected_stride, got + set * got_stride, i, type, rtol, atol, &error, &size);
            if (isfinite(error)) {
                max_abs = fmax(max_abs, error);
                if (isfinite(size)) max_rel = fmax(max_rel, error / fmax(size, floor));
            }
        }
        int bads = __syncthreads_count(bad);
        if (bads && threadIdx.x == 0) atomicAdd(wrong + set, (u64)bads);
    }
    for (int lane = 16; lane; lane /= 2) {
        max_abs = fmax(max_abs, __shfl_xor_sync(0xFFFFFFFFu, max_abs, lane));
        max_rel = fmax(max_rel, __shfl_xor_sync(0xFFFFFFFFu, max_rel, lane));
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(worst, (u64)__double_as_longlong(max_abs));
        atomicMax(worst + 1, (u64)__double_as_longlong(max_rel));
    }
}

struct Item {
    const u8 *expected, *got;
    i64 expected_stride, got_stride, count, type;
};

// Compares `samples` secret positions of every output of every call.
extern "C" __global__ void fence(const Item *items, i64 item_count, i64 sets, i64 samples, u64 key, double rtol, double atol, u64 *wrong) {
    for (i64 t = first(); t < item_count * sets * samples; t += step()) {
        Item item = items[t / (sets * samples)];
        i64 set = t / samples % sets;
        i64 i = (i64)(mix(key + (u64)t * 0x9E3779B97F4A7C15ull) % (u64)item.count);
        double error, size;
        if (wrong_at(item.expected + set * item.expected_stride, item.got + set * item.got_stride, i, (int)item.type,
                     rtol, atol, &error, &size))
            atomicAdd(wrong, 1ull);
    }
}

extern "C" __global__ void gather(const u8 *base, i64 stride, i64 sets, int size, const i64 *positions, i64 count, u8 *into) {
    for (i64 t = first(); t < count * sets; t += step()) {
        u64 value = raw(base + t / count * stride, positions[t % count], size);
        switch (size) {
        case 1: into[t] = (u8)value; break;
        case 2: ((u16 *)into)[t] = (u16)value; break;
        case 4: ((u32 *)into)[t] = (u32)value; break;
        default: ((u64 *)into)[t] = value;
        }
    }
}
