"""The corpus as PTX once more, as machine code: it comes to what the interpreter comes to, word for word, bit
for bit."""

import re

import base
import pytest
from base import LANDINGS
from test_corpus_as_ptx import PROGRAMS, TIMEOUT, AsPtx, flat

import numba_deform as nd

NAMES = list(PROGRAMS)
# The right programs without a cluster that end interpreted; of these alone there may be no machine code.
INTERPRETED = {
    "bar.sync 0 beside syncthreads": ["barrier_zero_by_both_names"],
    "a barrier that hands on what another block wrote": ["another_block_fetches_what_was_written"],
    "a shuffle from a lane that takes no part": [
        "shuffles_from_lanes_outside_the_mask", "undefined_values_go_unused",
    ],
    "lanes that exchange numbers of two types": ["two_branches_vote_and_exchange"],
    "a map that a block hands to another": ["a_map_for_another_block"],
    "an array of records, which Numba declares without alignment: a fault": ["records_in_shared_memory"],
    "atomics of vectors": [
        "floats_one_two_and_four", "what_was_there_in_floats", "what_was_there_in_halves",
        "what_was_there_in_brains",
    ],
    "accumulators whose owner shows while the kernel runs": [
        *(name for name in NAMES if re.match(r"product_of_(64|128|256)_columns_b?f16_[km][km]_", name)),
        "a_comes_in_registers", "a_box_at_384_bytes", "a_pattern_from_384_bytes_on",
        "sums_are_doubled_on_the_way", "one_thread_waits_and_the_second_warpgroup_multiplies",
        "sums_behind_a_plain_wait",
    ],
}  # fmt: skip
WITHOUT_CODE = {name for names in INTERPRETED.values() for name in names}
FEW = 60  # every so many are in the default tests


def outcome(kernel, args, seed, compiled):
    """As ``base.outcome``."""
    program, given = kernel.program, list(flat(args, kernel.kinds))
    options = {"cluster": program.cluster, "timeout": TIMEOUT, **program.options, "compiled": compiled}
    options |= {"seed": seed, "landing": LANDINGS[seed % 3]}
    return base.outcome(args, lambda: nd.simulate(
        kernel.kernel, program.grid, program.block, given, program.shared_bytes, **options))  # fmt: skip


def compare(name, seed):
    """Once both ways: the same outcome, and machine code where there is some of a right program."""
    try:
        kernel = AsPtx(PROGRAMS[name])
    except ValueError:
        return
    args = kernel.program.args()
    (interpreted, _), (machine, compiled) = (outcome(kernel, args, seed, c) for c in (False, True))
    assert machine == interpreted, (name, seed)
    if not kernel.program.faults and not kernel.program.cluster:
        assert compiled is (name not in WITHOUT_CODE), name


@pytest.mark.parametrize("name", NAMES[::FEW])
def test_same_outcome(name):
    compare(name, NAMES.index(name) % 6)


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES[7::6])
def test_same_outcome_of_more(name):
    compare(name, NAMES.index(name) % 6)


def test_what_has_no_machine_code_is_right():
    right = {name for name in NAMES if not PROGRAMS[name].faults and not PROGRAMS[name].cluster}
    assert sum(map(len, INTERPRETED.values())) == len(WITHOUT_CODE) and WITHOUT_CODE <= right
