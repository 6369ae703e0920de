"""Volatile accesses of CUDA C++: flags are what they are for; numbers that they bring have to be ordered."""

import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults

MODULE = nd.from_ptx((KERNELS / "volatile.ptx").read_text())
LINES = (KERNELS / "volatile.cu").read_text().splitlines()
IN = np.random.default_rng(0).integers(-9, 9, 64).astype(np.int32)
FOLDED = IN[:32] + IN[32:]
SUM = IN.sum() * (np.arange(64) == 0)
RIGHT = {
    "scan": np.cumsum(IN), "last_warp": SUM, "flag": np.append(0 * FOLDED, FOLDED[::-1]),
    "look_back": np.append(np.cumsum(IN[:4]), np.zeros(60)),
}  # fmt: skip
BLOCKS = {"look_back": 4, "last_block_wrong": 4}


def run(name, **more):
    out, count = np.zeros(64, np.int32), BLOCKS.get(name, 1)
    state = {"look_back": [np.zeros(4, np.uint64)], "last_block_wrong": [np.zeros(4, np.int32)]}.get(name, [])
    nd.simulate(MODULE[name], count, 64, [IN, out, *state], **more)
    return out


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right(name, compiled):
    for landing in ("late", "random"):
        assert np.array_equal(run(name, schedules=5, landing=landing, compiled=compiled), RIGHT[name])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", [name for name in MODULE if name.endswith("wrong")])
def test_wrong(name, seed):
    for compiled in (False, True):
        with pytest.raises(faults.DataRace, match="a volatile access is a relaxed one") as caught:
            run(name, seed=seed, compiled=compiled)
        line = LINES[int(caught.value.where.rpartition(":")[2]) - 1]
        assert "<- fault" in line and caught.value.source.endswith("(volatile)")


def test_a_ticket_without_a_fence_behind_it():
    """The form of NVIDIA's sample, which the waiver for it lets pass."""
    assert run("last_block_wrong", seed=1, waive="thread-fence-reduction")[0] == IN[:4].sum()
