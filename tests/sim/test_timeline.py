"""Timelines: marks of every pipeline on the CPU engine, their format and their files."""

import json
from itertools import groupby

import numpy as np
import pytest
from helpers import check

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.two_producers import two_producers
from numba_deform.device import marks as device
from numba_deform.engines.gpu import device as host_gpu
from numba_deform.engines.gpu.device import GpuMissing
from numba_deform.kernels.problem import ConfigError
from numba_deform.measure import timeline
from numba_deform.measure.pipelines import counters_task
from numba_deform.measure.systems import plan_operator
from numba_deform.workloads.workload import Workload

FAMILIES = {  # variant, parameters, (warps that issue, warps that compute)
    "tile-cp-async": ({"threads": 64, "stages": 3}, (2, 2)),
    "tma": ({"threads": 64, "stages": 3}, (2, 2)),
    "persistent-prefetch": ({"threads": 64, "stages": 2}, (2, 2)),
    "phase2": ({"producers": 1, "consumers": 2, "stages": 3}, (1, 2)),
    "phase3": ({"producers": 2, "consumers": 1, "stages": 2}, (2, 1)),
}
SMALL = Workload("small", batch=1, levels=((5, 4), (2, 3)), num_query=35, num_heads=1, channels=32,
                 num_points=4, pattern="uniform")  # fmt: skip


def plan(name, **parameters):
    parameters = {**FAMILIES[name][0], "min_blocks": 0, "trace": True, **parameters}
    return plan_operator(SMALL.generate(seed=1), name, "cpu", **parameters)


@pytest.fixture(scope="module", params=FAMILIES)
def recorded(request):
    return request.param, timeline.record(plan(request.param))


def of(made, activity):
    return [span for span in made.spans if span.activity == activity]


def test_every_step_is_there(recorded):
    """As many steps are issued as computed by each warp; spans follow each other without a gap."""
    name, made = recorded
    issuers, computers = FAMILIES[name][1]
    issued = {w: len(list(g)) for w, g in groupby(of(made, "issue"), lambda s: s.warp)}
    computed = {w: len(list(g)) for w, g in groupby(of(made, "compute"), lambda s: s.warp)}
    assert len(issued) == issuers and len(computed) == computers
    assert len(set(computed.values())) == 1
    if name != "tile-cp-async":  # which also marks the empty groups past the end
        assert set(issued.values()) == set(computed.values())
    for _, group in groupby(made.spans, lambda span: span.warp):
        spans = list(group)
        assert all(a.end == b.start for a, b in zip(spans, spans[1:], strict=False))
        assert all(span.start <= span.end for span in spans)
    assert min(span.start for span in made.spans) == 0 and not made.lost


