"""Calls in machine code: numbers in place, plain accesses by ``access_checks``, all else by a request.

A request hands a call to the interpreter's own model of the function, which may park the thread.
"""

import functools
import re

import numpy as np
from llvmlite import ir
from numba import cuda, types
from numba.cuda import libdevice

from .....compiler.inference import ir as numba_ir
from .....device.ptx import Intrinsic
from ...native.codegen import ir_values as irv
from ...native.codegen import matrices, warpgroups
from ...native.codegen.accesses import load, store
from ...native.codegen.arithmetic import extreme, library
from ...native.codegen.coroutine import COLLECTIVES, joint_of
from ...native.codegen.float_functions import in_place
from ...native.runtime import layout
from ...native.runtime.llvm_types import I32, I64
from .arithmetic import elementwise
from .name_binding import PATHS
from .typed_code import BITS

BUILTINS = {}  # function -> how it is written: (body, call) -> value


def builtin(*functions):
    def note(write):
        BUILTINS.update(dict.fromkeys(functions, write))
        return write

    return note


def call(body, c):
    """The value of a call of what is no device function. ``c`` has the values, and Numba's signature."""
    function = c.function
    try:
        known = BUILTINS.get(function)
    except TypeError:
        known = None
    if known:
        return known(body, c)
    if isinstance(function, Intrinsic):
        return intrinsic(body, c, function)
    path = PATHS.get(id(function))
    if path in (("local", "array"), ("shared", "array")):
        return array(body, c, path[0])
    if path == ("grid",) or path == ("gridsize",):
        return along(body, c, path[0])
    given = operands(body, c)
    if isinstance(function, np.ufunc):
        function = elementwise(function, c.signature.args)
        if function.of_arrays:
            raise irv.NotLowered("a function of the elements of arrays")
    if path and len(path) == 1 and path[0] in COLLECTIVES:
        return together(body, c, irv.Static(function), COLLECTIVES[path[0]], given)
    if function in BITS:  # is told how many bits its operand has
        given.append((irv.Static(given[0][1].bitwidth), None))
    return body.maker.request(body, irv.Static(function), given, c.signature.return_type, site(body, c))


def operands(body, c):
    """(value, its type) of the arguments of a call."""
    if c.kws:
        raise irv.NotLowered("a call with names")
    if len(c.given) > len(c.signature.args):
        raise irv.NotLowered("a call with arguments left out")
    given = []
    for (value, actual), kind in zip(c.given, c.signature.args, strict=False):
        want = kind if irv.is_number(kind) else actual
        given.append((body.held(body.converted(value, actual, want), want), types.unliteral(want)))
    return given


def site(body, c):
    return body.site(used=is_used(body, c.target))


def is_used(body, name):
    """Whether a statement takes the value of a variable."""
    if body.found.used is None:
        used = body.found.used = set()
        for block in body.found.ir.blocks.values():
            for s in block.body:
                if isinstance(s, numba_ir.Assign):
                    values = s.value.list_vars() if isinstance(s.value, numba_ir.Expr) else [s.value]
                elif isinstance(s, numba_ir.Del):
                    continue
                else:
                    values = s.list_vars()
                used.update(v.name for v in values if isinstance(v, numba_ir.Var))
    return name in body.found.used


# --- numbers --------------------------------------------------------------------------------------
@builtin(range)
def _range(body, c):
    kind = next(k for k in (types.int32, types.int64, types.uint64) if str(k) in str(c.signature.return_type))
    values = [v for v, _ in operands(body, c)]
    given = [irv.convert(body.builder, v, k, kind) for v, k in zip(values, c.signature.args, strict=True)]
    zero, one = irv.constant(0, kind), irv.constant(1, kind)
    start, stop, step = {1: (zero, *given, one), 2: (*given, one), 3: tuple(given)}[len(given)]
    parts = [body.maker.slot(irv.lowered(kind)) for _ in range(3)]
    for slot, value in zip(parts, (start, stop, step), strict=True):
        body.builder.store(value, slot)
    return irv.Loop(*parts, kind)


@builtin(bool, int, float)
def _number(body, c):
    (value, kind), = operands(body, c)
    return body.converted(value, kind, c.signature.return_type)


@builtin(tuple)
def _tuple(body, c):
    value = body.read(c.args[0].name)
    if not isinstance(value, irv.Tuple):
        raise irv.NotLowered("a tuple of what is none")
    return value


@builtin(cuda.popc)
def _popc(body, c):
    (value, kind), = operands(body, c)
    count = body.builder.ctpop(value)
    return irv.convert(body.builder, count, kind, c.signature.return_type)


@builtin(min, max)
def _extreme(body, c):
    given, kind = operands(body, c), types.unliteral(c.signature.return_type)
    values = [irv.convert(body.builder, v, k, kind) for v, k in given]
    return functools.reduce(lambda a, b: extreme(body.builder, c.function, a, b, kind), values)


@builtin(libdevice.fminf, libdevice.fmaxf)
def _float_extreme(body, c):
    (left, kind), (right, _) = operands(body, c)
    return extreme(body.builder, min if c.function is libdevice.fminf else max, left, right, kind)


