# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Which schedule: costs, simulation, comparison, search, and the cut of a model into stages."""
import ctypes as c
import gzip
import os
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _library as _c
from ._tables import Rows
from .schedules import Method, Schedule, methods, schedule, transport_number

RECOMPUTE = ("none", "cheap", "mlp", "full")
_PASSES = ("F", "B", "I", "W", "FB", "BRAID", "R")
_SPANS = ("compute", "send", "receive", "reduce", "step")
_PLACEMENTS = ("line", "loop", "v", "bidirectional")
_COLORS = {"F": "#8ecae6", "B": "#f4a261", "I": "#f4a261", "W": "#e9c46a", "R": "#cccccc"}


@dataclass(frozen=True)
class Segments:
    """Times of the segments of one MoE layer for one micro-batch, (F, I, W) each. Attention and MLP compute, dispatch and
    combine run beside them."""
    attention: Sequence[float]
    dispatch: Sequence[float]
    mlp: Sequence[float]
    combine: Sequence[float]
    layers: int = 1  #: of a device
    attention_r: float = 0.0  #: what recomputing adds to I
    mlp_r: float = 0.0
    backward_buffer: bool = False  #: memory that only backwards have, as where something is recomputed

    def _struct(self) -> _c.SegmentCosts:
        made = _c.SegmentCosts(layers=self.layers, backward_buffer=int(self.backward_buffer))
        for s, times in enumerate((self.attention, self.dispatch, self.mlp, self.combine)):
            if len(times) != 3:
                raise _c.Error("attention, dispatch, mlp and combine: three times each, F, I and W")
            made.f[s], made.i[s], made.w[s] = _c.numbers("a segment's time", c.c_double, times)
        made.r[0], made.r[2] = self.attention_r, self.mlp_r
        return made

    @staticmethod
    def _of(made: _c.SegmentCosts) -> "Segments":
        attention, dispatch, mlp, combine = ((made.f[s], made.i[s], made.w[s]) for s in range(4))
        return Segments(attention, dispatch, mlp, combine, made.layers, made.r[0], made.r[2], bool(made.backward_buffer))


@dataclass(frozen=True)
class Topology:
    """Links within a host and between hosts, in the units of the costs; they count before hop and bandwidth."""
    hosts: Sequence[int]  #: of each rank, any numbers
    near_hop: float = 0.0
    near_bandwidth: float = 0.0  #: 0: without limit
    far_hop: float = 0.0
    far_bandwidth: float = 0.0


