# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Schedules: built in, from files, custom."""
import ctypes as c
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Iterator, List, NamedTuple, Optional, Sequence, Union

from . import _library as _c

if TYPE_CHECKING:
    from .plans import Costs, Simulation


def transport_number(name: str) -> int:
    if name not in ("credits", "bundles"):
        raise _c.Error(f'transport "{name}": "credits" or "bundles" is required')
    return int(name == "bundles")


class Method(NamedTuple):
    """A built-in method."""
    name: str
    summary: str
    source: str  #: paper or code it comes from
    limits: str  #: sizes it takes
    placement: str  #: "line", "loop", "v" or "bidirectional"


class Operation(NamedTuple):
    """What a rank computes next. Of an FB the first two are the forward's, the last two the backward's."""
    kind: str  #: "F", "B", "I", "W", "FB"; "BRAID" for passes whose segments are planned
    chunk: int  #: of the rank, from 0
    microbatch: int  #: of its path, from 0
    chunk2: int = -1
    microbatch2: int = -1


class Report(NamedTuple):
    """What the proof found."""
    operations: int  #: instructions looked at
    peak_activations: int  #: most micro-batches held at once on a rank, all chunks together
    peak_deferred: int  #: most weight gradients put off at once on a rank
    ordered_weights: bool  #: every chunk finishes its weight gradients in micro-batch order
    safe_slots: int  #: credits: least slots a channel needs
    transfers: int  #: cells of transfers in the CSV it was read from, which were checked, too


def methods() -> List[Method]:
    """All built-in methods."""
    count = c.c_size_t()
    table = _c.lib.dp_schedule_methods(c.byref(count))
    return [Method(m.name.decode(), m.summary.decode(), m.source.decode(), m.limits.decode(),
                   _c.lib.dp_placement_name(m.placement).decode()) for m in table[:count.value]]


def schedule(method: str, ranks: int, microbatches: int, chunks: int = 0, forward_only: bool = False,
             microbatch_group: int = 0) -> "Schedule":
    """A built-in schedule. chunks: of a rank, for the interleaved methods; 0: the method's default. microbatch_group: most
    micro-batches that pass the chunks of a rank together; 0: as many as ranks."""
    request = _c.ScheduleRequest(method=method.encode(), ranks=ranks, microbatches=microbatches, chunks=chunks,
                                 forward_only=forward_only, microbatch_group=microbatch_group)
    made = c.POINTER(_c.CSchedule)()
    _c.call("dp_schedule_generate", c.byref(request), c.byref(made))
    return Schedule(made)


