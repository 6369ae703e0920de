"""Four pipelines as somebody writes them who has read the documentation alone (``outside/``), and the mistakes
such people make: each is named with the line it is about and with what mends it, or the wrong result tells."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.reduction import column_sums
from numba_deform.engines import faults
from numba_deform.measure import timeline

PROGRAMS = Path(__file__).parent / "outside"
SMALL = {"flash": {"stages": 1, "steps": 1}, "splitk": {"stages": 1, "steps": 2},
         "halo": {"blocks": 1, "down": 1, "across": 1}, "gather": {"stages": 2, "steps": 2}}  # fmt: skip
MANY = {"splitk": {"steps": 6}}  # steps enough for a mistake to show


def launch(name, old="", new="", folder=PROGRAMS, **parameters):
    """The Launch of a program, with ``new`` in place of ``old``."""
    text = (PROGRAMS / f"{name}.py").read_text()
    assert old in text
    path = folder / f"{name}.py"
    if old:
        path.write_text(text.replace(old, new))
    spec = importlib.util.spec_from_file_location(f"outside_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)(**parameters)


@pytest.mark.parametrize("name", SMALL)
def test_is_right(name):
    nd.simulate(launch(name), schedules=2, landing="random")


@pytest.mark.full
@pytest.mark.parametrize("name", SMALL)
def test_in_every_order(name):
    nd.explore(launch(name, **SMALL[name]), limit=4)


MET = "                cuda.syncwarp()\n"
ACQUIRED = "                ring.acquire(state)\n"
ANNOUNCED = "                if lane == 0:\n                    ring.expect(state, ROWS * ROW)\n"


@pytest.mark.parametrize("landing", ["late", "random", "earliest"])
def test_lanes_that_only_wait_beside_the_one_that_loads(landing, tmp_path):
    """All lanes wait for an empty stage and meet behind the announcement: the copies come after all of their
    waits, and so does the stage's next phase, by way of the full barrier."""
    beside = launch("gather", MET + ANNOUNCED, ANNOUNCED, tmp_path, steps=9)
    nd.simulate(beside, schedules=6, landing=landing)


def test_lanes_that_meet_too_early(tmp_path):
    """They meet before they wait: what the loading lanes issue does not come after the others' waits."""
    alone = launch("gather", ACQUIRED + MET + ANNOUNCED + MET, MET + ACQUIRED + ANNOUNCED, tmp_path, steps=9)
    with pytest.raises(faults.MissedPhase) as caught:
        nd.simulate(alone, schedules=6)
    assert caught.value.source == "ring.acquire(state)"
    assert "let this thread meet it (syncwarp, syncthreads) after its wait" in str(caught.value)


