"""Instructions that do more than compute: accesses to memory, barriers, what lanes do together, calls. Those
that have an intrinsic of this package (``intrinsics``) call that."""

import re

from ...async_units import warp_mma
from ...async_units.wgmma_matrices import FORMS as PRODUCTS
from .instructions import BYTES, do_cvt, do_cvta, do_mov, do_set, do_setp, kinds_of, only
from .intrinsics import ROOTS, find
from .lowering import accesses, arithmetic, synchronisation, tensor_cores, wmma
from .lowering.accesses import without_hints, words_of
from .lowering.arithmetic import do_cvt_form, do_setp_pair
from .parser import BadPtx, Instruction, atoms, split
from .values import FLOATS

IGNORED = {"prefetch", "prefetchu", "brkpt", "applypriority", "pmevent"}  # change nothing that is looked at

GENERIC = ("mbarrier", "ldmatrix", "stmatrix")  # these may have a generic address


def by_intrinsic(values, i):
    """The call of the intrinsic whose text the instruction is; None where there is none."""
    signals = i.root in ("st", "red") and "async" in i.parts
    if not (signals or i.root in ROOTS) or i.opcode.startswith("bar.warp"):
        return None
    opcode, in_shared = i.opcode, any(p.startswith("shared") for p in i.parts)
    if i.root in GENERIC and not in_shared and "pending_count" not in i.parts:
        opcode += ".shared::cta"  # a generic address, which is one of shared memory
    found = find(opcode, i.operands)
    if found is None:
        return None
    pattern, given = found
    args, results = [None] * len(pattern.kinds), ["_"] * len(pattern.results)
    for role, atom in zip(pattern.operands, given, strict=True):
        if isinstance(role, int):
            kind = pattern.kinds[role]
            space = "shared" if kind == "u32" else ""
            args[role] = values.address(atom, space) if "+" in atom else values.value(atom, kind)
        elif isinstance(role, tuple):
            results[role[1]] = atom
        elif role is None and atom in values.uses:  # a result that the intrinsic does not give
            return None
    call = f"{pattern.intrinsic.__name__}({', '.join(args)})"
    if len(results) > 1:
        names = [values.temporary() for _ in results]
        triples = zip(results, pattern.results, names, strict=True)
        return [f"{', '.join(names)} = {call}", *(values.set(r, k, n) for r, k, n in triples if r != "_")]
    if results:
        kind = pattern.results[0]
        return [values.set(results[0], kind, f"{call} != 0" if kind == "pred" else call)]
    return [call]


# --- what threads do together -------------------------------------------------------------------------
def _pair(values, i, kind, call):
    """The statements by which a register, and perhaps a predicate behind ``|``, take a call's two results."""
    t, p = values.temporary(), values.temporary()
    target, *truth = i.operands[0].split("|")
    taken = [(target, kind, t), *((x, "pred", p) for x in truth)]
    return [f"{t}, {p} = {call}", *(values.set(r, k, x) for r, k, x in taken if r != "_")]


def do_shfl(values, i):
    only(i, ("sync", "idx", "up", "down", "bfly"))
    target, *inside = i.operands[0].split("|")
    a, b, c, mask = (values.value(x, "u32") for x in i.operands[1:])
    if not inside and i.parts[2] == "bfly" and i.operands[3] == "31":  # the most frequent one, without a detour
        return [values.set(target, "b32", f"cuda.shfl_xor_sync({mask}, {a}, {b})")]
    return _pair(values, i, "b32", f"shuffle({i.parts[2]!r}, {a}, {b}, {c}, {mask})")


def do_elect(values, i):
    return _pair(values, i, "u32", f"elected({values.value(i.operands[1], 'u32')})")


def do_match(values, i):  # .any is a row
    only(i, ("all", "sync"))
    value, mask = values.value(i.operands[1], kinds_of(i)[-1]), values.value(i.operands[2], "u32")
    return _pair(values, i, "u32", f"cuda.match_all_sync({mask}, {value})")


def do_redux(values, i):
    how, kind = i.parts[2], kinds_of(i)[-1]
    options = tuple(p for p in i.parts[3:] if p != kind)
    only(i, ("sync", how, *(("abs", "NaN") if kind == "f32" else ())))
    call = f"reduced_floats({how!r}, {options}" if kind == "f32" else f"reduced({how!r}"
    if how not in (("min", "max") if kind == "f32" else ("add", "min", "max", "and", "or", "xor")):
        raise BadPtx(i.opcode)
    text = f"{call}, {values.value(i.operands[1], kind)}, {values.value(i.operands[2], 'u32')})"
    return [values.set(i.operands[0], kind, text)]