@dataclass(frozen=True)
class Costs:
    """What the whole share of one device takes for one micro-batch, in any unit of time."""
    f: float = 1.0  #: forward
    i: float = 1.0  #: backward for the input
    w: float = 1.0  #: backward for the weights
    b: Optional[float] = None  #: full backward; None: i + w
    fb: Optional[float] = None  #: overlapped forward and backward; None: f + b
    hop: float = 0.0  #: latency of a transfer between ranks
    bytes: float = 0.0  #: of one message
    bandwidth: float = 0.0  #: bytes per unit of time between two ranks; 0: without limit
    barrier: bool = True  #: ranks meet at the end of a step
    stage_scale: Optional[Sequence[float]] = None  #: a factor for each stage of a path
    r: float = 0.0  #: what recomputing adds to every I and B
    rank_scale: Optional[Sequence[float]] = None  #: a factor for each rank
    topology: Optional[Topology] = None
    segments: Optional[Segments] = None  #: runs are by segments where they are given

    @staticmethod
    def of_layers(layers: int, attention: Sequence[float], dispatch: Sequence[float], mlp: Sequence[float],
                  combine: Sequence[float], **others: Any) -> "Costs":
        """From the segments of one MoE layer, (F, I, W) each: two lanes, communication beside computation, as an
        overlapped pair runs them. layers: of a device."""
        return replace(Costs(), **others)._with(Segments(attention, dispatch, mlp, combine, layers))

    def _with(self, segments: Segments) -> "Costs":
        made = _c.CCosts()
        _c.call("dp_costs_from_segments", c.byref(segments._struct()), c.byref(made), None)
        return replace(self, f=made.f, i=made.i, w=made.w, b=made.b, fb=made.fb, segments=segments)

    @staticmethod
    def read(path: Union[str, "os.PathLike[str]"], stage_scale: bool = False) -> "Costs":
        """From a file of costs: costs.txt of a training run, what `trace_costs()` and `dualpipe trace costs` write.
        stage_scale: with the factors of its stages, which fit schedules of as many stages alone."""
        made, segments, count = _c.CCosts(f=1.0, i=1.0, w=1.0, barrier=1.0), _c.SegmentCosts(), c.c_int32()
        name = os.fsencode(path)
        _c.call("dp_python_costs_read", name, c.byref(made), c.byref(segments), None, c.byref(count))
        scales = (c.c_double * count.value)()
        _c.call("dp_python_costs_read", name, c.byref(made), c.byref(segments), scales, c.byref(count))

        def sum_of(cost: float) -> Optional[float]:  # the other way round than in _c
            return None if cost == 0.0 else max(cost, 0.0)

        return Costs(made.f, made.i, made.w, sum_of(made.b), sum_of(made.fb), made.hop, made.bytes, made.bandwidth,
                     made.barrier != 0.0, list(scales) if stage_scale and count.value else None, made.r,
                     segments=Segments._of(segments) if segments.layers else None)

    @staticmethod
    def of_trace(path: Union[str, "os.PathLike[str]"], layers: int = 0,
                 annotations: Optional[Dict[str, str]] = None) -> "Costs":
        """What `trace_costs()` finds."""
        text = trace_costs(path, layers, annotations)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            return Costs.read(file.name)

    def by_operations(self) -> "Costs":
        """Without segments: one operation after the other, by f to fb."""
        return replace(self, segments=None)

    def recomputing(self, level: str) -> "Costs":
        """As where backwards compute once more what was not kept: "none", "cheap" (no time), "mlp" or "full", by what was
        measured of it, or else by the time of the forward (two thirds of that for an MLP)."""
        if level not in RECOMPUTE:
            raise _c.Error(f'recompute "{level}": {", ".join(RECOMPUTE)} are possible')
        s = self.segments
        if s is None:
            if level == "mlp":
                raise _c.Error("recompute mlp needs costs of segments")
            return replace(self, r=(self.r or self.f) if level == "full" else 0.0)
        return self._with(replace(s, mlp_r=(s.mlp_r or s.mlp[0] * 2 / 3) if level in ("mlp", "full") else 0.0,
                                  attention_r=(s.attention_r or s.attention[0]) if level == "full" else 0.0,
                                  backward_buffer=level != "none"))

    def _struct(self, stages: int, ranks: int = 0) -> _c.CCosts:
        def whole(name: str) -> float:  # the library takes 0 for the sum, less for nothing
            cost = getattr(self, name)
            if cost is not None and cost < 0.0:
                raise _c.Error(f"cost {name.upper()} is {cost}; it has to be 0 or more")
            return 0.0 if cost is None else cost if cost > 0.0 else -1.0

        made = _c.CCosts(f=self.f, i=self.i, w=self.w, b=whole("b"), fb=whole("fb"), hop=self.hop, bytes=self.bytes,
                         bandwidth=self.bandwidth, barrier=float(self.barrier), r=self.r)
        for name, count, what in (("stage_scale", stages, "stages"), ("rank_scale", ranks, "ranks")):
            scale = getattr(self, name)
            if scale is not None and len(scale) != count:
                raise _c.Error(f"{name} has {len(scale)} numbers for {count} {what}")
            if scale is not None:
                setattr(made, name, _c.numbers(name, c.c_double, scale))
        borrowed: List[Any] = []  # ctypes does not keep what a void pointer points to
        if self.topology is not None:
            t = self.topology
            borrowed.append(_c.CTopology(ranks=len(t.hosts), near_hop=t.near_hop, near_bandwidth=t.near_bandwidth,
                                         far_hop=t.far_hop, far_bandwidth=t.far_bandwidth))
            borrowed[-1].host_of = _c.numbers("hosts", c.c_int32, t.hosts)
            made.topology = c.addressof(borrowed[-1])
        if self.segments is not None:
            borrowed.append(self.segments._struct())
            made.segments = c.addressof(borrowed[-1])
        made.borrowed = borrowed
        return made


