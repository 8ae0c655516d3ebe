# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""The C library: its structs as the headers declare them, and its errors as exceptions."""
import ctypes as c
import operator
import os
from pathlib import Path
from typing import Any, List, Tuple

_NOMEM = -2
IO = -8


class Error(ValueError):
    """What libdualpipe refuses, with its sentence. Files that cannot be opened are OSError as ever."""


lib = c.CDLL(os.environ.get("DUALPIPE_LIBRARY") or str(Path(__file__).with_name("libdualplan.so")))
lib.dp_last_error.restype = c.c_char_p
lib.dp_version.restype = c.c_char_p

Write = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_char), c.c_size_t)
Read = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t))


def call(function: str, *arguments: Any) -> None:
    """Calls a function that returns a dp_status_t. Error with the library's own sentence; MemoryError."""
    status = getattr(lib, function)(*arguments)
    if status < 0:
        message = lib.dp_last_error().decode("utf-8", "replace")
        raise (MemoryError if status == _NOMEM else Error)(message)


def written(function: str, *arguments: Any) -> str:
    """What a function writes through the dp_write_fn that follows `arguments`."""
    parts: List[bytes] = []

    def write(_user: Any, text: Any, count: int) -> int:
        parts.append(c.string_at(text, count))
        return 0

    call(function, *arguments, Write(write), None)
    return b"".join(parts).decode()


_INTEGERS = (c.c_int32, c.c_int64, c.c_uint32, c.c_uint64, c.c_int, c.c_int16, c.c_uint8)


def taken(name: str, kind: Any, value: Any) -> Any:
    """A number as a member of a struct has it: ctypes would cut it to size without a word."""
    if kind in _INTEGERS:
        most = 2 ** (8 * c.sizeof(kind) - (kind(-1).value < 0))
        least = -most if kind(-1).value < 0 else 0
        try:
            value = operator.index(value)
        except TypeError:
            raise Error(f"{name}: a whole number is expected, not {value!r}") from None
        if not least <= value < most:
            raise Error(f"{name} is {value}; {least} to {most - 1} are possible")
    elif kind is c.c_double:
        try:
            value = float(value)
        except (TypeError, ValueError, OverflowError):
            raise Error(f"{name}: a number is expected, not {value!r}") from None
    return value


class Sized(c.Structure):
    """A struct that begins with its size."""

    def __init__(self, **values: Any):
        kinds = dict(self._fields_)  # type: ignore[arg-type, unused-ignore]
        super().__init__(struct_size=c.sizeof(self), **{name: taken(name, kinds[name], value) for name, value in values.items()})


def numbers(name: str, kind: Any, values: Any) -> Any:
    """An array of them."""
    values = list(values)
    return (kind * len(values))(*(taken(name, kind, value) for value in values))


def _each(kind: Any, *names: str) -> List[Tuple[str, Any]]:
    return [(name, kind) for name in names]


class Op(c.Structure):
    _fields_ = [("kind", c.c_uint8), ("chunk", c.c_int16), ("chunk2", c.c_int16),
                ("microbatch", c.c_int32), ("microbatch2", c.c_int32)]


class CSchedule(c.Structure):
    _fields_ = [("method", c.c_char * 32), ("ranks", c.c_int32), ("microbatches", c.c_int32), ("chunks", c.c_int32),
                ("placement", c.c_int), ("forward_only", c.c_int32), ("first", c.POINTER(c.c_int64)),
                ("ops", c.POINTER(Op))]


class ScheduleRequest(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("method", c.c_char_p), ("ranks", c.c_int32), ("microbatches", c.c_int32),
                ("chunks", c.c_int32), ("forward_only", c.c_int32), ("microbatch_group", c.c_int32)]


class Method(c.Structure):
    _fields_ = [("name", c.c_char_p), ("summary", c.c_char_p), ("source", c.c_char_p), ("limits", c.c_char_p),
                ("placement", c.c_int), ("generate", c.c_void_p), ("reserved", c.c_void_p * 2)]


class LowerOptions(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("transport", c.c_int), ("slots", c.c_int32), ("replayable", c.c_int32)]


class VerifyReport(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("safe_slots", c.c_int32), ("operations", c.c_int64),
                ("peak_activations", c.c_int32), ("peak_deferred", c.c_int32), ("ordered_weights", c.c_int32),
                ("peak_backward_buffers", c.c_int32)]


