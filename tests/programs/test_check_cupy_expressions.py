"""A program with CuPy's ElementwiseKernel and ReductionKernel under ``numba-deform check``, where CuPy is not:
the first argument plants the fault whose line says ``fault n``."""

import json
import re

import pytest

from numba_deform.cli import main

PROGRAM = r'''
import sys

import cupy as cp
import numpy as np

FAULT = int(sys.argv[1])
x = cp.arange(12, dtype=cp.float32).reshape(3, 4)
row = cp.arange(4, dtype=cp.float32)

apart = cp.ElementwiseKernel("float32 x, T y", "T z", """
    T by = twice(x - y);
    z = by * by + i * shift;
""", "apart", preamble="template <typename T> __device__ T twice(T x) { return 2 * x; }",
    loop_prep="const int shift = _ind.size() > 100", after_loop="if (shift) __trap();")
shifted = cp.ElementwiseKernel("T x, raw T y", "T z",
                               "z = x + y[_ind.size() - i]",  # fault 1
                               "shifted")
counted = cp.ElementwiseKernel("raw S which", "raw int32 counts",
                               'counts[which[i]] += 1',  # fault 2
                               "counted")
safely = cp.ElementwiseKernel("raw S which", "raw int32 counts", "atomicAdd(&counts[which[i]], 1)", "safely")
unset = cp.ElementwiseKernel("T x", "T z", "z += x", "unset")  # fault 3
length = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")
weighed = cp.ReductionKernel("T x, raw T weights", "T y",
                             "x * weights[_j / _out_ind.size() + !_j * FAR]",  # fault 4
                             "a + b", "y = a", "0", "weighed", options=(f"-DFAR={1000 * (FAULT == 4)}",))
reverse = cp.ElementwiseKernel("", "raw T x", f"""
    const int j = _ind.size() - 1 - i;
    const T other = x[j];
    x[i] = other + {FAULT};
""", "reverse")

if not FAULT:
    assert isinstance(apart(x, row), cp.ndarray)
    np.testing.assert_array_equal(apart(x, row), (2 * (x.get() - row.get())) ** 2)  # broadcast
    np.testing.assert_array_equal(apart(3, row), (2 * (3 - row.get())) ** 2)
    out = cp.empty((4, 3), cp.float32)
    assert apart(x.T, cp.float32(1), out) is out
    np.testing.assert_array_equal(out, (2 * (x.get().T - 1)) ** 2)  # strides
    assert apart(x[:0], row).shape == (0, 4)
    pair = cp.ElementwiseKernel("complex64 z, float16 h", "T re, T im, bool far",
                                "const complex<float> by = z * z / complex<float>(0, 1) + float(h);"
                                "re = real(by); im = by.imag(); far = abs(by) > 2; re -= T(h * 0.5f - h / 2)")
    z = cp.asarray([1 + 2j, -1j, 0.5], cp.complex64)
    re, im, far = pair(z, cp.float16(0.5), *(cp.empty(3, kind) for kind in ("f8", "f8", "?")))
    by = z.get() ** 2 / 1j + 0.5
    assert np.allclose(re + 1j * im, by) and (far == (abs(by) > 2)).all()
    diagonal = cp.ElementwiseKernel("raw T x, int64 n", "T z", "ptrdiff_t at[] = {i, n - i};"
                                    "z = x[at] - x[{0, 1}]", reduce_dims=False, return_tuple=True)
    z, = diagonal(x[:, ::-1], 2, size=3)
    np.testing.assert_array_equal(z, [1 - 2, 6 - 2, 11 - 2])
    counts = cp.zeros(2, cp.int32)
    assert safely(cp.asarray([0, 1, 1, 0, 1]), counts, size=5) is counts and counts.tolist() == [2, 3]
    most = cp.ElementwiseKernel("T x, raw int64 n", "raw T y", "atomicMax(&y[0], x); atomicMin(&y[1], x);"
                                "atomicAdd((long long *)&n[0], 1ll)", no_return=True)
    n, y = cp.zeros(1, int), cp.zeros(2)
    assert most(cp.asarray([2.0, -3.0, 5.0]), n, y) is None and y.tolist() == [5, -3] and n == 3
    for axis, keepdims in ((None, False), (0, True), (1, False), ((0, 1), True), (-1, True)):
        wanted = np.linalg.norm(x.get(), axis=axis, keepdims=keepdims)
        found = length(x, axis=axis, keepdims=keepdims)
        assert np.allclose(found, wanted) and found.shape == np.shape(wanted)
    long = cp.arange(300.0)
    assert np.allclose(length(long[::-1], out=cp.empty(())), np.linalg.norm(long))
    assert length(cp.zeros((0, 2)), axis=0).tolist() == [0, 0]
    np.testing.assert_array_equal(weighed(x, cp.arange(3, dtype=cp.float32), axis=0), np.arange(3) @ x.get())
    first = cp.ReductionKernel("T x", "int64 at", "first_t(x, _j)", "best(a, b)", "at = a.at",
                               "first_t(-1, -1)", reduce_type="first_t", preamble="""
        struct first_t { float x; long long at; __device__ first_t(float x, long long at) : x(x), at(at) {} };
        __device__ first_t best(first_t &a, first_t &b) { return a.x >= b.x ? a : b; }
    """)
    assert first(cp.asarray([1, 7, 3], cp.float32)) == 1
elif FAULT == 1:
    shifted(row, row.copy())
elif FAULT == 2:
    counted(cp.zeros(3, int), cp.zeros(1, cp.int32), size=3)
elif FAULT == 3:
    unset(row, cp.empty(4, cp.float32))
elif FAULT == 4:
    weighed(x, cp.arange(3, dtype=cp.float32), axis=0)
elif FAULT == 5:
    reverse(cp.arange(4), size=4)
else:
    exec(sys.argv[2])
'''


