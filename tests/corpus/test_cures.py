"""What reports say: each program here is wrong, its report names the mend that stands beside the line that is
wrong, and with that mend the program is silent and right."""

import re

import pytest
from base import LANDINGS, load

from numba_deform.engines.cpu import SimFault

PROGRAMS = load("cures") | {name: program for name, program in load("wrong").items() if program.names}
SEEDS, COMMENT = range(12), re.compile(" +# (cure|<-).*")


def check_report(program, **options):
    with pytest.raises(SimFault) as caught:
        program.run(**options)
    fault = caught.value
    assert program.blames(fault), str(fault)
    text = COMMENT.sub("", str(fault))  # what it says itself, without the mend beside the line it quotes
    assert [name for name in program.names if name not in text] == [], text


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_report_names_the_mend(name):
    assert PROGRAMS[name].names
    check_report(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_mend_is_one(name):
    mended = PROGRAMS[name].mended()
    for seed, landing in enumerate(LANDINGS):
        assert mended.wrong(mended.run(landing=landing, seed=seed)) == 0


@pytest.mark.full
@pytest.mark.parametrize("compiled", (False, True), ids=("interpreted", "compiled"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_report_and_mend_always(name, compiled):
    """Whatever the schedule, and however it runs."""
    mended = PROGRAMS[name].mended()
    for seed in SEEDS:
        options = {"landing": LANDINGS[seed % 3], "seed": seed, "compiled": compiled}
        check_report(PROGRAMS[name], **options)
        assert mended.wrong(mended.run(**options)) == 0


@pytest.mark.full
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_compile(name):
    from numba_deform.engines import faults

    mended = PROGRAMS[name].mended()
    assert len(mended.typed().compile().cubin) > 500
    if faults.NotCompiled not in PROGRAMS[name].faults:
        assert len(PROGRAMS[name].typed().compile().cubin) > 500
