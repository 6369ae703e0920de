"""The model of time, rule by rule, on a few instructions: no compiler, no tools, no clock."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from numba_deform.engines.sass.barriers import Token
from numba_deform.engines.sass.counters import L1
from numba_deform.engines.sass.listing import Instruction, split
from numba_deform.engines.sass.machine import ENOUGH, Machine
from numba_deform.engines.sass.sm import Deadlock, Sm
from numba_deform.engines.sass.sm import play as play_together
from numba_deform.engines.sass.traces import Traced, Traces, Work
from numba_deform.engines.sass.units import HOPPER, SMS, busy
from numba_deform.measure import predict as predicting
from numba_deform.measure.predict import Prediction, predict

C = HOPPER._replace(start=0, handed=0)
ROOT = Path(__file__).parents[2]
EXIT = "EXIT"


def code(*texts):
    """A listing: ``FADD R0, R1, R2 | 4 | 0 | 1 2`` stalls 4 cycles, sets scoreboard 0 and waits for 1 and 2."""
    found = []
    for number, text in enumerate(texts):
        text, stall, sets, waits = [part.strip() for part in f"{text} | | |".split("|")][:4]
        opcode, _, operands = text.partition(" ")
        boards = tuple(int(x) for x in sets.split()) or ()
        boards = (*boards, 7, 7)[:2]
        found.append(Instruction(number, "", opcode, split(operands), (), int(stall or 1), boards,
                                 tuple(int(x) for x in waits.split())))  # fmt: skip
    return found


def work(**fields):
    one = Work()
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def play(listing, *warps, resident=1, far=None, constants=C):
    """The Sm after blocks of these warps' traces; a plain list of traces is one block."""
    blocks = list(warps) if warps and warps[0] and isinstance(warps[0][0], list) else [list(warps)]
    sm = Sm(listing, L1(0), far, constants)
    play_together([sm], [blocks], resident)
    return sm


def waited(sm, reason):
    return sum(cycles for (name, _), cycles in sm.stalls.items() if name == reason)


def token(givers):
    one = Token()
    one.left = givers
    return one


# --- instructions ------------------------------------------------------------------------------------
def test_a_chain_waits_as_the_assembler_says():
    """Mutant: every instruction a cycle after the last."""
    sm = play(code("FADD R0, R0, R1 | 4", EXIT), [0] * 10 + [1])
    assert sm.ends == [40]
    assert waited(sm, "wait") == 30


def test_a_half_unit_takes_every_second_cycle():
    """64 lanes of integers to 128 of floats. Mutants: one rate for all; a unit that all quarters share."""
    fast, slow = code("FADD R0, R0, R1", EXIT), code("IADD3 R0, R0, R1, RZ", EXIT)
    many = [[0] * 10 + [1] for _ in range(2)]
    apart = [many[0], [], [], [], many[1], [], [], []]  # warps 0 and 4: the same quarter
    assert play(fast, *apart).ends == [21]
    assert play(slow, *apart).ends == [39]
    assert play(slow, *many).ends == [20 - 1]
    listing = code("IMAD R0, R1, R2, R3", "IMAD.MOV.U32 R0, RZ, RZ, R1", "MUFU.RCP R0, R1")
    assert [busy(one) for one in listing] == [2, 1, 8]


