"""Instructions that do more than compute: accesses to memory, barriers, what lanes do together, calls. Those
that have an intrinsic of this package (``intrinsics``) call that."""

import re

from ...async_units.wgmma_matrices import FORMS as PRODUCTS
from .instructions import do_cvt, do_cvta, do_mov, do_set, do_setp, kinds_of, only
from .intrinsics import CLUSTER, ROOTS, find
from .parser import SIZES, BadPtx, Instruction, split
from .values import ADDRESS, bits_of, is_signed

ORDERS, SCOPES = ("relaxed", "acquire", "release", "acq_rel"), ("cta", "cluster", "gpu", "sys")
ATOMS = ("add", "inc", "dec", "min", "max", "and", "or", "xor", "exch", "cas")
IGNORED = {"prefetch", "prefetchu", "brkpt", "applypriority", "pmevent"}  # change nothing that is looked at
HINTS = re.compile(r"L[12]::|^(weak|nc|ca|cg|cs|lu|cv|wb|wt|v2|v4|param|global|const|local|shared(::cta)?)$")


def words_of(text):
    return [w.strip() for w in text.strip("{}").split(",")]


def by_intrinsic(values, i):
    """The call of the intrinsic whose text the instruction is; None where there is none."""
    of_cluster = i.root in CLUSTER and "shared::cluster" in i.parts
    vector = i.root in ("atom", "red") and {"v2", "v4"} & set(i.parts)
    if not (of_cluster or vector or i.root in ROOTS) or i.opcode.startswith("bar.warp"):
        return None
    found = find(i.opcode, i.operands)
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
        elif role is None and values.is_read(atom):  # a result that the intrinsic does not give
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


# --- memory -------------------------------------------------------------------------------------------
def space_of(i):
    space = next((p.partition("::")[0] for p in i.parts[1:] if p.partition("::")[0] in
                  ("shared", "global", "const", "local", "param")), "")  # fmt: skip
    return "global" if space == "const" else space


def order_of(i):
    """(order or None, whether it is wider than a block, whether that is weaker than acquire or release)"""
    volatile = "relaxed" if {"volatile", "mmio"} & set(i.parts) else None
    order = next((p for p in i.parts if p in ORDERS), volatile)
    scope = next((p for p in i.parts if p in SCOPES), "sys")
    if order and scope == "cluster":
        raise BadPtx(f"{i.opcode}: scope .cluster outside .shared::cluster")
    return order, scope != "cta", order == "relaxed"


def do_ld(values, i):
    kind, space = kinds_of(i)[-1], space_of(i)
    names, each = words_of(i.operands[0]), SIZES[kind]
    if {p for p in i.parts[1:] if not HINTS.search(p)} - {*ORDERS, *SCOPES, "volatile", "mmio", kind}:
        raise BadPtx(i.opcode)
    if space == "param":
        call = values.parameter(i.operands[1], kind, len(names))
    else:
        order, is_wide, relaxed = order_of(i)
        address = values.address(i.operands[1], space)
        if order is None or space == "local":
            more = ", True" if "nc" in i.parts else ""
            call = f"load({space!r}, {address}, {each}, {len(names)}, local{more})"
            if each == 4 and len(names) == 1 and space in ("shared", "global") and not more:
                call = f"load_word({space!r}, {address})"
        elif each != 4 or len(names) > 1:
            raise BadPtx(f"{i.opcode}: a load with an order of anything but 32 bits")
        else:
            call = f"load_flag({space!r}, {address}, {is_wide}, {relaxed})"
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
    kind, space = kinds_of(i)[-1], space_of(i)
    each, numbers = SIZES[kind], [values.value(x, f"b{bits_of(kind)}") for x in words_of(i.operands[1])]
    if {p for p in i.parts[1:] if not HINTS.search(p)} - {*ORDERS, *SCOPES, "volatile", "mmio", kind}:
        raise BadPtx(i.opcode)
    if space == "param":
        m = ADDRESS.match(i.operands[0].strip("[] "))
        return [f"store('local', {int(m[2] or 0)}, {each}, {values.buffer(m[1])}, {', '.join(numbers)})"]
    order, is_wide, relaxed = order_of(i)
    address = values.address(i.operands[0], space)
    if order is None and each == 4 and len(numbers) == 1 and space in ("shared", "global"):
        return [f"store_word({space!r}, {address}, {numbers[0]})"]
    if order is None or space == "local":
        return [f"store({space!r}, {address}, {each}, local, {', '.join(numbers)})"]
    if each != 4 or len(numbers) > 1:
        raise BadPtx(f"{i.opcode}: a store with an order of anything but 32 bits")
    return [f"store_flag({space!r}, {address}, {numbers[0]}, {is_wide}, {relaxed})"]


