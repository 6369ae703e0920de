"""FlashAttention's forward among the course's pipelines, and the products by which it multiplies."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda

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
    with pytest.raises(ValueError, match=f"dtype=float32 of a {kind.__name__} must be float16 or bfloat16"):
        kind(64, np.float32)


def product_of(product, columns, wait=True, dtype=np.float16, fence=True):
    """C = A B^T + A B^T by a warpgroup, A and B by TMA to swizzled tiles; to ``out`` as float32, and rounded to
    ``dtype`` by a TMA store of tiles."""
    shared = nd.Shared(a=nd.Array((1, 64, 64), dtype, swizzle="128B"), loaded=nd.Barrier(),
                       b=nd.Array((1, columns, 64), dtype, swizzle="128B"),
                       c=nd.Array((columns // 64, 64, 64), dtype, swizzle="128B"))  # fmt: skip

    @nd.kernel(threads=128, whole_program=True, shared=shared)
    def products(a_map: nd.u64, b_map: nd.u64, c_map: nd.u64, out: nd.float32[:, :]):
        shared.init()
        if nd.warp() == 0 and nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            nd.fence_proxy_tensormap_acquire_sys(c_map)
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
        product.store_tile(shared.c.at(0), 16 * nd.warp(), sums)
        if fence:
            nd.fence_proxy_async()
        cuda.syncthreads()
        if nd.warp() == 0 and nd.lane() == 0:
            for j in range(columns // 64):
                nd.cp_async_bulk_tensor_2d_store(c_map, 64 * j, 0, shared.c.at(j))
            nd.cp_async_bulk_commit_group()
            nd.cp_async_bulk_wait_group(nd.uint32(0))

    a, b = (np.random.default_rng(2).standard_normal((n, 64)).astype(dtype) for n in (64, columns))
    right = 2 * (a.astype(np.float64) @ b.astype(np.float64).T)
    tiles = (a, shared.a), (b, shared.b), (np.empty(right.shape, dtype), shared.c)
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, tile)]) for m, tile in tiles]
    args, expected = [*maps, np.empty(right.shape, np.float32)], {"out": right, "c_map": right}
    return nd.Launch(products, 1, args, expected)


WIDE = (256, ml_dtypes.bfloat16)  # as far from the default as there is


@pytest.mark.parametrize("columns, dtype", [(64, np.float16), (128, ml_dtypes.bfloat16), WIDE])
def test_a_product_by_a_warpgroup(columns, dtype):
    """Within a rounding step of float64, in registers and where TMA takes it from the swizzled tiles."""
    product = WarpgroupProduct(columns, dtype).functions()
    launch = product_of(product, columns, dtype=dtype)
    nd.simulate(launch, landing="random", seed=3)
    assert launch.errors()["out"] < 1e-6 and launch.errors()["c_map"] < ml_dtypes.finfo(dtype).eps
    assert hasattr(product, "add_held") == (columns < 256)


def test_sums_that_are_not_waited_for():
    with pytest.raises(faults.AccumulatorInFlight):
        nd.simulate(product_of(WarpgroupProduct(64).functions(), 64, wait=False))


def test_tiles_that_are_not_fenced():
    with pytest.raises(faults.MissingProxyFence, match=r"c\["):
        nd.simulate(product_of(WarpgroupProduct(64).functions(), 64, fence=False))


def test_a_product_by_a_warp_in_bfloat16():
    """By mma and stmatrix; chunks of the tile lie where the swizzle has them."""
    dtype, product = ml_dtypes.bfloat16, WarpProduct(32, "bfloat16").functions()
    a, b, c = (nd.Array((1, rows, 64), dtype, swizzle="128B") for rows in (16, 32, 16))
    shared = nd.Shared(a=a, b=b, c=c, loaded=nd.Barrier())

    @nd.kernel(threads=32, shared=shared)
    def products(a_map: nd.u64, b_map: nd.u64, out: nd.uint16[:, :]):
        shared.init()
        if nd.lane() == 0:
            nd.fence_proxy_tensormap_acquire_sys(a_map)
            nd.fence_proxy_tensormap_acquire_sys(b_map)
            shared.loaded.expect(shared.a.box_bytes + shared.b.box_bytes)
            nd.cp_async_bulk_tensor_2d(shared.a.at(0), a_map, 0, 0, shared.loaded.at())
            nd.cp_async_bulk_tensor_2d(shared.b.at(0), b_map, 0, 0, shared.loaded.at())
        shared.loaded.wait(0)
        sums, tile = product.zeros(), shared.c.box_view(0)  # of bfloat16 the bits
        product.add(sums, shared.a.at(0), 0, shared.b.at(0))
        product.store_tile(shared.c.at(0), 0, sums)
        cuda.syncwarp()
        for row in range(16):
            out[row, nd.lane()] = tile[row, nd.lane() ^ 8 * (row & 7)]  # where the swizzle has put it

    a, b = (np.random.default_rng(2).standard_normal((n, 64)).astype(dtype) for n in (16, 32))
    maps = [nd.TensorMapArray([nd.TensorMap.of(m, t)]) for m, t in ((a, shared.a), (b, shared.b))]
    out, right = np.full((16, 32), 0xFFFF, np.uint16), a.astype(np.float64) @ b.astype(np.float64).T
    nd.simulate(products, 1, args=[*maps, out])
    got = out.view(dtype).astype(np.float64)
    assert np.abs(got - right).max() < 2**-8 * np.abs(right).max()
