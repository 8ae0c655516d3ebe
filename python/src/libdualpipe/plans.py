# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Which schedule: costs, simulation, comparison, search, and the cut of a model into stages."""
import ctypes as c
import gzip
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _library as _c
from .schedules import Method, Schedule, methods, schedule, transport_number


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

    @staticmethod
    def of_layers(layers: int, attention: Sequence[float], dispatch: Sequence[float], mlp: Sequence[float],
                  combine: Sequence[float], **others: float) -> "Costs":
        """From the segments of one MoE layer, (F, I, W) each: two lanes, communication beside computation, as an
        overlapped pair runs them. layers: of a device."""
        segments, c_costs = _c.SegmentCosts(layers=layers), _c.CCosts()
        for s, times in enumerate((attention, dispatch, mlp, combine)):
            if len(times) != 3:
                raise ValueError("attention, dispatch, mlp and combine: three times each, F, I and W")
            segments.f[s], segments.i[s], segments.w[s] = times
        _c.call("dp_costs_from_segments", c.byref(segments), c.byref(c_costs), None)
        return replace(Costs(f=c_costs.f, i=c_costs.i, w=c_costs.w, b=c_costs.b, fb=c_costs.fb), **others)

    @staticmethod
    def read(path: Union[str, "os.PathLike[str]"], stage_scale: bool = False) -> "Costs":
        """From a file of costs: costs.txt of a training run, what `trace_costs()` and `dualpipe trace costs` write.
        stage_scale: with the factors of its stages, which fit schedules of as many stages alone."""
        made, count = _c.CCosts(f=1.0, i=1.0, w=1.0, barrier=1.0), c.c_int32()
        _c.call("dp_python_costs_read", os.fsencode(path), c.byref(made), None, c.byref(count))
        scales = (c.c_double * count.value)()
        _c.call("dp_python_costs_read", os.fsencode(path), c.byref(made), scales, c.byref(count))

        def sum_of(cost: float) -> Optional[float]:  # the other way round than in _c
            return None if cost == 0.0 else max(cost, 0.0)

        return Costs(made.f, made.i, made.w, sum_of(made.b), sum_of(made.fb), made.hop, made.bytes, made.bandwidth,
                     made.barrier != 0.0, list(scales) if stage_scale and count.value else None)

    @staticmethod
    def of_trace(path: Union[str, "os.PathLike[str]"], layers: int = 0,
                 annotations: Optional[Dict[str, str]] = None) -> "Costs":
        """What `trace_costs()` finds."""
        text = trace_costs(path, layers, annotations)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            return Costs.read(file.name)

    def _c(self, stages: int) -> _c.CCosts:
        def whole(cost: Optional[float]) -> float:  # the library takes 0 for the sum, less for nothing
            return 0.0 if cost is None else cost if cost > 0.0 else -1.0

        for name in ("b", "fb"):
            if (getattr(self, name) or 0.0) < 0.0:
                raise ValueError(f"cost {name.upper()} is {getattr(self, name)}; it has to be 0 or more")
        made = _c.CCosts(f=self.f, i=self.i, w=self.w, b=whole(self.b), fb=whole(self.fb), hop=self.hop,
                         bytes=self.bytes, bandwidth=self.bandwidth, barrier=float(self.barrier))
        if self.stage_scale is not None:
            if len(self.stage_scale) != stages:
                raise ValueError(f"stage_scale has {len(self.stage_scale)} numbers for {stages} stages")
            made.stage_scale = (c.c_double * stages)(*self.stage_scale)
        return made


@contextmanager
def _trace(path: Union[str, "os.PathLike[str]"], **options):
    """The trace of a file, plain or gzip, to be asked; errors name the file."""
    raised: List[BaseException] = []
    with open(path, "rb") as plain:
        file = gzip.GzipFile(fileobj=plain) if plain.peek(2)[:2] == b"\x1f\x8b" else plain

        def read(_user, buffer, room, count):
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
            if raised:
                raise raised[0] from None
            said = str(error)  # some name the file, by its last part
            name = os.path.basename(path)
            raise ValueError(said if said.startswith(name) else f"{name}: {said}") from None
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
            times = (getattr(made, name) / 1e6 for name in ("span", "computation", "communication", "hidden", "idle"))
            shares = (share if share >= 0.0 else None for share in (made.computation_sms, made.communication_sms))
            likely = made.likely_name.decode("utf-8", "replace") if made.likely else None
            found.append(Overlap(made.name.decode("utf-8", "replace"), *times, *shares, made.likely, made.likely_time / 1e6,
                                 likely, made.strays, about.broken_records))
        return found