def do_atom(values, i):
    return _atomic(values, i, i.operands[0], i.operands[1:])


def do_red(values, i):
    return _atomic(values, i, "_", i.operands)


def _atomic(values, i, target, operands):
    kind, name = kinds_of(i)[-1], next((p for p in i.parts[1:] if p in ATOMS), None)
    only(i, (*ORDERS, *SCOPES, *ATOMS, "global", "shared", "shared::cta", "noftz"))
    if name is None or kind in ("b128", "f16", "bf16", "b16") or target.startswith("{"):
        raise BadPtx(i.opcode)
    order, is_wide, _ = order_of(i)
    given = [values.value(x, f"b{bits_of(kind)}") for x in operands[1:]]
    acquire, release = order in ("acquire", "acq_rel"), order in ("release", "acq_rel")
    space = space_of(i)
    call = f"atomic({name!r}, {kind!r}, {space!r}, {values.address(operands[0], space)}, {acquire}, {release}, "
    return [values.set(target, f"b{bits_of(kind)}", f"{call}{is_wide}, {', '.join(given)})")]


# --- what threads do together -------------------------------------------------------------------------
def do_bar(values, i):
    what = next((p for p in ("red", "arrive", "warp", "sync") if p in i.parts), None)
    only(i, ("sync", "arrive", "warp", "red", "cta", "aligned", "popc", "and", "or"))
    operands = i.operands
    if what == "warp":
        return [f"cuda.syncwarp({values.value(operands[0], 'u32')})"]
    if what == "red" and len(operands) == 3 and operands[1] == "0":
        how = next(p for p in ("popc", "and", "or") if p in i.parts)
        vote = f"cuda.syncthreads_{'count' if how == 'popc' else how}({values.value(operands[2], 'pred')})"
        return [values.set(operands[0], kinds_of(i)[-1], vote if how == "popc" else f"{vote} != 0")]
    if what == "sync" and operands == ["0"]:
        return ["cuda.syncthreads()"]
    if what not in ("sync", "arrive") or not 1 <= len(operands) <= 2 or what == "arrive" and len(operands) < 2:
        raise BadPtx(f"{i.opcode} {', '.join(operands)}")
    count = values.value(operands[1], "u32") if len(operands) > 1 else "block_threads()"
    return [f"bar_{what}({values.value(operands[0], 'u32')}, {count})"]


def do_shfl(values, i):
    only(i, ("sync", "idx", "up", "down", "bfly"))
    target, *inside = i.operands[0].split("|")
    a, b, c, mask = (values.value(x, "u32") for x in i.operands[1:])
    if not inside and i.parts[2] == "bfly" and i.operands[3] == "31":  # the most frequent one, without a detour
        return [values.set(target, "b32", f"cuda.shfl_xor_sync({mask}, {a}, {b})")]
    t, p = values.temporary(), values.temporary()
    made = [f"{t}, {p} = shuffle({i.parts[2]!r}, {a}, {b}, {c}, {mask})", values.set(target, "b32", t)]
    return made + [values.set(x, "pred", p) for x in inside]


def do_elect(values, i):
    target, chosen = i.operands[0].split("|")
    t, p = values.temporary(), values.temporary()
    made = [f"{t}, {p} = elected({values.value(i.operands[1], 'u32')})"]
    return made + [values.set(r, k, x) for r, k, x in ((target, "u32", t), (chosen, "pred", p)) if r != "_"]


