# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
import pytest

import libdualpipe
from libdualpipe import Costs


def test_the_published_bubbles():
    ranks, microbatches = 4, 12
    f1b1 = libdualpipe.schedule("1f1b", ranks, microbatches).simulate(Costs(f=1, i=1, w=1))
    assert f1b1.step_time == microbatches * 3 + (ranks - 1) * 3  # Narayanan et al. 2021
    assert f1b1.formula_bubble == (ranks - 1) * 3
    dp = libdualpipe.schedule("dualpipe", ranks, microbatches).simulate(Costs(f=1, i=1, w=1, fb=3))
    assert dp.formula_bubble == pytest.approx((ranks / 2 - 1) * (3 + 2 - 3 * 1))  # README of DualPipe


def test_costs_none_zero_and_less():
    schedule = libdualpipe.schedule("1f1b", 2, 4)
    whole = schedule.simulate(Costs(f=1, i=2, w=3)).step_time
    assert schedule.simulate(Costs(f=1, i=2, w=3, b=5)).step_time == whole
    assert schedule.simulate(Costs(f=1, i=2, w=3, b=0)).step_time == 4 + 1
    for bad in (Costs(f=-1), Costs(b=-1), Costs(fb=-0.5), Costs(hop=float("nan"))):
        with pytest.raises(ValueError):
            schedule.simulate(bad)
    assert schedule.simulate(Costs(bytes=10, bandwidth=5)).step_time > schedule.simulate().step_time
    scaled = schedule.simulate(Costs(stage_scale=[1, 2])).step_time
    assert scaled > schedule.simulate().step_time
    with pytest.raises(ValueError, match="3 numbers for 2 stages"):
        schedule.simulate(Costs(stage_scale=[1, 2, 3]))


def test_costs_of_layers_hide_communication():
    costs = Costs.of_layers(2, attention=(1, 1, 1), dispatch=(0.5, 0.5, 0), mlp=(1, 1, 1), combine=(0.5, 0.5, 0), hop=0.1)
    assert costs.f == pytest.approx(2 * 3) and costs.hop == 0.1
    assert costs.fb < costs.f + costs.b
    with pytest.raises(ValueError):
        Costs.of_layers(0, (1, 1, 1), (0, 0, 0), (1, 1, 1), (0, 0, 0))
    with pytest.raises(ValueError, match="three times"):
        Costs.of_layers(1, (1, 1), (0, 0, 0), (1, 1, 1), (0, 0, 0))


def test_compare_sorts_and_says_why_not():
    rows = libdualpipe.compare(4, 8)
    steps = [row.simulation.step_time for row in rows if row.simulation]
    assert steps == sorted(steps) and len(steps) >= 8
    assert {row.method.name for row in rows} == {m.name for m in libdualpipe.methods()}
    odd = libdualpipe.compare(3, 7)
    assert any(row.method.name == "dualpipe" and row.reason and row.schedule is None for row in odd)
    capped = libdualpipe.compare(4, 8, memory_cap=3)
    assert any("the cap is 3" in row.reason for row in capped)
    assert all(max(row.simulation.peak_activations) <= 3 for row in capped if row.simulation)
    with pytest.raises(ValueError, match="stage_scale"):
        libdualpipe.compare(4, 8, Costs(stage_scale=[1] * 4))


def test_search_is_sound_and_can_be_stopped():
    result = libdualpipe.search(4, 8, memory_cap=5, seconds=0.5)
    assert result.step_time <= result.built_in_step_time
    result.schedule.verify()
    again = result.schedule.simulate()
    assert again.step_time == pytest.approx(result.step_time)
    assert max(again.peak_activations) == pytest.approx(result.peak_activations) and result.peak_activations <= 5
    seen = []
    stopped = libdualpipe.search(4, 8, seconds=1e6, progress=lambda elapsed, step: seen.append(elapsed) or True)
    assert len(seen) == 1 and stopped.step_time <= stopped.built_in_step_time

    def fail(elapsed, step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        libdualpipe.search(4, 8, seconds=1e6, progress=fail)


def test_search_cuts_layers_within_the_memory_of_each_rank():
    layers = [1] * 13 + [3]
    result = libdualpipe.search(3, 6, seconds=0.5, layer_costs=layers, chunks=[2], activation_bytes=4, weight_bytes=20,
                                memory_cap=[60, 30, 0])
    parts = [(b - a) * result.schedule.stages / len(layers) for a, b in zip(result.first, result.first[1:])]
    scale = [sum(layers[a:b]) * result.schedule.stages / sum(layers) for a, b in zip(result.first, result.first[1:])]
    assert sum(parts) == pytest.approx(result.schedule.stages) and min(parts) > 0
    again = result.schedule.simulate(Costs(stage_scale=scale))
    assert again.step_time == pytest.approx(result.step_time)
    assert result.candidates[0] == (result.start, result.step_time, result.memory)
    assert [step for _, step, _ in result.candidates] == sorted(step for _, step, _ in result.candidates)
    for bad in (dict(layer_costs=[1, 1]), dict(chunks=[0]), dict(memory_cap=[1, 1]), dict(memory_cap=[1, -1, 1])):
        with pytest.raises(ValueError):
            libdualpipe.search(3, 6, seconds=0.1, **bad)


def test_search_says_what_it_refuses():
    with pytest.raises(ValueError, match="0.1"):
        libdualpipe.search(4, 8, memory_cap=0.1, seconds=0.2)
    for bad in (dict(memory_cap=0), dict(seconds=0), dict(transport="x"), dict(costs=Costs(rank_scale=[1]))):
        with pytest.raises(ValueError):
            libdualpipe.search(2, 4, **bad)
    with pytest.raises(ValueError, match="0 ranks"):
        libdualpipe.search(0, 4)


def test_partition_gives_every_stage_a_layer():
    schedule = libdualpipe.schedule("1f1b", 4, 12)
    layers = [3, 1, 1, 1, 1, 1, 1, 5]
    cut = libdualpipe.partition(layers, schedule)
    assert cut.first[0] == 0 and cut.first[-1] == len(layers)
    assert all(a < b for a, b in zip(cut.first, cut.first[1:]))
    even = [sum(layers[s * 2:s * 2 + 2]) / (sum(layers) / 4) for s in range(4)]
    assert cut.step_time < schedule.simulate(Costs(stage_scale=even)).step_time
    with pytest.raises(ValueError):
        libdualpipe.partition([1, 1], schedule)