@contextmanager
def _trace(path: Union[str, "os.PathLike[str]"], **options: Any) -> Iterator[c.c_void_p]:
    """The trace of a file, plain or gzip, to be asked; errors name the file."""
    raised: List[BaseException] = []
    with open(path, "rb") as plain:
        file: Any = gzip.GzipFile(fileobj=plain) if plain.peek(2)[:2] == b"\x1f\x8b" else plain

        def read(_user: Any, buffer: Any, room: int, count: Any) -> int:
            try:
                part = file.read(room)
            except BaseException as error:
                raised.append(error)
                return _c.IO
            c.memmove(buffer, part, len(part))
            count[0] = len(part)
            return 0

        trace = c.c_void_p()
        try:
            _c.call("dp_trace_read", _c.Read(read), None, c.byref(_c.TraceOptions(**options)), c.byref(trace))
            yield trace
        except ValueError as error:
            name = os.path.basename(path)
            if raised and isinstance(raised[0], (EOFError, zlib.error, gzip.BadGzipFile)):
                raise _c.Error(f"{name}: {raised[0]}") from None
            if raised:
                raise raised[0] from None
            said = str(error)  # some name the file, by its last part
            raise _c.Error(said if said.startswith(name) else f"{name}: {said}") from None
        finally:
            _c.lib.dp_trace_free(trace)


def trace_costs(path: Union[str, "os.PathLike[str]"], layers: int = 0, annotations: Optional[Dict[str, str]] = None) -> str:
    """The costs that a Chrome trace holds (plain or gzip), as the text of a file of costs: of a run of libdualpipe, of PyTorch's
    profiler with the operations of torch.distributed.pipelining, or with annotated segments. layers: of a chunk; 0: as many as
    one annotation holds. annotations: a regular expression for a segment, {"attention.F": "^my_attention$", ...}."""
    rules = [f"{key}={pattern}".encode() for key, pattern in (annotations or {}).items()]
    request = _c.TraceCosts(layers=layers, title=os.path.basename(path).encode("utf-8", "replace"),
                            annotations=(c.c_char_p * len(rules))(*rules), annotation_count=len(rules))
    with _trace(path, annotations=1) as trace:
        return _c.written("dp_trace_costs_write", trace, c.byref(request))


class Overlap(NamedTuple):
    """A device of a trace, times in milliseconds; an instant at which two kernels run counts once."""
    name: str  #: "rank 3", "device 0"
    span: float  #: first start to last end
    computation: float
    communication: float
    hidden: float  #: the part of communication during which computation ran; the rest is exposed
    idle: float  #: neither
    computation_sms: Optional[float]  #: mean part of the SMs that a grid covers, 0 to 1; None: not known
    communication_sms: Optional[float]
    likely: int = 0  #: kernels that count as computation and are named like communication: `communication=` makes them that
    likely_time: float = 0.0  #: the sum of their times
    likely_name: Optional[str] = None  #: the name with the most of it
    strays: int = 0  #: records at time 0 before all others, or longer than all others reach; all figures count them
    broken: int = 0  #: of the whole trace: records of devices and annotations left out, for their times are impossible


def _pattern(given: Union[str, Sequence[str], None]) -> Optional[bytes]:
    """Several regular expressions as one, which any of them matches."""
    if given is None or isinstance(given, str):
        return given.encode() if given is not None else None
    return "|".join(f"({pattern})" for pattern in given).encode() or None