def do_match(values, i):  # .any is a row
    only(i, ("all", "sync"))
    target, *same = i.operands[0].split("|")
    t, p = values.temporary(), values.temporary()
    value = values.value(i.operands[1], kinds_of(i)[-1])
    made = [f"{t}, {p} = cuda.match_all_sync({values.value(i.operands[2], 'u32')}, {value})"]
    return made + [values.set(target, "u32", t)] + [values.set(x, "pred", p) for x in same]


FENCES = {  # those without an intrinsic of their own name, or with one of Numba's
    "membar.cta": "cuda.threadfence_block()", "membar.gl": "cuda.threadfence()",
    "membar.sys": "cuda.threadfence()", "fence.sc.cta": "cuda.threadfence_block()",
    "fence.sc.gpu": "cuda.threadfence()", "fence.sc.sys": "cuda.threadfence()",
    "fence.acq_rel.sys": "fence_acq_rel_gpu()",
}  # fmt: skip


def do_fence(values, i):
    if i.opcode not in FENCES:
        raise BadPtx(i.opcode)
    return [FENCES[i.opcode]]


def do_cp(values, i):
    parts, o = i.parts, i.operands
    if parts[2:4] == ["bulk", "wait_group"]:
        return [f"cp_async_bulk_wait_group{'_read' * ('read' in parts)}({values.value(o[0], 'u32')})"]
    if parts[2] == "wait_group":
        return [f"cp_async_wait_group({values.value(o[0], 'u32')})"]
    if parts[2] in ("ca", "cg") and len(o) == 3:  # all bytes come from the source
        whole = Instruction(re.sub(r"\.L2::\w+$", "", i.opcode), [*o, o[2]], None, i.line)
        return by_intrinsic(values, whole) or _unknown(i)
    return _unknown(i)


def _unknown(i):
    raise BadPtx(f"{i.opcode} {', '.join(i.operands)}")


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


# --- calls and the end ----------------------------------------------------------------------------------
def do_call(values, i):
    operands = [o for o in i.operands if o]
    results = split(operands.pop(0).strip("()")) if operands[0].startswith("(") else []
    name, args = operands[0], split(operands[1].strip("()")) if len(operands) > 1 else []
    if name == "__assertfail":
        return ["trap('an assertion does not hold')"]
    call = f"{values.callee(name)}({', '.join(map(values.buffer, args))})"
    return [f"{values.buffer(results[0])} = {call}" if results else call]


def do_tensormap(values, i):
    """``tensormap.replace`` of an entry of a list, or of a field with few values: the intrinsics choose among
    texts of several instructions."""
    if i.parts[1] != "replace" or "shared::cta" not in i.parts:
        raise BadPtx(i.opcode)
    kinds = ["u32"] * (len(i.operands) - 2) + [kinds_of(i)[-1].replace("b", "u")]
    given = [values.value(x, kind) for x, kind in zip(i.operands[1:], kinds, strict=True)]
    return [f"tensormap_replace_{i.parts[3]}({values.address(i.operands[0], 'shared')}, {', '.join(given)})"]


ROWS = {
    "setp": do_setp, "set": do_set, "mov": do_mov, "cvta": do_cvta, "cvt": do_cvt, "ld": do_ld, "ldu": do_ld,
    "st": do_st, "atom": do_atom, "red": do_red, "bar": do_bar, "barrier": do_bar, "shfl": do_shfl,
    "elect": do_elect, "match": do_match, "fence": do_fence, "membar": do_fence, "cp": do_cp,
    "call": do_call, "wgmma": do_wgmma, "tensormap": do_tensormap,
    "nanosleep": lambda values, i: [f"cuda.nanosleep({values.value(i.operands[0], 'u32')})"],
    "trap": lambda values, i: ["trap('trap')"],
    "setmaxnreg": lambda values, i: [f"setmaxnreg_{i.parts[1]}({i.operands[0]})"],
}  # fmt: skip
