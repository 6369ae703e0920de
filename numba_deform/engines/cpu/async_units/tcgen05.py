"""Products of the 5th generation tensor cores (``tcgen05.mma``, PTX ISA 9.7.16), and their commits: what one
thread issues, from shared memory and tensor memory to tensor memory. By PTX's text: never run beside hardware.
"""

import functools
from typing import NamedTuple

import numpy as np

from ... import faults
from ..memory.access_records import Copy
from ..memory.scalars import WORD
from .cycle_costs import COST
from .tensor_memory import LANES, Access, split_address, tensor_memory_of
from .wgmma import astray, read_matrix
from .wgmma_matrices import ROW_BYTES, Form, addresses, form_of, from_memory

# Of an instruction descriptor, by kind: types of D, and of A and B, by their numbers (PTX 9.7.16.4.2).
F8 = {0: "e4m3", 1: "e5m2"}
KINDS = {
    "f16": ({0: "f16", 1: "f32"}, {0: "f16", 1: "bf16"}), "tf32": ({1: "f32"}, {2: "tf32"}),
    "f8f6f4": ({0: "f16", 1: "f32"}, F8), "i8": ({2: "s32"}, {0: "u8", 1: "s8"}),
}  # fmt: skip
FIELDS = {"sparse": (2, 1), "limit": (3, 1), "d": (4, 2), "a": (7, 3), "b": (10, 3), "negate_a": (13, 1),
          "negate_b": (14, 1), "transpose_a": (15, 1), "transpose_b": (16, 1), "n": (17, 6),
          "m": (24, 5)}  # fmt: skip
SWIZZLES = {0: 0, 2: 1, 4: 2, 6: 3}  # of a descriptor of shared memory -> of wgmma's


class Shape(NamedTuple):
    """What an instruction descriptor says. ``negated``, ``transposed``: of A and of B."""

    form: Form
    rows: int
    columns: int
    negated: tuple
    transposed: tuple
    limit: bool


def decoded(thread, kind, descriptor):
    """The Shape of an instruction descriptor; refuses one that PTX has no product for."""
    field = {name: int(descriptor) >> at & (1 << bits) - 1 for name, (at, bits) in FIELDS.items()}
    sums, factors = KINDS[kind]
    rows, columns = 16 * field["m"], 8 * field["n"]
    said = f"the instruction descriptor {int(descriptor) & WORD:#010x} says M {rows}, N {columns}"
    types = {name: table.get(field[name]) for name, table in (("d", sums), ("a", factors), ("b", factors))}
    said += ", types " + ", ".join(f"{name.upper()} {t or field[name]}" for name, t in types.items())
    if None in types.values() or field["sparse"]:
        known = [", ".join(f"{n} ({t})" for n, t in table.items()) for table in (sums, factors)]
        raise _bad_descriptor(thread, kind, said + ", sparse" * field["sparse"],
                              f"kind::{kind} has D of {known[0]}, A and B of {known[1]}, dense")  # fmt: skip
    step = {64: 8, 128: 16}.get(rows)
    if step is None or not step <= columns <= 256 or columns % step:
        raise _bad_descriptor(thread, kind, said, "M is 64 with N 8, 16 .. 256, or 128 with N 16, 32 .. 256")
    form = form_of(*types.values())
    pairs = ((field[f"{name}_a"], field[f"{name}_b"]) for name in ("negate", "transpose"))
    negated, transposed = (tuple(map(bool, pair)) for pair in pairs)
    if any(transposed) and form.size != 2:
        known = "of these types the engine knows K-major A and B"
        raise _bad_descriptor(thread, kind, f"{said}, transposed", known)
    return Shape(form, rows, columns, negated, transposed, bool(field["limit"]))


def _bad_descriptor(thread, kind, what, known):
    rule = "An instruction descriptor has the types of D, A and B in bits 4, 7 and 10, N / 8 from bit 17 "
    rule += "and M / 16 from bit 24 on (PTX 9.7.16.4.2)."
    what, cure = f"tcgen05.mma.kind::{kind}: {what}", f"{known[:1].upper()}{known[1:]}."
    return thread.fault(faults.BadTensorOperand, what, rule=rule, cure=cure)


def _as_wgmma(thread, name, descriptor):
    """A descriptor of shared memory with its fields where wgmma has them."""
    descriptor = int(descriptor)
    swizzle = SWIZZLES.get(descriptor >> 61)
    if descriptor >> 46 & 7 != 1 or swizzle is None or descriptor >> 52 & 0x1FF:
        what = f"the descriptor of {name}, {descriptor:#018x}, has {descriptor >> 46 & 7:#b} in bits 46 to 48 "
        what += f"and swizzle {descriptor >> 61} in bits 61 to 63"
        rule = "A descriptor of tcgen05 has 0b001 in bits 46 to 48, and the swizzle in bits 61 to 63: "
        rule += "0 none, 2 of 128, 4 of 64, 6 of 32 bytes (PTX 9.7.16.4.1)."
        cure = "Make it for tcgen05: wgmma's has its swizzle in bits 62 and 63, and no constant."
        raise thread.fault(faults.BadTensorOperand, what, rule=rule, cure=cure)
    return descriptor & (1 << 52) - 1 & ~(7 << 46) | swizzle << 62


