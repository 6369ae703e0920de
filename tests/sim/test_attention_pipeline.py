"""FlashAttention's forward among the course's pipelines, and the products by which it multiplies."""

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.course.pipelines.attention import attention
from numba_deform.engines import faults
from numba_deform.kernels.warp_product import WarpgroupProduct, WarpProduct


@pytest.mark.parametrize("options", [
    {"by": "mma", "steps": 1}, {"by": "wgmma", "steps": 3},
    pytest.param({"by": "mma", "steps": 3, "groups": 2}, marks=pytest.mark.full),
    pytest.param({"by": "wgmma", "steps": 5, "groups": 2, "heads": 2, "blocks": 2}, marks=pytest.mark.full),
])  # fmt: skip
def test_is_right(options):
    launch = attention(**options)
    nd.simulate(launch)
    assert launch.errors()["out"] < 5e-4  # weights are rounded to fp16


@pytest.mark.parametrize("landing", ["random", "earliest"])
def test_in_other_orders(landing):
    nd.simulate(attention(by="wgmma", stages=1, steps=3), landing=landing, seed=1)


@pytest.mark.full
def test_products_of_a_warp_as_machine_code():
    launch = attention(by="mma", steps=2)
    outputs = []
    for compiled in (False, True):
        assert nd.simulate(launch, compiled=compiled).compiled == compiled
        outputs.append(launch.outputs["out"].copy())
    np.testing.assert_array_equal(*outputs)


def test_by_what_else():
    with pytest.raises(nd.ConfigError, match="must be mma or wgmma"):
        attention(by="fma")


# --- products ---------------------------------------------------------------------------------------
def test_where_the_sums_lie():
    """Rows and columns as ``row`` and ``column`` have them, and what is taken of a row, in one warp."""
    product = WarpProduct(32).functions()

    @nd.kernel(threads=32)
    def places(out: nd.float32[:, :], rows: nd.float32[:, :]):
        sums = product.zeros()
        for i in range(16):
            sums[i] = nd.float32(100 * product.row(i) + product.column(i))
        product.store(out, 0, 0, sums)
        for h in nd.static_range(2):
            largest = product.row_max(sums, h, nd.float32(150))
            total = product.row_sum(sums, h)
            product.scale_row(sums, h, nd.float32(2) + nd.float32(h))
            rows[nd.lane() // 4 + 8 * h, nd.lane() % 4] = largest + total * nd.float32(1000)
        product.store(rows, 0, 4, sums)

    out, rows = np.zeros((16, 32), np.float32), np.zeros((16, 36), np.float32)
    nd.simulate(places, 1, args=[out, rows])
    right = 100 * np.arange(16)[:, None] + np.arange(32)
    assert np.array_equal(out, right)
    assert np.array_equal(rows[:, 4:], right * np.repeat([2, 3], 8)[:, None])
    both = np.maximum(right.max(1), 150) + 1000 * right.sum(1)
    assert np.allclose(rows[:, :4], both[:, None], rtol=1e-6)


@pytest.mark.parametrize("columns", [(WarpProduct, 24), (WarpProduct, 0), (WarpgroupProduct, 32)])
def test_columns_that_there_are_not(columns):
    kind, number = columns
    with pytest.raises(ValueError, match=f"columns={number} of a {kind.__name__} must be"):
        kind(number)


def product_of(product, whole, columns, wait=True):
    """C = A B^T + A B^T by a warpgroup, A and B by ordinary stores to swizzled tiles, B's tile as it is."""
    shared = nd.Shared(a=nd.Array((1, 64, 64), nd.float16, swizzle="128B"),
                       b=nd.Array((1, columns, 64), nd.float16, swizzle="128B"), loaded=nd.Barrier())

    @nd.kernel(threads=128, whole_program=whole, shared=shared)
    def products(a_map: nd.u64, b_map: nd.u64, out: nd.float32[:, :]):
        shared.init()
        if nd.warp() == 0 and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            shared.loaded.expect(shared.a.box_bytes + shared.b.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.a.at(0), a_map, 0, 0, shared.loaded.at())
            nd.cp_async_bulk_tensor_2d(shared.b.at(0), b_map, 0, 0, shared.loaded.at())
        shared.loaded.wait(0)
        sums = product.zeros()
        product.add(sums, shared.a.at(0), shared.b.at(0), 0)
        product.add(sums, shared.a.at(0), shared.b.at(0), 1)
        if wait:
            product.wait(sums, 0)
        product.store(out, 16 * nd.warp(), 0, sums)

    random = np.random.default_rng(2)
    a, b = (random.integers(-4, 4, (n, 64)).astype(np.float16) for n in (64, columns))
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, t)])
            for m, t in ((a, shared._parts["a"]), (b, shared._parts["b"]))]  # fmt: skip
    right = 2 * (a.astype(np.float32) @ b.T.astype(np.float32))
    return nd.Launch(products, 1, [*maps, np.empty_like(right)], {"out": right})


@pytest.mark.parametrize("columns", [64, 128])
def test_a_product_by_a_warpgroup(columns):
    nd.simulate(product_of(WarpgroupProduct(columns).functions(), True, columns))


def test_sums_that_are_not_waited_for():
    with pytest.raises(faults.AccumulatorInFlight):
        nd.simulate(product_of(WarpgroupProduct(64).functions(), True, 64, wait=False))