class Simulation(NamedTuple):
    step_time: float  #: in the unit of the costs
    bubble: List[float]  #: of each rank: step time less the time it computes
    peak_activations: List[float]  #: of each rank: most held at once, in stage inputs of a rank
    formula_bubble: Optional[float]  #: the published formula's, where the method has one


class Candidate(NamedTuple):
    """A row of `compare()`. Of a method that does not fit: reason, and no figures."""
    method: Method
    chunks: int  #: of the request; 0: the method has but one number
    schedule: Optional[Schedule]
    simulation: Optional[Simulation]
    reason: str


def compare(ranks: int, microbatches: int, costs: Optional[Costs] = None, transport: str = "credits", slots: int = 0,
            memory_cap: Optional[float] = None) -> List[Candidate]:
    """Every built-in method for these sizes and costs, the shortest step first, those that do not fit last.
    memory_cap: most activations a rank may hold, in stage inputs of a rank."""
    if costs is not None and costs.stage_scale is not None:
        raise ValueError("stage_scale does not go with compare: the schedules cut the model differently")
    rows = []
    for method in methods():
        for chunks in (2, 4) if method.placement == "loop" else (0,):
            try:
                made = schedule(method.name, ranks, microbatches, chunks)
                found = made.simulate(costs, transport, slots)
            except ValueError as error:
                rows.append(Candidate(method, chunks, None, None, str(error)))
                continue
            held = max(found.peak_activations)
            if memory_cap is not None and held > memory_cap + 1e-9:
                rows.append(Candidate(method, chunks, None, None,
                                      f"holds {held:g} micro-batches' activations, the cap is {memory_cap:g}"))
            else:
                rows.append(Candidate(method, chunks, made, found, ""))
    return sorted(rows, key=lambda row: row.simulation.step_time if row.simulation else float("inf"))


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
           progress: Optional[Callable[[float, float], Optional[bool]]] = None,
           layer_costs: Sequence[float] = (), chunks: Sequence[int] = (), activation_bytes: float = 0.0,
           weight_bytes: float = 0.0) -> SearchResult:
    """Looks for a schedule with a shorter step than any built-in one. progress(seconds so far, best step so far) is called
    five times a second; True ends the search. memory_cap: of every rank, or a list of each rank's, 0 being no limit; with
    activation_bytes and weight_bytes, in bytes. layer_costs: what each layer takes beside the others; which stage has
    which is searched for as well. chunks: of a rank, with which interleaved methods are tried."""
    raised: List[BaseException] = []

    def show(_user, state):
        try:
            return int(progress is not None and progress(state.contents.elapsed, state.contents.step) is True)
        except BaseException as error:  # Ctrl-C, too: it leaves through here
            raised.append(error)
            return 1

    each = None if memory_cap is None or isinstance(memory_cap, (int, float)) else list(memory_cap)
    if each is not None and len(each) != ranks:
        raise ValueError(f"memory_cap has {len(each)} numbers, there are {ranks} ranks")
    if memory_cap is not None and each is None and not memory_cap > 0.0:
        raise ValueError(f"memory_cap {memory_cap}: more than 0 is required")
    if not seconds > 0.0:
        raise ValueError(f"seconds {seconds}: more than 0 is required")
    c_costs = (costs or Costs())._c(len(costs.stage_scale) if costs and costs.stage_scale is not None else 0)
    request = _c.SearchRequest(ranks=ranks, microbatches=microbatches, costs=c.pointer(c_costs),
                               transport=transport_number(transport), slots=slots,
                               memory_cap=memory_cap or 0.0 if each is None else 0.0, seconds=seconds, seed=seed,
                               progress=_c.Progress(show), activation_bytes=activation_bytes, weight_bytes=weight_bytes,
                               layers=len(layer_costs), nchunks=len(chunks))
    if len(layer_costs) > 0:
        request.layer_costs = (c.c_double * len(layer_costs))(*layer_costs)
    if len(chunks) > 0:
        request.chunks = (c.c_int32 * len(chunks))(*chunks)
    if each is not None:
        request.rank_caps = (c.c_double * ranks)(*each)
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
    c_costs = (costs or Costs())._c(schedule.stages)
    layers = (c.c_double * len(layer_costs))(*layer_costs)
    first, step = (c.c_int32 * (schedule.stages + 1))(), c.c_double()
    with schedule._lowered(transport, slots) as program:
        request = _c.PartitionRequest(layers=len(layer_costs), layer_costs=layers, program=program,
                                      costs=c.pointer(c_costs))
        _c.call("dp_partition", c.byref(request), first, c.byref(step))
    return Partition(tuple(first), step.value)
