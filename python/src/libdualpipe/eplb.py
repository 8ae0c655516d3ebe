# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
"""Expert load balancing: which expert gets how many replicas, and which GPU holds them.

`rebalance_experts` takes the arguments of the published EPLB's and gives its answers. Loads are torch tensors, numpy
arrays or nested lists, of any type of number; answers are of the same kind, int64. Neither torch nor numpy is needed.
"""
import ctypes as c
import sys
from array import array
from typing import Any, NamedTuple, Optional, Tuple

from . import _library as _c

_POLICIES = {"auto": 0, "hierarchical": 1, "global": 2}


class Balance(NamedTuple):
    """Load of the fullest over the mean: 1 is perfect."""
    gpu: float  #: sums over layers: how much longer experts take than with perfect balance
    node: float
    gpu_worst: float  #: of the worst layer
    node_worst: float


def rebalance_experts(weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int, *,
                      policy: str = "auto", distinct: bool = False, search_steps: int = 0,
                      seed: int = 0) -> Tuple[Any, Any, Any]:
    """Replicates busy experts and places the replicas.

    weight: [layers, experts], the load of each. num_replicas: slots over all GPUs. Sizes need not divide.
    policy "auto": hierarchical where the groups are a multiple of the nodes, else global. distinct: no GPU gets two
    replicas of an expert where that can be. search_steps: so many tries to do better than the published method.

    Returns physical_to_logical [layers, num_replicas], logical_to_physical [layers, experts, most replicas of an expert]
    (-1 behind the last) and expert_count [layers, experts]. Without options: exactly what the published code gives with
    stable sorting. ValueError: sizes that cannot be, a load that is negative or not a number.
    """
    loads, shape, kind = _taken(weight, num_replicas, num_groups, num_nodes, num_gpus)
    desk = _Desk(shape)
    _c.call("dp_eplb_rebalance", c.byref(shape), c.byref(_options(policy, distinct, search_steps, seed)), loads,
            c.byref(desk.placement), *desk.workspace)
    return desk.given(kind)


def update_experts(weight: Any, current: Any, num_groups: int, num_nodes: int, num_gpus: int, *,
                   bound: float = 0.0, threshold: float = 1.0, policy: str = "auto", distinct: bool = False,
                   search_steps: int = 0, seed: int = 0) -> Tuple[Any, Any, Any]:
    """As `rebalance_experts`, starting from the placement in use and moving few replicas.

    current: its physical_to_logical [layers, replicas]. bound: the max/mean of GPUs to reach; 0: what
    `rebalance_experts` reaches. A layer within threshold stays as it is."""
    slots, (rows, replicas), _ = _rows(current, "i", "current")
    loads, shape, kind = _taken(weight, replicas, num_groups, num_nodes, num_gpus)
    if rows != shape.layers:
        raise _c.Error(f"current has {rows} layers, weight has {shape.layers}")
    desk = _Desk(shape)
    _c.call("dp_eplb_update", c.byref(shape), c.byref(_options(policy, distinct, search_steps, seed)),
            c.byref(_c.EplbUpdateOptions(bound=bound, threshold=threshold)), loads, slots, c.byref(desk.placement), None,
            *desk.workspace)
    return desk.given(kind)


def balance(weight: Any, physical_to_logical: Any, num_groups: int, num_nodes: int, num_gpus: int) -> Balance:
    """How evenly a placement spreads the loads, replicas of an expert sharing its load equally."""
    slots, (rows, replicas), _ = _rows(physical_to_logical, "i", "physical_to_logical")
    loads, shape, _ = _taken(weight, replicas, num_groups, num_nodes, num_gpus)
    if rows != shape.layers:
        raise _c.Error(f"physical_to_logical has {rows} layers, weight has {shape.layers}")
    found = _c.EplbBalance()
    _c.call("dp_eplb_measure", c.byref(shape), loads, slots, c.byref(found), None, None, *_workspace(shape))
    return Balance(found.gpu, found.node, found.gpu_worst, found.node_worst)


def _options(policy: str, distinct: bool, search_steps: int, seed: int) -> _c.EplbOptions:
    if policy not in _POLICIES:
        raise _c.Error(f'policy "{policy}": "auto", "hierarchical" or "global" is required')
    return _c.EplbOptions(policy=_POLICIES[policy], distinct=distinct, search_steps=search_steps, seed=seed)


