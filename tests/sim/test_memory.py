"""Memory: where arrays lie, what may be read, which accesses race and which do not."""

import numpy as np
import pytest
from helpers import (
    LANDINGS,
    aligned,
    always,
    clean,
    device,
    expect,
    fault_of,
    floats,
    nans,
    run,
    syncthreads,
    syncwarp,
)
from numba import cuda, float32, int8, int32, int64, types, uint8, uint16, uint32, uint64

from numba_deform.compiler import kernel as typed
from numba_deform.device import memory as m
from numba_deform.device.atomics import red_add_gpu_global_u64
from numba_deform.device.mbarrier import mbarrier_arrive, mbarrier_init
from numba_deform.device.memory import align_up
from numba_deform.device.pipeline import mbarrier_wait
from numba_deform.device.sync import bar_arrive, bar_sync, fence_acq_rel_gpu
from numba_deform.engines import faults

u64 = types.uint64


def barrier_of_warps(number, threads):
    """A named barrier as a function without arguments."""

    @cuda.jit(device=True)
    def barrier():
        bar_sync(number, threads)

    return barrier


# --- where arrays lie -----------------------------------------------------------------------------
@pytest.mark.parametrize("alignment", [None, 4, 8, 16, 64, 128, 256, 512, 1024])
def test_a_static_array_is_aligned_as_asked_and_no_more(alignment):
    def kernel(out):
        before = cuda.shared.array(3, uint8)
        tile = cuda.shared.array(16, float32, alignment=alignment)
        after = cuda.shared.array(2, uint64)
        if cuda.threadIdx.x == 0:
            out[0] = m.shared_address(before)
            out[1] = m.shared_address(tile)
            out[2] = m.shared_address(after)

    out = np.zeros(3, np.uint32)
    run(kernel, out)
    step = alignment or 4
    assert out[1] % step == 0 and out[1] % (2 * step) == step
    assert out[2] % 8 == 0 and out[2] % 16 == 8
    assert out[0] >= 1024 and out[1] >= out[0] + 3 and out[2] >= out[1] + 64


@pytest.mark.parametrize("alignment", [None, 16, 128, 1024])
def test_dynamic_memory_starts_on_16_bytes_whatever_is_asked(alignment):
    def kernel(out):
        fixed = cuda.shared.array(5, float32)
        first = cuda.shared.array(0, uint8, alignment=alignment)
        second = cuda.shared.array(0, float32)
        fixed[cuda.threadIdx.x % 5] = float32(0)
        out[0], out[1] = m.shared_address(first), m.shared_address(second)
        out[2], out[3] = len(first), second.size

    out = np.zeros(4, np.uint32)
    report = run(kernel, out, block=1, shared_bytes=200)
    assert out[0] == out[1] and out[0] % 32 == 16
    assert (out[2], out[3]) == (200, 50)
    assert report.shared_bytes == 220


@pytest.mark.parametrize("static", [1, 27 * 1024, 48 * 1024])
def test_all_of_shared_memory_is_where_a_matrix_descriptor_can_say(static):
    """14 bits, in units of 16 bytes; and arrays of fixed size have what is left."""
    def kernel(out):
        fixed = cuda.shared.array(static, uint8)
        area = cuda.shared.array(0, uint8)
        out[0], out[1] = m.shared_address(fixed), m.shared_address(area)

    out, dynamic = np.zeros(2, np.uint32), 227 * 1024 - static
    report = run(kernel, out, block=1, shared_bytes=dynamic)
    assert report.shared_bytes == 227 * 1024
    assert out[0] + static <= out[1] and out[1] + dynamic <= 1 << 18


def test_align_up_makes_dynamic_memory_fit_for_tma():
    def kernel(out):
        area = cuda.shared.array(0, uint8)
        out[0] = align_up(m.shared_address(area), uint32(128))

    out = np.zeros(1, np.uint32)
    run(kernel, out, block=1, shared_bytes=256)
    assert out[0] % 128 == 0


def test_dynamic_arrays_of_other_types_are_the_same_bytes():
    def kernel(out, which):
        words = cuda.shared.array(0, uint32)
        halves = cuda.shared.array(0, uint16)
        tail = cuda.shared.array(0, uint8)[8:]
        if cuda.threadIdx.x == 0:
            words[0] = 0x12345678
            tail[0] = 7
            out[0], out[1], out[2] = halves[0], halves[1], tail[which]

    out = np.zeros(3, np.uint32)
    clean(kernel, out, 0, block=1, shared_bytes=64)
    expect(faults.UninitialisedRead, kernel, out, 1, block=1, shared_bytes=64)
    assert list(out) == [0x5678, 0x1234, 7]


def test_shared_arrays_too_large():
    def static(out):
        a = cuda.shared.array(40000, uint8)
        b = cuda.shared.array(10000, uint8)
        a[0] = b[0] = 1

    def both(out):
        a = cuda.shared.array(40000, uint8)
        b = cuda.shared.array(0, uint8)
        a[0] = b[0] = 1

    words = ["50000 bytes with `b`", "at most 49152"]
    expect(faults.BadLaunch, static, nans(1), words=words, source="b = cuda.shared.array(10000")
    run(both, nans(1), block=1, shared_bytes=227 * 1024 - 40000)
    expect(faults.BadLaunch, both, nans(1), block=1, shared_bytes=227 * 1024 - 39999,
           words="at most 232448")  # fmt: skip
    expect(faults.BadLaunch, both, nans(1), shared_bytes=227 * 1024 + 1, words="dynamic")


