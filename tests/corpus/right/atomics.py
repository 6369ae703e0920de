"""Atomics: results that do not depend on the order, loops of compare-and-swap, counters that wrap."""

import numpy as np
from base import right
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.device.half2 import mov_b32_f32, mov_f32_b32
from numba_deform.device.memory import (
    atom_add_gpu_global_u32,
    atom_cas_gpu_global_b32,
    global_address,
    red_add_gpu_global_u32,
)

WARP, SLOTS = 32, 64
ALL = 0xFFFFFFFF


@right(
    source="Numba documentation, supported atomic operations: the maximum of an array",
    grid=2, args=lambda: [np.arange(640) * 7.0 % 640, np.full(1, -1.0)],
    expect=lambda data, out: [(out, 639)],
)  # fmt: skip
def a_maximum_of_doubles(data, out):
    """All threads of both blocks race for one element by atomics, which is no race."""
    for i in range(cuda.grid(1), data.size, cuda.gridsize(1)):
        cuda.atomic.max(out, 0, data[i])


@right(
    source="CUDA C++ Programming Guide, Atomic Functions: any atomic by atomicCAS",
    grid=2, args=lambda: [np.arange(1, 65, dtype=np.int32) % 3 + 1, np.ones(1, np.int32)],
    expect=lambda data, out: [(out, np.prod(data, dtype=np.int64) % 65537)],
)  # fmt: skip
def products_by_compare_and_swap(data, out):
    """Each thread multiplies modulo a prime: it reads by an atomic that adds nothing, and repeats its swap as
    long as another thread was faster. Multiplication does not mind the order."""
    x = data[cuda.grid(1)]
    old = cuda.atomic.add(out, 0, 0)
    seen = old - 1
    while seen != old:
        seen = old
        old = cuda.atomic.cas(out, 0, seen, int32(seen * x % 65537))


@right(
    source="NVIDIA developer forum, thread 8178, atomicMax for float: floats above zero compare as their "
           "bits do",
    grid=2, args=lambda: [np.arange(64, dtype=np.float32) * 11 % 64 / 7, np.zeros(1, np.int32)],
    expect=lambda data, bits: [(bits.view(np.float32), data.max())],
)  # fmt: skip
def a_maximum_by_the_bits_of_floats(data, bits):
    """The maximum of floats by an atomic on integers."""
    cuda.atomic.max(bits, 0, int32(mov_b32_f32(data[cuda.grid(1)])))


@right(
    source="CUDA C++ Programming Guide, atomicInc and atomicDec: counters that wrap at a bound",
    block=64, args=lambda: [np.zeros(2, np.uint32), np.zeros(10, np.int32)],
    expect=lambda counters, out: [(counters, [4, 6]), (out, [7, 7, 7, 7, 6, 6, 6, 6, 6, 6])],
)  # fmt: skip
def counters_that_wrap(counters, out):
    """64 threads count up from 0 to 9 and again from 0; each leaves a mark where it was. Another counter goes
    down from 0 by way of 9."""
    place = cuda.atomic.inc(counters, 0, uint32(9))
    cuda.atomic.dec(counters, 1, uint32(9))
    cuda.atomic.add(out, place, 1)


@right(
    source="Numba documentation, supported atomic operations: several dimensions, old values, and, or, xor, "
           "sub, min",
    block=64,
    args=lambda: [np.arange(64, dtype=np.int32), np.full((2, 4), 0xFF, np.int32), np.zeros(64, np.int32)],
    expect=lambda data, out, old: [(out, [[0xFF - 64, 3, 0xFF, 0], [0xFF, 0xFF, 0xFF, 0xFF]]),
                                   (np.sort(old), np.arange(0xFF - 63, 0x100))],
)  # fmt: skip
def all_kinds_of_atomics(data, out, old):
    """The old values that subtraction returns are all different; which thread has which is open. The index is a
    tuple; the other row is left alone."""
    x = data[cuda.threadIdx.x]
    old[x] = cuda.atomic.sub(out, (0, 0), 1)
    cuda.atomic.min(out, (0, 1), x + 3)
    cuda.atomic.or_(out, (0, 2), x)
    cuda.atomic.and_(out, (0, 3), x)
    cuda.atomic.xor(out, (1, 3), x)


