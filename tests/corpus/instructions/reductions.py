"""Reductions by the copy engine: every operation and type on random data, every rank, and what they order."""

import ml_dtypes
import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device import reduce
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    shared_address,
    st_global_b32,
)
from numba_deform.device.reduce import (
    cp_reduce_async_bulk_add_f32,
    cp_reduce_async_bulk_add_u32,
    cp_reduce_async_bulk_max_s32,
    cp_reduce_async_bulk_tensor_1d_add,
    cp_reduce_async_bulk_tensor_1d_min,
    cp_reduce_async_bulk_tensor_2d_add,
)
from numba_deform.device.sync import fence_proxy_async, fence_proxy_async_full
from numba_deform.device.tma import (
    cp_async_bulk_commit_group,
    cp_async_bulk_store,
    cp_async_bulk_wait_group,
    cp_async_bulk_wait_group_read,
    fence_proxy_tensormap_acquire_sys,
)
from numba_deform.engines import faults
from numba_deform.engines.tensormap import TensorMap, TensorMapArray

WARP, BLOCKS, WORDS, BYTES = 32, 4, 64, 256
BULK, TENSOR, GROUPS = "PTX ISA 9.7.9.25.4.2", "PTX ISA 9.7.9.25.5.3", "PTX ISA 9.7.9.25.6.2"
DTYPES = {
    "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip
MAPPED = {"b32": "uint32", "b64": "uint64", "bf16": "bfloat16"}
TYPES = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    "min": ("u32", "s32", "u64", "s64", "f16", "bf16"), "max": ("u32", "s32", "u64", "s64", "f16", "bf16"),
    "inc": ("u32",), "dec": ("u32",),
    "and": ("b32", "b64"), "or": ("b32", "b64"), "xor": ("b32", "b64"),
}  # fmt: skip
OF_RANK = ("add", "f32"), ("min", "s32"), ("max", "f16"), ("and", "b32"), ("or", "b64"), ("xor", "b32")


def aligned(array):
    """A copy of the array on a multiple of 16 bytes."""
    room = np.zeros(array.nbytes + 16, np.uint8)
    start = -room.__array_interface__["data"][0] % 16
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def numbers(kind, *shape, seed):
    """Random ones of a type: floats of all signs, integers of all bits, those of inc and dec close together."""
    random, dtype = np.random.default_rng(seed), np.dtype(DTYPES[kind])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return aligned(random.integers(info.min, info.max, shape, dtype, endpoint=True))
    return aligned(random.standard_normal(shape).astype(dtype))


def combined(op, old, new):
    """What NumPy makes of it; sums of floats by way of float64, which rounds once."""
    if op == "add" and old.dtype.kind not in "iu":
        return (old.astype(np.float64) + new.astype(np.float64)).astype(old.dtype)
    if op == "inc":
        return np.where(old >= new, 0, old + np.uint32(1)).astype(np.uint32)
    if op == "dec":
        return np.where((old == 0) | (old > new), new, old - np.uint32(1)).astype(np.uint32)
    functions = {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }  # fmt: skip
    return functions[op](old, new)


@cuda.jit(device=True)
def fill(tile, data):
    """A tile of words from global memory, ready for the copy engine."""
    for k in range(int32(cuda.threadIdx.x), WORDS, WARP):
        tile[k] = ld_global_b32(global_at(data, k, 4))
    fence_proxy_async()
    cuda.syncwarp()


# --- every operation and type ---------------------------------------------------------------------
def of_bulk(op, kind):
    """A program that combines one row of random numbers with another."""
    name, count = f"cp_reduce_async_bulk_{op}_{kind}", BYTES // np.dtype(DTYPES[kind]).itemsize
    instruction = getattr(reduce, name)

    def kernel(data: u64, out: u64):
        """One reduction of a row, waited for."""
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        fill(tile, data)
        if int32(cuda.threadIdx.x) == 0:
            instruction(out, shared_address(tile), BYTES)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    def args():
        data, out = numbers(kind, count, seed=5), numbers(kind, count, seed=6)
        if op in ("inc", "dec"):
            out[:] = data + np.resize(np.array([0, 1, -1, -5], np.int64), count).astype(np.uint32)
            out[:4] = 0
        return [data, out]

    kernel.__name__ = f"bulk_{op}_{kind}"
    right(source=BULK, args=args, expect=lambda data, out: [(out, combined(op, args()[1], data))])(kernel)


