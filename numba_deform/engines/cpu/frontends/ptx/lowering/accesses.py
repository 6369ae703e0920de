"""Loads, stores and atomics of PTX, of any size, order and space, as calls of ``calls.memory``."""

import re

from ..instructions import kinds_of, only
from ..parser import SIZES, BadPtx
from ..values import ADDRESS, bits_of, is_signed

ORDERS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("cta", "cluster", "gpu", "sys")
ATOMS = ("add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas")
SPACES = ("shared::cluster", "shared", "global", "const", "local", "param")
VECTORS = {"v2": 2, "v4": 4, "v8": 8}
HINT = re.compile(r"L[12]::[\w:]+")
KNOWN = {*ORDERS, *SCOPES, *SPACES, *VECTORS, "shared::cta", "param::entry", "param::func", "weak", "volatile",
         "mmio", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt"}  # fmt: skip


def words_of(text):
    return [w.strip() for w in text.strip("{} ").split(",")]


def without_hints(i):
    """(the operands, without a cache policy, which changes no result; the opcode's words that are no hints)"""
    policy = any(p.endswith("L2::cache_hint") for p in i.parts)
    return i.operands[: -1 if policy else None], [p for p in i.parts[1:] if not HINT.match(p)]


def space_of(i):
    """The space of an access, "" of a generic address; a constant bank is read-only global memory here."""
    spaces = (p if p == "shared::cluster" else p.partition("::")[0] for p in i.parts[1:])
    space = next((p for p in spaces if p in SPACES), "")
    return "global" if space == "const" else space


def order_of(i):
    """(order or None, whether it is wider than a block, as Python, whether it is weaker than acquire or
    release)"""
    volatile = "relaxed" if {"volatile", "mmio"} & set(i.parts) else None
    order = next((p for p in i.parts if p in ORDERS), volatile)
    scope = next((p for p in i.parts if p in SCOPES), "sys" if volatile else "gpu")
    return order, "several_blocks()" if scope == "cluster" else str(scope != "cta"), order == "relaxed"


def do_ld(values, i):
    operands, words = without_hints(i)
    kind, space, names = kinds_of(i)[-1], space_of(i), words_of(operands[0])
    each = SIZES[kind]
    order, is_wide, relaxed = order_of(i)
    if {*words} - KNOWN - {kind} or each == 16 and (order or len(names) > 1 or space == "param"):
        raise BadPtx(i.opcode)
    if each == 16:
        more = ", True" if "nc" in i.parts else ""
        low, high = values.temporary(), values.temporary()
        made = f"{low}, {high} = load({space!r}, {values.address(operands[1], space)}, 8, 2, local{more})"
        return [made, values.set(names[0], "b128", f"{low} | {high} << 64", True)]
    if space == "param":
        call = values.parameter(operands[1], kind, len(names))
    else:
        address = values.address(operands[1], space)
        # A volatile load of numbers, no flag, is an ordinary one: what it takes has to be ordered by others.
        is_number = "volatile" in i.parts and not any(map(values.decides, names))
        if order is None or is_number or space == "local":
            more = ", True" if "nc" in i.parts else ""
            call = f"load({space!r}, {address}, {each}, {len(names)}, local{more})"
            if each == 4 and len(names) == 1 and space in ("shared", "global") and not more:
                call = f"load_word({space!r}, {address})"
        else:
            call = f"load_flag({space!r}, {address}, {each}, {len(names)}, local, {is_wide}, {relaxed})"
    taken = [values.temporary() for _ in names]
    made = [f"{', '.join(taken)} = {call}"] if len(names) > 1 else []
    for name, t in zip(names, taken, strict=True):
        text, top = t if len(names) > 1 else call, 1 << 8 * each - 1
        if is_signed(kind) and values.is_wider(name, kind):
            made.append(values.set(name, kind, f"({text} ^ {top:#x}) - {top:#x}"))
        elif name != "_" or text is call:
            made.append(values.set(name, f"b{8 * each}", text, exact=True))
    return made


def do_st(values, i):
    if "async" in i.parts:
        return _signal(values, i)
    if i.parts[1] == "bulk":
        only(i, ("bulk", "weak", "shared::cta"))
        if int(i.operands[2], 0):
            raise BadPtx(f"{i.opcode} of {i.operands[2]}, not of 0,")
        return [f"store_zeros({values.address(i.operands[0], 'shared')}, {values.value(i.operands[1], 'u64')})"]
    operands, words = without_hints(i)
    kind, space = kinds_of(i)[-1], space_of(i)
    each, numbers = SIZES[kind], [values.value(x, f"b{bits_of(kind)}") for x in words_of(operands[1])]
    order, is_wide, relaxed = order_of(i)
    if {*words} - KNOWN - {kind} or each == 16 and (order or len(numbers) > 1 or space == "param"):
        raise BadPtx(i.opcode)
    if each == 16:
        each, numbers = 8, [f"{numbers[0]} & {(1 << 64) - 1:#x}", f"{numbers[0]} >> 64"]
    given = ", ".join(numbers)
    if space == "param":
        m = ADDRESS.match(operands[0].strip("[] "))
        return [f"store('local', {int(m[2] or 0)}, {each}, {values.buffer(m[1])}, {given})"]
    address = values.address(operands[0], space)
    if order is None and each == 4 and len(numbers) == 1 and space in ("shared", "global"):
        return [f"store_word({space!r}, {address}, {given})"]
    if order is None or space == "local":
        return [f"store({space!r}, {address}, {each}, local, {given})"]
    return [f"store_flag({space!r}, {address}, {each}, local, {is_wide}, {relaxed}, {given})"]


def _signal(values, i):
    kind, numbers = kinds_of(i)[-1], words_of(i.operands[1])
    only(i, ("async", "weak", "shared::cluster", "mbarrier::complete_tx::bytes", *VECTORS))
    given = ", ".join(values.value(x, f"b{bits_of(kind)}") for x in numbers)
    places = [values.address(i.operands[n], "shared") for n in (0, 2)]
    return [f"store_and_signal({', '.join(places)}, {SIZES[kind]}, {given})"]


def do_atom(values, i):
    operands, words = without_hints(i)
    return _atomic(values, i, operands[0], operands[1:], words)


def do_red(values, i):
    if "async" in i.parts:
        return None
    operands, words = without_hints(i)
    return _atomic(values, i, "_", operands, words)


def _atomic(values, i, target, operands, words):
    kind, name = kinds_of(i)[-1], next((p for p in words if p in ATOMS), None)
    known = {*ORDERS, *SCOPES, *ATOMS, *VECTORS, *SPACES, "shared::cta", "noftz", kind}
    space, count = space_of(i), next((n for p, n in VECTORS.items() if p in words), 1)
    if name is None or {*words} - known or kind == "b128" or space and count > 1 and space != "global":
        raise BadPtx(i.opcode)
    order, is_wide, _ = order_of(i)
    given = [values.value(x, f"b{bits_of(kind)}") for o in operands[1:] for x in words_of(o)]
    place = f"{space!r}, {values.address(operands[0], space)}"
    orders = f"{order in ('acquire', 'acq_rel')}, {order in ('release', 'acq_rel')}, {is_wide}"
    call = f"atomic{'_vector' * (count > 1)}({name!r}, {kind!r}, {place}, {orders}, {', '.join(given)})"
    if count == 1 or target == "_":
        return [values.set(target, f"b{bits_of(kind)}", call)]
    return values.set_all(words_of(target), f"b{bits_of(kind)}", call)


def do_isspacep(values, i):
    only(i, ("shared", "shared::cta", "shared::cluster", "global", "local", "const", "param", "param::entry"))
    space = i.parts[1].partition("::")[0] if i.parts[1] != "shared::cluster" else i.parts[1]
    return [values.set(i.operands[0], "pred", f"is_space({space!r}, {values.value(i.operands[1], 'u64')})")]


def do_mapa(values, i):
    """Of generic addresses: the form for shared::cluster ones has an intrinsic."""
    only(i, ())
    a, rank = values.value(i.operands[1], "u64"), values.value(i.operands[2], "u32")
    return [values.set(i.operands[0], "u64", f"mapped({a}, {rank})", True)]


def do_getctarank(values, i):
    only(i, ("shared::cluster",))
    kind = "u32" if "shared::cluster" in i.parts else "u64"
    return [values.set(i.operands[0], "u32", f"rank_of({values.value(i.operands[1], kind)})", True)]


ROWS = {
    "ld": do_ld, "ldu": do_ld, "st": do_st, "atom": do_atom, "red": do_red, "isspacep": do_isspacep,
    "mapa": do_mapa, "getctarank": do_getctarank,
}  # fmt: skip
