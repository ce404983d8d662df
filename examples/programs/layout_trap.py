"""A trap for faster kernels: the program reads what `gate` returns in the order in which it lies in memory.

`gate` keeps the layout of its input: places first in memory, batch first in its sizes. So each reader's rows are there
without a copy. A kernel that writes row-major is faster than `gate`, and makes each reader copy all of the data.

python3 layout_trap.py [STEPS] [WIDTH] [READERS]
"""

import sys

import torch

BATCH = 8


def gate(x):
    """Return x times a sigmoid: an approximation of GELU, written as three operators."""
    return x * torch.sigmoid(1.702 * x)


def main(steps=20, width=512, readers=256):
    """Print the sum of what the readers read."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    total = 0.0
    for _ in range(steps):
        x = torch.randn(width, BATCH, width, device=device).transpose(0, 1)
        y = gate(x)
        read = torch.zeros(width, device=device)
        for reader in range(readers):
            read += y.transpose(0, 1).reshape(width, -1)[:, reader]
        total += read.sum().item()
    print(f"total {total:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
