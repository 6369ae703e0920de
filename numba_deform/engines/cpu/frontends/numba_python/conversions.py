"""What Numba says of a node of a kernel's source, and how a value becomes one of the type that Numba gives it.
``typed_code`` writes these into the kernel."""

import ast
import math

import numpy as np
from numba import types

from .....compiler.inference import bounds_of, ir
from ...reports.call_sites import TEMPORARY
from . import arithmetic

EXACT = 1 << 53  # integers up to here are floats exactly
PLAIN = (types.Integer, types.Float, types.Boolean)
DATES = (types.NPDatetime, types.NPTimedelta)  # NumPy's own, with its operators


def kind_of(kind):
    """How a value of Numba's type is represented: ``int``, ``bool``, ``float``, np.float32, a tuple of these
    for a tuple; None where nothing is ever converted."""
    if isinstance(kind, (types.Boolean, types.BooleanLiteral)):
        return bool
    if isinstance(kind, (types.Integer, types.IntegerLiteral)):
        return int
    if isinstance(kind, types.BaseTuple) and not isinstance(kind, types.StarArgTuple):
        return tuple(map(kind_of, kind.types)) if len(kind) else None
    if kind == types.float64:
        return float
    return arithmetic.SCALARS.get(str(kind))


def marked(node, inner, mask):
    """``node``, which is ``inner`` modulo ``mask`` + 1."""
    node.inner = inner, mask
    return node


def within(node, mask):
    """What may stand for ``node`` where only its value modulo ``mask`` + 1 matters: sums, differences and
    products need not be wrapped on the way."""
    while getattr(node, "inner", (None, 0))[1] >= mask:
        node = node.inner[0]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        node.left, node.right = within(node.left, mask), within(node.right, mask)
    return node


def _is_own(statement):
    """True for statements that Numba adds itself: phi nodes, and the bool of a condition."""
    name = statement.target.name
    return name.startswith(("$phi", "$bool")) or name.endswith("pred")