TICKET = "                    ticket[state.stage] = tile\n"
ARRIVALS = """                    if tile < n:
                        ring.expect(state, shared.box.box_bytes)
                        y, x = H * (tile // across) - 1, W * (tile % across) - 4
                        nd.cp_async_bulk_tensor_2d(shared.box.at(state.stage), x_map, x, y, ring.full(state))
                    else:
                        nd.mbarrier_arrive(ring.full(state))
                        going = False
"""
INIT = "        shared.init()\n        nd.cluster_arrive()\n        nd.cluster_wait()\n"
ADD = "p.add(sums, shared.a.at(state.stage), shared.b.at(state.stage), 1)"
WAIT_READ = "                if nd.lane() == 0:\n                    nd.cp_async_bulk_wait_group_read(0)\n"
RELEASE = "                if nd.lane() == 0:\n                    ring.release(state)\n"
ARRIVE = "                if nd.lane() == 0:\n                    nd.mbarrier_arrive(ring.empty(state))\n"
SCORES = "                p.wait(scores, 0)\n"
# (program, kind of mistake, the right text, the wrong one, the fault, part of the line it names or "" for a
# wrong result, words of the cure or of what is said about the result)
MISTAKES = [
    ("flash", "twice the bytes", "keys.expect(ks, shared.k", "keys.expect(ks, 2 * shared.k", "MissingBytes",
     "keys.wait(ks)", r"16384 bytes are announced .*at flash.py:33.* brought 8192\. Announce 8192"),
    ("flash", "half the bytes", "values.expect(vs, shared.v.box_bytes)",
     "values.expect(vs, shared.v.box_bytes // 2)", "MoreBytesThanExpected", "values.expect",
     "Announce 8192 bytes"),
    ("flash", "wrong parity", "q_full.wait(0)", "q_full.wait(1)", "FreshBarrierPassed", "p.add(scores",
     "parity 0"),
    ("flash", "no bytes announced", "q_full.expect(shared.q.box_bytes)", "q_full.arrive()",
     "MoreBytesThanExpected", "nd.cp_async_bulk_tensor_2d", "Announce 8192 bytes"),
    ("flash", "no expect", "                    values.expect(vs, shared.v.box_bytes)\n", "",
     "MissingArrivals", "values.wait(vs)", r"Announce the 8192 bytes .* and arrive"),
    ("flash", "no wait for the product", SCORES, "", "AccumulatorInFlight", "p.row_max(",
     r"Call p.wait\(scores, 0\), in all threads"),
    ("flash", "released before the product ends", f"{SCORES}                keys.release(ks)\n",
     f"                keys.release(ks)\n{SCORES}", "ReadAfterRelease", "keys.release(ks)",
     r"Call p.wait\(scores, 0\), in all threads of the warpgroup, before the release at flash.py:"),
    ("flash", "no wait for the values", "                values.wait(vs)\n", "", "InFlightRead",
     "p.add_held(", "Wait on the full barrier"),
    ("flash", "one arrival too few expected", "keys=nd.Ring(stages, empty=128)",
     "keys=nd.Ring(stages, empty=127)", "TooManyArrivals", "keys.release", "number of arrivals"),
    ("flash", "one arrival too many expected", "values=nd.Ring(stages, empty=128)",
     "values=nd.Ring(stages, empty=129)", "MissingArrivals", "values.acquire", "Initialise it for 128"),
    ("flash", "no swizzle", "TensorMap.of(x, part)]", "TensorMap.of(x, (64, 64))]", "WrongResult", "",
     "k_map has swizzle='none', and k, which it fills at flash.py:34, swizzle='128B'"),
    ("flash", "coordinates in the wrong order", "k_map, 0, 64 * step,", "k_map, 64 * step, 0,", "WrongResult",
     "", r"2 of 3 loads by k_map at flash.py:34 lie outside .* the first at \(64, 0\)"),
    ("flash", "a tile late", "v_map, 0, 64 * step,", "v_map, 0, 64 * (step - 1),", "WrongResult", "",
     r"1 of 3 loads by v_map at flash.py:38 lie outside .* the first at \(0, -64\)"),
    ("flash", "state not advanced", "                vs = values.advance(vs)\n            for",
     "            for", "MissingArrivals", "values.wait", "never waited for use 2. .* state = values.advance"),
    ("flash", "coordinates by tiles", "k_map, 0, 64 * step,", "k_map, 0, step,", "WrongResult", "",
     "2 of 3 loads by k_map at flash.py:34 begin 1 away from the one before along dimension 1, where .* 64"),
    ("flash", "maps exchanged", "[*maps, out", "[maps[1], maps[0], maps[2], out", "WrongResult", "",
     "2 of 3 loads by k_map .* outside .* That of q_map holds them, and this one its loads: are the two exch"),
    ("flash", "a tile too many", "range(steps):\n                    keys.acquire",
     "range(steps + 1):\n                    keys.acquire", "CopyOutlivesBlock", "nd.cp_async_bulk_tensor_2d",
     r"Nobody waits for phase 1 of \w+.full\[1\].*: the last wait, of threads 0-127 .* was for phase 0"),
    ("flash", "a wait for the stage behind", "keys.wait(ks)", "keys.wait(keys.advance(ks))", "InFlightRead",
     "p.add(scores", r"Wait on keys.full\[0\] .* last wait of thread \d+, .*:51, was on keys.full\[1\]"),
    ("flash", "the producer's parity stays 1", "keys.acquire(ks)", "nd.mbarrier_wait(keys.empty(ks), 1)",
     "TooManyArrivals", "keys.expect",
     r"The wait at flash.py:32 has returned again before any phase of keys.empty\[0\] .* Change its parity"),
    ("flash", "the producer's parity begins with 0", "keys.acquire(ks)", "nd.mbarrier_wait(keys.empty(ks), 0)",
     "MissingArrivals", "",
     r"Nobody has arrived on keys.empty\[0\] or keys.full\[0\] yet.* takes parity 1 in the first round"),
    ("flash", "total not scaled", "                    total[h] = total[h] * shrink\n", "", "WrongResult", "",
     "each row is the right one times a factor of its own"),
    ("flash", "no acquire", "                    keys.acquire(ks)\n", "", "TooManyArrivals", "keys.expect",
     r"thread 128 arrived twice in phase 0 (.|\n)*Call keys.acquire\(state\) before keys.expect"),
    ("flash", "one lane releases for its warp", "                keys.release(ks)\n",
     "                if nd.lane() == 0:\n                    keys.release(ks)\n", "MissingArrivals",
     "keys.acquire", r"expects 128 arrivals in each phase, and 4 threads \(threads 0, 32, 64, 96\) can arrive"),
    ("flash", "the producer's state not advanced", "                    ks = keys.advance(ks)\n", "",
     "TooManyArrivals", "keys.expect", "Thread 128 is at use 0 of keys again: .* advance it once a use"),
    ("splitk", "no first meeting of the cluster", INIT, "        shared.init()\n", "BlockNotStarted",
     "nd.st_shared_cluster_b32", "cluster_arrive"),
    ("splitk", "arrives at home", "nd.mapa_shared_cluster(shared.sent.at(), 0)",
     "nd.mapa_shared_cluster(shared.sent.at(), 1)", "MissingArrivals", "shared.sent.wait(0)",
     "Arrive on the barrier of the block that waits"),
    ("splitk", "sends to itself", "nd.mapa_shared_cluster(shared.other.at(0), 0)",
     "nd.mapa_shared_cluster(shared.other.at(0), 1)", "UninitialisedRead", "sums[i] += other",
     r"the same place of block 1 was written at splitk.py:\d+\n[\s\S]* Without mapa_shared_cluster"),
    ("splitk", "no wait for the other block", "                shared.sent.wait(0)\n", "", "DataRace",
     "sums[i] += other", "mbarrier_arrive_cluster"),
    ("splitk", "one lane arrives for its warp", "nd.mbarrier_arrive_cluster(",
     "if nd.lane() == 0: nd.mbarrier_arrive_cluster(", "MissingArrivals", "shared.sent.wait",
     r"expects 128 arrivals in each phase, and 4 threads \(threads 0, 32, 64, 96 of block 1\)"),
    ("splitk", "wrong parity of the other block's arrivals", "shared.sent.wait(0)", "shared.sent.wait(1)",
     "FreshBarrierPassed", "shared.sent.wait", "Phase 0 of sent is over, .* wait with parity 0"),
    ("splitk", "a step too many", "range(rank, steps, 2):\n                ring.wait",
     "range(rank, steps + 2, 2):\n                ring.wait", "MissingArrivals", "ring.wait",
     r"made by thread 128, at splitk.py:\d+ by now, behind the loop, and this is a wait for one more"),
    ("splitk", "both ranks take all of k", "range(rank, steps, 2)", "range(0, steps, 1)", "WrongResult", "",
     "2 times the right numbers"),
    ("splitk", "operands in the wrong order", ADD,
     "p.add(sums, shared.b.at(state.stage), shared.a.at(state.stage), 1)", "WrongResult", "", "is transposed"),
    ("splitk", "sums sent in another order", "there + me +", "there + nd.uint32(508) - me +", "WrongResult", "",
     r"the terms of k = 64 .. 127, 192 .. 255, 320 .. 383 of a_map b_map\^T are there in another order, those"),
    ("splitk", "sums not kept", ADD, ADD.replace(" 1)", " 0)"), "WrongResult", "",
     r"lack the terms of k = 0 \.\. 63, 64 \.\. 127, 128 \.\. 191, 192 \.\. 255 of a_map b_map\^T"),
    ("splitk", "bytes of one operand", "shared.a.box_bytes + shared.b.box_bytes", "shared.a.box_bytes",
     "MoreBytesThanExpected", "ring.expect", "Announce 16384 bytes"),
    ("splitk", "half of the sums sent", "static_range(32):\n                    nd.st",
     "static_range(16):\n                    nd.st", "UninitialisedRead", "sums[i] += other", "loop bound"),
    ("halo", "a column off", "c = nd.lane() + 4", "c = nd.lane() + 3", "WrongResult", "",
     "1 column before them"),
    ("halo", "a row off", "y, x = H * (tile // across) - 1,", "y, x = H * (tile // across),", "WrongResult", "",
     "1 row behind them"),
    ("halo", "ticket read before the wait", "ring.wait(state)\n                tile = ticket[state.stage]\n",
     "tile = ticket[state.stage]\n                ring.wait(state)\n", "DataRace", "tile = ticket[",
     "an mbarrier: arrive after the one, wait before the other"),
    ("halo", "no syncwarp before the release", f"                cuda.syncwarp()\n{RELEASE}", RELEASE,
     "DataRace", "ticket[state.stage] = tile",
     r"Put cuda.syncwarp\(\) before the arrival of thread \d+ at halo.py:57, which speaks for its whole"),
    ("halo", "ticket behind the arrival", f"{TICKET}{ARRIVALS}", f"{ARRIVALS}{TICKET}", "DataRace",
     "tile = ticket[", "If the write is what the wait is for, let it come before the arrival at halo.py:3"),
    ("halo", "ticket before the stage is empty", f"                    ring.acquire(state)\n{TICKET}",
     f"{TICKET}                    ring.acquire(state)\n", "DataRace", "tile = ticket[",
     r"for the next use of the stage, let it come after a wait until that is empty \(acquire of a"),
    ("halo", "all lanes release", RELEASE, "                ring.release(state)\n", "TooManyArrivals",
     "ring.release", "4 expected, and threads .* arrive; .*: .*(32|64|96|128) if all of .* number of arrivals"),
    ("halo", "released twice", RELEASE, 2 * RELEASE, "TooManyArrivals", "ring.release",
     r"twice in phase 0 of ring.empty\[0\], at halo.py:58 and at halo.py:60(.|\n)*one of the two arrivals"),
    ("halo", "no release", RELEASE, "", "MissingArrivals", "ring.acquire",
     r"Nobody arrives on ring.empty\[0\] after reading a stage: ring.release\(state\) is missing"),
    ("halo", "no arrival at the end", "                        nd.mbarrier_arrive(ring.full(state))\n", "",
     "MissingArrivals", "ring.wait", "arrive once more, to tell who waits that there is no more"),
    ("halo", "tiles in the wrong order", "H * (tile // across), W * (tile % across)\n",
     "H * (tile % across), W * (tile // across)\n", "OutOfRange", "out[y + r, x + nd.lane()]", "index"),
    ("halo", "an array without the rim", "box=part,",
     "box=nd.Array((2, H, W + 8), nd.float32, alignment=128),", "OutOfRange", "nd.cp_async_bulk_tensor_2d",
     r"Make the boxes of box as large as that of the map: 1600 bytes, and not 1280"),
    ("halo", "a map without the rim", "TensorMap.of(x, part)", "TensorMap.of(x, (W + 8, H))", "MissingBytes",
     "ring.wait", r"brought 1280\. Announce 1280, or issue"),
    ("halo", "the place behind the map", "(shared.box.at(state.stage), x_map, x", "(x_map, shared.box.at(0), x",
     "BadTensorMap", "nd.cp_async_bulk",
     r"address of box\[0, 0, 0\]\n[^?]*Are the arguments in order\? A load"),
    ("halo", "a coordinate for the place", "(shared.box.at(state.stage), x_map, x", "(nd.u32(16), x_map, x",
     "Misaligned", "nd.cp_async_bulk_tensor_2d",
     r"in no array of this block: are the arguments in order, \(dst, map, coordinates, bar\)"),
    ("halo", "the array in place of its map", "args = [maps,", "args = [x,", "BadTensorMap",
     "nd.fence_proxy_tensormap", r"Give a map of it, nd.TensorMapArray\(\[nd.TensorMap.of\(x_map, box\)"),
    ("halo", "two lanes take tickets", "            if nd.lane() == 0:\n                nd.fence",
     "            if nd.lane() < 2:\n                nd.fence", "DataRace", "ticket[state.stage] = tile",
     "let one thread write"),
    ("gather", "no fence", "                nd.fence_proxy_async()\n", "", "MissingProxyFence",
     "nd.cp_async_bulk_store", "fence_proxy_async"),
    ("gather", "no commit", "                    nd.cp_async_bulk_commit_group()\n", "", "DataRace",
     "result[half, r, c]", "cp_async_bulk_commit_group"),
    ("gather", "announced before it is empty", ACQUIRED + MET + ANNOUNCED, ANNOUNCED + ACQUIRED + MET,
     "TooManyArrivals", "ring.expect", r"at gather.py:28 both times(.|\n)*Call ring.acquire\(state\) before"),
    ("gather", "advanced in some steps only", "                state = ring.advance(state)\n            if nd",
     "                if step != 1:\n                    state = ring.advance(state)\n            if nd",
     "UnobservedPhase", "nd.mbarrier_arrive", "is at use 1 of ring again, and the producer at use 4: start"),
    ("gather", "no wait at the end",
     "                nd.cp_async_bulk_wait_group(0)\n", "                pass\n",
     "CopyOutlivesBlock", "nd.cp_async_bulk_store",
     r"Call cp_async_bulk_wait_group\(0\) .* behind the last copy"),
    ("gather", "no wait before reuse", WAIT_READ, "", "DataRace", "result[half, r, c]", "wait_group"),
    ("gather", "another lane waits", WAIT_READ, WAIT_READ.replace("== 0", "== 1"), "DataRace",
     "result[half, r, c]", "in the thread that issued the copy"),
    ("gather", "no syncwarp before the arrival", "nd.fence_proxy_async()\n                cuda.syncwarp()\n",
     "nd.fence_proxy_async()\n", "ReadAfterRelease", "nd.mbarrier_arrive", "syncwarp"),
    ("gather", "a row not fetched", "lane < ROWS:", "lane < ROWS - 1:", "MissingBytes", "ring.wait",
     r"brought 768\. Announce 768, or issue the copies of the other 256"),
    ("gather", "an index late", "index[ROWS * step + lane]", "index[ROWS * max(step - 1, 0) + lane]",
     "WrongResult", "", "4 rows before them"),
    ("gather", "one row for all lanes", "index[ROWS * step + lane]", "index[ROWS * step]", "WrongResult", "",
     r"all bulk loads of a phase at gather.py:36 bring the same bytes, at last those from data\[\d+, 0\] on"),
    ("gather", "elements for all bytes", "shared.ring, 4 * COLS", "shared.ring, COLS", "UninitialisedRead",
     "result[half, r, c]", r"at gather.py:36 brings 64 bytes to tile\[0, 0, 48\], and ends \d+ bytes before"),
    ("gather", "halves swapped", "ROWS * step + 2 * half)", "ROWS * step + 2 * (1 - half))", "WrongResult", "",
     "right numbers in another order"),
    ("gather", "every lane arrives", ARRIVE, ARRIVE.replace("if nd.lane() == 0:\n                    nd", "nd")
     + "                if nd.lane() == 0:\n", "TooManyArrivals", "nd.mbarrier_arrive", "number of arrivals"),
    ("gather", "one place for all lanes", " + nd.uint32(ROW * lane)", "", "CopyCollision",
     "nd.cp_async_bulk_load", "One line issues both: give each thread that comes there a place of its own"),
    ("gather", "elements for bytes", "nd.uint32(ROW * lane)", "nd.uint32(COLS * lane)", "CopyCollision",
     "nd.cp_async_bulk_load", "Let the one begin where the other ends: .* they share 192"),
]  # fmt: skip


