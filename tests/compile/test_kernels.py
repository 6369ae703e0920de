"""Every kernel down to SASS with no GPU: no spills, no stack, the instructions that belong there."""

import pytest

from numba_deform.inspect import inspect_kernel
from numba_deform.kernels.probe import probe
from numba_deform.kernels.tile_copy import build as build_tile_copy
from numba_deform.variants import VARIANTS, Constants

DTYPES = ["float16", "bfloat16", "float32"]
SHAPES = {  # levels, points, channels
    "seeds": (4, 8, 32),
    "detr": (4, 4, 32),
    "odd": (3, 5, 24),
    "wide": (3, 4, 64),
}
PARAMETERS = {
    "direct": [{}, {"lanes": 4}, {"arithmetic": "fp32"}],
    "tma": [{}, {"stages": 1}, {"stages": 4}, {"arithmetic": "fp32"}],
}


def kernel(name, dtype, shape, parameters):
    location = "float16" if dtype == "float16" else "float32"
    constants = Constants(*SHAPES[shape], dtype, location, dtype)
    variant = VARIANTS[name]
    return variant.kernel(variant.configure(constants, **parameters), constants)


def cases():
    for name, configurations in PARAMETERS.items():
        for dtype in DTYPES:
            for parameters in configurations:
                yield name, dtype, "seeds", parameters
            for shape in ("detr", "odd", "wide"):
                yield name, dtype, shape, {}


def check_inlined(inspection, uses_tma):
    assert inspection.spill_loads == inspection.spill_stores == 0
    assert inspection.stack == 0
    counts = inspection.instructions
    assert counts.get("CALL", 0) == 0
    assert (counts.get("UTMALDG", 0) > 0) == uses_tma
    assert (counts.get("SYNCS", 0) > 0) == uses_tma


@pytest.mark.parametrize(("name", "dtype", "shape", "parameters"), list(cases()), ids=str)
def test_variant_inlined(name, dtype, shape, parameters):
    inspection = inspect_kernel(kernel(name, dtype, shape, parameters))
    check_inlined(inspection, uses_tma=name == "tma")
    assert inspection.registers <= 128


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", list(VARIANTS))
def test_variant_linked(name, dtype):
    inspection = inspect_kernel(kernel(name, dtype, "seeds", {}).with_linked_ptx())
    assert inspection.instructions["CALL"] > 0
    assert "UTMALDG" not in inspection.instructions  # it stands in the called function
    if name == "tma":
        functions = inspection.functions
        assert functions["cp_async_bulk_tensor_3d"]["UTMALDG"] == 1


def test_probe_and_tile_copy():
    check_inlined(inspect_kernel(probe), uses_tma=True)
    inspection = inspect_kernel(build_tile_copy((2, 2, 32), 2))
    check_inlined(inspection, uses_tma=True)
    assert inspection.instructions["UTMASTG"] == 1
    for one in (probe, build_tile_copy((2, 2, 32), 2)):
        assert inspect_kernel(one.with_linked_ptx()).instructions["CALL"] > 0


def test_direct_runs_before_hopper():
    """direct needs nothing of Hopper, so it links for an sm_80 too."""
    code = inspect_kernel(kernel("direct", "float16", "seeds", {}), "sm_80")
    assert code.instructions["LDG"] > 16
