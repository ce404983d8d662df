import triton
import triton.language as tl


@triton.jit
def kernel(a, b, c, m, n, kk, A: tl.constexpr, B: tl.constexpr, K: tl.constexpr, P: tl.constexpr):
    r = tl.program_id(0) * A + tl.arange(0, A)
    s = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((A, B), tl.float32)
    for k0 in range(0, kk, K):
        q = k0 + tl.arange(0, K)
        x = tl.load(a + r[:, None] * kk + q[None, :], mask=(r[:, None] < m) & (q[None, :] < kk), other=0.0)
        y = tl.load(b + q[:, None] * n + s[None, :], mask=(q[:, None] < kk) & (s[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc, input_precision=P)
    tl.store(c + r[:, None] * n + s[None, :], acc.to(c.dtype.element_ty), mask=(r[:, None] < m) & (s[None, :] < n))


def launch(a, b, c, m, k_, n):
    kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64))](a, b, c, m, n, k_, A=64, B=64, K=32, P="ieee")