def test_an_alignment_that_is_none():
    def bad():
        tile = cuda.shared.array(4, uint8, alignment=24)
        tile[0] = 1

    expect(faults.KernelError, bad, words="alignment=24 is not a power of two")


def test_one_factory_twice_makes_two_arrays():
    def scratch(size):
        @cuda.jit(device=True)
        def fill(value):
            mine = cuda.shared.array(size, float32)
            mine[cuda.threadIdx.x % size] = value
            return m.shared_address(mine)

        return fill

    small, large = scratch(1), scratch(64)

    def kernel(out):
        out[0] = small(float32(1))
        out[1] = large(float32(2))

    out = np.zeros(2, np.uint32)
    report = run(kernel, out, block=1)
    assert abs(int(out[0]) - int(out[1])) >= 4 and report.shared_bytes == 4 * 65


# --- indexing -------------------------------------------------------------------------------------
def test_indices_views_and_slices():
    def kernel(grid, row, out):
        tile = cuda.shared.array((4, 8), float32)
        for i in range(4):
            for j in range(8):
                tile[i, j] = grid[i, j]
        out[0] = tile[-1, -8]
        out[1] = tile[1][2]
        out[2] = tile[1:3, 2:][1, 0]
        out[3] = tile[:, 5][3]
        out[4] = tile[::2, ::-1][1, 0]
        out[5] = row[-1]
        out[6] = row[1:][0]
        total = float32(0)
        for x in tile[2]:
            total += x
        out[7] = total
        tile[3][4] = float32(99)
        out[8] = tile[3, 4]
        out[9] = tile.shape[1] + tile.ndim + tile.size + len(tile)
        out[10] = tile.reshape(32)[9]
        out[11] = tile.view(uint32)[0, 0] == 0
        (a, b) = row[:2]
        out[12] = a + b

    grid, row, out = floats(32).reshape(4, 8), floats(3, 1), nans(13)
    grid[0, 0] = 0
    clean(kernel, grid, row, out, block=1)
    expected = [
        grid[-1, -8], grid[1, 2], grid[2, 2], grid[3, 5], grid[2, 7], row[-1], row[1],
        np.sum(grid[2], dtype=np.float32), 99, 8 + 2 + 32 + 4, grid[1, 1], 1, row[0] + row[1],
    ]  # fmt: skip
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_addresses_of_views():
    def kernel(values, out):
        tile = cuda.shared.array((4, 8), float32)
        base = m.shared_address(tile)
        out[0] = m.shared_address(tile[1:]) - base
        out[1] = m.shared_address(tile[2, 3:]) - base
        out[2] = m.global_address(values[5:]) - m.global_address(values)

    out = np.zeros(3, np.int64)
    run(kernel, floats(32), out, block=1)
    assert list(out) == [32, 2 * 32 + 12, 20]


@pytest.mark.parametrize("index", [4, -5, 1 << 40])
def test_an_index_outside_an_array(index):
    def shared(out):
        tile = cuda.shared.array(4, float32)
        tile[index] = float32(1)

    def partial(out):
        tile = cuda.shared.array((4, 2), float32)
        tile[index][0] = float32(1)

    def local(out):
        mine = cuda.local.array(4, float32)
        mine[index] = float32(1)

    def argument(out):
        out[0] = out[index]

    words = f"index ({index},) of"
    expect(faults.OutOfRange, shared, nans(4), words=[words, "tile(4,)"], source="tile[index] =")
    expect(faults.OutOfRange, partial, nans(4), words="tile(4, 2)", source="tile[index][0] =")
    expect(faults.OutOfRange, local, nans(4), words=[words, "local"], source="mine[index] =")
    expect(faults.OutOfRange, argument, nans(4), words=[words, "out(4,)"], source="out[0] =")


def test_stored_values_are_of_the_arrays_type():
    def kernel(integers, halves):
        bytes = cuda.shared.array(2, int8)
        mine = cuda.local.array(3, uint16)
        bytes[0], bytes[1] = 200, -129
        mine[0], mine[1], mine[2] = 65536 + 5, -1, float32(3.9)
        integers[0], integers[1], integers[2] = bytes[0], bytes[1], mine[0]
        integers[3], integers[4] = mine[1], mine[2]
        integers[5], integers[6] = float32(1e20), float32(-2.9)
        integers[7], integers[8] = float32(np.nan), 1 << 31
        halves[0], halves[1] = float32(1e9), 1 / 3

    integers, halves = np.zeros(9, np.int32), np.zeros(2, np.float16)
    run(kernel, integers, halves, block=1)
    big = 2**31 - 1
    assert list(integers) == [-56, 127, 5, 65535, 3, big, -2, 0, -(2**31)]
    assert halves[0] == np.inf and halves[1] == np.float16(1 / 3)


def test_local_arrays_belong_to_one_thread():
    def kernel(out):
        tid = cuda.threadIdx.x
        mine = cuda.local.array((2, 3), int32)
        for i in range(2):
            for j in range(3):
                mine[i, j] = tid * 10 + i * 3 + j
        cuda.syncthreads()
        out[tid] = mine[1, -1] + mine[-2, 0] + len(mine) + mine.size + mine.ndim

    out = np.zeros(64, np.int32)
    clean(kernel, out, block=64)
    np.testing.assert_array_equal(out, np.arange(64) * 20 + 5 + 2 + 6 + 2)


