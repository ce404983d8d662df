import torch


def launch(x, y, n):
    torch.sort(x, out=(y, torch.empty(0, dtype=torch.int64, device=x.device)))
