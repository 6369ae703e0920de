"""The ceilings' kernels down to SASS: nothing spilled, called or left out."""

import pytest

from numba_deform.compiler.sass import inspect_kernel
from numba_deform.measure import ceilings, scatter


def inlined(kernel):
    found = inspect_kernel(kernel)
    assert found.spill_loads == found.spill_stores == found.stack == 0
    assert found.instructions.get("CALL", 0) == 0
    return found.instructions


full = pytest.mark.full


@pytest.mark.parametrize("row_bytes", [48, *(pytest.param(n, marks=full) for n in (64, 256))])
@pytest.mark.parametrize("unroll", [2, pytest.param(8, marks=full)])
def test_l1_keeps_its_loads(row_bytes, unroll):
    counts = inlined(ceilings.build_l1(row_bytes, row_bytes, unroll))
    assert counts["LDG"] >= 2 * unroll and counts["LDG"] % (2 * unroll) == 0


@pytest.mark.parametrize("row_bytes", [48, *(pytest.param(n, marks=full) for n in (64, 256))])
def test_shared_keeps_its_loads(row_bytes):
    assert inlined(ceilings.build_shared(row_bytes, 4))["LDS"] == 8


@pytest.mark.parametrize(
    ("stages", "points", "warps"),
    [(2, 8, 8), *(pytest.param(*three, marks=full) for three in ((4, 32, 4), (8, 1, 16)))],
)
def test_tma(stages, points, warps):
    counts = inlined(ceilings.build_tma(64, 32, 4, stages, points, warps))
    assert counts["UTMALDG"] > 0 and counts["SYNCS"] > 0


@pytest.mark.full
def test_copy_empty_delay():
    counts = inlined(ceilings.build_copy())
    assert counts["LDG"] >= 4 and counts["STG"] >= 4
    assert sum(inlined(ceilings.build_empty()).values()) < 10
    assert "CS2R" in inlined(ceilings.build_delay())  # reads the clock


@pytest.mark.parametrize(
    ("instruction", "adds"),
    [("red.add.v4.f32", 16), pytest.param("red.add.f32", 16, marks=full),
     pytest.param("red.add.noftz.v4.f16x2", 16, marks=full), pytest.param("red.add.u64", 64, marks=full)],
)  # fmt: skip
def test_scatter_reads_four_places_and_adds_to_their_neighbours(instruction, adds):
    counts = inlined(scatter.build_scatter(32, instruction))
    assert counts["REDG"] == adds and counts["LDG"] == scatter.TOGETHER
    assert not counts.get("ATOMG") and not counts.get("STG")
