import triton
import triton.language as tl


@triton.jit
def gemm(a, b, bias, c, M, N, K, bk, bn, RELU: tl.constexpr):
    rows = tl.program_id(0) * 128 + tl.arange(0, 128)
    cols = tl.program_id(1) * 64 + tl.arange(0, 64)
    inner = tl.arange(0, 32)
    total = tl.zeros((128, 64), dtype=tl.float32)
    for at in range(0, K, 32):
        x = tl.load(a + rows[:, None] * K + (at + inner)[None, :])
        y = tl.load(b + (at + inner)[:, None] * bk + cols[None, :] * bn)
        total = tl.dot(x, y, total, input_precision="tf32x3")
    if RELU:
        total = tl.maximum(total + tl.load(bias + cols)[None, :], 0.0)
    tl.store(c + rows[:, None] * N + cols[None, :], total)
