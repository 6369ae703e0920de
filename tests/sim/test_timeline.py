"""Timelines: marks of every pipeline on the CPU engine, their format and their files."""

import json
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from helpers import check

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.course.pipelines.attention import attention
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.two_producers import two_producers
from numba_deform.device import marks as device
from numba_deform.engines.cpu.memory.cycle_costs import COST
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


@pytest.mark.parametrize("stages, steps", [(2, 1), (3, 2), (3, 4), (4, 8), (3, 9)])
def test_flights_of_consumers_in_turn(stages, steps):
    """Two warps take steps tiles each in turn, of which two others issue halves, tile i into stage i % S as
    soon as it is empty. Neither sees all uses of a stage, and tile 1 nobody computes."""
    tiles, parts = 4 * steps, []
    for warp in range(2):
        part = []
        for i in (i for i in range(tiles) if i // steps % 2 == warp and i != 1):
            part += [(100 * i + 1050, device.COMPUTE, i % stages, i // stages % 2),
                     (100 * i + 1060, device.RELEASE, i % stages, i // stages % 2)]  # fmt: skip
        parts.append(marks_of(*part, (50_000, device.RELEASE, 0, 0)))
    for late in range(2):
        part = [(1000 + late + max(i, 100 * (i - stages) + 61), device.ISSUE, i % stages, i // stages % 2)
                for i in range(tiles)]  # fmt: skip
        parts.append(marks_of(*part, (50_000, device.COMMIT, 0, 0)))
    made = timeline.decode(np.concatenate(parts), "t", "e")
    for warp in 2, 3:
        ends = {flight.use: flight.end + made.began for flight in made.flights if flight.warp == warp}
        assert ends == {i: 100 * i + 1050 for i in range(tiles) if i != 1}
    assert made.undrawn == {"": 2}


def test_a_deeper_ring_waits_less():
    """What the timeline is for: with more stages a warp waits for less of its time."""
    waits = []
    for stages in (1, 4):
        shares = timeline.shares(timeline.record(plan("tma", stages=stages, points_per_stage=1)))
        waits.append(shares[0]["wait"])
    assert waits[1] < waits[0]


@pytest.mark.full
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
    assert len(drawn) == len(made.spans)
    assert sum(event["ph"] == "b" for event in events) == len(made.flights)
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


def rings_of(seed):
    """A Launch by chance: a tile that is loaded once by ``Ring(1, empty=0)``, with no advance after it, and
    tiles through each of two rings, asked for by one warp or two, in pieces; (it, its steps, its pieces)."""
    random = np.random.default_rng(seed)
    steps, pieces, stages = (int(random.integers(*of)) for of in ((1, 6), (1, 4), (1, 4)))
    apart, more = bool(random.integers(2)), int(random.integers(1, 4))
    shared = nd.Shared(
        once=nd.Array(32, nd.float32), tiles=nd.Array((stages, 32 * pieces), nd.float32),
        others=nd.Array((more, 32), nd.float32),
        q=nd.Ring(1, empty=0), k=nd.Ring(stages, empty=32), v=nd.Ring(more, empty=32),
    )  # fmt: skip

    @nd.kernel(threads=96, shared=shared)
    def rings(data: nd.u64, out: nd.float32[:], steps: nd.i32):
        shared.init()
        q, k, v = shared.q, shared.k, shared.v
        first, at_k, at_v = q.start(), k.start(), v.start()
        if nd.warp() == 0 and nd.lane() == 0:
            q.expect(first, 128)
            nd.cp_async_bulk_load(shared.once.at(0), data, 128, q.full(first))
            for _ in range(steps):
                k.acquire(at_k)
                k.expect(at_k, 128 * pieces)
                for piece in range(pieces):
                    there = nd.shared_at(shared.tiles.at(at_k.stage), piece, 128)
                    nd.cp_async_bulk_load(there, data, 128, k.full(at_k))
                at_k = k.advance(at_k)
                if not apart:
                    v.acquire(at_v)
                    v.expect(at_v, 128)
                    nd.cp_async_bulk_load(shared.others.at(at_v.stage), data, 128, v.full(at_v))
                    at_v = v.advance(at_v)
        elif nd.warp() == 1 and nd.lane() == 0 and apart:
            for _ in range(steps):
                v.acquire(at_v)
                v.expect(at_v, 128)
                nd.cp_async_bulk_load(shared.others.at(at_v.stage), data, 128, v.full(at_v))
                at_v = v.advance(at_v)
        elif nd.warp() == 2:
            q.wait(first)
            total = shared.once.view()[nd.lane()]
            for _ in range(steps):
                k.wait(at_k)
                total += shared.tiles.view()[at_k.stage, nd.lane()]
                k.release(at_k)
                v.wait(at_v)
                total += shared.others.view()[at_v.stage, nd.lane()]
                v.release(at_v)
                at_k, at_v = k.advance(at_k), v.advance(at_v)
            out[nd.lane()] = total

    data = np.ones(32, np.float32)
    expected = np.full(32, 1 + 2 * steps, np.float32)
    launch = nd.Launch(rings, 1, [data, np.empty_like(data), steps], expected={"out": expected})
    return launch, steps, pieces


@pytest.mark.parametrize("seed", range(6))
def test_every_copy_of_several_rings_is_in_the_picture(tmp_path, seed):
    """Flights are told apart by ring: one for each use of a stage; and the file has each copy of the engine."""
    launch, steps, pieces = rings_of(seed)
    made = nd.timeline(launch, engine="cpu", schedules=1)
    count = nd.simulate(launch, schedules=1).copies
    assert count == 1 + steps * (pieces + 1) == len(made.copies)
    flights = [f.ring for f in made.flights]
    assert {ring: flights.count(ring) for ring in "qkv"} == {"q": 1, "k": steps, "v": steps}
    assert not made.undrawn and made.notes() == []
    for flight in made.flights:
        (start,) = {s.start for s in of(made, "compute") if (s.ring, s.use) == (flight.ring, flight.use)}
        assert flight.end == start
    events = json.loads(made.save(tmp_path / "t.json").read_text())["traceEvents"]
    opened, closed = ([e["id"] for e in events if e["ph"] == ph and e["cat"] == "copy"] for ph in "be")
    assert len(set(opened)) == count and sorted(opened) == sorted(closed)


def test_what_is_not_drawn_is_said():
    """A tile that nobody computes, and a store that nobody waits for, beside one that somebody does."""
    shared = nd.Shared(tile=nd.Array(32, nd.float32), a=nd.Ring(1, empty=0), b=nd.Ring(1, empty=0))

    @nd.kernel(threads=32, shared=shared)
    def some(data: nd.u64, out: nd.u64):
        shared.init()
        a, b = shared.a, shared.b
        first, other = a.start(), b.start()
        if nd.lane() == 0:
            a.expect(first, 128)
            nd.cp_async_bulk_load(shared.tile.at(0), data, 128, a.full(first))
            a.wait(first)
            nd.cp_async_bulk_store(out, shared.tile.at(0), 128)
            nd.cp_async_bulk_commit_group()
            nd.cp_async_bulk_wait_group(nd.uint32(0))
            b.expect(other, 128)
            nd.cp_async_bulk_load(shared.tile.at(0), data, 128, b.full(other))
            nd.mbarrier_wait(b.full(other), 0)
            nd.cp_async_bulk_store(out, shared.tile.at(0), 128)
            nd.cp_async_bulk_commit_group()

    data = np.ones(32, np.float32)
    launch = nd.Launch(some, 1, [data, np.empty_like(data)])
    with pytest.warns(UserWarning, match="waived store-at-exit: 1 time"):
        made = nd.timeline(launch, engine="cpu", waive="store-at-exit", schedules=1)
    # nobody is known to compute b's tile: its copy is drawn as the engine has it
    assert [flight.ring for flight in made.flights] == ["a", "b"] and made.undrawn == {}
    assert (made.flights[1].start, made.flights[1].end) == (made.copies[1].start, made.copies[1].end)
    assert [event.barrier for event in made.unsignalled] == ["bulk store"] * 2 and len(made.copies) == 2
    assert [note.partition(":")[0] for note in made.notes()] == ["1 x bulk store"]
    (store,) = made.groups()
    assert store.ring == "bulk store" and store.end - store.start > COST.tma_latency


def test_groups_and_waits_at_barriers(tmp_path):
    """A group of cp.async lasts until it has been waited for; a warp waits at a barrier for the other."""
    shared = nd.Shared(tile=nd.Array(128, nd.float32), ring=nd.Ring(1, empty=0))

    @nd.kernel(threads=64, shared=shared)
    def some(data: nd.u64, out: nd.float32[:]):
        shared.init()
        ring, lane = shared.ring, nd.lane()
        use = ring.start()
        if nd.warp() == 0:
            if lane == 0:
                ring.expect(use, 128)
                nd.cp_async_bulk_load(shared.tile.at(0), data, 128, ring.full(use))
            ring.wait(use)
            nd.cp_async_cg_16(shared.tile.at(0) + nd.uint32(16 * lane), data + nd.uint64(16 * lane), 16)
            nd.cp_async_commit_group()
            nd.cp_async_wait_group(nd.uint32(0))
        nd.bar_sync(1, 64)
        thread = 32 * nd.warp() + lane
        out[thread] = nd.shared_array(shared.tile.at(0), (128,), nd.float32)[thread]

    data = np.arange(128, dtype=np.float32)
    launch = nd.Launch(some, 1, [data, np.empty(64, np.float32)], {"out": data[:64]})
    made = nd.timeline(launch, engine="cpu")
    groups = made.groups()
    assert [(group.warp, group.ring) for group in groups] == [(0, "cp.async")] and len(made.unsignalled) == 32
    assert all(group.end > group.start for group in groups) and made.notes() == []
    waits = [span for span in made.barriers if span.ring == "named barrier 1"]
    assert max(waits, key=lambda span: span.end - span.start).warp == 1
    assert {span.end for span in waits} == {max(group.end for group in groups)}
    trace = json.loads(made.save(tmp_path / "t.json").read_text())["traceEvents"]
    assert Counter(e["cat"] for e in trace if e["ph"] == "b") >= Counter({"group": 1, "at a barrier": 1})


def test_two_blocks_of_a_cluster(tmp_path):
    """Drawn from one zero."""
    launch = multicast()
    both = nd.timeline(launch, engine="cpu", block=[0, 1])
    alone = [nd.timeline(launch, engine="cpu", block=number) for number in (0, 1)]
    assert [made.title.rpartition(",")[2] for made in both] == [" block 0", " block 1"]
    assert len({made.began for made in both}) == 1
    for made, one in zip(both, alone, strict=True):
        by = one.began - made.began
        assert [(s.start - by, s.end - by) for s in made.spans] == [(s.start, s.end) for s in one.spans]
    assert min(span.start for made in both for span in made.spans) == 0
    waits = [max(span.end for span in made.barriers if "cluster" in span.ring) for made in both]
    assert abs(waits[0] - waits[1]) < 10  # they leave the cluster's barrier together; each run marks one block
    assert both._repr_png_()[:4] == b"\x89PNG" and both.save(tmp_path / "both.svg").exists()


def test_the_timeline_of_a_kernel_saves_and_draws_itself(tmp_path):
    launch = copy(steps=3)
    made = nd.timeline(launch.kernel, 1, launch.args, engine="cpu")
    assert made.title == "copy, block 0" and "spans" not in repr(made)
    assert made._repr_png_()[:4] == b"\x89PNG" and made.save(tmp_path / "t.json").exists()
    with pytest.raises(timeline.TimelineError, match="block 1 has written nothing"):
        nd.timeline(launch, engine="cpu", block=1)
    with pytest.raises(ValueError, match="a Launch has its own grid"):
        nd.timeline(launch, 1)


def test_what_nsight_compute_could_not_make_again():
    with pytest.raises(ValueError, match="copy: Nsight Compute watches another process"):
        counters_task(nd.Launch(copy().kernel, 1, copy().args))
    task = counters_task(copy(stages=2))
    assert (task["pipeline"], task["parameters"]) == ("copy", {"stages": 2})
    assert task["load"][0].endswith("copy.py")


@pytest.mark.full
def test_every_copy_of_attention_is_drawn():
    """Two rings, and a barrier without one; products are not taken for waits on a ring."""
    made = nd.timeline(attention(by="wgmma", steps=3), engine="cpu")
    assert Counter(flight.ring for flight in made.flights) == {"queries": 1, "keys": 3, "values": 3}
    assert len(made.copies) == 7 and made.undrawn == {}
    assert len(made.unsignalled) == 24 and made.notes() == []
    assert Counter(group.warp for group in made.groups()) == dict.fromkeys(range(4), 6)
