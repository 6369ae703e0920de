"""Warp-wide operations, their masks, and registers of warp groups."""

import numpy as np
from base import wrong
from numba import cuda, float32, int32, uint32, uint64

from numba_deform.compiler import u64
from numba_deform.device.half2 import add_rn_f16x2
from numba_deform.device.memory import global_address, ld_global_b32, st_global_b32
from numba_deform.device.registers import setmaxnreg_dec, setmaxnreg_inc
from numba_deform.device.sync import elect_sync
from numba_deform.engines import faults

ALL, WARP = 0xFFFFFFFF, 32


def ints(*counts):
    """Arguments: arrays of that many numbers, the first 0, 1, 2, .., the others zeros."""
    return lambda: [np.arange(counts[0], dtype=np.int32), *(np.zeros(n, np.int32) for n in counts[1:])]


def words(*counts):
    """The same of unsigned words."""
    return lambda: [np.arange(counts[0], dtype=np.uint32), *(np.zeros(n, np.uint32) for n in counts[1:])]


# --- masks --------------------------------------------------------------------------------------------
@wrong(faults.WarpDivergence, source="uzh-rpg/vilib pull request 5", args=ints(32, 32), hardware="no")
def full_mask_in_a_branch(data, out):
    """Half of the warp shuffles, and the mask names all of it: the others are at the barrier of the warp. On a
    V100 it was a deadlock."""
    i = int32(cuda.threadIdx.x)
    x = data[i]
    if i < 16:
        x += cuda.shfl_down_sync(ALL, x, 8)  # <- fault
    cuda.syncwarp()  # <- fault
    out[i] = x


@wrong(faults.WarpDivergence, source="picongpu pull request 2600", args=ints(32, 32), hardware="no")
def ballot_of_those_who_are_there(data, out):
    """The lanes that have something to write count themselves by a ballot of the full mask, and the others are
    at the block's barrier."""
    i = int32(cuda.threadIdx.x)
    if data[i] % 3 == 0:
        out[i] = cuda.popc(cuda.ballot_sync(ALL, True))  # <- fault
    cuda.syncthreads()  # <- fault


@wrong(faults.WarpDivergence, source="NVIDIA/cutlass issue 1094", args=ints(32, 32), hardware="no")
def width_for_a_mask(data, out):
    """The mask is 0x1f, which people know as the last lane's number: it names five lanes, and all call."""
    i = int32(cuda.threadIdx.x)
    out[i] = cuda.shfl_sync(0x1F, data[i], 0)  # <- fault


@wrong(faults.WarpDivergence, source="cub issue 154; kokkos issue 1958", args=ints(32, 32), hardware="no")
def mask_of_the_first_group(data, out):
    """Groups of eight lanes add their numbers, all with the mask of the first group."""
    i = int32(cuda.threadIdx.x)
    x = data[i]
    for distance in (4, 2, 1):
        x += cuda.shfl_xor_sync(0xFF, x, distance)  # <- fault
    out[i] = x


@wrong(faults.WarpDivergence, source="numba/numba issue 8507", args=ints(1, 32), hardware="no")
def leader_in_another_branch(counter, out):
    """The leader adds to the counter in one branch and the others ask it for the result in the other: it never
    comes to the shuffle."""
    i = int32(cuda.threadIdx.x)
    base = int32(0)
    if i == 0:
        base = cuda.atomic.add(counter, 0, 32)
        cuda.syncwarp()  # <- fault
    else:
        base = cuda.shfl_sync(ALL, base, 0)  # <- fault
    out[i] = base + i


@wrong(faults.WarpDivergence, source="deepseek-ai/DeepGEMM pull request 343", args=words(32, 32), hardware="no")
def elected_lane_synchronises_the_warp(data: u64, out: u64):
    """Only the elected lane comes to the syncwarp of the full mask; the others are at the block's barrier."""
    i = int32(cuda.threadIdx.x)
    if elect_sync(ALL) != 0:
        st_global_b32(out, ld_global_b32(data))
        cuda.syncwarp()  # <- fault
    cuda.syncthreads()  # <- fault
    st_global_b32(out + uint64(4 * i), uint32(1))