@pytest.mark.parametrize("mistake", [
    pytest.param(m, id=f"{m[0]}: {m[1]}", marks=[pytest.mark.full] * (n % 2)) for n, m in enumerate(MISTAKES)
])  # fmt: skip
def test_a_mistake(mistake, tmp_path):
    name, _, old, new, kind, line, words = mistake
    with pytest.raises(getattr(faults, kind)) as caught:
        nd.simulate(launch(name, old, new, tmp_path, **MANY.get(name, {})), landing="random")
    report = str(caught.value)
    assert type(caught.value).__name__ == kind
    assert line in (caught.value.source or "")
    assert not line or str(tmp_path) in caught.value.where  # their own line, and none of the package's
    assert re.search(words, report), report
    if kind == "WrongResult":
        assert re.search(rf"wrote  .*at {name}\.py:\d+", report)


def test_a_wait_that_a_fresh_barrier_lets_pass(tmp_path):
    """Whether it comes before the phase is over is a matter of the schedule, and the fault is not."""
    wrong = launch("splitk", "shared.sent.wait(0)", "shared.sent.wait(1)", tmp_path)
    for seed in range(4):
        with pytest.raises(faults.FreshBarrierPassed, match="parity 0"):
            nd.simulate(wrong, seed=seed, landing="random")


