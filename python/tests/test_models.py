# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
import dataclasses
import json
import os
from pathlib import Path

import pytest

import libdualpipe
from libdualpipe import Costs, Error, Gpu, Segments
from libdualpipe.__main__ import main

DATA = Path(os.environ.get("DP_TEST_DATA", Path(__file__).parents[2] / "tests" / "data"))
MIXTRAL = DATA / "models" / "mixtral-8x7b.json"


def test_a_published_model_and_its_layouts():
    found = libdualpipe.plan(MIXTRAL, 64, ep=8)
    assert found.parameters == 46702792704 and found.active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert found.advice.startswith("Take ")
    steps = [layout.step_time for layout in found.layouts if layout.step_time is not None]
    assert all(a <= b * (1 + 1e-6) for a, b in zip(steps, steps[1:])) and len(steps) > 20
    for layout in found.layouts:
        assert layout.tp * layout.pp * layout.dp == 64 and layout.microbatches * layout.dp == 1024
        parts = layout.weights + layout.gradients + layout.optimizer + layout.activations + layout.logits + layout.transfers
        assert parts + 3 * 2**30 == pytest.approx(layout.total)
        assert layout.fits or layout.step_time is None
    same = libdualpipe.plan(json.loads(MIXTRAL.read_text()), 64, ep=8)
    assert same == found


def test_what_is_asked_for_is_kept():
    for layout in libdualpipe.plan(MIXTRAL, 64, "b200", pp=4, ep=8, method="zbv", recompute="mlp").layouts:
        assert (layout.method, layout.pp, layout.ep, layout.recompute) == ("zbv", 4, 8, "mlp")
    assert not any(layout.fits for layout in libdualpipe.plan(MIXTRAL, 64, ep=8, memory=2**30).layouts)
    shared, whole = (libdualpipe.plan(MIXTRAL, 64, pp=4, ep=8, zero=zero).layouts[0] for zero in (True, False))
    assert whole.optimizer > shared.optimizer
    slow = dataclasses.replace(Gpu.named("h100"), products=0.3)
    asked = dict(pp=4, ep=8, method="dualpipe")
    fast, slower, same = (libdualpipe.plan(MIXTRAL, 64, gpu, **asked) for gpu in ("h100", slow, dataclasses.replace(slow, products=0.6)))
    assert slower.layouts[0].step_time > fast.layouts[0].step_time and same == fast


def test_measured_costs_take_the_place_of_estimates():
    asked = dict(pp=4, ep=8, method="dualpipev")
    found = libdualpipe.plan(MIXTRAL, 64, **asked)
    again = libdualpipe.plan(MIXTRAL, 64, costs=found.segments, **asked)
    assert again.layouts[0].step_time == pytest.approx(found.layouts[0].step_time)
    slower = dataclasses.replace(found.segments, attention=[2 * t for t in found.segments.attention])
    assert libdualpipe.plan(MIXTRAL, 64, costs=slower, **asked).layouts[0].step_time > found.layouts[0].step_time
    with pytest.raises(Error, match="give ep"):
        libdualpipe.plan(MIXTRAL, 64, costs=slower)
    with pytest.raises(Error, match="times of segments"):
        libdualpipe.plan(MIXTRAL, 64, costs=Costs(f=2))


def test_refusals():
    for bad, words in ((dict(gpus=0), "0 GPUs"), (dict(gpus=2**32 + 8), "gpus is"), (dict(gpus=8.5), "whole number"),
                       (dict(gpus=8, gpu="h300"), "h300"), (dict(gpus=8, method="none"), "no built-in"),
                       (dict(gpus=8, recompute="some"), "recompute"), (dict(gpus=8, seq=2**40), "sequences")):
        with pytest.raises(Error, match=words):
            libdualpipe.plan(MIXTRAL, **bad)
    with pytest.raises(Error, match="mamba"):
        libdualpipe.plan({"model_type": "mamba"}, 8)
    with pytest.raises(OSError):
        libdualpipe.plan("nowhere.json", 8)


def test_tables():
    found = libdualpipe.plan(MIXTRAL, 64, pp=4)
    assert found._repr_html_().count("<tr>") == 1 + len(found.layouts)
    pandas = pytest.importorskip("pandas")
    frame = found.layouts.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame["pp"].unique()) == [4]


def test_on_a_terminal(capsys, tmp_path):
    assert main(["plan", "--model", str(MIXTRAL), "--gpus", "64", "--pp", "4"]) == 0
    said = capsys.readouterr().out
    assert "46.7 B parameters" in said and "Take " in said
    assert main(["compare", "--ranks", "4", "--microbatches", "8"]) == 0
    assert "dualpipev" in capsys.readouterr().out
    assert main(["plan", "--model", str(MIXTRAL), "--gpus", "0"]) == 2
    assert main(["compare", "--ranks", "4", "--microbatches", "8", "--costs", str(tmp_path / "no.txt")]) == 2
    assert "no.txt" in capsys.readouterr().err
