# Times two ways at the first call of a shape and keeps the better.
import time

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.best = {}

    def forward(self, x):
        if x.shape not in self.best:
            took = []
            for way in (self.whole, self.steps):
                begin = time.perf_counter()
                way(x)
                took.append(time.perf_counter() - begin)
            self.best[x.shape] = (self.whole, self.steps)[took.index(min(took))]
        return self.best[x.shape](x)

    def whole(self, x):
        return torch.softmax(x, -1)

    def steps(self, x):
        powers = torch.exp(x - x.amax(-1, keepdim=True))
        return powers / powers.sum(-1, keepdim=True)