for _op, _kinds in TYPES.items():
    for _kind in _kinds:
        of_bulk(_op, _kind)



# --- what is no ordinary number --------------------------------------------------------------------
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF}


def pairs(kind):
    """Two rows: zeros of both signs, subnormals, the smallest and the largest number, infinity and NaN, each
    with each; as many as there is room for."""
    limits = ml_dtypes.finfo(DTYPES[kind])
    small, least, most = (float(x) for x in (limits.smallest_normal, limits.smallest_subnormal, limits.max))
    special = [0.0, -0.0, least, least - small, small, np.inf, np.nan, most]
    both = np.array(np.meshgrid(special, special)).reshape(2, -1)
    count = BYTES // np.dtype(DTYPES[kind]).itemsize
    return [aligned(np.resize(row, count).astype(DTYPES[kind])) for row in both]


def edges(op, kind):
    """The bits that a row of such numbers leaves, combined with another."""
    data, out = (row.astype(np.float64) for row in pairs(kind))
    with np.errstate(all="ignore"):
        one = {"add": np.add, "min": np.fmin, "max": np.fmax}[op](out, data)
        zero = (one == 0) & (data == 0) & (out == 0)
        one[zero & (np.signbit(data) != np.signbit(out))] = {"add": 0.0, "min": -0.0, "max": 0.0}[op]
        result = one.astype(DTYPES[kind])
    return np.where(np.isnan(one), NAN[kind], result.view(f"u{result.itemsize}"))


def of_edges(op, kind):
    """A program that combines such rows."""
    instruction = getattr(reduce, f"cp_reduce_async_bulk_{op}_{kind}")

    def kernel(data: u64, out: u64):
        """Subnormals are kept, of a number and a NaN the number is min and max, and a NaN has all its bits."""
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        fill(tile, data)
        if int32(cuda.threadIdx.x) == 0:
            instruction(out, shared_address(tile), BYTES)
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    kernel.__name__ = f"edges_of_{op}_{kind}"
    bits = f"u{np.dtype(DTYPES[kind]).itemsize}"
    expect = lambda data, out: [(out.view(bits), edges(op, kind))]  # noqa: E731
    right(source=BULK, args=lambda: pairs(kind), expect=expect)(kernel)


for _op, _kind in (("add", "f32"), *((o, k) for o in ("add", "min", "max") for k in ("f16", "bf16"))):
    of_edges(_op, _kind)



