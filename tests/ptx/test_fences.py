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


# Block 0 hands a number to block 1 by a flag that is relaxed, between fences that do one half each.
HALVES = """.version 8.7 .target sm_90a .address_size 64
.visible .entry k(.param .u64 data, .param .u64 flag, .param .u64 out)
{ .reg .pred p; .reg .b32 c, x; .reg .b64 y, z, w;
 ld.param.u64 y, [data]; ld.param.u64 z, [flag]; ld.param.u64 w, [out]; mov.u32 c, %ctaid.x;
 setp.ne.u32 p, c, 0; @p bra look;
 st.global.b32 [y], 7; fence.BEFORE; st.relaxed.gpu.global.b32 [z], 1; bra end;
look: ld.relaxed.gpu.global.b32 x, [z]; setp.ne.u32 p, x, 1; @p bra look;
 fence.AFTER; ld.global.b32 x, [y]; st.global.b32 [w], x;
end: ret; }
"""


@pytest.mark.parametrize("before, after, fault", [
    ("release.gpu", "acquire.gpu", None), ("release.sys", "acquire.sys", None),
    ("acq_rel.gpu", "acquire.gpu", None), ("acquire.gpu", "acquire.gpu", faults.DataRace),
    ("release.gpu", "release.gpu", faults.DataRace), ("release.cta", "acquire.gpu", faults.ScopeRace),
    ("release.gpu", "acquire.cta", faults.ScopeRace),
])  # fmt: skip
def test_halves(before, after, fault):
    kernel = nd.from_ptx(HALVES.replace("BEFORE", before).replace("AFTER", after))["k"]
    data, flag, out = (np.zeros(1, np.int32) for _ in range(3))
    if fault:
        with pytest.raises(fault):
            nd.simulate(kernel, 2, 1, [data, flag, out])
    else:
        nd.simulate(kernel, 2, 1, [data, flag, out], schedules=3)
        assert out[0] == 7
