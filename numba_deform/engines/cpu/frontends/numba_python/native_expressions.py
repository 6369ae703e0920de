"""Numba's typed expressions in machine code: operators, parts of arrays and tuples, calls. The base of
``native_body``."""

import functools
import inspect
import operator
from collections import Counter
from types import SimpleNamespace

import numpy as np
from llvmlite import ir
from numba import cuda, types

from .....compiler import inference
from ...memory.scalars import dtype_of
from ...native.codegen import accesses, arithmetic, warpgroups
from ...native.codegen import ir_values as irv
from ...native.codegen.function_body import PLACES
from ...native.runtime.llvm_types import I1, I8, I64
from . import native_calls
from .name_binding import is_modelled
from .native_variables import Variables, numba_ir

INDICES = {id(getattr(cuda, name)): name for name in PLACES}


class Expressions(Variables):
    """``of_NAME`` writes the expression that Numba calls so, and returns its value."""

    def expression(self, e, target):
        method = getattr(self, f"of_{e.op}", None)
        if method is None:
            raise irv.NotLowered(e.op)
        return method(e, target)

    def of_cast(self, e, target):
        return self.value_as(e.value.name, self.kind(target))

    def of_binop(self, e, target, fn=None):
        fn, signature = fn or e.fn, self.found.calltypes[e]
        if fn is operator.add and isinstance(signature.return_type, types.BaseTuple):
            return irv.Tuple([p for v in (e.lhs, e.rhs) for p in self.read(v.name).parts])
        if not all(map(irv.is_number, signature.args)):
            raise irv.NotLowered(f"{fn.__name__} of {signature.args}")
        kinds, result = [types.unliteral(k) for k in signature.args], types.unliteral(signature.return_type)
        left, right = self.value_as(e.lhs.name, kinds[0]), self.value_as(e.rhs.name, kinds[1])
        kind, fit = kinds[0], irv.convert
        if isinstance(result, types.Integer) and arithmetic.wraps(fn):
            kind = result
        elif kinds[0] != kinds[1]:
            if fn not in (operator.floordiv, operator.mod) or not isinstance(result, types.Integer):
                raise irv.NotLowered(f"{fn.__name__} of {kinds}")
            kind, fit = types.uint64, self.not_negative
        left, right = fit(self.builder, left, kinds[0], kind), fit(self.builder, right, kinds[1], kind)
        if fn in arithmetic.COMPARISONS:
            return arithmetic.compare(self.builder, fn, left, right, kind)
        return irv.convert(self.builder, arithmetic.binary(self, fn, left, right, kind), kind, result)

    def not_negative(self, builder, value, kind, want):
        """An integer as one without a sign; what is below zero is left to the interpreter."""
        if kind.signed:
            self.bail_out_if(builder.icmp_signed("<", value, value.type(0)))
        return irv.convert(builder, value, kind, want)

    def of_inplace_binop(self, e, target):
        return self.of_binop(e, target, e.immutable_fn)

    def of_unary(self, e, target):
        signature = self.found.calltypes[e]
        if not irv.is_number(signature.args[0]):
            raise irv.NotLowered("an operator of no number")
        kind, result = map(types.unliteral, (signature.args[0], signature.return_type))
        value = self.value_as(e.value.name, kind)
        if e.fn in (operator.not_, "not"):
            return self.builder.not_(irv.convert(self.builder, value, kind, types.boolean))
        if e.fn is operator.neg and isinstance(kind, types.Float):
            return irv.convert(self.builder, self.builder.fneg(value), kind, result)
        if isinstance(kind, types.Integer) and e.fn in (operator.neg, operator.invert):
            value = (self.builder.neg if e.fn is operator.neg else self.builder.not_)(value)
            return irv.convert(self.builder, value, kind, result)
        if e.fn is operator.pos:
            return irv.convert(self.builder, value, kind, result)
        raise irv.NotLowered(f"{e.fn} of {kind}")

    def of_build_tuple(self, e, target):
        kinds = self.kind(target).types
        return irv.Tuple([self.value_as(v.name, k) for v, k in zip(e.items, kinds, strict=True)])

    def of_exhaust_iter(self, e, target):
        value = self.read(e.value.name)
        if not isinstance(value, irv.Tuple) or len(value.parts) != e.count:
            raise irv.NotLowered("unpacking of no tuple")
        return value

    def of_getattr(self, e, target):
        value, kind = self.known.get(e.value.name), self.kind(target)
        if isinstance(value, irv.Static):
            if id(value.value) in INDICES:
                return self.place_of(INDICES[id(value.value)], e.attr, irv.lowered(kind))
            found = getattr(value.value, e.attr)
            if e.attr == "laneid" and irv.is_number(kind):
                return self.lane()
            if irv.is_number(kind) and not isinstance(found, (int, float, np.number)):
                raise irv.NotLowered(e.attr)
            return irv.Static(found)
        value, owner = self.read(e.value.name), self.kind(e.value.name)
        if isinstance(value, irv.Tuple) and isinstance(owner, types.BaseNamedTuple):
            return value.parts[owner.fields.index(e.attr)]
        if isinstance(value, irv.View) and e.attr == "size":
            count = functools.reduce(self.builder.mul, value.shape)
            return irv.convert(self.builder, count, types.int64, kind)
        if isinstance(value, irv.View) and e.attr == "shape":
            return irv.Tuple([irv.convert(self.builder, n, types.int64, k)
                          for n, k in zip(value.shape, kind.types, strict=True)])  # fmt: skip
        if isinstance(value, irv.Element):
            return accesses.load_element(self, accesses.field_of(self, value, e.attr))
        raise irv.NotLowered(f".{e.attr} of {owner}")

    def of_getiter(self, e, target):
        value = self.read(e.value.name)
        if not isinstance(value, irv.Loop):
            raise irv.NotLowered(f"a loop over {self.kind(e.value.name)}")
        return value

    def of_iternext(self, e, target):
        loop, builder = self.read(e.value.name), self.builder
        kind = irv.lowered(loop.kind)
        at, stop, step = (builder.load(part, typ=kind) for part in (loop.next, loop.stop, loop.step))
        compare = builder.icmp_signed if loop.kind.signed else builder.icmp_unsigned
        zero = ir.Constant(kind, 0)
        up = builder.icmp_signed(">", step, zero) if loop.kind.signed else ir.Constant(I1, 1)
        more = builder.select(up, compare("<", at, stop), compare(">", at, stop))
        builder.store(builder.select(more, builder.add(at, step), at), loop.next)
        return irv.Tuple([at, more])

    def of_pair_first(self, e, target):
        return self.read(e.value.name).parts[0]

    def of_pair_second(self, e, target):
        return self.read(e.value.name).parts[1]

    def indices(self, name):
        """The numbers of an index, as 64 bits."""
        kind, value = self.kind(name), self.read(name)
        kinds = kind.types if isinstance(kind, types.BaseTuple) else [kind]
        values = value.parts if isinstance(value, irv.Tuple) else [value]
        if not all(isinstance(k, (types.Integer, types.IntegerLiteral)) for k in kinds):
            raise irv.NotLowered(f"an index of type {kind}")
        return [self.converted(v, k, types.int64) for v, k in zip(values, kinds, strict=True)]

    def of_static_getitem(self, e, target):
        value = self.read(e.value.name)
        if isinstance(value, irv.Tuple) and isinstance(e.index, int):
            return value.parts[e.index]
        if isinstance(value, irv.Static) and isinstance(e.index, int):
            return irv.Static(value.value[e.index])
        if isinstance(value, irv.Element) and isinstance(e.index, str):
            return accesses.load_element(self, accesses.field_of(self, value, e.index))
        if e.index_var is None:
            raise irv.NotLowered(f"the index {e.index}")
        return self.get_item(value, self.indices(e.index_var.name), self.kind(target))

    def of_getitem(self, e, target):
        value = self.read(e.value.name)
        if isinstance(value, irv.Tuple):
            return self.choose(value, self.indices(e.index.name)[0], self.kind(e.value.name))
        return self.get_item(value, self.indices(e.index.name), self.kind(target))

    def choose(self, value, index, kind):
        """One of a tuple of numbers of one type."""
        if not isinstance(kind, types.UniTuple) or not irv.is_number(kind.dtype):
            raise irv.NotLowered("an index of a tuple of several types")
        self.bail_out_if(self.builder.icmp_unsigned(">=", index, ir.Constant(I64, len(value.parts))))
        chosen = value.parts[0]
        for i, part in enumerate(value.parts[1:], 1):
            here = self.builder.icmp_unsigned("==", index, ir.Constant(I64, i))
            chosen = self.builder.select(here, part, chosen)
        return chosen

    def get_item(self, array, indices, kind):
        if isinstance(array, irv.Local):
            data, written = self.element(array, indices)
            self.bail_out_if(self.builder.icmp_unsigned("==", self.builder.load(written), ir.Constant(I8, 0)))
            return self.builder.load(data, typ=irv.lowered(array.kind))
        if isinstance(array, irv.View) and len(indices) == len(array.shape):
            found = accesses.element_of(self, array, indices)
            return found if isinstance(kind, types.Record) else accesses.load_element(self, found)
        raise irv.NotLowered(f"a part of {type(array).__name__}")

    def set_item(self, array, indices, value, kind):
        if isinstance(array, irv.Local):
            data, written = self.element(array, indices)
            self.builder.store(self.converted(value, kind, array.kind), data)
            self.builder.store(ir.Constant(I8, 1), written)
        elif isinstance(array, irv.View) and len(indices) == len(array.shape) and irv.is_number(array.kind):
            found = accesses.element_of(self, array, indices)
            accesses.store_element(self, found, self.converted(value, kind, array.kind))
        else:
            raise irv.NotLowered(f"a part of {type(array).__name__}")

    def element(self, array, indices):
        """Pointers to an element of a local array, and to whether it has been written."""
        if len(indices) != len(array.shape):
            raise irv.NotLowered("a part of a local array")
        flat = ir.Constant(I64, 0)
        for i, n in zip(indices, array.shape, strict=True):
            size = ir.Constant(I64, n)
            negative = self.builder.icmp_signed("<", i, ir.Constant(I64, 0))
            i = self.builder.select(negative, self.builder.add(i, size), i)
            self.bail_out_if(self.builder.icmp_unsigned(">=", i, size))
            flat = self.builder.add(self.builder.mul(flat, size), i)
        if warpgroups.may_be_sums(array):
            warpgroups.touch(self, array)
        data = self.builder.gep(array.data, [flat])
        return data, self.builder.gep(array.written, [flat])

    def local_array(self, shape, dtype):
        """A new array of this thread, none of which is written."""
        shape = tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)
        kind = dtype.dtype if isinstance(dtype, types.NumberClass) else dtype
        if not isinstance(kind, types.Type):
            kind = types.npytypes.from_dtype(dtype_of(kind))
        count = int(np.prod(shape))
        if not irv.is_number(kind) or not 0 < count <= 4096:
            raise irv.NotLowered(f"a local array {shape} of {kind}")
        marks = count + warpgroups.SPARE
        data, written = self.maker.slot(irv.lowered(kind), count), self.maker.slot(I8, marks)
        self.maker.fill(written, 0, marks)
        return irv.Local(data, written, shape, kind)

    def of_call(self, e, target):
        signature, called, self.used = self.found.calltypes[e], self.kind(e.func.name), self.is_used(target)
        given, named = list(map(self.typed, e.args)), {name: self.typed(v) for name, v in e.kws}
        if e.vararg is not None:
            starred, kinds = self.typed(e.vararg)
            if not isinstance(starred, irv.Tuple):
                raise irv.NotLowered("a starred argument that is no tuple")
            given += zip(starred.parts, kinds.types, strict=True)
        if isinstance(called, types.NumberClass):
            return self.converted(*given[0], signature.return_type)
        if isinstance(called, types.BoundFunction):
            raise irv.NotLowered(f"the method {called}")
        if not is_modelled(getattr(called, "typing_key", None)):
            if found := inference.inferred_call(called, signature):
                args = self.bound(found.function, given, named, signature.args)
                value = self.maker.called(self, found, args)
                return self.converted(value, found.return_type, signature.return_type)
        if isinstance(called, types.NamedTupleClass):
            kinds = signature.return_type.types
            return irv.Tuple(self.bound(called.instance_class, given, named, kinds))
        function = self.constant_of(e.func.name)
        return native_calls.call(self, SimpleNamespace(
            function=function, args=e.args, given=given, kws=dict(e.kws), signature=signature, target=target,
        ))

    def is_used(self, name):
        """Whether a statement takes the value of a variable, which one alone sets."""
        if self.found.used is None:
            statements = (s for block in self.found.ir.blocks.values() for s in block.body)
            names = (v.name for s in statements if not isinstance(s, numba_ir.Del) for v in s.list_vars())
            self.found.used = Counter(names)
        return self.found.used[name] > 1

    def typed(self, variable):
        """(its value, Numba's type of it)"""
        return self.read(variable.name), self.kind(variable.name)

    def bound(self, function, given, named, kinds):
        """The arguments of a call of a Python function, as values of types ``kinds``."""
        form, args = inspect.signature(function), []
        given = form.bind(*given, **named).arguments
        for (name, parameter), kind in zip(form.parameters.items(), kinds, strict=True):
            if parameter.kind is parameter.VAR_POSITIONAL:
                parts = zip(given.get(name, ()), kind.types, strict=True)
                args.append(irv.Tuple([self.converted(v, a, k) for (v, a), k in parts]))
            else:
                value = given.get(name, (irv.Static(parameter.default), None))
                args.append(self.converted(*value, kind))
        return args
