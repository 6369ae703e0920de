"""A compiler of the functions that machine code has beside kernels: of 64-bit words, and of nothing else.

Such a function is Python that names no more than its own variables, constants, ``get`` and the like below,
and others of its kind. ``thread.time`` is the word of a row that ``layout`` has under that name; ``thread`` is
the row's address. Numbers wrap, ``>>`` keeps the sign, and a time is a float64. It knows assignments, ``if``,
``while``, ``for`` over ``range`` and ``return``. Numba could compile these as well, but would take seconds to
infer types that are known.
"""

import ast
import inspect
import textwrap

from llvmlite import ir

from . import layout
from .llvm_types import F64, I1, I32, I64, POINTER


# --- what they may call: addresses are numbers --------------------------------------------------------
def _pointer(builder, row, number, size):
    address = builder.add(row, builder.mul(number, ir.Constant(I64, size)))
    return builder.inttoptr(address, POINTER)


def get(builder, row, number):
    """Word ``number`` of a row that begins at the address ``row``."""
    return builder.load(_pointer(builder, row, number, 8), typ=I64)


def put(builder, row, number, value):
    """Set it."""
    builder.store(value, _pointer(builder, row, number, 8))


def get32(builder, row, number):
    """Number ``number``, of 32 bits with a sign, of a row of such numbers."""
    return builder.sext(builder.load(_pointer(builder, row, number, 4), typ=I32), I64)


def put32(builder, row, number, value):
    """Set it."""
    builder.store(builder.trunc(value, I32), _pointer(builder, row, number, 4))


def resume(builder, coroutine):
    """Let a thread run until it asks for something."""
    kind = ir.FunctionType(ir.VoidType(), [POINTER]).as_pointer()
    function = builder.inttoptr(get(builder, coroutine, ir.Constant(I64, 0)), kind)  # its first word
    builder.call(function, [builder.inttoptr(coroutine, POINTER)])


def larger(builder, one, other):
    """The larger one."""
    compare = builder.icmp_signed if one.type == I64 else builder.fcmp_ordered
    return builder.select(compare(">", one, other), one, other)


PRIMITIVES = {get, put, get32, put32, resume, larger}
OPERATIONS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor",
    ast.LShift: "shl", ast.RShift: "ashr",
}  # fmt: skip
COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Words:
    """The functions of one LLVM module, by Python's."""

    def __init__(self, module):
        self.module, self.functions = module, {}

    def function(self, function):
        """LLVM's function for one of Python's."""
        if function not in self.functions:
            kind = ir.FunctionType(I64, [I64] * function.__code__.co_argcount)
            self.functions[function] = ir.Function(self.module, kind, function.__name__)
            _Function(self, function, self.functions[function]).write()
        return self.functions[function]


