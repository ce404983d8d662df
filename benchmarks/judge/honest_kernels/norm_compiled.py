import torch


@torch.compile
def f(x, w, b):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)


def launch(x, w, b, y, rows, cols):
    y.copy_(f(x, w, b))
