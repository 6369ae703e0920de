"""Products of the 5th generation tensor cores (``tcgen05.mma``, PTX ISA 9.7.16), copies from shared to tensor
memory (``tcgen05.cp``), and their commits: what one thread issues, for its block or for both blocks of a pair.
By PTX's text: never run beside hardware.
"""

import functools
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ....device import tcgen05
from ....device.tcgen05 import F8, FIELDS, columns_of, shapes_in_words
from ... import faults
from ..memory.access_records import Copy
from ..memory.cluster_memory import RANK
from ..memory.cycle_costs import COST
from ..memory.scalars import WORD
from .tensor_memory import LANES, Access, split_address, tensor_memory_of
from .wgmma import astray, read_matrix
from .wgmma_matrices import ROW_BYTES, Form, addresses, form_of, from_memory

# Of an instruction descriptor, by kind: types of D, and of A and B, by their numbers (PTX 9.7.16.4.2).
SCALED = {"mxf8f6f4": F8, "mxf4": {1: "e2m1"}, "mxf4nvf4": {1: "e2m1"}}
KINDS = tcgen05.KINDS | {kind: ({0: "f32"}, factors) for kind, factors in SCALED.items()}
SCALE_TYPES = {0: ml_dtypes.float8_e4m3fn, 1: ml_dtypes.float8_e8m0fnu}
SCALE_FIELDS = {**FIELDS, "d": (0, 0), "scale_b": (4, 2), "scale": (23, 1), "scale_a": (29, 2)}
SWIZZLES = {0: 0, 2: 1, 4: 2, 6: 3}  # of a descriptor of shared memory -> of wgmma's
# What tcgen05.cp brings: bytes of a row, and the row of the source that each lane gets (PTX 9.7.16).
_LANE = np.arange(LANES)
COPIES = {
    "128x256b": (32, _LANE), "128x128b": (16, _LANE), "64x128b.warpx2::02_13": (16, _LANE % 64),
    "64x128b.warpx2::01_23": (16, _LANE // 64 * 32 + _LANE % 32), "32x128b.warpx4": (16, _LANE % 32),
}  # fmt: skip


class How(NamedTuple):
    """How a product is issued: for how many blocks, by ``.ws`` or not, with how many scales a row (0: none) and
    at which addresses those of A and B are; ``shrinks``: D is divided by 2 to this power first."""

    group: int = 1
    ws: bool = False
    scales: int = 0
    places: tuple = ()
    shrinks: int = 0


class Shape(NamedTuple):
    """What an instruction descriptor says. ``negated``, ``transposed``: of A and of B; ``scale``: the type of
    the scales, and the first of those of A and B in their words."""

    form: Form
    rows: int
    columns: int
    negated: tuple
    transposed: tuple
    limit: bool
    scale: tuple


def decoded(thread, kind, descriptor, how):
    """The Shape of an instruction descriptor; refuses one that PTX has no product for."""
    fields = SCALE_FIELDS if how.scales else FIELDS
    field = {name: int(descriptor) >> at & (1 << bits) - 1 for name, (at, bits) in fields.items()}
    sums, factors = KINDS[kind]
    rows, columns = 16 * field["m"], 8 * field["n"]
    said = f"the instruction descriptor {int(descriptor) & WORD:#010x} says M {rows}, N {columns}"
    types = {name: table.get(field[name]) for name, table in (("d", sums), ("a", factors), ("b", factors))}
    said += ", types " + ", ".join(f"{name.upper()} {t or field[name]}" for name, t in types.items())
    if None in types.values() or field["sparse"]:
        known = [", ".join(f"{n} ({t})" for n, t in table.items()) for table in (sums, factors)]
        raise _bad_descriptor(thread, kind, said + ", sparse" * field["sparse"],
                              f"kind::{kind} has D of {known[0]}, A and B of {known[1]}, dense")  # fmt: skip
    if columns not in columns_of(kind, rows, how.group, how.ws):
        known = shapes_in_words(kind, how.group, how.ws)
        raise _bad_descriptor(thread, kind, said, f"M is {known} columns, with cta_group::{how.group}")
    form, scale = form_of(*types.values()), ()
    pairs = ((field[f"{name}_a"], field[f"{name}_b"]) for name in ("negate", "transpose"))
    negated, transposed = (tuple(map(bool, pair)) for pair in pairs)
    if any(transposed) and form.size != 2:
        known = "of these types the engine knows K-major A and B"
        raise _bad_descriptor(thread, kind, f"{said}, transposed", known)
    if how.scales:
        scale = SCALE_TYPES[field["scale"]], field["scale_a"], field["scale_b"]
        last = max(scale[1:])
        if last + how.scales > 4 or last % how.scales or not (field["scale"] or kind == "mxf4nvf4"):
            said += f", scales of type {field['scale']}, the first of A {scale[1]}, of B {scale[2]}"
            known = "scales are of type 1 (ue8m0), of mxf4nvf4 also 0 (ue4m3); the first is a multiple of how "
            raise _bad_descriptor(thread, kind, said, f"{known}many a row has, {how.scales}")
    return Shape(form, rows, columns, negated, transposed, bool(field.get("limit")), scale)


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


class Part(NamedTuple):
    """What one block has of a product: its tensor memory, the lanes and columns of D there, and where A and B
    lie in its shared memory, or A (lanes, columns) in its tensor memory; ``written``: which lanes change."""

    block: object
    memory: object
    lanes: np.ndarray
    columns: slice
    a: object
    b: np.ndarray
    written: np.ndarray


def multiply(thread, kind, d, a, b, descriptor, adds, in_tensor, left_out=(), how=()):
    """Issues D = A B^T, plus D if ``adds``. ``in_tensor``: ``a`` is an address of tensor memory; ``left_out``:
    words with a bit for each lane, set of those that keep what they hold; ``how``: the fields of ``How``."""
    how = How(*how)
    shape, what = decoded(thread, kind, descriptor, how), f"tcgen05.mma.kind::{kind}"
    what += f" ({shape.rows} x {shape.columns})"
    blocks = _blocks(thread, what, how.group)
    pipe = tensor_memory_of(thread.block).pipe("mma", thread.tid)
    product = Product(thread, thread.site(), shape, how, what, pipe, shape.rows // len(blocks))
    b, a = _as_wgmma(thread, "B", b), a if in_tensor else _as_wgmma(thread, "A", a)
    kept = [lane for lane in range(32 * len(left_out)) if int(left_out[lane // 32]) >> lane % 32 & 1]
    parts = []
    for n, block in enumerate(blocks):
        own = [lane - LANES * n for lane in kept]
        parts.append(product.part(block, d, a, b, in_tensor, own))
        product.access(parts[-1], adds)
    thread.time += shape.columns / 8 * COST.wgmma

    def deliver():
        right = np.concatenate([product.b(part) for part in parts])
        for part in parts:
            held = part.memory.cells[part.lanes, part.columns] if adds else None
            total = product.sums(part, right, held)
            part.memory.cells[part.lanes[part.written], part.columns] = total[part.written]

    _launch(thread, pipe, what, int(parts[0].b.min()), deliver)


class Product(NamedTuple):
    """A product of ``rows`` rows of each block; ``pipe`` is that of its thread."""

    thread: object
    site: object
    shape: Shape
    how: How
    what: str
    pipe: object
    rows: int

    @property
    def split(self):
        """How many parts of N lie beside each other in the lanes (PTX 9.7.16)."""
        return LANES // self.rows if self.how.ws or self.how.group == 2 else 1

    def rectangle(self, address, name, wide):
        """(lanes, columns) of a matrix in tensor memory."""
        lane, first = split_address(address)
        if lane not in ((0, 16) if self.rows == 64 and self.split == 1 else (0,)):
            cure = "A product of 128 lanes takes all, from lane 0; one of 64 begins at lane 0 or 16."
            told = f"{self.what} with {name} from lane {lane} on"
            raise self.thread.fault(faults.BadTensorOperand, told, cure=cure)
        return lanes_of(self.rows * self.split, lane), slice(first, first + wide)

    def part(self, block, d, a, b, in_tensor, kept):
        """The Part of ``block``, whose lanes ``kept`` stay as they are."""
        (turn_a, turn_b), size = self.shape.transposed, self.shape.form.size
        lanes, columns = self.rectangle(d, "D", self.shape.columns // self.split)
        if in_tensor:
            a = self.rectangle(a, "A", ROW_BYTES // 4)
        else:
            places = addresses(a, self.rows, turn_a, size)
            _read(self.thread, self.pipe, block, "A", a, places, turn_a, size, self.what)
            a = places
        places = addresses(b, self.shape.columns // self.how.group, turn_b, size)
        _read(self.thread, self.pipe, block, "B", b, places, turn_b, size, self.what)
        memory = tensor_memory_of(block)
        return Part(block, memory, lanes, columns, a, places, ~np.isin(lanes, kept))

    def access(self, part, adds):
        """Have its accesses to tensor memory judged, and noted."""

        def note(lanes, columns, what, **how):
            where = tuple(lanes.tolist()), columns
            made = Access("mma", what, self.thread, self.site, self.pipe, self.pipe.number, *where)
            part.memory.access(made, **how)

        if type(part.a) is tuple:
            note(*part.a, f"{self.what} with A there", reads=True)
        for columns in self.scale_columns():
            note(_LANE, columns, f"{self.what} with scales there", reads=True)
        if part.written.any():
            note(part.lanes[part.written], part.columns, self.what, reads=adds, writes=True)

    def scale_columns(self):
        """Where the scales of A and B are: a word for a row, the 32 rows of a column four times."""
        rows = self.rows, self.shape.columns // self.split
        for name, address, count in zip("AB", self.how.places, rows, strict=False):
            lane, first = split_address(address)
            if lane:
                what = f"{self.what} with the scales of {name} from lane {lane} on"
                cure = "Scales take all lanes: begin at lane 0."
                raise self.thread.fault(faults.BadTensorOperand, what, cure=cure)
            yield slice(first, first + -(-count // 32))

    def a(self, part):
        """A of a part, a row for each lane of D."""
        form = self.shape.form
        if type(part.a) is tuple:
            left = form.a(np.ascontiguousarray(part.memory.cells[part.a])).reshape(len(part.lanes), -1)
        else:
            left = np.tile(from_memory(form, form.a, _bytes(part.block), part.a), (self.split, 1))
        return -left if self.shape.negated[0] else left

    def b(self, part):
        right = from_memory(self.shape.form, self.shape.form.b, _bytes(part.block), part.b)
        return -right if self.shape.negated[1] else right

    def sums(self, part, right, held):
        """The cells of D: one number each, of fp16 in the lower half. Floats are added up in float64, and
        rounded once."""
        kind = self.shape.form.sums
        wide = np.int64 if kind == "s32" else np.float64
        with np.errstate(all="ignore"):
            left, right = self.a(part).astype(wide), right.astype(wide)
            lefts, rights = np.split(left, self.split), np.split(right, self.split)
            if self.how.scales:
                a, b = self.scale_columns()
                lefts = [x * self.scale(part, a, 1, x.shape) for x in lefts]
                rights = [x * self.scale(part, b, 2, x.shape, n) for n, x in enumerate(rights)]
            total = np.concatenate([x @ y.T for x, y in zip(lefts, rights, strict=True)])
            if held is not None:
                numbers = {"f32": np.float32, "s32": np.int32}.get(kind)
                held = held.view(numbers) if numbers else (held & 0xFFFF).astype(np.uint16).view(np.float16)
                total = total + (held / 2**self.how.shrinks if self.how.shrinks else held).astype(wide)
            if kind == "s32":
                total = np.clip(total, -(1 << 31), (1 << 31) - 1) if self.shape.limit else total
                return (total & WORD).astype(np.uint32)
            if kind == "f16":
                return total.astype(np.float16).view(np.uint16).astype(np.uint32)
            return total.astype(np.float32).view(np.uint32)

    def scale(self, part, columns, which, shape, n=0):
        """The scales of A (``which`` 1), or of part n of B (2), of this ``shape``, for each element."""
        rows, depth = shape
        kind, first, count = self.shape.scale[0], self.shape.scale[which], self.how.scales
        words = np.ascontiguousarray(part.memory.cells[:, columns]).view(np.uint8).reshape(4, 32, -1, 4)
        words = words[..., first : first + count].swapaxes(1, 2).reshape(4, -1, count)[:, :rows]
        quarters = words.reshape(self.split, -1, rows, count)[n]
        if which == 2 and (quarters != quarters[0]).any():
            what = f"{self.what} with scales of B that differ between the four parts of 32 lanes"
            rule = "All four parts of tensor memory have the same scales (PTX 9.7.16)."
            cure = "Bring them by tcgen05.cp.32x128b.warpx4, which writes all four."
            raise self.thread.fault_at(faults.BadTensorOperand, what, self.site, rule=rule, cure=cure)
        return np.repeat(quarters[0].view(kind).astype(np.float64), depth // count, axis=1)


def _blocks(thread, what, group):
    """The blocks that an instruction of this cta_group is for."""
    tensor_memory_of(thread.block).check_group(thread, group)
    if group == 1:
        return [thread.block]
    thread.pause()
    return thread.block.cluster.pair_of(thread, what)


def _bytes(block):
    return np.frombuffer(block.shared.data, np.uint8)


def _read(thread, pipe, home, name, descriptor, places, transposed, size, what):
    with astray(home.shared, name, descriptor, places, transposed, size):
        read_matrix(thread, pipe.component, places, what, pipe.number, [thread.tid], home)


def _launch(thread, pipe, what, address, deliver):
    """An operation in flight: ``deliver()`` does it, behind what its thread has issued before."""
    copy, before, block = Copy(thread, what, address, 0, pipe.number), pipe.copies[-1:], thread.block
    pipe.copies.append(copy)

    def land():
        for earlier in before:
            if not earlier.landed:
                block.land(earlier)
        deliver()
        copy.landed = True

    block.launch_copy(copy, land)


def copy(thread, address, descriptor, shape, group=1):
    """``tcgen05.cp``: rows of shared memory to lanes of tensor memory, in each block."""
    (lane, first), (wide, rows), what = split_address(address), COPIES[shape], f"tcgen05.cp.{shape}"
    if lane:
        cure = "It takes all lanes, from lane 0 on: give the address of the columns."
        raise thread.fault(faults.BadTensorOperand, f"{what} from lane {lane} on", cure=cure)
    descriptor = _as_wgmma(thread, "the source", descriptor)
    places, columns = addresses(descriptor, rows.max() + 1, False, 1)[:, :wide], slice(first, first + wide // 4)
    blocks, pipe = _blocks(thread, what, group), tensor_memory_of(thread.block).pipe("mma", thread.tid)
    for block in blocks:
        _read(thread, pipe, block, "the source", descriptor, places, False, 1, what)
        made = Access("cp", what, thread, thread.site(), pipe, pipe.number, tuple(range(LANES)), columns)
        tensor_memory_of(block).access(made, writes=True)
    thread.time += wide / 4 * COST.shared_access

    def deliver():
        for block in blocks:
            data = np.ascontiguousarray(_bytes(block)[places]).view(np.uint32)
            tensor_memory_of(block).cells[:, columns] = data[rows]

    _launch(thread, pipe, what, int(places.min()), deliver)


def commit(thread, address, group=1):
    """``tcgen05.commit``: an arrival on a barrier, when all that the thread has issued is over."""
    address = int(address) & WORD
    if rank := address >> RANK:  # another block's
        thread.block.cluster.commit_products(thread, address, 1 << rank - 1, group)
    else:
        commit_to(thread, [thread.block.barriers.find(thread, address)], group)


def commit_to(thread, barriers, group):
    """The same on each of some barriers of the cluster."""
    block, memory, clock = thread.block, tensor_memory_of(thread.block), thread.clock
    memory.check_group(thread, group)
    pipe = memory.pipe("mma", thread.tid)
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
        barrier.committed = arrival.site
        barrier.keep(thread, arrival, clock, facts, landing)

    for barrier in barriers:
        phase = barrier.promise(thread, False)[0] if barrier.block is block else barrier.phase
        arrival = Copy(thread, "products (tcgen05.commit)", barrier.address, 0, phase, barrier)
        block.launch_copy(arrival, functools.partial(land, barrier, arrival))
