"""Every mutant of the pipelines' lines, and of the backward kernel's (mutants.py), is noticed by the CPU engine,
or changes nothing.

mutants.json says which killer notices a mutant, so that each costs one run; the others are here, with
the reason why no run can tell them from the original.
"""
# ruff: noqa: E501  ids are as long as the lines they are about

import ast
import sys
from pathlib import Path

import pytest
from mutants import (
    ALL_LANES,
    CALLS,
    FILES,
    FUNCTIONS,
    KILLERS,
    OPERANDS,
    all_mutants,
    killed,
    killers_of,
    load,
    source_of,
    verdict,
)

pytestmark = pytest.mark.full
KILLED = killed()
AGAIN = "; `python tests/sim/mutants.py --write` makes mutants.json anew, which takes some minutes"

REASONS = {
    "with any number of barriers from one a stage on, the steps under way have different ones": [
        "pipeline.py:barrier_count:return {'parity': stages, 'point': max(stages, steps), 'ping_pong': 2 * stage...:only stages",
        "pipeline.py:barrier_count:return {'parity': stages, 'point': max(stages, steps), 'ping_pong': 2 * stage...:2 to 3",
        "pipeline.py:barrier_count:return {'parity': stages, 'point': max(stages, steps), 'ping_pong': 2 * stage...:2 to 1",
        "pipeline.py:make_advance:if barriers in (None, stages)::True",
    ],
    "barrier 0 is used in the first lap only; the others are still one for every stage, since a ring with more barriers than stages has one to spare": [
        "pipeline.py:advance_both:barrier, parity = (int32(0), int32(parity ^ 1)):0 to 1",
    ],
    "more shared memory than is used": [
        "tiles.py:stage_layout:slot = -(-height * pitch // 128) * 128:128 to 127 #2",
        "tiles.py:stage_layout:slots = 32 // config.lanes * layout.parts * step:32 to 33",
        "tma.py:shared_bytes:warps = config.threads // 32:32 to 31",
        "tma.py:shared_bytes:rings = warps if config.barrier_scope == 'warp' else 1:config.barrier_scope == 'warp' is True",
        "tma.py:shared_bytes:rings = warps if config.barrier_scope == 'warp' else 1:1 to 2",
        "tma.py:shared_bytes:return SharedBytes(tiles, rings * ring_barriers(config, constants) * 8):8 to 9",
        "warp_specialized.py:shared_bytes:slots, barriers = (config.stages * block.slots, config.stages * 16):16 to 17",
        "warp_specialized.py:shared_bytes:barriers = config.stages * (8 + 4 * block.consumers):8 to 9",
        "warp_specialized.py:shared_bytes:barriers = config.stages * (8 + 4 * block.consumers):4 to 5",
        "warp_specialized.py:shared_bytes:return SharedBytes(slots * slot, barriers, slots * block.weights if block.tol...:block.told is True",
    ],
    "a round begins with a sample, so for each of its owners this quotient is 0 at least, without max()": [
        "tiles.py:runs_of:return int32(min(max((left + part_samples - 1) // part_samples, 0), layout.pa...:only (left + part_samples - 1) // part_samples",
        "tiles.py:runs_of:return int32(min(max((left + part_samples - 1) // part_samples, 0), layout.pa...:0 to -1",
    ],
    "the maps are fenced although the configuration trusts them: a fence more": [
        "tma.py:acquire_maps:if fence::True",
    ],
    "prefetch.tensormap has no effect but on time, as long as the address is a map's": [
        "tma.py:acquire_maps:if prefetch::negate",
        "tma.py:acquire_maps:if prefetch::True",
        "tma.py:acquire_maps:prefetch_tensormap(global_at(maps, i, 128)):drop",
    ],
    "an owner that is no lane's turn: -2 is as good as -1": [
        "tma.py:aim:owner = place.chunk if mine and place.side == 0 else int32(-1):1 to 2",
    ],
    "any one lane of the warp can do it, and lane 1 is one": [
        "tma.py:issue:if place.lane == 0::0 to 1",
        "tma.py:tma:if (me.lane if PER_WARP else thread) == 0::0 to 1",
        "persistent.py:persistent:if me.lane == 0::0 to 1",
        "warp_specialized.py:release_stage:if lane() == 0::0 to 1",
        "warp_specialized.py:issue:commit(ring, state, bytes_to_come if lane() == 0 else uint32(0)):0 to 1",
        "warp_specialized.py:issue:if lane() == 0::0 to 1",
        "warp_specialized.py:warp_specialized:if thread == 0::0 to 1",
    ],
    "the ring does not run empty after a level, as with across_levels: other times, same sums": [
        "tma.py:build:STRETCH = min(constants.points // layout.run, STRETCH):drop",
        "tma.py:build:STRETCH = min(constants.points // layout.run, STRETCH):only STRETCH",
    ],
    "addresses are even, so rounding up by 126 reaches the same multiple of 128": [
        "tma.py:tma:tiles_address = align_up(shared_address(shared), uint32(128)):128 to 127",
        "persistent.py:persistent:tiles_address = align_up(shared_address(shared), uint32(128)):128 to 127",
        "warp_specialized.py:warp_specialized:tiles_address = align_up(shared_address(memory), uint32(128)):128 to 127",
    ],
    "no empty barriers in this kernel: nobody reads the address": [
        "tma.py:tma:ring = Ring(full, uint32(0)):0 to 1",
        "tma.py:tma:ring = Ring(full, uint32(0)):0 to -1",
        "persistent.py:persistent:ring = Ring(full, uint32(0)):0 to 1",
        "persistent.py:persistent:ring = Ring(full, uint32(0)):0 to -1",
    ],
    "with one stage nothing is issued ahead, so the next row may as well be prepared after the last run": [
        "persistent.py:build:PREPARE_RUN = (stage.round_steps - max(LEAD, 1)) // stage.run_steps:only LEAD",
        "persistent.py:build:PREPARE_RUN = (stage.round_steps - max(LEAD, 1)) // stage.run_steps:1 to 0",
    ],
    "a grid has no more blocks than items (blocks()), so each has a first item": [
        "persistent.py:persistent:if item < items::True",
        "persistent.py:persistent:if item < items::swap item < items",
        "warp_specialized.py:produce:if item < items::True",
        "warp_specialized.py:produce:if item < items::swap item < items",
    ],
    "the whole kernel asks the layout, so this is another choice of the configuration, and as right": [
        "warp_specialized.py:block_layout:return BlockLayout(config.producers, config.consumers, config.consumers * 32 ...:swap config.arrivals == 'lane'",
        "warp_specialized.py:block_layout:return BlockLayout(config.producers, config.consumers, config.consumers * 32 ...:swap config.sync == 'flags'",
        "warp_specialized.py:block_layout:return BlockLayout(config.producers, config.consumers, config.consumers * 32 ...:swap config.metadata == 'shared'",
    ],
    "a lane without a tile reads the location of some other row, which exists, and does not use it": [
        "warp_specialized.py:find_rows:slot = min(slot_at(i), int32(block.slots - 1)):only slot_at(i)",
        "warp_specialized.py:find_rows:slot = min(slot_at(i), int32(block.slots - 1)):1 to 0",
    ],
    "tiles for samples that do not exist are fetched, counted and waited for, and nobody reads them": [
        "warp_specialized.py:aim_slots:exists = k < SAMPLES and slot_at(i) < block.slots:only slot_at(i) < block.slots",
        "warp_specialized.py:aim_slots:exists = k < SAMPLES and slot_at(i) < block.slots:swap k < SAMPLES",
    ],
    "samples are read once more than needed, of a row that exists, and what they held is not used or read again": [
        "warp_specialized.py:produce:if PREFETCH::True",
        "warp_specialized.py:produce:if not PREFETCH::True",
        "warp_specialized.py:produce:if PREFETCH and item < items::True",
        "warp_specialized.py:produce:if PREFETCH and item < items::only PREFETCH",
        "warp_specialized.py:produce:if PREFETCH and item < items::only item < items",
        "warp_specialized.py:produce:if PREFETCH and item < items::swap item < items",
    ],
    "a sample after the last has no attention and is nobody's, so a round more adds nothing": [
        "backward.py:add_rows:for r in range(ROUNDS)::one more",
    ],
    "what was not asked for is written all the same, to where attention/gradients.py has room for it": [
        "backward.py:add_rows:if OF_SAMPLES::True",
    ],
}
EQUIVALENT = {name: why for why, names in REASONS.items() for name in names}


