"""Planted faults: each is reported by its rule and line under every schedule, and its twin is silent."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import LANDINGS, always, clean, nans
from numba import cuda, uint64

import numba_deform.course.bugs
from numba_deform.course.bugs import BUGS, Launch
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_drop,
    mbarrier_init,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, simulate

FIXED = ("late", "earliest")  # landings that no seed changes
SEEDS = 20  # of each landing; the quick tests take the first ones

TOPICS = {  # what the collection has to cover -> the faults that do
    "wait for a parity that never flips": ["parity_never_flips"],
    "inverted parity": ["parity_inverted"],
    "parity two phases behind": ["parity_two_behind"],
    "expect more bytes than arrive": ["expect_too_many"],
    "expect fewer bytes than arrive": ["expect_too_few"],
    "arrival count one too high": ["count_too_high"],
    "arrival count one too low": ["count_too_low"],
    "no wait on empty before a refill": ["no_empty_wait"],
    "no wait on full before a read": ["no_full_wait"],
    "release before the last read": ["release_too_early"],
    "no warp sync between the last read and the refill": ["no_warp_sync"],
    "no fence.proxy.async between the last read and the refill": ["no_refill_fence"],
    "init of a live barrier, and at the top of a loop": ["init_again", "init_in_loop"],
    "arrive_drop used as a reset": ["arrive_drop_reset"],
    "barrier index past the array": ["index_past_array"],
    "barrier or tile misaligned": ["misaligned_barrier", "misaligned_tile"],
    "missing fence after init": ["no_init_fence"],
    "missing fence.proxy.async before a TMA store": ["no_proxy_fence"],
    "a block-wide barrier that the tail never enters": ["tail_skips_barrier"],
    "flags without release / acquire": ["flag_without_release"],
    "a spin on a flag nobody sets": ["flag_never_set"],
    "a named barrier with the wrong count, or from one lane": [
        "named_barrier_count", "named_barrier_one_lane",
    ],
    "divergent syncthreads": ["divergent_syncthreads"],
    "exit with a copy in flight": ["exit_in_flight"],
    "metadata read before it was written": ["metadata_unwritten"],
    "tensor-map dimensions in the wrong order": ["map_dims_order"],
    "fp16 coordinates": ["fp16_coordinates"],
}  # fmt: skip
REPORTED = [name for name, bug in BUGS.items() if bug.faults]
SILENT = [name for name, bug in BUGS.items() if not bug.faults]


def start(bug, with_fault, data_seed=0, **options):
    """Simulate; returns the launch."""
    kernel, launch = bug.kernel(with_fault), bug.arguments(data_seed)
    assert launch.wrong() == launch.out.size  # poisoned
    simulate(kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes, **options)
    return launch


# --- the reports ----------------------------------------------------------------------------------
def seeds(quick):
    return pytest.mark.parametrize("seeds", [quick, pytest.param(SEEDS, marks=pytest.mark.full)])


@pytest.mark.parametrize("name", REPORTED)
@seeds(1)
def test_the_fault_is_reported_by_its_rule_and_line(name, seeds):
    bug, seen = BUGS[name], set()
    for landing in LANDINGS:
        for seed in range(seeds):
            with pytest.raises(SimFault) as caught:
                start(bug, True, seed, seed=seed, landing=landing)
            fault = caught.value
            assert bug.reports(fault), (seed, landing, str(fault))
            assert fault.where.rpartition(":")[0] == bug.file
            assert type(fault).rule in str(fault) and fault.cure and fault.cure in str(fault)
            seen.add(type(fault))
    if seeds == SEEDS:
        assert seen == set(bug.faults)  # no verdict is allowed that does not occur


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("landing", LANDINGS)
@seeds(2)
def test_where_no_rule_is_broken_the_numbers_are_wrong(name, landing, seeds):
    for seed in range(seeds):
        assert start(BUGS[name], True, seed, seed=seed, landing=landing).wrong() > 0


@pytest.mark.parametrize("name", BUGS)
@pytest.mark.parametrize("landing", ["random", *(pytest.param(n, marks=pytest.mark.full) for n in FIXED)])
@seeds(2)
def test_the_twin_is_silent_and_right(name, landing, seeds):
    assert start(BUGS[name], False, schedules=seeds, landing=landing).wrong() == 0


@pytest.mark.full
@pytest.mark.parametrize("name", BUGS)
def test_the_twin_is_right_on_other_data(name):
    for data_seed in range(1, 5):
        assert start(BUGS[name], False, data_seed).wrong() == 0


def test_fp16_coordinates_miss_a_few_percent():
    wrong = [start(BUGS["fp16_coordinates"], True, seed).wrong() for seed in range(10)]
    assert 0.01 < np.mean(wrong) / 256 < 0.1


# --- the files ------------------------------------------------------------------------------------
def test_every_topic_is_covered():
    assert len(TOPICS) >= 24
    covered = {name for names in TOPICS.values() for name in names}
    assert covered <= set(BUGS)
    assert set(BUGS) - covered == {"no_init_sync"}


def test_every_file_is_listed():
    files = {path.stem for path in Path(numba_deform.course.bugs.__file__).parent.glob("*.py")}
    assert files - {"__init__", "base", "gpu"} == set(BUGS)


@pytest.mark.parametrize("name", BUGS)
def test_the_builds_differ_in_nothing_but_bug(name):
    wrong, right = (BUGS[name].kernel(bug) for bug in (True, False))
    assert wrong.py_func.__code__ is right.py_func.__code__
    assert (wrong.signature, wrong.threads) == (right.signature, right.threads)
    names = wrong.py_func.__code__.co_freevars
    cells = [[c.cell_contents for c in k.py_func.__closure__] for k in (wrong, right)]
    assert [n for n, a, b in zip(names, *cells, strict=True) if a is not b] == ["BUG"]


@pytest.mark.parametrize("name", BUGS)
def test_the_story_says_who_met_it(name):
    bug = BUGS[name]
    assert bug.title and not bug.title.endswith(".") and len(bug.title) < 70
    assert 3 <= len(re.findall(r"[.?)](?:\s|$)", bug.story)) <= 12
    where = r"notes? [1-5](?: and [1-5])?|\S+/\S+ (?:issue|pull request) \d+|this project"
    places, story = re.findall(where, bug.met), " ".join(bug.story.lower().split())
    assert places
    for place in places:  # and the story says so itself
        assert (place if "note" in place else place.split()[-1]) in story, place
    assert bug.cure.endswith(".") and isinstance(bug.hangs, bool)


@pytest.mark.parametrize("name", BUGS)
def test_the_two_lines_are_in_the_file(name):
    bug = BUGS[name]
    source = Path(bug.file).read_text().splitlines()
    assert len(source) <= 110
    texts = [text for _, text in bug.lines()]
    assert any(texts) and texts[0] != texts[1]
    for line, text in bug.lines():
        for i, code in enumerate(text.splitlines()):
            assert source[line - 1 + i].strip() == code.strip()
    assert "# the fault" in texts[0] or "# the cure" in texts[1]
    code = {line.partition("#")[0].strip() for line in source}
    for lines in bug.faults.values():
        assert set(lines) <= code


def test_wrong_counts_what_is_not_as_expected():
    out = np.array([1.0, 2.0, np.nan, 4.0])
    assert Launch((out,), out, np.array([1.0, 2.0, 3.0, 4.1])).wrong() == 2
    assert Launch((out,), out, np.array([1.0, 2.0, 3.0, 4.1]), tolerance=0.1).wrong() == 1
    assert Launch((out,), out, out).wrong(np.zeros(4)) == 4


# --- the rules that came with them ----------------------------------------------------------------
def test_arrive_drop_lowers_what_the_coming_phases_expect():
    def kernel(out):
        bars = cuda.shared.array(1, uint64)
        bar, tid = shared_address(bars), cuda.threadIdx.x
        if tid == 0:
            mbarrier_init(bar, 3)
        cuda.syncthreads()
        if tid == 2:
            mbarrier_arrive_drop(bar)
        elif tid < 2:
            for phase in range(4):
                mbarrier_arrive(bar)
                mbarrier_wait(bar, phase & 1)
            out[tid] = mbarrier_test_wait_parity(bar, 1)

    out = nans(2)
    clean(kernel, out)
    assert (out == 1).all()

    def last(out):
        bars = cuda.shared.array(1, uint64)
        bar = shared_address(bars)
        if cuda.threadIdx.x == 0:
            mbarrier_init(bar, 2)
            mbarrier_arrive_drop(bar)
            mbarrier_arrive_drop(bar)

    always(faults.NobodyLeft, last, out, source="mbarrier_arrive_drop(bar)",
           words=["drops out of bars[0], which expects its arrival only (phase 0, pending 1)"])  # fmt: skip


def test_a_read_after_the_release_says_where_it_was_released():
    with pytest.raises(SimFault) as caught:
        start(BUGS["release_too_early"], True)
    for words in ("after its wait for phase 0 of bars[0]", "it has arrived on bars[2], which gave"):
        assert words in str(caught.value)
    assert caught.value.thread >= 32  # the reader, not the thread that refills


def test_a_refill_names_the_reader_that_did_not_arrive():
    texts = set()
    for seed in range(SEEDS):
        with pytest.raises(SimFault) as caught:
            start(BUGS["count_too_low"], True, seed=seed, landing="random")
        texts.add(str(caught.value))
    assert any("for phase 0, in which thread" in t and "did not arrive" in t for t in texts)
