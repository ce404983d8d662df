import torch


def launch(x, w, b, y, rows, cols):
    m = x.mean(1, keepdim=True)
    torch.sub(x, m, out=y)
    y.mul_(torch.rsqrt(y.square().mean(1, keepdim=True) + 1e-5)).mul_(w).add_(b)
