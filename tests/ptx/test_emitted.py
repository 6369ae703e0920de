"""What a compiler emits and its users cannot mend, which a kernel says by ``emitted``."""

import numpy as np
import pytest

from numba_deform.engines.cpu import simulate
from numba_deform.engines.cpu.frontends.ptx.kernels import from_ptx
from numba_deform.engines.faults import DataRace
from numba_deform.engines.waivers import OF_TRITON

TEXT = """
.version 8.3
.target sm_90a
.address_size 64
.visible .entry same(.param .u64 out)
{{
    .reg .b32 r<3>;
    .reg .b64 d<2>;
    .shared .align 4 .b8 tile[4];
    ld.param.u64 d0, [out];
    mov.b32 r0, 7;
    {}
    ret;
}}
"""
SHARED, GLOBAL = "mov.b32 r1, tile; st.shared.b32 [r1], r0;", "st.global.b32 [d0], r0;"


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("store, waive, told", [
    (SHARED, (), False), (GLOBAL, (), True), (GLOBAL, ("same-value",), False), (SHARED + GLOBAL, (), True),
])  # fmt: skip
def test_same_values_in_shared_memory(store, waive, told, compiled):
    """They alone are the compiler's; it is counted."""
    kernel = from_ptx(TEXT.format(store))["same"]
    given = [np.zeros(1, np.uint32)]
    if not waive:
        with pytest.raises(DataRace):
            simulate(kernel, 1, 32, given, compiled=compiled)
    kernel.emitted = OF_TRITON
    if told:
        with pytest.raises(DataRace, match="out"):
            simulate(kernel, 1, 32, given, compiled=compiled, waive=waive)
    else:
        report = simulate(kernel, 1, 32, given, compiled=compiled, waive=waive)
        assert report.waived["same-value"][0] == 31
