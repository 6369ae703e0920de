"""One function of a kernel, from Numba's typed statements to LLVM, in the place where it is called.
``native_functions`` makes one for a kernel and for each call of a device function."""

from llvmlite import ir
from numba import types

from .....compiler.inference import transforms
from ...native.codegen import accesses
from ...native.codegen.ir_values import Element, NotLowered, Static, is_number, leaves
from ...native.runtime.llvm_types import I1
from .native_expressions import Expressions
from .native_variables import numba_ir


class Body(Expressions):
    """The statements of one function, whose ``args`` are values."""

    def __init__(self, maker, found, args, place=None):
        found.recall()
        if found.source is None:
            raise NotLowered(f"{found.function.__name__} has no source")
        self.maker, self.found, self.builder = maker, found, maker.builder
        self.args, self.place = args, place
        self.known, self.slots, self.returned = {}, {}, None
        self.fresh, self.kept = {}, _in_memory(found.ir.blocks)
        # Numba's labels, so that a definition comes before its uses
        self.order = list(transforms.compute_cfg_from_blocks(found.ir.blocks).topo_order())
        self.blocks = dict(zip(self.order, maker.blocks(*(f"b{label}" for label in self.order)), strict=True))

    def lower(self):
        """Write all statements; what the function returns."""
        self.builder.branch(self.blocks[self.order[0]])
        self.after, = self.maker.blocks("after")
        self.phis = self._phis()
        self.doubtful = self._doubtful()
        for name in self.doubtful:
            self._make_slots(f"{name} is unset", ir.Constant(I1, ir.Undefined))
        for position, label in enumerate(self.order):
            self.position = position
            self.fresh.clear()
            self.builder.position_at_end(self.blocks[label])
            block = self.found.ir.blocks[label]
            for statement in block.body[:-1]:
                self.statement(statement)
            self.merge(label)
            self.terminator(block.body[-1])
        self.builder.position_at_end(self.after)
        return self.result()

    def result(self):
        """What the function returns, where its statements are over."""
        return self._loaded("return") if "return" in self.slots else self.returned

    def _phis(self):
        """{label: the (target, source) of what other blocks unite}"""
        phis = {}
        for label in self.order:
            for statement in self.found.ir.blocks[label].find_insts(numba_ir.Assign):
                value = statement.value
                if isinstance(value, numba_ir.Expr) and value.op == "phi":
                    for source, origin in zip(value.incoming_values, value.incoming_blocks, strict=True):
                        source = source.name if isinstance(source, numba_ir.Var) else None  # set on no way here
                        phis.setdefault(origin, []).append((statement.target.name, source))
        return phis

    def _doubtful(self):
        """The variables, numbers all, that may be unset where they are read: each has a flag beside it."""
        pairs = [pair for pairs in self.phis.values() for pair in pairs]
        doubtful, before = {target for target, source in pairs if source is None}, None
        while doubtful != before:
            before = set(doubtful)
            doubtful |= {target for target, source in pairs if source in doubtful}
        return {name for name in doubtful if is_number(self.kind(name))}

    def merge(self, label):
        """Hand on what blocks after this one unite: all at once."""
        phis = self.phis.get(label, ())
        unset = [(t, self.is_unset(s)) for t, s in phis if t in self.doubtful]
        values = [
            (target, self.converted(self.held_by(source), self.kind(source), self.kind(target)))
            for target, source in phis if source is not None
        ]  # fmt: skip
        for target, value in values:
            self.write(target, value)
        for target, flag in unset:
            self.write(f"{target} is unset", flag)

    def statement(self, s):
        if isinstance(s, numba_ir.Del):
            return
        self.number, self.used = s.loc.line, True
        if isinstance(s, numba_ir.Assign):
            self.assign(s)
        elif isinstance(s, (numba_ir.SetItem, numba_ir.StaticSetItem, numba_ir.SetAttr)):
            self.set_part(s)
        else:
            raise NotLowered(type(s).__name__)

    def set_part(self, s):
        """``array[index] = value``, ``record.field = value`` or ``record["field"] = value``."""
        target, want = self.read(s.target.name), self.found.calltypes[s].args[-1]
        value = self.converted(self.read(s.value.name), self.kind(s.value.name), want)
        if isinstance(target, Element):
            field = accesses.field_of(self, target, getattr(s, "attr", None) or s.index)
            accesses.store_element(self, field, self.converted(value, want, field.kind))
        elif isinstance(s, numba_ir.SetAttr):
            raise NotLowered(f"the attribute {s.attr}")
        else:
            index = s.index if isinstance(s, numba_ir.SetItem) else s.index_var
            self.set_item(target, self.indices(index.name), value, want)

    def assign(self, s):
        name, value = s.target.name, s.value
        if isinstance(value, numba_ir.Arg):
            self.write(name, self.args[value.index])
        elif isinstance(value, (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar)):
            self.write(name, self.converted(Static(value.value), None, self.kind(name)))
        elif isinstance(value, numba_ir.Var):
            self.write(name, self.value_as(value.name, self.kind(name)))
        elif value.op != "phi":
            self.write(name, self.converted(self.expression(value, name), None, self.kind(name)))

    def terminator(self, s):
        if isinstance(s, numba_ir.Jump):
            self.jump(s.target)
        elif isinstance(s, numba_ir.Branch):
            condition = self.value_as(s.cond.name, types.boolean)
            targets = self.maker.blocks("edge", "edge")
            self.builder.cbranch(condition, *targets)
            for block, target in zip(targets, (s.truebr, s.falsebr), strict=True):
                self.builder.position_at_end(block)
                self.jump(target)
        elif isinstance(s, numba_ir.Return):
            value = self.read(s.value.name)
            value = self.converted(value, self.kind(s.value.name), self.found.return_type)
            if leaves(value):
                self.write("return", value)
            else:
                self.returned = value
            self.builder.branch(self.after)
        else:
            raise NotLowered(type(s).__name__)

    def jump(self, label):
        if self.order.index(label) <= self.position:
            self.maker.emit_back_edge()
        self.builder.branch(self.blocks[label])


def _in_memory(blocks):
    """The variables that several blocks share, and what a function returns."""
    places = {"return": {0, 1}}
    for label, block in blocks.items():
        for statement in block.body:
            for variable in () if isinstance(statement, numba_ir.Del) else statement.list_vars():
                places.setdefault(variable.name, set()).add(label)
            value = getattr(statement, "value", None)
            if isinstance(value, numba_ir.Expr) and value.op == "phi":
                places[statement.target.name].add(None)
                for source, origin in zip(value.incoming_values, value.incoming_blocks, strict=True):
                    if isinstance(source, numba_ir.Var):
                        places.setdefault(source.name, set()).add(origin)
    return {name for name, labels in places.items() if len(labels) > 1}
