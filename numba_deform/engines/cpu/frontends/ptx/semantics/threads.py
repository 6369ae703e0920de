"""What the instructions of ``synchronisation`` and ``effects`` call: barriers, tensor maps, what lanes do
together, printing. The rules are the thread's (``machine``)."""

import functools
import operator
import re
import struct

from ......device.ptx import cpu
from ..... import faults
from .....tensormap import Rows
from ....async_units import launch_control, relaxed_barriers
from ....async_units.warp_mma import converged
from ....memory.cluster_memory import RANK
from ... import threads
from ..operations import FUNCTIONS, WORD, kernel_function
from .floats import extreme


@kernel_function
def barrier_vote(how, number, threads, vote):
    """bar.red: what all votes come to."""
    votes = cpu().named_barrier(int(number), int(threads), True, bool(vote))
    return sum(votes) if how == "popc" else int(all(votes) if how == "and" else any(votes))


@kernel_function
def fence_sc_cluster():
    cpu().fence_acq_rel(sc=True, cluster=True)


@kernel_function
def fence_half(acquires, scope):
    """A fence that only acquires, or only releases."""
    cpu().fence_acq_rel(scope != "cta", cluster=scope == "cluster", acquires=acquires, releases=not acquires)


# --- mbarriers ----------------------------------------------------------------------------------------
def _is_own(thread, address):
    rank = (address >> RANK) - 1
    return rank < 0 or rank == thread.block.rank


@kernel_function
def barrier_arrive(address, count, expected, drops, complete):
    """An arrival in any form; returns the state before it, 0 of another block's barrier, which has none."""
    thread, count = cpu(), int(count)
    if not _is_own(thread, address):
        thread.block.cluster.mbarrier_arrive(thread, address, count, expected, drops)
        return 0
    address &= (1 << RANK) - 1
    barrier = thread.block.barriers.find(thread, address)
    for _ in range(count if drops else 0):
        barrier.drop(thread)
    return thread.mbarrier_arrive_state(address, count, expected, complete)


@kernel_function
def barrier_wait(address, value, by_parity, suspend, cluster):
    """A look at a barrier of one's own block, by a parity or a state."""
    thread = cpu()
    if by_parity and cluster:
        return thread.block.cluster.mbarrier_wait(thread, address, value, suspend)
    wait = thread.mbarrier_wait if by_parity else thread.mbarrier_wait_state
    done = wait(address, value, suspend)
    if done and cluster:
        thread.acquire(thread.block.barriers.live[address].released_far)
    return done


@kernel_function
def relaxed_arrival(address, *how):
    thread = cpu()
    barrier = thread.block.barriers.find(thread, address)
    return relaxed_barriers.arrive(thread, barrier, lambda: barrier_arrive(address, *how))


@kernel_function
def relaxed_wait(address, *how):
    thread = cpu()
    barrier = thread.block.barriers.find(thread, address)
    return relaxed_barriers.wait(thread, barrier, lambda: barrier_wait(address, *how))


@kernel_function
def tcgen05_fence(is_before):
    (relaxed_barriers.fence_before if is_before else relaxed_barriers.fence_after)(cpu())


@kernel_function
def barrier_bytes(what, address, count):
    """expect_tx and complete_tx by themselves."""
    thread, sign = cpu(), 1 if what == "expect_tx" else -1
    thread.block.cluster.mbarrier_bytes(thread, address, sign * int(count))


@kernel_function
def tcgen05_commit_to(address, mask, group):
    thread = cpu()
    thread.block.cluster.commit_products(thread, address, mask, group)


# --- copies -------------------------------------------------------------------------------------------
@kernel_function
def copy_async(dst, src, size, width):
    """cp.async of ``width`` bytes, of which ``size`` come from ``src``, and the others are zeros."""
    cpu().cp_async(dst, src, int(size), width)


@kernel_function
def store_rows(address, coords, src):
    """tile::scatter4."""
    cpu().tensor_store(address, Rows(coords), src)


def _asks(function):
    return lambda *args: function(cpu(), *args)


for _function in (launch_control.try_cancel, launch_control.is_canceled, launch_control.first_block):
    FUNCTIONS[_function.__name__] = _asks(_function)


@kernel_function
def load_box(dst, address, coords, bar, offsets, mask, pair, rows):
    """A TMA load in im2col mode to several blocks, one whose barrier may be in the other block of a pair, or
    one of four rows."""
    thread = cpu()
    coords = Rows(coords) if rows else coords
    if mask is None and not pair:
        thread.tensor_load(dst, address, coords, bar)
    else:
        thread.block.cluster.tensor_load(thread, dst, address, coords, bar, mask, offsets, pair)


