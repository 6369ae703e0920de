"""``wgmma`` in machine code: Python is asked once for a warp or a warpgroup. As ``async_units.wgmma``.

Sums are memory of a thread's own. Behind the marks of a local array that may be the sums of a product stand two
words: its last access, as the number of fences that had been executed plus one, and the product that it
belongs to, as the entry in the clocks and the number of its group. Where an access or a product breaks a rule,
the kernel is interpreted."""

import functools

from llvmlite import ir
from numba import types

from ...async_units.wgmma import SIZES
from ..runtime import layout
from ..runtime.llvm_types import I32, I64, POINTER
from .ir_values import Local, NotLowered, Static, convert
from .matrices import ALL

SPARE = 16  # bytes of the two words
ZERO = ir.Constant(I32, 0), types.uint32
KIND = {"f16": ("f32", "f16", "f16"), "bf16": ("f32", "bf16", "bf16")}


def may_be_sums(array):
    """Whether a local array may be the accumulators of a product."""
    return array.kind == types.float32 and len(array.shape) == 1 and array.shape[0] in SIZES


def _word(body, array, number):
    place = body.builder.ptrtoint(array.written, I64)
    place = body.builder.add(place, ir.Constant(I64, array.shape[0] + 8 * number))
    return body.builder.inttoptr(place, POINTER)


def _now(body):
    return body.builder.add(body.maker.word("thread", layout.FENCES, I64), ir.Constant(I64, 1))


def touch(body, array):
    """An instruction that is no product reads or writes an element of what may be sums."""
    builder = body.builder
    product = builder.load(_word(body, array, 1), typ=I64, align=1)
    entry, phase = builder.lshr(product, ir.Constant(I64, 32)), builder.trunc(product, I32)
    seen = builder.inttoptr(body.maker.word("thread", layout.SEEN, I64), POINTER)
    seen = builder.load(builder.gep(seen, [entry], source_etype=I32), typ=I32)
    in_flight = builder.icmp_signed("<", seen, phase)
    owned = builder.icmp_unsigned("!=", product, ir.Constant(I64, 0))
    body.bail_out_if(builder.and_(owned, in_flight))
    builder.store(_now(body), _word(body, array, 0), align=1)


# --- the instructions ---------------------------------------------------------------------------------
def ask(body, name, *more):
    """``wgmma.fence``, ``commit_group`` or ``wait_group``, of a warp; ``more``: pairs (value, its type)."""
    body.ask(name, [ALL, *more], types.none, layout.TOGETHER, f"{name} at {body.site()}")


def issue(body, static, place, words):
    """What the threads of ``wgmma.mma_async`` are told. ``static``: for ``tensor_cores.issue``; ``place``: the
    address of the sums."""
    body.ask("meet", [ALL], types.none, layout.MEET, f"wgmma at {body.site()}")
    given = [(Static(static), None), (place, types.uint64), *words]
    return body.ask("issue", given, types.uint64, layout.WARPGROUP, f"at {body.site()}")


def _multiply(body, name, given):
    """One of the intrinsics ``wgmma_m64n.._f16`` and the like."""
    (sums, _), *rest = given
    size, kind, in_registers = name.split("k16_")[0], name.split("_")[2], name.endswith("_ra")
    columns, builder = int(size.partition("n")[2]), body.builder
    _check(sums, columns)
    *factors, scale_d, trans_a, trans_b = rest if not in_registers else (*rest[:-1], ZERO, rest[-1])
    adds = convert(builder, scale_d[0], types.uint32, types.boolean)
    fences = body.maker.word("thread", layout.FENCES, I64)
    body.bail_out_if(builder.icmp_unsigned("==", fences, ir.Constant(I64, 0)))
    last = builder.load(_word(body, sums, 0), typ=I64, align=1)
    body.bail_out_if(builder.icmp_unsigned("==", last, _now(body)))
    body.bail_out_if(builder.and_(adds, _has_unwritten(body, sums)))
    static = (f"wgmma.m64n{columns}k16.{kind}", KIND[kind], columns, in_registers, (False, False), False, False)
    words = [*factors, (adds, types.boolean), trans_a, trans_b]
    product = issue(body, static, builder.ptrtoint(sums.data, I64), words)
    builder.store(product, _word(body, sums, 1), align=1)
    body.maker.fill(sums.written, 1, columns // 2)


def _has_unwritten(body, sums):
    kind = ir.IntType(8 * sums.shape[0])
    every = int.from_bytes(bytes([1]) * sums.shape[0], "little")
    marks = body.builder.load(sums.written, typ=kind, align=1)
    return body.builder.icmp_unsigned("!=", marks, ir.Constant(kind, every))


def _check(sums, columns):
    if not isinstance(sums, Local) or not may_be_sums(sums) or sums.shape[0] != columns // 2:
        raise NotLowered("sums of another size")


def _descriptor(body, given):
    """The bits of a matrix in shared memory; what is out of range is left to the interpreter."""
    builder = body.builder
    address, leading, stride, base, swizzle = (builder.zext(value, I64) for value, _ in given)
    for value in (address, leading, stride):
        wrong = builder.and_(value, ir.Constant(I64, ~((1 << 18) - 16)))
        body.bail_out_if(builder.icmp_unsigned("!=", wrong, ir.Constant(I64, 0)))
    for value, most in ((base, 7), (swizzle, 3)):
        body.bail_out_if(builder.icmp_unsigned(">", value, ir.Constant(I64, most)))
    parts = ((address, -4), (leading, 12), (stride, 28), (base, 49), (swizzle, 62))
    shifted = [builder.lshr(v, ir.Constant(I64, -by)) if by < 0 else builder.shl(v, ir.Constant(I64, by))
               for v, by in parts]  # fmt: skip
    return functools.reduce(builder.or_, shifted)


def intrinsic(body, name, given):
    """The value of a call of one of ``device/wgmma.py``; ``given``: pairs (value, its type)."""
    if name == "wgmma_descriptor":
        return _descriptor(body, given)
    if name == "wgmma_fence":
        return ask(body, "fence")
    if name == "wgmma_commit_group":
        return ask(body, "commit")
    if name.startswith("wgmma_wait_group"):
        if len(given) > 1:
            _check(given[0][0], int(name.rpartition("n")[2]))
        return ask(body, "wait", given[-1])
    return _multiply(body, name, given)
