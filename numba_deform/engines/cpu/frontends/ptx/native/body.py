"""Machine code of a kernel from PTX, from the same Python text that the interpreter runs: its statements, and
the jumps that ``translation`` has written as cases of a loop over ``pc``."""

import ast

from llvmlite import ir
from numba import types

from ....native.codegen.ir_values import KINDS, NotLowered, Static, Tuple
from ....native.runtime import layout
from ....native.runtime.llvm_types import F32, F64, I1, I8, I64, POINTER
from ..values import bits_of
from . import memory
from .expressions import Expressions
from .numbers import BoundedInt, as_int, resized, unsigned

FLOATS = {"pred": I1, "f32": F32, "f64": F64}


class JumpTargets:
    """Where jumps of one function go: its cases, the one that is being written, the loop inside it."""

    def __init__(self, after):
        self.after, self.cases, self.case, self.loop, self.pc, self.result = after, {}, -1, None, None, None


class Body(Expressions):
    """The statements of a ``PtxKernel``'s text, whose parameters are ``args``."""

    def __init__(self, maker, kernel, args):
        self.maker, self.builder, self.function = maker, maker.builder, kernel.plain
        self.tree, = ast.parse("\n".join(line for line, _ in kernel.lines)).body
        self.scope, registers = kernel.plain.__globals__, kernel.registers.items()
        self.kinds = {name: FLOATS.get(kind) or ir.IntType(bits_of(kind)) for name, kind in registers}
        self.slots, self.functions, self.frames, self.target = {}, {}, [], None
        self.is_set = {}  # registers that may be read before they are set -> the slot of whether they are
        self.dropped = None  # the call whose result nobody takes
        names = [a.arg for a in self.tree.args.args]
        self.bound = {n: self.held(v) for n, v in zip(names, args, strict=True)}
        for name, *_ in kernel.held:
            made = maker.request(Static(f"{name}.address"), [], types.uint64, 0, layout.SHARED_ARRAY)
            self.bound[f"{name}.address"] = unsigned(made)

    def lower(self):
        self.routine_body(self.tree.body)

    def site(self):
        line = self.node.lineno
        return self.maker.site(self.function, line, self.node is not self.dropped, line)

    def slot(self, name):
        if name not in self.slots:
            self.slots[name] = self.maker.slot(self.kinds[name])
        return self.slots[name]

    # --- functions ------------------------------------------------------------------------------------
    def routine_body(self, statements):
        """What a function returns, whose statements are written here."""
        frame = JumpTargets(*self.maker.blocks("after"))
        self.frames.append(frame)
        self.statements(statements)
        if not self.builder.block.is_terminated:
            self.builder.branch(frame.after)
        self.builder.position_at_end(frame.after)
        self.frames.pop()
        return frame.result

    def routine(self, name, args):
        """The result of a call of a function of the text: it is written where it is called."""
        tree = self.functions[name]
        self.bound |= {a.arg: value for a, value in zip(tree.args.args, args, strict=True)}
        return self.routine_body(tree.body)

    def zeros(self, name, size):
        """Bytes of a thread's own, all 0."""
        if name not in self.slots:
            self.slots[name] = memory.Buffer(self.maker.slot(ir.ArrayType(I8, max(size, 1))), size)
        self.maker.fill(self.slots[name].slot, 0, size)
        return self.slots[name]

    # --- statements -----------------------------------------------------------------------------------
    def statements(self, nodes):
        for node in nodes:
            if self.builder.block.is_terminated:
                return
            getattr(self, f"do_{type(node).__name__}")(node)

    def do_Pass(self, node):
        pass

    def do_FunctionDef(self, node):
        self.functions[node.name] = node

    def do_Expr(self, node):
        if isinstance(node.value, ast.Call):
            self.dropped = node.value
            self.value(node.value, types.none)

    def do_Assign(self, node):
        target, = node.targets
        if isinstance(target, ast.Tuple):
            values = self.value(node.value)
            if not isinstance(values, Tuple):
                raise NotLowered("a tuple that is none")
            for name, value in zip(target.elts, values.parts, strict=True):
                self.assign(name.id, value)
        elif target.id == "pc" and "pc" not in self.kinds:
            self.frames[-1].pc = node.value.value
        elif isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "unset":
            self.is_set.setdefault(target.id, self.maker.slot(I1))
            self.builder.store(ir.Constant(I1, False), self.is_set[target.id])
        else:
            self.target, kind = target.id, self.kinds.get(target.id)
            want = kind and KINDS.get(kind, types.uint64)
            self.assign(target.id, self.value(node.value, want))

    def assign(self, name, value):
        kind = self.kinds.get(name)
        if kind is None:
            before = self.bound.get(name)
            if isinstance(before, memory.Buffer) and value is not before:
                value = self.copied(value, before)
            self.bound[name] = value
            return
        if isinstance(kind, ir.IntType) and kind != I1:
            value = resized(self.builder, as_int(value), kind.width)
        elif isinstance(value, BoundedInt) and kind == I1:
            value = self.builder.icmp_unsigned("!=", value.value, ir.Constant(value.value.type, 0))
        if value.type != kind:
            raise NotLowered(f"{name} of another type")
        self.builder.store(value, self.slot(name))
        if name in self.is_set:
            self.builder.store(ir.Constant(I1, True), self.is_set[name])

    def copied(self, value, to):
        """A buffer keeps its place: on another way here it may be another one."""
        copy = self.maker.declared("llvm.memcpy.p0.p0.i64", ir.VoidType(), [POINTER, POINTER, I64, I1])
        size = ir.Constant(I64, min(value.size, to.size))
        self.builder.call(copy, [to.slot, value.slot, size, ir.Constant(I1, 0)])
        return to

    def do_If(self, node):
        yes, no, after = self.maker.blocks("yes", "no", "after")
        self.builder.cbranch(self.truth(node.test), yes, no)
        for block, statements in ((yes, node.body), (no, node.orelse)):
            self.builder.position_at_end(block)
            self.statements(statements)
            if not self.builder.block.is_terminated:
                self.builder.branch(after)
        self.builder.position_at_end(after)

    # --- jumps ----------------------------------------------------------------------------------------
    def do_While(self, node):
        frame = self.frames[-1]
        found = self.cases(node.body)
        if found is None:  # a case that comes back to itself
            frame.loop, = self.maker.blocks("loop")
            self.builder.branch(frame.loop)
            self.builder.position_at_end(frame.loop)
            self.statements(node.body)
            frame.loop = None
            return
        for number, _ in found:
            frame.cases[number], = self.maker.blocks(f"case{number}")
        self.builder.branch(frame.cases[frame.pc])
        frame.pc = None
        for frame.case, statements in found:
            self.builder.position_at_end(frame.cases[frame.case])
            self.statements(statements)
        self.builder.position_at_end(*self.maker.blocks("never"))
        self.builder.unreachable()

    def cases(self, nodes):
        """[(number, statements)] of each ``if pc == number:``, also in ``if pc < number:``; None of others."""
        found = []
        for node in nodes:
            test = isinstance(node, ast.If) and node.test
            if not isinstance(test, ast.Compare) or ast.unparse(test.left) != "pc":
                return None
            is_one = isinstance(test.ops[0], ast.Eq)
            found += [(test.comparators[0].value, node.body)] if is_one else (
                self.cases(node.body) + self.cases(node.orelse))  # fmt: skip
        return found

    def do_Continue(self, node):
        frame = self.frames[-1]
        if frame.pc is None:
            self.maker.emit_back_edge()
            self.builder.branch(frame.loop)
            return
        to, frame.pc = frame.pc, None
        if to <= frame.case:
            self.maker.emit_back_edge()
        self.builder.branch(frame.cases[to])

    do_Break = do_Continue

    def do_Return(self, node):
        frame = self.frames[-1]
        if node.value is not None:
            frame.result = self.value(node.value)
        self.builder.branch(frame.after)
