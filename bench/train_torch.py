# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# train_torch.py: the model of apps/train_moe in PyTorch, trained on the CPU: what bench/train_torch.sh compares with.
#   train_torch.py HIDDEN STEPS eager|compile     prints tokens/s: the median of the steps but the first
# 8 layers of causal attention (4 or 8 heads, half as many of keys and values, RoPE) and a mixture of 8 SwiGLU experts, 2 chosen by
# sigmoid, 1 shared; bytes; AdamW; 8 micro-batches of 4 x 64 bytes a step; f32, one thread.
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

hidden, steps, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
LAYERS, HEADS, EXPERTS, TOP, BATCH, SEQ, MICRO = 8, 8 if hidden > 128 else 4, 8, 2, 4, 64, 8
torch.set_num_threads(1)
torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.dim = hidden // HEADS
        self.q = nn.Linear(hidden, hidden, bias=False)
        self.kv = nn.Linear(hidden, hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        angle = torch.outer(torch.arange(SEQ), 10000.0 ** (-torch.arange(0, self.dim, 2) / self.dim))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def turn(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((a * self.cos - b * self.sin, b * self.cos + a * self.sin), -1)

    def forward(self, x):
        n = self.norm(x)
        q = self.q(n).view(BATCH, SEQ, HEADS, self.dim).transpose(1, 2)
        k, v = self.kv(n).view(BATCH, SEQ, HEADS, self.dim).transpose(1, 2).chunk(2, 1)
        y = F.scaled_dot_product_attention(self.turn(q), self.turn(k), v, is_causal=True, enable_gqa=True)
        return x + self.out(y.transpose(1, 2).reshape(BATCH, SEQ, hidden))


class Glu(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(hidden, hidden, bias=False) for _ in range(3))

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.router = nn.Linear(hidden, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Glu() for _ in range(EXPERTS))
        self.shared = Glu()

    def forward(self, x):
        n = self.norm(x).view(-1, hidden)
        weights, chosen = torch.sigmoid(self.router(n)).topk(TOP, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        y = self.shared(n)
        for e, expert in enumerate(self.experts):
            token, choice = torch.where(chosen == e)
            y = y.index_add(0, token, expert(n[token]) * weights[token, choice, None])
        return x + y.view_as(x)


model = nn.Sequential(nn.Embedding(256, hidden), *(part() for _ in range(LAYERS) for part in (Attention, Experts)),
                      nn.RMSNorm(hidden, eps=1e-6), nn.Linear(hidden, 256, bias=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
run = torch.compile(model) if mode == "compile" else model
times = []
for step in range(steps):
    begin = time.perf_counter()
    optimizer.zero_grad()
    for _ in range(MICRO):
        text = torch.randint(0, 256, (BATCH, SEQ + 1))
        loss = F.cross_entropy(run(text[:, :-1]).view(-1, 256), text[:, 1:].reshape(-1)) / MICRO
        loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    times += [time.perf_counter() - begin] if step > 0 else []
print(f"{MICRO * BATCH * SEQ / sorted(times)[len(times) // 2]:.0f}")