def test_every_mutant_is_accounted_for():
    found, equivalent, mutants = set(KILLED), set(EQUIVALENT), set(all_mutants())
    assert sum(map(len, REASONS.values())) == len(EQUIVALENT)
    assert not found & equivalent, "killed, and yet said to be equivalent" + AGAIN
    assert not (found | equivalent) - mutants, "the code has changed" + AGAIN
    assert not mutants - found - equivalent, "new mutants, or survivors without a reason" + AGAIN


def test_the_readme_says_how_many():
    words = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert f"of {len(all_mutants())} mutants of" in words
    assert f"notices {len(KILLED)}, and for the other {len(EQUIVALENT)} the reason" in words


@pytest.mark.parametrize("name", list(KILLED)[::3], ids=str)  # of all of them: mutants.py --write
def test_is_killed(name):
    number, how = KILLED[name]
    endless = how == "Unfinished"
    assert number in killers_of(all_mutants()[name])
    found = verdict(KILLERS[number], load(all_mutants()[name]), timeout=1.0 if endless else 60.0)
    assert found, f"{KILLERS[number]} does not notice it any more" + AGAIN


@pytest.mark.parametrize("name", list(EQUIVALENT)[::3], ids=str)
def test_survives(name):
    modules = load(all_mutants()[name])
    for number in killers_of(all_mutants()[name], of_each=3):  # --write has tried all
        assert verdict(KILLERS[number], modules) is None, KILLERS[number]


