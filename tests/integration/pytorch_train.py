# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Trains FOLDER/METHOD.csv by torch.distributed.pipelining, each method on four gloo processes, beside a serial run and beside torch's own
schedule where it has that one: exit status 1 where a loss, a parameter or a cell differs. Leaves NAME.torch.csv, what torch makes of each
METHOD and of each of its schedules, in both of its formats, and rank?.json, a profile of zbv's steps."""
import csv
import os
import sys
from contextlib import nullcontext

RANKS, MICROBATCHES, STEPS, LAYERS = 4, 8, 3, 16
STAGES = {"gpipe": "line", "1f1b": "line", "zb1p": "line", "zb2p": "line", "interleaved": "loop", "interleaved_overlap": "loop",
          "interleaved_zb": "loop", "looped_bfs": "loop", "zbv": "v", "v-half": "v", "v-min": "v", "dualpipev": "v", "found": "v"}
OWN = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B",
       "interleaved_zb": "ScheduleInterleavedZeroBubble", "zbv": "ScheduleZBVZeroBubble",
       "dualpipev": "ScheduleDualPipeV"}

if sys.argv[1:] == ["--methods"]:
    print(*STAGES)
    sys.exit()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from torch.distributed import pipelining  # noqa: E402
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


def stages_of(rank, placement, model):
    """What of the model this rank holds: the numbers of its stages, their modules, and the stages."""
    count = RANKS if placement == "line" else 2 * RANKS
    each = LAYERS // count
    mine = {"line": [rank], "loop": [rank, rank + RANKS], "v": [rank, 2 * RANKS - 1 - rank]}[placement]
    modules = [torch.nn.Sequential(*model[s * each:(s + 1) * each]) for s in mine]
    return mine, modules, [PipelineStage(m, s, count, torch.device("cpu")) for m, s in zip(modules, mine)]


def ours(folder, method, stages):
    run = _PipelineScheduleRuntime(stages, n_microbatches=MICROBATCHES, loss_fn=loss)
    run._load_csv(f"{folder}/{method}.csv", format="compute_only")
    return run


def own(name, stages):
    make = getattr(pipelining, name)
    return make(stages[0] if len(stages) == 1 else stages, n_microbatches=MICROBATCHES, loss_fn=loss)


def train(rank, placement, expected, make, profile=None):
    """The largest difference of a loss or parameter from the expected ones, on any rank, and the schedule."""
    model = layers()
    mine, modules, stages = stages_of(rank, placement, model)
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
    run = make(stages)
    last = stages[0].num_stages - 1
    x, y = data()
    losses = []
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) if profile else None
    with profiler or nullcontext():
        for _ in range(STEPS):
            optimizer.zero_grad()
            of_step = []
            run.step(*([x] if 0 in mine else []), **({"target": y, "losses": of_step} if last in mine else {}))
            optimizer.step()
            losses += [one.item() for one in of_step]
    if profiler:
        profiler.export_chrome_trace(profile)
    assert len(losses) == (STEPS * MICROBATCHES if last in mine else 0)
    worst = max([abs(a - b) for a, b in zip(losses, expected[0])] if last in mine else [0.0])
    for stage, module in zip(mine, modules):
        first = stage * len(module)
        for layer, wanted in zip(module, expected[1][first:first + len(module)]):
            for got, one in zip(layer.parameters(), wanted):
                worst = max(worst, (got - one).abs().max().item())
    everywhere = torch.tensor([worst])
    dist.all_reduce(everywhere, op=dist.ReduceOp.MAX)
    return everywhere.item(), run


def cells_differ(folder, method, run):
    """Whether torch's own schedule, where it is a list of cells, has others than ours."""
    if not hasattr(run, "_dump_csv"):
        return False
    order = run.pipeline_order
    with open(f"{folder}/{method}.csv", newline="") as file:
        rows = [[cell for cell in row if cell] for row in csv.reader(file)]
    return rows != [[str(action) for action in order[r] if action is not None] for r in range(RANKS)]


def dump_own(folder, name, run):
    run._dump_csv(f"{folder}/{name}.torch.csv")
    run._dump_csv(f"{folder}/{name}.only.torch.csv", format="compute_only")


def work(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    expected = serial()
    wrong = 0
    for method, placement in STAGES.items():
        profile = f"{folder}/rank{rank}.json" if method == "zbv" else None
        difference, run = train(rank, placement, expected, lambda stages: ours(folder, method, stages), profile)
        wrong += difference != 0.0
        if rank == 0:
            print(f"{method:20} difference {difference:g}", flush=True)
            run._dump_csv(f"{folder}/{method}.torch.csv")
        if method not in OWN:
            continue
        difference, run = train(rank, placement, expected, lambda stages: own(OWN[method], stages))
        others = cells_differ(folder, method, run)
        wrong += difference != 0.0 or others
        if rank == 0:
            print(f"{'':20} {OWN[method]} {difference:g}{', other cells' if others else ''}", flush=True)
            if hasattr(run, "_dump_csv"):
                dump_own(folder, OWN[method], run)
    run = own("ScheduleLoopedBFS", stages_of(rank, "loop", layers())[2])
    if rank == 0:
        dump_own(folder, "ScheduleLoopedBFS", run)
    dist.destroy_process_group()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    multiprocessing.spawn(work, args=(os.path.abspath(sys.argv[1]),), nprocs=RANKS)
