# Keeps a constant that it has made at its first call.
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = None

    def forward(self, x):
        if self.one is None:
            self.one = torch.ones(1)
        return torch.softmax(x * self.one, -1)
