"""What the orders of one instruction do: exchanges and comparisons that acquire, release, both or neither, and
stores that do neither."""

import numpy as np
from base import right, wrong
from numba import cuda, int32, uint32

from numba_deform.compiler import u64
from numba_deform.device.memory import (
    atom_cas_acq_rel_gpu_global_b32,
    atom_cas_acquire_gpu_global_b32,
    atom_cas_gpu_global_b32,
    atom_cas_release_gpu_global_b32,
    atom_exch_acq_rel_gpu_global_b32,
    atom_exch_acquire_gpu_global_b32,
    atom_exch_gpu_global_b32,
    atom_exch_release_gpu_global_b32,
    global_at,
    ld_acquire_gpu_global_b32,
    ld_global_b32,
    ld_relaxed_gpu_global_b32,
    st_global_b32,
    st_relaxed_gpu_global_b32,
)
from numba_deform.device.sync import fence_acq_rel_gpu
from numba_deform.engines import faults

BLOCKS, WARP = 4, 32
MODEL = "PTX ISA section 8.8: release and acquire patterns"
LOCK = "iGUARD (SOSP 2021): locks by atomicCAS and atomicExch"


def words(*shape, seed=6):
    """Arguments: random words, room for as many, and four words of flags."""
    random = np.random.default_rng(seed)
    data = random.integers(0, 1 << 32, shape, np.uint32)
    return lambda: [data.copy(), np.zeros(shape, np.uint32), np.zeros(4, np.uint32)]


def total(data, out, flags):
    return [(out[0], data.sum(dtype=np.uint32))]


def handed_over(data, out, flags):
    return [(out[1], data[0])]


@right(source=LOCK, grid=BLOCKS, block=1, args=words(BLOCKS), expect=total)
def a_lock_by_cas_and_exch(data: u64, out: u64, flags: u64):
    """Who takes the lock acquires, and who gives it back releases: that is enough."""
    word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
    while atom_cas_acquire_gpu_global_b32(flags, uint32(0), uint32(1)) != 0:
        pass
    st_global_b32(out, uint32(ld_global_b32(out) + word))
    atom_exch_release_gpu_global_b32(flags, uint32(0))


@wrong(faults.DataRace, source=LOCK, grid=BLOCKS, block=1, args=words(BLOCKS))
def a_lock_that_is_given_back_by_a_relaxed_exch(data: u64, out: u64, flags: u64):
    """The twin that gives it back without release."""
    word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
    while atom_cas_acquire_gpu_global_b32(flags, uint32(0), uint32(1)) != 0:
        pass
    before = ld_global_b32(out)  # <- fault
    st_global_b32(out, uint32(before + word))
    atom_exch_gpu_global_b32(flags, uint32(0))


@wrong(faults.DataRace, source=LOCK, grid=BLOCKS, block=1, args=words(BLOCKS))
def a_lock_that_is_taken_by_a_releasing_cas(data: u64, out: u64, flags: u64):
    """The twin whose cas has the other order: it takes nothing over."""
    word = ld_global_b32(global_at(data, cuda.blockIdx.x, 4))
    while atom_cas_release_gpu_global_b32(flags, uint32(0), uint32(1)) != 0:
        pass
    before = ld_global_b32(out)  # <- fault
    st_global_b32(out, uint32(before + word))
    atom_exch_release_gpu_global_b32(flags, uint32(0))


@right(source=MODEL, grid=2, block=1, args=words(2), expect=handed_over)
def a_message_by_cas_and_exch(data: u64, out: u64, flags: u64):
    """One block sets the flag by a cas that releases, the other takes it by an exch that acquires."""
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        atom_cas_release_gpu_global_b32(flags, uint32(0), uint32(1))
    else:
        while atom_exch_acquire_gpu_global_b32(flags, uint32(0)) == 0:
            pass
        st_global_b32(global_at(out, 1, 4), ld_global_b32(out))


@wrong(faults.DataRace, source=MODEL, grid=2, block=1, args=words(2))
def a_message_by_an_acquiring_cas(data: u64, out: u64, flags: u64):
    """The twin whose cas takes over, and hands nothing on."""
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        atom_cas_acquire_gpu_global_b32(flags, uint32(0), uint32(1))
    else:
        while atom_exch_acquire_gpu_global_b32(flags, uint32(0)) == 0:
            pass
        word = ld_global_b32(out)  # <- fault
        st_global_b32(global_at(out, 1, 4), word)