def lanes_of(rows, lane):
    """The lane of tensor memory that each row of a matrix of 64 or 128 rows is in (PTX 9.7.16)."""
    row = np.arange(rows)
    return lane + (row if rows == LANES else 32 * (row // 16) + row % 16)


def multiply(thread, kind, d, a, b, descriptor, adds, in_tensor, *left_out):
    """Issues D = A B^T, plus D if ``adds``. ``in_tensor``: ``a`` is an address of tensor memory; ``left_out``:
    words with a bit for each lane, set of those that keep what they hold."""
    memory, block, shape = tensor_memory_of(thread), thread.block, decoded(thread, kind, descriptor)
    form, rows, columns = shape.form, shape.rows, shape.columns
    what, pipe = f"tcgen05.mma.kind::{kind} ({rows} x {columns})", memory.pipe("mma", thread.tid)

    def rectangle(address, name, wide):
        lane, first = split_address(address)
        if lane not in ((0, 16) if rows == 64 else (0,)):
            cure = "A product of 128 rows takes all lanes, from lane 0; one of 64 begins at lane 0 or 16."
            raise thread.fault(faults.BadTensorOperand, f"{what} with {name} from lane {lane} on", cure=cure)
        return lanes_of(rows, lane), slice(first, first + wide)

    kept = [lane for lane in range(LANES) if left_out and int(left_out[lane // 32]) >> lane % 32 & 1]

    def access(lanes, cells, what=what, **how):
        made = Access("mma", what, thread, thread.site(), pipe, pipe.number, tuple(lanes.tolist()), cells)
        memory.access(made, **how)

    to = rectangle(d, "D", columns)
    written = ~np.isin(to[0], kept)
    a_places, b, cells = None, _as_wgmma(thread, "B", b), None
    if in_tensor:
        cells = rectangle(a, "A", ROW_BYTES // 4)
        access(*cells, f"{what} with A there", reads=True)
    else:
        a = _as_wgmma(thread, "A", a)
        a_places = addresses(a, rows, shape.transposed[0], form.size)
        _read(thread, pipe, "A", a, a_places, shape.transposed[0], form, what)
    b_places = addresses(b, columns, shape.transposed[1], form.size)
    _read(thread, pipe, "B", b, b_places, shape.transposed[1], form, what)
    if written.any():
        access(to[0][written], to[1], reads=adds, writes=True)
    copy, before = Copy(thread, what, int(b_places.min()), 0, pipe.number), pipe.copies[-1:]
    pipe.copies.append(copy)
    thread.time += columns / 8 * COST.wgmma

    def deliver():
        for earlier in before:
            if not earlier.landed:
                block.land(earlier)
        shared = np.frombuffer(block.shared.data, np.uint8)
        if in_tensor:
            left = form.a(np.ascontiguousarray(memory.cells[cells[0], cells[1]])).reshape(rows, -1)
        else:
            left = from_memory(form, form.a, shared, a_places)
        right = from_memory(form, form.b, shared, b_places)
        left, right = (-m if negated else m for m, negated in zip((left, right), shape.negated, strict=True))
        total = _sums(shape, left, right, memory.cells[to[0], to[1]] if adds else None)
        memory.cells[to[0][written], to[1]] = total[written]
        copy.landed = True

    block.launch_copy(copy, deliver)


def _read(thread, pipe, name, descriptor, places, transposed, form, what):
    with astray(thread, name, descriptor, places, transposed, form.size):
        read_matrix(thread, pipe.component, places, what, pipe.number, [thread.tid])


def _sums(shape, left, right, held):
    """The cells of D: one number each, of fp16 in the lower half. Floats are added up in float64, and rounded
    once."""
    kind = shape.form.sums
    wide = np.int64 if kind == "s32" else np.float64
    with np.errstate(all="ignore"):
        total = left.astype(wide) @ right.astype(wide).T
        if held is not None:
            numbers = {"f32": np.float32, "s32": np.int32}.get(kind)
            held = held.view(numbers) if numbers else (held & 0xFFFF).astype(np.uint16).view(np.float16)
            total = total + held.astype(wide)
        if kind == "s32":
            total = np.clip(total, -(1 << 31), (1 << 31) - 1) if shape.limit else total
            return (total & WORD).astype(np.uint32)
        if kind == "f16":
            return total.astype(np.float16).view(np.uint16).astype(np.uint32)
        return total.astype(np.float32).view(np.uint32)


def commit(thread, address):
    """``tcgen05.commit``: an arrival on a barrier of the block's, when all products that the thread has issued
    are over."""
    commit_to(thread, [thread.block.barriers.find(thread, address)])


def commit_to(thread, barriers):
    """The same on each of some barriers of the cluster."""
    block, pipe, clock = thread.block, tensor_memory_of(thread).pipe("mma", thread.tid), thread.clock
    number, copies, landing = pipe.number, pipe.copies, thread.time
    pipe.commits = [*pipe.commits[-8:], *((number, barrier, thread.site()) for barrier in barriers)]
    pipe.copies, pipe.number = copies[-1:], number + 1
    # It hands on what phases and groups the thread has waited for, and nothing else that it did.
    facts = thread.clocks.copy()
    facts[:, : block.size] = 0
    facts[0, pipe.component] = number

    def land(barrier, arrival):
        for copy in copies:
            if not copy.landed:
                block.land(copy)
        barrier.keep(thread, arrival, clock, facts, landing)

    for barrier in barriers:
        phase = barrier.promise(thread, False)[0] if barrier.block is block else barrier.phase
        arrival = Copy(thread, "products (tcgen05.commit)", barrier.address, 0, phase, barrier)
        block.launch_copy(arrival, functools.partial(land, barrier, arrival))
