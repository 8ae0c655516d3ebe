# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
import gzip
import json
import os
from pathlib import Path

import pytest

import libdualpipe
from libdualpipe import Costs

DATA = Path(os.environ.get("DP_TEST_DATA", Path(__file__).parents[2] / "tests" / "data"))


def torch_trace(path, pack=open):
    """A forward of 2 ms and a backward of 5 ms, four times each, as torch.distributed.pipelining annotates them."""
    events, at = [], 0
    for number in range(4):
        for kind, length in (("F", 2000), ("B", 5000)):
            events.append({"ph": "X", "cat": "user_annotation", "name": f"PP:0{kind}{number}", "pid": 7, "tid": 7,
                           "ts": at, "dur": length})
            at += length
    with pack(path, "wt") as file:
        json.dump({"traceEvents": events}, file)


@pytest.mark.parametrize("pack", [open, gzip.open])
def test_costs_of_torch_annotations(tmp_path, pack):
    torch_trace(tmp_path / "trace.json", pack)
    costs = Costs.of_trace(tmp_path / "trace.json")
    assert costs.f == pytest.approx(2) and costs.b == pytest.approx(5) and costs.i + costs.w == pytest.approx(5)
    assert libdualpipe.schedule("1f1b", 2, 4).simulate(costs).step_time == pytest.approx(5 * 7)


def test_costs_of_the_published_profile():
    path = DATA / "trace" / "deepseek_v3_train_1f1b.json.gz"
    costs = Costs.of_trace(path)
    assert costs.fb == pytest.approx(129.012)  # of dualpipe trace costs
    assert costs.fb < costs.f + costs.i + costs.w
    assert "LAYERS=4\n" in libdualpipe.trace_costs(path) and "LAYERS=2\n" in libdualpipe.trace_costs(path, layers=2)
    assert "attention.F=4.36" in libdualpipe.trace_costs(path, annotations={"attention.F": r"attn.F"})
    with pytest.raises(ValueError, match="attention.F=REGEX"):
        libdualpipe.trace_costs(path, annotations={"attn": "x"})
    with pytest.raises(ValueError, match="not a regular expression"):
        libdualpipe.trace_costs(path, annotations={"mlp.F": "("})


def test_overlap_of_the_published_profile():
    device, = libdualpipe.trace_overlap(DATA / "trace" / "deepseek_v3_train_1f1b.json.gz")
    assert device.name == "rank 0" and device.span == pytest.approx(129.012)  # of dualpipe trace overlap
    assert device.communication == pytest.approx(113.440)
    assert device.hidden / device.communication == pytest.approx(0.9632, abs=5e-5)
    assert device.computation / device.span == pytest.approx(0.9638, abs=5e-5)
    assert 0 < device.communication_sms < device.computation_sms <= 1


def test_overlap_counts_kernels_of_the_callers_names(tmp_path):
    kernels = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur, "args": {"stream": tid}}
               for name, tid, ts, dur in (("gemm", 7, 0, 3000), ("my_ring", 8, 2000, 4000))]
    (tmp_path / "t.json").write_text(json.dumps(kernels))
    device, = libdualpipe.trace_overlap(tmp_path / "t.json")
    assert (device.span, device.computation, device.communication) == (6.0, 6.0, 0.0)
    assert device.computation_sms is None
    device, = libdualpipe.trace_overlap(tmp_path / "t.json", communication="^my_")
    assert (device.computation, device.communication, device.hidden, device.idle) == (3.0, 4.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="t.json: .*not a regular expression"):
        libdualpipe.trace_overlap(tmp_path / "t.json", communication="(")


def test_overlap_says_what_is_doubtful(tmp_path):
    kernels = [{"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur}
               for name, tid, ts, dur in (("gemm", 7, 0, 3000), ("dispatchKernel", 8, 2000, 4000), ("combineKernel", 8, 6000, 1000),
                                          ("gone", 7, 100, -100))]
    host = [{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5, "dur": -3}]
    (tmp_path / "t.json").write_text(json.dumps(kernels + host))
    device, = libdualpipe.trace_overlap(tmp_path / "t.json")
    assert (device.likely, device.likely_time, device.likely_name) == (2, 5.0, "dispatchKernel")
    assert (device.communication, device.strays, device.broken) == (0.0, 0, 1)
    device, = libdualpipe.trace_overlap(tmp_path / "t.json", communication=["^dispatch", "^combine"])
    assert (device.communication, device.hidden, device.likely, device.likely_name) == (5.0, 1.0, 0, None)


def test_overlap_of_other_devices(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps([{"ph": "X", "cat": "hpu_op", "name": "gemm", "pid": 0, "tid": 7, "ts": 0, "dur": 3000}]))
    with pytest.raises(ValueError, match="none is a record of a device"):
        libdualpipe.trace_overlap(tmp_path / "t.json")
    device, = libdualpipe.trace_overlap(tmp_path / "t.json", devices="hpu_op")
    assert device.computation == 3.0


def test_a_file_of_costs(tmp_path):
    file = tmp_path / "costs.txt"
    file.write_text("# of a run\nF=2\nI=1.5\nW=0.5\nFB=0\nHOP=0.1\nBARRIER=0\nSTAGE_SCALE=0.5,1.5\n")
    assert Costs.read(file) == Costs(2, 1.5, 0.5, None, 0.0, 0.1, barrier=False)
    assert Costs.read(str(file), stage_scale=True).stage_scale == [0.5, 1.5]
    file.write_text("F=x\n")
    with pytest.raises(ValueError, match="costs.txt"):
        Costs.read(file)


def test_what_is_no_trace(tmp_path):
    with pytest.raises(FileNotFoundError):
        libdualpipe.trace_costs(tmp_path / "none.json")
    (tmp_path / "no.json").write_text('{"traceEvents": [')
    with pytest.raises(ValueError, match="no.json: "):
        libdualpipe.trace_costs(tmp_path / "no.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b'{"traceEvents": []}' * 1000)[:40])
    with pytest.raises(libdualpipe.Error, match="cut.json.gz: "):
        libdualpipe.trace_costs(tmp_path / "cut.json.gz")
