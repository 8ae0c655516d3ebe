# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
import json
import xml.etree.ElementTree

import pytest

import libdualpipe
from libdualpipe import Costs, Error, Topology

LAYER = dict(attention=(1, 1, 1), dispatch=(0.5, 0.5, 0), mlp=(1, 1, 1), combine=(0.5, 0.5, 0))


def test_operations_have_start_and_end():
    simulation = libdualpipe.schedule("1f1b", 2, 3).simulate(Costs(hop=0.5))
    first, *others = simulation.operations()
    assert (first.rank, first.operation, first.microbatch, first.start, first.end) == (0, "F", 0, 0.0, 1.0)
    assert [o.operation for o in others if o.rank == 1] == ["F", "B", "F", "B", "F", "B"]
    assert max(o.end for o in others) == simulation.step_time
    for rank in range(2):
        busy = sum(o.end - o.start for o in simulation.operations() if o.rank == rank)
        assert busy + simulation.bubble[rank] == pytest.approx(simulation.step_time)
    assert {s.kind for s in simulation.spans()} >= {"compute", "send"}


def test_by_segments_where_costs_have_them():
    costs = Costs.of_layers(2, hop=0.1, **LAYER)
    schedule = libdualpipe.schedule("dualpipe", 4, 8)
    by_segments, by_operations = schedule.simulate(costs), schedule.simulate(costs, lanes=False)
    assert by_segments.step_time != by_operations.step_time
    assert by_operations.step_time == schedule.simulate(costs.by_operations()).step_time
    assert {s.segment for s in by_segments.spans()} >= {"attention", "dispatch", "mlp", "combine"}
    assert len(by_segments.operations()) == 4 * 8 * 3  # F, I and W
    with pytest.raises(Error, match="lanes need costs of segments"):
        schedule.simulate(Costs(), lanes=True)
    planned = libdualpipe.plan_overlap(libdualpipe.schedule("1f1b", 4, 8), costs)
    assert planned.bound <= planned.step_time < libdualpipe.schedule("1f1b", 4, 8).simulate(costs).step_time
    assert planned.schedule.simulate(costs).step_time == pytest.approx(planned.step_time)


def test_pictures_and_traces(tmp_path):
    simulation = libdualpipe.schedule("zbv", 4, 8).simulate()
    picture = xml.etree.ElementTree.fromstring(simulation._repr_svg_())
    assert len([e for e in picture if e.tag.endswith("rect")]) == len(simulation.operations())
    simulation.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(e["ph"] == "X" and e["name"].startswith("F") for e in events) >= 4 * 16
    assert libdualpipe.trace_costs(tmp_path / "trace.json").count("F=") >= 1


def test_ranks_links_and_recomputation_count():
    schedule = libdualpipe.schedule("1f1b", 4, 8)
    plain = schedule.simulate(Costs(hop=0.1)).step_time
    assert schedule.simulate(Costs(hop=0.1, rank_scale=[1, 1, 2, 1])).step_time > plain
    with pytest.raises(Error, match="rank_scale has 3 numbers for 4 ranks"):
        schedule.simulate(Costs(rank_scale=[1, 1, 1]))
    one, two = ([0, 0, 0, 0], [0, 0, 1, 1])
    near, far = (schedule.simulate(Costs(topology=Topology(hosts, near_hop=0.1, far_hop=3))).step_time for hosts in (one, two))
    assert near == pytest.approx(plain) and far > near + 3
    with pytest.raises(Error, match="ranks"):
        schedule.simulate(Costs(topology=Topology([0, 1])))
    assert schedule.simulate(Costs().recomputing("full")).step_time == schedule.simulate(Costs(r=1)).step_time
    costs = Costs.of_layers(1, **LAYER)
    steps = [schedule.simulate(costs.recomputing(level)).step_time for level in ("none", "cheap", "mlp", "full")]
    assert steps == pytest.approx([79.5, 79.5, 79.5, 90.5])  # of dualpipe simulate --recompute: an MLP's R hides
    with pytest.raises(Error, match="segments"):
        Costs().recomputing("mlp")


def test_bytes_and_overlap_in_a_comparison():
    rows = libdualpipe.compare(4, 8, activation_bytes=1e9, weight_bytes=4e9, memory=9.5e9)
    for row in rows:
        if row.simulation:
            copies = 2 if row.method.placement == "bidirectional" else 1
            assert row.bytes == max(row.simulation.peak_activations) * 1e9 + copies * 4e9 <= 9.5e9
    assert any("takes 12.11 GiB" in row.reason for row in rows if row.method.name == "dualpipe")
    gains = {row.method.name: row.gain for row in rows if row.gain is not None}
    assert gains["1f1b"] == 0 and gains["zbv"] > 0
    costs = Costs.of_layers(1, **LAYER)
    best = {how: libdualpipe.compare(4, 8, costs, overlap=how)[0].simulation.step_time for how in ("none", "canonical")}
    assert best["canonical"] < best["none"]
    with pytest.raises(Error, match="overlap"):
        libdualpipe.compare(4, 8, overlap="some")


def test_search_keeps_to_placements_and_bytes():
    found = libdualpipe.search(4, 8, seconds=0.2, placements=["line"], weights=1)
    assert found.schedule.placement == "line"
    with pytest.raises(Error, match="placement"):
        libdualpipe.search(4, 8, placements=["ring"])
    found = libdualpipe.search(4, 8, seconds=0.2, memory_cap=7e9, activation_bytes=1e9, weight_bytes=4e9)
    assert max(found.schedule.simulate().peak_activations) <= 3


@pytest.mark.parametrize("bad", [2**32 + 4, -2**40, 0.9, "4", None])
def test_integers_are_never_cut(bad):
    for call in (lambda: libdualpipe.schedule("1f1b", bad, 8), lambda: libdualpipe.schedule("1f1b", 4, bad),
                 lambda: libdualpipe.schedule("interleaved", 4, 8, bad), lambda: libdualpipe.search(bad, 8, seconds=0.1),
                 lambda: libdualpipe.schedule("1f1b", 4, 8).verify(slots=bad), lambda: libdualpipe.compare(bad, 8)):
        with pytest.raises(Error):
            call()
