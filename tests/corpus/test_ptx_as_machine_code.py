"""The corpus as PTX once more, as machine code: it comes to what the interpreter comes to, word for word, bit
for bit."""

import base
import pytest
from base import LANDINGS
from test_corpus_as_ptx import PROGRAMS, TIMEOUT, AsPtx, flat

import numba_deform as nd

NAMES = list(PROGRAMS)
FEW = 60  # every so many are in the default tests


def outcome(kernel, args, seed, compiled):
    """As ``base.outcome``."""
    program, given = kernel.program, list(flat(args, kernel.kinds))
    options = {"cluster": program.cluster, "timeout": TIMEOUT, **program.options, "compiled": compiled}
    options |= {"seed": seed, "landing": LANDINGS[seed % 3]}
    return base.outcome(args, lambda: nd.simulate(
        kernel.kernel, program.grid, program.block, given, program.shared_bytes, **options))  # fmt: skip


def compare(name, seed):
    """Whether it ended as machine code; None of a program that is refused."""
    try:
        kernel = AsPtx(PROGRAMS[name])
    except ValueError:
        return None
    args = kernel.program.args()
    (interpreted, _), (machine, compiled) = (outcome(kernel, args, seed, c) for c in (False, True))
    assert machine == interpreted, (name, seed)
    return compiled


@pytest.mark.parametrize("name", NAMES[::FEW])
def test_same_outcome(name):
    compare(name, NAMES.index(name) % 6)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES[7::6])
def test_same_outcome_of_more(name):
    compare(name, NAMES.index(name) % 6)


def test_most_right_ones_end_as_machine_code():
    """What nothing is compared in would be right as well."""
    names = [name for name in NAMES[::40] if not PROGRAMS[name].faults and not PROGRAMS[name].cluster]
    assert sum(map(bool, (compare(name, 0) for name in names))) >= 0.7 * len(names)
