"""Every kernel down to SASS with no GPU: no spills, no stack, the instructions that belong there."""

import dataclasses
import itertools
import re

import pytest

from numba_deform.attention.gradients import BACKWARD, WINDOW
from numba_deform.compiler.sass import inspect_kernel
from numba_deform.kernels import backward_sums
from numba_deform.kernels.backward import lanes
from numba_deform.kernels.plain_tiles import build as build_plain_tiles
from numba_deform.kernels.probe import probe
from numba_deform.kernels.problem import Constants, Problem, make_levels
from numba_deform.kernels.registry import VARIANTS
from numba_deform.kernels.tile_copy import build as build_tile_copy

DTYPES = ["float16", "bfloat16", "float32"]
SHAPES = {  # levels, points, channels
    "seeds": (4, 8, 32),
    "detr": (4, 4, 32),
    "odd": (3, 5, 24),
    "wide": (3, 4, 64),
}
FAMILIES = {  # one name for each kernel, and configurations that change its code most
    "direct": [{}, {"lanes": 4}, {"arithmetic": "fp32"}],
    "tile": [{}],
    "tile-cp-async": [{"stages": 3}],
    "tma": [{}, {"stages": 4}, {"debug": True}],
    "persistent": [{"stages": 1}, {"maps": "level"}],
    "persistent-prefetch": [{}, {"arithmetic": "fp32", "min_blocks": 1}],
    "roles-recompute": [{}, {"arithmetic": "fp32"}, {"prefetch": True}],
    "roles-shared": [{"arithmetic": "fp32"}, {"debug": True}],
    "roles-flags": [{}],
    "roles-shuffle": [{"prefetch": True}],
    "window": [{"stages": 1}, {"arithmetic": "fp32"}],  # each takes a quarter of a minute
}
# One kernel with copies and one without; the rest is ``full``. Direct of float16 is in
# test_the_second_launch_of_auto.
QUICK = [
    ("direct", "float32", "seeds", {}),
    ("tma", "float16", "seeds", {}),
]
full = pytest.mark.full


def others_full(cases, quick):
    """The cases as a list of parameters, with ``full`` at those that are not among ``quick``."""
    assert [case for case in quick if case not in cases] == []
    rows = [(case, case if isinstance(case, tuple) else (case,)) for case in cases]
    return [pytest.param(*row, marks=() if case in quick else full) for case, row in rows]


def kernel(name, dtype, shape, parameters):
    location = "float16" if dtype == "float16" else "float32"
    constants = Constants(*SHAPES[shape], dtype, location, dtype)
    variant = VARIANTS[name]
    return variant.kernel(variant.configure(constants, **parameters), constants)


def cases():
    for name in VARIANTS:
        yield name, "float16", "seeds", {}
    for number, (name, configurations) in enumerate(FAMILIES.items()):
        for parameters in configurations:
            if parameters:
                yield name, "float16", "seeds", parameters
        # The persistent kernel holds two rows in registers: of fp32, or with odd shapes, one block's.
        one = {"min_blocks": 1} if "persistent" in name else {}
        shapes = ("detr", "odd", "wide") if name != "window" else ("detr", "wide")
        yield name, ("float32", "bfloat16")[number % 2], "seeds", one
        yield name, "float16", shapes[number % len(shapes)], one


def check_inlined(inspection, uses_tma):
    assert inspection.spill_loads == inspection.spill_stores == 0
    assert inspection.stack == 0
    counts = inspection.instructions
    assert counts.get("CALL", 0) == 0
    assert (counts.get("UTMALDG", 0) > 0) == uses_tma
    assert (counts.get("SYNCS", 0) > 0) == uses_tma


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "parameters"), others_full(list(cases()), QUICK), ids=str
)
def test_variant_inlined(name, dtype, shape, parameters):
    inspection = inspect_kernel(kernel(name, dtype, shape, parameters))
    check_inlined(inspection, uses_tma=VARIANTS[name].fetch != "l1")
    assert inspection.registers <= 255
    assert (inspection.instructions.get("LDGSTS", 0) > 0) == (name == "tile-cp-async")


@pytest.mark.parametrize("name", others_full(["tma", *list(FAMILIES)[1::3]], ["tma"]))
def test_variant_linked(name):
    inspection = inspect_kernel(kernel(name, "float16", "seeds", {}).with_linked_ptx())
    assert inspection.instructions["CALL"] > 0
    assert "UTMALDG" not in inspection.instructions  # it stands in the called function
    if VARIANTS[name].fetch == "tma":
        functions = inspection.functions
        assert functions["cp_async_bulk_tensor_3d"]["UTMALDG"] == 1


@full
def test_registers_move():
    """setmaxnreg survives only in code that is compiled as a whole program."""
    sass = inspect_kernel(kernel("warp-specialized-registers", "float16", "seeds", {})).sass
    assert "USETMAXREG.DEALLOC" in sass and "USETMAXREG.TRY_ALLOC" in sass
    off = {"producer_registers": 0, "consumer_registers": 0}
    assert (
        "USETMAXREG" not in inspect_kernel(kernel("warp-specialized", "float16", "seeds", off)).sass
    )