class _Function:
    def __init__(self, words, python, llvm):
        self.words, self.llvm, self.names = words, llvm, python.__globals__
        self.tree = ast.parse(textwrap.dedent(inspect.getsource(python))).body[0]
        self.entry = llvm.append_basic_block("entry")
        self.builder = ir.IRBuilder(llvm.append_basic_block("start"))
        self.variables = {}

    def write(self):
        for argument, value in zip(self.tree.args.args, self.llvm.args, strict=True):
            self.set(argument.arg, value)
        self.statements(self.tree.body)
        if not self.builder.block.is_terminated:
            self.builder.ret(ir.Constant(I64, 0))
        ir.IRBuilder(self.entry).branch(self.llvm.basic_blocks[1])

    def set(self, name, value):
        if name not in self.variables:
            with self.builder.goto_block(self.entry):
                self.variables[name] = self.builder.alloca(value.type), value.type
        self.builder.store(value, self.variables[name][0])

    def statements(self, nodes):
        for node in nodes:
            getattr(self, f"do_{type(node).__name__}")(node)

    def do_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # else the docstring
            self.value(node.value)

    def do_Assign(self, node):
        target, = node.targets
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=True)
        for to, value in [(to, self.value(node)) for to, node in pairs]:
            self.assign(to, value)

    def assign(self, target, value):
        if isinstance(target, ast.Name):
            self.set(target.id, value)
        else:
            place, kind = self.field(target)
            self.builder.store(self.builder.trunc(value, I32) if kind == I32 else value, place)

    def do_AugAssign(self, node):
        self.assign(node.target, self.value(ast.BinOp(node.target, node.op, node.value)))

    def do_Return(self, node):
        self.builder.ret(self.value(node.value))
        self.builder.position_at_end(self.llvm.append_basic_block("unreachable"))

    def do_If(self, node):
        self.choice(node.test, lambda: self.statements(node.body), lambda: self.statements(node.orelse))

    def do_While(self, node):
        self.loop(node.test, node.body)

    def do_For(self, node):
        name = node.target.id if node.target.id != "_" else f"turn {node.lineno}"
        first, last = ([ast.Constant(0)] + node.iter.args)[-2:]
        self.set(f"last {node.lineno}", self.value(last))
        self.set(name, self.value(first))
        more = ast.Compare(ast.Name(name), [ast.Lt()], [ast.Name(f"last {node.lineno}")])
        self.loop(more, [*node.body, ast.AugAssign(ast.Name(name), ast.Add(), ast.Constant(1))])

    def loop(self, test, body):
        again, inside, after = map(self.llvm.append_basic_block, ("again", "inside", "after"))
        self.builder.branch(again)
        self.builder.position_at_end(again)
        self.builder.cbranch(self.truth(test), inside, after)
        self.builder.position_at_end(inside)
        self.statements(body)
        self.builder.branch(again)
        self.builder.position_at_end(after)

    def choice(self, test, yes, no):
        """What comes of ``yes()`` or ``no()``."""
        builder, condition = self.builder, self.truth(test)
        here, there, after = map(self.llvm.append_basic_block, ("yes", "no", "after"))
        builder.cbranch(condition, here, there)
        results = []
        for block, write in ((here, yes), (there, no)):
            builder.position_at_end(block)
            results.append((write(), builder.block))
            builder.branch(after)
        builder.position_at_end(after)
        if results[0][0] is None:
            return None
        phi = builder.phi(results[0][0].type)
        for value, block in results:
            phi.add_incoming(value, block)
        return phi

    # --- values -----------------------------------------------------------------------------------
    def truth(self, node):
        value = self.value(node)
        return value if value.type == I1 else self.builder.icmp_signed("!=", value, ir.Constant(I64, 0))

    def value(self, node):
        value = getattr(self, f"of_{type(node).__name__}")(node)
        return self.builder.zext(value, I64) if value is not None and value.type == I1 else value

    def of_Constant(self, node):
        value = node.value
        return ir.Constant(F64, value) if isinstance(value, float) else ir.Constant(I64, int(value))

    def of_Name(self, node):
        if node.id in self.variables:
            place, kind = self.variables[node.id]
            return self.builder.load(place, typ=kind)
        return self.of_Constant(ast.Constant(self.names[node.id]))

    def of_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id not in self.variables:
            return self.of_Constant(ast.Constant(getattr(self.names[node.value.id], node.attr)))
        place, kind = self.field(node)
        value = self.builder.load(place, typ=kind)
        return self.builder.sext(value, I64) if kind == I32 else value

    def field(self, node):
        """(where the field of a row is, its type)"""
        kind = F64 if node.attr in layout.TIMES else I32 if node.attr in layout.NARROW else I64
        number = ir.Constant(I64, getattr(layout, node.attr.upper()))
        return _pointer(self.builder, self.value(node.value), number, 4 if kind == I32 else 8), kind

    def of_BinOp(self, node):
        left, right = self.value(node.left), self.value(node.right)
        prefix = "f" if left.type == F64 else ""
        return getattr(self.builder, prefix + OPERATIONS[type(node.op)])(left, right)

    def of_UnaryOp(self, node):
        if isinstance(node.op, ast.Not):
            return self.builder.not_(self.truth(node.operand))
        return self.builder.neg(self.value(node.operand))

    def of_Compare(self, node):
        (operator,), (right,) = node.ops, node.comparators
        left, right = self.value(node.left), self.value(right)
        compare = self.builder.icmp_signed if left.type == I64 else self.builder.fcmp_ordered
        return compare(COMPARISONS[type(operator)], left, right)

    def of_BoolOp(self, node):
        first, *rest = node.values
        more = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        if isinstance(node.op, ast.And):
            return self.choice(first, lambda: self.truth(more), lambda: ir.Constant(I1, 0))
        return self.choice(first, lambda: ir.Constant(I1, 1), lambda: self.truth(more))

    def of_IfExp(self, node):
        return self.choice(node.test, lambda: self.value(node.body), lambda: self.value(node.orelse))

    def of_Call(self, node):
        function, args = self.names[node.func.id], [self.value(arg) for arg in node.args]
        if function in PRIMITIVES:
            return function(self.builder, *args)
        return self.builder.call(self.words.function(function), args)
