# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
import os
from pathlib import Path

import pytest

from libdualpipe import Error, eplb

numpy = pytest.importorskip("numpy")
DATA = Path(os.environ.get("DP_TEST_DATA", Path(__file__).parents[2] / "tests" / "data")) / "eplb"


class Case:
    """A recorded answer of the published code; DATA/README.md has the format."""

    def __init__(self, path):
        words = iter(path.read_text().split())
        assert [next(words), next(words)] == ["EPLB", "1"]
        keys = "name layers logical replicas groups nodes gpus policy integer maxcnt".split()
        fields = {}
        for key in keys:
            assert next(words) == key
            fields[key] = next(words)
        self.layers, self.experts, self.replicas, self.groups, self.nodes, self.gpus, self.most = (
            int(fields[k]) for k in "layers logical replicas groups nodes gpus maxcnt".split())
        for word in words:
            if word == "weights":
                break
        number = int if fields["integer"] == "1" else float
        self.loads = numpy.array([number(next(words)) for _ in range(self.layers * self.experts)]).reshape(
            self.layers, self.experts)
        assert next(words) == "phy2log"
        self.slots = self.ints(words, (self.layers, self.replicas))
        assert next(words) == "logcnt"
        self.counts = self.ints(words, (self.layers, self.experts))
        assert next(words) == "log2phy"
        self.lists = numpy.full((self.layers, self.experts, self.most), -1, dtype=numpy.int64)
        for layer in range(self.layers):
            for expert in range(self.experts):
                for k in range(self.counts[layer, expert]):
                    self.lists[layer, expert, k] = int(next(words))

    @staticmethod
    def ints(words, sizes):
        count = numpy.prod(sizes)
        return numpy.array([int(next(words)) for _ in range(count)], dtype=numpy.int64).reshape(sizes)

    def sizes(self):
        return self.replicas, self.groups, self.nodes, self.gpus


@pytest.mark.parametrize("path", sorted((DATA / "stable").glob("*.txt")) or [None], ids=lambda path: path and path.stem)
def test_answers_are_those_of_the_published_code(path):
    if path is None:
        pytest.skip(f"no recorded answers in {DATA}")
    case = Case(path)
    slots, lists, counts = eplb.rebalance_experts(case.loads, *case.sizes())
    for mine, theirs in ((slots, case.slots), (lists, case.lists), (counts, case.counts)):
        assert mine.dtype == numpy.int64 and mine.shape == theirs.shape
        assert (mine == theirs).all()


LOADS = [[90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27]]


def test_lists_arrays_and_tensors_get_answers_of_their_kind():
    lists = eplb.rebalance_experts(LOADS, 16, 4, 2, 8)
    assert isinstance(lists[0], list) and isinstance(lists[1][0][0], list)
    for dtype in (numpy.int64, numpy.float32, numpy.float64, numpy.int32):
        arrays = eplb.rebalance_experts(numpy.array(LOADS, dtype=dtype), 16, 4, 2, 8)
        assert [a.tolist() for a in arrays] == list(lists)
    transposed = numpy.asfortranarray(numpy.array(LOADS))
    assert eplb.rebalance_experts(transposed, 16, 4, 2, 8)[0].tolist() == lists[0]
    torch = pytest.importorskip("torch")
    for dtype in (torch.int64, torch.float32, torch.float64):
        tensors = eplb.rebalance_experts(torch.tensor(LOADS, dtype=dtype), 16, 4, 2, 8)
        assert all(t.dtype == torch.int64 for t in tensors)
        assert [t.tolist() for t in tensors] == list(lists)


def test_options():
    loads = numpy.random.default_rng(1).pareto(1.0, (3, 32)) + 0.01
    plain = eplb.rebalance_experts(loads, 40, 4, 2, 10)
    better = eplb.rebalance_experts(loads, 40, 4, 2, 10, search_steps=2000, policy="global")
    assert eplb.balance(loads, better[0], 4, 2, 10).gpu <= eplb.balance(loads, plain[0], 4, 2, 10).gpu + 1e-12
    distinct = eplb.rebalance_experts(loads, 40, 4, 2, 10, distinct=True, policy="global")[0]
    for row in distinct.reshape(3, 10, 4):
        assert all(len(set(gpu.tolist())) == 4 for gpu in row)
    with pytest.raises(ValueError, match="policy"):
        eplb.rebalance_experts(loads, 40, 4, 2, 10, policy="best")


def test_an_update_moves_few():
    rng = numpy.random.default_rng(2)
    before = rng.pareto(1.5, (4, 32)) + 0.01
    after = before * rng.uniform(0.9, 1.1, before.shape)
    current = eplb.rebalance_experts(before, 40, 4, 2, 10)[0]
    fresh = eplb.rebalance_experts(after, 40, 4, 2, 10)[0]
    slots, lists, counts = eplb.update_experts(after, current, 4, 2, 10)
    assert (slots != current).sum() <= (fresh != current).sum()
    assert eplb.balance(after, slots, 4, 2, 10).gpu <= eplb.balance(after, fresh, 4, 2, 10).gpu + 1e-9
    assert (counts.sum(axis=1) == 40).all() and ((lists >= 0).sum(axis=(1, 2)) == 40).all()
    kept = eplb.update_experts(after, current, 4, 2, 10, bound=100.0)[0]
    assert (kept == current).all()
    with pytest.raises(ValueError, match="layers"):
        eplb.update_experts(after, current[:2], 4, 2, 10)


@pytest.mark.parametrize("loads, sizes", [
    (numpy.full((1, 8), -1.0), (8, 1, 1, 2)), (numpy.full((1, 8), numpy.nan), (8, 1, 1, 2)),
    (numpy.ones((1, 8)), (4, 1, 1, 2)), (numpy.ones((1, 8)), (8, 1, 0, 2)), (numpy.ones(8), (8, 1, 1, 2)),
    (numpy.ones((0, 8)), (8, 1, 1, 2)), ([[1, 2], [3]], (4, 1, 1, 1)), ([["a"]], (1, 1, 1, 1)), (7, (1, 1, 1, 1))])
def test_what_cannot_be_is_refused(loads, sizes):
    with pytest.raises(ValueError) as caught:
        eplb.rebalance_experts(loads, *sizes)
    assert len(str(caught.value)) > 10


def test_integers_are_never_cut():
    for at in range(4):
        sizes = [4, 1, 1, 4]
        sizes[at] += 2**32
        with pytest.raises(Error):
            eplb.rebalance_experts([[1, 2, 3, 4]], *sizes)
    for placement in ([[2**32, 1, 2, 3]], [[0.9, 1, 2, 3]], [[-1, 1, 2, 3]]):
        for taken in (placement, numpy.array(placement)):
            with pytest.raises(Error):
                eplb.balance([[1, 2, 3, 4]], taken, 1, 1, 4)
