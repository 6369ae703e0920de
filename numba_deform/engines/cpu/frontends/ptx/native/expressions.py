"""Expressions of the Python text of PTX in LLVM: what ``values`` and ``instructions`` write. A value is a
``BoundedInt``, a truth (i1), a float, a ``Tuple`` of these, a ``Buffer`` of a thread's own or a text."""

import ast
import functools
import inspect

from llvmlite import ir
from numba import types

from ......device.ptx import Intrinsic
from ....native.codegen.arithmetic import compare
from ....native.codegen.coroutine import COLLECTIVES, joint_of
from ....native.codegen.float_functions import in_place
from ....native.codegen.function_body import PLACES, Builtins, FunctionBody
from ....native.codegen.ir_values import KINDS, NotLowered, Static, Tuple
from ....native.runtime.llvm_types import F32, F64, I1
from .. import operations
from . import numbers
from .numbers import BoundedInt, as_int, constant, resized, unsigned

SIGNS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtE": "<=", "Gt": ">", "GtE": ">="}
# What calls return that neither an intrinsic's signature nor the place of the call says.
PAIR = types.UniTuple(types.uint32, 2)
RESULTS = {"cuda.activemask": types.uint32, "cuda.match_any_sync": types.int32, "cuda.match_all_sync": PAIR,
           "cuda.ballot_sync": types.int32, "cuda.shfl_xor_sync": types.uint32, "several_blocks": types.boolean,
           "dynamic_bytes": types.uint32, "block_threads": types.uint32,
           "sin": types.float32, "cos": types.float32,
           "tanh": types.float32, "rsqrt": types.float32}  # fmt: skip
VOTES = ("any_sync", "all_sync", "eq_sync", "syncthreads_count", "syncthreads_and", "syncthreads_or")
RESULTS |= {f"cuda.{name}": types.int32 for name in VOTES}


BUILTINS = Builtins()  # each is (body, name, *values) -> value


