"""What kernels of other people use of Numba-CUDA: spellings, arguments, arrays, functions."""

import contextlib
import importlib.util
import math
import types as python
from collections import namedtuple

import numba
import numba.cuda as nc
import numpy as np
import pytest
from helpers import expect, fault_of, floats, nans, run
from numba import cuda, float32, int32, njit

from numba_deform.engines import faults


def refuse(kernel, *args, words=(), **options):
    """The kernel ends in an error that is no rule's: the engine's with ``words``, or what Numba has to say."""
    fault = fault_of(kernel, *args, **options)
    named = type(fault) is faults.KernelError and words in str(fault)
    assert named or type(fault).__name__ == "NotCompiled", fault


# --- spellings ------------------------------------------------------------------------------------
@njit
def doubled(x):
    return x * numba.float32(2)


module = python.ModuleType("module")
module.doubled, module.nested = doubled, python.SimpleNamespace()
module.table = np.array([3, 5, 7], np.int32)


def test_modules_that_lead_to_numba_cuda():
    import numba.cuda.types as nct
    import numba.types as nt

    def kernel(out):
        tile = nc.shared.array(32, numba.float32)
        i = numba.cuda.threadIdx.x
        tile[i] = nt.float32(i) + nct.int32(1) + cuda.types.float32(1) + nc.float32(1)
        numba.cuda.syncthreads()
        nc.atomic.add(out, 0, tile[nc.blockDim.x - 1 - numba.cuda.grid(1)])

    out = np.zeros(1, np.float32)
    run(kernel, out)
    assert out[0] == sum(range(32)) + 3 * 32


def test_names_of_numba_cuda():
    from numba.cuda import cg, grid, libdevice, syncthreads, warpsize
    from numba.cuda.libdevice import fmaf

    def kernel(out):
        out[grid(1)] = libdevice.floorf(fmaf(out[0], 2, 1)) + cuda.warpsize
        syncthreads()
        cg.this_grid().sync()

    def size(out):
        out[0] = warpsize

    out = np.full(1, 1.25, np.float32)
    run(kernel, out, block=1)
    assert out[0] == 3 + 32
    with contextlib.suppress(faults.SimFault):  # Numba does not take all of them
        run(size, out, block=1)
        assert out[0] == 32


def test_functions_of_a_module_and_of_the_cpu():
    def kernel(out):
        out[0] = module.doubled(out[0]) + doubled(float32(1)) + module.table[2] + len(module.table)

    out = np.ones(1, np.float32)
    run(kernel, out, block=1)
    assert out[0] == 2 + 2 + 7 + 3


def test_a_fault_in_a_function_of_a_module_is_named_there():
    def kernel(out):
        out[0] = module.late(out)

    module.late = njit(lambda out: out[5])
    expect(faults.OutOfRange, kernel, nans(1), block=1, source="out[5]")


def test_math_and_numpy():
    from math import sqrt

    def kernel(out, x, y):
        out[0] = math.floor(x) + (math.pi - np.pi)
        out[1] = math.sqrt(x) * x  # float32, which float64 would not round to
        out[2] = sqrt(y)
        out[3] = math.log(x - x)
        out[4] = math.sqrt(-y)
        out[5] = np.sqrt(x) + np.float32(1)
        out[6] = np.int32(2**31) + 2**31
        out[7] = math.modf(y)[0] + math.frexp(y)[1] + math.ldexp(x, 3)
        out[8] = math.exp(y * 1000)
        out[9] = np.minimum(3, 2**40) + np.uint8(257)

    out, x = np.zeros(10), np.float32(2.7)
    run(kernel, out, x, 2.0, block=1)
    root = np.sqrt(x)
    expected = [2, root * x, math.sqrt(2), -np.inf, np.nan, root + np.float32(1), 0,
                np.float32(2) + 8 * x, np.inf, 4]  # fmt: skip
    np.testing.assert_allclose(out, expected, rtol=1e-15)


@pytest.mark.parametrize("call", ["zeros(4)", "empty_like(out)", "argsort(out)"])
def test_numpy_functions_of_arrays_are_refused(call):
    scope = {"np": np}
    exec(f"def kernel(out): np.{call}", scope)
    refuse(scope["kernel"], nans(1), words=f"np.{call.partition('(')[0].rpartition('.')[2]} is not modelled")