def test_a_parity_that_never_changes(tmp_path):
    """What a reader finds then, the old ticket or a later one, is a matter of the schedule."""
    tile = "\n                tile ="
    old, new = f"ring.wait(state){tile}", f"nd.mbarrier_wait(ring.full(state), 0){tile}"
    wrong, seen = launch("halo", old, new, tmp_path, blocks=1), set()
    for landing in ("late", "random"):
        for seed in range(4):
            with pytest.raises(faults.SimFault) as caught:
                nd.simulate(wrong, seed=seed, landing=landing)
            assert "parity" in caught.value.cure, caught.value
            seen.add((type(caught.value), "again, and what hands this on is phase 1" in caught.value.what))
    assert (faults.StaleWait, True) in seen


def two_maps(exchange, first, rows=1, loads=1):
    """A Launch that loads a box of 16 x 32 and some of 4 x 64, by a map each."""
    shared = nd.Shared(
        tall=nd.Array((1, 16, 32), nd.float32, alignment=128), tall_full=nd.Barrier(),
        flat=nd.Array((rows, 4, 64), nd.float32, alignment=128), flat_full=nd.Barrier(loads),
    )  # fmt: skip

    @nd.kernel(threads=32, shared=shared)
    def two(tall_map: nd.u64, flat_map: nd.u64, first: nd.i32):
        shared.init()
        if nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(tall_map)
            nd.fence_proxy_tensormap_acquire_sys(flat_map)
            for which in range(2):
                if which == first:
                    shared.tall_full.expect(shared.tall.box_bytes)
                    nd.cp_async_bulk_tensor_2d(shared.tall.at(0), tall_map, 0, 0, shared.tall_full.at())
                    shared.tall_full.wait(0)
                else:
                    for row in range(loads):
                        shared.flat_full.expect(shared.flat.box_bytes)
                        nd.cp_async_bulk_tensor_2d(shared.flat.at(row), flat_map, 0, 0, shared.flat_full.at())
                    shared.flat_full.wait(0)

    data = np.ones((64, 64), np.float32)
    maps = [nd.TensorMapArray([nd.TensorMap.of(data, part)]) for part in (shared.tall, shared.flat)]
    return nd.Launch(two, 1, [*(maps[::-1] if exchange else maps), first])


