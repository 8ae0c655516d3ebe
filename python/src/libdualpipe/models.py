# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Which layout and which schedule for a model, as `dualpipe plan` answers it."""
import ctypes as c
import json
import os
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, NamedTuple, Optional, Union

from . import _library as _c
from ._tables import Rows
from .plans import RECOMPUTE, Costs, Segments


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU, and what is assumed of it. Rates are of one GPU in one direction."""
    tflops: float  #: 10^12 operations a second, dense bf16, of the data sheet
    memory: float  #: bytes
    host: int  #: how many a host has
    near: float  #: GB/s to others of the host
    far: float  #: GB/s to those of other hosts
    products: float = 0.6  #: share of tflops that matrix products reach
    core: float = 0.43  #: the same of attention's core
    links: float = 0.8  #: share of near and far
    latency: float = 20.0  #: us of a transfer
    reserve: float = 3.0 * 2**30  #: bytes that others take

    @staticmethod
    def named(name: str) -> "Gpu":
        """"a100", "h100", "h200", "h800" or "b200"; dataclasses.replace() changes what is assumed."""
        made = _c.CGpu()
        _c.call("dp_gpu_find", name.encode(), c.byref(made))
        return Gpu(**{field.name: getattr(made, field.name) for field in fields(Gpu)})


class Layout(NamedTuple):
    """Bytes are those of the fullest GPU. Figures of time are None where the layout was not simulated."""
    method: str
    chunks: int  #: 0: the method has but one number
    tp: int
    pp: int
    ep: int
    dp: int
    microbatches: int
    recompute: str
    fits: bool
    step_time: Optional[float]  #: seconds
    gain: Optional[float]  #: over 1f1b on the same ranks: 0.1 is 10 %
    useful: Optional[float]  #: share of a step that a rank would compute alone
    tokens_per_second: Optional[float]  #: all GPUs
    mfu: Optional[float]
    total: float  #: bytes, the GPU's reserve included
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transfers: float
    copies: int  #: of the weights
    reason: str  #: why its messages cannot be sent; "" otherwise


class Plan(NamedTuple):
    advice: str  #: one sentence
    layouts: Rows[Layout]  #: the fastest that fits first
    parameters: int
    active_parameters: float  #: that a token meets
    segments: Optional[Segments]  #: milliseconds of a layer of the best layout, as estimated

    def _repr_html_(self) -> str:
        return f"<p>{self.parameters / 1e9:.4g} B parameters. {self.advice}</p>{self.layouts._repr_html_()}"


def _model(model: Union[Mapping[str, Any], str, "os.PathLike[str]"]) -> _c.CModel:
    if isinstance(model, Mapping):
        name, text = "model", json.dumps(dict(model)).encode()
    else:
        with open(model, "rb") as file:
            name, text = os.fspath(model), file.read()
    made = _c.CModel()
    _c.call("dp_model_read", name.encode("utf-8", "replace"), text, len(text), c.byref(made))
    return made


def _layout(made: _c.CLayout) -> Layout:
    values = {name: getattr(made, name) for name in Layout._fields}
    values.update(method=made.method.contents.name.decode(), recompute=RECOMPUTE[made.recompute], fits=bool(made.fits),
                  reason=made.reason.decode())
    if not (made.fits and made.timed):
        values.update(step_time=None, gain=None, useful=None, tokens_per_second=None, mfu=None)
    return Layout(**values)


def _measured(costs: Union[Costs, Segments, None]) -> Dict[str, Any]:
    segments = costs.segments if isinstance(costs, Costs) else costs
    if costs is not None and segments is None:
        raise _c.Error("costs: times of segments are expected, as Costs.of_trace() or Segments have them")
    given: Dict[str, Any] = {"measured": segments._struct() if segments is not None else None}
    if isinstance(costs, Costs):
        given.update(hop=costs.hop, bandwidth=costs.bandwidth)
    return given


def plan(model: Union[Mapping[str, Any], str, "os.PathLike[str]"], gpus: int, gpu: Union[str, Gpu] = "h100", *,
         global_batch: int = 1024, seq: int = 0, micro_batch: int = 1, pp: int = 0, ep: int = 0, dp: int = 0, tp: int = 1,
         method: Optional[str] = None, recompute: Optional[str] = None, zero: bool = True, memory: Optional[float] = None,
         costs: Union[Costs, Segments, None] = None) -> Plan:
    """Layouts of a model on so many GPUs, the fastest that fits first, with one sentence of advice.

    model: a config.json of Hugging Face's hub, its path or its content. seq 0: 4096, or the most that the model takes. pp,
    ep, dp 0: all numbers that go. recompute: "none", "cheap", "mlp" or "full"; None: the least with which a layout fits.
    zero: ranks with the same parameters share the optimizer's state. memory: bytes of a GPU. costs: milliseconds that were
    measured for a micro-batch of this size with this tp, which take the place of estimates; those of dispatch and combine
    go with ep. docs/plan.md of libdualpipe says what is exact and what is estimated."""
    if recompute is not None and recompute not in RECOMPUTE:
        raise _c.Error(f'recompute "{recompute}": {", ".join(RECOMPUTE)} are possible')
    kind = Gpu.named(gpu) if isinstance(gpu, str) else gpu
    c_gpu = _c.CGpu(**{field.name: getattr(kind, field.name) for field in fields(Gpu)})
    if memory is not None:
        c_gpu.memory = _c.taken("memory", c.c_double, memory)
    c_model, given = _model(model), _measured(costs)
    measured = given.pop("measured")
    request = _c.LayoutRequest(
        gpus=gpus, model=c.addressof(c_model), gpu=c.addressof(c_gpu), batch=global_batch, sequence=seq,
        micro_batch=micro_batch, pp=pp, ep=ep, dp=dp, tp=tp, method=method.encode() if method is not None else None,
        recompute=RECOMPUTE.index(recompute) + 1 if recompute is not None else 0, whole_optimizer=not zero,
        measured=c.addressof(measured) if measured is not None else None, **given)
    found = c.c_void_p()
    _c.call("dp_layouts_find", c.byref(request), c.byref(found))
    try:
        return _plan(found, c_model)
    finally:
        _c.lib.dp_layouts_free(found)


def _plan(found: c.c_void_p, model: _c.CModel) -> Plan:
    about, parameters, active = _c.LayoutsAbout(), c.c_double(), c.c_double()
    _c.call("dp_layouts_about", found, c.byref(about))
    _c.call("dp_model_parameters", c.byref(model), c.byref(parameters), c.byref(active))
    rows: Rows[Layout] = Rows()
    for row in range(about.count):
        layout = _c.CLayout()
        _c.call("dp_layouts_row", found, row, c.byref(layout))
        rows.append(_layout(layout))
    segments = None
    if rows:
        estimated = _c.SegmentCosts()
        _c.call("dp_layouts_segments", found, 0, c.byref(estimated))
        segments = Segments._of(estimated)
    return Plan(about.advice.decode(), rows, int(parameters.value), active.value, segments)