def test_print(capsys):
    def kernel(out):
        print("x", out[0], 3, (1, 2.5), cuda.threadIdx, out[0] > 0)

    run(kernel, np.ones(1, np.float32), block=1)
    assert capsys.readouterr().out == "x 1.000000 3 (1, 2.500000) (0, 0, 0) True\n"


# --- arguments ------------------------------------------------------------------------------------
@pytest.mark.parametrize("part", [np.s_[::2], np.s_[::-1], np.s_[1:4], np.s_[:, ::-3], np.s_[:, 2], np.s_[3]])
def test_strided_arrays(part):
    def kernel(a, out):
        for i in range(a.size):
            out[i] = a.T.T[i] if a.ndim == 1 else a[i // a.shape[1], i % a.shape[1]]
        a[0 if a.ndim == 1 else (0, 0)] = 7

    whole = floats(48).reshape(6, 8)
    for array in (whole[part], np.asfortranarray(whole)[part]):
        before, out = array.copy(), nans(array.size)
        run(kernel, array, out, block=1, schedules=2)
        np.testing.assert_array_equal(out, before.ravel())
        assert array[(0,) * array.ndim] == 7


def test_strided_arrays_that_interleave_are_one_memory():
    def kernel(even, odd):
        i = cuda.grid(1)
        even[i] = odd[i]

    both = floats(64)
    run(kernel, both[::2], both[1::2])
    np.testing.assert_array_equal(both[::2], both[1::2])
    expect(faults.DataRace, kernel, both[1::2], both[3::2], block=31)
    expect(faults.OutOfRange, kernel, both[::2], both[1::2], block=33, words="index (32,)")


Pair = namedtuple("Pair", "array number")
POINT = np.dtype([("x", np.float32), ("n", np.int32), ("v", np.float32, (3,)), ("in_", [("a", np.int16)])])
POINT_TYPE = numba.from_dtype(POINT)


def test_tuples():
    def kernel(pair, more):
        i = cuda.grid(1)
        pair.array[i] = pair.number + more[0][1] * more[1][i]

    array, other = nans(4), floats(4)
    run(kernel, Pair(array, np.int32(3)), ((1, 2.0), other), block=4, schedules=2)
    np.testing.assert_array_equal(array, np.float32(3 + 2.0 * other))
    expect(faults.OutOfRange, kernel, Pair(array, 3), ((1, 2.0), other), block=5, words="more[1](4,)")


def test_records():
    def kernel(a, scale):
        i = cuda.grid(1)
        a[i].x = a[i]["x"] * scale.x
        a.n[i] = a[i].n + len(a[i].v)
        point = a[i]
        point.v[1] = a["v"][i, 2]
        point["in_"].a = -1
        a[i + 3] = a[i]

    points = np.zeros(6, POINT)
    points["x"], points["n"], points["v"] = range(6), range(6), np.arange(18).reshape(6, 3)
    scale = np.array([(2, 0, 0, (0,))], POINT)[0]
    want = points.copy()
    want["x"] *= 2
    want["n"] += 3
    want["v"][:, 1], want["in_"]["a"] = want["v"][:, 2], -1
    want[3:] = want[:3]
    run(kernel, points, scale, block=3)
    np.testing.assert_array_equal(points, want)
    run(kernel, points.view(np.recarray), scale, block=3)
    expect(faults.OutOfRange, kernel, points[:1], scale, block=1, words="index (3,) of a(1,)")

    def write(point):
        point.x += 1

    run(write, scale, block=1)
    assert scale["x"] == 3  # copied in and out


def test_fields_are_memory():
    def own(a):
        i = cuda.grid(1)
        if i == 0:
            a[0].x = 1
        else:
            a[0].n = 1

    def shared(a):
        a[0].n = cuda.grid(1)

    def read(a, out):
        i = cuda.grid(1)
        if i == 0:
            a[1].v[2] = 1
        else:
            out[0] = a[1].v[2]

    run(own, np.zeros(1, POINT), block=2)
    expect(faults.DataRace, shared, np.zeros(1, POINT), block=2, source="a[0].n = ")
    expect(faults.DataRace, read, np.zeros(2, POINT), nans(1), block=2)

    def in_shared(out, more):
        tile = cuda.shared.array(4, POINT_TYPE)
        i = cuda.threadIdx.x
        tile[i].x = i
        cuda.syncthreads()
        out[i] = tile[3 - i].x
        if more:
            out[i] = tile[0].n

    out = nans(4)
    run(in_shared, out, False, block=4)
    expect(faults.UninitialisedRead, in_shared, out, True, block=4, source="tile[0].n")
    np.testing.assert_array_equal(out, [3, 2, 1, 0])


def test_other_arguments():
    def kernel(out, yes, number, zero):
        out[0] = (number * number).real + (1 if yes else 0) + zero[()]
        zero[()] = 5

    out, zero = np.zeros(1), np.array(10.0)
    run(kernel, out, np.bool_(True), np.complex64(2 + 1j), zero, block=1)
    assert (out[0], zero) == (3 + 1 + 10, 5)
    zero.flags.writeable = False
    expect(faults.ReadOnlyWrite, kernel, out, True, 1j, zero, block=1, source="zero[()] = 5")


# --- arrays ---------------------------------------------------------------------------------------
def test_slices():
    def kernel(a, out):
        row, part = a[1], a[1:3]
        out[0] = row[-1] + part[0, 0] + a[:, 1][2] + a[..., 2][0] + a[None, 0][0, 1]
        out[1] = len(part) + part.shape[1] + a[5:].size + a[::2].strides[0]
        part[1, 1:3] = 0
        row[:] = out[0]
        a[0, 1:] = a[0, :-1]
        a.T[3, 2:] = row[0]
        for value in a[0]:
            out[2] += value
        for line in a:
            out[3] += line[0]
        a[2].fill(9)
        out[4] = a.flat[5] + a.reshape(6, 2)[0, 0] + a.ravel()[0] + a.sum() + a[0].max() + a[0].min()

    a, out, b = np.arange(12.0).reshape(3, 4), np.zeros(5), np.arange(12.0).reshape(3, 4)
    run(kernel, a, out, block=1)
    first = b[1, -1] + b[1, 0] + b[2, 1] + b[0, 2] + b[0, 1]
    b[2, 1:3], b[1] = 0, first
    b[0, 1:] = b[0, :-1].copy()
    b[2, 3] = first
    sums = b[0].sum(), b[:, 0].sum()
    b[2] = 9
    np.testing.assert_array_equal(a, b)
    last = b.flat[5] + 2 * b[0, 0] + b.sum() + b[0].max() + b[0].min()
    np.testing.assert_array_equal(out, [first, 2 + 4 + 0 + 64, *sums, last])


def test_slices_are_judged():
    def race(a):
        a[2:4] = 1

    def race_of_reads(a, out):
        if cuda.grid(1) == 0:
            a[1, :] = 1
        else:
            out[:] = a[1]

    def sizes(a):
        a[0:3] = a[0:2]

    def outside(a):
        a[0][4] = 1

    def row(a):
        a[4][0] = 1

    def fancy(a, i):
        a[i] = 1

    def arithmetic(a):
        a[0:2] = np.float32(1) + a[1:3]

    def sort(a):
        a.argsort()

    def flatten(a):
        b = a.T.ravel()
        b[0] = 1

    square = floats(16).reshape(4, 4)
    expect(faults.DataRace, race, floats(8), block=2, source="a[2:4] = 1")
    expect(faults.DataRace, race_of_reads, square, nans(4), block=2)
    expect(faults.KernelError, sizes, floats(8), block=1, words="broadcast")
    expect(faults.OutOfRange, outside, square, block=1, source="a[0][4]")
    expect(faults.OutOfRange, row, square, block=1, words="index 4 of a(4, 4)")
    refuse(fancy, floats(8), np.arange(3), block=1, words="ArrayView as an index is not modelled")
    refuse(arithmetic, floats(8), block=1, words="unsupported operand")
    refuse(sort, floats(8), words="array.argsort is not modelled")
    refuse(flatten, square, words="supports contiguous array only")


def test_local_arrays():
    def kernel(out):
        a = cuda.local.array((3, 4), int32)
        for i in range(3):
            for j in range(4):
                a[i, j] = 4 * i + j
        row = a[1]
        row[2] = 40
        a[2, 1:3] = 7
        half = a[0].view(np.int16)
        half[1] = 1
        out[0] = a[1, 2] + a[2][2] + a.shape[1] + a.size + a.ndim + len(a) + a[:, 3].sum()
        out[1] = a[0, 0] - (1 << 16)
        for line in a:
            out[2] += line[0]
        out[3] = a[-1, -1] + a.flat[4]

    out = np.zeros(4, np.int64)
    run(kernel, out, block=1)
    np.testing.assert_array_equal(out, [40 + 7 + 4 + 12 + 2 + 3 + 21, 0, 65536 + 4 + 8, 11 + 4])


def test_local_arrays_are_judged():
    def unwritten(out):
        a = cuda.local.array((2, 2), float32)
        a[0, 1] = 1
        row = a[0]
        out[0] = row[1]
        out[0] = row[0]

    def outside(out):
        a = cuda.local.array((2, 2), float32)
        a[1][2] = 1

    def of_records(out):
        a = cuda.local.array(2, POINT_TYPE)
        a[1].v[1] = 3
        out[0] = a[1].v[1]
        out[0] = a[1].x

    expect(faults.UninitialisedRead, unwritten, nans(1), block=1, source="out[0] = row[0]")
    expect(faults.OutOfRange, outside, nans(1), block=1, source="a[1][2]")
    expect(faults.UninitialisedRead, of_records, nans(1), block=1, source="a[1].x")


def test_constant_arrays():
    table = np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1]

    def kernel(out):
        c = cuda.const.array_like(table)
        out[0] = c[1, 0] * 2**30 + table[0, 2] + c.shape[1]

    def outside(out):
        out[0] = table[2, 0]

    def write(out):
        table[0, 0] = 1

    out = np.zeros(1, np.int64)
    run(kernel, out, block=1)
    assert out[0] == 5 * 2**30 + 0 + 3
    expect(faults.OutOfRange, outside, out, block=1, source="table[2, 0]")
    assert type(fault_of(write, out, block=1)).__name__ in ("ReadOnlyWrite", "NotCompiled")


