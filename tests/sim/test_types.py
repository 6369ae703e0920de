"""The engine computes in the types that Numba infers, and refuses what Numba does not compile."""

import warnings

import expressions
import numpy as np
import pytest
from helpers import device, expect, run
from numba import cuda, float32, int8, int16, int32, int64, njit, uint8, uint16, uint32, uint64

from numba_deform.engines import faults


def computed(kernel, *args, size=8, dtype=np.float64):
    out = np.zeros(size, dtype)
    run(kernel, out, *args, block=1)
    return out


def test_how_many_bits_an_operand_has():
    def kernel(a, b, out):
        out[0], out[1], out[2] = cuda.popc(a[0]), cuda.popc(b[0]), cuda.clz(a[1])
        out[3], out[4], out[5] = cuda.clz(b[1]), cuda.brev(uint64(1)), cuda.ffs(a[0])

    out = np.zeros(6, np.uint64)
    run(kernel, np.array([-1, 1], np.int32), np.array([-1, 1]), out, block=1)
    assert list(out) == [32, 64, 31, 63, 1 << 63, 1]


@pytest.mark.parametrize("compiled", [None, True])
def test_a_kernel_that_cannot_be_read(compiled):
    """Its numbers would be Python's, which it is no fault to want, and is said by name."""
    names = {"cuda": cuda, "uint32": uint32}
    exec("def wraps(a, out):\n    x = a - uint32(2)\n    out[0] = x", names)
    with pytest.warns(UserWarning, match=r"wraps needs (its|a) source.* Write it as a def into a file") as told:
        report = run(names["wraps"], np.uint32(1), np.zeros(1), block=1, compiled=compiled)
    assert report.why_interpreted == str(told[0].message) and told[0].filename == expect.__code__.co_filename
    exec("def copies(a, out):\n    out[0] = a", names)  # and computes nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(names["copies"], np.uint32(1), np.zeros(1), block=1)
    more = cuda.jit(lambda x: x + 1, device=True)

    def calls(a, out):
        out[0] = more(a)

    with pytest.warns(UserWarning, match="<lambda> needs a source that is a definition by itself. It runs"):
        run(calls, np.uint32(1), np.zeros(1), block=1)


