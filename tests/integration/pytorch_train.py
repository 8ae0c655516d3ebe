# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Trains FOLDER/METHOD.csv by torch.distributed.pipelining, each method on four gloo processes, beside a serial run: exit status 1
where a loss or a parameter differs. Leaves METHOD.torch.csv, what torch made of each, and rank?.json, a profile of zbv's steps."""
import os
import sys
from contextlib import nullcontext

RANKS, MICROBATCHES, STEPS, LAYERS = 4, 8, 3, 16
STAGES = {"gpipe": "line", "1f1b": "line", "zb1p": "line", "interleaved": "loop", "interleaved_overlap": "loop", "zbv": "v",
          "v-half": "v", "v-min": "v", "dualpipev": "v"}

if sys.argv[1:] == ["--methods"]:
    print(*STAGES)
    sys.exit()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from torch.distributed.pipelining import PipelineStage  # noqa: E402
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime  # noqa: E402


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def layers():
    torch.manual_seed(1)
    return [Block() for _ in range(LAYERS)]


def data():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(2 * MICROBATCHES, 16, generator=generator) for _ in range(2)]


def loss(output, target):
    return ((output - target) ** 2).mean()


def serial():
    model = torch.nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = data()
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        for a, b in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES)):
            one = loss(model(a), b)
            (one / MICROBATCHES).backward()
            losses.append(one.item())
        optimizer.step()
    return losses, [list(layer.parameters()) for layer in model]


def train(rank, folder, method, expected):
    chunks = 1 if STAGES[method] == "line" else 2
    count = RANKS * chunks
    each = LAYERS // count
    mine = [rank] if chunks == 1 else [rank, 2 * RANKS - 1 - rank] if STAGES[method] == "v" else [rank, rank + RANKS]
    model = layers()
    modules = {s: torch.nn.Sequential(*model[s * each:(s + 1) * each]) for s in mine}
    optimizer = torch.optim.SGD([p for m in modules.values() for p in m.parameters()], lr=0.05)
    run = _PipelineScheduleRuntime([PipelineStage(modules[s], s, count, torch.device("cpu")) for s in mine],
                                   n_microbatches=MICROBATCHES, loss_fn=loss)
    run._load_csv(f"{folder}/{method}.csv", format="compute_only")
    x, y = data()
    losses = []
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if method == "zbv" else None
    with profiler or nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            of_step = []
            run.step(*([x] if 0 in mine else []), **({"target": y, "losses": of_step} if count - 1 in mine else {}))
            optimizer.step()
            losses += [one.item() for one in of_step]
    if profiler:
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")
    if rank == 0:
        run._dump_csv(f"{folder}/{method}.torch.csv")
    worst = max([abs(a - b) for a, b in zip(losses, expected[0])] if count - 1 in mine else [0.0])
    assert len(losses) == (STEPS * MICROBATCHES if count - 1 in mine else 0)
    for stage in mine:
        for layer in range(stage * each, (stage + 1) * each):
            for got, wanted in zip(model[layer].parameters(), expected[1][layer]):
                worst = max(worst, (got - wanted).abs().max().item())
    everywhere = torch.tensor([worst])
    dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
    return everywhere.item()


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    expected = serial()
    wrong = 0
    for method in STAGES:
        difference = train(rank, folder, method, expected)
        wrong += difference != 0.0
        if rank == 0:
            print(f"{method:20} difference {difference:g}", flush=True)
    dist.destroy_process_group()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    multiprocessing.spawn(work, args=(os.path.abspath(sys.argv[1]),), nprocs=RANKS)