@kernel_function
def of_leader(address):
    thread = cpu()
    return thread.block.cluster.of_leader(thread, address)


@kernel_function
def store_and_signal(dst, bar, each, *numbers):
    """st.async: numbers of ``each`` bytes, which count on a barrier."""
    thread = cpu()
    words = numbers if each == 4 else [word for x in numbers for word in (x & WORD, x >> 32)]
    thread.block.cluster.store_async(thread, dst, tuple(words), bar)


# --- lanes --------------------------------------------------------------------------------------------
FOLDS = {"add": operator.add, "min": min, "max": max, "and": operator.and_, "or": operator.or_,
         "xor": operator.xor}  # fmt: skip


@kernel_function
def reduced(how, value, mask):
    """redux.sync: one number of those of all lanes of ``mask``."""
    numbers = cpu().collective(f"redux.{how}", mask, value).values()
    return functools.reduce(FOLDS[how], map(int, numbers))


@kernel_function
def reduced_floats(how, options, value, mask):
    return extreme(how, options, *cpu().collective(f"redux.{how}", mask, value).values())


@kernel_function
def transposed(word):
    """movmatrix: the lane's part of the transpose of an 8x8 matrix of 16 bits."""

    def turn(words):
        half = [[int(words[4 * row + column // 2]) >> 16 * (column % 2) & 0xFFFF for column in range(8)]
                for row in range(8)]  # fmt: skip
        places = [(2 * (lane % 4), lane // 4) for lane in range(32)]
        return [half[row][column] | half[row + 1][column] << 16 for row, column in places]

    thread = cpu()
    return converged(thread, "movmatrix", word, turn)[thread.lane]


@kernel_function
def special(name):
    """Registers that tell of the launch. On which SM a block runs is open: it is the block's number here."""
    thread = cpu()
    block, cluster = thread.block, thread.block.cluster
    found = {
        "nwarpid": -(-block.size // 32), "smid": block.index % 132, "nsmid": 132, "gridid": 0,
        "is_explicit_cluster": len(cluster.blocks) > 1,
        "total_smem_size": block.shared.static_bytes + block.shared.dynamic_bytes,
    }  # fmt: skip
    return found[name] if name in found else cluster.shape["xyz".index(name[-1])]


# --- texts --------------------------------------------------------------------------------------------
CONVERSION = re.compile(r"%[-+ #0]*(\*|\d+)?(?:\.(\*|\d+))?(hh|ll|h|l|z|j|t)?([diouxXcsfFeEgGaAp%])")


def _text(address):
    """The text that ends with a zero at a global address."""
    region = cpu().block.globals.find(cpu(), address, 1, "reads")
    content = bytes(region.bytes[address - region.base :])
    return content[: content.index(0)].decode(errors="replace")


@kernel_function
def printed(form, where, local):
    """vprintf: prints a text with what lies in the buffer at a generic address, each number on a multiple of
    its size. Returns how many there were, as a call's result."""
    at, count = int.from_bytes(where, "little") & (1 << 56) - 1, 0

    def shown(m):
        nonlocal at, count
        if m[4] == "%":
            return "%"
        size = 8 if m[4] in "fFeEgGaAsp" or m[3] in ("l", "ll", "z", "j", "t") else 4
        at += -at % size
        bits, at, count = bytes(local[at : at + size]), at + size, count + 1
        if m[4] in "fFeEgGaA":
            value = struct.unpack("<d", bits)[0]
        else:
            value = int.from_bytes(bits, "little", signed=m[4] in "di")
        if m[4] in "sc":
            value = _text(value) if m[4] == "s" else chr(value & 255)
        return re.sub("hh|ll|[hlzjt]", "", m[0]).replace("p", "#x") % value

    if not threads.PRINTS:
        raise threads.Prints
    print(CONVERSION.sub(shown, _text(int.from_bytes(form, "little"))), end="")
    return bytearray(count.to_bytes(4, "little"))


@kernel_function
def assertion_failed(message, file, line, *_):
    where = f"{_text(int.from_bytes(file, 'little')).rpartition('/')[2]}:{int.from_bytes(line, 'little')}"
    what = f"the assertion {_text(int.from_bytes(message, 'little'))!r} does not hold ({where})"
    raise cpu().fault(faults.KernelError, what)