@wrong(faults.WarpDivergence, source="cudnn-frontend pull request 717", args=words(32, 32), hardware="no")
def election_in_half_a_warp(data: u64, out: u64):
    """Half of the warp elects among all 32 lanes; an election waits for all of its mask."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        if elect_sync(ALL) != 0:  # <- fault
            st_global_b32(out, ld_global_b32(data))
    cuda.syncthreads()  # <- fault
    st_global_b32(out + uint64(4 * i), uint32(1))


@wrong(faults.WarpDivergence, source="CUDA guide, warp votes", args=ints(32, 32), hardware="no")
def different_operations_meet(data, out):
    """Even lanes vote while odd ones shuffle: a warp-wide operation is one operation."""
    i = int32(cuda.threadIdx.x)
    x = data[i]
    if i % 2 == 0:
        x = int32(cuda.any_sync(ALL, x > 8))  # <- fault
    else:
        x = cuda.shfl_sync(ALL, x, 0)  # <- fault
    out[i] = x


# --- values that nobody gave --------------------------------------------------------------------------
@wrong(
    faults.WarpDivergence, faults.UninitialisedRead, source="CUDA guide, warp shuffle: inactive lanes",
    args=ints(32, 32),
)  # fmt: skip
def sum_takes_in_lanes_outside_the_mask(data, out):
    """16 lanes add up by shuffles down from up to eight lanes further: what comes from outside the mask is
    undefined, and goes into the sum."""
    i = int32(cuda.threadIdx.x)
    x = data[i]
    if i < 16:
        x += cuda.shfl_down_sync(0xFFFF, x, 8)  # <- fault
        x += cuda.shfl_down_sync(0xFFFF, x, 4)
        out[i] = x  # <- fault


@wrong(
    faults.WarpDivergence, faults.UninitialisedRead, source="CUDA guide, warp shuffle: exited lanes",
    args=ints(24, 32),
)  # fmt: skip
def broadcast_from_an_exited_lane(data, out):
    """The last lane's prefix is broadcast, and lanes without an element have returned by then."""
    i = int32(cuda.threadIdx.x)
    if i >= data.size:
        return
    x = cuda.shfl_sync(ALL, data[i], 31)  # <- fault
    out[i] = x  # <- fault


