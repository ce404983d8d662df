import triton
import triton.language as tl


@triton.jit
def kernel(x, y, n, B: tl.constexpr):
    carry = 0.0
    for first in range(0, n, B):
        at = first + tl.arange(0, B)
        v = tl.load(x + at, mask=at < n, other=0.0)
        tl.store(y + at, tl.cumsum(v, 0) + carry, mask=at < n)
        carry += tl.sum(v, 0)


def launch(x, y, n):
    kernel[(1,)](x, y, n, B=4096, num_warps=16)
