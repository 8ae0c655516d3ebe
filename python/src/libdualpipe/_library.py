# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""The C library: its structs as the headers declare them, and its errors as exceptions."""
import ctypes as c
import os
from pathlib import Path

_OVERFLOW, _NOMEM = -16, -2
IO = -8

lib = c.CDLL(os.environ.get("DUALPIPE_LIBRARY") or str(Path(__file__).with_name("libdualplan.so")))
lib.dp_last_error.restype = c.c_char_p
lib.dp_version.restype = c.c_char_p

Write = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.POINTER(c.c_char), c.c_size_t)
Read = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_void_p, c.c_size_t, c.POINTER(c.c_size_t))


def call(function: str, *arguments) -> None:
    """Calls a function that returns a dp_status_t. ValueError with the library's own sentence; MemoryError."""
    status = getattr(lib, function)(*arguments)
    if status < 0:
        message = lib.dp_last_error().decode("utf-8", "replace")
        raise (MemoryError if status in (_NOMEM, _OVERFLOW) else ValueError)(message)


def written(function: str, *arguments) -> str:
    """What a function writes through the dp_write_fn that follows `arguments`."""
    parts = []

    def write(_user, text, count):
        parts.append(c.string_at(text, count))
        return 0

    call(function, *arguments, Write(write), None)
    return b"".join(parts).decode()


class Sized(c.Structure):
    """A struct that begins with its size."""

    def __init__(self, **values):
        super().__init__(struct_size=c.sizeof(self), **values)


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
                ("segments", c.c_void_p), ("r", c.c_double)]


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


class TraceOptions(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("annotations", c.c_int32), ("communication", c.c_char_p),
                ("most_bytes", c.c_uint64), ("devices", c.c_char_p)]


class TraceAbout(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("devices", c.c_int32), ("events", c.c_uint64), ("records", c.c_int64),
                ("sms", c.c_int64), ("cut_off", c.c_int32), ("broken", c.c_int64), ("broken_records", c.c_int64)]


class TraceOverlap(Sized):
    _fields_ = [("struct_size", c.c_uint32), ("name", c.c_char_p)] + [
        (name, c.c_int64) for name in ("span", "computation", "communication", "hidden", "idle", "gaps")] + [
        ("computation_sms", c.c_double), ("communication_sms", c.c_double), ("likely", c.c_int64), ("likely_time", c.c_int64),
        ("likely_name", c.c_char_p), ("strays", c.c_int64), ("stray_name", c.c_char_p)]


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
        "dp_python_costs_read": [c.c_char_p, c.POINTER(CCosts), c.POINTER(c.c_double), c.POINTER(c.c_int32)],
        "dp_eplb_rebalance": [c.POINTER(EplbShape), c.POINTER(EplbOptions), c.POINTER(c.c_float),
                              c.POINTER(EplbPlacement), c.c_void_p, c.c_size_t],
        "dp_eplb_update": [c.POINTER(EplbShape), c.POINTER(EplbOptions), c.POINTER(EplbUpdateOptions),
                           c.POINTER(c.c_float), c.POINTER(c.c_int32), c.POINTER(EplbPlacement), c.c_void_p, c.c_void_p,
                           c.c_size_t],
        "dp_eplb_measure": [c.POINTER(EplbShape), c.POINTER(c.c_float), c.POINTER(c.c_int32), c.POINTER(EplbBalance),
                            c.c_void_p, c.c_void_p, c.c_void_p, c.c_size_t],
}.items():
    getattr(lib, _name).argtypes = _arguments