class CCosts(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("f", c.c_double), ("i", c.c_double), ("w", c.c_double), ("b", c.c_double),
                ("fb", c.c_double), ("hop", c.c_double), ("barrier", c.c_double), ("stage_scale", c.POINTER(c.c_double)),
                ("bytes", c.c_double), ("bandwidth", c.c_double), ("topology", c.c_void_p),
                ("segments", c.c_void_p), ("r", c.c_double), ("rank_scale", c.POINTER(c.c_double))]


class CTopology(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("ranks", c.c_int32), ("host_of", c.POINTER(c.c_int32)),
                *_each(c.c_double, "near_hop", "near_bandwidth", "far_hop", "far_bandwidth")]


class Span(c.Structure):
    _fields_ = [("start_ns", c.c_int64), ("end_ns", c.c_int64), ("flow", c.c_uint64), ("step", c.c_int32),
                ("microbatch", c.c_int32), ("chunk", c.c_int16), ("stage", c.c_int16), ("segment", c.c_int16),
                ("kind", c.c_uint8), ("lane", c.c_uint8), ("pass_", c.c_uint8), ("pair", c.c_uint8), ("name", c.c_uint16),
                ("busy_ns", c.c_uint32)]


class OverlapRequest(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("schedule", c.c_void_p), ("costs", c.c_void_p), ("memory_cap", c.c_double),
                ("slots", c.c_int32), ("tries", c.c_int32), ("seconds", c.c_double), ("seed", c.c_uint64)]


class OverlapResult(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("schedule", c.POINTER(CSchedule)), ("step", c.c_double), ("bound", c.c_double),
                ("peak", c.c_double), ("tried", c.c_int32)]


class SegmentCosts(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("layers", c.c_int32), ("f", c.c_double * 4), ("i", c.c_double * 4),
                ("w", c.c_double * 4), ("stages", c.c_int32), ("first", c.c_void_p), ("list", c.c_void_p),
                ("inline_messages", c.c_int32), ("r", c.c_double * 4), ("list_r", c.c_void_p),
                ("backward_buffer", c.c_int32)]


class CSimulation(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("step_time", c.c_double), ("formula_bubble", c.c_double),
                ("ranks", c.c_int32), ("bubble", c.POINTER(c.c_double)), ("peak_activations", c.POINTER(c.c_double)),
                ("timeline", c.c_void_p), ("peak_backward_buffers", c.POINTER(c.c_double))]


class PartitionRequest(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("layers", c.c_int32), ("layer_costs", c.POINTER(c.c_double)),
                ("program", c.c_void_p), ("costs", c.POINTER(CCosts))]


class SearchState(c.Structure):
    _fields_ = [("struct_size", c.c_uint32), ("elapsed", c.c_double), ("tried", c.c_int64), ("built_in_step", c.c_double),
                ("step", c.c_double), ("start", c.c_char_p)]


Progress = c.CFUNCTYPE(c.c_int, c.c_void_p, c.POINTER(SearchState))


class SearchRequest(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("ranks", c.c_int32), ("microbatches", c.c_int32),
                ("costs", c.POINTER(CCosts)), ("transport", c.c_int), ("slots", c.c_int32), ("memory_cap", c.c_double),
                ("seconds", c.c_double), ("seed", c.c_uint64), ("progress", Progress), ("user", c.c_void_p),
                ("placements", c.c_uint32), ("weights", c.c_int32), ("stages", c.c_int32),
                ("activation_bytes", c.c_double), ("weight_bytes", c.c_double), ("layers", c.c_int32),
                ("nchunks", c.c_int32), ("layer_costs", c.POINTER(c.c_double)), ("chunks", c.POINTER(c.c_int32)),
                ("rank_caps", c.POINTER(c.c_double))]


class SearchCandidate(c.Structure):
    _fields_ = [("start", c.c_char * 48), ("step", c.c_double), ("memory", c.c_double)]


class CSearchResult(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("schedule", c.POINTER(CSchedule)), ("built_in", c.c_char * 48),
                ("start", c.c_char * 48), ("built_in_step", c.c_double), ("step", c.c_double), ("peak", c.c_double),
                ("tried", c.c_int64), ("memory", c.c_double), ("first", c.POINTER(c.c_int32)),
                ("ncandidates", c.c_int32), ("candidates", c.POINTER(SearchCandidate))]


