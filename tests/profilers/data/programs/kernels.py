"""Programs behind the captures of Triton and torch: `kernels.py MODE [OUTPUT]`; MODE is past_end, plain,
scopes, flops, trace, samples or torch."""

import json
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
import triton.profiler as proton


def counted(grid, metadata, args):
    """Name a launch and say how much it does: 5 operations an element, each read and written once."""
    elements = 8192 * args["columns"]
    return {"name": f"{metadata.name}_{args['columns']}", "flops32": 5 * elements, "bytes": 8 * elements}


def softmax_kernel(out, given, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(given + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


@triton.jit
def product_kernel(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, columns = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    sums = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        sums = tl.dot(left, right, sums)
    tl.store(c + rows[:, None] * N + columns[None, :], sums)


@triton.jit
def past_end_kernel(out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 1.0)  # BUG past_end


mode, output = sys.argv[1], sys.argv[-1]
if mode == "past_end":
    past_end_kernel[(1,)](torch.zeros(1000, device="cuda"), BLOCK=1024)
    torch.cuda.synchronize()
    sys.exit()

softmaxed = triton.jit(launch_metadata=counted)(softmax_kernel) if mode == "flops" else triton.jit(softmax_kernel)
x = torch.randn(8192, 4000, device="cuda")
y = torch.empty_like(x)
a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
c = torch.empty(4096, 4096, device="cuda")


def soft():
    softmaxed[(8192,)](y, x, 4000, BLOCK=4096, num_warps=8)


def product():
    product_kernel[(32, 32)](a, b, c, 4096, 4096, BM=128, BN=128, BK=64, num_warps=8, num_stages=3)


soft(), product()
torch.cuda.synchronize()
if mode == "plain":
    soft(), product()
elif mode == "scopes":
    proton.start(output, hook="triton")
    for name, works in (
        ("soft", [soft]),
        ("product", [product]),
        ("torch", [lambda: torch.softmax(x, 1), lambda: a @ b]),
    ):
        with proton.scope(name):
            for _ in range(10):
                for work in works:
                    work()
    proton.finalize()
elif mode == "torch":
    with torch.profiler.profile() as profile:
        for _ in range(20):
            soft(), product(), torch.softmax(x, 1), a @ b
        torch.cuda.synchronize()
    profile.export_chrome_trace(output + ".trace.json")
    keys = ("key", "count", "self_device_time_total", "device_time_total", "self_cpu_time_total", "cpu_time_total")
    rows = [{key: getattr(event, key) for key in keys} for event in profile.key_averages()]
    rows = sorted(rows, key=lambda row: -row["self_device_time_total"])[:12]
    Path(output + ".averages.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
else:
    options = {
        "flops": {"hook": "triton"},
        "trace": {"data": "trace"},
        "samples": {"backend": "cupti", "mode": "pcsampling"},
    }
    proton.start(output, **options[mode])
    for _ in range(3):
        soft()
        if mode != "flops":
            product()
    torch.cuda.synchronize()
    proton.finalize()
torch.cuda.synchronize()
