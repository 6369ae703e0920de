"""Calls in machine code: numbers in place, plain accesses by ``access_checks``, all else by a request.

A request hands a call to the interpreter's own model of the function, which may park the thread.
"""

import functools
import re

import numpy as np
from llvmlite import ir
from numba import cuda, types

from .....compiler.inference import ir as numba_ir
from .....device.ptx import Intrinsic
from ...native.codegen import accesses
from ...native.codegen import ir_values as irv
from ...native.codegen.arithmetic import extreme, library
from ...native.codegen.coroutine import COLLECTIVES, joint_of
from ...native.codegen.float_functions import in_place
from ...native.codegen.function_body import Builtins
from ...native.runtime import layout
from ...native.runtime.llvm_types import I32, I64
from .arithmetic import elementwise
from .name_binding import PATHS
from .typed_code import BITS

BUILTINS = Builtins()  # each is (body, call) -> value
builtin = BUILTINS.note
PER_BLOCK = {"grid": "blockIdx", "gridsize": "gridDim"}  # what the size of a block is multiplied by


def call(body, c):
    """The value of a call of what is no device function. ``c`` has the values, and Numba's signature."""
    function = c.function
    if function in BUILTINS:
        return BUILTINS[function](body, c)
    if isinstance(function, Intrinsic):
        return intrinsic(body, c, function)
    path = PATHS.get(id(function))
    if path in (("local", "array"), ("shared", "array")):
        return array(body, c, path[0])
    if path and path[0] in PER_BLOCK:
        return along(body, c, path[0])
    given = operands(body, c)
    if path and path[0] == "libdevice" and (write := in_place(path[-1])):
        return write(body, *[value for value, _ in given])
    if isinstance(function, np.ufunc):
        function = elementwise(function, c.signature.args)
        if function.of_arrays:
            raise irv.NotLowered("a function of the elements of arrays")
    joint = COLLECTIVES.get(path[0], 0) if path and len(path) == 1 else 0
    if joint == layout.SYNCWARP and not given:
        given = [(I32(-1), types.int32)]
    if function in BITS:  # is told how many bits its operand has
        given.append((irv.Static(given[0][1].bitwidth), None))
    return body.ask(irv.Static(function), given, c.signature.return_type, joint, None)


def operands(body, c):
    """(value, its type) of the arguments of a call."""
    if c.kws:
        raise irv.NotLowered("a call with names")
    if len(c.given) > len(c.signature.args):
        raise irv.NotLowered("a call with arguments left out")
    given = []
    for (value, actual), kind in zip(c.given, c.signature.args, strict=False):
        want = kind if irv.is_number(kind) else actual
        given.append((body.converted(value, actual, want), types.unliteral(want)))
    return given


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
    return irv.convert(body.builder, body.builder.ctpop(value), kind, c.signature.return_type)


@builtin(min, max)
def _extreme(body, c):
    given, kind = operands(body, c), types.unliteral(c.signature.return_type)
    values = [irv.convert(body.builder, v, k, kind) for v, k in given]
    return functools.reduce(lambda a, b: extreme(body.builder, c.function, a, b, kind), values)


@builtin(abs)
def _abs(body, c):
    (value, kind), = operands(body, c)
    if isinstance(kind, types.Float):
        return library(body, "fabs", value)
    value = library(body, "abs", value) if kind.signed else value
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
    kind, values = c.signature.return_type, []
    kinds = kind.types if isinstance(kind, types.BaseTuple) else [kind]
    for axis, one in zip("xyz", kinds, strict=False):
        size, other = (body.place_of(n, axis, I64) for n in ("blockDim", PER_BLOCK[name]))
        value = body.builder.mul(size, other)
        if name == "grid":
            value = body.builder.add(value, body.place_of("threadIdx", axis, I64))
        values.append(irv.convert(body.builder, value, types.int64, one))
    return irv.Tuple(values) if isinstance(kind, types.BaseTuple) else values[0]


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
    result = c.signature.return_type
    if result.ndim > 6:
        raise irv.NotLowered("a shared array of many dimensions")
    return body.ask("shared_array", [(fixed, None)], result, layout.SHARED_ARRAY)


# --- plain accesses ---------------------------------------------------------------------------------
ACCESS = re.compile(r"(?:ld|st)\.(global|shared)(?:::cta)?(\.nc)?(?:\.L1::\w+)?(?:\.v(\d))?\.b(\d+) ")


@functools.cache
def _plain_access(function):
    """(space, bytes of a number, how many, whether by .nc) of a plain load or store, by its text; else None."""
    plain = function.ptx and function.ptx.name.startswith(("ld_", "st_"))
    found = next(filter(None, map(ACCESS.match, function.ptx.statements)), None) if plain else None
    return found and (found[1], int(found[4]) // 8, int(found[3] or 1), bool(found[2]))


def intrinsic(body, c, function):
    """A call of one of ``device/``."""
    given, name = operands(body, c), function.ptx.name if function.ptx else function.__name__
    if name.startswith("tcgen05_"):
        raise irv.NotLowered("tensor memory")

    def ask():
        return body.ask(function.model, given, c.signature.return_type)

    if access := _plain_access(function):
        address, *words = [value for value, _ in given]
        return _store(body, address, words, access, ask) if words else _load(body, address, access, ask)
    if name == "shared_address" and isinstance(given[0][0], irv.View):
        return _shared_address(body, given[0][0], ask)
    return body.intrinsic(name, given, c.signature.return_type, function.model, joint_of(function))


def _load(body, address, access, ask):
    """Words, or half of one."""
    space, each, count, read_only = access
    half, builder = each == 2, body.builder

    def asked():
        made = ask()
        return made if count > 1 else irv.Tuple([builder.trunc(made, ir.IntType(16)) if half else made])

    made = accesses.load(body, space, address, each, count, asked, read_only)
    return made if count > 1 else builder.zext(made.parts[0], I32) if half else made.parts[0]


def _store(body, address, words, access, ask):
    if access[1] == 2:
        words = [body.builder.trunc(word, ir.IntType(16)) for word in words]
    accesses.store(body, access[0], address, words, ask)


def _shared_address(body, view, ask):
    shared = body.builder.icmp_unsigned("==", view.region, body.maker.word("block", layout.SHARED, I64))
    return body.maker.emit_if_else(shared, lambda: body.builder.trunc(view.address, I32), ask)
