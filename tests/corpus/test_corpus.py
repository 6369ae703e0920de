"""The corpus: right but unusual programs are silent, wrong ones are named, by rule and line."""

import pytest
from base import LANDINGS, load
from rules import RULES

from numba_deform.engines.cpu import SimFault

PROGRAMS = load()
RIGHT = [name for name, program in PROGRAMS.items() if not program.faults]
WRONG = [name for name, program in PROGRAMS.items() if program.faults]
SEEDS, MORE, LIMIT = 10, 3, 400  # of a search; of each landing; of schedules explored


@pytest.mark.parametrize("name", RIGHT)
def test_right_is_silent(name):
    program = PROGRAMS[name]
    for landing in LANDINGS:
        assert program.wrong(program.run(landing=landing, seed=LANDINGS.index(landing))) == 0


@pytest.mark.parametrize("name", WRONG)
def test_wrong_is_named(name):
    program = PROGRAMS[name]
    if program.not_compiled:
        pytest.skip(program.not_compiled)
    with pytest.raises(SimFault) as caught:
        program.search(SEEDS, LIMIT)  # most are met by the first run
    assert program.blames(caught.value), str(caught.value)


@pytest.mark.full
@pytest.mark.parametrize("name", RIGHT)
def test_right_is_silent_always(name):
    program = PROGRAMS[name]
    for landing in LANDINGS:
        for seed in range(MORE):
            assert program.wrong(program.run(landing=landing, seed=seed)) == 0
    if program.explorable:
        program.explore(LIMIT)


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG)
def test_wrong_is_named_always(name):
    """Whatever the schedule: if a fault is met, it is the right one."""
    program, met = PROGRAMS[name], 0
    for landing in LANDINGS:
        for seed in range(MORE):
            try:
                program.run(landing=landing, seed=seed)
            except SimFault as fault:
                met += 1
                assert program.blames(fault), str(fault)
    try:
        program.explore(LIMIT)
    except SimFault as fault:
        met += 1
        assert program.blames(fault), str(fault)
    assert met


def test_rules_are_asked():
    """Every rule of the page of promises names programs that are there."""
    for topic in RULES.values():
        for rule in topic:
            assert rule.programs and set(rule.programs) <= set(PROGRAMS), rule.says