class Schedule:
    """For each rank its operations in order. Made by `schedule()`, `search()`, `read()`, `parse()` or `of()`."""

    def __init__(self, made: Any, text: Optional[bytes] = None, name: str = ""):
        self._made = made
        self._text, self._name = text, name  # of a CSV, whose cells of transfers verify() looks at

    def __del__(self) -> None:
        if getattr(self, "_made", None):
            _c.lib.dp_schedule_free(self._made)

    def __repr__(self) -> str:
        return (f"<libdualpipe.Schedule {self.method}: {self.ranks} ranks, {self.microbatches} micro-batches, "
                f"{self.chunks} chunk{'s' * (self.chunks != 1)} a rank ({self.placement})>")

    # ---- from elsewhere ----

    @staticmethod
    def read(path: Union[str, "os.PathLike[str]"]) -> "Schedule":
        """Reads a file: the CSV of torch.distributed.pipelining when its name ends in .csv, else libdualpipe's TSV."""
        with open(path, "rb") as file:
            return Schedule._parse(file.read(), os.fspath(path), os.fspath(path).lower().endswith(".csv"))

    @staticmethod
    def parse(text: str, format: str = "csv") -> "Schedule":
        """The same from text; format "csv" or "tsv"."""
        if format not in ("csv", "tsv"):
            raise _c.Error(f'format "{format}": "csv" or "tsv" is required')
        return Schedule._parse(text.encode(), "text", format == "csv")

    @staticmethod
    def _parse(text: bytes, name: str, csv: bool) -> "Schedule":
        made = c.POINTER(_c.CSchedule)()
        _c.call("dp_schedule_read_csv" if csv else "dp_schedule_read_tsv", name.encode(), text, len(text), c.byref(made))
        return Schedule(made, text if csv else None, name)

    @staticmethod
    def of(placement: str, microbatches: int, operations: Sequence[Sequence[Operation]], method: str = "custom") -> "Schedule":
        """A custom one: the operations of each rank. It may be one that `verify()` refuses."""
        rows = [f"# method={method} ranks={len(operations)} microbatches={microbatches} "
                f"chunks={1 + max((max(o.chunk, o.chunk2) for row in operations for o in row), default=0)} "
                f"placement={placement}", "#rank\tseq\top\tdir\tmb\tdir2\tmb2\tpeer\tn"]
        rows += [f"{rank}\t{seq}\t{o.kind}\t{o.chunk}\t{o.microbatch}\t{o.chunk2}\t{o.microbatch2}\t-1\t-1"
                 for rank, row in enumerate(operations) for seq, o in enumerate(row)]
        return Schedule._parse("\n".join(rows + [""]).encode(), "operations", False)

    # ---- what it says ----

    @property
    def method(self) -> str:
        return str(self._made.contents.method.decode())

    @property
    def ranks(self) -> int:
        return int(self._made.contents.ranks)

    @property
    def microbatches(self) -> int:
        """Of a step, all paths together."""
        return int(self._made.contents.microbatches)

    @property
    def chunks(self) -> int:
        """Of a rank."""
        return int(self._made.contents.chunks)

    @property
    def placement(self) -> str:
        return str(_c.lib.dp_placement_name(self._made.contents.placement).decode())

    @property
    def stages(self) -> int:
        """Of a path: into how many parts the model is cut."""
        return int(_c.lib.dp_schedule_stages(self._made))

    def operations(self, rank: int) -> List[Operation]:
        """What a rank does, in order."""
        if not 0 <= rank < self.ranks:
            raise _c.Error(f"rank {rank}: there are ranks 0 to {self.ranks - 1}")
        made = self._made.contents
        return [Operation(_c.lib.dp_op_kind_name(o.kind).decode(), o.chunk, o.microbatch, o.chunk2, o.microbatch2)
                for o in made.ops[made.first[rank]:made.first[rank + 1]]]

    def to_csv(self) -> str:
        """As torch.distributed.pipelining's `_load_csv` and `_dump_csv` have it."""
        return _c.written("dp_schedule_write_csv", self._made, -1)

    def to_tsv(self) -> str:
        return _c.written("dp_schedule_write_tsv", self._made, -1)

    def write(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes a file: CSV when its name ends in .csv, else TSV."""
        text = self.to_csv() if os.fspath(path).lower().endswith(".csv") else self.to_tsv()
        with open(path, "w", encoding="ascii", newline="") as file:
            file.write(text)

    # ---- what comes of it ----

    @contextmanager
    def _lowered(self, transport: str, slots: int) -> Iterator[c.c_void_p]:
        program = c.c_void_p()
        options = _c.LowerOptions(transport=transport_number(transport), slots=-1 if slots == 0 else slots)  # DP_SLOTS_NEEDED
        _c.call("dp_program_lower", self._made, c.byref(options), c.byref(program))
        try:
            yield program
        finally:
            _c.lib.dp_program_free(program)

    def verify(self, transport: str = "credits", slots: int = 0) -> Report:
        """Proves that every operation is there once and that no rank ever waits in a circle; ValueError with the shortest
        circle, or the operation that is wrong. transport: "credits" (one-sided puts into `slots` slots a channel, 0: 2, or as many as the schedule needs)
        or "bundles" (both sides meet, as in NCCL and MPI). Of a schedule read from CSV the cells of transfers are
        checked, too."""
        report, transfers = _c.VerifyReport(), c.c_int64()
        with self._lowered(transport, slots) as program:
            _c.call("dp_program_verify", program, c.byref(report))
        if self._text is not None:
            _c.call("dp_schedule_check_csv_transfers", self._made, self._name.encode(), self._text, len(self._text),
                    transport_number(transport), c.byref(transfers))
        return Report(report.operations, report.peak_activations, report.peak_deferred, bool(report.ordered_weights),
                      report.safe_slots, transfers.value)

    def serial(self) -> "Schedule":
        """The same without overlapped pairs: a forward, then a backward."""
        made = c.POINTER(_c.CSchedule)()
        _c.call("dp_schedule_serial", self._made, c.byref(made))
        return Schedule(made)

    def simulate(self, costs: Optional["Costs"] = None, transport: str = "credits", slots: int = 0,
                 lanes: Optional[bool] = None) -> "Simulation":
        """Runs it under a cost model, every operation as early as it can start. costs None: F = I = W = 1. lanes: by
        segments, as the engine enqueues them; None: where the costs have segments."""
        from .plans import Costs, Simulation
        costs = costs or Costs()
        return Simulation(self, costs.by_operations() if lanes is False else costs, transport, slots, lanes is True)