@builtin(libdevice.floorf, libdevice.fabsf)
def _float_function(body, c):
    (value, _), = operands(body, c)
    name = "llvm.floor.f32" if c.function is libdevice.floorf else "llvm.fabs.f32"
    return body.builder.call(body.maker.declared(name, value.type, [value.type]), [value])


@builtin(abs)
def _abs(body, c):
    (value, kind), = operands(body, c)
    if isinstance(kind, types.Float):
        return library(body, "fabs", value)
    zero = ir.Constant(value.type, 0)
    negative = body.builder.icmp_signed("<", value, zero)
    if kind.signed:
        value = body.builder.select(negative, body.builder.neg(value), value)
    return irv.convert(body.builder, value, kind, c.signature.return_type)


@builtin(len)
def _len(body, c):
    value = body.read(c.args[0].name)
    if isinstance(value, irv.Tuple):
        return irv.constant(len(value.parts), c.signature.return_type)
    if hasattr(value, "shape"):
        first = value.shape[0]
        return first if isinstance(first, ir.Value) else irv.constant(first, c.signature.return_type)
    raise irv.NotLowered("len")


def along(body, c, name):
    """``cuda.grid`` and ``cuda.gridsize``."""
    dimensions, word, kind = body.constant_of(c.args[0].name), body.maker.word, c.signature.return_type
    if dimensions not in (1, 2, 3):
        raise irv.NotLowered("cuda.grid")
    values = []
    for i in range(dimensions):
        size = word("block", layout.BLOCK_DIM_X + i, I64)
        if name == "grid":
            number = body.builder.mul(word("block", layout.BLOCK_X + i, I64), size)
            value = body.builder.add(word("thread", layout.THREAD_X + i, I64), number)
        else:
            value = body.builder.mul(size, word("block", layout.GRID_DIM_X + i, I64))
        one = kind if dimensions == 1 else kind.types[i]
        values.append(irv.convert(body.builder, value, types.int64, one))
    return values[0] if dimensions == 1 else irv.Tuple(values)


def array(body, c, space):
    """``cuda.local.array`` and ``cuda.shared.array``."""
    given = [body.constant_of(v.name) for v in c.args]
    more = {name: body.constant_of(v.name) for name, v in c.kws.items()}
    shape, dtype = [*given, *(more[n] for n in ("shape", "dtype") if n in more)][:2]
    alignment = given[2] if len(given) > 2 else more.get("alignment")
    if space == "local":
        return body.local_array(shape, dtype)
    moves = (s for at in body.found.at.values() for s in at if isinstance(s.value, numba_ir.Var))
    name = next((s.target.name.partition(".")[0] for s in moves if s.value.name == c.target), "shared array")
    fixed = irv.Static((shape, dtype, alignment, name, body.found.function))
    result, same = c.signature.return_type, layout.SHARED_ARRAY
    if result.ndim > 6:
        raise irv.NotLowered("a shared array of many dimensions")
    return body.maker.request(body, "shared_array", [(fixed, None)], result, body.site(), same)


# --- what threads do together -----------------------------------------------------------------------
def together(body, c, function, kind, given):
    """A request that ``runtime.scheduler`` answers, most of the time."""
    place, result = site(body, c), c.signature.return_type
    if kind == layout.SYNCWARP and not given:
        given = [(ir.Constant(I32, -1), types.int32)]
    return body.maker.request(body, function, given, result, place, kind, None)


# --- plain accesses ---------------------------------------------------------------------------------
ACCESS = re.compile(r"(?:ld|st)\.(global|shared)(?:::cta)?(\.nc)?(?:\.L1::\w+)?(?:\.v(\d))?\.b(\d+) ")


@functools.cache
def _plain_access(function):
    """(space, bytes, words, whether by .nc) of an intrinsic that is a plain load or store, by its PTX text;
    else None."""
    plain = function.ptx and function.ptx.name.startswith(("ld_", "st_"))
    found = next(filter(None, map(ACCESS.match, function.ptx.statements)), None) if plain else None
    words = found and int(found[3] or 1)
    return found and (found[1], int(found[4]) // 8 * words, words, int(bool(found[2])))


def intrinsic(body, c, function):
    """A call of one of ``device/``."""
    given, name = operands(body, c), function.ptx.name if function.ptx else function.__name__

    def ask():
        return body.maker.request(body, function.model, given, c.signature.return_type, site(body, c))

    if access := _plain_access(function):
        if name.startswith("ld_"):
            return load(body, given[0][0], *access, ask)
        return store(body, given[0][0], access[0], [v for v, _ in given[1:]], ask, half=access[1] == 2)
    if name == "shared_address" and isinstance(given[0][0], irv.View):
        return _shared_address(body, given[0][0], ask)
    if kind := joint_of(function):
        return together(body, c, function.model, kind, given)
    if name.startswith("wgmma_"):
        return warpgroups.intrinsic(body, site(body, c), name, given)
    if name in matrices.MATRICES or name in matrices.PRODUCTS:
        return matrices.intrinsic(body, site(body, c), name, given, c.signature.return_type)
    if write := in_place(name):
        return write(body, *[v for v, _ in given])
    return ask()


def _shared_address(body, view, ask):
    shared = body.builder.icmp_unsigned("==", view.region, body.maker.word("block", layout.SHARED, I64))
    return body.maker.emit_if_else(shared, lambda: body.builder.trunc(view.address, I32), ask)
