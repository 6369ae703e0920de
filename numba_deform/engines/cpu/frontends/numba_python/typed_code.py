"""A kernel's Python code with the types that Numba infers written into it.

A value stands for Numba's as follows: an integer is a Python int in the range of its type, a float64 a
Python float (or np.float64, which is one), float32 and float16 are np.float32 and np.float16. The generated
code is the function's own syntax tree, in which only those nodes are changed that plain Python would compute in
another type: operands are converted to the types that Numba picks for the operation, integers wrap, variables
that Numba unifies over branches have the unified type where they are read. Products and sums are rounded one by
one: contraction to a fused multiply-add is the compiler's freedom, and is not imitated. A function whose source
is not to be had by itself, such as a lambda, runs as it stands, and ``program.lacking`` says so if it computes.
"""

import ast
import functools
import operator
import types as python

import numpy as np
from numba import cuda, types
from numba.cuda.types import grid_group

from .....compiler import inference
from .....compiler.inference import bounds_of
from ...memory.arrays import ArrayView, unwritten
from ...memory.scalars import Undefined, as_int64
from ...native.codegen.ir_values import is_number
from ...reports.call_sites import ARRAY, INDEX, TEMPORARY
from ..math_functions import MATH
from . import arithmetic
from .conversions import DATES, PLAIN, Conversions, kind_of, within
from .name_binding import is_modelled

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.USub: operator.neg, ast.Invert: operator.invert,
}  # fmt: skip
HELPED = {ast.Div: "divide", ast.FloorDiv: "floor_divide", ast.Mod: "remainder", ast.Pow: "power",
          ast.LShift: "shift_left", ast.RShift: "shift_right"}  # fmt: skip
BITS = (cuda.popc, cuda.clz, cuda.brev)  # are told how many bits their operand has
WHOLE = (1 << 64) - 1
EXTREMES = ("min", "max")  # methods for which Numba has Python code, by the side of the engine's own


class Typed:
    """A function's code for the types of its arguments, and what its new names stand for."""

    def __init__(self, found):
        self.function, self.calls, self.names = found.function, {}, {}
        self.code, self.lack = found.function.__code__, found.lack
        if found.source is None:
            return  # it runs as it stands
        writer = _Writer(found)
        self.code, self.names = found.source.code_of(writer.visit(found.source.tree)), writer.names
        for name, called in writer.calls.items():
            self.calls[name] = typed(called)

    def __setstate__(self, state):
        """From disk, where the function may have come from another file of the same text."""
        vars(self).update(state)
        self.code = _in_file(self.code, self.function.__code__.co_filename)


def _in_file(code, file):
    """A code object, and those inside it, as if compiled from ``file``."""
    inner = tuple(_in_file(c, file) if isinstance(c, python.CodeType) else c for c in code.co_consts)
    return code.replace(co_filename=file, co_consts=inner)


def typed(found):
    """The :class:`Typed` of what was inferred; made once."""
    if found.form is None:
        found.keep(Typed(found))
    return found.form