@pytest.mark.parametrize(
    ("kind", "first", "rows", "loads"),
    [("MissingBytes", 0, 1, 1), ("OutOfRange", 1, 1, 1), ("MoreBytesThanExpected", 1, 2, 1),
     ("CopyCollision", 1, 3, 2)],
)  # fmt: skip
def test_exchanged_maps(kind, first, rows, loads):
    nd.simulate(two_maps(False, first, rows, loads))
    with pytest.raises(getattr(faults, kind)) as caught:
        nd.simulate(two_maps(True, first, rows, loads))
    mine, box, array, own, other = ("tall_map", "4 x 64", "tall", "16 x 32", "flat_map")
    if first:
        mine, box, array, own, other = ("flat_map", "16 x 32", "flat", "4 x 64", "tall_map")
    words = rf"{mine} brings boxes of {box} elements at test_outside.py:\d+, and {array}, which they go to, "
    words += rf"has boxes of {own}, as {other} has: are the two maps exchanged\?"
    assert re.match(words, caught.value.cure)


# --- timelines --------------------------------------------------------------------------------------
@pytest.mark.full
def test_a_timeline_has_every_product_and_every_wait(tmp_path):
    made = nd.timeline(launch("flash"), engine="cpu")
    assert made.notes() == [] and len(made.flights) == 7
    by_warp = [[span for span in made.groups() if span.warp == warp] for warp in range(5)]
    assert [len(spans) for spans in by_warp] == [6, 6, 6, 6, 0]  # of three tiles, with keys and with values
    computes = [span for span in made.spans if span.activity == "compute" and span.warp == 0]
    for product, compute in zip(by_warp[0], computes, strict=True):
        assert abs(product.start - compute.start) < 10 and abs(product.end - compute.end) < 10
    assert {span.warp for span in made.barriers if span.ring == "q_full" and span.end > 500} == {0, 1, 2, 3}
    assert made.save(tmp_path / "flash.svg").exists()
    assert "at a barrier" in made.save(tmp_path / "flash.json").read_text()


