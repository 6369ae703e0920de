"""Device functions in machine code: where the statements of a function that is called stand.

One that asks nothing of Python and makes no access is an LLVM function. But a thread is one coroutine, which
has no stack where it gives way. So all other functions are parts of it, written once for the types of their
arguments: a call jumps there, and from there back to where it came from.
"""

from collections import Counter

from llvmlite import ir
from numba import types

from ...native.codegen import ir_values as irv
from ...native.codegen.coroutine import Coroutine
from ...native.codegen.writer import Writer
from ...native.runtime.llvm_types import I1, I32
from ...reports.call_sites import is_library
from .native_body import Body

HANDED = (*irv.VARIABLE, irv.Local)  # what an LLVM function is handed the parts of
FEW = 16  # calls of routines by one function for which LLVM may keep its variables as numbers


class Function(Writer):
    """A device function as an LLVM function, which returns its result, and before that whether it leaves."""

    may_leave = False

    def __init__(self, coroutine, found, args):
        self.coroutine, self.template = coroutine, _undefined(found.return_type)
        self.results = ir.LiteralStructType([I1, *(part.type for part in irv.leaves(self.template))])
        kinds = [part.type for part in irv.leaves(args, HANDED)]
        name = coroutine.module.get_unique_name(f"device.{found.function.__name__}")
        self.leaving, = self.begin(coroutine.module, name, self.results, kinds, "leaving", "start")
        self.function.linkage = "internal"
        try:
            value = Body(self, found, irv.rebuilt(args, iter(self.function.args[2:]), HANDED)).lower()
            if irv.structure(value) != irv.structure(self.template):
                raise irv.NotLowered("a result that is not as its type says")
        except irv.NotLowered:
            del self.module.globals[name]
            raise
        self._return(0, irv.leaves(value))
        self.builder.position_at_end(self.leaving)
        self._return(1, [])

    def _return(self, leaves_it, values):
        result = ir.Constant(self.results, ir.Undefined)
        for i, value in enumerate([I1(leaves_it), *values]):
            result = self.builder.insert_value(result, value, i)
        self.builder.ret(result)

    def bail_out_if(self, condition):
        self.may_leave = True
        super().bail_out_if(condition)

    def call(self, writer, args):
        """The result of a call that ``writer`` writes."""
        rows = [writer.rows[name][1] for name in ("thread", "block")]
        result = writer.builder.call(self.function, [*rows, *irv.leaves(args, HANDED)])
        parts = [writer.builder.extract_value(result, i) for i in range(len(self.results.elements))]
        if self.may_leave:
            writer.bail_out_if(parts[0])
        return irv.rebuilt(self.template, iter(parts[1:]))

    def called(self, caller, found, args):
        function = self.coroutine.function_of(found, args)
        if function is None:
            raise irv.NotLowered("a function that is part of the coroutine")
        return function.call(self, args)

    def _refuse(self, *args, **more):
        raise irv.NotLowered("asks Python")

    request = check = emit_back_edge = emit_if_else = site = _refuse


class InlinedFunction:
    """A device function as a part of the coroutine."""

    def __init__(self, coroutine, found, args, place):
        self.coroutine, builder, self.calls = coroutine, coroutine.builder, 0
        self.slots = [(coroutine.slot(part.type), part.type) for part in irv.leaves(args)]
        self.caller = coroutine.slot(I32)
        self.start, never = coroutine.blocks(found.function.__name__, "never")
        with builder.goto_block(self.start):
            loaded = iter([builder.load(slot, typ=kind) for slot, kind in self.slots])
            self.body = Body(coroutine, found, irv.rebuilt(args, loaded), place)
            result = self.body.lower()
            self.again = _arrays(result) <= _arrays(args)  # a new array is a call's own
            self.ways_back = builder.switch(builder.load(self.caller, typ=I32), never)
        with builder.goto_block(never):
            builder.unreachable()

    def call(self, args):
        """The result of a call."""
        builder = self.coroutine.builder
        for (slot, _), part in zip(self.slots, irv.leaves(args), strict=True):
            builder.store(part, slot)
        number, (after,) = ir.Constant(I32, self.calls), self.coroutine.blocks("after")
        self.calls += 1
        builder.store(number, self.caller)
        builder.branch(self.start)
        self.ways_back.add_case(number, after)
        builder.position_at_end(after)
        return self.body.result()


class NumbaCoroutine(Coroutine):
    """A kernel's thread as Numba has typed it, with the device functions that it calls."""

    def __init__(self, module, found):
        self.found = found
        self.functions, self.routines, self.routine_calls = {}, {}, Counter()  # by Body
        super().__init__(module, found.args, lambda maker, args: Body(maker, found, args).lower())

    def function_of(self, found, args):
        """The :class:`Function` for a call; None if there can be none."""
        key = found, irv.structure(args, lambda array: (array.shape, array.kind))
        if key not in self.functions:
            try:
                self.functions[key] = Function(self, found, args)
            except irv.NotLowered:
                self.functions[key] = None
        return self.functions[key]

    def called(self, caller, found, args):
        """What a function returns that the Body ``caller`` calls."""
        function = self.function_of(found, args)
        if function:
            return function.call(self, args)
        place = caller.site() if is_library(found.function, self.found.function) else None
        key = found, place, irv.structure(args)
        caller.spill()
        self.routine_calls[caller] += 1
        routine = self.routines.get(key)
        if routine is None:
            routine = InlinedFunction(self, found, args, place)
            if routine.again:
                self.routines[key] = routine
        return routine.call(args)

    def pin_to_memory(self):
        """Keep the variables of those who often call routines in memory. To LLVM it seems that a routine may
        return to any of its callers, so that each number would be handed on by all of them."""
        for caller, calls in self.routine_calls.items():
            for slot, kind in caller.variables() if calls > FEW else ():
                self.fill(slot, 0, irv.size_of(kind), volatile=True)


def _arrays(value):
    """The pointers of the local arrays that a value has."""
    return set(irv.leaves(value, HANDED)) - set(irv.leaves(value))


def _undefined(kind):
    """A value of Numba's type, if it consists of numbers."""
    if isinstance(kind, types.NoneType):
        return None
    if isinstance(kind, types.BaseTuple):
        return irv.Tuple([_undefined(k) for k in kind.types])
    if not irv.is_number(kind):
        raise irv.NotLowered(f"a result of type {kind}")
    return ir.Constant(irv.lowered(kind), ir.Undefined)
