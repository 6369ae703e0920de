"""What surrounds the backward kernels, on the CPU engine: scales and rounded sums, beside NumPy."""

import dataclasses

import numpy as np
import pytest

from numba_deform import SimFault
from numba_deform.attention import gradients
from numba_deform.engines.cpu import simulate
from numba_deform.kernels import backward_sums
from numba_deform.kernels.problem import NUMPY_DTYPES, Constants, Problem, make_levels

PROBLEM = Problem(2, 23, 2, 5, make_levels([[5, 4], [1, 3]]), Constants(2, 3, 16))
POISON = 0xA5


def problem_of(dtype="float16", channels=16, weight_dtype="float16"):
    return dataclasses.replace(PROBLEM, constants=Constants(2, 3, channels, dtype, weight_dtype=weight_dtype))


def poisoned(shape, dtype):
    return np.full(np.prod(shape) * np.dtype(dtype).itemsize, POISON, np.uint8).view(dtype).reshape(shape)


def launch(launch, **arrays):
    """Run one of them; what it writes is among ``arrays``, by the names of its arguments."""
    kernel, blocks, *arguments = launch
    arguments = [arrays.get(a, np.empty(0, np.uint8)) if isinstance(a, str) else a for a in arguments]
    simulate(kernel, blocks, kernel.threads, arguments)


def scale_of(problem, given, weights, exponent=40):
    """What the two launches find."""
    largest, scale = poisoned(2 * backward_sums.largest_blocks(problem), np.uint32), poisoned(2, np.float32)
    launch(backward_sums.largest(problem), grad_out=given, weights=weights, largest=largest)
    launch(backward_sums.scale(problem, exponent), largest=largest, scale=scale)
    np.testing.assert_equal(scale[1], 1 / scale[0])
    return scale[0]


def drawn(problem, seed=3):
    """(gradient of the output, weights), where neither first nor last numbers are the largest."""
    random, constants = np.random.default_rng(seed), problem.constants
    given = random.standard_normal(problem.out_shape).astype(NUMPY_DTYPES[constants.dtype])
    weights = random.random((problem.rows, 6)).astype(NUMPY_DTYPES[constants.weight_dtype])
    return given, weights


@pytest.mark.parametrize("queries", [5, 271])
@pytest.mark.parametrize("dtype, weight_dtype", [
    ("float16", "float16"), ("bfloat16", "float32"), ("float32", "bfloat16")])  # fmt: skip
def test_the_scale(dtype, weight_dtype, queries, monkeypatch):
    """The power of two that leaves the largest product room; by a number anywhere, of either sign, with one
    block, and with two that go round."""
    monkeypatch.setattr(backward_sums, "MOST_BLOCKS", 2)
    problem = dataclasses.replace(problem_of(dtype, weight_dtype=weight_dtype), queries=queries)
    given, weights = drawn(problem)
    for place, number in ((0, -48.0), (given.size - 1, 96.0), (given.size // 2, -96.5)):
        given.reshape(-1)[place], weights.reshape(-1)[-1 - place % 7] = number, 4 + place % 3
        product = np.float32(abs(given).max()) * np.float32(weights.max())
        assert scale_of(problem, given, weights) == 2.0 ** (40 - np.frexp(product)[1])


@pytest.mark.parametrize("numbers, scale", [
    ((0.0, 1.0), 2.0**126), ((1.0, 0.0), 2.0**126), ((1.0, 1.0), 2.0**39), ((2.0**-100, 2.0**-20), 2.0**126),
    ((2.0**100, 2.0**30), np.nan), ((np.nan, 1.0), np.nan), ((1.0, -np.inf), np.nan), ((0.0, np.nan), np.nan),
    ((2.0**90, 2.0**37), 2.0**-88)])  # fmt: skip
def test_a_scale_at_its_ends(numbers, scale):
    """NaN where the product is not finite, and wherever a number is none."""
    problem = problem_of("float32", weight_dtype="float32")
    given, weights = np.zeros(problem.out_shape, np.float32), np.zeros((problem.rows, 6), np.float32)
    given[1, 2, 3], weights[4, 5] = numbers
    np.testing.assert_equal(scale_of(problem, given, weights), np.float32(scale))


def test_a_scale_of_many_blocks(monkeypatch):
    """More than ``scale`` reads at once."""
    monkeypatch.setattr(backward_sums, "largest_blocks", lambda problem: 300)
    found = []
    for place in (0, 31, 150, 299):
        largest, scale = np.full((300, 2), np.float32(0.25)), poisoned(2, np.float32)
        largest[place] = 8, 4
        launch(backward_sums.scale(PROBLEM, 40), largest=largest, scale=scale)
        found.append(scale[0])
    assert found == [2.0**34] * 4


@pytest.mark.parametrize("channels", [8, 16, 24])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("sums", ["fp32", "fixed"])
def test_rounded_sums(sums, dtype, channels):
    """Each number once, in its place."""
    problem, random = problem_of(dtype, channels), np.random.default_rng(5)
    shape, kind = gradients.sums_shape(problem, sums)
    total = random.standard_normal(shape).astype(np.float32)
    want, scale = total, np.ones(2, np.float32)
    if sums == "fixed":
        scale = np.array([2.0**40, 2.0**-40], np.float32)
        total = np.ldexp(total.astype(np.float64), 40).astype(np.int64)
        want = np.swapaxes(total.astype(np.float32) * scale[1], -1, -2).reshape(*shape[:3], channels)
    found = poisoned(want.shape, NUMPY_DTYPES[dtype])
    launch(backward_sums.rounded(problem, sums), grad_value=total.astype(kind), scale=scale, rounded=found)
    assert np.array_equal(found, want.astype(found.dtype))


def test_no_byte_more_than_there_is():
    """A last block has threads without numbers."""
    problem = problem_of()
    assert problem.batch * problem.spatial_size * problem.heads * 4 % backward_sums.THREADS
    shape, kind = gradients.sums_shape(problem, "fp32")
    total, found = np.ones(shape, kind), poisoned(shape, np.float16)
    launch(backward_sums.rounded(problem, "fp32"), grad_value=total, rounded=found)
    with pytest.raises(SimFault, match="OutOfRange: writes"):
        launch(backward_sums.rounded(problem, "fp32"), grad_value=total, rounded=found.reshape(-1)[:-8].copy())
