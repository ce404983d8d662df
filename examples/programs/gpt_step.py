"""Training steps of a small GPT in plain torch, with the loss at the end: a program to be made faster.

python3 gpt_step.py [STEPS] [WIDTH] [CONTEXT]
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

TOKENS, HEADS, BATCH, LAYERS = 256, 4, 8, 2


def squared_relu(x):
    """Return max(x, 0) squared: the activation of this model, written as three operators."""
    positive = torch.maximum(x, torch.zeros_like(x))
    return positive * positive


class Attention(nn.Module):
    """Causal attention over all heads."""

    def __init__(self, width):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        """Return the values that each place attends to."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a layer that works on each place alone."""

    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        """Return what the next block gets."""
        x = x + self.attention(self.norm1(x))
        return x + self.down(squared_relu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Predicts the next token."""

    def __init__(self, width, context):
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens):
        """Return a score for each next token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


def main(steps=20, width=128, context=128):
    """Train on random tokens and print the last loss."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = GPT(width, context).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        text = torch.randint(0, TOKENS, (BATCH, context + 1), device=device)
        scores = model(text[:, :-1])
        loss = F.cross_entropy(scores.reshape(-1, TOKENS), text[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
