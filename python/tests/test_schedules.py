# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
import os
from pathlib import Path

import pytest

import libdualpipe
from libdualpipe import Operation, Schedule

SIZES = {"dualpipe": (4, 8), "interleaved": (4, 8), "interleaved_overlap": (4, 8)}
DATA = Path(os.environ.get("DP_TEST_DATA", Path(__file__).parents[2] / "tests" / "data"))


def made(method):
    ranks, microbatches = SIZES.get(method, (4, 8))
    return libdualpipe.schedule(method, ranks, microbatches)


@pytest.mark.parametrize("method", [m.name for m in libdualpipe.methods()])
def test_every_method_is_proven_and_simulated(method):
    schedule = made(method)
    for transport in ("credits", "bundles"):
        report = schedule.verify(transport)
        assert report.operations > 0 and report.peak_activations > 0 and report.ordered_weights
    simulation = schedule.simulate()
    assert simulation.step_time >= 3 * schedule.microbatches / (2 if schedule.placement == "bidirectional" else 1)
    assert len(simulation.bubble) == len(simulation.peak_activations) == schedule.ranks
    work = {"F": 1, "B": 2, "I": 1, "W": 1, "FB": 3}
    split = schedule.chunks if schedule.placement in ("loop", "v") else 1
    for rank in range(schedule.ranks):
        busy = sum(work[o.kind] for o in schedule.operations(rank)) / split
        assert busy + simulation.bubble[rank] == pytest.approx(simulation.step_time)


@pytest.mark.parametrize("method", [m.name for m in libdualpipe.methods()])
def test_text_and_back(method, tmp_path):
    schedule = made(method)
    tsv = Schedule.parse(schedule.to_tsv(), "tsv")
    assert tsv.method == method
    for name in ("a.csv", "a.tsv"):
        schedule.write(tmp_path / name)
        again = Schedule.read(tmp_path / name)
        assert again.placement == schedule.placement
        assert [again.operations(r) for r in range(again.ranks)] == [schedule.operations(r) for r in range(schedule.ranks)]
    own = Schedule.of(schedule.placement, schedule.microbatches, [schedule.operations(r) for r in range(schedule.ranks)])
    assert own.to_csv() == schedule.to_csv()


def test_what_torch_wrote_is_read():
    files = sorted((DATA / "torch").glob("*.csv"))
    if not files:
        pytest.skip(f"no files in {DATA / 'torch'}")
    for file in files:
        Schedule.read(file).verify()


def test_micro_batches_pass_in_groups():
    # Megatron-LM's table for 2 ranks, 5 micro-batches in groups of 3, 2 chunks
    grouped = libdualpipe.schedule("interleaved", 2, 5, 2, microbatch_group=3)
    forwards = [(op.chunk, op.microbatch) for op in grouped.operations(0) if op.kind == "F"]
    assert forwards == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 3), (1, 4)]
    with pytest.raises(ValueError, match="only interleaved"):
        libdualpipe.schedule("1f1b", 2, 5, microbatch_group=3)


def test_errors_are_the_librarys_sentences(tmp_path):
    with pytest.raises(ValueError, match="dualpipe"):
        libdualpipe.schedule("dualpipe", 3, 8)
    with pytest.raises(ValueError, match="no method"):
        libdualpipe.schedule("nonsense", 4, 8)
    with pytest.raises(ValueError, match="text:1"):
        Schedule.parse("0F0,what\n")
    with pytest.raises(ValueError, match="format"):
        Schedule.parse("0F0", "xml")
    with pytest.raises(ValueError, match="transport"):
        made("1f1b").verify("pigeons")
    with pytest.raises(ValueError, match="rank 4"):
        made("1f1b").operations(4)
    with pytest.raises(OSError):
        Schedule.read(tmp_path / "nowhere.csv")


def test_a_circle_is_refused():
    # each rank waits for what the other computes after it
    a, b = Operation("F", 0, 0), Operation("B", 0, 0)
    with pytest.raises(ValueError, match="B"):
        Schedule.of("line", 1, [[b, a], [a, b]]).verify()


def test_transfers_of_a_csv_are_checked():
    good = "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n"
    assert Schedule.parse(good).verify("bundles").transfers == 4
    with pytest.raises(ValueError):
        Schedule.parse(good.replace("1B0,1SEND_B0", "1SEND_B0,1B0")).verify("bundles")


def test_repr_and_methods():
    assert repr(made("zbv")) == "<libdualpipe.Schedule zbv: 4 ranks, 8 micro-batches, 2 chunks a rank (v)>"
    assert {"dualpipe", "zbv", "1f1b"} <= {m.name for m in libdualpipe.methods()}
    assert libdualpipe.__version__.count(".") == 2
