"""A Triton kernel that writes past the end (`planted_triton.py past_end`), and two to time (`perf`)."""

import sys

import torch
import triton
import triton.language as tl


@triton.jit
def past_end(out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 1.0)  # BUG past_end


@triton.jit
def softmax(out, given, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(given + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


if sys.argv[1] == "past_end":
    out = torch.zeros(1000, device="cuda")
    past_end[(1,)](out, 1000, BLOCK=1024)
else:
    x = torch.randn(8192, 4000, device="cuda")
    y = torch.empty_like(x)
    for _ in range(5):
        softmax[(8192,)](y, x, 4000, BLOCK=4096, num_warps=8)
        torch.mm(x.t(), y)
torch.cuda.synchronize()
print("done")