NOBODY = "CUDA guide, warp shuffle: inactive lanes; PTX ISA 9.7.9.6 (shfl.sync)"


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_into_an_atomic(data, out):
    """The upper lanes count in a global histogram what nobody gave them."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        cuda.atomic.add(out, 3, x)  # <- fault


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_into_a_shared_maximum(data, out):
    """The same with a maximum in shared memory."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        best = cuda.shared.array(1, int32)
        if i == 0:
            best[0] = 0
        cuda.syncwarp(0xFFFF)
        cuda.atomic.max(best, 0, x)  # <- fault
        cuda.syncwarp(0xFFFF)
        if i == 0:
            out[0] = best[0]


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_decides(data, out):
    """A lane decides by it whether to write."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        if x > 20:  # <- fault
            out[i] = 1


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_floats_decide(data, out):
    """The same of floating-point numbers, which are NaN or not."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        y = float32(x) * float32(0.5)
        while y < 8:  # <- fault
            y += float32(1)
            out[i] = 1


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_for_an_index(data, out):
    """A lane writes where it is told by nobody."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        out[x & 31] = i  # <- fault


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_in_a_vote(data, out):
    """The lanes vote on what some of them do not have."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        out[i] = cuda.any_sync(0xFFFF, x == 3)  # <- fault


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_maximum(data, out):
    """A maximum with an undefined number is undefined, of floats as well, and is stored after a conversion."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        y = max(float32(x), float32(3))
        z = max(int32(y), 2)
        out[i] = z  # <- fault


@wrong(faults.UninitialisedRead, source=NOBODY, args=ints(32, 32))
def undefined_into_packed_halves(data, out):
    """Packed halves are added by an instruction, and one side is undefined."""
    i = int32(cuda.threadIdx.x)
    if i < 16:
        x = cuda.shfl_down_sync(0xFFFF, data[i], 8)
        st_global_b32(global_address(out) + uint64(4 * i), add_rn_f16x2(uint32(x), uint32(i)))  # <- fault


@wrong(faults.DataRace, source="kokkos/kokkos pull request 6630", args=ints(32, 32))
def shuffle_orders_no_memory(data, out):
    """One lane leaves a number in shared memory, and a shuffle brings the warp together: it hands on a register
    and orders no memory."""
    box = cuda.shared.array(1, int32)
    i = int32(cuda.threadIdx.x)
    if i == 3:
        box[0] = data[i]
    x = cuda.shfl_sync(ALL, i, 3)
    out[i] = box[0] + x  # <- fault


@wrong(faults.DataRace, source="CUDA guide, independent thread scheduling", args=ints(32, 32))
def neighbour_without_syncwarp(data, out):
    """Lanes exchange numbers through shared memory as if they ran in step."""
    box = cuda.shared.array(WARP, int32)
    i = int32(cuda.threadIdx.x)
    box[i] = data[i]
    out[i] = box[i ^ 1]  # <- fault


@wrong(faults.DataRace, source="CUDA guide, syncwarp: the mask names who takes part", args=ints(32, 32))
def syncwarp_of_two_halves(data, out):
    """Each half of the warp synchronises for itself and reads what the other half wrote."""
    box = cuda.shared.array(WARP, int32)
    i = int32(cuda.threadIdx.x)
    box[i] = data[i]
    cuda.syncwarp(0xFFFF if i < 16 else 0xFFFF0000)
    out[i] = box[31 - i]  # <- fault


# --- registers ----------------------------------------------------------------------------------------
@wrong(
    faults.RegisterMisuse, source="mlc-ai/TIRx-kernels pull request 165", block=384, args=words(1),
    hardware="no", explorable=False,
)  # fmt: skip
def groups_ask_for_more_than_there_is(out: u64):
    """Three warp groups of 128 threads ask for 232, 232 and 96 registers: 71680 of the SM's 65536."""
    i = int32(cuda.threadIdx.x)
    if i < 128:
        setmaxnreg_dec(96)
    else:
        setmaxnreg_inc(232)  # <- fault
    cuda.syncthreads()
    if i == 0:
        st_global_b32(out, uint32(1))


@wrong(
    faults.RegisterMisuse, source="pytorch/helion pull request 3620", block=512, args=words(1), hardware="no",
    explorable=False,
)  # fmt: skip
def nobody_gives_registers_back(out: u64):
    """Two of four groups raise their registers from 128 to 168, and none has lowered them: the request is never
    met, and the kernel spins."""
    i = int32(cuda.threadIdx.x)
    if i < 256:
        setmaxnreg_inc(168)  # <- fault
    cuda.syncthreads()
    if i == 0:
        st_global_b32(out, uint32(1))


@wrong(
    faults.RegisterMisuse, source="PTX ISA 9.7.19.5: whole groups", block=128, args=words(1), hardware="no",
)  # fmt: skip
def one_warp_of_its_group(out: u64):
    """The producer is one warp, and lowers its registers; its three neighbours of the warp group do not."""
    i = int32(cuda.threadIdx.x)
    if i < WARP:
        setmaxnreg_dec(40)  # <- fault
    if i == 0:
        st_global_b32(out, uint32(1))


@wrong(
    faults.RegisterMisuse, source="PTX ISA 9.7.19.5: a multiple of 8", block=128, args=words(1), hardware="no",
)  # fmt: skip
def hundred_registers(out: u64):
    """A hundred registers are no multiple of eight."""
    setmaxnreg_dec(100)  # <- fault
    if cuda.threadIdx.x == 0:
        st_global_b32(out, uint32(1))