# --- functions of numba.cuda ----------------------------------------------------------------------
def test_votes_of_the_block():
    def kernel(out, limit):
        i = cuda.threadIdx.x
        if i < 40:
            for turn in range(3):
                out[i, turn, 0] = cuda.syncthreads_count(int32(i >= limit + turn))
                out[i, turn, 1] = cuda.syncthreads_and(int32(i >= turn))
                out[i, turn, 2] = cuda.syncthreads_or(int32(i - turn > 38 - limit))

    for seed in range(4):
        out = np.full((40, 3, 3), -1, np.int32)
        run(kernel, out, 7, block=64, seed=seed)
        assert (out[:, :, 0] == [33, 32, 31]).all() and (out[:, :, 1] == [1, 0, 0]).all()
        assert (out[:, :, 2] == 1).all()


def test_votes_of_the_block_are_barriers():
    def ordered(out):
        i = cuda.threadIdx.x
        out[i] = i
        if cuda.syncthreads_or(i):
            out[i] = out[63 - i] + cuda.syncthreads_count(1)

    def apart(out):
        if cuda.threadIdx.x < 32:
            cuda.syncthreads_count(1)
        else:
            cuda.syncthreads_or(1)

    def missing(out):
        if cuda.threadIdx.x < 32:
            cuda.syncthreads_and(1)
        else:
            cuda.syncwarp()
            while out[0] == 0:
                cuda.nanosleep(1)

    out = np.zeros(64, np.int32)
    run(ordered, out, block=64)
    np.testing.assert_array_equal(out, 64 + 63 - np.arange(64))
    expect(faults.DivergentBarrier, apart, nans(1), block=64, source="syncthreads_or(1)")
    expect(faults.Livelock, missing, np.zeros(1), block=64)