def do_movmatrix(values, i):
    only(i, ("sync", "aligned", "m8n8", "trans"))
    return [values.set(i.operands[0], "b32", f"transposed({values.value(i.operands[1], 'b32')})", True)]


def do_cp(values, i):
    parts, o = i.parts, i.operands
    if parts[2:4] == ["bulk", "wait_group"]:
        return [f"cp_async_bulk_wait_group{'_read' * ('read' in parts)}({values.value(o[0], 'u32')})"]
    if parts[2] == "wait_group":
        return [f"cp_async_wait_group({values.value(o[0], 'u32')})"]
    if parts[2] in ("ca", "cg"):
        return _cp_async(values, i)
    if "cta_group::1" in parts:  # as without it
        rest = Instruction(i.opcode.replace(".cta_group::1", ""), o, None, i.line)
        return by_intrinsic(values, rest) or do_cp(values, rest)
    if "tile::scatter4" in parts or "tile::gather4" in parts and "prefetch" in parts:
        return _rows(values, i)
    pair, several, rows = (word in parts for word in ("cta_group::2", "multicast::cluster", "tile::gather4"))
    if (pair or rows or "im2col" in parts and several) and {*without_hints(i)[1]} <= LOADS:
        place, (bar, *more) = atoms(o[1:2]), without_hints(i)[0][2:]
        coords, offsets = (
            "".join(f"{values.value(x, 'u32')}, " for x in numbers)
            for numbers in (place[1:], atoms(more[: "im2col" in parts]))
        )
        if len(place) != (6 if rows else 1 + int(parts[4][0])):
            raise BadPtx(f"{i.opcode} of {len(place) - 1} coordinates")
        where = f"{values.address(o[0], 'shared')}, {values.value(place[0], 'u64')}, ({coords})"
        mask = values.value(more[-1], "u32") if several else None
        return [f"load_box({where}, {values.address(bar, 'shared')}, ({offsets}), {mask}, {pair}, {rows})"]
    raise BadPtx(f"{i.opcode} {', '.join(o)}")


LOADS = {"async", "bulk", "tensor", *(f"{n}d" for n in range(1, 6)), "shared::cluster", "shared::cta", "global",
         "tile", "tile::gather4", "im2col", "mbarrier::complete_tx::bytes", "multicast::cluster",
         "cta_group::2"}  # fmt: skip


def _rows(values, i):
    """Four rows of a tensor, each at a place of its own, are stored; or a hint is given of them."""
    o, words = without_hints(i)
    place, *coords = atoms(o[:1])
    if len(coords) != 4 + 1 or {*words} - LOADS - {"tile::scatter4", "bulk_group", "prefetch", "L2"}:
        raise BadPtx(i.opcode)
    if "prefetch" in words:
        return ["pass"]
    coords = ", ".join(values.value(x, "u32") for x in coords)
    return [f"store_rows({values.value(place, 'u64')}, ({coords}), {values.address(o[1], 'shared')})"]


def _cp_async(values, i):
    """``dst, src, width``, and how many bytes come from the source, or whether none do."""
    (dst, src, width, *more), words = without_hints(i)
    whole = Instruction(".".join(["cp", *words]), [dst, src, width, width], None, i.line)
    if not more and (made := by_intrinsic(values, whole)):
        return made
    width = int(width, 0)
    if not more:
        size = str(width)
    elif values.classes.get(more[0].lstrip("!")) == "pred":
        size = f"0 if {values.value(more[0], 'pred')} else {width}"
    else:
        size = values.value(more[0], "u32")
    return [f"copy_async({values.address(dst, 'shared')}, {values.address(src, '')}, {size}, {width})"]


