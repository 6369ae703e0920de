"""NumPy's universal functions in kernels, in the loop that Numba picks: of numbers, and of arrays' elements."""

import itertools
import linecache
import warnings

import numpy as np
import pytest
from helpers import alike, expect, fault_of, nans, run
from numba import cuda, njit
from numba.cuda import config
from numba.cuda.np import ufunc_db

from numba_deform.engines import faults


def applied(function, nargs):
    """A kernel that calls ``np.FUNCTION`` of its arguments."""
    names, scope = ", ".join(f"a{i}" for i in range(nargs)), {"np": np}
    text = f"def kernel({names}):\n    np.{function.__name__}({names})\n"
    file = f"<{function.__name__}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    exec(compile(text, file, "exec"), scope)
    return scope["kernel"]


def test_the_loop_is_the_one_that_numba_picks():
    def kernel(x, i, u, out):
        out[0] = np.add(x, i)  # float32, where NumPy has float64
        out[1] = np.add(i, i)  # int32, which wraps
        out[2] = np.floor_divide(i, i - i) + np.remainder(i, i - i)
        out[3] = np.sign(u)  # Numba takes its bits as signed
        out[4] = np.fmod(i - i + 1, np.int32(-1))  # and these as unsigned
        out[5] = np.true_divide(i, np.int32(3))
        out[6] = np.maximum(x, np.nan)
        out[7] = np.negative(np.uint8(1))
        out[8] = np.left_shift(i, np.int32(40))

    i, out = np.int32(2**31 - 1), nans(9).astype(np.float64)
    _, compiled = alike(kernel, np.float32(0.1), i, np.uint64(2**64 - 1), out, block=1)
    assert compiled
    run(kernel, np.float32(0.1), i, np.uint64(2**64 - 1), out, block=1)
    expected = [2.0**31, -2, 0, 2.0**64 - 1, 1, i / 3, np.nan, 255, 0]
    np.testing.assert_array_equal(out, expected)


def test_elements_of_arrays():
    """Arrays are broadcast, results converted; of several, each goes to its own array."""

    def kernel(a, b, scale, total, quotient, rest):
        tile = cuda.local.array(4, np.float32)
        np.sqrt(scale, tile)  # into all
        np.multiply(a[0], tile, tile)
        np.add(a, tile, total)
        np.divmod(b, np.int16(3), quotient, rest)

    rng = np.random.default_rng(5)
    a, b = rng.standard_normal((3, 4), np.float32), rng.integers(-9, 9, (2, 4), np.int16)
    total, quotient, rest = np.zeros((3, 4)), *np.zeros((2, 2, 4), np.int16)
    run(kernel, a, b[:, ::-1], np.float32(10000), total, quotient, rest, block=1)
    np.testing.assert_array_equal(total, a + a[0] * np.float32(100))
    np.testing.assert_array_equal((quotient, rest), np.divmod(b[:, ::-1], 3))


def test_each_element_is_an_access():
    def race(out):
        tile = cuda.shared.array(32, np.float32)
        i = cuda.threadIdx.x
        tile[i] = i
        np.sqrt(tile[:2], out[i])

    def overwrites(out):
        tile = cuda.shared.array(2, np.float32)
        if cuda.threadIdx.x == 0:
            tile[0] = tile[1] = 4
        cuda.syncthreads()
        np.sqrt(tile, tile)

    def beyond(out):
        tile = cuda.local.array(3, np.float32)
        np.sqrt(tile, out[0])

    expect(faults.DataRace, race, nans(64).reshape(32, 2), source="np.sqrt(tile[:2], out[i])")
    expect(faults.DataRace, overwrites, nans(1), source="np.sqrt(tile, tile)")
    fault = fault_of(beyond, nans(64).reshape(32, 2))
    assert "np.sqrt has a result of (3,), and gets an array of (2,)" in str(fault)


def test_a_kernel_without_source():
    """It runs as it stands, in the loop of NumPy's."""
    scope = {"np": np}
    exec("def kernel(a, b, total, sine):\n np.add(a, b, total); np.sin(a, sine)", scope)
    a, b = np.array([2**31 - 1, 5], np.int32), np.ones((3, 1), np.int32)
    total, sine = np.zeros((3, 2), np.int32), np.zeros(2)
    run(scope["kernel"], a, b, total, sine, block=1)
    np.testing.assert_array_equal(total, [[-(2**31), 6]] * 3)
    np.testing.assert_allclose(sine, np.sin(a), rtol=1e-15)


def test_an_array_for_the_result(monkeypatch):
    """Without one Numba makes it, if it is told that it may."""

    def kernel(a, out):
        out[cuda.threadIdx.x] = np.add(a, a)[cuda.threadIdx.x] + np.square(a)[0]

    def copies(a, out):
        out[0] = a.copy()[0]

    a, out = np.arange(1, 33), np.zeros(32, np.int64)
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", False, raising=False)
    for one, maker in ((kernel, "np.add without an array for the result"), (copies, "copy()")):
        assert f"{maker} makes an array, which Numba does only" in str(fault_of(one, a, out, block=1))
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True, raising=False)
    run(kernel, a, out)
    np.testing.assert_array_equal(out, 2 * a + 1)


SPECIAL = {
    "f": [0, -0.0, 0.5, -0.75, 3.75, np.nan, np.inf], "i": [0, 1, 2, 5, 7, -7, 100],
    "u": [0, 1, 2, 5, 7, 8, 200],
    "c": [1, 1j, 0.5 + 0.25j, -0.75 + 1j, 3.5 - 2j, 1 - 1j, -3], "b": [0, 1, 1, 0, 0, 1, 0],
}  # fmt: skip
# Shifts beyond the width, and what Numba makes by way of a float that has no room: on the CPU it is another.
UNDEFINED = {np.reciprocal, np.left_shift, np.right_shift, np.power}


@pytest.mark.full
@pytest.mark.parametrize("function", sorted(set(ufunc_db.get_ufuncs()) - UNDEFINED, key=lambda f: f.__name__))
def test_as_numba_on_the_cpu(function):
    """Every function in every loop that Numba has for it, of all pairs of some numbers."""
    kernel, compared = applied(function, function.nargs), 0
    compiled = njit(no_rewrites=True, error_model="numpy")(kernel)
    for letter in "?bBilLfdFD":
        dtype = np.dtype(letter)
        numbers = np.array(SPECIAL[dtype.kind], dtype)
        given = zip(*itertools.product(numbers, repeat=function.nin), strict=True)
        given = [np.array(each, dtype) for each in given]
        try:
            loop = ufunc_loop(function, letter)
        except TypeError:
            continue
        want = [np.zeros(given[0].shape, k) for k in loop]
        got = [w.copy() for w in want]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(*given, *want)
            run(kernel, *given, *got, block=1)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=4e-6 if one.dtype.char in "fF" else 1e-13)
        compared += 1
    assert compared or function is np.isnat


def ufunc_loop(function, letter):
    """The types of the results of the loop that Numba picks for arguments of one type."""
    from numba.cuda.np.numpy_support import as_dtype, from_dtype, ufunc_find_matching_loop

    loop = ufunc_find_matching_loop(function, [from_dtype(np.dtype(letter))] * function.nin)
    if loop is None or loop.ufunc_sig not in ufunc_db.get_ufunc_info(function):
        raise TypeError
    return [as_dtype(kind) for kind in loop.outputs]