def test_bits():
    def kernel(out, x):
        out[0], out[1], out[2] = cuda.brev(x), cuda.ffs(x), cuda.popc(x)
        out[3], out[4] = cuda.lanemask_lt(), cuda.selp(x > 3, 1, 2)
        out[5] = cuda.cbrt(27.0) + cuda.fma(2.0, 3.0, 1.0) + cuda.cbrt(float32(8))
        for part in cuda.literal_unroll((1, 2, 4)):
            out[6] += part

    out = np.zeros(7, np.int64)
    run(kernel, out, np.uint32(0b1011), block=1)
    assert list(out) == [0b1101 << 28, 1, 3, 0, 1, 12, 7]


def test_vectors():
    def kernel(out):
        v = cuda.float32x4(1.1, cuda.float2(2, 3), 4)
        w = cuda.int3(300, -1, 2**31)
        out[0], out[1], out[2], out[3] = v.x, v.y + v.w, w.x, w.z
        out[4] = cuda.uchar2(w.x, 1).x

    out = np.zeros(5)
    run(kernel, out, block=1)
    np.testing.assert_array_equal(out, [np.float32(1.1), 6, 300, -(2**31), 44])


def test_atomics():
    def kernel(f, u, i):
        cuda.atomic.nanmax(f, 0, float32(2))
        cuda.atomic.nanmin(f, 1, float32(2))
        cuda.atomic.max(f, 2, float32(2))
        u[2] = cuda.atomic.inc(u, 0, 3)
        u[3] = cuda.atomic.dec(u, 1, 3)
        i[1, 0] = cuda.atomic.cas(i, (0, 1), 5, 6)
        i[1, 1] = cuda.atomic.exch(i, (0, 0), 7)
        cuda.atomic.compare_and_swap(u, 3, 9)

    f, u, i = np.array([np.nan, 1, np.nan], np.float32), np.array([3, 0, 0, 0], np.uint32), np.full((2, 2), 5)
    run(kernel, f, u, i, block=1)
    np.testing.assert_array_equal(f, [2, 1, np.nan])
    np.testing.assert_array_equal(u, [0, 3, 3, 0])
    np.testing.assert_array_equal(i, [[7, 6], [5, 5]])
    def add(a):
        cuda.atomic.add(a, 0, 1)

    def inc(a):
        cuda.atomic.inc(a, 0, 1)

    def xor(a):
        cuda.atomic.xor(a, 0, 1)

    for kernel, kind in ((add, np.int16), (inc, np.int32), (xor, np.float32)):
        refuse(kernel, np.zeros(1, kind), words=f"cuda.atomic.{kernel.__name__} is not for arrays of")

    def local(out):
        a = cuda.local.array(1, int32)
        a[0] = 1
        cuda.atomic.add(a, 0, 1)

    expect(faults.KernelError, local, nans(1), words="needs an array in shared or global memory")