# --- products of warpgroups -----------------------------------------------------------------------------
def do_wgmma(values, i):
    what, o = i.parts[1], i.operands
    if what == "fence":
        return ["warpgroup_fence()"]
    if what == "commit_group":
        return ["warpgroup_commit()"]
    if what == "wait_group":
        return [f"warpgroup_wait({int(o[0], 0)})"]
    if i.parts[2:4] != ["sync", "aligned"]:
        raise BadPtx(i.opcode)
    limit, (shape, *types) = "satfinite" in i.parts, [p for p in i.parts[4:] if p != "satfinite"]
    form, (columns, depth) = PRODUCTS.get(tuple(types)), map(int, re.match(r"m64n(\d+)k(\d+)$", shape).groups())
    sums = words_of(o[0])
    if form is None or depth != form.depth or columns % 8 or not 8 <= columns <= 256:
        raise BadPtx(i.opcode)
    if len(sums) != columns // (4 if form.sums == "f16" else 2):
        raise BadPtx(f"{i.opcode} with {len(sums)} registers of sums,")
    kind = "f32" if form.sums == "f32" else "b32"
    held = ", ".join(values.value(r, kind) for r in sums)
    in_registers = o[1].startswith("{")
    words = "".join(f"{values.value(r, 'b32')}, " for r in words_of(o[1])) if in_registers else ""
    a, b = ("None" if in_registers else values.value(o[1], "u64")), values.value(o[2], "u64")
    signs, layout = ([int(x, 0) for x in part] for part in (o[4:6], o[6:]))
    negated = tuple(x == -1 for x in signs) or (False, False)
    layout = tuple(map(bool, [0] * (2 - len(layout)) + layout))
    adds = values.value(o[3], "pred")
    factors = f"Factors({a}, {b}, {adds}, {negated}, {layout}, {limit})"
    call = f"warpgroup_product({tuple(types)}, {columns}, ({held},), ({words}), {factors})"
    return values.set_all(sums, kind, call)


# --- products of warps ----------------------------------------------------------------------------------
def do_mma(values, i):
    """The shapes and types that no intrinsic has."""
    parts = i.parts[1:]
    shape = next((m for p in parts if (m := re.fullmatch(r"m(\d+)n8k(\d+)", p))), None)
    types = tuple(parts[-4:])
    known = {"sync", "aligned", "row", "col", "satfinite", *types}
    if shape is None or {*parts} - known - {shape[0]}:
        raise BadPtx(i.opcode)
    rows, depth = int(shape[1]), int(shape[2])
    if not warp_mma.has_form(rows, depth, types):
        raise BadPtx(i.opcode)
    of_factors = "f64" if types[1] == "f64" else "b32"
    of_sums = types[0] if types[0] in FLOATS else "b32"
    a, b, c = (f"({', '.join(values.value(r, kind) for r in words_of(o))},)" for o, kind in
               zip(i.operands[1:], (of_factors, of_factors, of_sums), strict=True))  # fmt: skip
    call = f"warp_product({rows}, {depth}, {types}, {a}, {b}, {c}, {'satfinite' in parts})"
    return values.set_all(words_of(i.operands[0]), of_sums, call)


# --- calls and the end ----------------------------------------------------------------------------------
def do_call(values, i):
    operands = [o for o in i.operands if o]
    results = split(operands.pop(0).strip("()")) if operands[0].startswith("(") else []
    name, args = operands[0], split(operands[1].strip("()")) if len(operands) > 1 else []
    if name in values.registers:
        raise BadPtx(f"a call through the register {name}, as of a function pointer,")
    given = ", ".join(map(values.buffer, args))
    if name == "__assertfail":
        return [f"assertion_failed({given})"]
    call = f"printed({given}, local)" if name == "vprintf" else f"{values.program.function(name)}({given})"
    return [f"{values.buffer(results[0])} = {call}" if results else call]


def do_cvt_any(values, i):
    rare = ("rz", "rm", "rp", "rna", "relu", "satfinite", "pack", "tf32", *BYTES)
    to, of = (*kinds_of(i), "", "")[:2]
    to_half = to in ("f16", "bf16") and "rn" in i.parts
    by_form = {*rare} & {*i.parts} or to_half and (of not in ("f32", "f16", "bf16") or "sat" in i.parts)
    return (do_cvt_form if by_form else do_cvt)(values, i)


def do_setp_any(values, i):
    return (do_setp_pair if kinds_of(i)[-1] in ("f16x2", "bf16x2") else do_setp)(values, i)


ROWS = {
    **accesses.ROWS, **synchronisation.ROWS, **arithmetic.ROWS, **tensor_cores.ROWS,
    "setp": do_setp_any, "set": do_set, "mov": do_mov, "cvta": do_cvta, "cvt": do_cvt_any, "shfl": do_shfl,
    "elect": do_elect, "match": do_match,
    "redux": do_redux, "movmatrix": do_movmatrix, "cp": do_cp, "call": do_call, "wgmma": do_wgmma,
    "mma": do_mma, "wmma": wmma.do_wmma,
    "nanosleep": lambda values, i: [f"cuda.nanosleep({values.value(i.operands[0], 'u32')})"],
    "trap": lambda values, i: ["trap('trap')"],
    "setmaxnreg": lambda values, i: [f"setmaxnreg_{i.parts[1]}({i.operands[0]})"],
}  # fmt: skip