@pytest.mark.parametrize("compiled", [False, True])
def test_masks_of_lanes_are_int32(compiled):
    """Those of votes and matches; that of the lanes below is uint32."""

    def kernel(a, out):
        t, every = cuda.threadIdx.x, 0xFFFFFFFF
        vote = cuda.ballot_sync(every, a[t] >= 0)
        out[t, 0], out[t, 1], out[t, 2] = vote, vote >> 31, vote < 0
        out[t, 3] = cuda.ballot_sync(vote, a[t] < 31)
        out[t, 4] = uint32(vote)

    def matches(a, out):
        t, every = cuda.threadIdx.x, 0xFFFFFFFF
        out[t, 0], same = cuda.match_all_sync(every, 0 * a[t])
        out[t, 1], out[t, 2] = cuda.match_any_sync(every, a[t] // 16), same
        out[t, 3], out[t, 4] = cuda.lanemask_lt(), cuda.popc(cuda.match_any_sync(every, 0))

    lanes, out = np.arange(32, dtype=np.int32), np.zeros((32, 5), np.int64)
    report = run(kernel, lanes, out, block=32, compiled=compiled)
    assert report.compiled == compiled
    assert (out == [-1, -1, 1, (1 << 31) - 1, (1 << 32) - 1]).all()
    run(matches, lanes, out, block=32)
    assert (out[31] == [-1, -1 << 16, 1, (1 << 31) - 1, 32]).all() and out[0, 1] == 0xFFFF


# --- 200 expressions --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def module(tmp_path_factory):
    return expressions.write(tmp_path_factory.mktemp("expressions"))


@pytest.mark.parametrize("group", expressions.NUMBERS)
def test_random_expressions(module, group):
    """Bit for bit what Numba compiles for the CPU, whose types are the same."""
    function = getattr(module, f"group_{group}")
    values, engine, numba = expressions.inputs(group), expressions.results(), expressions.results()
    kernel = expressions.kernel_of(cuda.jit(device=True)(function))
    run(kernel, *values.values(), *engine, block=expressions.ELEMENTS)
    compiled = njit(error_model="numpy")(function)
    for t in range(expressions.ELEMENTS):
        compiled(*[array[t] for array in values.values()], *numba, t)
    wrong = expressions.differ(engine, numba)
    assert not wrong.size, [expressions.expressions(group)[e] for e in wrong]


@pytest.mark.parametrize("group", expressions.PACKED)
def test_random_expressions_of_halves_run(module, group):
    function = getattr(module, f"group_{group}")
    results = expressions.results()
    kernel = expressions.kernel_of(cuda.jit(device=True)(function))
    run(kernel, *expressions.inputs(group).values(), *results, block=expressions.ELEMENTS)
    assert results[0].any(axis=1).all()


# --- floats -----------------------------------------------------------------------------------------
def test_a_sum_that_starts_as_a_float_literal_is_float64():
    def kernel(out, x):
        acc = 0.0
        for i in range(len(x)):
            acc += x[i]
        out[0] = acc
        out[1] = 3 * x[0]
        out[2] = x[0] * 0.1
        out[3] = x[0] * float32(0.1)
        out[4] = x[0] / 3
        out[5] = x[0] / float32(3)

    x = np.array([0.1, 1e-9, 7], np.float32)
    wide, tenth = x.astype(np.float64), np.float32(0.1)
    first = [wide[0] + wide[1] + wide[2], 3 * wide[0], wide[0] * 0.1]
    exact = [*first, x[0] * tenth, wide[0] / 3, x[0] / np.float32(3)]
    assert computed(kernel, x)[:6].tolist() == [float(e) for e in exact]


def test_division_by_zero_gives_infinity():
    def kernel(out, zero):
        out[0] = 1.0 / zero
        out[1] = -1 / zero
        out[2] = zero / zero

    np.testing.assert_array_equal(computed(kernel, 0.0)[:3], [np.inf, -np.inf, np.nan])


def test_a_float_to_an_integer_is_cut_off():
    def kernel(out, x):
        for i in range(len(x)):
            out[i] = int32(x[i])
        out[7] = int(x[1])

    got = computed(kernel, np.array([1.9, -1.9, 3e9, -3e9]))
    assert got.tolist() == [1, -1, 2**31 - 1, -(2**31), 0, 0, 0, -1]


# --- integers ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [int8, int16, int32, int64, uint8, uint16, uint32, uint64])
def test_integers_wrap(kind):
    low, high = int(kind.minval), int(kind.maxval)

    def kernel(out, x, y):
        out[0] = kind(x[0] + x[1])
        out[1] = kind(y[0] - x[1])
        out[2] = kind(x[0] * x[0])
        x[0] += kind(1)
        out[3] = x[0]

    x, y = (np.array(v, str(kind)) for v in ([high, 1], [low]))
    assert computed(kernel, x, y, dtype=np.dtype(str(kind)))[:4].tolist() == [low, high, 1, low]


def test_64_bit_arithmetic_wraps():
    def kernel(out, a, b):
        a[0] = a[0] + 1
        a[1] = a[1] * 3 - 5
        b[0] = b[0] + b[0]
        b[1] = -b[1]
        out[0] = (a[0] + b[1]) // 2  # int64 with uint64 is int64

    a, b = np.array([2**63 - 1, 2**62], np.int64), np.array([2**63 + 1, 1], np.uint64)
    out = computed(kernel, a, b, dtype=np.int64)
    assert a.tolist() == [-(2**63), -(2**62) - 5] and b.tolist() == [2, 2**64 - 1]
    assert out[0] == (2**63 - 1) // 2


def test_numbers_that_are_the_same():
    """Numba compares those of one type, and finds no two of different types the same, whatever they are."""

    def kernel(out, n, u):
        out[0], out[1] = u is n, u is not n
        out[2], out[3] = n * 100 is n * 100, n is not n + n
        out[4], out[5] = (n == 2) is (n > 1), (n == 2) is not True
        out[6], out[7] = n is None, n is not None

    got = computed(kernel, np.int64(2**40), np.uint32(2), dtype=np.int64)
    assert got.tolist() == [0, 1, 1, 1, 0, 1, 0, 1]
    got = computed(kernel, np.int64(2), np.uint32(2), dtype=np.int64)
    assert got.tolist() == [0, 1, 1, 1, 1, 0, 0, 1]


def test_signs_of_comparisons_divisions_and_shifts():
    def kernel(out, i, u):
        out[0] = i < u
        out[1] = i // 3
        out[2] = i % 3
        out[3] = i >> 1
        out[4] = u << 4
        out[5] = uint32(i) >> 1
        out[6] = -u
        out[7] = ~u

    got = computed(kernel, np.int32(-7), np.uint32(2**32 - 1), dtype=np.int64)
    assert got.tolist() == [1, -3, 2, -4, (2**32 - 1) << 4, (2**32 - 7) >> 1, 1, 0]


# --- variables and functions --------------------------------------------------------------------------
def test_a_variable_has_the_type_of_all_its_branches():
    def kernel(out, x, n):
        if n > 3:
            value = x[0]
        else:
            value = 1
        out[0] = value / 3  # float64: float32 and int64
        total = 0
        while total < 2:
            total += 0.75
            out[1] = total
        other = x[0] if n > 3 else 7
        out[2] = other * 0.1

    x = np.array([0.1], np.float32)
    wide = float(x[0])
    assert computed(kernel, x, 5)[:3].tolist() == [wide / 3, 2.25, wide * 0.1]
    assert computed(kernel, x, 0)[:3].tolist() == [1 / 3, 2.25, 7 * 0.1]


def test_device_functions_have_the_types_of_each_call():
    @cuda.jit(device=True)
    def twice(x, by=2):
        return x * by

    def kernel(out, x):
        out[0] = twice(x[0])  # by int64: float64
        out[1] = twice(x[0], float32(3))
        out[2] = twice(5)

    x = np.array([0.1], np.float32)
    wide = float(x[0])
    assert computed(kernel, x)[:3].tolist() == [2 * wide, float(np.float32(3) * x[0]), 10]


# --- what Numba does not compile ----------------------------------------------------------------------
def test_a_call_as_a_condition():
    """Numba calls bool of what it returns."""

    @device
    def between(x, low, high):
        return x >= low and x < high

    @device
    def bit(x):
        return x & uint8(1)

    def kernel(out):
        i = cuda.threadIdx.x
        if between(i, 3, 9):
            out[i] += 1
        out[i] += 10 if bit(i) else 20
        while bit(out[i]):
            out[i] += 1

    out = np.zeros(12, np.int32)
    run(kernel, out, block=12)
    wanted = [(3 <= i < 9) + (10 if i % 2 else 20) for i in range(12)]
    assert list(out) == [n + n % 2 for n in wanted]


def test_what_numba_refuses_is_refused_before_the_first_step():
    @cuda.jit(device=True)
    def attribute(x):
        return x.height  # of a number

    def text(out):
        out[0] = 1
        out[1] = out[0] + "a"

    def inner(out):
        out[0] = attribute(out[0])

    def unknown(out):
        out[0] = nothing  # noqa: F821

    def plain(out):
        out[0] = computed(out)

    for kernel, words, source in (
        (text, ["No implementation of function", "add(float64, Literal[str](a))"], 'out[0] + "a"'),
        (inner, "Unknown attribute 'height' of type float64", "return x.height"),
        (unknown, "name 'nothing' is not defined", "out[0] = nothing"),
        (plain, "Untyped global name 'computed'", "computed(out)"),
    ):
        out = np.zeros(2)
        expect(faults.NotCompiled, kernel, out, words=words, source=source)
        assert not out.any()


# --- elements ---------------------------------------------------------------------------------------
@cuda.jit(device=True)
def fill(numbers, start):
    for i in range(3):
        numbers[i] = start + 100 * i


def test_elements_of_any_array_have_its_type():
    """Code that is given a local array, a shared one, a part of one, or one in global memory."""

    def kernel(out):
        local, shared = cuda.local.array(4, uint8), cuda.shared.array(3, uint8)
        fill(local, 100)
        local[3] = 7
        fill(shared, 101)
        fill(out[0], 102)
        local[0] += 250
        local[local[3] - 5] -= 45
        local[1], local[-1] = local[3], local[1]
        for i in range(3):
            out[1, i], out[2, i] = local[i], shared[i]
        fill(local[1:], 255)
        local[1] -= 2.25
        for i in range(4):
            out[3, i] = local[i]

    out = np.zeros((4, 4), np.uint8)
    run(kernel, out, block=1)
    assert out.tolist() == [[102, 202, 46, 0], [94, 7, 255, 0], [101, 201, 45, 0], [94, 252, 99, 199]]


def test_elements_that_are_not_there():
    def above(out):
        mine, other = cuda.local.array(3, int32), cuda.local.array(5, int32)
        mine[0] = other[4] = 4
        out[0] = mine[mine[0]]

    def below(out):
        mine = cuda.local.array(3, int32)
        for i in range(5):
            mine[2 - 2 * i] = i

    def sum_of_nothing(out):
        mine = cuda.local.array(3, int32)
        mine[1] += out[0]

    def given_away(out):
        mine = cuda.local.array(3, int32)
        fill(mine[1:], 4)

    expect(faults.OutOfRange, above, np.zeros(1), words="index (4,) of a local array (3,)", source="out[0] =")
    expect(faults.OutOfRange, below, np.zeros(1), words="index (-4,) of a local array (3,)", source="mine[2 -")
    words = "reads element 1 of a local array, never written"
    expect(faults.UninitialisedRead, sum_of_nothing, np.zeros(1, np.int32), words=words, source="mine[1] +=")
    words = "index (2,) of local array(2,)"
    expect(faults.OutOfRange, given_away, np.zeros(1), words=words, source="numbers[i] =")


def test_an_index_is_64_bits_wide():
    def kernel(out, far):
        mine = cuda.local.array(4, int64)
        for i in range(4):
            mine[i] = i
        out[far * 4 + 1] = mine[far * 8 + 2]

    out = np.zeros(4, np.int64)
    run(kernel, out, 1 << 62, block=1)
    assert out.tolist() == [0, 2, 0, 0]