def test_loads_and_stores_with_a_cache_operator():
    def kernel(a, out):
        i = cuda.grid(1)
        cuda.stcg(out, i, cuda.ldcg(a, (i, 0)) + cuda.ldcs(a, (i, 1)))

    def race(a, out):
        cuda.stwt(out, 0, cuda.ldcv(a, (0, 0)))

    a, out = floats(8).reshape(4, 2), nans(4)
    run(kernel, a, out, block=4)
    np.testing.assert_array_equal(out, a.sum(1))
    expect(faults.DataRace, race, a, out, block=4, source="cuda.stwt")
    expect(faults.OutOfRange, kernel, a, out, block=5)


def test_the_grid_group():
    def kernel(a, out):
        grid = cuda.cg.this_grid()
        a[cuda.grid(1)] = cuda.grid(1)
        grid.sync()
        out[cuda.grid(1)] = a[31 - cuda.threadIdx.x]

    run(kernel, np.zeros(32), np.zeros(32))
    run(kernel, np.zeros(96), np.zeros(96), grid=3)


def reference_uniforms(seed, count):
    """The first numbers of xoroshiro128+ behind splitmix64, from its authors' description."""
    mask = (1 << 64) - 1
    z = seed + 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    s0 = s1 = z ^ z >> 31
    state, numbers = (s0, s1), []
    for _ in range(count):
        numbers.append((s0 + s1 & mask) >> 11)
        s1 ^= s0
        s0, s1 = (s0 << 55 | s0 >> 9) & mask ^ s1 ^ s1 << 14 & mask, (s1 << 36 | s1 >> 28) & mask
    return state, np.array(numbers) * 2.0**-53


