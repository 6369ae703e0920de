"""One function of a kernel, from Numba's typed statements to LLVM, in the place where it is called."""

import functools
import inspect
import operator
from types import SimpleNamespace

import numpy as np
from llvmlite import ir
from numba import cuda, types

from .....compiler import inference
from .....compiler.inference import DeviceFunction
from ...memory.scalars import dtype_of
from ..runtime import layout
from . import accesses, arithmetic
from .ir_values import (
    I1,
    I8,
    I32,
    I64,
    POINTER,
    Local,
    Loop,
    NotNative,
    Static,
    Tuple,
    View,
    constant,
    convert,
    is_number,
    leaves,
    lowered,
    rebuilt,
    same_structure,
)

numba_ir = inference.ir
INDICES = {
    id(cuda.threadIdx): ("thread", layout.THREAD_X), id(cuda.blockIdx): ("block", layout.BLOCK_X),
    id(cuda.blockDim): ("block", layout.BLOCK_DIM_X), id(cuda.gridDim): ("block", layout.GRID_DIM_X),
}  # fmt: skip


LARGE = 3000  # basic blocks: with many more LLVM takes longer than the interpreter


class Body:
    """The statements of one function, whose ``args`` are values; ``maker`` has the builder and all that the
    functions of a kernel share. ``place`` is the call site that its library functions stand for."""

    def __init__(self, maker, found, args, place=None):
        found.recall()
        if len(maker.function.basic_blocks) > LARGE:
            raise NotNative("a kernel so large that LLVM would take longer than the interpreter")
        if found.source is None:
            raise NotNative(f"{found.function.__name__} has no source")
        self.maker, self.found, self.builder = maker, found, maker.builder
        self.args, self.place = args, place
        self.known, self.slots, self.returned = {}, {}, None
        self.fresh, self.kept = {}, _in_memory(found.ir.blocks)
        self.blocks, self.order = self._blocks()

    def _blocks(self):
        """(LLVM's block for each of Numba's, Numba's labels so that a definition comes before its uses)"""
        blocks, done, order = self.found.ir.blocks, set(), []

        def visit(label):
            stack = [(label, iter(blocks[label].terminator.get_targets()))]
            done.add(label)
            while stack:
                label, targets = stack[-1]
                following = next((t for t in targets if t not in done), None)
                if following is None:
                    order.append(label)
                    stack.pop()
                else:
                    done.add(following)
                    stack.append((following, iter(blocks[following].terminator.get_targets())))

        first = min(blocks)
        visit(first)
        order.reverse()
        made = {label: self.builder.append_basic_block(f"b{label}") for label in order}
        return made, order

    def lower(self):
        """Write all statements; what the function returns."""
        self.builder.branch(self.blocks[self.order[0]])
        self.after = self.builder.append_basic_block("after")
        self.phis = self._phis()
        for number, label in enumerate(self.order):
            self.number = number
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
                        if isinstance(source, numba_ir.Var):
                            phis.setdefault(origin, []).append((statement.target.name, source.name))
        return phis

    def merge(self, label):
        """Hand on what blocks after this one unite: all at once."""
        phis = self.phis.get(label, ())
        for target, value in [(target, self.value_as(source, self.kind(target))) for target, source in phis]:
            self.write(target, value)

    # --- variables --------------------------------------------------------------------------------
    def kind(self, name):
        return self.found.typemap[name]

    def read(self, name):
        """The value of a variable."""
        if name in self.fresh:
            return self.fresh[name]
        if name in self.slots:
            value = self.fresh[name] = self._loaded(name)
            return value
        if name in self.known:
            return self.known[name]
        kind = self.kind(name)
        if is_number(kind):  # set in a block that comes later
            self._make_slots(name, ir.Constant(lowered(kind), ir.Undefined))
            return self.read(name)
        raise NotNative(f"{name} is used before it is set")

    def write(self, name, value):
        """Set a variable."""
        if not leaves(value):
            if name in self.known and not same_structure(self.known[name], value):
                raise NotNative(f"{name} is one of several")
            self.known[name] = value
            return
        self.fresh[name] = value
        if name in self.kept or name in self.slots:
            self._store(name, value)

    def spill(self):
        """Have all variables in memory: what comes next forgets the numbers."""
        for name, value in self.fresh.items():
            if name not in self.slots:
                self._store(name, value)
        self.fresh.clear()

    def variables(self):
        """(place, LLVM's type) of all that is in memory from one statement to another."""
        loops = [loop for loop in self.known.values() if isinstance(loop, Loop)]
        places = [(slot, lowered(o.kind)) for o in loops for slot in (o.next, o.stop, o.step)]
        return places + [pair for name, (_, slots) in self.slots.items() if name != "return" for pair in slots]

    def _make_slots(self, name, value):
        self.slots[name] = value, [(self.maker.slot(part.type), part.type) for part in leaves(value)]

    def _store(self, name, value):
        if name not in self.slots:
            self._make_slots(name, value)
        old, slots = self.slots[name]
        if not same_structure(old, value):
            raise NotNative(f"{name} is one of several")
        for (slot, _), part in zip(slots, leaves(value), strict=True):
            self.builder.store(part, slot)

    def _loaded(self, name):
        value, slots = self.slots[name]
        return rebuilt(value, iter([self.builder.load(slot, typ=kind) for slot, kind in slots]))

    def value_as(self, name, want):
        return self.converted(self.read(name), self.kind(name), want)

    def converted(self, value, kind, want):
        """A value of one type as another."""
        if isinstance(value, Static) and is_number(want):
            return constant(value.value, want)
        if isinstance(value, ir.Value) and is_number(kind) and is_number(want):
            return convert(self.builder, value, kind, want)
        if isinstance(value, Tuple) and isinstance(want, types.BaseTuple) and isinstance(kind, types.BaseTuple):
            parts = zip(value.parts, kind.types, want.types, strict=True)
            return Tuple([self.converted(*part) for part in parts])
        return value

    def constant_of(self, name):
        """The value that a variable is known to have, a number, a function or the like."""
        value = self.found.values.get(name)
        if isinstance(value, numba_ir.Var):
            return self.constant_of(value.name)
        if isinstance(value, (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar)):
            return value.value
        if isinstance(self.known.get(name), Static):
            return self.known[name].value
        if isinstance(value, numba_ir.Expr) and value.op == "getattr":
            return getattr(self.constant_of(value.value.name), value.attr)
        if isinstance(value, numba_ir.Expr) and value.op == "build_tuple":
            return tuple(self.constant_of(v.name) for v in value.items)
        kind = self.found.typemap.get(name)
        if isinstance(kind, types.Literal):
            return kind.literal_value
        raise NotNative(f"{name} is no constant")

    # --- statements -------------------------------------------------------------------------------
    def statement(self, s):
        if isinstance(s, numba_ir.Del):
            self.fresh.pop(s.value, None)
            return
        self.line = s.loc.line
        if isinstance(s, numba_ir.Assign):
            self.assign(s)
        elif isinstance(s, (numba_ir.SetItem, numba_ir.StaticSetItem)):
            signature = self.found.calltypes[s]
            index = s.index if isinstance(s, numba_ir.SetItem) else s.index_var
            value = self.converted(self.read(s.value.name), self.kind(s.value.name), signature.args[2])
            self.set_item(self.read(s.target.name), self.indices(index.name), value, signature.args[2])
        else:
            raise NotNative(type(s).__name__)

    def assign(self, s):
        name, value = s.target.name, s.value
        if isinstance(value, numba_ir.Arg):
            self.write(name, self.args[value.index])
        elif isinstance(value, (numba_ir.Const, numba_ir.Global, numba_ir.FreeVar)):
            self.write(name, self.held(Static(value.value), self.kind(name)))
        elif isinstance(value, numba_ir.Var):
            self.write(name, self.value_as(value.name, self.kind(name)))
        elif value.op != "phi":
            made = self.expression(value, name)
            self.write(name, self.held(made, self.kind(name)))

    @staticmethod
    def held(value, kind):
        """A number that is known, as a value of its type."""
        if isinstance(value, Static) and is_number(kind):
            return constant(value.value, kind)
        if isinstance(value, Static) and value.value is None:
            return None
        return value

    def terminator(self, s):
        if isinstance(s, numba_ir.Jump):
            self.jump(s.target)
        elif isinstance(s, numba_ir.Branch):
            condition = self.value_as(s.cond.name, types.boolean)
            targets = [self.builder.append_basic_block("edge") for _ in range(2)]
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
            raise NotNative(type(s).__name__)

    def jump(self, label):
        if self.order.index(label) <= self.number:
            self.maker.back()
        self.builder.branch(self.blocks[label])

    def leave_if(self, condition):
        """Have the kernel interpreted, from its start, where the condition holds."""
        self.maker.leave_if(condition)

    # --- expressions ------------------------------------------------------------------------------
    def expression(self, e, target):
        method = getattr(self, f"of_{e.op}", None)
        if method is None:
            raise NotNative(e.op)
        return method(e, target)

    def of_cast(self, e, target):
        return self.value_as(e.value.name, self.kind(target))

    def of_binop(self, e, target, fn=None):
        fn, signature = fn or e.fn, self.found.calltypes[e]
        if fn is operator.add and isinstance(signature.return_type, types.BaseTuple):
            return Tuple([p for v in (e.lhs, e.rhs) for p in self.read(v.name).parts])
        if not all(map(is_number, signature.args)):
            raise NotNative(f"{fn.__name__} of {signature.args}")
        kinds, result = [types.unliteral(k) for k in signature.args], types.unliteral(signature.return_type)
        left, right = self.value_as(e.lhs.name, kinds[0]), self.value_as(e.rhs.name, kinds[1])
        if kinds[0] != kinds[1] and isinstance(result, types.Integer) and arithmetic.wraps(fn):
            left, right = (convert(self.builder, *v, result) for v in ((left, kinds[0]), (right, kinds[1])))
            kinds = [result, result]
        divides = fn in (operator.floordiv, operator.mod) and isinstance(result, types.Integer)
        if kinds[0] != kinds[1] and divides:
            left, right = (self.not_negative(v, k) for v, k in zip((left, right), kinds, strict=True))
            kinds = [types.uint64, types.uint64]
        if kinds[0] != kinds[1]:
            raise NotNative(f"{fn.__name__} of {kinds}")
        if fn in arithmetic.COMPARISONS:
            return arithmetic.compare(self.builder, fn, left, right, kinds[0])
        if result != kinds[0] and isinstance(result, types.Integer) and arithmetic.wraps(fn):
            left, right = (convert(self.builder, v, kinds[0], result) for v in (left, right))
            kinds[0] = result
        value = arithmetic.binary(self, fn, left, right, kinds[0])
        return convert(self.builder, value, kinds[0], result)

    def not_negative(self, value, kind):
        """An integer as 64 bits without a sign; what is below zero is left to the interpreter."""
        if kind.signed:
            self.leave_if(self.builder.icmp_signed("<", value, ir.Constant(value.type, 0)))
        return convert(self.builder, value, kind, types.uint64)

    def of_inplace_binop(self, e, target):
        return self.of_binop(e, target, e.immutable_fn)

    def of_unary(self, e, target):
        signature = self.found.calltypes[e]
        if not is_number(signature.args[0]):
            raise NotNative("an operator of no number")
        kind, result = map(types.unliteral, (signature.args[0], signature.return_type))
        value = self.value_as(e.value.name, kind)
        if e.fn in (operator.not_, "not"):
            return self.builder.not_(convert(self.builder, value, kind, types.boolean))
        if e.fn is operator.neg and isinstance(kind, types.Float):
            return convert(self.builder, self.builder.fneg(value), kind, result)
        if isinstance(kind, types.Integer) and e.fn in (operator.neg, operator.invert):
            value = (self.builder.neg if e.fn is operator.neg else self.builder.not_)(value)
            return convert(self.builder, value, kind, result)
        if e.fn is operator.pos:
            return convert(self.builder, value, kind, result)
        raise NotNative(f"{e.fn} of {kind}")

    def of_build_tuple(self, e, target):
        kinds = self.kind(target).types
        parts = zip(e.items, kinds, strict=True)
        return Tuple([self.held(self.value_as(v.name, k), k) for v, k in parts])

    def of_exhaust_iter(self, e, target):
        value = self.read(e.value.name)
        if not isinstance(value, Tuple) or len(value.parts) != e.count:
            raise NotNative("unpacking of no tuple")
        return value

    def of_getattr(self, e, target):
        value, kind = self.known.get(e.value.name), self.kind(target)
        if isinstance(value, Static):
            if id(value.value) in INDICES:
                row, word = INDICES[id(value.value)]
                return self.maker.word(row, word + "xyz".index(e.attr), lowered(kind))
            found = getattr(value.value, e.attr)
            if e.attr == "laneid" and is_number(kind):
                tid = self.maker.word("thread", layout.TID, I32)
                return self.builder.and_(tid, ir.Constant(I32, 31))
            if is_number(kind) and not isinstance(found, (int, float, np.number)):
                raise NotNative(e.attr)
            return Static(found)
        value, owner = self.read(e.value.name), self.kind(e.value.name)
        if isinstance(value, Tuple) and isinstance(owner, types.BaseNamedTuple):
            return value.parts[owner.fields.index(e.attr)]
        if isinstance(value, View) and e.attr == "size":
            count = functools.reduce(self.builder.mul, value.shape)
            return convert(self.builder, count, types.int64, kind)
        if isinstance(value, View) and e.attr == "shape":
            return Tuple([convert(self.builder, n, types.int64, k)
                          for n, k in zip(value.shape, kind.types, strict=True)])  # fmt: skip
        raise NotNative(f".{e.attr} of {owner}")

    def of_getiter(self, e, target):
        value = self.read(e.value.name)
        if not isinstance(value, Loop):
            raise NotNative(f"a loop over {self.kind(e.value.name)}")
        return value

    def of_iternext(self, e, target):
        loop, builder = self.read(e.value.name), self.builder
        kind = lowered(loop.kind)
        at, stop, step = (builder.load(part, typ=kind) for part in (loop.next, loop.stop, loop.step))
        compare = builder.icmp_signed if loop.kind.signed else builder.icmp_unsigned
        zero = ir.Constant(kind, 0)
        up = builder.icmp_signed(">", step, zero) if loop.kind.signed else ir.Constant(I1, 1)
        more = builder.select(up, compare("<", at, stop), compare(">", at, stop))
        builder.store(builder.select(more, builder.add(at, step), at), loop.next)
        return Tuple([at, more])

    def of_pair_first(self, e, target):
        return self.read(e.value.name).parts[0]

    def of_pair_second(self, e, target):
        return self.read(e.value.name).parts[1]

    # --- parts of arrays and tuples ---------------------------------------------------------------
    def indices(self, name):
        """The numbers of an index, as 64 bits."""
        kind, value = self.kind(name), self.read(name)
        kinds = kind.types if isinstance(kind, types.BaseTuple) else [kind]
        values = value.parts if isinstance(value, Tuple) else [value]
        if not all(isinstance(k, (types.Integer, types.IntegerLiteral)) for k in kinds):
            raise NotNative(f"an index of type {kind}")
        return [self.converted(v, k, types.int64) for v, k in zip(values, kinds, strict=True)]

    def of_static_getitem(self, e, target):
        value = self.read(e.value.name)
        if isinstance(value, Tuple) and isinstance(e.index, int):
            return value.parts[e.index]
        if isinstance(value, Static) and isinstance(e.index, int):
            return Static(value.value[e.index])
        if e.index_var is None:
            raise NotNative(f"the index {e.index}")
        return self.get_item(value, self.indices(e.index_var.name), self.kind(target))

    def of_getitem(self, e, target):
        value = self.read(e.value.name)
        if isinstance(value, Tuple):
            return self.choose(value, self.indices(e.index.name)[0], self.kind(e.value.name))
        return self.get_item(value, self.indices(e.index.name), self.kind(target))

    def choose(self, value, index, kind):
        """One of a tuple of numbers of one type."""
        if not isinstance(kind, types.UniTuple) or not is_number(kind.dtype):
            raise NotNative("an index of a tuple of several types")
        self.leave_if(self.builder.icmp_unsigned(">=", index, ir.Constant(I64, len(value.parts))))
        chosen = value.parts[0]
        for i, part in enumerate(value.parts[1:], 1):
            here = self.builder.icmp_unsigned("==", index, ir.Constant(I64, i))
            chosen = self.builder.select(here, part, chosen)
        return chosen

    def get_item(self, array, indices, kind):
        if isinstance(array, Local):
            data, written = self.element(array, indices)
            self.leave_if(self.builder.icmp_unsigned("==", self.builder.load(written), ir.Constant(I8, 0)))
            return self.builder.load(data, typ=lowered(array.kind))
        if isinstance(array, View) and len(indices) == len(array.shape) and is_number(array.kind):
            return accesses.load_element(self, array, indices)
        raise NotNative(f"a part of {type(array).__name__}")

    def set_item(self, array, indices, value, kind):
        if isinstance(array, Local):
            data, written = self.element(array, indices)
            self.builder.store(self.converted(value, kind, array.kind), data)
            self.builder.store(ir.Constant(I8, 1), written)
        elif isinstance(array, View) and len(indices) == len(array.shape) and is_number(array.kind):
            accesses.store_element(self, array, indices, self.converted(value, kind, array.kind))
        else:
            raise NotNative(f"a part of {type(array).__name__}")

    def element(self, array, indices):
        """Pointers to an element of a local array, and to whether it has been written."""
        if len(indices) != len(array.shape):
            raise NotNative("a part of a local array")
        flat = ir.Constant(I64, 0)
        for i, n in zip(indices, array.shape, strict=True):
            size = ir.Constant(I64, n)
            negative = self.builder.icmp_signed("<", i, ir.Constant(I64, 0))
            i = self.builder.select(negative, self.builder.add(i, size), i)
            self.leave_if(self.builder.icmp_unsigned(">=", i, size))
            flat = self.builder.add(self.builder.mul(flat, size), i)
        data = self.builder.gep(array.data, [flat])
        return data, self.builder.gep(array.written, [flat])

    def local_array(self, shape, dtype):
        """A new array of this thread, none of which is written."""
        shape = tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)
        kind = dtype.dtype if isinstance(dtype, types.NumberClass) else dtype
        if not isinstance(kind, types.Type):
            kind = types.npytypes.from_dtype(dtype_of(kind))
        count = int(np.prod(shape))
        if not is_number(kind) or not 0 < count <= 4096:
            raise NotNative(f"a local array {shape} of {kind}")
        data, written = (self.maker.slot(t, count) for t in (lowered(kind), I8))
        clear = self.maker.declared("llvm.memset.p0.i64", ir.VoidType(), [POINTER, I8, I64, I1])
        self.builder.call(clear, [written, ir.Constant(I8, 0), ir.Constant(I64, count), ir.Constant(I1, 0)])
        return Local(data, written, shape, kind)

    # --- calls --------------------------------------------------------------------------------------
    def of_call(self, e, target):
        signature = self.found.calltypes[e]
        called = self.kind(e.func.name)
        given = [(self.read(v.name), self.kind(v.name)) for v in e.args]
        if e.vararg is not None:
            starred, kinds = self.read(e.vararg.name), self.kind(e.vararg.name)
            if not isinstance(starred, Tuple):
                raise NotNative("a starred argument that is no tuple")
            given += zip(starred.parts, kinds.types, strict=True)
        if isinstance(called, types.NumberClass):
            return self.converted(self.read(e.args[0].name), self.kind(e.args[0].name), signature.return_type)
        if isinstance(called, DeviceFunction):
            return self.device_function(called.dispatcher, e, given, signature, target)
        if isinstance(called, types.NamedTupleClass):
            fields = dict(zip(signature.return_type.fields, given, strict=False))
            fields |= {name: (self.read(v.name), self.kind(v.name)) for name, v in e.kws}
            parts = [(*fields[f], k) for f, k in zip(signature.return_type.fields, signature.return_type.types,
                                                     strict=True)]  # fmt: skip
            return Tuple([self.held(self.converted(v, a, k), k) for v, a, k in parts])
        function = self.constant_of(e.func.name)
        return accesses.call(self, SimpleNamespace(
            function=function, args=e.args, given=given, kws=dict(e.kws), signature=signature, target=target,
        ))

    def device_function(self, dispatcher, e, given, signature, target):
        """A call of a device function."""
        function = dispatcher.py_func
        found = inference.inferred(function, signature.args)
        form = inspect.signature(function)
        named = {name: (self.read(v.name), self.kind(v.name)) for name, v in e.kws}
        given, args = form.bind(*given, **named).arguments, []
        for (name, parameter), kind in zip(form.parameters.items(), signature.args, strict=True):
            if parameter.kind is parameter.VAR_POSITIONAL:
                parts = zip(given.get(name, ()), kind.types, strict=True)
                args.append(Tuple([self.held(self.converted(v, a, k), k) for (v, a), k in parts]))
            else:
                value = self.converted(*given[name], kind) if name in given else Static(parameter.default)
                args.append(self.held(value, kind))
        value = self.maker.called(self, found, args, target)
        return self.converted(value, found.return_type, signature.return_type)

    def site(self, used=True):
        """The number of the call site of what is written now."""
        return self.maker.site(self.found, self.line, used) if self.place is None else self.place


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


