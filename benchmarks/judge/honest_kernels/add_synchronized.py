import torch


def launch(a, b, y, n):
    torch.add(a, b, out=y)
    torch.cuda.synchronize()