def test_random_numbers():
    from numba.cuda import random
    from numba.cuda.random import xoroshiro128p_uniform_float32, xoroshiro128p_uniform_float64

    def kernel(states, out):
        i = cuda.grid(1)
        for k in range(3):
            out[i, k] = xoroshiro128p_uniform_float64(states, i)
        out[i, 3] = xoroshiro128p_uniform_float32(states, i)
        out[i, 4] = random.xoroshiro128p_normal_float64(states, i)

    def race(states, out):
        out[0, 0] = xoroshiro128p_uniform_float32(states, 0)

    found = [reference_uniforms(seed, 6) for seed in (1, 2**60)]
    states = np.array([state for state, _ in found], random.xoroshiro128p_dtype)
    out = np.zeros((2, 5))
    run(kernel, states.copy(), out, block=2)
    want = np.array([numbers for _, numbers in found])
    np.testing.assert_array_equal(out[:, :3], want[:, :3])
    np.testing.assert_array_equal(out[:, 3], want[:, 3].astype(np.float32))
    u1, u2 = want[:, 4:].astype(np.float32).T
    normal = np.sqrt(-2 * np.log(u1.astype(float))) * np.cos(2 * np.pi * u2.astype(float))
    np.testing.assert_allclose(out[:, 4], normal, rtol=1e-6)
    expect(faults.DataRace, race, states, out, block=2, source="xoroshiro128p_uniform_float32(states, 0)")


# --- libdevice ------------------------------------------------------------------------------------
def call(name, *args):
    from numba_deform.engines.cpu.frontends.numba_python.libdevice import Libdevice

    with np.errstate(all="ignore"):
        return getattr(Libdevice(), name)(*args)


def test_rounding_in_four_modes():
    from fractions import Fraction

    rng = np.random.default_rng(1)
    operations = {
        "add": lambda x, y: x + y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y,
        "fma": lambda x, y: x * y + x, "rcp": lambda x, y: 1 / x, "sqrt": lambda x, y: None,
    }  # fmt: skip
    for kind, letter in ((np.float32, "f"), (np.float64, "d")):
        for name, exact in operations.items():
            for _ in range(20):
                x, y = (kind(v) for v in rng.standard_normal(2) * 10.0 ** rng.integers(-5, 5, 2))
                if name == "sqrt":
                    x = abs(x)
                args = {"fma": (x, y, x), "rcp": (x,), "sqrt": (x,)}.get(name, (x, y))
                prefix = name + "f" * (letter == "f") if name == "fma" else letter + name
                rd, rn, rz, ru = (call(f"{prefix}_{mode}", *args) for mode in ("rd", "rn", "rz", "ru"))
                if name == "sqrt":
                    below, above = Fraction(float(rd)) ** 2, Fraction(float(ru)) ** 2
                    value = Fraction(float(x))
                else:
                    below, above = Fraction(float(rd)), Fraction(float(ru))
                    value = exact(*(Fraction(float(v)) for v in (x, y)))
                assert below <= value <= above and type(rd) is kind, (prefix, args)
                assert ru == rd or np.nextafter(rd, kind(np.inf)) == ru, (prefix, args)
                assert rn in (rd, ru) and rz == (rd if value > 0 else ru)
                if name != "sqrt":
                    assert abs(Fraction(float(rn)) - value) * 2 <= above - below


