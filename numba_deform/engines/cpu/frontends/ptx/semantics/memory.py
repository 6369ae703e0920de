"""What loads, stores and atomics of translated kernels call. Memory, its order and its races are the thread's
(``machine``).

A generic address is that of global memory, or one in the window of shared or of local memory. Local memory is a
thread's own ``bytearray``, which the kernel hands over. Another block's shared memory has its rank in the
address (``machine.cluster``)."""

import numpy as np
from greenlet import getcurrent as cpu  # kernels run in the engine alone

from ..... import faults
from ....async_units.reductions import combine
from ....async_units.warp_mma import converged
from ....memory.cluster_memory import RANK
from ..operations import LOCAL, SHARED, WORD, kernel_function
from ..parser import SIZES

CLUSTER = "shared::cluster"


def _space(space, address):
    """(space, address) of an access that is not to local memory."""
    if space not in ("", CLUSTER):
        return space, address
    if space or address & SHARED:
        address &= WORD
        return (CLUSTER if address >> RANK else "shared"), address
    return "global", address


def _is_local(space, address):
    return space == "local" or not space and address & LOCAL


@kernel_function
def load(space, address, each, count, local, read_only=False):
    """``count`` numbers of ``each`` bytes, a tuple if there are several."""
    size = each * count
    if _is_local(space, address):
        return _numbers(local[_within(local, address, size) :][:size], each, count)
    (space, address), words = _space(space, address), max(1, size // 4)
    thread, narrow = cpu(), size if size < 4 else 0
    if space == CLUSTER:
        content = thread.block.cluster.load(thread, address, words, narrow)
    else:
        content = thread.load(space, address, size, words, read_only)
    if size == each <= 4 or each == 4:
        return content
    content = (content,) if words == 1 else content
    return _numbers(b"".join(int(word).to_bytes(4, "little") for word in content), each, count)


def _numbers(content, each, count):
    numbers = tuple(int.from_bytes(content[i : i + each], "little") for i in range(0, each * count, each))
    return numbers if count > 1 else numbers[0]


@kernel_function
def load_word(space, address):
    """32 bits, the most frequent load."""
    return cpu().load(space, address, 4, 1)


@kernel_function
def look(address, size):
    """A load of global memory by a thread that does nothing with what it brings."""
    cpu()._locate("global", address, size, "reads")


@kernel_function
def wmma_tile(what, space, address, stride, size):
    """What all lanes of wmma.load and wmma.store have to agree on: that they come, and with which address and
    stride, in bytes. The start lies on a multiple of the fragment's ``size``, as PTX ISA says; of the stride 16
    bytes are enough, as CUDA's guide says: PTX's own default for rows of 8 halves is 16."""
    thread, verb = cpu(), "reads" if "load" in what else "writes"
    given = converged(thread, what, (address, stride), lambda given: given)
    others = [lane for lane, tile in given.items() if tile != given[thread.lane]]
    if others:
        told = f"{what} with an address or a stride that is not lane {others[0]}'s"
        raise thread.fault(faults.WarpDivergence, told, rule="All lanes give the same ones (PTX 9.7.14).")
    if _is_local(space, address):
        raise thread.fault(faults.OutOfRange, f"{what} of local memory, which no other lane has")
    space, address = _space(space, address)
    if space != CLUSTER:
        thread._locate(space, address, size, verb)
    if stride % min(size, 16):
        least = min(size, 16)
        told = f"{what} with a stride of {stride} bytes, not a multiple of {least}"
        rule = f"Rows of a tile lie a multiple of {least} bytes apart."
        fault = thread.fault(faults.Misaligned, told, rule=rule)
        fault.cure = f"Give rows, and the stride, a multiple of {least} bytes: pad them to that."
        raise fault


@kernel_function
def store_word(space, address, x):
    cpu().store(space, address, (x,))


@kernel_function
def store_zeros(address, size):
    """st.bulk."""
    thread, size = cpu(), int(size)
    if size % 8 or size > 1 << 24:
        raise thread.fault(faults.BadSize, f"st.bulk of {size} bytes, not a multiple of 8 up to 16777216")
    for place in range(address, address + size, 8):
        thread.store("shared", place, (0, 0))


@kernel_function
def store(space, address, each, local, *numbers):
    """Write numbers of ``each`` bytes, one behind the other."""
    size = each * len(numbers)
    if _is_local(space, address):
        first = _within(local, address, size)
        local[first : first + size] = _packed(each, numbers)
        return
    if each == 4:
        words = numbers
    elif each == 8:
        words = [word for x in numbers for word in (x & WORD, x >> 32)]
    else:
        n = 4 // each
        words = [_packed_word(each, numbers[i : i + n]) for i in range(0, len(numbers), n)]
    (space, address), thread, narrow = _space(space, address), cpu(), size if size < 4 else 0
    if space == CLUSTER:
        thread.block.cluster.store(thread, address, *words, narrow=narrow)
    else:
        thread.store(space, address, words, narrow)


def _packed(each, numbers):
    return b"".join((int(x) & (1 << 8 * each) - 1).to_bytes(each, "little") for x in numbers)


def _packed_word(each, numbers):
    return numbers[0] if len(numbers) == 1 else int.from_bytes(_packed(each, numbers), "little")


def _within(local, address, size):
    first = address & LOCAL - 1
    if first % size or first + size > len(local):
        what = f"local memory: {size} bytes at {first} of {len(local)}"
        raise cpu().fault(faults.Misaligned if first % size else faults.OutOfRange, what)
    return first


@kernel_function
def several_blocks():
    """Whether scope cluster is wider than the block."""
    return len(cpu().block.cluster.blocks) > 1


def _aligned(space, address, each, count):
    """A vector lies on a multiple of its whole size; its numbers are accessed one by one."""
    if count > 1 and space != CLUSTER:
        cpu()._locate(space, address, each * count, "touches the flags of")


@kernel_function
def load_flag(space, address, each, count, local, is_wide, relaxed):
    """A load that has an order."""
    if _is_local(space, address):
        return load(space, address, each, count, local)
    (space, address), thread, found = _space(space, address), cpu(), []
    _aligned(space, address, each, count)
    for n in range(count):
        if space == CLUSTER:
            found.append(thread.block.cluster.load_flag(thread, address + n * each, relaxed, each))
        else:
            found.append(thread.load_acquire(space, address + n * each, is_wide, relaxed, size=each))
    return tuple(found) if count > 1 else found[0]


@kernel_function
def store_flag(space, address, each, local, is_wide, relaxed, *numbers):
    if _is_local(space, address):
        store(space, address, each, local, *numbers)
        return
    (space, address), thread = _space(space, address), cpu()
    _aligned(space, address, each, len(numbers))
    for n, x in enumerate(numbers):
        if space == CLUSTER:
            thread.block.cluster.store_flag(thread, address + n * each, x, relaxed, each)
        else:
            thread.store_release(space, address + n * each, x, is_wide, relaxed, size=each)


@kernel_function
def atomic(name, kind, space, address, acquire, release, is_wide, *given):
    """Read-modify-write of one number; returns the old one. ``kind``: PTX type."""
    size = SIZES[kind]
    mask = (1 << 8 * size) - 1
    given = [int(x) & mask for x in given]

    def change(old):
        if name == "cas":
            return given[1] if old == given[0] else None
        if name == "exch":
            return given[0]
        new = (x.to_bytes(size, "little") for x in (old, given[0]))
        return int.from_bytes(combine(name, kind.removesuffix("x2"), *new, flush=True), "little")

    (space, address), thread, dtype = _space(space, address), cpu(), np.dtype(f"u{size}")
    order = {"acquire": acquire, "release": release, "wide": is_wide}
    if space == CLUSTER:
        return thread.block.cluster.atomic(thread, address, change, name != "exch", dtype, **order)
    old = thread.atomic_word(space, address, change, name != "exch", dtype, **order)
    thread.pause(name == "cas" and old == given[0] and space == "global")
    return old


@kernel_function
def atomic_vector(name, kind, space, address, acquire, release, is_wide, *given):
    """The same of several numbers in a row, each by itself; the tuple of the old ones."""
    each, (space, address) = SIZES[kind], _space(space, address)
    _aligned(space, address, each, len(given))
    return tuple(atomic(name, kind, space, address + n * each, acquire, release, is_wide, x)
                 for n, x in enumerate(given))  # fmt: skip


@kernel_function
def is_space(space, address):
    window = "local" if address & LOCAL else "shared" if address & SHARED else "global"
    if window == "shared" and space == "shared":
        rank = (address & WORD) >> RANK
        return not rank or rank - 1 == cpu().block.rank
    return window == space.partition("::")[0]


@kernel_function
def mapped(address, rank):
    """A generic address of the same place in the shared memory of the block of that rank."""
    thread = cpu()
    return SHARED | thread.block.cluster.map(thread, address & WORD, int(rank))


@kernel_function
def rank_of(address):
    """Of the block whose shared memory an address is of."""
    return ((address & WORD) >> RANK) - 1 if (address & WORD) >> RANK else cpu().block.rank
