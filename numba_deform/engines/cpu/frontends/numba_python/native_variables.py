"""The variables of one function in machine code: as LLVM's numbers, or in memory where several blocks share
them. The base of ``native_expressions``."""

from llvmlite import ir
from numba import types

from .....compiler import inference
from ...native.codegen import ir_values as irv
from ...native.codegen.function_body import FunctionBody
from ...native.runtime.llvm_types import I1

numba_ir = inference.ir


class Variables(FunctionBody):
    """What a function's variables hold. ``number`` is that of the statement's node, ``used`` whether something
    takes the value of its call, ``place`` the call site that a library's function stands for."""

    def kind(self, name):
        return self.found.typemap[name]

    def is_unset(self, name):
        """Whether a variable, None for none, has not been set on the way here."""
        if name is None or name in self.doubtful:
            return self.held_by(f"{name} is unset") if name else ir.Constant(I1, 1)
        return ir.Constant(I1, 0)

    def read(self, name):
        """The value of a variable; where it is unset the kernel is interpreted, which says so."""
        if name in self.doubtful and name not in self.fresh:
            self.bail_out_if(self.is_unset(name))
        return self.held_by(name)

    def held_by(self, name):
        """What a variable holds, set or not."""
        if name in self.fresh:
            return self.fresh[name]
        if name in self.slots:
            value = self.fresh[name] = self._loaded(name)
            return value
        if name in self.known:
            return self.known[name]
        kind = self.kind(name)
        if irv.is_number(kind):  # set in a block that comes later
            self._make_slots(name, ir.Constant(irv.lowered(kind), ir.Undefined))
            return self.read(name)
        raise irv.NotLowered(f"{name} is used before it is set")

    def write(self, name, value):
        """Set a variable."""
        if not irv.leaves(value):
            if name in self.known and irv.structure(self.known[name]) != irv.structure(value):
                raise irv.NotLowered(f"{name} is one of several")
            self.known[name] = value
            return
        self.fresh[name] = value
        if name in self.kept or name in self.slots:
            self._store(name, value)

    def spill(self):
        """Spill all live values to memory: the code that follows overwrites registers."""
        for name, value in self.fresh.items():
            if name not in self.slots:
                self._store(name, value)
        self.fresh.clear()

    def variables(self):
        """(place, LLVM's type) of all that is in memory from one statement to another."""
        loops = [loop for loop in self.known.values() if isinstance(loop, irv.Loop)]
        places = [(slot, irv.lowered(o.kind)) for o in loops for slot in (o.next, o.stop, o.step)]
        return places + [pair for name, (_, slots) in self.slots.items() if name != "return" for pair in slots]

    def _make_slots(self, name, value):
        self.slots[name] = value, [(self.maker.slot(part.type), part.type) for part in irv.leaves(value)]

    def _store(self, name, value):
        if name not in self.slots:
            self._make_slots(name, value)
        old, slots = self.slots[name]
        if irv.structure(old) != irv.structure(value):
            raise irv.NotLowered(f"{name} is one of several")
        for (slot, _), part in zip(slots, irv.leaves(value), strict=True):
            self.builder.store(part, slot)

    def _loaded(self, name):
        value, slots = self.slots[name]
        return irv.rebuilt(value, iter([self.builder.load(slot, typ=kind) for slot, kind in slots]))

    def value_as(self, name, want):
        return self.converted(self.read(name), self.kind(name), want)

    def converted(self, value, kind, want):
        """A value of one type as another, a number that is known as a value too."""
        if isinstance(value, irv.Static) and irv.is_number(want):
            return irv.constant(value.value, want)
        if isinstance(value, irv.Static) and value.value is None:
            return None
        if isinstance(value, ir.Value) and irv.is_number(kind) and irv.is_number(want):
            return irv.convert(self.builder, value, kind, want)
        if isinstance(value, irv.Tuple) and all(isinstance(k, types.BaseTuple) for k in (want, kind)):
            parts = zip(value.parts, kind.types, want.types, strict=True)
            return irv.Tuple([self.converted(*part) for part in parts])
        return value

    def constant_of(self, name):
        """The value that a variable is known to have, a number, a function or the like."""
        value = self.found.values.get(name)
        if isinstance(value, numba_ir.Var):
            return self.constant_of(value.name)
        if isinstance(value, (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar)):
            return value.value
        if isinstance(self.known.get(name), irv.Static):
            return self.known[name].value
        if isinstance(value, numba_ir.Expr) and value.op == "getattr":
            return getattr(self.constant_of(value.value.name), value.attr)
        if isinstance(value, numba_ir.Expr) and value.op == "build_tuple":
            return tuple(self.constant_of(v.name) for v in value.items)
        kind = self.found.typemap.get(name)
        if isinstance(kind, types.Literal):
            return kind.literal_value
        raise irv.NotLowered(f"{name} is no constant")

    def site(self):
        if self.place is not None:
            return self.place
        function, number = self.found.function, self.number
        line = self.found.lines.get(number, function.__code__.co_firstlineno)
        return self.maker.site(function, number, self.used, line)
