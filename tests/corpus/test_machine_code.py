"""As machine code the programs of the corpus come to the same as interpreted, word for word, bit for bit."""

import re

import numpy as np
import pytest
from base import LANDINGS, load

from numba_deform.engines.cpu import SimFault, simulate

PROGRAMS = load() | load("whole")
NAMES = list(PROGRAMS)
FEW = 20  # every so many are in the default tests


def outcome(program, compiled, **options):
    """(what a run comes to, whether it ended as machine code). Addresses differ from run to run."""
    args, options = program.args(), {**program.options, **options, "compiled": compiled}
    try:
        report = simulate(program.kernel, program.grid, program.block, args, program.shared_bytes, **options)
    except SimFault as fault:
        return (type(fault), fault.where, re.sub("0x[0-9a-f]{6,}", "0x", str(fault))), False
    arrays = [a.tobytes() for a in args if isinstance(a, np.ndarray)]
    return (report.switches, report.cycles, report.copies, arrays), report.compiled


def compare(name, seeds):
    """The same outcome both ways, for some seeds; how many ended as machine code."""
    ended = 0
    for seed in seeds:
        options = {"seed": seed, "landing": LANDINGS[seed % 3]}
        (interpreted, _), (machine, compiled) = (outcome(PROGRAMS[name], c, **options) for c in (False, True))
        assert machine == interpreted, (name, options)
        ended += compiled
    return ended


@pytest.mark.parametrize("names", [NAMES[first::FEW] for first in (0, 9)], ids=("some", "others"))
def test_same_outcome(names):
    right = [name for name in names if not PROGRAMS[name].faults]
    ended = [name for name in names if compare(name, [NAMES.index(name) % 6])]
    assert set(ended) <= set(right) | {n for n in names if PROGRAMS[n].faults}
    assert len(set(ended) & set(right)) > 0.7 * len(right), sorted(set(right) - set(ended))


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_same_outcome_of_all(name):
    compare(name, range(3))