class _Writer(Conversions):
    """Writes the types into one function's tree."""

    def visit_Name(self, node):
        if not isinstance(node.ctx, ast.Load) or node.id not in self.mixed:
            return node
        kind = self.type_at(node)
        return ast.copy_location(self.name_call(kind, node), node) if kind_of(kind) else node

    def visit_BinOp(self, node):
        found = self.expressions(node, "binop")
        if not found:
            return self.generic_visit(node)
        left, right = (node.left, [e.lhs for e in found]), (node.right, [e.rhs for e in found])
        return ast.copy_location(self.operation(node.op, self.signature(found), left, right), node)

    def operation(self, op, signature, left, right, loaded=None):
        """An operator with (node, Numba's variables) for each side; ``loaded`` is the left one if it is
        computed already."""
        result = signature.return_type
        kind = None if (dates := any(isinstance(k, DATES) for k in signature.args)) else kind_of(result)
        wanted = signature.args if kind is not None and not isinstance(kind, tuple) else (None, None)
        limits = [self.bounds(variables) for _, variables in (left, right)]
        if loaded is None:
            first = self.value(*left, wanted[0])
        else:
            actual = self.common(left[1])
            first = loaded if actual else self.name_call(wanted[0], loaded)
            first = self.cast(first, actual, wanted[0], limits[0]) if actual else first
        sides = [first, self.value(*right, wanted[1])]
        name = HELPED.get(type(op))
        if wanted[0] is not None and name and not self.plain(op, kind, (right[0], sides[1]), limits):
            function = getattr(arithmetic, name)(types.unliteral(result))
            return ast.Call(self.name(f"{name}_{result}", function), sides, [])
        node = ast.BinOp(sides[0], op, sides[1])
        if dates:
            return self.name_call(result, node) if kind_of(result) else node
        if kind is int and isinstance(op, (ast.FloorDiv, ast.Mod)) and not self.not_zero(limits[1]):
            node = ast.IfExp(sides[1], node, ast.Constant(0))
        if kind is not int or isinstance(op, (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Mod, ast.RShift)):
            return node
        inside = [limit and self.clipped(limit, want) for limit, want in zip(limits, wanted, strict=True)]
        return self.wrapped(node, inference.combined(OPERATORS[type(op)], *inside), result)

    @staticmethod
    def clipped(limit, kind):
        low, high = bounds_of(kind) or limit
        return limit if low <= limit[0] and limit[1] <= high else (low, high)

    @staticmethod
    def plain(op, kind, right, limits):
        """Whether Python's own operator does what the GPU does. ``right``: the side as written, as it is."""
        if isinstance(op, (ast.LShift, ast.RShift)):
            return limits[1] and 0 <= limits[1][0] and limits[1][1] < 64
        written, side = right
        if isinstance(op, (ast.FloorDiv, ast.Mod)):  # a name can be asked whether it is 0, and divide then
            return kind is int and (isinstance(side, ast.Name) or _Writer.not_zero(limits[1]))
        if isinstance(op, ast.Div):
            return kind is not float or isinstance(written, ast.Constant) and written.value != 0
        return False

    @staticmethod
    def not_zero(limits):
        return limits and (limits[0] > 0 or limits[1] < 0)

    def visit_UnaryOp(self, node):
        found = self.expressions(node, "unary")
        if not found or isinstance(node.op, ast.Not):
            return self.generic_visit(node)
        signature, variables = self.signature(found), [e.value for e in found]
        (want,), result = signature.args, signature.return_type
        if result == types.boolean:
            return ast.copy_location(ast.UnaryOp(ast.Not(), self.value(node.operand, variables)), node)
        value = ast.UnaryOp(node.op, self.value(node.operand, variables, want))
        limits = self.bounds(variables)
        if kind_of(result) is int and limits and not isinstance(node.op, ast.UAdd):
            low, high = self.clipped(limits, want)
            limits = (-high, -low) if isinstance(node.op, ast.USub) else (~high, ~low)
            # Numba negates before it widens, so an unsigned number stays one of its own size.
            value = self.wrapped(value, limits, result if kind_of(want) is bool else want)
        return ast.copy_location(value, node)

    def visit_Compare(self, node):
        found, count = self.expressions(node, "binop"), len(node.ops)
        if not found or len(found) % count:
            return self.generic_visit(node)
        operands = [node.left, *node.comparators]
        wanted, variables = [None] * len(operands), [()] * len(operands)
        for i in range(count):
            copies = found[i::count] if count > 1 else found
            variables[i], variables[i + 1] = [e.lhs for e in copies], [e.rhs for e in copies]
            if self.needs_cast(signature := self.signature(copies), copies, operands[i], operands[i + 1]):
                wanted[i : i + 2] = signature.args
        operands = [*map(self.value, operands, variables, wanted)]
        kinds = count == 1 and isinstance(node.ops[0], (ast.Is, ast.IsNot)) and getattr(signature, "args", ())
        if kinds and all(map(kind_of, kinds)) and {*map(kind_of, kinds)} != {bool}:
            if kinds[0] == kinds[1]:
                node.ops = [ast.Eq() if isinstance(node.ops[0], ast.Is) else ast.NotEq()]
            else:  # such numbers are never the same to Numba, as two new lists are not
                operands = [ast.List([operand], ast.Load()) for operand in operands]
        node.left, *node.comparators = operands
        return node

    def needs_cast(self, signature, copies, left, right):
        """Whether Python compares these in another way than Numba, which converts both to one type."""
        if signature is None or not all(map(kind_of, signature.args)):
            return False
        kinds = [kind_of(self.common([getattr(e, side) for e in copies])) for side in ("lhs", "rhs")]
        if None in kinds or set(kinds) <= {int, bool}:
            return not {*map(kind_of, signature.args)} <= {int, bool}
        for operand, other in ((left, kinds[1]), (right, kinds[0])):
            for number in self.constant_at(operand):
                return other is not float and not (other is np.float32 and np.float32(number) == number)
        return kinds[0] != kinds[1]

    def visit_Call(self, node):
        found = self.expressions(node, "call")
        # In ``if f(x):`` Numba calls bool as well; since Python 3.12 that stands at the same place.
        found = [e for e in found if self.found.typemap[e.func.name] == self.found.typemap[found[0].func.name]]
        signature = self.signature(found) if found else None
        if signature is None:
            return self.generic_visit(node)
        device = self.device_function(node, found, signature)
        starred = node.keywords or any(isinstance(a, ast.Starred) for a in node.args)
        if starred or len(found[0].args) != len(node.args):
            node = self.generic_visit(node)
            node.args[:0] = device or []
            return node
        variables = [[e.args[i] for e in found] for i in range(len(node.args))]
        called = self.found.typemap[found[0].func.name]
        of_number = isinstance(called, types.BoundFunction) and isinstance(called.this, PLAIN)
        if of_number and getattr(node.func, "attr", None) == "item":
            return self.value(node.func.value)
        if isinstance(called, types.NumberClass) and len(node.args) == 1:
            return self.number(node, variables[0], signature.return_type)
        wanted = [None] * len(node.args)
        if len(signature.args) == len(node.args):
            wanted = [k if kind_of(k) and not isinstance(kind_of(k), tuple) else None for k in signature.args]
        node.args = [self.value(*arg) for arg in zip(node.args, variables, wanted, strict=True)]
        if device is not None:
            node.args[:0] = device
            return node
        function = getattr(called, "typing_key", None)
        if isinstance(function, np.ufunc):
            typed_function = arithmetic.elementwise(function, signature.args)
            name = f"{function.__name__}_{node.number}"
            node.func = ast.copy_location(self.name(name, typed_function), node.func)
            return node
        node.func = self.visit(node.func)
        if function in BITS:
            node.args.append(ast.Constant(signature.args[0].bitwidth))
        return self.function(node, function, signature.return_type)

    def device_function(self, node, found, signature):
        """Calls the typed form of a device function, or of what Numba runs in a function's or a method's place.
        Returns its first arguments, the array or number whose method it is; None if there is no such form."""
        called = self.found.typemap[found[0].func.name]
        method = isinstance(called, types.BoundFunction)
        own = method and (hasattr(ArrayView, node.func.attr) or called.this == grid_group)
        own = own and node.func.attr not in EXTREMES
        if own or is_modelled(getattr(called, "typing_key", None)):
            return None
        found = inference.inferred_call(called, signature)
        if found is None:
            return None
        name = f"__{found.function.__name__}_{node.number}"
        first = [self.value(node.func.value)] if method else []
        self.calls[name] = found
        node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return first

    def number(self, node, variables, result):
        """``int32(x)``."""
        argument, actual = node.args[0], self.common(variables)
        for number in self.constant_at(argument):
            return ast.copy_location(self.constant(number, result), node)
        value = self.value(argument, variables)
        if kind_of(actual) and kind_of(result):
            value = self.cast(value, actual, result, self.bounds(variables))
        else:
            value = self.name_call(result, value)
        return ast.copy_location(value, node)

    def function(self, node, function, result):
        """A call of a function of Python's or of ``math``, which may return another type than Numba's."""
        kind = kind_of(result)
        if kind is None or isinstance(kind, tuple):
            return node
        value = node
        if function in (int, float, bool) and len(node.args) == 1:
            value = node.args[0]
        elif function in arithmetic.FLOAT_BUILTINS and kind in (float, np.float32):
            node.func = self.name(f"{function.__name__}_float", arithmetic.FLOAT_BUILTINS[function])
        elif function is round:
            node.func = self.name("round", MATH[round])
        elif function in arithmetic.WHOLE_BUILTINS:
            node.func = self.name(f"{function.__name__}_whole", arithmetic.WHOLE_BUILTINS[function])
            return node
        elif function not in (abs, pow, sum) and function not in MATH:
            return node
        return ast.copy_location(self.name_call(result, value), node)

    def visit_Lambda(self, node):
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_Lambda

    def visit_IfExp(self, node):
        node.test = self.visit(node.test)
        node.body, node.orelse = self.value(node.body), self.value(node.orelse)
        return node

    def visit_BoolOp(self, node):
        node.values = [self.value(v) for v in node.values]
        return node

    def visit_Tuple(self, node):
        found = self.expressions(node, "build_tuple")
        if not found or len(found[0].items) != len(node.elts):
            return self.generic_visit(node)
        node.elts = [self.value(e, [f.items[i] for f in found]) for i, e in enumerate(node.elts)]
        return node

    def visit_Subscript(self, node):
        array, index = self.type_at(node.value), self.type_at(node.slice)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        kinds = [self.type_at(part) for part in parts]
        element = self.element_kind(node) if isinstance(node.ctx, ast.Load) else None
        node = self.generic_visit(node)
        if isinstance(array, types.Array):  # an array takes what is too large modulo 2^64
            if index == types.int64:
                node.slice = within(node.slice, WHOLE)
                node.may_wrap = not isinstance(node.slice, (ast.Name, ast.Constant))
            elif isinstance(node.slice, ast.Tuple):
                pairs = zip(node.slice.elts, kinds, strict=True)
                node.slice.elts = [within(p, WHOLE) if kind == types.int64 else p for p, kind in pairs]
        return self.loaded(node) if element else node

    def element_kind(self, node):
        """The type of an element for ``a[i]`` of an array of numbers with one dimension, else None. Such an
        element is reached without a call where the array is a local one: in ``a.values``."""
        array, index = self.type_at(node.value), self.type_at(node.slice)
        numbers = isinstance(array, types.Array) and isinstance(array.dtype, PLAIN) and array.ndim == 1
        nested = any(isinstance(part, ast.Subscript) for part in ast.walk(node.slice))
        return array.dtype if numbers and kind_of(index) is int and not nested else None

    def place(self, node):
        """The visited ``a[i]`` as a place in ``a.values``. ``error_origin`` knows the names."""
        array = ast.NamedExpr(ast.Name(ARRAY, ast.Store()), node.value)
        index = ast.NamedExpr(ast.Name(INDEX, ast.Store()), node.slice)
        if getattr(node, "may_wrap", False):  # a sum or product
            low, high, again = ast.Constant(-1), ast.Constant(1 << 30), ast.Name(INDEX, ast.Load())
            small = ast.Compare(low, [ast.Lt(), ast.Lt()], [index, high])
            whole = ast.Call(self.name("as_int64", as_int64), [again], [])
            index = ast.IfExp(small, again, ast.NamedExpr(ast.Name(INDEX, ast.Store()), whole))
        values = ast.Attribute(array, "values", ast.Load())
        return ast.copy_location(ast.Subscript(values, index, node.ctx), node)

    def loaded(self, node):
        """What is at that place; None stands for what nobody has written."""
        value = ast.NamedExpr(ast.Name(TEMPORARY, ast.Store()), self.place(node))
        there = ast.Compare(value, [ast.IsNot()], [ast.Constant(None)])
        absent = ast.Call(self.name("unwritten", unwritten), [ast.Name(INDEX, ast.Load())], [])
        return ast.copy_location(ast.IfExp(there, ast.Name(TEMPORARY, ast.Load()), absent), node)

    def stored_kind(self, target, value):
        """The type to which ``value`` is to be converted for ``target``; None where the target does so, which
        looks first whether it is undefined. Of integers as integers, that can still be seen."""
        kind = self.element_kind(target) if isinstance(target, ast.Subscript) else None
        same = kind and kind_of(self.type_at(value)) == kind_of(kind)
        return kind if same or self.constant_at(value) else None

    def target(self, node, kind):
        """A target of an assignment, whose value is of type ``kind`` already unless that is None."""
        node = self.visit(node)
        return self.place(node) if kind else node

    def visit_FunctionDef(self, node):
        if node is not self.found.source.tree:
            return node
        node.body = [part for statement in node.body for part in self.parts(statement)]
        node.body[:0] = [ast.copy_location(each, node) for each in self.unset()]
        return node

    def unset(self):
        """Statements by which the numbers have no value that are not set on all paths."""
        phis = [s for block in self.found.ir.blocks.values() for s in block.find_insts(inference.ir.Assign)
                if getattr(s.value, "op", "") == "phi" and inference.ir.UNDEFINED in s.value.incoming_values]
        numbers = [s.target.name for s in phis if is_number(self.found.typemap[s.target.name])]
        for name in sorted({number.partition(".")[0] for number in numbers}):
            why = ast.Constant(f"{name} has no value: this thread has not passed what sets it")
            value = ast.Call(self.name("unset", functools.partial(Undefined, kind="register")), [why], [])
            yield ast.Assign([ast.Name(name, ast.Store())], value)

    def parts(self, statement):
        done = self.visit(statement)
        return done if isinstance(done, list) else [done]

    def variables(self, target):
        """What of Numba's a name is assigned to."""
        at = self.found.at.get(target.number, ()) if isinstance(target, ast.Name) else ()
        return [s.target for s in at if s.target.name.partition(".")[0] == target.id]

    def visit_Assign(self, node):
        target = node.targets[0]
        pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        if pairs and len(target.elts) == len(node.value.elts) and len(node.targets) == 1:
            both = list(zip(target.elts, node.value.elts, strict=True))
            for variable, value in both:
                tell_name(variable, value)
            kinds = [self.stored_kind(t, v) for t, v in both]
            node.value.elts = [
                self.value(v, self.variables(t), k) for (t, v), k in zip(both, kinds, strict=True)
            ]
            target.elts = [self.target(t, k) for t, k in zip(target.elts, kinds, strict=True)]
            return node
        kind = self.stored_kind(target, node.value) if len(node.targets) == 1 else None
        node.value = self.value(node.value, self.variables(target), kind)
        node.targets = [self.target(t, kind) for t in node.targets]
        return node

    def visit_AugAssign(self, node):
        found, target = self.expressions(node, "inplace_binop"), node.target
        signature = self.signature(found) if found else None
        if signature is None or kind_of(signature.return_type) is None:
            return self.generic_visit(node)
        left, right = (None, [e.lhs for e in found]), (node.value, [e.rhs for e in found])
        if not isinstance(target, ast.Name):
            return self.element(node, signature, left, right)
        load = ast.Name(target.id, ast.Load())
        actual = self.common(left[1])
        if target.id in self.mixed and actual:
            load = self.name_call(actual, load)
        value = self.operation(node.op, signature, left, right, load)
        return ast.copy_location(ast.Assign([target], ast.copy_location(value, node)), node)

    def element(self, node, signature, left, right):
        """``a[i] += x``, and the same of an attribute."""
        target, actual = node.target, self.common(left[1])
        kind = self.element_kind(target) if isinstance(target, ast.Subscript) else None
        if kind and kind_of(signature.return_type) != kind_of(kind):
            kind = None  # as in stored_kind
        same = actual and kind_of(actual) == kind_of(signature.args[0])
        if same and not kind and type(node.op) not in HELPED:
            node.target, node.value = self.visit(target), self.value(*right, signature.args[1])
            return node
        statements, parts = [], {}
        for field in ("value", "slice") if isinstance(target, ast.Subscript) else ("value",):
            name = f"__{field}_{node.number}"
            parts[field] = ast.Name(name, ast.Load())
            statements.append(ast.Assign([ast.Name(name, ast.Store())], self.visit(getattr(target, field))))
        attribute = {"attr": target.attr} if isinstance(target, ast.Attribute) else {}
        load, store = (type(target)(**parts, **attribute, ctx=c) for c in (ast.Load(), ast.Store()))
        if kind:
            load, store = self.loaded(load), self.place(store)
        value = self.operation(node.op, signature, left, right, load)
        if kind:
            value = self.cast(value, signature.return_type, kind, bounds_of(signature.return_type))
        statements.append(ast.Assign([store], value))
        return [ast.copy_location(s, node) for s in statements]

    def visit_Return(self, node):
        if node.value is not None:
            variables = [e.value for e in self.expressions(node, "cast")]
            node.value = self.value(node.value, variables, self.found.return_type)
        return node


def tell_name(variable, value):
    """Hand a shared array that is made in one of several ``value`` of a statement its variable's name, for
    reports: by itself it finds the name that is stored next."""
    for call in (node for node in ast.walk(value) if isinstance(node, ast.Call)):
        if isinstance(variable, ast.Name) and ast.unparse(call.func).endswith("shared.array"):
            call.keywords.append(ast.keyword("name", ast.Constant(variable.id)))
