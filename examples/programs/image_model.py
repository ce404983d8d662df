"""Answers of a small model for images in plain torch, with their sum at the end: a program to be made faster.

python3 image_model.py [BATCHES] [SIZE]
"""

import sys

import torch
from torch import nn


class ChannelNorm(nn.Module):
    """Each place's channels with mean 0 and variance 1, then a gain and an offset: several operators over all data."""

    def __init__(self, channels):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.offset = nn.Parameter(torch.zeros(channels))
        self.least = 1e-6

    def forward(self, x):
        """Return the channels, normalized."""
        mean = x.mean(1, keepdim=True)
        spread = (x - mean).pow(2).mean(1, keepdim=True)
        scaled = (x - mean) / torch.sqrt(spread + self.least)
        return self.gain[None, :, None, None] * scaled + self.offset[None, :, None, None]


class Stage(nn.Module):
    """A depthwise convolution, the norm, and a layer over channels."""

    def __init__(self, channels):
        super().__init__()
        self.across = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm = ChannelNorm(channels)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        """Return what the next stage gets."""
        return x + torch.relu(self.mix(self.norm(self.across(x))))


def main(batches=8, size=64):
    """Answer random images and print the sum of all answers."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 4, stride=2, padding=1), *(Stage(32) for _ in range(3)), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10)).to(device).eval()
    total = 0.0
    with torch.no_grad():
        for _ in range(batches):
            total += model(torch.randn(4, 3, size, size, device=device)).sum().item()
    print(f"total {total:.6f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
