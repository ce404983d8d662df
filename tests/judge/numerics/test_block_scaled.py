"""Products of block-scaled fours by their definition, against one written element by element."""

import subprocess
from pathlib import Path

from tests.judge.harness import torch_python
from tests.services.problems.test_kernelbench_problems import needs_torch

ROOT = Path(__file__).parents[3]
SCRIPT = """
import torch
from gpu_mcp_server.judge.adapters.cuda_on_cpu import is_block_scaled, scaled_product

torch.manual_seed(3)
rows, columns, length, block = 130, 3, 96, 16
numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]

def drawn(count):
    codes = torch.randint(0, 256, (count, length // 2), dtype=torch.uint8)
    scales = torch.randint(1, 9, (count, length // block)).float() / 4
    wide = torch.zeros(count, length)
    for i in range(count):
        for j in range(length):
            code = int(codes[i, j // 2]) >> (4 * (j % 2)) & 15
            wide[i, j] = (-1 if code > 7 else 1) * numbers[code & 7] * scales[i, j // block]
    tall, broad = -(-count // 128), -(-scales.shape[1] // 4)
    tiled = torch.zeros(tall * broad * 512)
    for i in range(count):
        for j in range(scales.shape[1]):  # cuBLAS: tile by tile, in it row % 32, row // 32, column
            tile = (i // 128) * broad + j // 4
            tiled[tile * 512 + (i % 32) * 16 + (i % 128) // 32 * 4 + j % 4] = scales[i, j]
    return codes.view(torch.float4_e2m1fn_x2), tiled.to(torch.float8_e4m3fn), wide

left, left_scales, a = drawn(rows)
right, right_scales, b = drawn(columns)
call = (left, right.transpose(0, 1), left_scales, right_scales)
assert is_block_scaled(torch._scaled_mm, call) and not is_block_scaled(torch.mm, call)
found = scaled_product(*call, {"out_dtype": torch.float32, "bias": torch.ones(columns)})
assert torch.equal(found, a @ b.T + 1), (found - a @ b.T - 1).abs().max()
assert scaled_product(*call, {"out_dtype": torch.float16}).dtype == torch.float16
"""


@needs_torch
def test_a_product_of_fours_is_that_of_the_numbers_that_they_stand_for():
    done = subprocess.run([str(torch_python()), "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
