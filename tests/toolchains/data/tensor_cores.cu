// One kernel for each kind of tensor core instruction that ptxas takes for sm_ARCH.
#define KERNEL extern "C" __global__ void
#define MMA(name, C, r, text)                                                                                          \
    KERNEL name(C *o, const unsigned *a) {                                                                             \
        C c0 = o[0], c1 = o[1], c2 = o[2], c3 = o[3];                                                                  \
        asm volatile("mma.sync.aligned." text " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                 \
                     : "+" r(c0), "+" r(c1), "+" r(c2), "+" r(c3)                                                      \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));                              \
        o[0] = c0 + c1 + c2 + c3;                                                                                      \
    }
MMA(fp16, float, "f", "m16n8k16.row.col.f32.f16.f16.f32")
MMA(bf16, float, "f", "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA(tf32, float, "f", "m16n8k8.row.col.f32.tf32.tf32.f32")
MMA(int8, int, "r", "m16n8k32.row.col.s32.s8.s8.s32")
MMA(uint8, int, "r", "m16n8k32.row.col.s32.u8.s8.s32")
KERNEL fp64(double *o, const double *a) {
    double c0 = o[0], c1 = o[1];
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(c0), "+d"(c1) : "d"(a[0]), "d"(a[1]));
    o[0] = c0 + c1;
}
KERNEL fp16_sums(unsigned *o, const unsigned *a) {
    unsigned c0 = o[0], c1 = o[1];
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%0,%1};"
                 : "+r"(c0), "+r"(c1) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]));
    o[0] = c0 + c1;
}
#if ARCH < 90
MMA(nibbles, int, "r", "m16n8k64.row.col.s32.s4.s4.s32")
MMA(bits, int, "r", "m16n8k256.row.col.s32.b1.b1.s32.and.popc")
#endif
#if ARCH >= 89
MMA(fp8, float, "f", "m16n8k32.row.col.f32.e4m3.e5m2.f32")
#endif
#if ARCH >= 120
MMA(fp4, float, "f", "kind::f8f6f4.m16n8k32.row.col.f32.e2m1.e2m1.f32")
MMA(fp6, float, "f", "kind::f8f6f4.m16n8k32.row.col.f32.e3m2.e2m3.f32")
MMA(fp8_with_fp4, float, "f", "kind::f8f6f4.m16n8k32.row.col.f32.e4m3.e2m1.f32")
#define SCALED(name, text)                                                                                             \
    KERNEL name(float *o, const unsigned *a) {                                                                         \
        float c0 = o[0], c1 = o[1], c2 = o[2], c3 = o[3];                                                              \
        unsigned short z = 0;                                                                                          \
        asm volatile("mma.sync.aligned." text " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, {%10}, "         \
                     "{%11,%11}, {%12}, {%11,%11};"                                                                    \
                     : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "h"(z), "r"(a[7])); \
        o[0] = c0 + c1 + c2 + c3;                                                                                      \
    }
SCALED(mxfp8, "kind::mxf8f6f4.block_scale.scale_vec::1X.m16n8k32.row.col.f32.e4m3.e4m3.f32.ue8m0")
SCALED(nvfp4, "kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3")
#endif
#if ARCH == 90
#define WGMMA(name, C, r, text, more)                                                                                  \
    KERNEL name(C *o, const unsigned long long *a) {                                                                   \
        C c0 = o[0], c1 = o[1], c2 = o[2], c3 = o[3];                                                                  \
        asm volatile("{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.fence.sync.aligned; wgmma.mma_async.sync.aligned."     \
                     text " {%0,%1,%2,%3}, %4, %5, p" more "; wgmma.commit_group.sync.aligned; "                       \
                     "wgmma.wait_group.sync.aligned 0;}"                                                               \
                     : "+" r(c0), "+" r(c1), "+" r(c2), "+" r(c3) : "l"(a[0]), "l"(a[1]));                             \
        o[0] = c0 + c1 + c2 + c3;                                                                                      \
    }
WGMMA(fp16_group, float, "f", "m64n8k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA(bf16_group, float, "f", "m64n8k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA(tf32_group, float, "f", "m64n8k8.f32.tf32.tf32", ", 1, 1")
WGMMA(fp8_group, float, "f", "m64n8k32.f32.e4m3.e5m2", ", 1, 1")
WGMMA(int8_group, int, "r", "m64n8k32.s32.s8.s8", "")
WGMMA(bits_group, int, "r", "m64n8k256.s32.b1.b1.and.popc", "")
#endif
#if ARCH == 100
#define TCGEN05(name, kind, more)                                                                                      \
    KERNEL name(const unsigned long long *a, const unsigned *b) {                                                      \
        asm volatile("{.reg .pred p; setp.ne.b32 p, %4, 0; tcgen05.mma.cta_group::1.kind::" kind                       \
                     " [%0], %1, %2, %3" more ", p;}"                                                                  \
                     :: "r"(b[0]), "l"(a[0]), "l"(a[1]), "r"(b[1]), "r"(b[2]), "r"(b[3]), "r"(b[4]));                  \
    }
TCGEN05(kind_f16, "f16", "")
TCGEN05(kind_tf32, "tf32", "")
TCGEN05(kind_f8f6f4, "f8f6f4", "")
TCGEN05(kind_i8, "i8", "")
TCGEN05(kind_mxf8, "mxf8f6f4.block_scale", ", [%5], [%6]")
TCGEN05(kind_mxf4, "mxf4.block_scale", ", [%5], [%6]")
#endif