@right(
    source=TENSOR,
    args=lambda: [pairs("f32")[0], (out := pairs("f32")[1]), TensorMapArray([TensorMap.of(out, (WORDS,))])],
    expect=lambda data, out, maps: [(out.view(np.uint32), edges("add", "f32"))],
)
def edges_of_a_tensor(data: u64, out: u64, maps: u64):
    """The same by way of a tensor map."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_reduce_async_bulk_tensor_1d_add(maps, 0, shared_address(tile))
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


# Bytes of the innermost size and elements of the others: of the tensor, of the box, and where the box lies.
SHAPES = {
    1: ((288,), (256,), (64,)), 2: ((96, 5), (64, 4), (48, 2)), 3: ((96, 3, 2), (64, 2, 2), (48, 2, 0)),
    4: ((96, 3, 2, 2), (64, 2, 2, 1), (48, 2, 0, 1)), 5: ((96, 3, 2, 2, 2), (64, 2, 2, 1, 1), (48, 2, 0, 1, 1)),
}  # fmt: skip
CALLS = {
    1: lambda f: lambda map, x, src: f(map, x, src),
    2: lambda f: lambda map, x, src: f(map, x, 2, src),
    3: lambda f: lambda map, x, src: f(map, x, 2, 0, src),
    4: lambda f: lambda map, x, src: f(map, x, 2, 0, 1, src),
    5: lambda f: lambda map, x, src: f(map, x, 2, 0, 1, 1, src),
}


def of_tensor(rank, op, kind):
    """A program that combines a box that overhangs the end with a tensor of random numbers."""
    size = np.dtype(DTYPES[kind]).itemsize
    shape, box, corner = ((sizes[0] // size, *sizes[1:]) for sizes in SHAPES[rank])
    X, issue = corner[0], getattr(reduce, f"cp_reduce_async_bulk_tensor_{rank}d_{op}")
    call = cuda.jit(device=True)(CALLS[rank](issue))

    def kernel(data: u64, maps: u64):
        """One reduction of a box, waited for."""
        tile = cuda.shared.array(WORDS, uint32, alignment=128)
        fill(tile, data)
        if int32(cuda.threadIdx.x) == 0:
            fence_proxy_tensormap_acquire_sys(maps)
            call(maps, X, shared_address(tile))
            cp_async_bulk_commit_group()
            cp_async_bulk_wait_group(0)

    def args():
        tensor = numbers(kind, *shape[::-1], seed=7)
        maps = TensorMapArray([TensorMap.of(tensor, box, dtype=MAPPED.get(kind))])
        return [numbers(kind, *box[::-1], seed=8), maps]

    def expect(data, maps):
        result = numbers(kind, *shape[::-1], seed=7)
        place = tuple(slice(c, c + n) for c, n in zip(corner[::-1], box[::-1], strict=True))
        inside = result[place]
        result[place] = combined(op, inside, data[tuple(slice(n) for n in inside.shape)])
        return [(maps[0].array, result)]

    kernel.__name__ = f"tensor_{rank}d_{op}_{kind}"
    right(source=TENSOR, args=args, expect=expect)(kernel)


for _rank in SHAPES:
    for _op, _kind in OF_RANK:
        of_tensor(_rank, _op, _kind)


# --- what they order ------------------------------------------------------------------------------
def words(rows, *more, kind="u32"):
    """Arguments: rows of random numbers, a row that they are combined with, and zeros."""
    return lambda: [
        numbers(kind, rows, WORDS, seed=9), numbers(kind, WORDS, seed=10),
        *(np.zeros(n, np.uint32) for n in more),
    ]  # fmt: skip


START, SIGNED = numbers("u32", WORDS, seed=10), numbers("s32", WORDS, seed=10)
START0 = int(START[0])


@right(
    source=BULK, grid=BLOCKS, args=words(BLOCKS), explorable=False,
    expect=lambda data, out: [(out, data.sum(0, np.uint32) + START)],
)  # fmt: skip
def blocks_add_to_one_row(data: u64, out: u64):
    """Nothing orders the blocks, and nothing has to: each element is added to atomically."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, global_at(data, int32(cuda.blockIdx.x), BYTES))
    if int32(cuda.threadIdx.x) == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@right(
    source=BULK, args=words(1), expect=lambda data, out: [(out[:16], START[:16] + data[0, :16]),
    (out[16:48], START[16:48] + data[0, 16:48] + data[0, :32]), (out[48:], START[48:] + data[0, 32:48])],
)  # fmt: skip
def overlapping_ones_of_two_lanes(data: u64, out: u64):
    """Two lanes add to rows that overlap, in groups of their own."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    fill(tile, data)
    if i < 2:
        cp_reduce_async_bulk_add_u32(out + uint64(64 * i), shared_address(tile), 192)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@right(source=BULK, args=words(1), expect=lambda data, out: [(out, 2 * data[0])])
def zeroed_by_the_kernel(data: u64, out: u64):
    """Ordinary stores clear the row; past a proxy fence for global memory and a barrier come two reductions."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    for k in range(i, WORDS, WARP):
        st_global_b32(global_at(out, k, 4), uint32(0))
        tile[k] = ld_global_b32(global_at(data, k, 4))
    fence_proxy_async_full()
    cuda.syncwarp()
    if i == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@right(
    source="CUDA samples, threadFenceReduction, by cp.reduce.async.bulk", grid=BLOCKS,
    args=words(BLOCKS, 1, WORDS, kind="s32"), explorable=False,
    expect=lambda data, out, _, copy: [(copy.view(np.int32), np.maximum(data.max(0), SIGNED))],
)  # fmt: skip
def the_last_block_reads_the_largest(data: u64, out: u64, count: u64, copy: u64):
    """Each block waits for its reduction, fences and counts; the last reads the row by ordinary loads."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    last = cuda.shared.array(1, uint32)
    i = int32(cuda.threadIdx.x)
    fill(tile, global_at(data, int32(cuda.blockIdx.x), BYTES))
    if i == 0:
        cp_reduce_async_bulk_max_s32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
        cuda.threadfence()
        last[0] = uint32(atom_add_gpu_global_u32(count, 1) == BLOCKS - 1)
        cuda.threadfence()
    cuda.syncwarp()
    if last[0] == 1:
        for k in range(i, WORDS, WARP):
            st_global_b32(global_at(copy, k, 4), ld_global_b32(global_at(out, k, 4)))


@right(source=BULK, args=words(1, 16), expect=lambda data, out, copy: [(copy, START[32:48] + data[0, 16:32])])
def known_where_only_one_has_been(data: u64, out: u64, copy: u64):
    """Lane 1 has waited for its reduction, lane 0 not yet for one that overlaps the half of it. The other half
    may be read."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    fill(tile, data)
    if i == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), 128)
        cp_async_bulk_commit_group()
    cuda.syncwarp()
    if i == 1:
        cp_reduce_async_bulk_add_u32(out + uint64(64), shared_address(tile), 128)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
        for k in range(16):
            st_global_b32(global_at(copy, k, 4), ld_global_b32(global_at(out, 32 + k, 4)))
    if i == 0:
        cp_async_bulk_wait_group(0)


