# Returns a view of its input.
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.view(x.shape)