LIBDEVICE = [
    (("sinf", np.float32(0.5)), np.float32(np.sin(0.5))), (("pow", 2, 10), 1024.0), (("cospif", 1.0), -1),
    (("fast_powf", 2, 3), 8), (("sincos", 0.0), (0, 1)), (("modf", 2.5), (0.5, 2)), (("frexp", 6.0), (0.75, 3)),
    (("erff", 0.0), 0), (("tgamma", 5.0), 24), (("round", -2.5), -3), (("rint", -2.5), -2), (("fdim", 3, 5), 0),
    (("log", -1.0), np.nan), (("llround", 0.49999999999999994), 0), (("llrintf", 2.5), 2),
    (("powi", 2.0, -1), 0.5),
    (("double2int_rn", 2.5), 2), (("double2int_ru", 2.1), 3), (("float2int_rz", -2.9), -2),
    (("float2uint_rz", -2.9), 0), (("double2int_rz", 1e20), 2**31 - 1),
    (("double2int_rz", np.nan), -(2**31)),
    (("float2int_rz", np.nan), 0), (("int2float_rd", 2**24 + 1), 2.0**24),
    (("int2float_ru", 2**24 + 1), 2.0**24 + 2),
    (("uint2float_rn", -1), 2.0**32), (("ull2double_rz", -1), 2.0**64 - 2048),
    (("ll2float_rn", 2**62 + 1), 2.0**62),
    (("double2float_rz", 0.1), np.nextafter(np.float32(0.1), np.float32(0))), (("brev", 1), -(2**31)),
    (("clz", -1), 0), (("clzll", 1), 63), (("ffs", 8), 4), (("popcll", -1), 64), (("umax", -1, 1), -1),
    (("max", -1, 1), 1), (("mulhi", 2**30, 8), 2), (("umulhi", -1, -1), -2), (("mul64hi", 2**40, 2**40), 2**16),
    (("mul24", 0x800000, 1), -0x800000), (("hadd", 3, 4), 3), (("urhadd", -1, -1), -1), (("sad", 1, 4, 2), 5),
    (("byte_perm", 0x03020100, 0x07060504, 0x7520), 0x07050200), (("float_as_int", 1.0), 0x3F800000),
    (("hiloint2double", 0x3FF00000, 0), 1.0), (("double2hiint", 1.0), 0x3FF00000), (("isnanf", np.nan), 1),
    (("signbitd", -0.0), 1), (("saturatef", 3.0), 1), (("half2float", 0x3C00), 1), (("ilogb", 10.0), 3),
    (("float2half_rn", 1.0), 0x3C00), (("nextafterf", 1, 2), 1 + 2**-23), (("scalbn", 3.0, -1), 1.5),
    (("fma", 1 + 2.0**-30, 1 + 2.0**-30, -1.0), 2.0**-29 + 2.0**-60), (("hypotf", 3, 4), 5),
]  # fmt: skip


@pytest.mark.parametrize("case, value", LIBDEVICE, ids=lambda x: x[0] if isinstance(x, tuple) else "")
def test_libdevice(case, value):
    np.testing.assert_array_equal(call(*case), value)


def test_half_precision():
    from numba.cuda import fp16

    def kernel(out, x):
        out[0] = fp16.hadd(x, x) + fp16.hfma(x, x, x) + fp16.hsqrt(np.float16(4))
        out[1] = 1 if fp16.hlt(x, x) else 2

    out = np.zeros(2, np.float16)
    run(kernel, out, np.float16(1.5), block=1)
    np.testing.assert_array_equal(out, [3 + 3.75 + 2, 2])
    words = "cuda.fp16.atomicAdd is not modelled"
    refuse(lambda out: fp16.atomicAdd(out, 0), out, words=words)


# --- all there is ---------------------------------------------------------------------------------
HOST = {"jit", "to_device", "synchronize", "device_array", "stream", "reduce", "declare_device", "is_available"}
REFUSED = {"Dim3", "grid_group"}
REFUSED_LIBDEVICE = set(
    "erfcinv erfcinvf erfcx erfcxf erfinv erfinvf j0 j0f j1 j1f jn jnf normcdfinv normcdfinvf remquo remquof "
    "y0 y0f y1 y1f yn ynf".split()
)


def test_every_name_of_numba_cuda_works_or_is_refused_by_name():
    """Its objects for kernels work; what is for the host, and REFUSED, is refused."""
    from numba.cuda import cache_hints, intrinsics, stubs

    from numba_deform.engines.cpu.frontends.numba_python.cuda_module import CudaModule
    from numba_deform.engines.cpu.memory.scalars import Unsupported

    fake = CudaModule(python.SimpleNamespace(blocks=1, grid_shape=(1, 1, 1), block_shape=(1, 1, 1)))
    for_kernels = {
        name for module in (stubs, intrinsics, cache_hints) for name, value in vars(module).items()
        if name in dir(cuda) and callable(value) and value is getattr(cuda, name)
    }  # fmt: skip
    refused = set()
    for name in dir(cuda):
        try:
            assert getattr(type(fake), name, None) or getattr(fake, name) is not None
        except Unsupported as error:
            assert str(error) == f"cuda.{name} is not modelled by the CPU engine"
            refused.add(name)
    assert refused >= HOST | REFUSED
    for_kernels |= {"cg", "libdevice", "float32", "boolean", "int8x1", "float4", "ulonglong3"}
    assert for_kernels & refused <= REFUSED and len(for_kernels) > 50
    own = {name for name in dir(fake) if not name.startswith("_")}
    assert own - set(dir(cuda)) <= {"types", "fp16", "bf16", "fp8", "shared_array"}
    for space in ("atomic", "shared", "local", "const"):
        for name in vars(getattr(cuda, space)):
            assert name.startswith("_") or hasattr(getattr(fake, space), name), (space, name)