def trace_overlap(path: Union[str, "os.PathLike[str]"], communication: Union[str, Sequence[str], None] = None,
                  devices: Union[str, Sequence[str], None] = None) -> List[Overlap]:
    """How much communication ran behind computation, for each device of a Chrome trace (plain or gzip), as `dualpipe trace
    overlap` counts it. communication: regular expressions for kernels that are communication, besides those known. devices: for
    categories of records of a device, or "PROCESS/THREAD" of those without a category, besides those known."""
    with _trace(path, communication=_pattern(communication), devices=_pattern(devices)) as trace:
        about = _c.TraceAbout()
        _c.call("dp_trace_about", trace, c.byref(about))
        found = []
        for row in range(about.devices):
            made = _c.TraceOverlap()
            _c.call("dp_trace_overlap", trace, row, c.byref(made))
            span, busy, sent, hidden, idle = (
                getattr(made, name) / 1e6 for name in ("span", "computation", "communication", "hidden", "idle"))
            ours, theirs = (share if share >= 0.0 else None for share in (made.computation_sms, made.communication_sms))
            likely = made.likely_name.decode("utf-8", "replace") if made.likely else None
            found.append(Overlap(made.name.decode("utf-8", "replace"), span, busy, sent, hidden, idle, ours,
                                 theirs, made.likely, made.likely_time / 1e6, likely, made.strays, about.broken_records))
        return found


class Span(NamedTuple):
    """Of a simulated step, in the unit of the costs."""
    rank: int
    kind: str  #: "compute", "send", "receive", "reduce"
    operation: str  #: "F", "B", "I", "W", "R": of what it is a part
    chunk: int
    stage: int
    microbatch: int
    segment: str  #: "attention", ...; "": a whole operation
    start: float
    end: float


class Simulation:
    """A simulated step. What needs its times, such as `spans()`, runs it once more."""

    def __init__(self, schedule: Schedule, costs: Costs, transport: str, slots: int, lanes: bool = False):
        if lanes and costs.segments is None:
            raise _c.Error("lanes need costs of segments")
        self.schedule, self.costs = schedule, costs
        self._where = transport, slots
        with self._run(0) as result:
            self.step_time: float = result.step_time  #: in the unit of the costs
            self.bubble: List[float] = result.bubble[:result.ranks]  #: of each rank: step time less the time it computes
            #: of each rank: most held at once, in stage inputs of a rank
            self.peak_activations: List[float] = result.peak_activations[:result.ranks]
            formula = result.formula_bubble
            #: the published formula's, where the method has one
            self.formula_bubble: Optional[float] = None if formula != formula else formula

    def __repr__(self) -> str:
        return f"<libdualpipe.Simulation of {self.schedule.method}: step time {self.step_time:g}>"

    @contextmanager
    def _run(self, timeline: int) -> Iterator[_c.CSimulation]:
        costs, result = self.costs._struct(self.schedule.stages, self.schedule.ranks), _c.CSimulation()
        with self.schedule._lowered(*self._where) as program:
            _c.call("dp_simulate", program, c.byref(costs), timeline, c.byref(result))
        try:
            yield result
        finally:
            _c.lib.dp_simulation_clear(c.byref(result))

    def spans(self) -> Rows[Span]:
        """Everything that took time: operations, or their segments, and messages."""
        found: Rows[Span] = Rows()
        with self._run(1) as result:
            for rank in range(result.ranks):
                count = c.c_int64()
                for s in _c.lib.dp_timeline_spans(result.timeline, rank, c.byref(count))[:count.value]:
                    name = _c.lib.dp_timeline_name_text(result.timeline, s.name).decode()
                    found.append(Span(rank, _SPANS[s.kind], _PASSES[s.pass_], s.chunk, s.stage, s.microbatch, name,
                                      s.start_ns / 1e6, s.end_ns / 1e6))
        return found

    def operations(self) -> Rows[Span]:
        """Each pass of a micro-batch through a chunk, from its first start to its last end."""
        whole: Dict[Tuple[int, int, str, int], Span] = {}
        for s in self.spans():
            if s.kind == "compute":
                key = s.rank, s.chunk, s.operation, s.microbatch
                had = whole.get(key, s)
                whole[key] = s._replace(segment="", start=min(had.start, s.start), end=max(had.end, s.end))
        return Rows(sorted(whole.values(), key=lambda s: (s.rank, s.start)))

    def trace(self) -> str:
        """A Chrome trace, for Perfetto and `dualpipe trace`."""
        with self._run(1) as result:
            return _c.written("dp_timeline_write_chrome", result.timeline)

    def write_trace(self, path: Union[str, "os.PathLike[str]"]) -> None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.trace())

    def peak_bytes(self, activation_bytes: float = 0.0, weight_bytes: float = 0.0) -> float:
        """Of the fullest rank. activation_bytes: a micro-batch's activations on one device. weight_bytes: weights, gradients
        and optimizer state of a device's part of the model, of which a rank of two directions has two."""
        copies = 2 if self.schedule.placement == "bidirectional" else 1
        return max(self.peak_activations) * activation_bytes + copies * weight_bytes

    def _repr_svg_(self) -> str:
        """A row for each rank, what it computes in the colour of its pass."""
        wide, high = 900, 22
        scale = wide / self.step_time if self.step_time else 0.0
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high * self.schedule.ranks}" '
                 'font-family="sans-serif" font-size="10" text-anchor="middle">']
        for s in self.spans():
            if s.kind != "compute" or s.segment in ("dispatch", "combine"):
                continue
            x, width, y = s.start * scale, (s.end - s.start) * scale, s.rank * high
            parts.append(f'<rect x="{x:.2f}" y="{y + 1}" width="{width:.2f}" height="{high - 2}" stroke="#fff" stroke-width="0.5" '
                         f'fill="{_COLORS.get(s.operation, "#bbb")}"><title>{s.operation} of micro-batch {s.microbatch}, chunk '
                         f'{s.chunk}: {s.start:g} to {s.end:g}</title></rect>')
            if width > 12 and not s.segment:
                parts.append(f'<text x="{x + width / 2:.2f}" y="{y + 15}">{s.microbatch}</text>')
        return "".join([*parts, "</svg>"])