class CModel(Sized):
    _fields_ = [("struct_size", c.c_uint32),
                *_each(c.c_int32, "tied", "gated", "qkv_bias", "o_bias", "mlp_bias", "norm_bias", "router_bias", "expert_bias",
                       "qk_norm", "sinks", "shared_gate"),
                ("type", c.c_char * 32),
                *_each(c.c_int64, "hidden", "layers", "vocab", "positions", "heads", "kv_heads", "head_dim", "q_rank", "kv_rank",
                       "rope_dim", "value_dim", "ffn", "experts", "top_k", "expert_ffn", "shared_ffn", "dense_first", "moe_every",
                       "node_limit", "sequence")]


class CGpu(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("host", c.c_int32),
                *_each(c.c_double, "tflops", "memory", "near", "far", "products", "core", "links", "latency", "reserve")]


class LayoutRequest(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("gpus", c.c_int32), ("model", c.c_void_p), ("gpu", c.c_void_p),
                ("batch", c.c_int64), ("sequence", c.c_int64),
                *_each(c.c_int32, "micro_batch", "pp", "ep", "dp", "tp", "recompute"), ("method", c.c_char_p),
                ("whole_optimizer", c.c_int32), ("measured", c.c_void_p), ("hop", c.c_double), ("bandwidth", c.c_double)]


class CLayout(Sized):
    _fields_ = [("struct_size", c.c_uint32), *_each(c.c_int32, "tp", "pp", "ep", "dp", "microbatches"),
                ("method", c.POINTER(Method)), *_each(c.c_int32, "chunks", "recompute", "fits", "timed", "copies"),
                *_each(c.c_double, "weights", "gradients", "optimizer", "activations", "logits", "transfers", "expert_weights",
                       "total", "step_time", "reduce_time", "useful", "gain", "tokens_per_second", "mfu"),
                ("reason", c.c_char * 160)]


class LayoutsAbout(Sized):
    _fields_ = [("struct_size", c.c_uint32), *_each(c.c_int32, "count", "timed", "tried", "uneven"), ("advice", c.c_char_p)]


class TraceOptions(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("annotations", c.c_int32), ("communication", c.c_char_p),
                ("most_bytes", c.c_uint64), ("devices", c.c_char_p)]


class TraceAbout(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("devices", c.c_int32), ("events", c.c_uint64), ("records", c.c_int64),
                ("sms", c.c_int64), ("cut_off", c.c_int32), ("broken", c.c_int64), ("broken_records", c.c_int64)]


class TraceOverlap(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("name", c.c_char_p),
                *_each(c.c_int64, "span", "computation", "communication", "hidden", "idle", "gaps"),
                ("computation_sms", c.c_double), ("communication_sms", c.c_double), ("likely", c.c_int64),
                ("likely_time", c.c_int64), ("likely_name", c.c_char_p), ("strays", c.c_int64), ("stray_name", c.c_char_p)]


class TraceCosts(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("layers", c.c_int32), ("title", c.c_char_p),
                ("annotations", c.POINTER(c.c_char_p)), ("annotation_count", c.c_int32)]


class EplbShape(Sized):
    _fields_ = [("struct_size", c.c_uint32)] + [
        (name, c.c_int32) for name in ("layers", "experts", "replicas", "groups", "nodes", "gpus")]


class EplbOptions(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("policy", c.c_int32), ("distinct", c.c_int32), ("search_steps", c.c_int64),
                ("search_ns", c.c_int64), ("seed", c.c_uint64)]


class EplbPlacement(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("policy", c.c_int32), ("max_count", c.c_int32),
                ("physical_to_logical", c.POINTER(c.c_int32)), ("expert_count", c.POINTER(c.c_int32)),
                ("logical_to_physical", c.POINTER(c.c_int32))]


class EplbBalance(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("gpu", c.c_double), ("node", c.c_double), ("gpu_worst", c.c_double),
                ("node_worst", c.c_double)]


class EplbUpdateOptions(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("threshold", c.c_double), ("bound", c.c_double),
                ("expert_bytes", c.c_int64)]


