"""As machine code the programs of the corpus come to the same as interpreted, word for word, bit for bit."""

import base
import pytest
from base import LANDINGS, load

from numba_deform.engines.cpu import simulate

PROGRAMS = load() | load("whole")
NAMES = list(PROGRAMS)
FEW = 20  # every so many are in the default tests
# The right programs that end interpreted, and what there is no machine code for.
INTERPRETED = {
    "parts of arrays, and views": [
        "rows_and_slices", "rows_of_a_local_array", "dynamic_memory_in_slices", "one_buffer_for_two_types",
    ],
    "loops over tuples": ["tuples_as_arguments", "tuples_and_defaults", "zip_with_a_longer_array"],
    "complex numbers": ["complex_numbers"],
    "functions and reductions of arrays": ["functions_of_arrays", "reductions_of_shared_memory"],
    "dates": ["days_and_weeks"],
    "bar.sync 0 beside syncthreads": ["barrier_zero_by_both_names"],
    "a shuffle from a lane that takes no part": [
        "shuffles_from_lanes_outside_the_mask", "undefined_values_go_unused",
    ],
    "lanes that exchange numbers of two types": ["two_branches_vote_and_exchange"],
    "a barrier that hands on what another block wrote": ["another_block_fetches_what_was_written"],
    "clusters": ["multicast_pipeline"],
}  # fmt: skip
WITHOUT_CODE = {name for names in INTERPRETED.values() for name in names}


def outcome(program, args, compiled, **options):
    """As ``base.outcome``."""
    options = {**program.options, **options, "compiled": compiled, "cluster": program.cluster}
    return base.outcome(args, lambda: simulate(
        program.kernel, program.grid, program.block, args, program.shared_bytes, **options))  # fmt: skip


def compare(name, seeds):
    """The same outcome both ways, for some seeds; how many ended as machine code."""
    ended = 0
    for seed in seeds:
        program, options = PROGRAMS[name], {"seed": seed, "landing": LANDINGS[seed % 3]}
        args = program.args()
        (interpreted, _), (machine, compiled) = (outcome(program, args, c, **options) for c in (False, True))
        assert machine == interpreted, (name, options)
        ended += compiled
    return ended


@pytest.mark.parametrize("names", [NAMES[first::FEW] for first in (0, 9)], ids=("some", "others"))
def test_same_outcome(names):
    right = {name for name in names if not PROGRAMS[name].faults}
    ended = {name for name in names if compare(name, [NAMES.index(name) % 6])}
    assert ended & right == right - WITHOUT_CODE


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_same_outcome_of_all(name):
    ended = compare(name, [NAMES.index(name) % 6])
    assert PROGRAMS[name].faults or ended == (name not in WITHOUT_CODE)


def test_what_has_no_machine_code_is_right():
    """A list that names what is gone, or what ends by a fault, would hide nothing and yet look as if it did."""
    assert sum(map(len, INTERPRETED.values())) == len(WITHOUT_CODE)
    assert not any(PROGRAMS[name].faults for name in WITHOUT_CODE)


def test_who_asks_for_machine_code_is_told_why_there_is_none():
    program = PROGRAMS["multicast_pipeline"]
    args, options = (program.kernel, program.grid, program.block, program.args()), {"compiled": True}
    report = simulate(*args, cluster=program.cluster, **program.options, **options)
    assert (report.compiled, report.why_interpreted) == (False, "a cluster is the interpreter's")
