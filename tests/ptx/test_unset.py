"""Variables of CUDA C++ that nothing has set may be moved, exchanged and kept in shared memory, unused."""

import numpy as np
import pytest
from stored import KERNELS

import numba_deform as nd
from numba_deform.engines import faults

MODULE = nd.from_ptx((KERNELS / "unset.ptx").read_text())
LINES = (KERNELS / "unset.cu").read_text().splitlines()
IN = np.arange(3, 67, dtype=np.int32)
BUSY = np.arange(64) < 41
RIGHT = {
    "leader": lambda out: sorted([tuple(out[:32]), tuple(out[32:])]) == [tuple(IN[:32]), tuple(IN[32:])],
    "tickets": lambda out: out.max() == IN[BUSY].sum() and not out[~BUSY].any(),
    "tile": lambda out: np.array_equal(out, np.where(np.arange(64) < 40, IN + IN[np.arange(64) ^ 1], -1)),
}


def run(name, **more):
    out = np.full(64, -1, np.int32)
    report = nd.simulate(MODULE[name], 1, 64, [IN, out, np.zeros(1, np.int32)], **more)
    return out, report


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_right(name, compiled):
    """Machine code leaves such a launch to the interpreter."""
    for landing in ("late", "random"):
        assert RIGHT[name](run(name, schedules=5, landing=landing, compiled=compiled)[0])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [name for name in MODULE if name.endswith("wrong")])
def test_wrong(name, compiled):
    with pytest.raises(faults.UninitialisedRead, match=r"%r\d+ has no value") as caught:
        run(name, compiled=compiled)
    line = LINES[int(caught.value.where.rpartition(":")[2]) - 1]
    assert "<- fault" in line, line
    setter = next(n for n, text in enumerate(LINES) if f"void {name}(" in text)
    assert any(f"unset.cu:{n}, which sets it" in str(caught.value) for n in range(setter, setter + 8))