def test_stages_and_parity_go_round(recorded):
    """Use n is of stage n mod S, and its parity flips with every round of the ring."""
    name, made = recorded
    stages = FAMILIES[name][0]["stages"]
    if name == "tile-cp-async":
        pytest.skip("its ring starts anew in every round")
    for activity in ("issue", "wait", "compute"):
        for span in of(made, activity):
            assert (span.stage, span.parity) == (span.use % stages, span.use // stages % 2)


def test_nothing_is_computed_before_it_was_issued(recorded):
    _, made = recorded
    issued = {}
    for span in of(made, "issue"):
        issued[span.use] = min(span.start, issued.get(span.use, span.start))
    for span in of(made, "compute"):
        assert span.start > issued[span.use]
    for flight in made.flights:
        assert flight.end > flight.start and flight.activity == "flight"


def test_every_tile_that_is_computed_was_in_flight(recorded):
    """One flight for each issue that somebody computes, from its end to the first compute of its lap."""
    name, made = recorded
    issued = of(made, "issue")
    if name == "tile-cp-async":  # without the empty groups past the end
        assert len(made.flights) == len(of(made, "compute")) < len(issued)
        return
    assert len(made.flights) == len(issued)
    for span, flight in zip(issued, sorted(made.flights, key=issued_at), strict=True):
        whose = {span.warp} & {s.warp for s in of(made, "compute")} or {s.warp for s in of(made, "compute")}
        lap = [s.start for s in of(made, "compute") if s.use == span.use and s.warp in whose]
        assert (flight.start, flight.end, flight.stage) == (span.end, min(lap), span.stage)


def issued_at(span):
    return span.warp, span.use


@pytest.mark.parametrize("stages, producers", [(3, 2), (2, 2), (1, 2), (2, 3), (3, 4)])
def test_flights_of_producers_in_turn(stages, producers):
    """Tile i is issued by warp i % P into stage i % S; the consumer is a warp of its own, two cycles a tile."""
    tiles, parts = 12, []
    for warp in range(producers):
        part = []
        for i in range(warp, tiles, producers):
            stage, parity, now = i % stages, i // stages % 2, 100 * i
            part += [(now, device.ISSUE, stage, parity), (now + 3, device.COMMIT, stage, parity)]
        parts.append(marks_of(*part, (5000, device.COMMIT, 0, 0)))
    ring = [(i % stages, i // stages % 2) for i in range(tiles)]
    part = [mark for i, at in enumerate(ring) for mark in ((100 * i + 80, device.COMPUTE, *at),
                                                           (100 * i + 82, device.RELEASE, *at))]  # fmt: skip
    made = timeline.decode(np.concatenate([*parts, marks_of(*part)]), "t", "e")
    flights = sorted((f.start, f.end, f.stage, f.warp) for f in made.flights)
    assert flights == [
        (100 * i + 3, 100 * i + 80, i % stages, i % producers) for i in range(tiles)
    ]


def test_a_deeper_ring_waits_less():
    """What the timeline is for: with more stages a warp waits for less of its time."""
    waits = []
    for stages in (1, 4):
        shares = timeline.shares(timeline.record(plan("tma", stages=stages, points_per_stage=1)))
        waits.append(shares[0]["wait"])
    assert waits[1] < waits[0]


def test_window_marks_a_stage_once():
    """A warp waits for an item's windows once, however many of its rows it adds up."""
    consumers, stages = 2, 2
    parameters = dict(consumers=consumers, stages=stages, cell=(1, 1), trace=True)
    made = timeline.record(plan_operator(SMALL.generate(seed=1), "window", "cpu", **parameters))
    issued = of(made, "issue")
    assert len(issued) > stages and {span.warp for span in issued} == {consumers}
    for warp in range(consumers):
        assert sum(span.warp == warp for span in of(made, "compute")) == len(issued)
    for activity in ("acquire", "issue", "wait", "compute"):
        for span in of(made, activity):
            assert (span.stage, span.parity) == (span.use % stages, span.use // stages % 2)
    assert len(made.flights) == len(issued) and all(f.end > f.start for f in made.flights)


@pytest.mark.parametrize(
    "name", [n if n in ("tma", "phase2") else pytest.param(n, marks=pytest.mark.full) for n in FAMILIES]
)
def test_recording_changes_nothing(name):
    """The output of a kernel that writes marks is right, and two recordings are the same."""
    made = plan(name)
    check(made.case.inputs, name, **{**FAMILIES[name][0], "min_blocks": 0, "trace": True})
    assert timeline.record(made).spans == timeline.record(made).spans


def marks_of(*rows):
    made = np.zeros((1, device.CAPACITY, 4), np.uint32)
    for n, (clock, kind, stage, parity) in enumerate(rows):
        made[0, n] = clock & 0xFFFFFFFF, clock >> 32, kind | stage << 8 | parity << 16, 1
    return made


def test_decode():
    """A clock above 2^32, whose lower word wraps on the way."""
    base = (5 << 32) - 10
    made = timeline.decode(
        marks_of((base, device.ISSUE, 2, 1), (base + 4, device.COMMIT, 2, 1),
                 (base + 5, device.WAIT, 2, 1), (base + 30, device.COMPUTE, 2, 1),
                 (base + 41, device.RELEASE, 2, 1)), "t", "e",
    )  # fmt: skip
    assert [(s.activity, s.start, s.end) for s in made.spans] == [
        ("issue", 0, 4), ("prepare", 4, 5), ("wait", 5, 30), ("compute", 30, 41),
    ]  # fmt: skip
    assert all((s.stage, s.parity, s.use) == (2, 1, 0) for s in made.spans)
    (flight,) = made.flights
    assert (flight.start, flight.end, flight.stage) == (4, 30, 2)
    assert timeline.shares(made)[0]["wait"] == 25 / 41


def test_more_marks_than_fit():
    made = timeline.decode(
        marks_of(*((n, device.WAIT, 0, 0) for n in range(device.CAPACITY))), "", ""
    )
    assert made.lost == 1


@pytest.mark.full
def test_files(tmp_path):
    pytest.importorskip("matplotlib")
    made = timeline.record(plan("phase2"))
    for name in ("a.png", "a.svg"):
        assert timeline.save([made, made], tmp_path / name, end=2000).stat().st_size > 5000
    events = json.loads(timeline.save([made], tmp_path / "a.json").read_text())["traceEvents"]
    drawn = [event for event in events if event["ph"] == "X"]
    assert len(drawn) == len(made.spans) + len(made.flights)
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in drawn} <= named
    with pytest.raises(timeline.TimelineError, match="a.txt"):
        timeline.save([made], tmp_path / "a.txt")


def test_refused():
    with pytest.raises(timeline.TimelineError, match="trace=1"):
        timeline.record(plan("tma", trace=False))
    with pytest.raises(timeline.TimelineError, match="block 99"):
        timeline.record(plan("tma"), block=99)
    with pytest.raises(ConfigError, match="one buffer"):
        plan("tma", debug=True)


def test_command(tmp_path, capsys):
    out = tmp_path / "t.json"
    words = ["variant=tma", "threads=64", "min_blocks=0", "engine=cpu", "num_query=8", f"out={out}"]
    assert main(["timeline", *words]) == 0
    text = capsys.readouterr().out
    assert "compute" in text and "virtual cycles" in text and out.exists()
    assert main(["timeline", "variant=direct", "engine=cpu"]) == 2
    assert main(["timeline", *words, "block=0,2"]) == 0
    text, events = capsys.readouterr().out, json.loads(out.read_text())["traceEvents"]
    named = [event["args"]["name"].partition(" (")[0] for event in events if event["name"] == "process_name"]
    assert named == ["tma, block 0", "tma, block 2"] and all(name in text for name in named)
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1}
    assert main(["timeline", *words, "block=0,x"]) == 2


def test_both_engines_without_a_gpu(tmp_path, capsys, monkeypatch):
    """The half that there is is drawn, and why the other is missing is told."""

    def find(number):
        raise GpuMissing("no CUDA GPU can be used: no driver.")

    monkeypatch.setattr(host_gpu, "_find", find)
    out = tmp_path / "t.json"
    words = ["variant=tma", "threads=64", "min_blocks=0", "num_query=2", f"out={out}"]
    assert main(["timeline", *words, "engine=both"]) == 0
    text, events = capsys.readouterr().out, json.loads(out.read_text())["traceEvents"]
    assert "note          only the CPU engine's half: no CUDA GPU can be used: no driver.\n" in text
    assert {event["pid"] for event in events} == {0}
    assert main(["timeline", *words, "engine=gpu"]) == 2
    assert "no driver; engine=cpu needs no GPU" in capsys.readouterr().err


def test_a_variant_that_writes_no_marks(capsys):
    assert main(["timeline", "variant=direct", "engine=cpu"]) == 2
    assert "variant direct has no parameter trace, which makes" in capsys.readouterr().err


# --- launches -------------------------------------------------------------------------------------
@pytest.mark.parametrize("launch, producers", [
    (copy(steps=7), 1), (two_producers(steps=8), 2), (two_producers(steps=13, producers=3, stages=4), 3),
], ids=["copy", "two producers", "three producers"])  # fmt: skip
def test_rings_of_a_launch(launch, producers):
    """Each step is acquired, issued, waited for and computed once; its flight goes from its own issue to its
    own compute, by the lap of the ring that both are in."""
    steps, stages = launch.args[-1], launch.kernel.shared.ring.stages
    made = nd.timeline(launch, engine="cpu", landing="random")
    assert {span.warp for span in of(made, "acquire")} == set(range(producers))
    issued = {producers * span.use + span.warp: span for span in of(made, "issue")}
    computed = {span.use: span for span in of(made, "compute")}
    assert sorted(issued) == sorted(computed) == list(range(steps))
    assert len(of(made, "acquire")) == len(of(made, "wait")) == steps
    for step in range(steps):
        ends = issued[step], computed[step]
        assert {(span.stage, span.parity) for span in ends} == {(step % stages, step // stages % 2)}
    flights = {(f.warp, f.start, f.end, f.stage) for f in made.flights}
    assert flights == {(s.warp, s.end, computed[step].start, s.stage) for step, s in issued.items()}


def test_the_timeline_of_a_kernel_saves_and_draws_itself(tmp_path):
    launch = copy(steps=3)
    made = nd.timeline(launch.kernel, 1, launch.args, engine="cpu")
    assert made.title == "copy, block 0" and "spans" not in repr(made)
    assert made._repr_png_()[:4] == b"\x89PNG" and made.save(tmp_path / "t.json").exists()
    with pytest.raises(timeline.TimelineError, match="block 1 has written nothing"):
        nd.timeline(launch, engine="cpu", block=1)
    with pytest.raises(ValueError, match="a Launch has its own grid"):
        nd.timeline(launch, 1)


def test_profile_counts():
    assert nd.profile(copy(steps=3, stages=2), engine="cpu") == {
        "virtual_cycles": nd.simulate(copy(steps=3, stages=2)).cycles, "tma_copies": 3, "shared_bytes": 8336,
        "blocks": 1, "threads": 64,
    }  # fmt: skip


def test_what_nsight_compute_could_not_make_again():
    with pytest.raises(ValueError, match="copy: Nsight Compute watches another process"):
        counters_task(nd.Launch(copy().kernel, 1, copy().args))
    task = counters_task(copy(stages=2))
    assert (task["pipeline"], task["parameters"]) == ("copy", {"stages": 2})
    assert task["load"][0].endswith("copy.py")