@pytest.mark.parametrize("warps", [1, 2, 4])
def test_warps_of_small_blocks_are_spread(warps):
    """Eight warps at a time, two to each quarter. Mutant: each block's first warp is of the first quarter."""
    blocks = [[[0] * 10 + [1]] * warps for _ in range(8 // warps)]
    assert max(play(code("FADD R0, R0, R1", EXIT), *blocks, resident=8).ends) == 21


def test_a_tensor_core_takes_512_products_a_cycle():
    mma, group = code("HMMA.16816.F32 R0, R4, R8, R0", "HGMMA.64x64x16.F32 R0, gdesc[UR4], R0")
    assert busy(mma) == 2048 / 512
    assert busy(group) == 16 * 64 * 16 / 512


def test_the_warp_that_issued_goes_on_and_then_the_last():
    """Mutants: the oldest first; in turn. Warps 0, 4 and 8 are of one quarter."""
    listing = code("FADD R0, R0, R1", "FADD R0, R0, R1 | 20", EXIT)
    traces = [[0, 1, 2], [], [], [], [0, 0, 1, 2], [], [], [], [0, 0, 0, 1, 2], [], [], []]
    sm = play(listing, *traces)
    # 8 issues four, then 4 three, then 0 two; their ends come 20 cycles after each one's last
    assert sm.ends == [4 + 3 + 1 + 20]
    assert waited(sm, "not_selected") == 4 + (4 + 3)


def test_a_warp_goes_on_while_it_can():
    """Also when one before it in order could issue again. Mutant: always the last that can."""
    listing = code("FADD R0, R0, R1", "FADD R0, R0, R1 | 3", EXIT)
    sm = play(listing, [0] * 10 + [2], [], [], [], [1, 2], [], [], [])
    assert sm.ends == [12]
    assert sm.stalls["not_selected", 2] == 12 - 3


# --- memory ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("waves", [1, 8])
def test_shared_memory_and_its_conflicts(waves):
    """Mutants: wavefronts cost nothing; a scoreboard is not waited for."""
    listing = code("LDS R0, [R1] | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    sm = play(listing, [(0, work(waves=waves)), 1, 2])
    assert sm.ends == [C.shared + waves]
    assert sm.busy["data path"] == waves
    assert waited(sm, "short_scoreboard") > 0


def test_two_quarters_share_the_data_path():
    listing = code("LDS R0, [R1] | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    one = [(0, work(waves=8)), 1, 2]
    assert play(listing, one, one).ends == [C.shared + 16]


def test_a_full_queue_holds_warps_back():
    """Mutant: the LSU takes all at once."""
    listing = code("STS [R1], R0", EXIT)
    stores = [(0, work(waves=16)) for _ in range(10)]
    sm = play(listing, [*stores, 1])
    assert sm.ends[0] > 16 * 10 - C.queue - 16
    assert waited(sm, "mio_throttle") > 60
    assert play(listing, [*stores, 1], constants=C._replace(queue=1e6)).ends == [10]


def load(line, sectors=(0,)):
    return work(waves=1, read={line: list(sectors)})


def test_what_l1_has_comes_soon_and_else_from_l2():
    """Mutants: everything misses; everything hits; L1 does not keep what came."""
    listing = code("LDG.E R0, [R2] | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    first = play(listing, [(0, load(128)), 1, 2]).ends[0]
    again = play(listing, [(0, load(128)), 1, (0, load(128)), 1, 2]).ends[0]
    assert first == pytest.approx(C.l2 + 32 / C.l2_bytes, abs=2)
    assert again - first == pytest.approx(C.l1, abs=2)
    other = play(listing, [(0, load(128)), 1, (0, load(128, [1])), 1, 2]).ends[0]  # another sector of the line
    assert other - first == pytest.approx(first, abs=2)


def test_many_misses_wait_for_the_port():
    """Mutant: L2 gives any number of sectors at once."""
    listing = code("LDG.E R0, [R2] | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    loads = [(0, load(128 * k, range(4))) for k in range(100)]
    assert play(listing, [*loads, 1, 2]).ends[0] == pytest.approx(C.l2 + 12800 / C.l2_bytes, rel=0.02)


def test_a_share_comes_from_memory():
    """Half of what is asked: at memory's rate, and from farther. Mutants: all, or nothing."""
    listing = code("LDG.E R0, [R2] | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    loads = [(0, load(128 * k, range(4))) for k in range(100)]
    sm = play(listing, [*loads, 1, 2], far=lambda address, stored: 0.5)
    assert sm.busy["memory"] == pytest.approx(50 * 128 / C.hbm_bytes)
    assert sm.ends[0] > C.hbm + 50 * 128 / C.hbm_bytes - 100


@pytest.mark.parametrize("sectors", [2, 4])
def test_what_arrives_takes_the_data_path(sectors):
    """Mutants: only what is asked for takes it; a part of a line takes as much as a whole one."""
    listing = code("LDG.E R0, [R2] | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    sm = play(listing, [*[(0, load(128 * k, range(sectors))) for k in range(10)], 1, 2])
    assert sm.busy["data path"] == pytest.approx(10 + 10 * sectors * C.fill, abs=1)


def test_stores_and_reductions_are_not_waited_for_but_atomics_are():
    listing = code("ATOMG.E.ADD R0, [R2], R4 | 1 | 0", "FADD R2, R0, R0 | 1 | | 0", EXIT)
    assert play(listing, [(0, work(waves=1, past=1, returns=True)), 1, 2]).ends[0] > C.l2
    assert play(listing, [(0, work(waves=1, past=1)), 1, 2]).ends[0] < 2 * C.shared + C.l1


@pytest.mark.parametrize("share, rate", [(0.0, C.l2_bytes), (1.0, C.hbm_bytes)])
def test_many_stores_take_what_l2_and_memory_take(share, rate):
    """Mutants: stores never wait; what is written needs no memory; it arrives as what is read does."""
    listing = code("STG.E [R2], R0", EXIT)
    stores = [(0, work(waves=1, past=4, place=0, stored=True)) for _ in range(1000)]
    sm = play(listing, [*stores, 1], far=lambda address, stored: share if stored else 0.0)
    assert sm.ends[0] == pytest.approx(1000 * 128 / rate, abs=C.hbm + C.queue + 50)
    assert sm.busy["data path"] == 1000
    assert sm.busy["memory"] == pytest.approx(share * 1000 * 128 / C.hbm_bytes)


def test_groups_of_copies():
    """cp.async: DEPBAR with one group under way waits for the group before. Mutant: for all, or for none."""
    listing = code("LDGSTS.E [R1], [R2]", "LDGDEPBAR", "DEPBAR.LE SB0, 0x1", "DEPBAR.LE SB0, 0x0", EXIT)
    near, far = (0, load(0)), (0, load(0))
    one = play(listing, [near, 1, 2, 4]).ends[0]
    assert one < 10
    both = play(listing, [near, 1, 3, 4]).ends[0]
    assert both == pytest.approx(C.l2, abs=5)
    late = [near, 1, 3, far, 1, 2, 4]  # the second group, found in L1, may be under way
    assert play(listing, late).ends[0] - both < 10


# --- barriers and the copy engine --------------------------------------------------------------------
def copied(phase, size=256, map=0):
    return work(copied=size // 32, size=size, map=map, place=0, gives=((phase, "engine"),))


LOAD, FENCE = "UTMALDG.3D [UR8], [UR4]", "UTMACCTL.IV [UR4]"


def test_a_tensor_load_must_be_waited_for():
    """Mutants: the bytes are there at once; the warp that waits sees it at once; copies come all together."""
    listing = code(LOAD, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", EXIT)
    phase = token(4)
    sm = play(listing, [*[(0, copied(phase, 1024)) for _ in range(4)], (1, work(waits=(phase,))), 2])
    each, come = 1024 / C.tma_bytes, 1024 / C.l2_bytes
    assert sm.ends[0] == pytest.approx(C.reach + C.tma_map + 4 * come + C.tma_latency + C.wake, abs=3)
    assert sm.busy["copy engine"] == pytest.approx(4 * each)
    assert waited(sm, "mbarrier") > C.tma_latency


def test_a_small_request_has_a_least_cost():
    listing = code(LOAD, EXIT)
    assert play(listing, [(0, copied(token(1), 32)), 1]).busy["copy engine"] == C.tma_least


def test_the_end_of_a_phase_keeps_the_engine():
    """Mutants: no cost; one for each box."""
    listing = code(LOAD, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", EXIT)

    def last(count, of_a_phase):
        phases = [token(of_a_phase) for _ in range(count // of_a_phase)]
        copies = [(0, copied(phases[k // of_a_phase], 128)) for k in range(count)]
        return play(listing, [*copies, *[(1, work(waits=(phase,))) for phase in phases], 2]).tma

    def each(of_a_phase):
        return (last(800, of_a_phase) - last(400, of_a_phase)) / 400

    assert each(1) == pytest.approx(C.tma_least + C.tma_end, rel=0.05)
    assert each(8) == pytest.approx(C.tma_least + C.tma_end / 8, rel=0.05)


def test_a_fence_of_a_map_has_all_maps_fetched_again():
    """If the engine has that map. Mutants: it costs nothing; only its own map is fetched again; each request
    fetches its map; so does a fence of a map that nobody uses."""
    listing = code(LOAD, FENCE, EXIT)

    def took(*steps):
        phases = [token(1) for _ in steps]
        trace = [(1, work(map=step[1])) if step[0] == "fence" else (0, copied(phase, map=step[1]))
                 for step, phase in zip(steps, phases, strict=True)]  # fmt: skip
        return play(listing, [*trace, 2], constants=C._replace(tma_end=0)).tma

    used, each = [("load", 1), ("load", 2)], C.tma_least
    once = took(*used)
    assert took(*used, *used) - once == pytest.approx(2 * each, abs=1)
    assert took(*used, ("fence", 1), *used) - once == pytest.approx(2 * (C.tma_map + each), abs=1)
    assert took(*used, ("fence", 3), *used) - once == pytest.approx(2 * each, abs=1)


def test_a_map_that_few_sms_use_is_fetched_sooner():
    """By the part of an array of maps that the SM's blocks use. Mutants: all maps cost the same; maps of other
    arrays count; a copy without a map is fetched."""
    def asks(map):
        return 0, work(copied=8, size=256, map=map)

    trace = [asks(1024), asks(1024 + 128), asks(4096), asks(None), asks(20), (1, work(map=1024 + 256))]
    traces = Traces([[trace], [[asks(1024)]]], [1024, 4096], [8 * 128, 128], [0, 0], [0, 0], 0)
    fetch = predicting._map_fetch_cycles(traces, C)
    assert [fetch(map) / C.tma_map for map in (1024, 1024 + 128, 4096, 20)] == [0.25, 0.25, 1, 1]
    listing = code(LOAD, EXIT)
    assert play(listing, [asks(None), 1]).tma == pytest.approx(C.reach + C.tma_least)


def test_a_taken_branch_takes_longer():
    """Mutants: none does; one that is not taken does, too."""
    listing = code("BRA `(.L_0) | 5", "FADD R0, R0, R1", "FADD R0, R0, R1", EXIT)
    through, over = play(listing, [0, 2, 3]).ends[0], play(listing, [0, 1, 3]).ends[0]
    assert through - over == pytest.approx(C.branch, abs=1)


def test_the_copy_engines_queue():
    """A warp with requests for a full engine waits for it. Mutant: any number is taken."""
    listing = code("UTMALDG.3D [UR8], [UR4]", EXIT)
    sm = play(listing, [*[(0, copied(token(1), 4096)) for _ in range(10)], 1])
    assert sm.ends[0] > 8 * 60
    assert waited(sm, "copy_engine") > 8 * 50


def test_named_barriers_wait_for_the_last():
    """Mutants: nobody waits; the first goes on."""
    listing = code("BAR.SYNC.DEFER_BLOCKING 0x0", "FADD R0, R0, R1 | 100", EXIT)
    meets = token(2)
    early = [(0, work(gives=((meets, None),))), (0, meets), 2]
    late = [1, (0, work(gives=((meets, None),))), 2]
    sm = play(listing, early, late)
    assert sm.ends == [100 + C.wake]
    assert waited(sm, "barrier") == pytest.approx(100 + C.wake, abs=2)


def test_a_warps_own_copies_end_a_phase():
    """ARRIVES.LDGSTSBAR: when what the warp has asked for is there. Mutant: at once."""
    listing = code("LDGSTS.E [R1], [R2]", "ARRIVES.LDGSTSBAR.64.ARVCNT [UR4]",
                   "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", EXIT)  # fmt: skip
    phase = token(1)
    trace = [(0, load(0)), (1, work(gives=((phase, "copies"),))), (2, work(waits=(phase,))), 3]
    assert play(listing, trace).ends[0] == pytest.approx(C.l2 + C.wake, abs=5)


def test_a_phase_that_nobody_ends():
    listing = code("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", "NOP", EXIT)
    with pytest.raises(Deadlock, match="no warp can go on"):
        play(listing, [1, (0, work(waits=(token(1),))), 2])


def test_the_clock_is_read_by_warps_of_blocks():
    """Mutant: the second block's warp counts as the first one's."""
    listing = code("CS2R R2, SR_CLOCKLO", "FADD R0, R0, R1 | 100", "CS2R R2, SR_CLOCKLO", EXIT)
    sm = play(listing, [[0, 1, 2, 3]], [[0, 2, 3]])
    (first, second), (third, _) = sm.clocks[0, 0], sm.clocks[1, 0]
    assert second - first == 101 and third > second and len(sm.clocks) == 2


# --- blocks, and the whole grid ----------------------------------------------------------------------
def test_sms_of_a_cluster_wait_for_each_other():
    """Mutants: an SM goes on without what another gives; one that sleeps is not woken."""
    listing = code("FADD R0, R0, R1 | 500", "SYNCS.ARRIVE RZ, [R0], R1", "SYNCS.TRYWAIT P0, [R0], R1",
                   EXIT)  # fmt: skip
    for givers in (0, 1):
        there = token(1)
        gives = [0, (1, work(gives=[(there, None)])), 3]
        waits = [(2, work(waits=[there])), 3]
        sms = [Sm(listing, L1(0), None, C) for _ in range(2)]
        queues = [[[gives]], [[waits]]][:: -1 if givers else 1]
        assert play_together(sms, queues, 1) == max(sm.ends[0] for sm in sms)
        assert sms[0 if givers else 1].ends[0] == pytest.approx(500 + C.wake, abs=3)


def test_blocks_take_turns():
    """As many at once as fit; the next begins when one ends. Mutants: all at once; ``start`` forgotten."""
    listing = code("FADD R0, R0, R1 | 100", EXIT)
    blocks = [[[0, 1]] for _ in range(4)]
    assert play(listing, *blocks, resident=1).ends[-1] == pytest.approx(400, abs=8)
    assert play(listing, *blocks, resident=2).ends[-1] == pytest.approx(200, abs=8)
    slow = C._replace(start=500)
    assert play(listing, *blocks, resident=2, constants=slow).ends[-1] == pytest.approx(1200, abs=8)


def test_all_of_a_warps_time_has_a_reason():
    """Mutant: cycles that nobody tells."""
    listing = code("LDS R0, [R1] | 2 | 0", "IADD3 R2, R0, R0, R0 | 5 | | 0", EXIT)
    sm = play(listing, *[[(0, work(waves=3)), 1, 1, 1, 2] for _ in range(8)])
    assert sum(sm.stalls.values()) == pytest.approx(8 * sm.ends[0], rel=0.15)
    assert waited(sm, "selected") == 8 * 5


def run_of(ends, blocks, resident=2):
    """A Run of blocks that take 100 cycles each."""
    listing = code("FADD R0, R0, R1 | 100", EXIT)
    traces = Traces([[[0, 1]] for _ in range(ends)], [0], [128], [128], [0], 0)
    return types.SimpleNamespace(listing=listing, traces=traces, blocks=blocks, ran=ends, resident=resident)


def test_a_part_stands_for_a_large_grid():
    """Mutants: the part's time is told; the first round's cold start is taken for the rate."""
    whole = predict(run_of(40, 40 * SMS), C).cycles
    part = predict(run_of(12, 40 * SMS), C).cycles
    assert part == pytest.approx(whole, rel=0.01)
    assert whole == pytest.approx(2000, rel=0.05)
    assert predict(run_of(2, 2), C).cycles == pytest.approx(100, abs=3)
    assert predict(run_of(4, 4 * SMS), C, repeats=3).cycles == pytest.approx(600, abs=20)


def test_blocks_are_handed_out_one_by_one():
    """Forty of 100 cycles on each SM, two at a time, would be over sooner. Mutants: a launch hands out no
    blocks; it takes both, one after the other."""
    found, free = (predict(run_of(12, 40 * SMS), each) for each in (HOPPER._replace(start=0), C))
    assert found.cycles == pytest.approx(40 * SMS * HOPPER.handed) and found.binds == "blocks"
    assert found.busy["blocks"] == 1 and found.busy["issue"] < free.busy["issue"] / 2
    slow = predict(run_of(12, 40 * SMS, resident=1), HOPPER._replace(start=0, handed=0.5))
    assert slow.cycles == pytest.approx(4000, rel=0.05) and slow.busy["blocks"] == pytest.approx(0.66, abs=0.05)


def test_which_blocks_run():
    """Mutants: a large grid runs whole; one that just fits is cut; clusters by blocks' numbers."""

    def part(blocks, resident=2, cluster=(1, 1, 1), traced=None):
        only, enough = Machine.part(types.SimpleNamespace(
            blocks=blocks, resident=resident, cluster=cluster, traced=traced))  # fmt: skip
        return only and list(only), enough

    assert part(264) == (None, None)
    assert part(300) == ([0, 132, 264], ENOUGH)
    assert part(300, 3, traced=[]) == ([0, 132, 264], None)
    assert part(131, traced=[]) == (None, None)
    assert part(132 * 5, cluster=(4, 1, 1)) == ([0, 33, 66, 99, 132], ENOUGH)
    assert part(128 * 2, cluster=(16, 1, 1)) == (None, None)


def test_what_comes_from_memory():
    """Each byte once, unless L2 holds everything. Mutants: never; each access."""
    large, small = int(C.l2_size), 1000
    traces = Traces([], [0, 2 * large], [large, small], [large // 2, 10 * small], [0, small], 0)
    far = predicting._memory_share(traces, 4, 1, C)
    assert far(5) == pytest.approx(0.5)
    assert far(2 * large + 5) == pytest.approx(1 / 40)
    assert far(2 * large + 5, True) == pytest.approx(1 / 4)  # what is written goes there besides
    assert predicting._memory_share(Traces([], [0], [small], [small], [0], 0), 4, 1, C) is None


def test_what_binds_and_where():
    stalls = {("selected", 0): 10, ("mbarrier", 1): 60, ("wait", 1): 20, ("barrier", 0): 10}
    found = Prediction(1980.0, {"issue": 0.2, "copy engine": 0.9}, stalls)
    assert found.microseconds == pytest.approx(C.launch_us + 1)
    assert found.binds == "copy engine"
    assert list(found.reasons.items())[0] == ("mbarrier", 0.6)
    assert found.waits([1]) == {"mbarrier": 0.6, "wait": 0.2}
    assert found.waits([0]) == {"barrier": 0.1}


def test_marks_of_one_block_get_the_models_clock(monkeypatch):
    """Of the block asked for, the 134th: the third one of the SM of block 2, which others are there with."""
    asked, marks = [], np.zeros((2, 8, 4), np.uint32)
    marks[0, :3, 3], marks[1, :2, 3] = 1, 1
    clocks = {(0, 0): [1, 2, 3], (1, 0): [70, 80, 90], (1, 1): [75, 2**33 + 5], (2, 1): [6]}
    found = types.SimpleNamespace(clocks=clocks)
    monkeypatch.setattr(predicting, "emulate", lambda *args, only, traced: asked.append(only))
    monkeypatch.setattr(predicting, "predict", lambda run: found)
    monkeypatch.setattr(predicting, "resident_blocks", lambda kernel, shared_bytes: 2 * SMS)
    predicting.write_clocks("kernel", (10 * SMS, 1), [], 0, marks, SMS + 2)
    assert asked == [[2, SMS + 2, 2 * SMS + 2]]
    assert marks[0, :4, 0].tolist() == [70, 80, 90, 0]
    assert (marks[1, :2, 0] | marks[1, :2, 1].astype(int) << 32).tolist() == [75, 2**33 + 5]


# --- traces ------------------------------------------------------------------------------------------
def test_traces_tell_what_an_access_asks_for():
    """Mutants: stores go through L1; NA fills it; what is fetched is no array's."""
    counts, lanes = Traced(3, [0, 4096]), np.ones(32, bool)
    counts.l1 = L1(0)
    one, other, store = code("LDG.E R0, [R2]", "LDG.E.NA R0, [R2]", "STG.E [R2], R0")
    addresses = 4096 + 4 * np.arange(32, dtype=np.uint64)
    for instruction, kind in ((one, "load"), (other, "load"), (store, "store")):
        trace = []
        counts.access(instruction, kind, "global", addresses, lanes, 4)
        counts.noted(trace, instruction.number)
        (number, found), = trace
        assert number == instruction.number
        if kind == "load":
            assert (found.read, found.past) == ({4096: [0, 1, 2, 3]}, 0)
            assert found.fills == (instruction is one)
        else:
            assert (found.read, found.past, found.returns) == (None, 4, False)
    assert counts.fetched == [0, 0, 128]  # the second load hits
    assert counts.written == [0, 0, 128]
    assert counts.work is None


def test_a_copy_past_l1_counts_one_wavefront_and_is_played_with_its_passes():
    """Mutants: it counts as its passes; it counts with each of its two accesses; it is played with one."""
    counts, lanes = Traced(1, [0]), np.ones(32, bool)
    (one,) = code("LDGSTS.E.BYPASS.128 [R2], [R4]")
    addresses = 16 * np.arange(32, dtype=np.uint64)
    counts.access(one, "copy", "global", addresses, lanes, 16)
    counts.access(one, "store", "shared", addresses, lanes, 16)
    assert counts.wavefronts.tolist() == [1] and counts.work.waves == 4 + 4


# --- the bench's page --------------------------------------------------------------------------------
sys.path.insert(0, str(ROOT / "bench"))
import predicted  # noqa: E402
import predicted_others  # noqa: E402


def row(variant, measured, told, **more):
    return {"file": "f", "workload": "w", "pattern": "p", "dtype": "d", "num_query": 1, "gpu": "H200",
            "variant": variant, "measured_us": measured, "predicted_us": told, "held_back": True, "seconds": 1,
            "error": told / measured - 1} | more  # fmt: skip


def test_figures_of_predicted_rows():
    """Mutants: pairs of different shapes; near pairs counted; errors with their sign."""
    rows = [row("a", 100, 110), row("b", 102, 90), row("c", 200, 105), row("d", 1, 50, workload="other")]
    found = predicted.figures(rows[:3])
    assert found["median_percent"] == pytest.approx(100 * 12 / 102)
    assert found["worst_percent"] == pytest.approx(47.5)
    assert (found["pairs_apart"], found["pairs_in_order"]) == (2, 0.5)
    assert found["kendall_tau"] == pytest.approx(-1 / 3)
    assert predicted.figures(rows)["pairs_apart"] == 2


def test_rows_that_one_run_serves():
    """What was predicted for a launch is compared with its other recorded time; not another launch's, nor
    another GPU's."""
    done = row("tma", 100, 110) | {name: None for name in predicted.OWN}
    other = {"file": "g", "workload": "w", "pattern": "p", "dtype": "d", "num_query": None, "variant": "tma",
             "measured_us": 50, "config": "text", "gpu": "H200"}  # fmt: skip
    found = predicted.again(dict(other), [done])
    assert (found["predicted_us"], found["error"]) == (110, 110 / 50 - 1)
    for changed in ({"variant": "tile"}, {"gpu": "H100"}):
        assert "error" not in predicted.again(other | changed, [done])


def test_which_rows_were_looked_at():
    rows = predicted.recorded(("pipelines_seeds", "counted"))
    looked = {(r["workload"], r["pattern"]) for r in rows if predicted.is_seen(r)}
    assert {pattern for _, pattern in looked} == {"local(2)"} and len(looked) == 2
    assert {r["gpu"] for r in rows} == {"H200", "H100 80GB HBM3"}
    assert not [r for r in rows if "linked" in r["variant"] or not r["measured_us"]]


def test_the_page_tells_what_was_predicted():
    """The tables of the page are those of the file, and the printed interval is the held-back rows'."""
    page = (ROOT / "bench" / "PREDICTED.md").read_text()
    tables = f"{predicted.table()}\n{predicted.constants()}"
    assert [line for line in tables.splitlines() if line not in page] == []
    found = predicted.summary(json.loads(predicted.RESULT.read_text())["rows"])["held back"]
    low, _, high = found["measured_by_predicted"]
    assert (predicting.LOW, predicting.HIGH) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))
    assert found["rows"] == predicting.HELD_BACK and found["ranked_in_order"] > 0.9


def test_the_page_tells_of_kernels_of_others():
    """Their table, and an interval in which as many of them lie as is said."""
    page = (ROOT / "bench" / "PREDICTED.md").read_text()
    assert [line for line in predicted_others.table().splitlines() if line not in page] == []
    factors = [row[3] / row[4] for row in predicted_others.joined()]
    inside = [factor for factor in factors if predicting.OTHERS_LOW <= factor <= predicting.OTHERS_HIGH]
    assert (len(inside), len(factors)) == (predicting.INSIDE, predicting.OTHERS)
    low, high = predicted_others.interval(predicted_others.joined())
    assert low == pytest.approx(predicting.OTHERS_LOW, abs=0.005)
    assert high == pytest.approx(predicting.OTHERS_HIGH, abs=0.005)
    claims = [Prediction(1.0, {}, {}, own=own).told() for own in (False, True)]
    assert "147 of 164 times of other kernels" in claims[0]
    assert "of 228 recorded times of this package" in claims[1]
    assert {name for name, _ in predicted_others.CASES} == set(predicted_others.KERNELS)
    assert len(predicted_others.CASES) >= 40
