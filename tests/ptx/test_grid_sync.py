"""``cooperative_groups::this_grid().sync()`` of CUDA C++."""

import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults

MODULE = nd.from_ptx((KERNELS / "grid_sync.ptx").read_text())
LINES = (KERNELS / "grid_sync.cu").read_text().splitlines()
compiled = pytest.mark.parametrize("compiled", [False, True])


def run(name, blocks, **more):
    data, out = np.arange(32 * blocks, dtype=np.int32), np.full(32 * blocks, -1, np.int32)
    nd.simulate(MODULE[name], blocks, 32, (data, np.zeros_like(data), out), **more)
    return data, out


@compiled
@pytest.mark.parametrize("blocks", [1, 3])
def test_right(blocks, compiled):
    data, out = run("reversed", blocks, schedules=5, compiled=compiled)
    assert np.array_equal(out, data[::-1] + 1)


@compiled
def test_a_second_round_without_a_barrier(compiled):
    with pytest.raises(faults.DataRace) as caught:
        run("early_wrong", 3, schedules=20, compiled=compiled)
    assert "<- fault" in LINES[int(caught.value.where.rpartition(":")[2]) - 1]
    assert "this_grid().sync()" in caught.value.rule


@compiled
def test_a_block_that_stays_away(compiled):
    with pytest.raises(faults.Livelock, match=r"grid_workspace\[") as caught:
        run("absent_wrong", 3, compiled=compiled)
    assert caught.value.block in (1, 2)
