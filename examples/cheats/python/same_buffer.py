# Returns the same buffer at every call, written anew.
import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.y = None

    def forward(self, x):
        if self.y is None or self.y.shape != x.shape:
            self.y = torch.empty(x.shape)
        return self.y.copy_(torch.softmax(x, -1))