def test_every_name_of_libdevice_works_or_is_refused_by_name():
    from numba.cuda.libdevicefuncs import create_signature, functions

    refused = set()
    for name, (result, parameters) in functions.items():
        name, signature = name.removeprefix("__nv_"), create_signature(result, parameters)
        try:
            value = call(name, *(1 for _ in signature.args))
        except AttributeError as error:
            assert str(error) == f"cuda.libdevice.{name} is not modelled by the CPU engine"
            refused.add(name)
            continue
        kinds = {"float32": np.float32, "float64": np.float64}
        gives = signature.return_type
        pairs = zip(gives, value, strict=True) if isinstance(gives, numba.types.BaseTuple) else [(gives, value)]
        for kind, part in pairs:
            assert type(part) is kinds.get(str(kind), int), name
    assert refused == REFUSED_LIBDEVICE


def test_what_is_refused_is_named_however_it_is_reached():
    from numba.cuda import jit, to_device

    def by_name(out):
        to_device(out)

    for kernel, words in (
        (by_name, "cuda.to_device is not modelled"),
        (lambda out: cuda.synchronize(), "cuda.synchronize is not modelled"),
        (lambda out: numba.cuda.libdevice.erfinv(1.0), "cuda.libdevice.erfinv is not modelled"),
        (lambda out: jit(out), "cuda.jit is not modelled"),
    ):
        refuse(kernel, nans(1), words=words)


SPELT = {
    "nd.mbarrier_waitt(out, 1)": "Write what nd has; did you mean mbarrier_wait?",
    "cuda.syncthread()": "Write what cuda has; did you mean syncthreads?",
    "SHARED.ring.fulll(0)": "Write what SHARED.ring has; did you mean full?",
    "SHARED.tilde.at(0)": "Write what SHARED has; did you mean tile?",
    "nd.qqq()": "Write what nd has.",
    "lane()": "Define or import lane before the kernel is run; did you mean nd.lane?",
    "sizes[0]": "Define or import sizes before the kernel is run; did you mean size?",
    "qqq": "Define or import qqq before the kernel is run.",
}  # fmt: skip


@pytest.mark.parametrize("text", SPELT)
def test_a_name_that_is_nowhere(text, tmp_path):
    """The cure names what is there and nearly spelt so, of the module, the function around or a package."""
    lines = "import numba_deform as nd", "from numba import cuda", "size = 3"
    shared = "SHARED = nd.Shared(tile=nd.Array(32, nd.float32), ring=nd.Ring(1))"
    (tmp_path / "spelt.py").write_text("\n".join((*lines, shared, f"def kernel(out):\n    {text}\n")))
    spec = importlib.util.spec_from_file_location("spelt", tmp_path / "spelt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fault = expect(faults.NotCompiled, module.kernel, np.zeros(1), source=text)
    assert fault.cure == SPELT[text] and "behind a dot" in fault.rule


def test_a_number_that_one_lane_sets():
    """The others may hand on what they hold, and nothing may depend on it."""

    def kernel(count, out, how):
        i = cuda.threadIdx.x
        if i % 32 == 0:
            first = cuda.atomic.add(count, 0, 32)
        if how == 0:
            first = cuda.shfl_sync(0xFFFFFFFF, first, 0)
            out[first + i % 32] = i
        elif how == 1:
            out[i] = first + 1
        elif how == 2 and first > 9:
            out[i] = 1

    for compiled in (False, True):
        out = np.zeros(64, np.int32)
        run(kernel, np.zeros(1, np.int32), out, 0, block=64, schedules=5, compiled=compiled)
        assert sorted(out) == list(range(64))
        for how, source in ((1, "out[i] = first + 1"), (2, "how == 2 and first > 9")):
            given = np.zeros(1, np.int32), out, how
            expect(faults.UninitialisedRead, kernel, *given, block=64, compiled=compiled,
                   words="first has no value", source=source)  # fmt: skip