@pytest.mark.parametrize("number", range(0, len(KILLERS), 3))
def test_killers_do_not_kill_the_original(number):
    assert verdict(KILLERS[number]) is None


# --- the machinery --------------------------------------------------------------------------------
def test_the_names_that_make_a_pipeline_line_exist():
    """A function that is renamed must not leave the list unnoticed."""
    names = set()
    for module in FILES:
        for node in ast.walk(ast.parse(source_of(module))):
            names |= {getattr(node, part, None) for part in ("id", "attr", "name")}
    assert set(CALLS + OPERANDS + FUNCTIONS + [ALL_LANES]) <= names


def test_every_kind_of_change_occurs():
    kinds = {mutant.what.partition(" ")[0] for mutant in all_mutants().values()}
    assert {"drop", "swap", "negate", "True", "without", "only", "not", "one"} <= kinds
    assert any(mutant.what == "no xor" for mutant in all_mutants().values())
    assert any(mutant.what == "one lane less" for mutant in all_mutants().values())
    assert any(mutant.what == "0 to 1" for mutant in all_mutants().values())


def test_a_mutant_leaves_the_real_modules_alone():
    mutant = all_mutants()["tma.py:tma:wait(ring, now):drop"]
    before = {name: dict(vars(sys.modules[name])) for name in FILES}
    fresh = load(mutant)
    assert list(fresh) == list(FILES)[list(FILES).index(mutant.module) :]
    for name in FILES:
        assert vars(sys.modules[name]) == before[name]
    assert fresh["numba_deform.kernels.persistent"].tma_parts is fresh[mutant.module].tma_parts
    assert fresh[mutant.module].tma_parts is not sys.modules[mutant.module].tma_parts