def test_a_timeline_has_the_barriers_of_no_ring():
    made = nd.timeline(launch("splitk"), engine="cpu")
    last = [span for span in made.barriers if span.start > 0]
    assert {(span.warp, span.ring) for span in last} >= {(warp, "sent") for warp in range(4)}
    [loader] = [span for span in last if span.warp == 4]  # all of its lanes, from the last issue on
    issued = [span.end for span in made.spans if span.warp == 4]
    assert loader.ring == "the cluster's barrier" and loader.start >= max(issued)
    named = nd.timeline(column_sums(), engine="cpu").barriers
    assert {span.warp for span in named if span.ring == "named barrier 1"} == {0, 1, 2, 3}


@pytest.mark.parametrize("by_hand", [0, 1])
def test_a_timeline_of_a_ping_pong(by_hand):
    """Every flight ends where the group whose turn it is first sees that use of the stage, and no copy lands
    later; a stage that is given back by hand is no longer computed on."""
    stages, steps, tiles = 3, 2, 4
    made = launch("pingpong", stages=stages, steps=steps, tiles=tiles, by_hand=by_hand)
    made = nd.timeline(made, engine="cpu")
    flights = sorted(made.flights, key=lambda flight: flight.use)
    assert len(flights) == steps * tiles and made.notes() == []
    turns = [iter([use for use in range(steps * tiles) if use // steps % 2 == group]) for group in range(2)]
    seen = {}
    for group, uses in enumerate(turns):
        computes = [[s.start for s in made.spans if s.warp == warp and s.activity == "compute"]
                    for warp in range(4 * group, 4 * group + 4)]  # fmt: skip
        seen |= dict(zip(uses, map(min, *computes), strict=True))
    for use, flight in enumerate(flights):
        barrier, lap = f"ring.full[{use % stages}]", use // stages
        landed = [copy.end for copy in made.copies if (copy.barrier, copy.phase) == (barrier, lap)]
        assert len(landed) == 2 and max(landed) <= flight.end == seen[use]
    for warp in range(8):
        activities = [span.activity for span in made.spans if span.warp == warp]
        assert activities.count("other") + 1 == activities.count("compute")  # of the last nothing tells the end


def test_a_timeline_of_a_split_k_cluster():
    """The sums are drawn in the block where they land, from their copy to its end; stages given back by
    ``arrive`` are no longer computed on."""
    made = nd.timeline(launch("splitk_copied"), engine="cpu", block=[0, 1])
    for block, one in enumerate(made):
        sent = [flight for flight in one.flights if flight.ring != "ring"]
        assert [flight.ring for flight in sent] == ["sent, block 1"] * (block == 0)
        assert len(one.flights) == 3 + len(sent) and one.notes() == []
        activities = [span.activity for span in one.spans if span.warp == 0]
        assert (activities.count("compute"), activities.count("other")) == (3, 2)  # the last has no end
        for flight in sent:
            (copy,) = (copy for copy in one.copies if copy.barrier == "sent")
            assert (flight.start, flight.end) == (copy.start, copy.end) and copy.bytes == 64 * 64 * 4
            waited = [span for span in one.barriers if span.ring == "sent"]
            assert waited and all(0 <= span.end - flight.end < 50 for span in waited if span.warp > 0)
    last = max(flight.end for one in made for flight in one.flights)
    assert all(axes.get_xlim()[1] >= last for axes in timeline.figure(made).axes), "all of it is in the picture"


def test_a_timeline_has_what_other_blocks_multicast():
    for block in range(2):
        made = nd.timeline(multicast(steps=3), engine="cpu", block=block)
        rings = [flight.ring for flight in made.flights]
        assert rings.count("ring") == rings.count(f"ring, block {1 - block}") == 3 and len(rings) == 6
        landed = {copy.end for copy in made.copies if copy.sender != block}
        assert {flight.end for flight in made.flights if flight.ring != "ring"} == landed