class Conversions(ast.NodeTransformer):
    """Questions to Numba about one function's tree. ``names`` is filled with the names that the new nodes
    use, ``calls`` with the names of device functions, and what was inferred for each."""

    def __init__(self, found):
        self.found, self.names, self.calls = found, {}, {}
        # Variables that hold values of several kinds: they are converted where they are read.
        self.mixed = {n for n, kinds in found.kinds.items() if len(set(map(kind_of, kinds))) > 1}

    def expressions(self, node, *ops):
        """Numba's expressions of these operations at a node: several where Python's compiler made copies of
        the node, as of the condition of a loop."""
        return [s.value for s in self.statements(node) if isinstance(s.value, ir.Expr) and s.value.op in ops]

    def statements(self, node):
        """Numba's statements at a node. The call of ``module.f(x)`` stands where ``module.f`` does; at itself,
        in ``if module.f(x):`` since Python 3.12, the call of bool."""
        at = self.found.at.get(node.number, ())
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            both = *at, *self.found.at.get(node.func.number, ())
            return [s for s in both if isinstance(s.value, ir.Expr) and s.value.op == "call" and not _is_own(s)]
        return at

    def type_at(self, node):
        """Numba's type of a node's value, None where Numba has none (dead code) or copies disagree."""
        if isinstance(node, (ast.IfExp, ast.BoolOp, ast.NamedExpr)):
            return None
        at = [s for s in self.statements(node) if s.target.name[0] == "$"]
        kind = self.common([s.target for s in at])
        if kind is None:  # statements of Numba's own stand there too
            kind = self.common([s.target for s in at if not _is_own(s)])
        return kind

    def common(self, variables):
        """The type of variables of Numba's, one for each copy of a node; None if they are represented in
        different ways."""
        kinds = [self.found.typemap[v.name] for v in variables]
        same = len({kind_of(k) or str(k) for k in kinds}) == 1
        return max(kinds, key=lambda k: getattr(k, "bitwidth", 0)) if same else None

    def bounds(self, variables):
        """What integers these variables may hold, None if any is no integer."""
        found = [self.found.bounds(v.name) for v in variables]
        return (min(f[0] for f in found), max(f[1] for f in found)) if found and all(found) else None

    def signature(self, expressions):
        found = [self.found.calltypes.get(e) for e in expressions]
        other = [f for f in found if f is not None and kind_of(f.return_type) is not int]
        return (other or found)[0]

    def constant_at(self, node):
        """The number that Python's compiler or the author wrote, in a tuple; () if it is none."""
        at = self.found.at.get(node.number, ())
        values = {s.value.value if isinstance(s.value, ir.Const) else None for s in at}
        is_number = len(values) == 1 and isinstance(next(iter(values)), (int, float))
        return tuple(values) if is_number else ()

    def name(self, name, value):
        self.names[f"__{name}"] = value
        return ast.Name(f"__{name}", ast.Load())

    def call(self, function, *args):
        return ast.Call(self.name(function, getattr(arithmetic, function)), list(args), [])

    def constant(self, value, kind):
        """A literal as a value of a type."""
        with np.errstate(over="ignore"):
            value = arithmetic.caster(kind)(value)
        if isinstance(value, np.generic):
            return self.name(f"{kind}_{value.tobytes().hex()}", value)
        if isinstance(value, float) and not math.isfinite(value) or isinstance(value, tuple):
            return self.name(f"{kind}_{value}", value)
        return ast.Constant(value)

    def value(self, node, variables=(), want=None):
        """The node's value, as type ``want``; ``variables`` are what Numba holds it in."""
        actual = self.common(variables) if variables else self.type_at(node)
        for number in self.constant_at(node):
            kind = next((k for k in (want, actual) if kind_of(k)), types.none)
            return ast.copy_location(self.constant(number, types.unliteral(kind)), node)
        kinds, place = self.kinds(node), node
        node = self.visit(node)
        if actual is None and kind_of(want):
            node = self.name_call(want, node)
        elif kind_of(actual) and kinds - {kind_of(actual)}:
            node = self.name_call(actual, node)
        if actual is not None and want is not None:
            node = self.cast(node, actual, want, self.bounds(variables) if variables else bounds_of(actual))
        return ast.copy_location(node, place)

    def kinds(self, node):
        """How the visited node's value may be represented: nothing for the kind that its type has."""
        if isinstance(node, ast.IfExp):
            return self.kinds_or_own(node.body) | self.kinds_or_own(node.orelse)
        if isinstance(node, ast.BoolOp):
            return set().union(*map(self.kinds_or_own, node.values))
        return set()

    def kinds_or_own(self, node):
        return self.kinds(node) or {kind_of(self.type_at(node))}

    def name_call(self, kind, node):
        """``node`` converted by what it is when the kernel runs."""
        name = f"to_{''.join(c if c.isalnum() else '_' for c in str(types.unliteral(kind)))}"
        return ast.Call(self.name(name, arithmetic.caster(types.unliteral(kind))), [node], [])

    def cast(self, node, actual, want, bounds):
        """``node``, of type ``actual``, as type ``want``."""
        want = types.unliteral(want)
        have, kind = kind_of(actual), kind_of(want)
        if kind is None or have is None:
            return node
        if kind is int and have in (int, bool):
            node = ast.Call(self.name("int", int), [node], []) if have is bool else node
            return self.wrapped(node, bounds, want)
        if have == kind:
            return node
        if kind is float and have is not tuple:
            return self.call("float64", node)
        if kind is np.float32 and (have is float or bounds and -EXACT <= bounds[0] and bounds[1] <= EXACT):
            return self.call("float32", node)
        return self.name_call(want, node)

    def wrapped(self, node, bounds, kind):
        """An integer that may be in ``bounds``, None for anything, as a type stores it."""
        low, high = bounds_of(kind)
        if bounds and low <= bounds[0] and bounds[1] <= high:
            return node
        if kind == types.boolean or 0 > low > -(1 << 31):
            return self.name_call(kind, node)
        node = within(node, high - low)
        if low == 0:
            return marked(ast.BinOp(node, ast.BitAnd(), ast.Constant(high)), node, high - low)
        if isinstance(node, ast.Name):
            value, again = node, node
        else:
            value = ast.NamedExpr(ast.Name(TEMPORARY, ast.Store()), node)
            again = ast.Name(TEMPORARY, ast.Load())
        inside = ast.Compare(ast.Constant(low), [ast.LtE(), ast.LtE()], [value, ast.Constant(high)])
        folded = ast.BinOp(
            ast.BinOp(ast.BinOp(again, ast.Sub(), ast.Constant(low)), ast.BitAnd(), ast.Constant(high - low)),
            ast.Add(), ast.Constant(low),
        )  # fmt: skip
        return marked(ast.IfExp(inside, again, folded), node, high - low)