class Expressions(FunctionBody):
    """Of a kernel's thread. ``node`` is the call that is written."""

    def value(self, node, want=None):
        """The value of an expression. ``want``: Numba's type of what an unknown function has to return."""
        if isinstance(node, ast.Call):
            return self.call(node, want)
        write = getattr(self, f"of_{type(node).__name__}", None)
        if write is None:
            raise NotLowered(f"{ast.unparse(node)}, of a kind that is not known here")
        return write(node)

    def as_int(self, node, want=None):
        return as_int(self.value(node, want))

    def truth(self, node):
        return self.as_truth(self.value(node, types.boolean))

    def as_truth(self, value):
        if isinstance(value, BoundedInt):
            return numbers.compared(self.builder, "!=", value, constant(0))
        if value.type != I1:
            raise NotLowered("a truth that is none")
        return value

    def bits(self, node, width):
        """The lower bits of an integer: of sums and products no more are needed."""
        builder, name = self.builder, isinstance(node, ast.BinOp) and type(node.op).__name__
        if name in numbers.RING:
            parts = self.bits(node.left, width), self.bits(node.right, width)
            return getattr(builder, numbers.RING[name])(*parts)
        if name == "LShift":
            value = self.bits(node.left, width)
            return numbers.shifted_left(builder, value, self.as_int(node.right))
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            value = self.bits(node.operand, width)
            return builder.not_(value) if isinstance(node.op, ast.Invert) else builder.neg(value)
        return resized(builder, self.as_int(node, types.uint64), width)

    def of_Constant(self, node):
        value = node.value
        if isinstance(value, bool):
            return ir.Constant(I1, value)
        if isinstance(value, int):
            return constant(value)
        return ir.Constant(F64, value) if isinstance(value, float) else Static(value)

    def of_Name(self, node):
        if node.id in self.bound:
            return self.bound[node.id]
        kind = self.kinds.get(node.id)
        if kind is None:
            return Static(node.id)  # a type
        if node.id in self.is_set:  # the interpreter knows undefined values
            self.bail_out_if(self.builder.not_(self.builder.load(self.is_set[node.id], typ=I1)))
        return self.held(self.builder.load(self.slot(node.id), typ=kind))

    @staticmethod
    def held(value):
        """A register's content: integers have no sign."""
        integer = isinstance(value.type, ir.IntType) and value.type != I1
        return unsigned(value) if integer else value

    def of_Tuple(self, node):
        if all(isinstance(part, ast.Constant) for part in node.elts):  # words of the opcode
            return Static(ast.literal_eval(node))
        return Tuple([self.value(part) for part in node.elts])

    def of_Attribute(self, node):
        path = ast.unparse(node)
        if path in self.bound:
            return self.bound[path]
        if path == "cuda.laneid":
            return BoundedInt(self.lane(), 0, 31)
        _, name, axis = path.split(".") if path.count(".") == 2 else (path, path, "")
        if name not in PLACES:
            raise NotLowered(path)
        return unsigned(self.place_of(name, axis))

    def of_UnaryOp(self, node):
        builder = self.builder
        if isinstance(node.op, ast.Not):
            return builder.not_(self.truth(node.operand))
        value = self.value(node.operand)
        if isinstance(value, BoundedInt) or value.type == I1:
            of = constant(-1 if isinstance(node.op, ast.Invert) else 0)  # ~x is -1 - x
            return numbers.calculated(builder, "Sub", of, as_int(value))
        return builder.fneg(value)

    def of_BoolOp(self, node):
        join = self.builder.and_ if isinstance(node.op, ast.And) else self.builder.or_
        return functools.reduce(join, map(self.truth, node.values))

    def of_IfExp(self, node):
        test = self.truth(node.test)
        if isinstance(test, ir.Constant):
            return self.value(node.body if test.constant else node.orelse)
        return self.choice(test, self.value(node.body), self.value(node.orelse))

    def choice(self, condition, a, b):
        if isinstance(a, BoundedInt) or isinstance(b, BoundedInt):
            return numbers.chosen(self.builder, condition, as_int(a), as_int(b))
        return self.builder.select(condition, a, b)

    def of_Compare(self, node):
        (sign,), (right,) = (SIGNS[type(op).__name__] for op in node.ops), node.comparators
        a, b = self.value(node.left, types.uint64), self.value(right)
        if isinstance(a, Static) and isinstance(b, Static):
            return ir.Constant(I1, a.value == b.value)
        if isinstance(a, BoundedInt) or a.type == I1:
            return numbers.compared(self.builder, sign, as_int(a), as_int(b))
        if isinstance(b, BoundedInt):
            raise NotLowered("a float compared with an integer")
        return compare(self.builder, numbers.OPERATORS[sign], a, b, types.float64)

    def of_BinOp(self, node):
        name = type(node.op).__name__
        if name == "BitAnd" and isinstance(node.right, ast.Constant) and node.right.value >= 0:
            most = node.right.value
            value = self.bits(node.left, width := numbers.width_of(0, most))
            if most != (1 << width) - 1:
                value = self.builder.and_(value, ir.Constant(value.type, most))
            return BoundedInt(value, 0, most)
        return self.joined(name, self.value(node.left), self.value(node.right))

    def joined(self, name, a, b):
        """``a`` and ``b`` by one of Python's operators."""
        builder = self.builder
        if not isinstance(a, BoundedInt) and a.type in (F32, F64):
            if isinstance(b, BoundedInt) or a.type != b.type or name not in ("Add", "Sub", "Mult"):
                raise NotLowered(f"{name} of floats")
            return getattr(builder, f"f{numbers.RING[name]}")(a, b)
        a, b = as_int(a), as_int(b)
        if name == "RShift":
            return numbers.shifted_right(builder, a, b)
        if name == "LShift":
            if b.low < 0 or b.high > 128:
                raise NotLowered("a shift by very many bits")
            low, high = min(a.low << b.high, a.low << b.low), max(a.high << b.high, a.high << b.low)
            value = resized(builder, a, numbers.width_of(low, high))
            return BoundedInt(numbers.shifted_left(builder, value, b), low, high)
        return numbers.calculated(builder, name, a, b)

    # --- calls --------------------------------------------------------------------------------------
    def call(self, node, want=None):
        """The value of a call: computed here, done by the threads together, or asked of Python."""
        name = ast.unparse(node.func)
        if name.startswith("tcgen05_"):
            raise NotLowered("tensor memory")
        function = self.scope.get(name)
        if isinstance(function, Intrinsic) and name not in BUILTINS:
            return self.of_intrinsic(node, name, function)
        values = list(map(self.value, node.args))
        self.node = node
        if name in self.functions:
            return self.routine(name, values)
        if name in operations.INTEGERS:
            return Inlined(self, operations.INTEGERS[name], values).result
        if name in BUILTINS:
            return BUILTINS[name](self, name, *values)
        if write := in_place(name):
            return write(self, *values)
        joint = COLLECTIVES.get(name.removeprefix("cuda."), 0) if name.startswith("cuda.") else 0
        if joint:  # of which machine code takes the operands out of the thread's words
            given = [(self.word_of(value), types.uint32) for value in values]
        else:
            given = list(map(self.operand, values))
        result = RESULTS.get(name, want)
        if result is None:
            raise NotLowered(f"a result of {name}, whose type is not known here")
        return self.asked(name, given, result, joint, None)

    def of_intrinsic(self, node, name, function):
        if function.ptx and function.ptx.registers:
            raise NotLowered("accumulators of a warpgroup's product")
        kinds, result = function.signature.args, function.signature.return_type
        given = [(self.given(a, k), k) for a, k in zip(node.args, kinds, strict=True)]
        self.node = node
        return self.returned(self.intrinsic(name, given, result, Static(name), joint_of(function)), result)

    def given(self, node, kind):
        """An operand as a value of Numba's type."""
        if isinstance(kind, types.Integer):
            return self.bits(node, kind.bitwidth)
        value = self.value(node)
        if isinstance(value, BoundedInt) or KINDS[value.type] != kind:
            raise NotLowered(f"an operand that is no {kind}")
        return value

    def word_of(self, value, width=32):
        """An operand as 32 bits."""
        return resized(self.builder, as_int(value), width)

    def operand(self, value):
        """(value, Numba's type) for Python. Constants need no word."""
        if isinstance(value, BoundedInt):
            if value.constant is not None:
                return Static(value.constant), None
            width = max(numbers.width_of(value.low, value.high), 32)
            if width > 64:
                raise NotLowered("an operand of more than 64 bits")
            kind = types.Integer.from_bitwidth(width, value.low < 0)
            return resized(self.builder, value, width), kind
        if isinstance(value, Static):
            return value, None
        if isinstance(value, ir.Constant) and value.type == I1:
            return Static(bool(value.constant)), None
        if isinstance(value, Tuple):
            raise NotLowered("a tuple of values as an operand")
        if not isinstance(value, ir.Value):
            return Static(None), None  # local memory, which Python does not see
        return value, KINDS[value.type]

    def asked(self, name, given, result, joint=0, apart=""):
        """What the interpreter's model of that name returns, or the threads together if it is ``joint``."""
        return self.returned(self.ask(Static(name), given, result, joint, apart), result)

    def returned(self, value, kind):
        if isinstance(kind, types.BaseTuple):
            return Tuple([self.returned(v, k) for v, k in zip(value.parts, kind.types, strict=True)])
        if isinstance(kind, types.Integer) and not isinstance(kind, types.Boolean):
            half = 1 << kind.bitwidth - 1
            return BoundedInt(value, -half, half - 1) if kind.signed else BoundedInt(value, 0, 2 * half - 1)
        return value