# --- broken twins ---------------------------------------------------------------------------------
@wrong(faults.DataRace, source=GROUPS, args=words(1, WORDS))
def read_after_the_source_alone(data: u64, out: u64, copy: u64):
    """wait_group.read says that the tile may be used again, not that the row has its sums."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)
        st_global_b32(copy, ld_global_b32(out))  # <- fault


@wrong(
    faults.DataRace, source="CUDA samples, threadFenceReduction without its fences", grid=BLOCKS,
    args=words(BLOCKS, 1, WORDS),
)  # fmt: skip
def the_last_block_does_not_fence(data: u64, out: u64, count: u64, copy: u64):
    """The count alone orders nothing."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, global_at(data, int32(cuda.blockIdx.x), BYTES))
    if int32(cuda.threadIdx.x) == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
        if atom_add_gpu_global_u32(count, 1) == BLOCKS - 1:
            st_global_b32(copy, ld_global_b32(out))  # <- fault


@wrong(faults.DataRace, source=BULK, block=2 * WARP, args=words(1, 1), hardware="guarded")
def a_value_that_says_enough(data: u64, out: u64, copy: u64):
    """Warp 1 polls the first sum until it has changed, and takes that for the end of the reduction: a value
    that the copy engine has written says nothing of the bytes beside it."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        fill(tile, data)
    if i == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
    if i == WARP:
        while ld_acquire_gpu_global_b32(out) == START0:
            pass
        st_global_b32(copy, ld_global_b32(out + uint64(4)))  # <- fault


@wrong(faults.DataRace, source=BULK, args=words(1))
def an_atomic_behind_it(data: u64, out: u64):
    """Lane 1 gets from an atomic what atomics have made of the first sum, but whether the reduction that was
    issued before it is in there it cannot know."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    before = uint32(0)
    if i == 1:
        before = atom_add_gpu_global_u32(out, uint32(1))
        fence_proxy_async_full()
    fill(tile, data)
    if i == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
    cuda.syncwarp()
    if i == 1:
        before += atom_add_gpu_global_u32(out, uint32(1))
        st_global_b32(data, uint32(before + ld_global_b32(out)))  # <- fault
    if i == 0:
        cp_async_bulk_wait_group(0)


