"""The backward kernel on the CPU engine against the float64 reference."""

import numpy as np
import pytest
from gradient_cases import LIMITS, drawn

from numba_deform import ConfigError, OperatorError, reference, relative_error
from numba_deform.attention.gradients import gradients
from numba_deform.attention.reference import reference_gradients
from numba_deform.kernels.backward import Backward

full = pytest.mark.full


def check(case, **options):
    """The gradients agree with those of float64; they are returned."""
    found = case.gradients(**options)
    for gradient, exact in zip(found, case.exact(), strict=True):
        if gradient is not None:
            assert relative_error(gradient, exact) < LIMITS[gradient.dtype.name]
    return found


@full
@pytest.mark.parametrize(
    ("dtype", "channels", "deterministic"),
    [
        ("float32", 12, True), ("float16", 8, False), ("bfloat16", 16, True), ("float32", 4, False),
        ("float16", 16, False), ("float16", 32, False), ("float16", 32, True), ("bfloat16", 24, False),
        ("bfloat16", 24, True), ("float32", 4, True), ("float32", 32, False),
        ("float16", 64, True), ("float16", 128, False), ("float32", 64, False),
    ],
)  # fmt: skip
def test_types_and_channels(dtype, channels, deterministic):
    check(drawn(dtype=dtype, channels=channels), deterministic=deterministic)


@pytest.mark.parametrize("locations", [pytest.param("bfloat16", marks=full), "float32"])
def test_locations_of_another_type(locations):
    check(drawn(location_dtype=locations, num_query=2, channels=8))


@pytest.mark.parametrize("points", [1, pytest.param(4, marks=full), pytest.param(5, marks=full)])
def test_points(points):
    check(drawn(num_points=points, num_query=2, dtype="float32", channels=8))


@pytest.mark.parametrize("method", ["discrete", pytest.param("default", marks=full)])
@pytest.mark.parametrize("points", [(2, 1, 4), pytest.param(2, marks=full)])
def test_points_that_differ_and_pixels_instead_of_tiles(points, method):
    found = check(drawn(num_points=points, method=method, dtype="float32", channels=8))
    assert found[1].any() == (method == "default")  # a pixel has no slope


def test_one_query():
    check(drawn(num_query=1, num_heads=1, batch=1, dtype="float32", channels=8))


@pytest.mark.parametrize(("of_value", "of_samples"), [(True, False), (False, True)])
def test_only_what_is_asked_for(of_value, of_samples):
    found = check(drawn(dtype="float32", channels=8), of_value=of_value, of_samples=of_samples)
    assert [gradient is not None for gradient in found] == [of_value, of_samples, of_samples]


def test_deterministic_sums_are_equal_in_any_order():
    case = drawn(channels=8, dtype="float32", num_query=40, levels=((1, 1),), num_heads=1)
    orders = [check(case, deterministic=True, seed=seed)[0] for seed in range(3)]
    assert all((other == orders[0]).all() for other in orders)


def test_deterministic_sums_do_not_overflow():
    """The largest sum there can be: all samples in one pixel, all products of one sign."""
    case = drawn(channels=8, dtype="float32", num_query=60, levels=((1, 1),), num_heads=1, outside=0)
    case.arguments[3][...], case.arguments[4][...], case.given[...] = 0.5, 3e4, 3e4
    check(case, deterministic=True)


def test_what_is_no_number_stays_where_it_is():
    case = drawn(dtype="float32", channels=8)
    *_, locations, weights = case.arguments
    locations[0, 0, 0, 0, 0], locations[0, 1, 0, 0, 0, 0] = np.nan, np.inf
    weights[0, 0, 0, 0, 0] = np.nan  # of a sample that is nowhere
    found = check(case)
    assert all(np.isfinite(gradient).all() for gradient in found)


def test_the_reference_agrees_with_differences():
    case = drawn(dtype="float32", channels=4, num_query=2)
    (value, shapes, starts, locations, weights), given = case.arguments, case.given
    arrays = [value.astype(np.float64), locations.astype(np.float64), weights.astype(np.float64)]
    exact = reference_gradients(arrays[0], shapes, starts, arrays[1], arrays[2], given)
    random, step = np.random.default_rng(4), 1e-6
    for which, gradient in enumerate(exact):
        for place in random.integers(0, arrays[which].size, 20):
            sides = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[which].reshape(-1)[place] += sign * step
                sides.append((reference(moved[0], shapes, starts, moved[1], moved[2]) * given).sum())
            assert gradient.reshape(-1)[place] == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-6)


def test_what_is_refused():
    case = drawn(channels=8)
    arguments, given = case.arguments, case.given
    with pytest.raises(OperatorError, match="grad_out is .* it must be"):
        gradients(*arguments, given[:, :1], engine="cpu")
    with pytest.raises(ConfigError, match="of_value=False: or of_samples must be on"):
        gradients(*arguments, given, engine="cpu", of_value=False, of_samples=False)
    with pytest.raises(ConfigError, match="threads=48"):
        Backward(threads=48)
    with pytest.raises(ConfigError, match="sums=fp8"):
        Backward(sums="fp8")
