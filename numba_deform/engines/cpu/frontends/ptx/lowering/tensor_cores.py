"""tcgen05: tensor memory and the products of the 5th generation tensor cores. Shift, sparsity, factors of 6
bits and some forms of cp are refused by name."""

import re

from ....async_units.tcgen05 import COPIES, KINDS
from ....memory.scalars import WORD
from ..parser import BadPtx
from .accesses import words_of

MOST = {"32x32b": 128, "16x64b": 128, "16x32bx2": 128, "16x128b": 64, "16x256b": 32}  # .xN of a shape
EACH = {"16x128b": 2, "16x256b": 4}  # registers of a lane for .x1, if not one
MULTICAST = "multicast::cluster"


def of_leader(values, i):
    """The statements of ``and`` where it makes of an address that of the same place in a pair's even block:
    addresses of other blocks have other bits here than on hardware (``memory.cluster_memory``)."""
    if i.opcode != "and.b32" or not re.fullmatch(r"-?\d\w*", i.operands[2]):
        return None
    target, address, mask = i.operands
    mask, users = int(mask, 0) & WORD, values.uses.get(target, ())
    if mask >> 24 != 0xFE or not users or any(u.root not in ("cp", "mbarrier", "tcgen05") for u in users):
        return None
    return [values.set(target, "u32", f"of_leader({values.value(address, 'u32')} & {mask | 1 << 24:#x})")]


def do_tcgen05(values, i):
    what, words = i.parts[1], set(i.parts[2:])
    make = FORMS.get(what)
    if make is None:
        raise BadPtx(i.opcode)
    known, needed, write = make
    groups = {"cta_group::1", "cta_group::2"} & words
    if words - groups - known - needed or needed - words or len(groups) != (what not in UNGROUPED):
        raise BadPtx(i.opcode)
    return write(values, i)


def _group(i):
    return 1 + ("cta_group::2" in i.parts)


def _alloc(values, i):
    place, columns = i.operands
    return [f"tcgen05_alloc({values.address(place, 'shared')}, {values.value(columns, 'u32')}, {_group(i)})"]


def _dealloc(values, i):
    return [f"tcgen05_dealloc({', '.join(values.value(x, 'u32') for x in i.operands)}, {_group(i)})"]


def _relinquish(values, i):
    return [f"tcgen05_relinquish({_group(i)})"]


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
    call = f"tcgen05_ld({_moved(values, i, i.operands[1], registers)}, {values.program.is_tritons})"
    return values.set_all(registers, "b32", call)


def _st(values, i):
    registers = words_of(i.operands[-1])
    given = "".join(f"{values.value(r, 'b32')}, " for r in registers)
    return [f"tcgen05_st({_moved(values, i, i.operands[0], registers)}, ({given}))"]


def _mma(values, i):
    kind = next(p.removeprefix("kind::") for p in i.parts if p.startswith("kind::"))
    d, a, b, descriptor, *more = i.operands
    ws, scales, group = "ws" in i.parts, _scales(i, kind), _group(i)
    places = "".join(f"{values.address(more.pop(0), 'shared')}, " for _ in range(2 if scales else 0))
    left_out = words_of(more.pop(0)) if more[0].startswith("{") else []
    adds, *shrinks = more
    fits = values.classes.get(adds.lstrip("!")) == "pred" and len(left_out) in (0, 4 * group)
    fits = fits and len(shrinks) <= (kind in ("f16", "tf32") and not ws) and not (left_out and (ws or scales))
    if not fits or ws and (scales or group == 2):
        raise BadPtx(f"{i.opcode} with {', '.join(i.operands[4:])}")
    in_tensor = a.startswith("[")
    a = values.address(a, "shared") if in_tensor else values.value(a, "u64")
    given = f"{values.address(d, 'shared')}, {a}, {values.value(b, 'u64')}, "
    given += f"{values.value(descriptor, 'u32')}, {values.value(adds, 'pred')}, {in_tensor}, "
    left_out = "".join(f"{values.value(word, 'u32')}, " for word in left_out)
    how = f"({group}, {ws}, {scales}, ({places}), {int(shrinks[0], 0) if shrinks else 0})"
    return [f"tcgen05_mma({kind!r}, {given}({left_out}), {how})"]