class Candidate(NamedTuple):
    """A row of `compare()`. Of a method that does not fit: reason, and no figures."""
    method: Method
    chunks: int  #: of the request; 0: the method has but one number
    schedule: Optional[Schedule]
    simulation: Optional[Simulation]
    reason: str
    gain: Optional[float] = None  #: over 1f1b: 0.1 is 10 %
    bytes: Optional[float] = None  #: of the fullest rank; None: not asked for

    def record(self) -> Dict[str, Any]:
        s = self.simulation
        return {"method": self.method.name, "chunks": self.chunks or None, "step_time": s.step_time if s else None,
                "gain": self.gain, "peak_activations": max(s.peak_activations) if s else None, "bytes": self.bytes,
                "reason": self.reason}


def _overlapped(made: Schedule, overlap: str, costs: Costs, slots: int, memory_cap: Optional[float]) -> Schedule:
    if overlap == "planned":
        return plan_overlap(made, costs, memory_cap, slots).schedule
    return made.serial() if overlap == "none" else made


def compare(ranks: int, microbatches: int, costs: Optional[Costs] = None, transport: str = "credits", slots: int = 0,
            memory_cap: Optional[float] = None, *, lanes: Optional[bool] = None, overlap: str = "canonical",
            activation_bytes: float = 0.0, weight_bytes: float = 0.0, memory: Optional[float] = None) -> "Rows[Candidate]":
    """Every built-in method for these sizes and costs, the shortest step first, those that do not fit last.
    memory_cap: most activations a rank may hold, in stage inputs of a rank. overlap: "canonical", "none" (pairs one after
    the other) or "planned" (segments beside each other as it is best). Bytes as in `Simulation.peak_bytes()`; memory: of a
    device."""
    if costs is not None and costs.stage_scale is not None:
        raise _c.Error("stage_scale does not go with compare: the schedules cut the model differently")
    if overlap not in ("canonical", "none", "planned"):
        raise _c.Error(f'overlap "{overlap}": "canonical", "none" or "planned" is required')
    for name, value in (("ranks", ranks), ("microbatches", microbatches), ("slots", slots)):
        _c.taken(name, c.c_int32, value)
    counted = activation_bytes > 0.0 or weight_bytes > 0.0
    rows: List[Candidate] = []
    for method in methods():
        for chunks in (2, 4) if method.placement == "loop" else (0,):
            try:
                made = schedule(method.name, ranks, microbatches, chunks)
                made = _overlapped(made, overlap, costs or Costs(), slots, memory_cap)
                found = made.simulate(costs, transport, slots, lanes)
            except _c.Error as error:
                rows.append(Candidate(method, chunks, None, None, str(error)))
                continue
            held, held_bytes = max(found.peak_activations), found.peak_bytes(activation_bytes, weight_bytes)
            if memory_cap is not None and held > memory_cap + 1e-9:
                reason = f"holds {held:g} micro-batches' activations, the cap is {memory_cap:g}"
            elif memory is not None and held_bytes > memory:
                reason = f"takes {held_bytes / 2**30:.2f} GiB, there are {memory / 2**30:.2f}"
            else:
                rows.append(Candidate(method, chunks, made, found, "", None, held_bytes if counted else None))
                continue
            rows.append(Candidate(method, chunks, None, None, reason))
    base = [row.simulation.step_time for row in rows if row.method.name == "1f1b" and row.simulation]
    rows = [row._replace(gain=base[0] / row.simulation.step_time - 1) if base and row.simulation else row for row in rows]
    return Rows(sorted(rows, key=lambda row: row.simulation.step_time if row.simulation else float("inf")))


