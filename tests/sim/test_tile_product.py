"""The teaching kernel of a tile product, at sizes that do not fit its tiles, and what its parameters may be."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, uint32

from numba_deform.course import warpgroup_product
from numba_deform.course.tile_product import ROW, TileProduct, build, place_in_a, place_in_b
from numba_deform.course.warpgroup_product import WarpgroupProduct
from numba_deform.engines.cpu import simulate
from numba_deform.engines.tensormap import swizzle_offsets
from numba_deform.kernels.problem import ConfigError

SMALL = TileProduct(rows=16, columns=64, warp_rows=16, warp_columns=64, stages=2, consumer_registers=0)
FOUR = TileProduct(rows=32, columns=128, warp_rows=16, warp_columns=64, stages=2, consumer_registers=0)


def run(config, m, n, k, build=build, dtype=np.float16, **options):
    """(C, what it should be); the operands are small integers, so that both are exact."""
    random = np.random.default_rng(m * n * k)
    a, b = (random.integers(-2, 3, shape).astype(dtype) for shape in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, dtype)
    grid, dynamic, behind = config.launch(m, n, k)
    simulate(build(config), grid, config.threads, (config.maps(a, b, c), *behind), dynamic, **options)
    return c, a.astype(np.float32) @ b.astype(np.float32).T


@pytest.mark.parametrize(
    ("config", "m", "n", "k"),
    [
        (SMALL, 40, 72, 136),  # nothing is a multiple of anything: six blocks, whose boxes stick out
        (FOUR, 32, 128, 72),
        *(pytest.param(*case, marks=pytest.mark.full) for case in (
            (SMALL, 16, 64, 8),
            (TileProduct(16, 64, 16, 64, 3, 0), 16, 64, 320),  # three stages for five steps
            (TileProduct(32, 64, 32, 64, 2, 0), 32, 64, 128),  # a warp has two blocks of rows
            (TileProduct(16, 128, 16, 128, 2, 0), 16, 128, 64),  # and stores two boxes
            (TileProduct(128, 64, 16, 64, 2, 240), 128, 64, 64),  # registers move to eight consumers
        )),
    ],
    ids=str,
)
def test_the_product(config, m, n, k):
    got, want = run(config, m, n, k, landing="random", seed=1)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("base", [0, 128, 640])
def test_lanes_find_the_swizzled_rows_in_different_banks(base):
    """The chunks of sixteen rows that lanes ask for lie where TMA puts them, and those of each 8x8 matrix in
    all 32 banks once."""
    BASE = base

    def places(out):
        lane = cuda.threadIdx.x
        out[lane, 0], out[lane, 1] = place_in_a(uint32(BASE)), place_in_b(uint32(BASE))

    out, lanes = np.zeros((32, 2), np.int64), np.arange(32)
    simulate(places, 1, 32, (out,))
    swizzled = swizzle_offsets(16 * ROW, "128B", base)
    of_a = (lanes % 16, lanes // 16)  # row and half: matrices 0 and 1 are at k, 2 and 3 at k + 8
    of_b = (lanes % 8 + 8 * (lanes // 16), lanes // 8 % 2)
    for column, (rows, halves) in enumerate((of_a, of_b)):
        for k in range(4):  # XOR goes on along k
            got = out[:, column] ^ (32 * k)
            np.testing.assert_array_equal(got, swizzled[ROW * rows + 16 * halves + 32 * k])
            banks = (base + got) // 16 % 8  # groups of four
            assert all(len(set(matrix)) == 8 for matrix in banks.reshape(4, 8).tolist())


def test_by_a_warpgroup_in_bfloat16():
    config = WarpgroupProduct(64, 256, 2, 256, "bfloat16")
    got, want = run(config, 64, 200, 72, warpgroup_product.build, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float32), want)
    with pytest.raises(ConfigError, match="dtype=.*must be float16 or bfloat16"):
        WarpgroupProduct(dtype="float32")


def test_in_many_orders():
    for seed, landing in enumerate(("late", "random", "earliest")):
        got, want = run(SMALL, 16, 64, 192, landing=landing, seed=seed)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("warp_rows", {"warp_rows": 24}, "must be a multiple of 16"),
        ("warp_columns", {"warp_columns": 32}, "must be a multiple of 64"),
        ("warp_rows", {"rows": 256, "warp_rows": 16}, "must make at most 1024 threads"),
        ("rows", {"rows": 96}, "must be a multiple of warp_rows, at most 256"),
        ("columns", {"columns": 512}, "must be a multiple of warp_columns, at most 256"),
        ("stages", {"stages": 1}, "must make a ring that holds the tile of C"),
        ("stages", {"stages": 5}, "must fit into 232448 bytes"),
        ("consumer_registers", {"rows": 64, "columns": 64}, "needs consumers by fours"),
        ("consumer_registers", {"consumer_registers": 248}, "a multiple of 8 from 168 to 240"),
        ("consumer_registers", {"consumer_registers": 230}, "must be a multiple of 8"),
        ("consumer_registers", {"rows": 64, "consumer_registers": 248}, "a multiple of 8 from 256 to 256"),
    ],
)  # fmt: skip
def test_parameters_that_no_kernel_has(name, changes, words):
    with pytest.raises(ConfigError, match=words) as caught:
        TileProduct(**changes)
    assert name in str(caught.value)
