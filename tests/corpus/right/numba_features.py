"""What Numba compiles and people write: records, slices, constants, random numbers, shapes, arithmetic."""

import enum
import math
from collections import namedtuple

import numba
import numpy as np
from base import right
from numba import cuda, float32, from_dtype, int8, int32, uint32, uint64
from numba.cuda.random import xoroshiro128p_dtype, xoroshiro128p_uniform_float32

WARP, SIDE, TILE = 32, 16, 8
PARTICLE = np.dtype([("x", np.float32), ("y", np.float32), ("kind", np.int32)], align=True)
PARTICLE_TYPE = from_dtype(PARTICLE)
FILTER = np.array([1, 4, 6, 4, 1], np.int32)


class Length(enum.IntEnum):
    DAY, WEEK = 1, 7


Limits = namedtuple("Limits", ["low", "high"])
LIMITS = Limits(3, 20)


def ints(count, *shapes):
    return lambda: [np.arange(count, dtype=np.int32), *(np.zeros(s, np.int32) for s in shapes)]


def particles(count):
    i = np.arange(count)
    result = np.zeros(count, PARTICLE)
    result["x"], result["y"], result["kind"] = i, i * 2, i % 3
    return result


@right(
    source="numba-cuda tests, test_record_dtype.py: fields as attributes and by name",
    args=lambda: [particles(WARP), np.zeros(WARP, np.float32)],
    expect=lambda data, out: [(data["x"], np.arange(WARP) + 1), (data["kind"], 7 - np.arange(WARP) % 3),
                              (data["y"], np.arange(WARP) * 2), (out, np.arange(WARP) * 3)],
)  # fmt: skip
def fields_of_records(data, out):
    """Fields are read and written as attributes of an element, as items of it, and by way of a name for it."""
    i = cuda.grid(1)
    out[i] = data[i].x + data[i]["y"]
    data[i].x += float32(1)
    one = data[i]
    one["kind"] = 7 - one.kind


@right(
    source="Numba, numba/cpython/iterators.py: zip_iternext asks all parts before it ends",
    args=ints(WARP, WARP), expect=lambda data, out: [(out, data * 3 + 5)],
)  # fmt: skip
def zip_with_a_longer_array(data, out):
    """The loop ends with the tuple; the third element of the array is asked for, never set, and not used."""
    factors, i = cuda.local.array(4, int32), cuda.grid(1)
    factors[0], factors[1] = 1, 2
    out[i] = 0
    for factor, more in zip(factors, (2, 3)):  # noqa: B905 (Numba has no strict)
        out[i] += data[i] * factor + more


@right(
    source="numba-cuda tests, test_sm.py: shared arrays of records",
    args=lambda: [particles(WARP), np.zeros((2, WARP), np.float32)],
    expect=lambda data, out: [(out[0], data["y"][::-1]), (out[1], data["kind"][::-1])],
)  # fmt: skip
def records_in_shared_memory(data, out):
    """One lane writes the fields of a shared record, another reads some of them; the third field nobody
    writes."""
    shared = cuda.shared.array(WARP, PARTICLE_TYPE)
    lane = cuda.threadIdx.x
    shared[lane].y = data[lane].y
    shared[lane].kind = data[lane].kind
    cuda.syncthreads()
    out[0, lane] = shared[31 - lane].y
    out[1, lane] = shared[31 - lane].kind


@cuda.jit(device=True)
def sum_of(row):
    total = 0
    for x in row:
        total += x
    return total


@right(
    source="Numba documentation, writing device functions: rows and slices of arrays as arguments",
    args=lambda: [np.arange(WARP * 8, dtype=np.int32).reshape(WARP, 8), np.zeros((3, WARP), np.int32)],
    expect=lambda data, out: [(out[0], data.sum(1)), (out[1], data[:, 2:5].sum(1)),
                              (out[2], data[:, ::2].sum(1))],
)  # fmt: skip
def rows_and_slices(data, out):
    """A device function adds up what it is given: a row, a part of a row, every other element of it."""
    i = cuda.grid(1)
    out[0, i] = sum_of(data[i])
    out[1, i] = sum_of(data[i, 2:5])
    out[2, i] = sum_of(data[i, ::2])


