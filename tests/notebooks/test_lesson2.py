"""The barrier that lesson 2 plays with counts as the CPU engine's does."""

import copy
import random

import numpy as np
import pytest
from numba import cuda, uint32, uint64

from numba_deform.course.lessons import lesson2
from numba_deform.device.mbarrier import (
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_init,
    mbarrier_test_wait_parity,
)
from numba_deform.device.memory import global_address, shared_address
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import fence_mbarrier_init
from numba_deform.device.tma import cp_async_bulk_load


def play(model, what, bytes):
    if what == "expect":
        model.expect_tx(bytes)
    elif what == "arrive":
        model.arrive()
    elif what == "land":
        model.land(bytes)
    else:
        model.expect(bytes)


def random_steps(seed):
    """Operations [(what, bytes)] that break no rule, and the model after them."""
    rng = random.Random(seed)
    model, steps = lesson2.Barrier(rng.randint(1, 3)), []
    while len(steps) < 14:
        step = rng.choice(["expect", "arrive", "land", "both"]), 16 * rng.randint(1, 4)
        trial = copy.deepcopy(model)
        try:
            play(trial, *step)
        except ValueError:
            continue
        model, steps = trial, [*steps, step]
    return model, steps


@pytest.mark.parametrize("seed", range(30))
def test_the_model_counts_as_the_engine(seed):
    model, steps = random_steps(seed)
    count = model.expected

    def same(data, answers):
        tile = cuda.shared.array(128, uint64, alignment=128)
        bars = cuda.shared.array(1, uint64)
        bar = shared_address(bars)
        mbarrier_init(bar, count)
        fence_mbarrier_init()
        for i, (what, bytes) in enumerate(steps):
            if what == "expect":
                mbarrier_expect_tx(bar, bytes)
            elif what == "arrive":
                mbarrier_arrive(bar)
            elif what == "land":
                slot = shared_address(tile) + uint32(64 * i)
                cp_async_bulk_load(slot, global_address(data), bytes, bar)
            else:
                mbarrier_arrive_expect_tx(bar, bytes)
            for parity in range(2):
                answers[i, parity] = mbarrier_test_wait_parity(bar, parity)

    same.threads = 1
    data, answers = np.zeros(16, np.uint64), np.zeros((len(steps), 2), np.uint32)
    seen = lesson2.watch(same, 1, (data, answers), landing="earliest")
    states = iter(seen)
    whole = [next(states)]
    for what, _ in steps:
        if what == "both":  # seen as the two things that it does
            next(states)
        whole.append(next(states))
    # Nobody waits for a phase that does not end, or announces all bytes: no matter here.
    assert {state.what for state in states} <= {"CopyOutlivesBlock", "MoreBytesThanExpected"}
    assert [state[1:] for state in whole] == [state[1:] for state in model.states]
    passed = [[s.phase % 2 != parity for parity in range(2)] for s in model.states[1:]]
    assert answers.tolist() == passed
    assert model.passes(0) == passed[-1][0]


def test_the_model_refuses_what_is_undefined():
    barrier = lesson2.Barrier(1)
    with pytest.raises(ValueError, match="2 arrivals where 1"):
        barrier.arrive(2)
    barrier.land(16)
    with pytest.raises(ValueError, match="16 bytes more"):
        barrier.arrive()
    most = 2**20 - 1
    for count in (0, most + 1):
        with pytest.raises(ValueError, match=f"a count of {count}: from 1 to {most}"):
            lesson2.Barrier(count)
    wide = lesson2.Barrier(most)
    wide.expect_tx(most)
    with pytest.raises(ValueError, match=f"tx-count of {most + 1}"):
        wide.expect(1)


def test_a_broken_rule_ends_what_is_watched():
    def waits():
        bars = cuda.shared.array(1, uint64)
        mbarrier_init(shared_address(bars), 2)
        mbarrier_arrive(shared_address(bars))
        mbarrier_wait(shared_address(bars), 0)

    waits.threads = 1
    states = lesson2.watch(waits, 1, ())
    assert [s.what for s in states] == ["thread 0: init(2)", "thread 0: arrive", "MissingArrivals"]
    assert states[-1][1:] == (0, 1, 2, 0)
    made = lesson2.Barrier(2)
    made.arrive()
    assert "pending 1 of 2" in made.picture("", 1).alt