@full
def test_the_first_launch_of_auto():
    """A division would be a call, and would make it spill."""
    constants, window = Constants(*SHAPES["detr"]), VARIANTS["window"]
    near = inspect_kernel(window.kernel(window.configure(constants).fitted(limit=9), constants))
    check_inlined(near, uses_tma=True)
    assert "CALL" not in near.instructions


@pytest.mark.full
def test_the_second_launch_of_auto():
    """It goes through its rows in a loop, and inside it is the plain kernel: as many of its blocks are
    resident."""
    constants, direct = Constants(*SHAPES["detr"]), VARIANTS["direct"]
    far = inspect_kernel(direct.kernel(direct.configure(constants).gated(), constants))
    check_inlined(far, uses_tma=False)
    plain = inspect_kernel(direct.kernel(direct.configure(constants), constants))
    check_inlined(plain, uses_tma=False)
    assert far.kernel.name == "direct_gated" and far.registers <= 72  # of 65536, for 7 blocks of 128 threads
    assert 0 < sum(far.instructions.values()) - sum(plain.instructions.values()) < 50
    assert far.instructions["SHFL"] == plain.instructions["SHFL"]


@full
def test_prefetch_of_maps():
    """UTMACCTL.PF is prefetch.tensormap; UTMACCTL.IV, the acquire fence, is there in any case."""
    for name, prefetches in (("tma", False), ("tma-prefetch-map", True)):
        sass = inspect_kernel(kernel(name, "float16", "seeds", {})).sass
        assert ("UTMACCTL.PF" in sass) == prefetches


@full
@pytest.mark.parametrize("dtype", DTYPES)
def test_plain_tiles(dtype):
    location = "float16" if dtype == "float16" else "float32"
    for shape in SHAPES.values():
        check_inlined(
            inspect_kernel(build_plain_tiles(Constants(*shape, dtype, location, dtype))), False
        )


