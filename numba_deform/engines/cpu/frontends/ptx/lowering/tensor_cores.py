"""tcgen05: tensor memory and the products of the 5th generation tensor cores, of one block. Pairs of blocks
(cta_group::2), copies from shared memory (cp), shift, .ws, block scaling and sparsity are refused by name."""

import re

from ....async_units.tcgen05 import KINDS
from ..parser import BadPtx
from .accesses import words_of

MOST = {"32x32b": 128, "16x64b": 128, "16x32bx2": 128, "16x128b": 64, "16x256b": 32}  # .xN of a shape
EACH = {"16x128b": 2, "16x256b": 4}  # registers of a lane for .x1, if not one
GROUP, MULTICAST = "cta_group::1", "multicast::cluster"


def do_tcgen05(values, i):
    what, words = i.parts[1], set(i.parts[2:])
    make = FORMS.get(what)
    if make is None:
        raise BadPtx(i.opcode)
    known, needed, write = make
    if words - known - needed or needed - words:
        raise BadPtx(i.opcode)
    return write(values, i)


def _alloc(values, i):
    place, columns = i.operands
    return [f"tcgen05_alloc({values.address(place, 'shared')}, {values.value(columns, 'u32')})"]


def _dealloc(values, i):
    return [f"tcgen05_dealloc({', '.join(values.value(x, 'u32') for x in i.operands)})"]


def _moved(values, i, address, registers):
    """The operands of a load or store: address, shape, how often, whether packed, where the other half is."""
    shape = next((p for p in i.parts if p in MOST), None)
    count = next((int(p[1:]) for p in i.parts if re.fullmatch(r"x\d+", p)), 0)
    halves, packed = i.operands[1 if i.parts[1] == "st" else 2 :], any(p.endswith("::16b") for p in i.parts)
    split = [o for o in halves if not o.startswith("{")]
    fits = shape and count.bit_count() == 1 and count <= MOST[shape]
    fits = fits and len(registers) == count * EACH.get(shape, 1)
    if not fits or (shape == "16x32bx2") != len(split) or packed and shape != "32x32b":
        raise BadPtx(f"{i.opcode} with {len(registers)} registers")
    offset = int(split[0], 0) if split else 0
    return f"{values.address(address, 'shared')}, {shape!r}, {count}, {packed}, {offset}"


def _ld(values, i):
    registers = words_of(i.operands[0])
    call = f"tcgen05_ld({_moved(values, i, i.operands[1], registers)})"
    return values.set_all(registers, "b32", call)


def _st(values, i):
    registers = words_of(i.operands[-1])
    given = "".join(f"{values.value(r, 'b32')}, " for r in registers)
    return [f"tcgen05_st({_moved(values, i, i.operands[0], registers)}, ({given}))"]


def _mma(values, i):
    kind = next(p.removeprefix("kind::") for p in i.parts if p.startswith("kind::"))
    d, a, b, descriptor, *more = i.operands
    left_out = words_of(more.pop(0)) if more[0].startswith("{") else []
    if len(more) != 1 or values.classes.get(more[0].lstrip("!")) != "pred" or len(left_out) not in (0, 4):
        raise BadPtx(f"{i.opcode} with {', '.join(i.operands[4:])}")  # a scale of D
    in_tensor = a.startswith("[")
    a = values.address(a, "shared") if in_tensor else values.value(a, "u64")
    given = f"{values.address(d, 'shared')}, {a}, {values.value(b, 'u64')}, "
    given += f"{values.value(descriptor, 'u32')}, {values.value(more[0], 'pred')}, {in_tensor}"
    given += "".join(f", {values.value(word, 'u32')}" for word in left_out)
    return [f"tcgen05_mma({kind!r}, {given})"]


def _commit(values, i):
    bar, *mask = i.operands
    if len(mask) != (MULTICAST in i.parts):
        raise BadPtx(i.opcode)
    given = [values.address(bar, "shared"), *(values.value(x, "u16") for x in mask)]
    return [f"tcgen05_commit{'_to' * len(mask)}({', '.join(given)})"]


ALL_LANES = {"sync", "aligned"}
COLLECTORS = {f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard")}  # hints
MOVES = {*MOST, "pack::16b", "unpack::16b", *(f"x{1 << n}" for n in range(8))}
# What follows tcgen05 -> (words of the opcode that may follow, those that have to, what writes it).
FORMS = {
    "alloc": ({"shared::cta"}, {GROUP, "b32", *ALL_LANES}, _alloc),
    "dealloc": (set(), {GROUP, "b32", *ALL_LANES}, _dealloc),
    "relinquish_alloc_permit": (set(), {GROUP, *ALL_LANES}, lambda values, i: ["tcgen05_relinquish()"]),
    "ld": (MOVES, {"b32", *ALL_LANES}, _ld), "st": (MOVES, {"b32", *ALL_LANES}, _st),
    "wait::ld": (set(), ALL_LANES, lambda values, i: ["tcgen05_wait('ld')"]),
    "wait::st": (set(), ALL_LANES, lambda values, i: ["tcgen05_wait('st')"]),
    # An acquire or a release orders tensor memory as well (ENGINE.md): these are for relaxed ones.
    "fence::before_thread_sync": (set(), set(), lambda values, i: ["tcgen05_fence(True)"]),
    "fence::after_thread_sync": (set(), set(), lambda values, i: ["tcgen05_fence(False)"]),
    "mma": ({*COLLECTORS, *(f"kind::{kind}" for kind in KINDS)}, {GROUP}, _mma),
    "commit": ({"shared::cluster", MULTICAST}, {GROUP, "mbarrier::arrive::one", "b64"}, _commit),
}  # fmt: skip
ROWS = {"tcgen05": do_tcgen05}