@wrong(faults.DataRace, source=MODEL, grid=2, block=1, args=words(2))
def a_message_taken_by_a_releasing_exch(data: u64, out: u64, flags: u64):
    """The twin whose exch hands on, and takes nothing over."""
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        atom_cas_release_gpu_global_b32(flags, uint32(0), uint32(1))
    else:
        while atom_exch_release_gpu_global_b32(flags, uint32(0)) == 0:
            pass
        word = ld_global_b32(out)  # <- fault
        st_global_b32(global_at(out, 1, 4), word)


@right(
    source=MODEL, grid=2, block=1, args=words(2),
    expect=lambda data, out, flags: [(out.sum(dtype=np.uint32), (2 * data).sum(dtype=np.uint32))],
)  # fmt: skip
def the_second_of_two_by_exch(data: u64, out: u64, flags: u64):
    """Each leaves its word and swaps a mark: who gets the other's mark adds the other's word to its own."""
    block = int32(cuda.blockIdx.x)
    word = ld_global_b32(global_at(data, block, 4))
    st_global_b32(global_at(out, block, 4), word)
    if atom_exch_acq_rel_gpu_global_b32(flags, uint32(1)) != 0:
        both = uint32(word + ld_global_b32(global_at(out, 1 - block, 4)))
        st_global_b32(global_at(out, block, 4), uint32(both + word))


@wrong(faults.DataRace, source=MODEL, grid=2, block=1, args=words(2))
def the_second_of_two_by_a_relaxed_exch(data: u64, out: u64, flags: u64):
    """The twin whose marks order nothing."""
    block = int32(cuda.blockIdx.x)
    word = ld_global_b32(global_at(data, block, 4))
    st_global_b32(global_at(out, block, 4), word)
    if atom_exch_gpu_global_b32(flags, uint32(1)) != 0:
        other = ld_global_b32(global_at(out, 1 - block, 4))  # <- fault
        st_global_b32(global_at(out, block, 4), uint32(other + word))


@right(source=MODEL, grid=BLOCKS, block=1, args=words(BLOCKS), expect=total)
def a_turn_by_cas(data: u64, out: u64, flags: u64):
    """Blocks take turns in their order: a cas from one's own number to the next takes over and hands on."""
    block = uint32(cuda.blockIdx.x)
    word = ld_global_b32(global_at(data, block, 4))
    while ld_relaxed_gpu_global_b32(flags) != uint32(2 * block):
        pass
    atom_cas_acq_rel_gpu_global_b32(flags, uint32(2 * block), uint32(2 * block + 1))
    st_global_b32(out, uint32(ld_global_b32(out) + word))
    atom_cas_acq_rel_gpu_global_b32(flags, uint32(2 * block + 1), uint32(2 * block + 2))


@wrong(faults.DataRace, source=MODEL, grid=BLOCKS, block=1, args=words(BLOCKS))
def a_turn_by_a_relaxed_cas(data: u64, out: u64, flags: u64):
    """The twin that takes its turn by a relaxed cas."""
    block = uint32(cuda.blockIdx.x)
    word = ld_global_b32(global_at(data, block, 4))
    while ld_relaxed_gpu_global_b32(flags) != uint32(2 * block):
        pass
    atom_cas_gpu_global_b32(flags, uint32(2 * block), uint32(2 * block + 1))
    before = ld_global_b32(out)  # <- fault
    st_global_b32(out, uint32(before + word))
    atom_cas_acq_rel_gpu_global_b32(flags, uint32(2 * block + 1), uint32(2 * block + 2))


@right(source=MODEL, grid=2, block=1, args=words(2), expect=handed_over)
def a_relaxed_store_behind_a_fence(data: u64, out: u64, flags: u64):
    """The fence releases what was written before; the relaxed store that follows is what carries it."""
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        fence_acq_rel_gpu()
        st_relaxed_gpu_global_b32(flags, uint32(1))
    else:
        while ld_acquire_gpu_global_b32(flags) == 0:
            pass
        st_global_b32(global_at(out, 1, 4), ld_global_b32(out))


@wrong(faults.DataRace, source=MODEL, grid=2, block=1, args=words(2))
def a_relaxed_store_without_a_fence(data: u64, out: u64, flags: u64):
    """The twin without the fence."""
    if cuda.blockIdx.x == 0:
        st_global_b32(out, ld_global_b32(data))
        st_relaxed_gpu_global_b32(flags, uint32(1))
    else:
        while ld_acquire_gpu_global_b32(flags) == 0:
            pass
        word = ld_global_b32(out)  # <- fault
        st_global_b32(global_at(out, 1, 4), word)