# The backward kernel: (types, shape, parameters, method); a lane for each row is quickly compiled.
BACKWARD_QUICK = [("float32", "row", {}, "default")]
BACKWARD_CASES = [
    *BACKWARD_QUICK,
    ("float16", "pair", {"sums": "fixed"}, "default"),
    *((dtype, "seeds", {}, "default") for dtype in ("float32", "float16")),
    ("bfloat16", "seeds", {"sums": "fixed"}, "default"),
    *(("float16", shape, {}, "default") for shape in ("odd", "widest")),
    ("float32", "seeds", {"of_value": False}, "default"),
    ("float16", "seeds", {"of_samples": False, "sums": "fixed"}, "default"),
    ("float16", "uneven", {}, "discrete"),
]
BACKWARD_SHAPES = {
    **SHAPES, "row": (1, 3, 4), "pair": (2, 2, 8), "widest": (2, 4, 128), "uneven": (3, (2, 5, 1), 32),
}  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "shape", "parameters", "method"), others_full(BACKWARD_CASES, BACKWARD_QUICK), ids=str
)
def test_backward(dtype, shape, parameters, method):
    """Additions are reductions, which nothing waits for, of four floats or of one integer at once; nothing else
    is written but two words of a sample, by the lane that it belongs to."""
    location = "float16" if dtype == "float16" else "float32"
    constants = Constants(*BACKWARD_SHAPES[shape], dtype, location, dtype, method)
    config = BACKWARD.configure(constants, **parameters)
    inspection = inspect_kernel(BACKWARD.kernel(config, constants))
    owners = min(lanes(constants), 8)
    corners, counts = 4 * owners if config.of_value else 0, inspection.instructions
    fixed = config.sums == "fixed"
    # Six blocks of 128 threads leave 80 registers; of all that is fp32, two of them are spilled, once or twice.
    all_asked = config.of_value and config.of_samples
    spilled = (2 if fixed else 1) if dtype == "float32" and shape == "seeds" and all_asked else 0
    assert inspection.spill_loads <= spilled and inspection.spill_stores <= spilled
    assert inspection.stack <= 8 * min(spilled, 1)
    assert inspection.registers <= 80
    assert counts.get("CALL", 0) == counts.get("ATOM", 0) == counts.get("ATOMG", 0) == 0
    reductions = re.findall(r"\bREDG?\.\S+", inspection.sass)
    kind = r"REDG?\.E\.ADD\.64\.STRONG\.GPU" if fixed else r"REDG?\.E\.ADD\.F32x4(\.\w+)*\.STRONG\.GPU"
    assert len(reductions) == (4 if fixed else 1) * corners
    assert all(re.fullmatch(kind, name) for name in reductions)
    assert counts.get("STG", 0) == (2 if config.of_samples else 0)
    if method == "default":  # a sample goes to all lanes of a row; its three sums come back
        handed = (4 + config.of_value) * owners
        steps = owners - 1 + (lanes(constants) // owners).bit_length() - 1
        assert counts["SHFL"] == handed + (3 * steps if config.of_samples else 0)


@full
@pytest.mark.parametrize("sums", ["fp32", "fixed"])
def test_gated_backward(sums):
    """What runs behind windows: it asks for its rows by one addition, and takes no more registers for that."""
    constants = Constants(*SHAPES["detr"], "float16", "float32", "float16", "default")
    config = BACKWARD.configure(constants, sums=sums, is_gated=True)
    inspection = inspect_kernel(BACKWARD.kernel(config, constants))
    assert inspection.spill_loads == inspection.spill_stores == inspection.stack == 0
    assert inspection.registers <= 80
    assert inspection.instructions.get("ATOMG", 0) + inspection.instructions.get("ATOM", 0) == 1


@full
@pytest.mark.parametrize("dtype, shape, parameters", [
    ("float16", "detr", {}), ("float16", "seeds", {"sums": "fixed"}), ("bfloat16", "detr", {"limit": 10}),
    ("bfloat16", "seeds", {}), ("float16", "wide4", {"sums": "fixed", "limit": 10})])  # fmt: skip
def test_backward_window(dtype, shape, parameters):
    """Shares are added to shared memory by instructions of their own, integers without a loop; dot products are
    products of matrices. Two blocks of 256 threads leave 128 registers."""
    constants = Constants(*{**SHAPES, "wide4": (3, 4, 64)}[shape], dtype, "float32", dtype, "default")
    inspection = inspect_kernel(WINDOW.kernel(WINDOW.configure(constants, **parameters), constants))
    counts, rows_at_once = inspection.instructions, 128 // constants.channels
    assert inspection.spill_loads == inspection.spill_stores == inspection.stack == 0
    assert inspection.registers <= 128
    assert counts.get("CALL", 0) == counts.get("ATOM", 0) == counts.get("ATOMG", 0) == 0
    assert counts["ATOMS"] == 4 * 4 * 4  # of four points, four pixels, four channels
    assert not re.findall(r"ATOMS\.CAST", inspection.sass)
    assert counts["HMMA"] == rows_at_once * constants.channels // 16
    assert counts["UTMALDG"] == 2  # of an item's first level, and of its others


@full
def test_probe_and_tile_copy():
    check_inlined(inspect_kernel(probe), uses_tma=True)
    inspection = inspect_kernel(build_tile_copy((2, 2, 32), 2))
    check_inlined(inspection, uses_tma=True)
    assert inspection.instructions["UTMASTG"] == 1
    for one in (probe, build_tile_copy((2, 2, 32), 2)):
        assert inspect_kernel(one.with_linked_ptx()).instructions["CALL"] > 0


@pytest.mark.full
@pytest.mark.parametrize(
    "name", others_full([v.name for v in VARIANTS.values() if v.capability == (8, 0)], ["direct"])
)
def test_before_hopper(name):
    """What needs nothing of Hopper links for an sm_80 too."""
    code = inspect_kernel(kernel(name, "float16", "seeds", {}), "sm_80")
    assert code.instructions["LDG"] + code.instructions.get("LDGSTS", 0) > 4


@full
@pytest.mark.parametrize(
    "name", ["tile-cp-async", "tma", "persistent-prefetch", "roles-shared"]
)
def test_marks_stand_in_the_traced_form_alone(name):
    assert "SR_CLOCK" not in inspect_kernel(kernel(name, "float16", "seeds", {})).sass
    assert "SR_CLOCK" in inspect_kernel(kernel(name, "float16", "seeds", {"trace": True})).sass


SUMS_PROBLEM = Problem(2, 400, 8, 300, make_levels([[20, 20]]), Constants(1, 4, 32))


@full
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_surrounds_the_backward_kernels(dtype):
    """Loads of one turn all go out before the first is waited for; a sum is read once, by words of 16 bytes, or
    of 8 where it is an integer."""
    problem = dataclasses.replace(SUMS_PROBLEM, constants=Constants(1, 4, 32, dtype, weight_dtype=dtype))
    launches = {"largest": backward_sums.largest(problem), "scale": backward_sums.scale(problem, 40)}
    launches |= {sums: backward_sums.rounded(problem, sums) for sums in ("fp32", "fixed")}
    found = {name: inspect_kernel(kernel) for name, (kernel, *_) in launches.items()}
    for inspection in found.values():
        check_inlined(inspection, uses_tma=False)
    assert len(re.findall(r"LDG\.E\.64", found["fixed"].sass)) == 4
    assert len(re.findall(r"LDG\.E\.128", found["fp32"].sass)) == 1
    together = max(len(list(group)) for is_load, group in itertools.groupby(
        re.findall(r"\b(LDG|FMNMX|VIMNMX|IMNMX|VIMNMX3)\b", found["largest"].sass), lambda name: name == "LDG")
        if is_load)  # fmt: skip
    assert together >= backward_sums.ABREAST
