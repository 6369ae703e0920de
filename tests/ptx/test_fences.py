"""Whose fences a signal stands for (ENGINE.md): of CUDA C++, as an H100 has it in ``tests/gpu``."""

import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults

MODULE = nd.from_ptx((KERNELS / "fences.ptx").read_text())
LINES = (KERNELS / "fences.cu").read_text().splitlines()


def arrays(pairs):
    return np.zeros(512 * pairs, np.int32), np.zeros(pairs, np.int32), np.zeros(1, np.int32)


@pytest.mark.parametrize("compiled", [False, True])
def test_fences_of_all_who_write(compiled):
    *_, wrong = given = arrays(2)
    nd.simulate(MODULE["handed_on"], 4, 64, given, schedules=6, compiled=compiled)
    assert wrong[0] == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_no_fence_of_who_writes(compiled):
    with pytest.raises(faults.DataRace) as caught:
        nd.simulate(MODULE["handed_on_wrong"], 4, 64, arrays(2), schedules=6, compiled=compiled)
    assert "<- fault" in LINES[int(caught.value.where.rpartition(":")[2]) - 1]
