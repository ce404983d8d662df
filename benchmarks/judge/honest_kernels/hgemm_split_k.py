import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a, b, w, m, n, kk, part, A: tl.constexpr, B: tl.constexpr, K: tl.constexpr):
    r = tl.program_id(0) * A + tl.arange(0, A)
    s = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros((A, B), tl.float32)
    first = tl.program_id(2) * part
    for k0 in range(first, min(first + part, kk), K):
        q = k0 + tl.arange(0, K)
        x = tl.load(
            a + r[:, None] * kk + q[None, :],
            mask=(r[:, None] < m) & (q[None, :] < kk) & (q[None, :] < first + part),
            other=0.0,
        )
        y = tl.load(b + q[:, None] * n + s[None, :], mask=(q[:, None] < kk) & (s[None, :] < n), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.atomic_add(w + r[:, None] * n + s[None, :], acc, mask=(r[:, None] < m) & (s[None, :] < n))


kept = {}


def launch(a, b, c, m, k_, n):
    w = kept.get((m, n))
    if w is None:
        w = kept[m, n] = torch.empty(m, n, device=c.device)
    w.zero_()
    kernel[(triton.cdiv(m, 64), triton.cdiv(n, 64), 4)](
        a, b, w, m, n, k_, triton.cdiv(triton.cdiv(k_, 4), 32) * 32, A=64, B=64, K=32
    )
    c.copy_(w)
