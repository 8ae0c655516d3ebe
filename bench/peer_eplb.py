#!/usr/bin/python3
# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""The published EPLB on one core, for the two shapes of bench/eplb.

    bench/peer_eplb.py EPLB.PY [RUNS]      EPLB.PY: eplb.py of https://github.com/deepseek-ai/EPLB; default 3 runs

Needs PyTorch (Debian: python3-torch). Prints the best and the median time of rebalance_experts() for lognormal loads.
"""

import importlib.util
import statistics
import sys
import time

import torch

SHAPES = (
    ("hierarchical", 58, 256, 288, 8, 4, 32),
    ("global", 58, 256, 320, 1, 1, 160),
)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    spec = importlib.util.spec_from_file_location("published", sys.argv[1])
    published = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(published)
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, CPU, one thread")
    print("policy       layers experts replicas gpus   best ms median ms")
    for policy, layers, experts, replicas, groups, nodes, gpus in SHAPES:
        times = []
        for _ in range(runs):
            loads = torch.floor(1000 * torch.exp(torch.randn(layers, experts)))
            start = time.process_time()
            published.rebalance_experts(loads, replicas, groups, nodes, gpus)
            times.append(1e3 * (time.process_time() - start))
        print(f"{policy:12} {layers:6} {experts:7} {replicas:8} {gpus:4} {min(times):9.1f} {statistics.median(times):9.1f}")


if __name__ == "__main__":
    main()
