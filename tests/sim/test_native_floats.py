"""float32 functions in machine code: the interpreter's bits."""

import numpy as np
import pytest
from helpers import alike
from numba import cuda

from numba_deform.device import float32 as functions

ONE = ("ex2_approx_f32", "ex2_approx_ftz_f32", "lg2_approx_f32", "rcp_approx_f32", "rcp_approx_ftz_f32")
TINY, LARGE = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
EDGES = [0, TINY, 1000 * TINY, 2.0**-126, 0.5, 1, 1.5, 88, 126, 127, 128, 149, 150, 1023, 1024, LARGE, np.inf]


def operands(count):
    """Edges of both signs, NaN, and random numbers of all sizes."""
    random = np.random.default_rng(0)
    spread = random.standard_normal(count) * 2.0 ** random.integers(-149, 127, count)
    return np.float32([*EDGES, *np.negative(EDGES), np.nan, *spread, *random.uniform(-150, 130, count)])


@pytest.mark.parametrize("name", ONE)
def test_of_one_number(name):
    function, x = getattr(functions, name), operands(500)

    def kernel(x, out):
        for i in range(cuda.threadIdx.x, x.size, 32):
            out[i] = function(x[i])

    assert alike(kernel, x, np.zeros_like(x))[1]


@pytest.mark.parametrize("name", ["max_f32", "min_f32"])
def test_of_two_numbers(name):
    function = getattr(functions, name)
    pairs = np.array(np.meshgrid(*[operands(0)] * 2)).reshape(2, -1)

    def kernel(pairs, out):
        for i in range(cuda.threadIdx.x, pairs.shape[1], 32):
            out[i] = function(pairs[0, i], pairs[1, i])

    assert alike(kernel, pairs, np.zeros_like(pairs[0]))[1]
