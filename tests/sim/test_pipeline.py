"""Stage, barrier and parity of every policy; registers that move between warps."""

import numpy as np
import pytest
from helpers import run
from numba import cuda, int32, uint32

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
