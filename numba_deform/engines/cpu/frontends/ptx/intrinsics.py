"""Instructions that this package has an intrinsic for are found by the intrinsic's own PTX text (``ptx/``):
barriers, copies, fences, matrices, clusters. What the engine does about them stands there alone."""

import functools
import importlib
import pkgutil
import re
from dataclasses import dataclass

from numba import types

from ..... import device
from .....device.ptx import Intrinsic
from .parser import STATEMENT, atoms, split

# First words of instructions that are looked for among the intrinsics; others are rows of ``instructions``.
ROOTS = (
    "mbarrier", "cp", "fence", "barrier", "bar", "ldmatrix", "stmatrix", "mma", "elect", "mapa",
    "tensormap", "griddepcontrol", "prefetch", "createpolicy",
)  # fmt: skip
SIGNAL = ("st", "red")  # these where they are .async
HEX = re.compile(r"0[xX][0-9a-fA-F]+")  # texts of intrinsics have decimal numbers
NAMES = {types.uint32: "u32", types.int32: "s32", types.uint64: "u64", types.float32: "f32"}


@dataclass(frozen=True)
class Pattern:
    """An instruction as an intrinsic's text has it. ``operands``: for each atom the parameter's number, ("out",
    number of the word), a literal text, or None where anything may stand that is thrown away."""

    intrinsic: Intrinsic
    operands: tuple
    kinds: tuple  # PTX types of the parameters
    results: tuple  # and of the results; pred where the text makes a number of a predicate


def key_of(opcode):
    """An opcode without what is the default, or says nothing about what is done."""
    parts = ["shared::cta" if p == "shared" else p for p in opcode.split(".")]
    drop = {"sync", "aligned", "weak", "tile", "b1024"}
    if parts[0] in ("atom", "red"):
        drop |= {"relaxed", "gpu"}
    if parts[0] == "mbarrier" or parts[:2] == ["barrier", "cluster"]:
        drop |= {"release", "acquire", "cta", "b64"} | ({"relaxed"} if "expect_tx" in parts[1:2] else set())
    if parts[:3] == ["cp", "async", "bulk"] and "mbarrier::complete_tx::bytes" in parts:
        first = next((i for i, p in enumerate(parts) if p.startswith("shared")), 0)
        if "global" in parts[first:] and first:  # a block's own memory is its cluster's, too
            parts[first] = "shared::cluster"
    if parts[0] in ("ldmatrix", "stmatrix"):
        parts[1:] = sorted(parts[1:])  # they come in either order
    if parts[:2] == ["st", "async"]:
        parts = [re.sub(r"^[suf](32|64)$", r"b\1", p) for p in parts]
    if parts[:2] == ["tensormap", "cp_fenceproxy"]:
        parts = ["gpu" if p in ("cta", "cluster", "sys") else p for p in parts]
    return ".".join(p for p in parts if p not in drop)


def all_intrinsics():
    """(name, intrinsic) of those that have a PTX text, without the guarded form's."""
    for module in pkgutil.iter_modules(device.__path__):
        for name, value in vars(importlib.import_module(f"{device.__name__}.{module.name}")).items():
            if isinstance(value, Intrinsic) and value.ptx and module.name != "guard":
                yield name, value


@functools.cache
def patterns():
    """{key of an opcode: its patterns}"""
    found = {}
    for name, value in all_intrinsics():
        if pattern := _pattern(value):
            found.setdefault(pattern[0], {})[name] = pattern[1]
    return {key: list(named.values()) for key, named in found.items()}


def _pattern(intrinsic):
    """(key, Pattern) of an intrinsic whose text is one instruction, else None."""
    text, roles, rest, predicate = intrinsic.ptx, {}, [], None
    names = [name for _, name in text.parameters]
    for statement in text.statements:
        load = re.fullmatch(r"ld\.param\.\w+ (\w+), \[(\w+)\]", statement)
        store = re.fullmatch(r"st\.param\.\w+ \[\w+(?:\+(\d+))?\], (\w+)", statement)
        widened = re.fullmatch(r"cvt\.u16\.u32 (\w+), (\w+)", statement)
        chosen = re.fullmatch(r"selp\.b32 (\w+), 1, 0, (\w+)", statement)
        if load:
            roles[load[1]] = names.index(load[2])
        elif store:
            word = int(store[1] or 0) // 4
            roles[predicate if predicate else store[2]] = "out", word
        elif widened:
            roles[widened[1]] = roles[widened[2]]
        elif chosen:
            predicate = chosen[2]
        elif not statement.startswith(".reg") and statement != "ret":
            rest.append(STATEMENT.fullmatch(statement))
    if len(rest) != 1 or rest[0][3].partition(".")[0] not in (*ROOTS, *SIGNAL):
        return None
    operands = tuple(roles.get(a, a if a.isdigit() else None) for a in atoms(split(rest[0][4])))
    result = intrinsic.signature.return_type
    kinds = [NAMES[result.dtype]] * result.count if hasattr(result, "count") else [NAMES.get(result)]
    kinds = ["pred"] if predicate else [k for k in kinds if k]
    return key_of(rest[0][3]), Pattern(
        intrinsic, operands, tuple(NAMES.get(k) for k in intrinsic.signature.args), tuple(kinds))  # fmt: skip


def find(opcode, operands):
    """(the Pattern of an instruction, its atoms), or None where there is no intrinsic for it. A cache policy is
    left aside where no intrinsic takes it: it changes no result."""
    key, given = key_of(opcode), [str(int(a, 16)) if HEX.fullmatch(a) else a for a in atoms(operands)]
    for fits in (_fits, _fits_unused):
        for pattern in patterns().get(key, ()):
            if fits(pattern.operands, given):
                return pattern, given
    if ".L2::cache_hint" in key:
        return find(opcode.replace(".L2::cache_hint", ""), operands[:-1])
    return None


def _fits(roles, given):
    """Whether what is thrown away is the same, and literals are."""
    pairs = list(zip(roles, given, strict=False))
    same = all((role is None) == (atom == "_") for role, atom in pairs)
    return same and _fits_unused(roles, given)


def _fits_unused(roles, given):
    literals = ((role, atom) for role, atom in zip(roles, given, strict=False) if isinstance(role, str))
    return len(roles) == len(given) and all(role == atom for role, atom in literals)
