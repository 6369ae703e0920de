"""Tensor cores on a real GPU: fragments and products as the CPU engine has them, and the tile product."""

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, typeof, types, uint32

from numba_deform.compiler import Kernel
from numba_deform.course.tile_product import TileProduct, build
from numba_deform.device import matrix
from numba_deform.device.memory import shared_address
from numba_deform.engines.cpu import simulate
from numba_deform.engines.gpu.guard import launch_guarded
from numba_deform.engines.gpu.in_place import launch_in_place
from numba_deform.engines.gpu.launch import launch

SMALL = TileProduct(rows=16, columns=64, warp_rows=16, warp_columns=64, stages=2, consumer_registers=0)
PRODUCTS = {
    "mma_m16n8k16_f16": np.float16, "mma_m16n8k16_bf16": ml_dtypes.bfloat16, "mma_m16n8k8_tf32": np.float32,
    "mma_m16n8k32_e4m3": ml_dtypes.float8_e4m3fn, "mma_m16n8k32_e5m2": ml_dtypes.float8_e5m2,
}  # fmt: skip


def both(gpu, function, *args):
    """The arguments after a run of one warp on the CPU engine, and after one on the GPU."""
    kernel = Kernel(function, types.void(*map(typeof, args)), 32)
    here, there = ([a.copy() for a in args] for _ in range(2))
    simulate(kernel, 1, 32, here)
    launch_in_place(gpu, kernel, 1, there, launch=launch)
    return here, there


def exchanging(count, transposed):
    """A kernel: ``words`` go to shared memory, come to ``out`` by ldmatrix, and to ``back`` by stmatrix."""
    load, store = (getattr(matrix, f"{n}_x{count}{'_trans' * transposed}") for n in ("ldmatrix", "stmatrix"))
    call = "load(row)" if count > 1 else "(load(row),)"
    names = ", ".join(f"x[{i}]" for i in range(count))
    scope = {"load": load, "store": store}
    exec(f"def take(row):\n    return {call}\n\ndef give(row, x):\n    store(row, {names})", scope)
    take, give = (cuda.jit(scope[name], device=True) for name in ("take", "give"))
    COUNT = count

    def exchange(words, out, back):
        tile = cuda.shared.array((2, 32, 4), uint32, alignment=16)
        lane = cuda.threadIdx.x
        for i in range(4):
            tile[0, lane, i] = words[lane, i]
            tile[1, lane, i] = uint32(0)
        cuda.syncwarp()
        start = shared_address(tile)
        x = take(uint32(start + 16 * (31 - lane)))
        for i in range(COUNT):
            out[lane, i] = x[i]
        give(uint32(start + 512 + 16 * lane), x)
        cuda.syncwarp()
        for i in range(4):
            back[lane, i] = tile[1, lane, i]

    return exchange


def multiplying(name):
    mma = getattr(matrix, name)

    def multiply(a, b, c, d):
        i = cuda.threadIdx.x
        part = mma(a[i, 0], a[i, 1], a[i, 2], a[i, 3], b[i, 0], b[i, 1], c[i, 0], c[i, 1], c[i, 2], c[i, 3])
        for k in range(4):
            d[i, k] = part[k]

    return multiply


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix(hopper, count, transposed):
    words = np.random.default_rng(count).integers(0, 2**32, (32, 4), np.uint32)
    here, there = both(hopper, exchanging(count, transposed), words, np.zeros_like(words), np.zeros_like(words))
    for mine, its in zip(here, there, strict=True):
        np.testing.assert_array_equal(its, mine)
    np.testing.assert_array_equal(there[2][: 8 * count], words[::-1][: 8 * count])


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("whole", [True, False], ids=["integers", "floats"])
def test_mma(hopper, name, whole):
    """Integers are exact on both; of floats the last bits may differ."""
    random, dtype = np.random.default_rng(1), PRODUCTS[name]

    def fragment(words):
        shape = 32, words * 4 // np.dtype(dtype).itemsize
        numbers = random.integers(-9, 10, shape) if whole else random.standard_normal(shape)
        return numbers.astype(dtype).view(np.uint32)

    c = random.integers(-9, 10, (32, 4)).astype(np.float32)
    here, there = both(hopper, multiplying(name), fragment(4), fragment(2), c, np.full_like(c, np.nan))
    np.testing.assert_allclose(there[3], here[3], rtol=0, atol=0 if whole else 1e-4)


@pytest.mark.parametrize("name", ["s8", "u8", "s8_u8", "u8_s8", "e4m3_e5m2", "e5m2_e4m3"])
def test_mma_of_random_bytes(hopper, name):
    """Integers agree whatever the bytes are; of floats each word is four small whole numbers."""
    random, floats = np.random.default_rng(2), name.startswith("e")
    if floats:
        kinds = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
        a, b = (
            random.integers(-4, 5, (32, words * 4)).astype(kinds[kind]).view(np.uint32)
            for words, kind in zip((4, 2), name.split("_"), strict=True)
        )
    else:
        a, b = (random.integers(0, 2**32, (32, words), np.uint32) for words in (4, 2))
    c = random.integers(-(2**31), 2**31, (32, 4), np.int32)
    if floats:
        c = random.integers(-9, 10, (32, 4)).astype(np.float32)
    here, there = both(hopper, multiplying(f"mma_m16n8k32_{name}"), a, b, c, np.zeros_like(c))
    np.testing.assert_array_equal(there[3], here[3])


@pytest.mark.parametrize(
    ("config", "m", "n", "k"),
    [
        (TileProduct(), 256, 512, 1024),
        (TileProduct(), 200, 264, 72),
        (TileProduct(128, 128, 32, 64, 4, 0), 256, 256, 512),
        (SMALL, 40, 72, 136),
    ],
    ids=str,
)
def test_tile_product(hopper, config, m, n, k):
    random = np.random.default_rng(2)
    a, b = (random.integers(-1, 2, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    grid, dynamic, behind = config.launch(m, n, k)
    for run in (launch_guarded, launch):  # the first one never hangs
        c = np.full((m, n), np.nan, np.float16)
        launch_in_place(hopper, build(config), grid, (config.maps(a, b, c), *behind), dynamic, run)
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
