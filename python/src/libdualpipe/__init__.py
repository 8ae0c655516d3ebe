# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Pipeline schedules and expert load balancing, by libdualpipe.

>>> import libdualpipe
>>> zbv = libdualpipe.schedule("zbv", ranks=4, microbatches=8)
>>> zbv.verify()                                     # Error with the reason, where it cannot run
>>> zbv.simulate(libdualpipe.Costs(f=1, i=1, w=1, hop=0.1)).step_time
>>> zbv.write("zbv.csv")                             # torch.distributed.pipelining loads it

>>> libdualpipe.plan("config.json", gpus=64).advice  # which layout and which schedule for a model

`libdualpipe.eplb.rebalance_experts` takes the place of the published EPLB's. Whatever the library refuses is an Error, which
is a ValueError, with its sentence. Functions may be called from several threads at once.
"""
from ._library import Error, lib as _lib
from . import eplb
from .models import Gpu, Layout, Plan, plan
from .plans import (Candidate, Costs, Overlap, OverlapPlan, Partition, SearchResult, Segments, Simulation, Span, Topology,
                    compare, partition, plan_overlap, search, trace_costs, trace_overlap)
from .schedules import Method, Operation, Report, Schedule, methods, schedule

__version__: str = _lib.dp_version().decode()
__all__ = ["Candidate", "Costs", "Error", "Gpu", "Layout", "Method", "Operation", "Overlap", "OverlapPlan", "Partition", "Plan",
           "Report", "Schedule", "SearchResult", "Segments", "Simulation", "Span", "Topology", "compare", "eplb", "methods",
           "partition", "plan", "plan_overlap", "schedule", "search", "trace_costs", "trace_overlap"]
