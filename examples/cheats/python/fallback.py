# Tries a kernel that fails and falls back to torch: advice may say so, the answer is right.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        try:
            raise RuntimeError("no such kernel")
        except RuntimeError:
            return torch.softmax(x, -1)
