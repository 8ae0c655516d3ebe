# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# gpu_torch.py: what PyTorch makes of the benches' shapes on the same GPU, each beside a product or a copy of the same run.
import warnings

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attention

HIDDEN, WIDTH, ROWS = 7168, 2048, 32768
HEADS, SEQUENCE, KEYS, VALUES = 128, 4096, 192, 128
warnings.simplefilter("ignore")
torch.manual_seed(0)


def median_ms(work, turns=20):
    times = []
    for turn in range(3 + turns):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times += [begin.elapsed_time(end)] if turn >= 3 else []
    return sorted(times)[turns // 2]


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02


def tell(name, operations, work):
    try:
        ms = median_ms(work)
        print(f"torch.{name} {ms:.3f} ms {operations / ms / 1e9 / limit:.3f} product", flush=True)
    except Exception as error:  # an older PyTorch lacks some of them
        print(f"# {name}: {str(error)[:100]}", flush=True)


rows, grads, weights = tensor(ROWS, HIDDEN), tensor(ROWS, WIDTH), tensor(HIDDEN, WIDTH)
products = 2 * ROWS * HIDDEN * WIDTH
limit = products / median_ms(lambda: rows @ weights) / 1e9
into = torch.empty_like(rows)
print(f"torch.product {limit:.1f} TFLOP/s\ntorch.copy {2 * 2 * rows.numel() / median_ms(lambda: into.copy_(rows)) / 1e6:.0f} GB/s")
for experts in 64, 8:
    ends = torch.arange(1, experts + 1, device="cuda", dtype=torch.int32) * (ROWS // experts)
    weights = tensor(experts, HIDDEN, WIDTH)
    turned = weights.transpose(1, 2)
    tell(f"forward_{experts}", products, lambda: torch._grouped_mm(rows, weights, offs=ends))
    tell(f"backward_input_{experts}", products, lambda: torch._grouped_mm(grads, turned, offs=ends))
    tell(f"backward_weight_{experts}", products, lambda: torch._grouped_mm(rows.t(), grads, offs=ends))
with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
    q, k, v = (tensor(1, HEADS, SEQUENCE, n).requires_grad_() for n in (KEYS, KEYS, VALUES))
    square = HEADS * SEQUENCE * SEQUENCE
    tell("attention_forward", square * (KEYS + VALUES), lambda: attention(q, k, v, is_causal=True))
    out = attention(q, k, v, is_causal=True)
    tell("attention_backward", square * (3 * KEYS + 2 * VALUES), lambda: torch.autograd.grad(out, (q, k, v), out, retain_graph=True))