@wrong(faults.DataRace, source=BULK, block=2 * WARP, args=words(1))
def an_ordinary_store_meanwhile(data: u64, out: u64):
    """One warp adds to the row, the other sets an element of it."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        fill(tile, data)
    if i == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
    if i == WARP:
        st_global_b32(out + uint64(128), uint32(0))  # <- fault


@wrong(faults.DataRace, source=BULK, args=words(1))
def a_bulk_store_meanwhile(data: u64, out: u64):
    """A reduction is atomic against reductions, not against a store of the same engine."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    fill(tile, data)
    if i == 0:
        cp_async_bulk_store(out, shared_address(tile), 128)  # <- fault
    elif i == 1:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)  # <- fault
    cp_async_bulk_commit_group()
    cp_async_bulk_wait_group(0)


@wrong(faults.MissingProxyFence, source="PTX ISA 9.7.13.4", args=words(1))
def zeroed_without_a_proxy_fence(data: u64, out: u64):
    """The row is cleared by ordinary stores, and the fence is for shared memory only."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    for k in range(i, WORDS, WARP):
        st_global_b32(global_at(out, k, 4), uint32(0))
    fill(tile, data)
    if i == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@wrong(faults.MissingProxyFence, source="PTX ISA 9.7.13.4", args=words(1))
def a_source_without_a_proxy_fence(data: u64, out: u64):
    """What ordinary stores have written to the tile has not reached the copy engine."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    i = int32(cuda.threadIdx.x)
    for k in range(i, WORDS, WARP):
        tile[k] = ld_global_b32(global_at(data, k, 4))
    cuda.syncwarp()
    if i == 0:
        cp_reduce_async_bulk_add_f32(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group_read(0)


@wrong(faults.DataRace, source=GROUPS, args=words(1))
def the_tile_is_used_again(data: u64, out: u64):
    """The reduction may still be reading the tile."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)
        cp_async_bulk_commit_group()
        tile[0] = 1  # <- fault
        cp_async_bulk_wait_group(0)


@wrong(faults.CopyOutlivesBlock, source=GROUPS, args=words(1))
def nobody_waits_for_it(data: u64, out: u64):
    """The block ends, and its shared memory goes away under the reduction."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), BYTES)  # <- fault
        cp_async_bulk_commit_group()


@wrong(faults.BadSize, source=BULK, args=words(1))
def a_size_of_eight(data: u64, out: u64):
    """16 bytes are the least."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        cp_reduce_async_bulk_add_u32(out, shared_address(tile), 8)  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


def mapped(shape, box, kind):
    return lambda: [
        numbers("u32", WORDS, seed=11), TensorMapArray([TensorMap.of(numbers(kind, *shape, seed=12), box)])
    ]  # fmt: skip


@wrong(faults.BadTensorMap, source=TENSOR, args=mapped((64,), (64,), "f32"), hardware="no")
def the_smaller_of_floats(data: u64, maps: u64):
    """min is for integers, fp16 and bf16."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_reduce_async_bulk_tensor_1d_min(maps, 0, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.OutOfRange, source=TENSOR, args=mapped((8, 16), (16, 4), "u32"), hardware="no")
def a_corner_before_the_tensor(data: u64, maps: u64):
    """A reduction starts at no negative coordinate, as a store."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_reduce_async_bulk_tensor_2d_add(maps, 0, -1, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)


@wrong(faults.MisalignedBox, source=TENSOR, args=mapped((8, 32), (16, 4), "u32"), hardware="no")
def a_corner_between_sixteens(data: u64, maps: u64):
    """The innermost coordinate is a multiple of 16 bytes."""
    tile = cuda.shared.array(WORDS, uint32, alignment=128)
    fill(tile, data)
    if int32(cuda.threadIdx.x) == 0:
        fence_proxy_tensormap_acquire_sys(maps)
        cp_reduce_async_bulk_tensor_2d_add(maps, 3, 0, shared_address(tile))  # <- fault
        cp_async_bulk_commit_group()
        cp_async_bulk_wait_group(0)