# --- what nobody has written ----------------------------------------------------------------------
def test_uninitialised_reads():
    def shared(out):
        tile = cuda.shared.array(32, float32)
        out[cuda.threadIdx.x] = tile[cuda.threadIdx.x]

    def other_half(out):
        tile = cuda.shared.array(32, float32)
        tid = cuda.threadIdx.x
        if tid < 16:
            tile[tid] = float32(tid)
        cuda.syncthreads()
        out[tid] = tile[tid]

    def local(out):
        mine = cuda.local.array(2, float32)
        mine[0] = float32(1)
        out[0] = mine[0] + mine[1]

    def intrinsic(out):
        tile = cuda.shared.array(4, uint32, alignment=16)
        for i in range(3):
            tile[i] = i
        m.ld_shared_v4(m.shared_address(tile))

    def counter(out):
        count = cuda.shared.array(1, int32)
        cuda.atomic.add(count, 0, 1)

    kind = faults.UninitialisedRead
    always(kind, shared, nans(32), words="tile[", source="out[cuda.threadIdx.x] =")
    always(kind, other_half, nans(32), words="tile[")
    always(kind, local, nans(32), words="element 1 of a local", source="mine[0] + mine[1]")
    always(kind, intrinsic, nans(32), words="tile[0]", block=1, source="ld_shared_v4")
    always(kind, counter, nans(32), words="count[0]", source="cuda.atomic.add")


def test_a_late_write_makes_it_a_race():
    def kernel(out):
        tile = cuda.shared.array(32, float32)
        tid = cuda.threadIdx.x
        if tid > 0:
            out[tid] = tile[0]
        else:
            cuda.syncwarp(1)
            tile[0] = float32(1)

    always(faults.DataRace, kernel, nans(32), words=["tile[0]", "thread 0 wrote"])


def test_exchange_may_be_the_first_write():
    def kernel(out):
        flag = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            cuda.atomic.exch(flag, 0, 5)
            out[0] = flag[0]

    out = np.zeros(1, np.int32)
    clean(kernel, out)
    assert out[0] == 5


# --- addresses: alignment and range ---------------------------------------------------------------
SHARED = {  # name -> (size, call)
    "ld_shared_b32": (4, lambda a: m.ld_shared_b32(a)),
    "ld_shared_v2": (8, lambda a: m.ld_shared_v2(a)),
    "ld_shared_v4": (16, lambda a: m.ld_shared_v4(a)),
    "st_shared_b32": (4, lambda a: m.st_shared_b32(a, 1)),
    "st_shared_v2": (8, lambda a: m.st_shared_v2(a, 1, 2)),
    "st_shared_v4": (16, lambda a: m.st_shared_v4(a, 1, 2, 3, 4)),
    "ld_acquire_cta_shared_b32": (4, lambda a: m.ld_acquire_cta_shared_b32(a)),
    "st_release_cta_shared_b32": (4, lambda a: m.st_release_cta_shared_b32(a, 1)),
    "atom_exch_release_cta_shared_b32": (4, lambda a: m.atom_exch_release_cta_shared_b32(a, 1)),
}
GLOBAL = {
    "ld_global_b32": (4, lambda a: m.ld_global_b32(a)),
    "ld_global_v4": (16, lambda a: m.ld_global_v4(a)),
    "ld_global_nc_b32": (4, lambda a: m.ld_global_nc_b32(a)),
    "ld_global_nc_u16": (2, lambda a: m.ld_global_nc_u16(a)),
    "ld_global_nc_v2": (8, lambda a: m.ld_global_nc_v2(a)),
    "ld_global_nc_v4": (16, lambda a: m.ld_global_nc_v4(a)),
    "ld_global_nc_L1_evict_last_v4": (16, lambda a: m.ld_global_nc_L1_evict_last_v4(a)),
    "ld_global_nc_L1_no_allocate_v4": (16, lambda a: m.ld_global_nc_L1_no_allocate_v4(a)),
    "st_global_b16": (2, lambda a: m.st_global_b16(a, 1)),
    "st_global_b32": (4, lambda a: m.st_global_b32(a, 1)),
    "st_global_v2": (8, lambda a: m.st_global_v2(a, 1, 2)),
    "st_global_v4": (16, lambda a: m.st_global_v4(a, 1, 2, 3, 4)),
    "st_global_L1_no_allocate_v4": (16, lambda a: m.st_global_L1_no_allocate_v4(a, 1, 2, 3, 4)),
    "ld_acquire_gpu_global_b32": (4, lambda a: m.ld_acquire_gpu_global_b32(a)),
    "ld_relaxed_gpu_global_b32": (4, lambda a: m.ld_relaxed_gpu_global_b32(a)),
    "ld_acquire_cta_global_b32": (4, lambda a: m.ld_acquire_cta_global_b32(a)),
    "st_release_cta_global_b32": (4, lambda a: m.st_release_cta_global_b32(a, 1)),
    "st_release_gpu_global_b32": (4, lambda a: m.st_release_gpu_global_b32(a, 1)),
    "st_relaxed_gpu_global_b32": (4, lambda a: m.st_relaxed_gpu_global_b32(a, 1)),
    "atom_exch_gpu_global_b32": (4, lambda a: m.atom_exch_gpu_global_b32(a, 1)),
    "atom_exch_acquire_gpu_global_b32": (4, lambda a: m.atom_exch_acquire_gpu_global_b32(a, 1)),
    "atom_exch_release_gpu_global_b32": (4, lambda a: m.atom_exch_release_gpu_global_b32(a, 1)),
    "atom_exch_acq_rel_gpu_global_b32": (4, lambda a: m.atom_exch_acq_rel_gpu_global_b32(a, 1)),
}


