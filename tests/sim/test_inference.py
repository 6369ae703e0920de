"""Which functions share what Numba has inferred: those that nothing tells apart."""

import numpy as np
from helpers import run
from numba import cuda, int64, types

from numba_deform.compiler.inference import identity, infer

ARRAY = types.float64[:]
scale = 3


def adding(constant, twice=2.0):
    @cuda.jit(device=True)
    def added(x):
        return x + constant

    def kernel(out):
        out[cuda.threadIdx.x] = added(out[0]) * twice

    return kernel


def same(one, other):
    return infer(one, [ARRAY]) is infer(other, [ARRAY])


def test_made_again_of_equal_constants():
    assert same(adding(3), adding(3))
    assert same(adding((1, "a", None) and 3, np.float32(1)), adding(3, np.float32(1)))


def test_constants_of_other_values_or_types():
    assert not same(adding(3), adding(4))
    assert not same(adding(3), adding(3.0))
    assert not same(adding(0.0), adding(-0.0))
    assert not same(adding(3, np.float32(2)), adding(3, 2.0))


def through(added):
    def kernel(out):
        out[cuda.threadIdx.x] = added(out[0])

    return kernel


def test_device_functions_of_another_text():
    one = through(cuda.jit(lambda x: x - 3, device=True))
    other = through(cuda.jit(lambda x: x + 3, device=True))
    assert not same(one, other)


def test_what_stands_around_the_first_one_changes():
    """A variable of the enclosing function; the second kernel still has the old value."""

    def made():
        scale = 2

        def kernel(out):
            out[cuda.threadIdx.x] = scale

        def change():
            nonlocal scale
            scale = 5

        return kernel, change

    (first, change), (second, _) = made(), made()
    out = np.zeros(32)
    for kernel, expected in (first, 2), (second, 2), (first, 5), (second, 2):
        if expected == 5:
            change()
        run(kernel, out)
        assert out[0] == expected


def scaled(out):
    out[cuda.threadIdx.x] = int64(scale) * 2


def test_a_name_of_the_module_that_changes(monkeypatch):
    """The product is known to fit at first, and wraps later."""
    out = np.zeros(32, np.int64)
    for value in (3, 1 << 62, 3):
        monkeypatch.setitem(globals(), "scale", value)
        run(scaled, out)
        assert out[0] == (-(1 << 63) if value > 3 else 6)


def test_a_function_that_calls_itself():
    @cuda.jit(device=True)
    def count(n):
        return count(n - 1) if n else 0

    assert identity(count.py_func) == identity(count.py_func)


def test_nothing_as_a_condition():
    """Numba inlines code of its own for it, and needs no driver for that."""

    def kernel(out):
        nothing = None
        out[cuda.threadIdx.x] = 1 if nothing else 2

    out = np.zeros(32)
    run(kernel, out)
    assert np.all(out == 2)
