#!/usr/bin/env python3
"""Train one Native Sparse Attention layer through torch.ops.nsa: recall a token seen long before.

    python3 docs/examples/train_layer.py build/dev/lib/libnsa_ops.so [cpu|cuda]

Each sequence hides one marked value early; the last token must name it. The distance is beyond the
window, so only the compressed and the selected branch can carry it.
"""
import sys

import torch
from torch import nn
from torch.nn import functional as F

torch.ops.load_library(sys.argv[1])
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"
SIZES = dict(compression_block=8, compression_stride=4, selection_block=16, selected_blocks=4, window=32)
VALUES, LENGTH = 8, 256


class NsaLayer(nn.Module):
    def __init__(self, dim=64, heads=4, groups=2, head_dim=16):
        super().__init__()
        self.heads, self.groups, self.head_dim = heads, groups, head_dim
        self.q = nn.Linear(dim, heads * head_dim, bias=False)
        self.kv = nn.ModuleList(nn.Linear(dim, 2 * groups * head_dim, bias=False) for _ in range(3))
        self.gate = nn.Linear(dim, heads * 3)
        self.out = nn.Linear(heads * head_dim, dim, bias=False)
        half = head_dim // 2
        angle = torch.outer(torch.arange(LENGTH).double(), 10000.0 ** (-torch.arange(half).double() / half))
        self.register_buffer("cos", angle.cos().float())
        self.register_buffer("sin", angle.sin().float())

    def forward(self, x):
        b, s, _ = x.shape
        q = torch.ops.nsa.rope(self.q(x).view(b, s, self.heads, self.head_dim), self.cos, self.sin)
        kv = []
        for branch, project in enumerate(self.kv):
            k, v = project(x).view(b, s, 2 * self.groups, self.head_dim).chunk(2, dim=2)
            k = torch.ops.nsa.rope(k.contiguous(), self.cos, self.sin)
            if branch == 0:  # compressed tokens: phi = mean
                pool = dict(compression_block=SIZES["compression_block"], compression_stride=SIZES["compression_stride"])
                k, v = torch.ops.nsa.pool(k, **pool), torch.ops.nsa.pool(v, **pool)
            kv += [k, v]
        gates = self.gate(x).float().sigmoid().view(b, s, self.heads, 3)
        o = torch.ops.nsa.attention(q, *kv, gates, **SIZES, kernels="aten")
        return self.out(o.reshape(b, s, -1))


class Model(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(VALUES + 2, dim)
        self.layers = nn.ModuleList(NsaLayer(dim) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(3))
        self.head = nn.Linear(dim, VALUES, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return self.head(self.norms[2](x))


def batch(size):
    value = torch.randint(VALUES, (size,), device=DEVICE)
    tokens = torch.full((size, LENGTH), VALUES + 1, device=DEVICE)  # filler
    place = torch.randint(4, LENGTH - 2 * SIZES["window"], (size,), device=DEVICE)
    tokens[torch.arange(size), place] = value  # the only token that is not filler
    return tokens, value


torch.manual_seed(0)
model = Model().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(200):
    tokens, value = batch(32)
    loss = F.cross_entropy(model(tokens)[:, -1], value)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    learned = loss.item() < 0.1
    if step % 25 == 0 or step == 199 or learned:
        print(f"step {step:3d}  loss {loss.item():.4f}  (guessing: {torch.log(torch.tensor(VALUES)).item():.4f})", flush=True)
    if learned:
        break
sys.exit(0 if loss.item() < 0.2 else "the layer did not learn to look back")