@right(
    source="Numba documentation, CUDA memory management: constant memory by cuda.const.array_like",
    block=64, args=ints(64, 64),
    expect=lambda data, out: [(out[2:-2], np.convolve(data, FILTER, "valid")), (out[:2], 0)],
)  # fmt: skip
def a_filter_in_constant_memory(data, out):
    """The coefficients are a NumPy array of the module. The first and the last two threads have nothing to
    do."""
    taps = cuda.const.array_like(FILTER)
    i = cuda.grid(1)
    if i < 2 or i >= data.size - 2:
        return
    total = 0
    for k in range(taps.size):
        total += taps[k] * data[i + k - 2]
    out[i] = total


def random_states(count):
    """Any states will do, but for zeros."""
    states = np.zeros(count, xoroshiro128p_dtype)
    states["s0"] = [splitmix(2 * i) for i in range(count)]
    states["s1"] = [splitmix(2 * i + 1) for i in range(count)]
    return states


def unit_floats(states, count):
    """What xoroshiro128+ makes of these states: (count, states) numbers below one."""
    s0, s1, rows = states["s0"].copy(), states["s1"].copy(), []
    for _ in range(count):
        rows.append((((s0 + s1) >> np.uint64(11)) * 2.0**-53).astype(np.float32))
        s1 ^= s0
        s0 = (s0 << np.uint64(55) | s0 >> np.uint64(9)) ^ s1 ^ s1 << np.uint64(14)
        s1 = s1 << np.uint64(36) | s1 >> np.uint64(28)
    return np.stack(rows)


@right(
    source="Numba documentation, random number generation on the GPU",
    grid=2, args=lambda: [random_states(64), np.zeros((3, 64), np.float32)],
    expect=lambda states, out: [(out, unit_floats(random_states(64), 3))],
)  # fmt: skip
def random_numbers(states, out):
    """Each thread draws three numbers from its own state, which is a record in global memory."""
    i = cuda.grid(1)
    for k in range(3):
        out[k, i] = xoroshiro128p_uniform_float32(states, i)