class Inlined(Expressions):
    """A function of integers (``operations.INTEGERS``), computed where it is called: ``result`` is what it
    returns. Loops are written out; conditions of statements are constants."""

    kinds = functions = {}

    def __init__(self, body, function, values):
        self.maker, self.builder, self.scope, self.result = body.maker, body.builder, function.__globals__, None
        tree = _tree(function)
        self.bound = {a.arg: value for a, value in zip(tree.args.args, values, strict=True)}
        self.statements(tree.body)

    def statements(self, nodes):
        for node in nodes:
            if isinstance(node, ast.Return):
                self.result = self.value(node.value)
            elif isinstance(node, ast.For):
                for n in range(node.iter.args[0].value):
                    self.bound[node.target.id] = constant(n)
                    self.statements(node.body)
            elif isinstance(node, ast.If):
                self.statements(node.body if as_int(self.value(node.test)).constant else ())
            elif isinstance(node, ast.AugAssign):
                value = self.joined(type(node.op).__name__, self.bound[node.target.id], self.value(node.value))
                self.bound[node.target.id] = value
            elif isinstance(node, ast.Assign):
                (target,), value = node.targets, self.value(node.value)
                many = isinstance(value, Tuple)
                names, values = (target.elts, value.parts) if many else ([target], [value])
                self.bound |= {name.id: part for name, part in zip(names, values, strict=True)}

    def of_Name(self, node):
        return self.bound[node.id] if node.id in self.bound else constant(self.scope[node.id])

    def of_BinOp(self, node):
        return self.joined(type(node.op).__name__, self.value(node.left), self.value(node.right))


@functools.cache
def _tree(function):
    return ast.parse(inspect.getsource(function)).body[0]
