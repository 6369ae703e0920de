"""The tile product as machine code: what its inner loop is made of, and that nothing is spilled."""

import functools

import pytest

from numba_deform.compiler.sass import inspect_kernel
from numba_deform.course.tile_product import TileProduct, build
from numba_deform.device.limits import HOPPER, LIMITS
from numba_deform.device.memory import dynamic_bytes
from numba_deform.kernels.budget import occupancy

SMALL = TileProduct(rows=32, columns=64, warp_rows=16, warp_columns=64, stages=2, consumer_registers=0)
OTHER = TileProduct(rows=128, columns=128, warp_rows=32, warp_columns=64, stages=4, consumer_registers=0)


@functools.cache
def inspected(config):
    return inspect_kernel(build(config))


@pytest.mark.parametrize(
    "config", [SMALL, TileProduct(), OTHER], ids=["small", "default", "128x128"]
)
@pytest.mark.full
def test_instructions(config):
    found = inspected(config)
    assert found.spill_loads == found.spill_stores == found.stack == 0
    counts = found.instructions
    assert "CALL" not in counts
    down, across = config.warp_rows // 16, config.warp_columns // 8
    assert counts["HMMA"] == 4 * down * across  # 64 of k
    # Fragments of each 16 of k, and once more before the loop.
    assert counts["LDSM"] == 5 * (down + across // 2)
    assert counts["STSM"] == down * across // 2
    assert counts["UTMALDG"] == 2 and counts["UTMASTG"] >= 1
    assert ("USETMAXREG" in counts) == bool(config.consumer_registers)
    shared = dynamic_bytes(config.shared_bytes) or config.shared_bytes
    assert occupancy(config.threads, found.registers, shared, LIMITS[HOPPER]).blocks >= 1


@pytest.mark.full
def test_the_loop_is_products():
    """Between the default kernel's first and last product stands little else than products and loads of
    fragments: no moves that bring the fragments into order."""
    lines = [line for line in inspected(TileProduct()).sass.splitlines() if "/*" in line]
    products = [i for i, line in enumerate(lines) if "HMMA.16816.F32" in line]
    loop = lines[products[0] : products[-1] + 1]
    loads = sum("LDSM.16.M88.4" in line for line in loop)
    assert len(products) == 128 and loads >= 24
    assert len(loop) - len(products) - loads < 64