class OverlapPlan(NamedTuple):
    schedule: Schedule  #: a copy of the given one where no plan was shorter
    step_time: float
    bound: float  #: no order of these passes under this memory has a shorter step, where ranks meet at its end
    peak_activations: float
    tried: int


def plan_overlap(schedule: Schedule, costs: Costs, memory_cap: Optional[float] = None, slots: int = 0, *,
                 seconds: float = 0.0, tries: int = 0, seed: int = 1) -> OverlapPlan:
    """Looks for the order in which segments of all passes run beside each other. costs: with segments. memory_cap: most
    activations on a rank; None: what the schedule itself holds. seconds 0: a fixed number of tries, the same plan every
    time."""
    if memory_cap is not None and not memory_cap > 0.0:
        raise _c.Error(f"memory_cap {memory_cap}: more than 0 is required")
    c_costs, result = costs._struct(schedule.stages, schedule.ranks), _c.OverlapResult()
    request = _c.OverlapRequest(schedule=c.cast(schedule._made, c.c_void_p), costs=c.addressof(c_costs),
                                memory_cap=memory_cap or 0.0, slots=slots, tries=tries, seconds=seconds, seed=seed)
    _c.call("dp_plan_overlap", c.byref(request), c.byref(result))
    return OverlapPlan(Schedule(result.schedule), result.step, result.bound, result.peak, result.tried)


class SearchResult(NamedTuple):
    schedule: Schedule
    step_time: float
    peak_activations: float
    start: str  #: what the schedule goes back to
    built_in: Optional[str]  #: the best built-in schedule that fits
    built_in_step_time: Optional[float]
    tried: int
    memory: float  #: of the fullest rank, in the unit of memory_cap
    first: Optional[Tuple[int, ...]]  #: with layer_costs: stage s holds layers first[s] to first[s + 1] - 1
    candidates: Tuple[Tuple[str, float, float], ...]  #: the best of each start, by step: its name, step and memory