def check(tmp_path, *words):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    status = main(["check", f"json={tmp_path}/out.json", str(file), *map(str, words)])
    return status, json.loads((tmp_path / "out.json").read_text())


def test_right(tmp_path, capsys):
    status, said = check(tmp_path, 0)
    assert (status, said["faults"], said["kernels"] > 10) == (0, [], True), capsys.readouterr().err


@pytest.mark.parametrize("number, fault, words, cure", [
    (1, "OutOfRange", "reads 4 bytes at byte 16 of y, which has 16", "index"),
    (2, "DataRace", r"reads counts\[byte 0\], which thread 0 wrote at program.py:\d+", "atomicAdd"),
    (3, "UninitialisedRead", "z.* nothing has written", "cupy.zeros in place of cupy.empty"),
    (4, "OutOfRange", "reads 4 bytes at byte 4,?000 of weights, which has 12", "index"),
    (5, "DataRace", "x", "")])  # fmt: skip
def test_wrong(tmp_path, number, fault, words, cure):
    status, said = check(tmp_path, number)
    (told,) = said["faults"]
    assert (status, told["fault"]) == (1, fault) and re.search(words, told["what"]) and cure in told["cure"]
    file, _, line = told["where"].rpartition(":")
    if number < 5:
        assert file.endswith("program.py") and f"fault {number}" in PROGRAM.splitlines()[int(line) - 1]
    else:  # a text that is put together has its lines in the code that is compiled
        assert file.endswith("reverse.cu") and "const T other = x[j];" in told["source"]


@pytest.mark.parametrize("program, words", [
    ("apart(x)", "TypeError: apart takes 2 arguments, or 3 with its outputs, and not 1"),
    ("apart(x, row.astype(int), row)", "TypeError: apart: y is an array of int64, and has to be of float32"),
    ("apart(x, 1)", "TypeError: apart: no array tells the type T of y"),
    ("apart(x, row.get())", "TypeError: apart: y is a numpy.ndarray; a kernel takes CuPy's arrays, which cupy"),
    ("apart(x, row, row)", "ValueError: apart: z has shape (4,), the result (3, 4)"),
    ("apart(x, row, size=3)", "ValueError: apart: size= is given where all arrays are raw, and only there"),
    ("safely(row, cp.zeros(3, cp.int32))", "ValueError: safely: size= is given where all arrays are raw"),
    ("cp.ElementwiseKernel('T', 'T y', 'y = 1')", "ValueError: 'T' declares no parameter"),
    ("cp.ElementwiseKernel('T i', 'T y', 'y = i')", "ValueError: 'T i' declares no parameter"),
    ("cp.ElementwiseKernel('object x', 'T y', 'y = 1')", "Refused: 'object x': object is not supported by"),
    ("cp.ElementwiseKernel('T x', 'T y', 'y = z')(x)", 'identifier "z" is undefined'),
    ("length(3)", "TypeError: length: no array tells the type T of x"),
    ("length(x[:0], out=x, axis=3)", "axis 3 is out of bounds"),
    ("weighed(x, row, axis=1)", "NotImplementedError: weighed: with a raw input axis= is the first ones"),
    ("cp.ReductionKernel('T x', 'T y', 'x', 'min(a, b)', 'y = a', None, 'least')(x[:0])",
     "ValueError: least: an array without elements is reduced, and there is no identity"),
])  # fmt: skip
def test_refused(tmp_path, capsys, program, words):
    status, said = check(tmp_path, 6, program)
    assert status == 1 and said["faults"] == [] and words in capsys.readouterr().err