def test_the_two_tables_are_complete():
    names = {n for n in vars(m) if n.startswith(("ld_", "st_", "atom_exch_"))}
    assert names == SHARED.keys() | GLOBAL.keys()


@pytest.mark.parametrize("name", SHARED)
def test_shared_accesses_by_address(name):
    size, call = SHARED[name]
    call = device(call)

    def kernel(offset):
        tile = cuda.shared.array(64, uint8, alignment=16)
        for i in range(64):
            tile[i] = i
        call(m.shared_address(tile) + offset)

    for offset in (0, size, 64 - size):
        run(kernel, offset, block=1)
    for offset in (1, size // 2, size + 1):
        expect(faults.Misaligned, kernel, offset, block=1,
               words=[f"tile[byte {offset}]", f"not a multiple of {size}"], source=f"{name}(")  # fmt: skip
    for offset in (64, -16, 1 << 20, -(1 << 20), (1 << 33) - 16):
        expect(faults.OutOfRange, kernel, offset, block=1, words="no array is there")


@pytest.mark.parametrize("name", GLOBAL)
@pytest.mark.parametrize("elements", [16, 4096])  # with and without records from the start
def test_global_accesses_by_address(name, elements):
    size, call = GLOBAL[name]
    call = device(call)

    @typed(types.void(u64, types.int64), threads=1)
    def kernel(array, offset):
        call(array + offset)

    bytes = 4 * elements
    array = aligned(np.zeros(elements, np.uint32))
    for offset in (0, size, bytes - size):
        run(kernel, array, offset, block=1)
    for offset in (1, size // 2, size + 1):
        expect(faults.Misaligned, kernel, array, offset, block=1,
               words=[f"array[byte {offset}]", f"not a multiple of {size}"])  # fmt: skip
    for offset in (bytes, bytes + 160):
        expect(faults.OutOfRange, kernel, array, offset, block=1,
               words=[f"{size} bytes at byte {offset} of array, which has {bytes}"])  # fmt: skip
    for offset in (-16, -(1 << 40), 1 << 40):
        expect(faults.OutOfRange, kernel, array, offset, block=1)


def test_an_access_across_the_end():
    def shared():
        tile = cuda.shared.array(6, uint32, alignment=16)
        for i in range(6):
            tile[i] = i
        m.ld_shared_v4(m.shared_address(tile) + 16)

    @typed(types.void(u64), threads=1)
    def everywhere(array):
        m.ld_global_v4(array + 16)

    expect(faults.OutOfRange, shared, block=1, words="reads 16 bytes at tile[byte 16]")
    array = aligned(np.zeros(6, np.uint32))
    expect(faults.OutOfRange, everywhere, array, block=1, words="16 bytes at byte 16 of array")


def test_values_by_address():
    @typed(types.void(u64, u64), threads=1)
    def kernel(source, target):
        tile = cuda.shared.array(8, uint32, alignment=16)
        at = m.shared_address(tile)
        x, y, z, w = m.ld_global_v4(source)
        m.st_shared_v4(at, x, y, z, w)
        a, b = m.ld_shared_v2(at + 8)
        m.st_shared_v2(at + 16, b, a)
        m.st_shared_b32(at + 24, -1)
        m.st_shared_b32(at + 28, m.ld_global_nc_u16(source + 2))
        m.st_global_v4(target, *m.ld_shared_v4(at))
        m.st_global_v4(target + 16, *m.ld_shared_v4(at + 16))

    source = np.arange(1, 9, dtype=np.uint32)
    source[0], target = 0xABCD0001, np.zeros(8, np.uint32)
    source, target = (aligned(a) for a in (source, target))
    clean(kernel, source, target, block=1)
    assert list(target) == [0xABCD0001, 2, 3, 4, 4, 3, 0xFFFFFFFF, 0xABCD]


def test_halves_and_pairs_by_address():
    @typed(types.void(u64), threads=1)
    def kernel(target):
        m.st_global_b16(target + 2, 0xABCD1234)
        m.st_global_v2(target + 8, 7, -1)

    target = aligned(np.full(4, 0x55555555, np.uint32))
    clean(kernel, target, block=1)
    assert list(target) == [0x12345555, 0x55555555, 7, 0xFFFFFFFF]


def test_sums_of_64_bits():
    def kernel(sums, first):
        i = cuda.threadIdx.x
        red_add_gpu_global_u64(m.global_address(sums), uint64(2**31 + i))
        red_add_gpu_global_u64(m.global_address(sums) + uint64(8), uint64(int64(first - i)))

    for seed in range(3):
        sums = np.array([2**40, -5], np.int64)
        run(kernel, sums, 3, grid=2, block=96, seed=seed)
        each = np.arange(96)
        assert list(sums) == [2**40 + 2 * (2**31 + each).sum(), -5 + 2 * (3 - each).sum()]
    expect(faults.Misaligned, kernel, np.zeros(5, np.int32)[1:], 0, block=1, words="8 bytes")


def test_addresses_of_the_wrong_kind():
    def of_a_global(out):
        m.shared_address(out)

    def of_a_local(out):
        m.shared_address(cuda.local.array(4, float32))

    def of_a_shared(out):
        m.global_address(cuda.shared.array(4, float32))

    for kernel, name in ((of_a_global, "shared"), (of_a_local, "shared"), (of_a_shared, "global")):
        expect(faults.OutOfRange, kernel, nans(1), words=f"{name}_address of something that is no")


def test_a_read_only_argument():
    def kernel(out):
        out[0] = float32(1)

    array = nans(4)
    array.flags.writeable = False
    expect(faults.ReadOnlyWrite, kernel, array, words="out[0]", source="out[0] =")


# --- races in shared memory -----------------------------------------------------------------------
@cuda.jit(device=True)
def no_barrier():
    pass


def test_read_after_write():
    def make(barrier):
        def kernel(out):
            tile = cuda.shared.array(64, float32)
            tid = cuda.threadIdx.x
            tile[tid] = float32(tid)
            barrier()
            out[tid] = tile[tid ^ 1]

        return kernel

    always(faults.DataRace, make(no_barrier), nans(64), block=64,
           words=["reads tile[", "nothing orders the write before the read"],
           source="out[tid] = tile[tid ^ 1]")  # fmt: skip
    out = nans(64)
    clean(make(syncthreads), out, block=64)
    np.testing.assert_array_equal(out, np.arange(64) ^ 1)
    clean(make(syncwarp), nans(64), block=64)  # the neighbour is in the same warp
    clean(make(barrier_of_warps(1, 64)), nans(64), block=64)


def test_write_after_write():
    def make(barrier):
        def kernel(out):
            tile = cuda.shared.array(64, float32)
            tid = cuda.threadIdx.x
            tile[tid] = float32(tid)
            barrier()
            tile[63 - tid] = float32(1)

        return kernel

    always(faults.DataRace, make(no_barrier), nans(64), block=64,
           words=["writes tile[", "nothing orders the two writes"])  # fmt: skip
    # Another warp's element: a warp's barrier is not enough.
    always(faults.DataRace, make(syncwarp), nans(64), block=64)
    clean(make(syncthreads), nans(64), block=64)
    clean(make(barrier_of_warps(3, 64)), nans(64), block=64)


def test_a_race_is_found_whichever_comes_first():
    """One reader and one writer, the barrier on either side: the order of running does not matter."""

    def make(writer):
        def kernel(out):
            cell = cuda.shared.array(1, float32)
            tid = cuda.threadIdx.x
            if tid == 0:
                cell[0] = float32(0)
            cuda.syncthreads()
            if tid == writer:
                cell[0] = float32(1)
            elif tid == 1 - writer:
                out[0] = cell[0]

        return kernel

    for writer in (0, 1):
        always(faults.DataRace, make(writer), nans(1), words="cell[0]")
    expect(faults.DataRace, make(0), nans(1), source="out[0] = cell[0]",
           words=["reads cell[0], which thread 0 wrote", "the write before the read"])  # fmt: skip
    expect(faults.DataRace, make(1), nans(1), source="cell[0] = float32(1)",
           words=["writes cell[0], which thread 0 read", "the read before the write"])  # fmt: skip


def test_a_read_of_more_bytes_than_before_counts_as_one_of_all():
    """What a thread has read already is passed over, but only if that was all of it."""

    def kernel(out):
        cell = cuda.shared.array(4, uint8, alignment=4)
        tid = cuda.threadIdx.x
        if tid == 0:
            m.st_shared_b32(m.shared_address(cell), 0)
        cuda.syncthreads()
        if tid == 0:
            out[0] = cell[0]
            out[1] = m.ld_shared_b32(m.shared_address(cell))
        elif tid == 1:
            cell[3] = 1

    always(faults.DataRace, kernel, np.zeros(2, np.int32))


def test_a_named_barrier_orders_those_who_take_part():
    def kernel(out, third):
        tile = cuda.shared.array(96, float32)
        tid = cuda.threadIdx.x
        tile[tid] = float32(tid)
        if tid < 32:
            bar_arrive(2, 64)
        elif tid < 64:
            bar_sync(2, 64)
            out[tid] = tile[tid - 32]
        elif third:
            out[tid] = tile[tid - 64]

    clean(kernel, nans(96), False, block=96)
    always(faults.DataRace, kernel, nans(96), True, block=96)


def test_bar_arrive_releases_what_came_before_it_only():
    def kernel(out, late):
        tile = cuda.shared.array(64, float32)
        tid = cuda.threadIdx.x
        if tid < 32:
            tile[tid] = float32(tid)
            bar_arrive(1, 64)
            tile[tid + 32] = float32(tid)
        else:
            bar_sync(1, 64)
            out[tid] = tile[tid - 32 + late]

    clean(kernel, nans(64), 0, block=64)
    for seed in range(4):
        fault = fault_of(kernel, nans(64), 32, block=64, seed=seed)
        assert type(fault) in (faults.DataRace, faults.UninitialisedRead), fault


def test_neighbouring_bytes_are_no_race():
    def kernel(out):
        halves = cuda.shared.array(64, uint16)
        tid = cuda.threadIdx.x
        halves[tid] = tid
        out[tid] = halves[tid]  # its own, while others write beside it

    out = np.zeros(64, np.uint16)
    clean(kernel, out, block=64)
    np.testing.assert_array_equal(out, np.arange(64))


def test_a_wide_access_over_narrow_ones():
    def make(barrier):
        def kernel(out):
            halves = cuda.shared.array(32, uint16, alignment=16)
            tid = cuda.threadIdx.x
            halves[tid] = tid
            barrier()
            if tid < 4:
                words = m.ld_shared_v4(m.shared_address(halves) + 16 * tid)
                for k in range(4):
                    out[4 * tid + k] = words[k]
            barrier()
            if tid == 0:
                m.st_shared_v4(m.shared_address(halves), 1, 2, 3, 4)

        return kernel

    out = np.zeros(16, np.uint32)
    clean(make(syncwarp), out)
    np.testing.assert_array_equal(out.view(np.uint16), np.arange(32))
    always(faults.DataRace, make(no_barrier), out)


def test_a_wide_write_sees_every_reader_below():
    def kernel(out):
        words = cuda.shared.array(4, uint32, alignment=16)
        tid = cuda.threadIdx.x
        if tid == 0:
            m.st_shared_v4(m.shared_address(words), 1, 2, 3, 4)
        cuda.syncthreads()
        if tid < 4:
            out[tid] = words[tid]  # four readers of four bytes each
        if tid < 3:
            cuda.syncwarp(0b111)
        if tid == 0:
            m.st_shared_v4(m.shared_address(words), 1, 2, 3, 4)

    # Thread 3 takes no part in the barrier.
    always(faults.DataRace, kernel, np.zeros(4, np.uint32), words="thread 3 read")


def test_many_readers_one_of_them_unordered():
    def kernel(out, skip):
        cell = cuda.shared.array(1, float32)
        tid = cuda.threadIdx.x
        if tid == 0:
            cell[0] = float32(3)
        cuda.syncthreads()
        out[tid] = cell[0]
        if tid != skip:
            bar_sync_of_lanes(0xFFFFFFFF & ~(1 << skip))
        if tid == 0:
            cell[0] = float32(4)

    always(faults.DataRace, kernel, nans(32), 17, words="thread 17 read")


@cuda.jit(device=True)
def bar_sync_of_lanes(mask):
    cuda.syncwarp(mask)


def test_static_arrays_of_two_blocks_are_two():
    def kernel(out):
        cell = cuda.shared.array(1, int32)
        if cuda.threadIdx.x == 0:
            cell[0] = cuda.blockIdx.x
        cuda.syncthreads()
        out[cuda.grid(1)] = cell[0]

    out = np.zeros(96, np.int32)
    clean(kernel, out, grid=3)
    np.testing.assert_array_equal(out, np.arange(96) // 32)


# --- races in global memory -----------------------------------------------------------------------
@pytest.mark.parametrize("elements", [64, 4096])  # with and without records from the start
def test_global_races_in_a_block(elements):
    def make(barrier, first, second):
        def kernel(array):
            tid = cuda.threadIdx.x
            if tid == 0:
                first(array)
            barrier()
            if tid == 33:
                second(array)

        return kernel

    def read(array):
        m.ld_global_b32(m.global_address(array))

    def write(array):
        array[0] = float32(1)

    def write_by_address(array):
        m.st_global_b32(m.global_address(array), 0)

    read, write, write_by_address = (
        cuda.jit(f, device=True) for f in (read, write, write_by_address)
    )
    for pair in ((write, read), (read, write), (write, write_by_address), (write_by_address, read)):
        always(faults.DataRace, make(no_barrier, *pair), floats(elements), block=64,
               words="array[0]", seeds=2)  # fmt: skip
        always(faults.DataRace, make(syncwarp, *pair), floats(elements), block=64, seeds=2)
        clean(make(syncthreads, *pair), floats(elements), block=64, seeds=2)
    clean(make(no_barrier, read, read), floats(elements), block=64)


@pytest.mark.parametrize("elements", [64, 8192])
def test_different_blocks(elements):
    def same_place(out):
        out[cuda.threadIdx.x] = float32(cuda.blockIdx.x)

    def neighbours(out):
        out[cuda.grid(1)] = out[(cuda.grid(1) + 32) % 64]

    def own(out):
        out[cuda.grid(1)] = float32(cuda.grid(1))

    always(faults.DataRace, same_place, floats(elements), grid=2, seeds=2,
           words=["writes out[", "of block 0 wrote"])  # fmt: skip
    always(faults.DataRace, neighbours, floats(elements), grid=2, seeds=2)
    clean(own, floats(elements), grid=2)


def test_a_large_array_that_is_read_and_then_written_starts_over():
    """Its arguments are put back first, and totals count the second run only."""

    def kernel(array):
        i = cuda.grid(1)
        array[i] = array[i] + float32(1)

    array = floats(4096)
    before = array.copy()
    report = run(kernel, array, grid=32, block=128)
    np.testing.assert_array_equal(array, before + 1)
    assert (report.blocks, report.threads) == (32, 128)


def test_overlapping_arguments():
    def kernel(whole, part):
        tid = cuda.threadIdx.x
        part[tid] = float32(-tid)
        if whole.size > 100:
            whole[16 + (tid + 1) % 32] = float32(1)

    array = floats(100)
    clean(kernel, array, array[16:48])
    np.testing.assert_array_equal(array[16:48], -np.arange(32))
    array = floats(101)
    always(faults.DataRace, kernel, array, array[16:48], seeds=2)

    @typed(types.void(u64, u64), threads=1)
    def far(whole, part):
        m.ld_global_b32(part + 4 * 60)  # past the part, inside the whole
        m.ld_global_b32(whole + 4 * 99)

    both = floats(100)
    run(far, both, both[16:48], block=1)


def test_an_empty_argument():
    def kernel(nothing, out):
        out[0] = len(nothing)

    def read(nothing, out):
        out[0] = nothing[0]

    out = nans(1)
    run(kernel, nans(0), out, block=1)
    assert out[0] == 0
    expect(faults.OutOfRange, read, nans(0), out, block=1, words="nothing(0,)")


def test_the_read_only_path():
    @typed(types.void(u64, u64), threads=32)
    def kernel(array, wait):
        if cuda.threadIdx.x == 0:
            m.st_global_b32(array, 1)
        cuda.syncthreads()
        if cuda.threadIdx.x == 31:
            m.ld_global_nc_b32(array)

    for elements in (4, 4096):
        always(faults.NotReadOnly, kernel, floats(elements), 0, seeds=2,
               words=["array[byte 0]", "read-only path", "thread 0 wrote"],
               source="ld_global_nc_b32")  # fmt: skip


# --- atomics --------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["shared", "global"])
def test_atomic_totals(where):
    def kernel(counts, total):
        tid = cuda.threadIdx.x
        bins = cuda.shared.array(8, int32)
        if tid < 8:
            bins[tid] = 0
        cuda.syncthreads()
        target = bins if where == "shared" else counts
        for i in range(4):
            cuda.atomic.add(target, (tid + i) % 8, i + 1)
        cuda.syncthreads()
        if where == "shared" and tid < 8:
            cuda.atomic.add(counts, tid, bins[tid])
        cuda.atomic.add(total, 0, float32(0.5))

    for landing in LANDINGS:
        for seed in range(3):
            counts, total = np.zeros(8, np.int32), np.zeros(1, np.float32)
            run(kernel, counts, total, grid=3, block=96, seed=seed, landing=landing)
            assert counts.sum() == 3 * 96 * 10 and (counts == counts[0]).all()
            assert total[0] == 3 * 96 / 2


def test_each_atomic_operation():
    def kernel(cells, old):
        old[0] = cuda.atomic.add(cells, 0, 5)
        old[1] = cuda.atomic.sub(cells, 1, 5)
        old[2] = cuda.atomic.max(cells, 2, 50)
        old[3] = cuda.atomic.min(cells, 3, 50)
        old[4] = cuda.atomic.and_(cells, 4, 6)
        old[5] = cuda.atomic.or_(cells, 5, 5)
        old[6] = cuda.atomic.xor(cells, 6, 3)
        old[7] = cuda.atomic.exch(cells, 7, 77)
        old[8] = cuda.atomic.inc(cells, 8, 10)
        old[9] = cuda.atomic.inc(cells, 9, 11)
        old[10] = cuda.atomic.dec(cells, 10, 10)
        old[11] = cuda.atomic.dec(cells, 11, 30)
        old[12] = cuda.atomic.cas(cells, 12, 10, 99)
        old[13] = cuda.atomic.cas(cells, 13, 11, 99)
        old[14] = cuda.atomic.compare_and_swap(cells[14:], 10, 98)
        old[15] = cuda.atomic.add(cells, 15, -11)

    cells, old = np.full(16, 10, np.uint32), np.zeros(16, np.uint32)
    cells[11] = 0
    run(kernel, cells, old, block=1)
    assert list(cells) == [15, 5, 50, 10, 2, 15, 9, 77, 0, 11, 9, 30, 99, 10, 98, 2**32 - 1]
    assert list(old) == [10] * 11 + [0] + [10] * 4


def test_atomic_against_plain_is_a_race_whoever_comes_first():
    def make(*roles):
        def kernel(array, out):
            cell = cuda.shared.array(1, int32)
            tid = cuda.threadIdx.x
            if tid == 0:
                cell[0] = 0
            cuda.syncthreads()
            if tid < 4:
                role = roles[tid]
                if role == "atomic":
                    cuda.atomic.add(cell, 0, 1)
                    cuda.atomic.add(array, 0, 1)
                elif role == "read":
                    out[0] = cell[0] + array[0]
                elif role == "write":
                    cell[0] = 1
                    array[0] = 1

        return kernel

    args = np.zeros(1, np.int32), np.zeros(1, np.int32)
    for roles in (
        ("atomic", "read", "", ""), ("read", "atomic", "", ""), ("atomic", "write", "", ""),
        ("write", "atomic", "", ""), ("atomic", "atomic", "read", ""),
        ("atomic", "atomic", "write", "atomic"),
    ):  # fmt: skip
        always(faults.DataRace, make(*roles), *args, words=["cell[0]"])
    clean(make("atomic", "atomic", "atomic", "atomic"), *args)


def test_a_thread_that_took_part_does_not_hide_the_others():
    """The reader made the last atomic itself; those of the other threads are still unordered."""

    def kernel(out):
        cell = cuda.shared.array(1, int32)
        tid = cuda.threadIdx.x
        if tid == 0:
            cell[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(cell, 0, 1)
        if tid == 31:
            out[0] = cell[0]

    always(faults.DataRace, kernel, np.zeros(1, np.int32), words="cell[0]")


def test_a_spin_lock():
    def kernel(lock, total):
        if cuda.threadIdx.x % 8 == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            total[0] = total[0] + 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)

    for seed in range(4):
        lock, total = np.zeros(1, np.int32), np.zeros(1, np.int32)
        run(kernel, lock, total, block=128, grid=2, seed=seed)
        assert total[0] == 32 and lock[0] == 0


# --- flags ----------------------------------------------------------------------------------------
def test_a_plain_flag_in_a_large_array_is_a_race_too():
    def kernel(flags):
        if cuda.threadIdx.x == 0:
            while flags[0] == 0:
                pass
        elif cuda.threadIdx.x == 1:
            flags[0] = 1

    always(faults.DataRace, kernel, np.zeros(5000, np.uint32), words="flags[0]")


def test_flags_of_two_blocks_are_two():
    """Block 1 must not be taken to have acquired what block 0 released at the same shared address."""

    def kernel(data):
        flags = cuda.shared.array(1, uint32)
        at = m.shared_address(flags)
        if cuda.threadIdx.x == 0:
            flags[0] = 0
            m.st_release_cta_shared_b32(at, 1) if cuda.blockIdx.x == 0 else None
            data[0] = float32(cuda.blockIdx.x) if cuda.blockIdx.x == 0 else data[0]
            m.ld_acquire_cta_shared_b32(at)

    always(faults.DataRace, kernel, nans(1), grid=2, words="thread 0 of block 0 wrote")


def test_knowledge_passes_on_through_flags_and_barriers():
    """Block 0 -> block 1 -> block 2 by flags, and inside block 2 by every kind of barrier."""

    def make(how):
        def kernel(data, flags, out):
            tid, at = cuda.threadIdx.x, m.global_address(flags)
            bars = cuda.shared.array(1, uint64)
            bar = m.shared_address(bars)
            if tid == 0:
                mbarrier_init(bar, 1)
            cuda.syncthreads()
            if cuda.blockIdx.x == 0 and tid == 5:
                data[0] = float32(42)
                m.st_release_gpu_global_b32(at, 1)
            elif cuda.blockIdx.x == 1 and tid == 7:
                m.ld_acquire_gpu_global_b32(at)
                m.st_release_gpu_global_b32(at + 4, 1)
            elif cuda.blockIdx.x == 2:
                if tid == 9:
                    m.ld_acquire_gpu_global_b32(at + 4)
                    if how == "mbarrier":
                        mbarrier_arrive(bar)
                if how == "syncthreads":
                    cuda.syncthreads()
                elif how == "syncwarp":
                    cuda.syncwarp()
                elif how == "mbarrier":
                    mbarrier_wait(bar, 0)
                out[tid] = data[0]

        return kernel

    for how in ("syncthreads", "syncwarp", "mbarrier"):
        out = nans(32)
        clean(make(how), nans(1), np.zeros(2, np.uint32), out, grid=3)
        assert (out == 42).all()
    always(faults.DataRace, make("nothing"), nans(1), np.zeros(2, np.uint32), nans(32), grid=3,
           words="thread 5 of block 0 wrote")  # fmt: skip


@pytest.mark.parametrize("fence", [device(lambda: cuda.threadfence()), fence_acq_rel_gpu])
def test_the_last_block_adds_up(fence):
    """The classic: partial sums, a fence, a ticket; the block with the last ticket reads them all."""

    def make(before, after):
        def kernel(values, partial, ticket, out):
            last = cuda.shared.array(1, int32)
            sums = cuda.shared.array(1, float32)
            tid = cuda.threadIdx.x
            if tid == 0:
                sums[0] = float32(0)
            cuda.syncthreads()
            cuda.atomic.add(sums, 0, values[cuda.grid(1)])
            cuda.syncthreads()
            if tid == 0:
                partial[cuda.blockIdx.x] = sums[0]
                if before:
                    fence()
                mine = cuda.atomic.add(ticket, 0, 1)
                if after:
                    fence()
                last[0] = mine == cuda.gridDim.x - 1
            cuda.syncthreads()
            if last[0] and tid < cuda.gridDim.x:
                out[tid] = partial[tid]

        return kernel

    values = floats(4 * 64)

    def args():
        return values, nans(4), np.zeros(1, np.int32), nans(4)

    for landing in LANDINGS:
        mine = args()
        run(make(True, True), *mine, grid=4, block=64, landing=landing, seed=len(landing))
        np.testing.assert_allclose(mine[3], values.reshape(4, 64).sum(axis=1), rtol=1e-4)
    for missing in ((False, True), (True, False), (False, False)):
        for seed in range(3):
            expect(faults.DataRace, make(*missing), *args(), grid=4, block=64, seed=seed,
                   words="partial[", source="out[tid] = partial[tid]")  # fmt: skip


def test_an_exchange_with_release():
    """It returns what was there, and hands on what its thread knows."""

    def kernel(data, out):
        flags = cuda.shared.array(1, uint32)
        tid, at = cuda.threadIdx.x, m.shared_address(flags)
        if tid == 0:
            flags[0] = 7
        cuda.syncthreads()
        if tid == 0:
            data[0] = float32(1)
            out[0] = m.atom_exch_release_cta_shared_b32(at, 1)
        elif tid == 1:
            while m.ld_acquire_cta_shared_b32(at) != 1:
                pass
            data[1] = float32(2)
            out[1] = m.atom_exch_release_cta_shared_b32(at, 2)
        elif tid == 2:
            while m.ld_acquire_cta_shared_b32(at) != 2:
                pass
            out[2] = data[0] + data[1]

    out = nans(3)
    clean(kernel, nans(2), out)
    assert out.tolist() == [7, 1, 3]


def test_sixty_four_bit_and_two_byte_elements():
    def kernel(wide, narrow):
        tid = cuda.threadIdx.x
        wide[tid] = int64(1) << 40
        narrow[tid] = uint16(tid * 1000 * 100)

    wide, narrow = np.zeros(32, np.int64), np.zeros(32, np.uint16)
    clean(kernel, wide, narrow)
    assert (wide == 1 << 40).all()
    np.testing.assert_array_equal(narrow, np.arange(32) * 100000 % 65536)


def test_a_flag_polled_before_its_first_store_is_garbage():
    """In this order the store comes first; on another day the poll does."""

    def kernel(out):
        flags = cuda.shared.array(1, uint32)
        at = m.shared_address(flags)
        if cuda.threadIdx.x == 0:
            while m.ld_acquire_cta_shared_b32(at) != 1:
                pass
            out[0] = 1.0
        elif cuda.threadIdx.x == 1:
            m.st_release_cta_shared_b32(at, 1)

    for landing in LANDINGS:
        expect(
            faults.UninitialisedRead, kernel, nans(1), landing=landing, words="nothing has written"
        )