@right(
    source="Numba documentation, CUDA examples: matrix multiplication with shared memory",
    grid=(2, 2), block=(TILE, TILE),
    args=lambda: [np.arange(11 * 13, dtype=np.float32).reshape(11, 13) % 7,
                  np.arange(13 * 10, dtype=np.float32).reshape(13, 10) % 5, np.zeros((11, 10), np.float32)],
    expect=lambda a, b, c: [(c, a @ b)],
)  # fmt: skip
def matrices_with_ragged_borders(a, b, c):
    """Two dimensions of blocks and threads. Tiles are filled with zeros past the borders, every thread comes to
    every syncthreads, and only those inside the result write."""
    left = cuda.shared.array((TILE, TILE), float32)
    up = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for i in range((a.shape[1] + TILE - 1) // TILE):
        left[ty, tx] = 0
        up[ty, tx] = 0
        if y < a.shape[0] and tx + i * TILE < a.shape[1]:
            left[ty, tx] = a[y, tx + i * TILE]
        if x < b.shape[1] and ty + i * TILE < b.shape[0]:
            up[ty, tx] = b[ty + i * TILE, x]
        cuda.syncthreads()
        for j in range(TILE):
            total += left[ty, j] * up[j, tx]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@right(
    source="Numba documentation, kernels: blocks of three dimensions; CUDA guide on how threads are numbered",
    block=(4, 2, 8), args=lambda: [np.zeros((8, 2, 4), np.int32)],
    expect=lambda out: [(out, np.arange(64).reshape(8, 2, 4) % 32)],
)  # fmt: skip
def lanes_of_a_block_of_three_dimensions(out):
    """Lanes are counted along x first, then y, then z."""
    out[cuda.threadIdx.z, cuda.threadIdx.y, cuda.threadIdx.x] = cuda.laneid


@right(
    source="Numba documentation, CUDA examples: a reduction whose active threads get ever fewer",
    block=64, args=ints(64, 1), expect=lambda data, out: [(out, data.sum())],
)  # fmt: skip
def interleaved_reduction(data, out):
    """The step doubles while it is less than the block's size; all threads come to the barrier at each step."""
    shared = cuda.shared.array(64, int32)
    i, thread = cuda.grid(1), cuda.threadIdx.x
    shared[thread] = data[i]
    cuda.syncthreads()
    step = 1
    while step < cuda.blockDim.x:
        if thread % (2 * step) == 0:
            shared[thread] += shared[thread + step]
        step *= 2
        cuda.syncthreads()
    if thread == 0:
        out[0] = shared[0]


@right(
    source="numba-cuda tests, test_sync.py: syncthreads_count, syncthreads_and",
    block=96, args=ints(96, (3, 96)),
    expect=lambda data, out: [(out[0], 32), (out[1], 0), (out[2], 1)],
)  # fmt: skip
def barriers_that_count(data, out):
    """All threads learn how many said yes, and whether all did."""
    thread = cuda.threadIdx.x
    out[0, thread] = cuda.syncthreads_count(int32(data[thread] % 3 == 0))
    out[1, thread] = cuda.syncthreads_and(int32(data[thread] != 50))
    out[2, thread] = cuda.syncthreads_and(int32(data[thread] < 96))


@right(
    source="numba-cuda tests, test_array_args.py: tuples are arguments",
    args=lambda: [np.arange(WARP, dtype=np.int32), (2, 3.5), (1, 2, 3), np.zeros((2, WARP), np.float64)],
    expect=lambda data, factors, more, out: [(out[0], data * 2 + 6), (out[1], data + 3.5)],
)  # fmt: skip
def tuples_as_arguments(data, factors, more, out):
    """One tuple holds an integer and a float and is taken apart, the other holds integers and is gone
    through."""
    i = cuda.grid(1)
    count, offset = factors
    total = data[i] * count
    for x in more:
        total += x
    out[0, i] = total
    out[1, i] = data[i] + offset


@right(
    source="Numba documentation, CUDA memory management: arrays of any strides are arguments",
    args=lambda: [np.arange(WARP * 6, dtype=np.int32).reshape(WARP, 6)[:, 1::2], np.zeros((2, WARP), np.int32)],
    expect=lambda data, out: [(out[0], data.sum(1)), (out[1], data[::-1, 2])],
)  # fmt: skip
def every_other_column(data, out):
    """The array is every other column of a larger one; what lies between belongs to nobody in this kernel."""
    i = cuda.grid(1)
    total = 0
    for k in range(data.shape[1]):
        total += data[i, k]
    out[0, i] = total
    out[1, i] = data[-1 - i, -1]


@right(
    source="Numba documentation, CUDA: names by way of the module, as in numba.cuda.grid",
    args=ints(WARP, WARP), expect=lambda data, out: [(out, data[::-1] + 1)],
)  # fmt: skip
def spelled_with_the_module(data, out):
    """The kernel says numba.cuda.x throughout."""
    shared = numba.cuda.shared.array(32, numba.int32)
    i = numba.cuda.grid(1)
    shared[i] = data[i]
    numba.cuda.syncthreads()
    out[i] = shared[31 - i] + numba.int32(1)


@right(
    source="Numba documentation, CUDA memory management: local arrays; tests of arrays with two dimensions",
    args=ints(WARP, (3, WARP)),
    expect=lambda data, out: [(out, np.stack([data * 1, data * 10, data * 100])[[2, 0, 1]])],
)  # fmt: skip
def rows_of_a_local_array(data, out):
    """The rows of a local array of two dimensions go to a device function."""
    local = cuda.local.array((3, 3), int32)
    i = cuda.grid(1)
    scale = 1
    for row in range(3):
        local[row, 0] = data[i] * scale
        local[row, 1] = 0
        local[row, 2] = 0
        scale *= 10
    for row in range(3):
        out[row, i] = sum_of(local[(row + 2) % 3])


@right(
    source="CUDA C++ Programming Guide, integer intrinsics; Numba's cuda.brev, popc, clz, ffs and libdevice",
    args=lambda: [np.arange(WARP, dtype=np.int32) * 0x01234567 % 0x7FFFFFFF, np.zeros((6, WARP), np.int64)],
    expect=lambda data, out: [(out, [[int(f"{x:032b}"[::-1], 2) for x in data.tolist()],
                                     [x.bit_count() for x in data.tolist()],
                                     [32 - x.bit_length() for x in data.tolist()],
                                     [(x & -x).bit_length() for x in data.tolist()],
                                     [x * 1000003 >> 32 for x in data.tolist()],
                                     [math.isqrt(x // 65536) for x in data.tolist()]])],
)  # fmt: skip
def bits_and_roots(data, out):
    """Bits turned round and counted, the upper half of a product, and the floor of a root."""
    i = cuda.grid(1)
    x = uint32(data[i])
    out[0, i] = cuda.brev(x)
    out[1, i] = cuda.popc(x)
    out[2, i] = cuda.clz(x)
    out[3, i] = cuda.ffs(x)
    out[4, i] = cuda.libdevice.mulhi(data[i], int32(1000003))
    out[5, i] = int(math.floor(math.sqrt(float(x >> uint32(16)))))


@right(
    source="Numba documentation, type inference: 0.0 is a float64, and so is what it is added to",
    args=lambda: [np.full(40, 0.1, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float64)],
    expect=lambda data, single, double: [(single, np.float32([sum(map(float, data)), data.cumsum()[-1]])),
                                         (double, [sum(map(float, data)), 3 * float(data[0])])],
)  # fmt: skip
def what_a_sum_starts_with(data, single, double):
    """The same loop in double and in single precision, by the type of its first value; and three times a
    float32, which is a float64 too."""
    if cuda.grid(1) == 0:
        total = 0.0
        other = float32(0)
        for i in range(data.size):
            total += data[i]
            other += data[i]
        single[0], single[1] = total, other
        double[0], double[1] = total, 3 * data[0]


@right(
    source="Numba Enhancement Proposal 1, integer typing: int32 times int32 is an int64; division as Python's",
    args=lambda: [np.arange(-16, 16, dtype=np.int32) * 20, np.zeros(WARP, np.int8),
                  np.zeros((4, WARP), np.int64)],
    expect=lambda data, small, out: [(small, data.astype(np.int8)), (out[0], data // 7), (out[1], data % 7),
                                     (out[2], data.astype(np.int64) * 100000000),
                                     (out[3], data.astype(np.uint32))],
)  # fmt: skip
def wraps_and_floors(data, small, out):
    """A product of int32 is an int64 and does not wrap; a store to int8 and a cast to uint32 do. Division
    rounds down, and a remainder has the divisor's sign."""
    i = cuda.grid(1)
    small[i] = int8(data[i])
    out[0, i] = data[i] // 7
    out[1, i] = data[i] % 7
    out[2, i] = data[i] * int32(100000000)
    out[3, i] = uint32(data[i])


@right(
    source="Steele, Lea and Flood, splitmix64; numba/cuda/random.py seeds its states with it",
    args=lambda: [np.zeros(WARP, np.uint64)],
    expect=lambda out: [(out, [splitmix(i) for i in range(WARP)])],
)  # fmt: skip
def hashes_of_64_bits(out):
    """Products and sums of uint64 wrap by themselves, with no mask anywhere."""
    i = cuda.grid(1)
    z = uint64(i) * uint64(0x9E3779B97F4A7C15) + uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    out[i] = z ^ (z >> uint64(31))


def splitmix(i):
    mask = (1 << 64) - 1
    z = (i + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


@right(
    source="Numba examples, laplace2d: two arrays change their roles in each step",
    block=64, args=ints(64, 64, 64),
    expect=lambda data, a, b: [(b, _smoothed(data, 3)), (a, _smoothed(data, 4))],
)  # fmt: skip
def two_names_change_places(data, a, b):
    """Two global arrays are read and written in turn under names that are exchanged after each step; one
    syncthreads for each step is enough."""
    i = cuda.grid(1)
    a[i] = data[i]
    cuda.syncthreads()
    old, new = a, b
    for _ in range(4):
        left = old[i - 1] if i > 0 else old[i]
        right_ = old[i + 1] if i < old.size - 1 else old[i]
        new[i] = left + old[i] + right_
        cuda.syncthreads()
        old, new = new, old


def _smoothed(x, steps):
    for _ in range(steps):
        x = np.concatenate([x[:1], x[:-1]]) + x + np.concatenate([x[1:], x[-1:]])
    return x


@cuda.jit(device=True)
def bounds(x, low=0):
    """Two values and a flag."""
    return min(max(x, low), LIMITS.high), x * 2, low <= x <= LIMITS.high


@right(
    source="Numba documentation, supported Python features: tuples, named tuples, defaults, enumerate, "
           "conditional values",
    args=ints(WARP, (3, WARP)),
    expect=lambda data, out: [(out[0], np.clip(data, 3, 20)), (out[1], data * 2 + 12),
                              (out[2], (data >= 3) & (data <= 20))],
)  # fmt: skip
def tuples_and_defaults(data, out):
    """Device functions return tuples of several types, take default values, and read named tuples of the
    module."""
    i = cuda.grid(1)
    clipped, doubled, inside = bounds(data[i], LIMITS.low)
    _, more, _ = bounds(2)
    for k, weight in enumerate((4, 4, 4)):
        doubled += k * weight
    out[0, i], out[1, i] = clipped, doubled + (more - 4)
    out[2, i] = 1 if inside else 0


@right(
    source="Numba documentation, CUDA: complex numbers are supported types",
    args=lambda: [np.arange(WARP, dtype=np.float32), np.zeros(WARP, np.complex64), np.zeros(WARP, np.float32)],
    expect=lambda data, out, size: [(out, (data + 2j) ** 2 * 1j), (size, data**2 + 4)],
)  # fmt: skip
def complex_numbers(data, out, size):
    """Gaussian integers are multiplied; all of it is exact."""
    i = cuda.grid(1)
    z = complex(data[i], 2.0)
    out[i] = z * z * 1j
    size[i] = z.real * z.real + z.imag * z.imag


@right(
    source="numba-cuda, cpython/numbers.py: _int_divmod_impl by the error model of NumPy",
    args=lambda: [np.arange(WARP, dtype=np.int32) % 3 - 1, np.full((4, WARP), 9, np.int32)],
    expect=lambda data, out: [(out[0], np.where(data == 0, 0, 7 * data)), (out[1], 0), (out[2], 0),
                              (out[3], np.where(data == 0, 0, -9))],
)  # fmt: skip
def division_of_integers_by_zero(data, out):
    """Quotient and remainder of integers are 0 where the divisor is, with no error."""
    i = cuda.grid(1)
    d = data[i]
    out[0, i] = 7 // d
    out[1, i] = 7 % d
    n = i - i
    n //= data[i] - data[i]
    out[2, i] = n + 5 % (data[i] - data[i]) + uint32(5) // uint32(d - d)
    out[3, i] = int32(9) // (d * -d)


@right(
    source="numba-cuda tests, test_ufuncs.py: NumPy's universal functions with an array for the result",
    args=lambda: [np.arange(2 * WARP, dtype=np.float32), np.zeros((WARP, 2), np.float32)],
    expect=lambda data, out: [
        (out, np.minimum(np.maximum(data.reshape(WARP, 2), 9), data[::-1].reshape(WARP, 2)))
    ],
)
def functions_of_arrays(data, out):
    """Each lane has its part of an array in shared memory, changes it there, and then reads another lane's."""
    tile = cuda.shared.array((WARP, 2), float32)
    i = cuda.grid(1)
    np.maximum(data[2 * i : 2 * i + 2], float32(9), tile[i])
    out[i, 0], out[i, 1] = tile[i, 0], tile[i, 1]
    cuda.syncwarp()
    tile[i, 0], tile[i, 1] = data[2 * i], data[2 * i + 1]
    cuda.syncwarp()
    np.minimum(out[i], tile[31 - i, ::-1], out[i])


@right(
    source="numba-cuda tests, test_array_reductions.py: reductions of arrays",
    args=lambda: [np.arange(WARP, dtype=np.float32) % 5, np.zeros((3, WARP), np.float32)],
    expect=lambda data, out: [(out[0], 61), (out[1], 61 / 32), (out[2], 25)],
)  # fmt: skip
def reductions_of_shared_memory(data, out):
    """Every lane adds up what all have written, with a barrier in between."""
    tile = cuda.shared.array(WARP, float32)
    i = cuda.grid(1)
    tile[i] = data[i]
    cuda.syncthreads()
    out[0, i], out[1, i], out[2, i] = tile.sum(), np.mean(tile), np.count_nonzero(tile)


@right(
    source="numba-cuda tests, test_datetime.py and test_enums.py: spans of days, members of an IntEnum",
    args=lambda: [np.datetime64("2026-02-27") + np.arange(WARP), np.zeros(WARP, "m8[D]"), np.zeros(WARP, int)],
    expect=lambda days, spans, out: [(spans, 2 * np.arange(WARP) * np.timedelta64(1, "D")),
                                     (out, np.where(np.arange(WARP) > 3, 7, 0))],
)  # fmt: skip
def days_and_weeks(days, spans, out):
    """Differences of days are added, and compared with a week, whose length is a member of an enumeration."""
    i = cuda.grid(1)
    span = days[i] - days[0]
    span += days[i] - days[0]
    spans[i] = span
    if span > days[int32(Length.WEEK)] - days[0]:
        out[i] = Length.WEEK
