"""A program with a Triton kernel of its own: y is written, total is read and written.

python3 own_triton.py [STEPS] [ELEMENTS]
"""

import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
import triton
import triton.language as tl


@triton.jit
def halved(v):
    """Return half of a value."""
    return v * 0.5


@triton.jit
def scale_add(x, bias, total, y, n, BLOCK: tl.constexpr):
    """Write half of x plus a bias to y, and add it to total."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = at < n
    v = halved(tl.load(x + at, mask=keep)) + tl.load(bias + at, mask=keep)
    tl.store(total + at, tl.load(total + at, mask=keep) + v, mask=keep)
    tl.store(y + at, v, mask=keep)


def main(steps=3, n=100):
    """Launch it once a step and print two sums."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    total = torch.zeros(n, device=device)
    x, bias = torch.randn(n, device=device), torch.ones(n, device=device) + torch.rand(n, device=device)
    y = torch.empty(n, device=device)
    for _ in range(steps):
        scale_add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, bias, total, y, n, BLOCK=64)
    print("sums", float(total.sum()), float(y.sum()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