def search(ranks: int, microbatches: int, costs: Optional[Costs] = None,
           memory_cap: Union[None, float, Sequence[float]] = None, seconds: float = 10.0, seed: int = 1,
           transport: str = "credits", slots: int = 0,
           progress: Optional[Callable[[float, float], Optional[bool]]] = None, *,
           placements: Optional[Sequence[str]] = None, weights: int = 0, activation_bytes: float = 0.0,
           weight_bytes: float = 0.0, layer_costs: Sequence[float] = (), chunks: Sequence[int] = ()) -> SearchResult:
    """Looks for a schedule with a shorter step than any built-in one. progress(seconds so far, best step so far) is called
    five times a second; True ends the search. placements: which are tried, of "line", "loop", "v" and "bidirectional".
    weights: most copies of the weights on a rank; 0: any. memory_cap: of every rank, or a list of each rank's, 0 being no
    limit; with activation_bytes and weight_bytes, as in `Simulation.peak_bytes()`, in bytes. layer_costs: what each layer
    takes beside the others; which stage has which is searched for as well. chunks: of a rank, with which interleaved
    methods are tried."""
    raised: List[BaseException] = []

    def show(_user: Any, state: Any) -> int:
        try:
            return int(progress is not None and progress(state.contents.elapsed, state.contents.step) is True)
        except BaseException as error:  # Ctrl-C, too: it leaves through here
            raised.append(error)
            return 1

    each: Sequence[float] = ()
    cap = 0.0
    if isinstance(memory_cap, (int, float)):
        cap = float(memory_cap)
        if not cap > 0.0:
            raise _c.Error(f"memory_cap {memory_cap}: more than 0 is required")
    elif memory_cap is not None:
        each = memory_cap
        if len(each) != ranks:
            raise _c.Error(f"memory_cap has {len(each)} numbers, there are {ranks} ranks")
    if not seconds > 0.0:
        raise _c.Error(f"seconds {seconds}: more than 0 is required")
    unknown = [p for p in placements or () if p not in _PLACEMENTS]
    if unknown:
        raise _c.Error(f'placement "{unknown[0]}": {", ".join(_PLACEMENTS)} are possible')
    stages = len(costs.stage_scale) if costs and costs.stage_scale is not None else 0
    c_costs = (costs or Costs())._struct(stages, ranks)
    request = _c.SearchRequest(ranks=ranks, microbatches=microbatches, costs=c.pointer(c_costs),
                               transport=transport_number(transport), slots=slots,
                               memory_cap=cap, seconds=seconds, seed=seed,
                               stages=stages, weights=weights,
                               placements=sum(1 << _PLACEMENTS.index(p) for p in set(placements or ())),
                               activation_bytes=activation_bytes, weight_bytes=weight_bytes,
                               layers=len(layer_costs), nchunks=len(chunks))
    request.progress = _c.Progress(show)
    if len(layer_costs) > 0:
        request.layer_costs = _c.numbers("layer_costs", c.c_double, layer_costs)
    if len(chunks) > 0:
        request.chunks = _c.numbers("chunks", c.c_int32, chunks)
    if len(each) > 0:
        request.rank_caps = _c.numbers("memory_cap", c.c_double, each)
    result = _c.CSearchResult()
    _c.call("dp_search", c.byref(request), c.byref(result))
    # a field is part of its struct, a cast is not
    found, fits = Schedule(c.cast(result.schedule, c.POINTER(_c.CSchedule))), bool(result.built_in)
    made = SearchResult(found, result.step, result.peak, result.start.decode(),
                        result.built_in.decode() if fits else None, result.built_in_step if fits else None, result.tried,
                        result.memory, tuple(result.first[:found.stages + 1]) if result.first else None,
                        tuple((x.start.decode(), x.step, x.memory) for x in result.candidates[:result.ncandidates]))
    result.schedule = None  # is ours
    _c.lib.dp_search_clear(c.byref(result))
    if raised:
        raise raised[0]
    return made


class Partition(NamedTuple):
    first: Tuple[int, ...]  #: stage s holds layers first[s] to first[s + 1] - 1
    step_time: float


def partition(layer_costs: Sequence[float], schedule: Schedule, costs: Optional[Costs] = None,
              transport: str = "credits", slots: int = 0) -> Partition:
    """Layers of unequal cost onto the stages of a schedule, so that the simulated step is short. layer_costs: what each
    layer takes beside the others, in any unit; costs: of a device if all stages were alike."""
    c_costs = (costs or Costs())._struct(schedule.stages, schedule.ranks)
    layers = _c.numbers("layer_costs", c.c_double, layer_costs)
    first, step = (c.c_int32 * (schedule.stages + 1))(), c.c_double()
    with schedule._lowered(transport, slots) as program:
        request = _c.PartitionRequest(layers=len(layer_costs), layer_costs=layers, program=program,
                                      costs=c.pointer(c_costs))
        _c.call("dp_partition", c.byref(request), first, c.byref(step))
    return Partition(tuple(first), step.value)