def _workspace(shape: _c.EplbShape) -> Tuple[Any, c.c_size_t]:
    count = c.c_size_t()
    _c.call("dp_eplb_workspace_bytes", c.byref(shape), c.byref(count))
    return (c.c_char * count.value)(), count


class _Desk:
    """Room for an answer."""

    def __init__(self, shape: _c.EplbShape):
        self.workspace = _workspace(shape)
        self.shape = shape
        rows = _c.lib.dp_eplb_most_replicas(c.byref(shape))
        self.slots = (c.c_int32 * (shape.layers * shape.replicas))()
        self.counts = (c.c_int32 * (shape.layers * shape.experts))()
        self.lists = (c.c_int32 * (shape.layers * shape.experts * rows))()
        self.placement = _c.EplbPlacement(physical_to_logical=self.slots, expert_count=self.counts,
                                          logical_to_physical=self.lists)

    def given(self, kind: Optional[str]) -> Tuple[Any, Any, Any]:
        layers, experts, most = self.shape.layers, self.shape.experts, self.placement.max_count
        return (_shaped(self.slots, (layers, self.shape.replicas), kind),
                _shaped(self.lists, (layers, experts, most), kind),
                _shaped(self.counts, (layers, experts), kind))


def _taken(weight: Any, replicas: int, groups: int, nodes: int, gpus: int) -> Tuple[Any, _c.EplbShape, Optional[str]]:
    loads, (layers, experts), kind = _rows(weight, "f", "weight")
    return loads, _c.EplbShape(layers=layers, experts=experts, replicas=replicas, groups=groups, nodes=nodes,
                               gpus=gpus), kind


def _beyond(rows: Any) -> bool:
    return bool(((rows < 0) | (rows > 2**31 - 1)).any())


def _rows(rows: Any, code: str, what: str) -> Tuple[Any, Tuple[int, ...], Optional[str]]:
    """A matrix as a C array of float ("f") or int32 ("i"), its sizes, and which library it is of."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    number: Any = c.c_float if code == "f" else c.c_int32
    flat: Any
    kind: Optional[str]
    sizes: Tuple[int, ...]
    if torch is not None and isinstance(rows, torch.Tensor):
        if code == "i" and (rows.is_floating_point() or rows.is_complex() or _beyond(rows)):
            raise _c.Error(f"{what}: whole numbers from 0 to {2**31 - 1} are expected")
        flat = rows.detach().to("cpu", torch.float32 if code == "f" else torch.int32).contiguous()
        kind, sizes, address = "torch", tuple(flat.shape), flat.data_ptr()
    elif numpy is not None and isinstance(rows, numpy.ndarray):
        if code == "i" and (rows.dtype.kind not in "iu" or _beyond(rows)):
            raise _c.Error(f"{what}: whole numbers from 0 to {2**31 - 1} are expected")
        flat = numpy.ascontiguousarray(rows, dtype=numpy.float32 if code == "f" else numpy.int32)
        kind, sizes, address = "numpy", flat.shape, flat.ctypes.data
    else:
        try:
            lists = [list(row) for row in rows]
            flat = array(code, [value for row in lists for value in row])
        except (TypeError, OverflowError) as error:
            raise _c.Error(f"{what}: a matrix of numbers is expected ({error})") from None
        if len({len(row) for row in lists}) > 1:
            raise _c.Error(f"{what}: rows of unequal length")
        kind, sizes, address = None, (len(lists), len(lists[0]) if lists else 0), flat.buffer_info()[0]
    if len(sizes) != 2:
        raise _c.Error(f"{what} has {len(sizes)} dimensions: [layers, {'experts' if code == 'f' else 'replicas'}] is expected")
    taken = (number * (sizes[0] * sizes[1]))()
    c.memmove(taken, address, c.sizeof(taken))
    return taken, sizes, kind


def _shaped(numbers: Any, sizes: Tuple[int, ...], kind: Optional[str]) -> Any:
    count = 1
    for size in sizes:
        count *= size
    if kind is not None:
        numpy_or_torch = sys.modules[kind]
        flat: Any = numpy_or_torch.frombuffer(numbers, dtype=numpy_or_torch.int32, count=count).reshape(sizes)
        return flat.to(numpy_or_torch.int64) if kind == "torch" else flat.astype(numpy_or_torch.int64)
    flat = numbers[:count]
    for size in reversed(sizes[1:]):
        flat = [flat[at:at + size] for at in range(0, len(flat), size)]
    return flat