@right(
    source="NVIDIA developer blog, Maximizing Performance with Massively Parallel Hash Maps on GPUs: open "
           "addressing",
    grid=2, args=lambda: [np.arange(64, dtype=np.int32) * 7 % 23, np.full(SLOTS, -1, np.int32),
                          np.zeros(SLOTS, np.int32)],
    expect=lambda keys, table, counts: [(np.sort(table)[-23:], np.arange(23)), (np.sort(table)[:-23], -1),
                                        (counts[np.argsort(table)][-23:], np.bincount(keys))],
)  # fmt: skip
def a_hash_table(keys, table, counts):
    """Every thread puts its key into the table: a compare-and-swap claims a slot or finds who has it, and the
    next slot is tried where it is another key. Where a key ends up depends on the order, not what is in the
    table."""
    key = keys[cuda.grid(1)]
    slot = key * 5 % 8
    while True:
        found = cuda.atomic.cas(table, slot, int32(-1), key)
        if found == -1 or found == key:
            break
        slot = (slot + 1) % SLOTS
    cuda.atomic.add(counts, slot, 1)


@right(
    source="NVIDIA developer blog, Faster Parallel Reductions on Kepler: a warp's sum and one atomic",
    grid=2, block=64, args=lambda: [np.arange(128, dtype=np.int32), np.zeros(2, np.uint32)],
    expect=lambda data, out: [(out, [data.sum(), 4])],
)  # fmt: skip
def one_reduction_for_each_warp(data, out):
    """Lane 0 adds the warp's sum by an instruction that returns nothing, and counts the warp by one that
    returns the old value, which nobody looks at."""
    x = data[cuda.grid(1)]
    for step in range(5):
        x += cuda.shfl_xor_sync(ALL, x, 1 << step)
    if cuda.threadIdx.x % 32 == 0:
        red_add_gpu_global_u32(global_address(out), uint32(x))
        atom_add_gpu_global_u32(global_address(out) + uint64(4), 1)


@right(
    source="CUDA C++ Programming Guide, Atomic Functions: atomicAdd of a type that has none, by atomicCAS on "
           "its bits",
    grid=2, args=lambda: [np.arange(64, dtype=np.float32) / 4, np.zeros(1, np.float32)],
    expect=lambda data, out: [(out, data.sum())],
)  # fmt: skip
def a_float_sum_by_its_bits(data, out):
    """A float is added by a compare-and-swap of its 32 bits; the numbers are such that every order gives the
    same."""
    x, address = data[cuda.grid(1)], global_address(out)
    old = atom_cas_gpu_global_b32(address, 0, 0)
    seen = uint32(~old)
    while seen != old:
        seen = old
        old = atom_cas_gpu_global_b32(address, seen, mov_b32_f32(float32(mov_f32_b32(seen) + x)))


@right(
    source="Tzeng, Patney and Owens, Task Management for Irregular-Parallel Workloads on the GPU (2010)",
    grid=2, args=lambda: [np.zeros(2, np.int32), np.zeros(SLOTS, np.int32), np.zeros(1, np.int32)],
    expect=lambda ends, items, total: [(total, 64 * 65 // 2), (ends, 64), (items, -1)],
)  # fmt: skip
def items_are_put_and_taken(ends, items, total):
    """Every thread puts one item into a list and takes another one, by two counters. An item may not be there
    yet when its taker comes; the taker exchanges it for -1 until it gets something else than 0. Only atomics
    touch the list."""
    place = cuda.atomic.add(ends, 0, 1)
    cuda.atomic.exch(items, place, int32(place + 1))
    place = cuda.atomic.add(ends, 1, 1)
    item = cuda.atomic.cas(items, place, 0, 0)
    while item == 0:
        item = cuda.atomic.cas(items, place, 0, 0)
    cuda.atomic.exch(items, place, -1)
    cuda.atomic.add(total, 0, item)
