# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Pipeline schedules and expert load balancing, by libdualpipe.

>>> import libdualpipe
>>> zbv = libdualpipe.schedule("zbv", ranks=4, microbatches=8)
>>> zbv.verify()                                     # ValueError with the reason, where it cannot run
>>> zbv.simulate(libdualpipe.Costs(f=1, i=1, w=1, hop=0.1)).step_time
>>> zbv.write("zbv.csv")                             # torch.distributed.pipelining loads it

`libdualpipe.eplb.rebalance_experts` takes the place of the published EPLB's. Whatever the library refuses is a ValueError
with its sentence. Functions may be called from several threads at once.
"""
from ._library import lib as _lib
from . import eplb
from .plans import (Candidate, Costs, Overlap, Partition, SearchResult, Simulation, compare, partition, search, trace_costs,
                    trace_overlap)
from .schedules import Method, Operation, Report, Schedule, methods, schedule

__version__ = _lib.dp_version().decode()
__all__ = ["Candidate", "Costs", "Method", "Operation", "Overlap", "Partition", "Report", "Schedule", "SearchResult",
           "Simulation", "compare", "eplb", "methods", "partition", "schedule", "search", "trace_costs", "trace_overlap"]