def _scales(i, kind):
    """How many scales a row of one product has; 0 without block_scale."""
    known, said = SCALES.get(kind, {}), [p for p in i.parts if p in SCALE_WORDS] or [""]
    if ("block_scale" in i.parts) != bool(known) or known and (len(said) > 1 or said[0] not in known):
        raise BadPtx(i.opcode)
    return known[said[0]] if known else 0


def _cp(values, i):
    said = sorted(p for p in i.parts[2:] if not p.startswith("cta_group"))  # Triton has the shape last
    shape = next((shape for shape in COPIES if sorted(shape.split(".")) == said), None)
    if shape is None:
        raise BadPtx(i.opcode)
    address, descriptor = i.operands
    given = f"{values.address(address, 'shared')}, {values.value(descriptor, 'u64')}, {shape!r}, {_group(i)}"
    return [f"tcgen05_cp({given})"]


def _commit(values, i):
    bar, *mask = i.operands
    if len(mask) != (MULTICAST in i.parts):
        raise BadPtx(i.opcode)
    given = [values.address(bar, "shared"), *(values.value(x, "u16") for x in mask), str(_group(i))]
    return [f"tcgen05_commit{'_to' * len(mask)}({', '.join(given)})"]


ALL_LANES = {"sync", "aligned"}
COLLECTORS = {f"collector::{of}::{use}" for of in ("a", "b0", "b1", "b2", "b3")
              for use in ("fill", "use", "lastuse", "discard")}  # hints  # fmt: skip
# Kind -> {what the opcode says, or nothing: scales in a row of one product}.
SCALES = {
    "mxf8f6f4": {"": 1, "scale_vec::1X": 1, "block32": 1}, "mxf4": {"": 2, "scale_vec::2X": 2, "block32": 2},
    "mxf4nvf4": {"scale_vec::2X": 2, "block32": 2, "scale_vec::4X": 4, "block16": 4},
}  # fmt: skip
SCALE_WORDS = {word for words in SCALES.values() for word in words if word}
MOVES = {*MOST, "pack::16b", "unpack::16b", *(f"x{1 << n}" for n in range(8))}
# What follows tcgen05 -> (words of the opcode that may follow, those that have to, what writes it).
FORMS = {
    "alloc": ({"shared::cta"}, {"b32", *ALL_LANES}, _alloc),
    "dealloc": (set(), {"b32", *ALL_LANES}, _dealloc),
    "relinquish_alloc_permit": (set(), ALL_LANES, _relinquish),
    "ld": (MOVES, {"b32", *ALL_LANES}, _ld), "st": (MOVES, {"b32", *ALL_LANES}, _st),
    "wait::ld": (set(), ALL_LANES, lambda values, i: ["tcgen05_wait('ld')"]),
    "wait::st": (set(), ALL_LANES, lambda values, i: ["tcgen05_wait('st')"]),
    # An acquire or a release orders tensor memory as well (ENGINE.md): these are for relaxed ones.
    "fence::before_thread_sync": (set(), set(), lambda values, i: ["tcgen05_fence(True)"]),
    "fence::after_thread_sync": (set(), set(), lambda values, i: ["tcgen05_fence(False)"]),
    "mma": ({"ws", "block_scale", *SCALE_WORDS, *COLLECTORS, *(f"kind::{k}" for k in KINDS)}, set(), _mma),
    "cp": ({*".".join(COPIES).split(".")}, set(), _cp),
    "commit": ({"shared::cluster", MULTICAST}, {"mbarrier::arrive::one", "b64"}, _commit),
}  # fmt: skip
UNGROUPED = {"ld", "st", "wait::ld", "wait::st", "fence::before_thread_sync", "fence::after_thread_sync"}
ROWS = {"tcgen05": do_tcgen05}
