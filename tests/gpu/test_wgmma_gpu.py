"""wgmma on a real GPU: the tile product against float64, at sizes that fit its tiles and at others.

The layouts of shared memory, A in registers and the order of waits are programs of the corpus, which
test_whole_gpu.py runs, and so is a small pipeline."""

import numpy as np
import pytest

from numba_deform.course.warpgroup_product import WarpgroupProduct, build
from numba_deform.engines.gpu.guard import launch_guarded
from numba_deform.engines.gpu.in_place import launch_in_place
from numba_deform.engines.gpu.launch import launch


def product(gpu, config, m, n, k, numbers, run):
    """(C as the GPU leaves it, A B^T in float64)"""
    random = np.random.default_rng(m + n + k)
    a, b = (numbers(random, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float16)
    grid, dynamic, behind = config.launch(m, n, k)
    launch_in_place(gpu, build(config), grid, (config.maps(a, b, c), *behind), dynamic, run)
    return c, a.astype(np.float64) @ b.astype(np.float64).T


@pytest.mark.parametrize(
    ("config", "m", "n", "k"),
    [
        (WarpgroupProduct(), 256, 512, 1024),
        (WarpgroupProduct(), 200, 264, 72),
        (WarpgroupProduct(128, 128), 256, 256, 512),
        (WarpgroupProduct(64, 64, 2, 256), 72, 136, 200),
        (WarpgroupProduct(64, 256, 3, 256), 64, 256, 64),
    ],
    ids=str,
)
def test_tile_product(hopper, config, m, n, k):
    """Small integers, whose products and sums are exact. The guarded form never hangs."""
    for run in (launch_guarded, launch):
        got, want = product(hopper, config, m, n, k, lambda random, shape: random.integers(-1, 2, shape), run)
        np.testing.assert_array_equal(got, want)


def test_numbers_of_all_sizes(hopper):
    """Against float64, within the rounding of the result to fp16 and of its sums in float32."""
    got, want = product(
        hopper, WarpgroupProduct(), 384, 512, 768, lambda random, shape: random.standard_normal(shape), launch
    )
    assert np.linalg.norm(got - want) < 1e-3 * np.linalg.norm(want)
