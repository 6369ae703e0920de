"""Stage, barrier and parity of every policy; registers that move between warps."""

import numpy as np
import pytest
from helpers import run
from numba import cuda, int32, types, uint32

from numba_deform.compiler import kernel as typed
from numba_deform.device.pipeline import barrier_count, first_state, make_advance
from numba_deform.device.registers import setmaxnreg_dec, setmaxnreg_inc
from numba_deform.engines import faults


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("steps", [1, 4, 7])
@pytest.mark.parametrize("policy", ["parity", "point", "ping_pong"])
def test_state_after_every_use(policy, stages, steps):
    """Use n is of stage n mod S and barrier n mod B; the parity counts the barrier's own uses."""
    barriers = barrier_count(policy, stages, steps)
    advance = make_advance(stages, barriers)

    def kernel(out):
        state = first_state()
        for n in range(40):
            out[n, 0], out[n, 1], out[n, 2] = state.stage, state.barrier, state.parity
            state = advance(state)

    out = np.zeros((40, 3), np.int32)
    run(kernel, out, block=1)
    n = np.arange(40)
    np.testing.assert_array_equal(out, np.stack([n % stages, n % barriers, n // barriers % 2], 1))


def test_barriers_of_a_policy():
    assert barrier_count("parity", 3, 16) == 3
    assert barrier_count("ping_pong", 3, 16) == 6
    assert barrier_count("point", 3, 16) == 16
    assert barrier_count("point", 8, 4) == 8  # as many as can be under way
    with pytest.raises(KeyError):
        barrier_count("none", 1, 1)


def move(give, take, odd=-1):
    GIVE, TAKE, ODD = give, take, odd

    def kernel(out):
        warp = int32(cuda.threadIdx.x >> 5)
        if warp < 4:
            if warp == ODD:
                setmaxnreg_dec(uint32(GIVE + 8))
            else:
                setmaxnreg_dec(uint32(GIVE))
        elif warp != ODD:
            setmaxnreg_inc(uint32(TAKE))
        out[cuda.threadIdx.x] = warp

    out = np.zeros(256, np.int32)
    run(kernel, out, block=256)
    np.testing.assert_array_equal(out, np.arange(256) // 32)


def test_registers_move():
    move(40, 216)


MEET, WHOLE = ("meet", 0), {"whole_program": True, "min_blocks": 1}


def roles(steps, **limits):
    """Run a kernel whose warpgroup g executes steps[g]."""

    def kernel(out: types.int32[:]):
        for word, count in steps[cuda.threadIdx.x >> 7]:
            if word == "dec":
                setmaxnreg_dec(uint32(count))
            elif word == "inc":
                setmaxnreg_inc(uint32(count))
            else:
                cuda.syncthreads()

    threads = 128 * len(steps)
    for seed in range(4):
        run(typed(threads=threads, **limits)(kernel), np.zeros(1, np.int32), block=threads, seed=seed)


@pytest.mark.parametrize(
    ("steps", "limits"),
    [
        ([[("inc", 240)], [("dec", 24)], [("inc", 240)]], {}),  # 3 x 168 = 24 + 2 x 240
        ([[("inc", 216)], [("dec", 40), MEET]], {}),  # the first waits; its end is enough for the barrier
        ([[("inc", 88)], [("dec", 40)]], {"min_blocks": 4}),
        ([[("inc", 160)], [("dec", 96)]], {"max_registers": 128}),
        ([[("inc", 104), MEET], [MEET]], {"max_registers": 100}),  # given out by eight
        ([[("inc", 256)], []], {}),  # 256 threads may have as many
        ([[("dec", 40), MEET, ("inc", 88)], [MEET]], {}),
        ([[("inc", 256)]], {}),
        ([[("inc", 248)], [("dec", 24)]], {}),  # nobody knows that a thread has 256: they may be fewer
        ([[("inc", 256)], [("dec", 24)]], WHOLE),
        ([[("inc", 168)], [("dec", 24)], [("inc", 240)]], WHOLE),
    ],
)
def test_registers_that_the_block_has(steps, limits):
    roles(steps, **limits)


@pytest.mark.parametrize(
    ("steps", "limits", "words"),
    [
        ([[("inc", 240), MEET], [("dec", 32), MEET], [("inc", 240), MEET]], {}, "1024 registers that nobody"),
        ([[MEET], [("inc", 176), MEET], [MEET]], {}, "waits on 176 registers a thread"),
        ([[("inc", 72), MEET], [MEET]], {"min_blocks": 4}, "began with at most 64"),
        ([[("inc", 112), MEET], [MEET]], {"max_registers": 100}, "at most 104"),
        ([[("dec", 176)], [], []], {}, "setmaxnreg.dec 176, where a thread has 168 at most"),
        ([[("inc", 240)], [], []], {}, "2304 registers that nobody"),  # an exit gives nothing back
        ([[("dec", 40), ("dec", 48)], []], {}, "setmaxnreg.dec 48, where a thread has 40"),
        ([[("dec", 40), ("inc", 32)], []], {}, "setmaxnreg.inc 32, where a thread has 40"),
        # ptxas gives such a kernel all there are: an H200 ends this one with an illegal instruction
        ([[("inc", 248)], [("dec", 24)]], WHOLE, "setmaxnreg.inc 248, where a thread has 256\n"),
        ([[("inc", 160)], [("dec", 24)], []], WHOLE, "setmaxnreg.inc 160, where a thread has 168\n"),
    ],
)
def test_registers_that_the_block_does_not_have(steps, limits, words):
    with pytest.raises(faults.RegisterMisuse, match=words):
        roles(steps, **limits)


@pytest.mark.parametrize(
    ("give", "take", "odd", "words"),
    [
        (20, 216, -1, "setmaxnreg.dec 20"),
        (40, 300, -1, "setmaxnreg.inc 300"),
        (40, 216, 2, "setmaxnreg.dec 48"),
        (40, 216, 6, "nothing of the kind"),
    ],
)
def test_registers_misused(give, take, odd, words):
    with pytest.raises(faults.RegisterMisuse, match=words):
        move(give, take, odd)