lib.dp_schedule_methods.restype = c.POINTER(Method)
lib.dp_placement_name.restype = c.c_char_p
lib.dp_op_kind_name.restype = c.c_char_p
lib.dp_timeline_name_text.restype = c.c_char_p
lib.dp_timeline_spans.restype = c.POINTER(Span)
lib.dp_gpu_names.restype = c.c_char_p
for _name, _arguments in {
        "dp_schedule_free": [c.c_void_p], "dp_program_free": [c.c_void_p],
        "dp_schedule_write_csv": [c.POINTER(CSchedule), c.c_int32, Write, c.c_void_p],
        "dp_schedule_write_tsv": [c.POINTER(CSchedule), c.c_int32, Write, c.c_void_p],
        "dp_schedule_read_csv": [c.c_char_p, c.c_char_p, c.c_size_t, c.POINTER(c.POINTER(CSchedule))],
        "dp_schedule_read_tsv": [c.c_char_p, c.c_char_p, c.c_size_t, c.POINTER(c.POINTER(CSchedule))],
        "dp_schedule_check_csv_transfers": [c.POINTER(CSchedule), c.c_char_p, c.c_char_p, c.c_size_t, c.c_int,
                                            c.POINTER(c.c_int64)],
        "dp_program_lower": [c.POINTER(CSchedule), c.POINTER(LowerOptions), c.POINTER(c.c_void_p)],
        "dp_program_verify": [c.c_void_p, c.POINTER(VerifyReport)],
        "dp_simulate": [c.c_void_p, c.POINTER(CCosts), c.c_int, c.POINTER(CSimulation)],
        "dp_trace_read": [Read, c.c_void_p, c.POINTER(TraceOptions), c.POINTER(c.c_void_p)],
        "dp_trace_free": [c.c_void_p],
        "dp_trace_about": [c.c_void_p, c.POINTER(TraceAbout)],
        "dp_trace_overlap": [c.c_void_p, c.c_int32, c.POINTER(TraceOverlap)],
        "dp_trace_costs_write": [c.c_void_p, c.POINTER(TraceCosts), Write, c.c_void_p],
        "dp_python_costs_read": [c.c_char_p, c.POINTER(CCosts), c.POINTER(SegmentCosts), c.POINTER(c.c_double),
                                 c.POINTER(c.c_int32)],
        "dp_schedule_serial": [c.POINTER(CSchedule), c.POINTER(c.POINTER(CSchedule))],
        "dp_plan_overlap": [c.POINTER(OverlapRequest), c.POINTER(OverlapResult)],
        "dp_timeline_spans": [c.c_void_p, c.c_int32, c.POINTER(c.c_int64)],
        "dp_timeline_name_text": [c.c_void_p, c.c_uint16],
        "dp_timeline_write_chrome": [c.c_void_p, Write, c.c_void_p],
        "dp_model_read": [c.c_char_p, c.c_char_p, c.c_size_t, c.POINTER(CModel)],
        "dp_model_parameters": [c.POINTER(CModel), c.POINTER(c.c_double), c.POINTER(c.c_double)],
        "dp_gpu_find": [c.c_char_p, c.POINTER(CGpu)],
        "dp_layouts_find": [c.POINTER(LayoutRequest), c.POINTER(c.c_void_p)],
        "dp_layouts_about": [c.c_void_p, c.POINTER(LayoutsAbout)],
        "dp_layouts_row": [c.c_void_p, c.c_int32, c.POINTER(CLayout)],
        "dp_layouts_segments": [c.c_void_p, c.c_int32, c.POINTER(SegmentCosts)],
        "dp_layouts_free": [c.c_void_p],
        "dp_eplb_rebalance": [c.POINTER(EplbShape), c.POINTER(EplbOptions), c.POINTER(c.c_float),
                              c.POINTER(EplbPlacement), c.c_void_p, c.c_size_t],
        "dp_eplb_update": [c.POINTER(EplbShape), c.POINTER(EplbOptions), c.POINTER(EplbUpdateOptions),
                           c.POINTER(c.c_float), c.POINTER(c.c_int32), c.POINTER(EplbPlacement), c.c_void_p, c.c_void_p,
                           c.c_size_t],
        "dp_eplb_measure": [c.POINTER(EplbShape), c.POINTER(c.c_float), c.POINTER(c.c_int32), c.POINTER(EplbBalance),
                            c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t],
}.items():
    getattr(lib, _name).argtypes = _arguments
