"""Whole pipelines of Hopper, and by themselves the instructions that they are made of: each right program is
silent and right, each broken one is named, and they compile."""

import json
from pathlib import Path

import pytest
from base import LANDINGS, load

from numba_deform.engines.cpu import SimFault

RESULTS = Path(__file__).resolve().parents[2] / "bench" / "results"

PROGRAMS = load("whole", "instructions")
RIGHT = [name for name, program in PROGRAMS.items() if not program.faults]
WRONG = [name for name, program in PROGRAMS.items() if program.faults]


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full)])
def test_right_is_silent(name, seed):
    program = PROGRAMS[name]
    assert program.wrong(program.run(landing=LANDINGS[seed], seed=seed)) == 0


@pytest.mark.parametrize("name", WRONG)
def test_broken_twin_is_named(name):
    program = PROGRAMS[name]
    with pytest.raises(SimFault) as caught:
        program.search()
    assert program.blames(caught.value), str(caught.value)


# Whether the phases are over by then, and who takes which lock, is what they are about.
BY_CHANCE = {
    "a_phase_that_copies_have_completed", "a_token_that_grows_old_by_chance", "two_locks_of_two_blocks_crossed"
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(load("instructions")) & set(WRONG) - BY_CHANCE))
def test_no_landing_hides_it(name):
    """The verdict on one instruction is no matter of luck."""
    for seed, landing in enumerate(LANDINGS):
        with pytest.raises(SimFault) as caught:
            PROGRAMS[name].run(landing=landing, seed=seed)
        assert PROGRAMS[name].blames(caught.value), str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in RIGHT if PROGRAMS[name].explorable])
def test_right_is_silent_in_every_order(name):
    PROGRAMS[name].explore(limit=150)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in WRONG if PROGRAMS[name].explorable])
def test_every_order_blames_the_same(name):
    """Some faults take lanes of a warp that are out of step, which exploring does not try."""
    program = PROGRAMS[name]
    try:
        program.explore(limit=40)
    except SimFault as fault:
        assert program.blames(fault), str(fault)


@pytest.mark.full
@pytest.mark.parametrize("name", [*load("whole"), *list(load("instructions"))[::6]])
def test_it_compiles(name):
    """All whole pipelines, and a sixth of the instructions, which test_corpus_as_ptx.py gives to NVVM."""
    assert len(PROGRAMS[name].typed().compile().cubin) > 500


def test_results_are_of_these_programs():
    """Each program once, the engine right about all of them, and an H200 about the right ones that it ran."""
    rows = json.loads((RESULTS / "corpus_pipelines.json").read_text())["rows"]
    assert [row["program"] for row in rows] == list(PROGRAMS | load("waived"))
    for row in rows:
        assert row["engine"] in (row["faults"] or ["silent"]), row["program"]
        assert row["kind"] == "wrong" or row.get("gpu", "right") == "right", row["program"]
