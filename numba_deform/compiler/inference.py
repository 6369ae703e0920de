"""Types of a kernel's expressions, as Numba infers them, without generating any code.

Every node of a function's syntax tree gets a number, which stands in the place of its line. Numba's front end
reads the function compiled from that tree, so that each of its statements, by its line, tells of which
node it is. Device functions are inferred where they are called, for the types of that call, and never inlined.
"""

import ast
import contextlib
import inspect
import operator
import re
import traceback
import types as python
import weakref
from collections import defaultdict, deque
from pathlib import Path
from unittest import mock

import numpy as np
from numba import types
from numba.core.errors import NumbaError, TypingError
from numba.cuda import compiler, descriptor
from numba.cuda import errors as cuda_errors
from numba.cuda.dispatcher import CUDADispatcher
from numba.np.numpy_support import as_dtype

from .rewrite import REBUILT, all_names, in_library, source_of

# With numba-cuda these are its own copies of Numba's modules; else they are Numba's.
_base = inspect.getmodule(compiler.CompilerBase)
_package = _base.__name__.rpartition(".")[0]
_part = lambda name: __import__(f"{_package}.{name}", fromlist=["_"])  # noqa: E731
interpreter, ir, postproc, transforms = map(_part, ("interpreter", "ir", "postproc", "transforms"))
ERRORS = (_part("errors").NumbaError, NumbaError, getattr(cuda_errors, "UnsupportedBytecodeError", NumbaError))
lock = _part("compiler_lock").global_compiler_lock

NUMBA_CUDA = "numba_cuda" in Path(compiler.__file__).parts
overload = __import__("numba.cuda.extending" if NUMBA_CUDA else "numba.extending", fromlist=["_"]).overload
FILE = "<numbered>"
KEPT = 8192  # functions whose types are kept
WHOLE = 256  # functions of which all is kept though they have a form: those of a few kernels
PLACE = ("lineno", "end_lineno", "col_offset", "end_col_offset")
COMPUTING = "binop", "inplace_binop", "unary"  # what Numba's expressions are called that compute
FIRST = 1_000  # the number of a function's first node
# The passes that a function without closures of its own and without literal_unroll needs.
PASSES = (
    "TranslateByteCode", "CUDATranslateBytecode", "FixupArgs", "IRProcessing", "RewriteSemanticConstants",
    "DeadBranchPrune", "GenericRewrites", "ReconstructSSA", "NopythonTypeInference"
)  # fmt: skip


class Refused(Exception):
    """Numba does not compile the function: its words, and the node that it means, or None."""

    def __init__(self, function, words, line):
        super().__init__(words)
        self.function, self.words, self.line = function, words, line


class NotInferred(Exception):
    """The types cannot be had: a function calls itself, or Numba's older front end does not know all."""


class DeviceFunction(types.Callable):
    """A device function for Numba's type inference: a call infers the function's own types."""

    def __init__(self, dispatcher):
        self.dispatcher = dispatcher
        super().__init__(f"device function {dispatcher.py_func.__qualname__} {id(dispatcher):x}")

    def declared(self, args):
        """The result's type where the function has been declared with its types; None where Numba infers it."""
        found = None if self.dispatcher._can_compile else self.dispatcher.overloads.get(args)
        return found and found.signature.return_type

    def get_call_type(self, context, args, kws, exact=False):
        signature = inspect.signature(self.dispatcher.py_func)
        if not self.dispatcher._can_compile:
            known = self.dispatcher.nopython_signatures
            found = context.resolve_overload(self, known, args, kws)
            return found and found.replace(pysig=signature)  # None: none of them fits
        try:
            bound = signature.bind(*args, **kws).arguments
        except TypeError as error:
            raise TypingError(str(error)) from None
        args = tuple(
            bound.get(name, types.Omitted(p.default)) for name, p in signature.parameters.items()
        )
        inline = self.dispatcher.targetoptions.get("inline", "never")
        # As a rule a constant matters by its type alone.
        plain = args if exact else tuple(types.unliteral(a) for a in args)
        try:
            found = inferred(self.dispatcher.py_func, plain, inline)
        except ERRORS:
            if plain == args:
                raise
            found = inferred(self.dispatcher.py_func, args, inline)
        return compiler.typing.signature(found.return_type, *found.args).replace(pysig=signature)

    def get_call_signatures(self):
        return (), False

    def get_impl_key(self, sig):
        return self.dispatcher, sig.args


class Inferred:
    """What is known of a function for the types of its arguments.

    ``source``      its source, whose ``tree`` has loops over static_range written out; None without source
    ``lack``        why it has none, if it computes anything
    ``at``          for the number of a node: Numba's statements (``ir.Assign``) there, in order
    ``typemap``     Numba's type for each of Numba's variables
    ``calltypes``   the signature for each of Numba's expressions
    ``values``      what a variable of Numba's is assigned
    ``ir``          Numba's blocks of statements
    ``lines``       the line in the file of each node's number
    ``used``        how many statements name each of Numba's variables, once somebody has asked
    ``form``        what ``keep`` was given. Of the functions that have one, all but the latest forget the rest
                    but the types of arguments and result, until ``recall``
    """

    def __init__(self, function, args, inline, declared, source, lines, state):
        self.function, self.args, self.inline, self.source = function, args, inline, source
        self.declared = declared
        self.typemap, self.calltypes, self.return_type = state.typemap, state.calltypes, state.return_type
        self.at, self.values, self.kinds = defaultdict(list), {}, defaultdict(set)
        for _, block in sorted(state.func_ir.blocks.items()):
            for statement in block.find_insts(ir.Assign):
                name = statement.target.name
                self.at[statement.loc.line].append(statement)
                self.values[name] = statement.value
                if name[0] != "$":
                    self.kinds[name.partition(".")[0]].add(self.typemap[name])
        self._bounds, self.form = {}, None
        self.ir, self.lines, self.used = state.func_ir, lines, None

    def keep(self, form):
        """Keep what was made of all this, ``form``; of older functions no more than callers have to know."""
        self.form = form
        _whole.append(self)
        while len(_whole) > WHOLE:
            _whole.popleft()._forget()

    def recall(self):
        """Have all again, if it is forgotten."""
        if self.ir is None:
            form = self.form
            with lock, _as_device_functions():
                vars(self).update(vars(_inferred(self.function, self.args, self.inline, self.declared)))
            self.form = form
            _whole.append(self)  # to forget others is for ``keep``: they may be in use just now

    def _forget(self):
        self.typemap = self.calltypes = self.at = self.values = self.kinds = self.source = self._bounds = None
        self.ir = self.lines = self.used = None

    # --- what integers may be -------------------------------------------------------------------------
    def bounds(self, name, depth=0):
        """(lowest, highest) that an integer variable of Numba's may hold, None for what is no integer."""
        if name not in self._bounds:
            limits = self._bounds[name] = bounds_of(self.typemap[name])
            if limits and limits[0] < limits[1] and depth < 100:
                found = self._found(self.values[name], depth + 1)
                if found and limits[0] <= found[0] and found[1] <= limits[1]:
                    self._bounds[name] = found
        return self._bounds[name]

    def _found(self, value, depth):
        if isinstance(value, ir.Var):
            return self.bounds(value.name, depth)
        if isinstance(value, (ir.Const, ir.Global, ir.FreeVar)):
            return (int(value.value),) * 2 if isinstance(value.value, int) else None
        if not isinstance(value, ir.Expr):
            return None
        of = lambda variable: self.bounds(variable.name, depth)  # noqa: E731
        if value.op == "phi":
            parts = [of(v) for v in value.incoming_values if isinstance(v, ir.Var)]
            return (min(p[0] for p in parts), max(p[1] for p in parts)) if parts and all(parts) else None
        if value.op in ("binop", "inplace_binop"):
            fn = value.fn if value.op == "binop" else value.immutable_fn
            return combined(fn, of(value.lhs), of(value.rhs))
        if value.op == "call" and len(value.args) == 1:
            if isinstance(self.typemap[value.func.name], types.NumberClass):
                return of(value.args[0])  # if it fits
        return self._range(value, of) if value.op == "pair_first" else None

    def _range(self, value, of):
        """The bounds of the variable of a loop over ``range``."""
        for op in ("iternext", "getiter", "call"):
            value = self.values[value.value.name]
            while isinstance(value, ir.Var):
                value = self.values[value.name]
            if getattr(value, "op", None) != op:
                return None
        args = [of(a) for a in value.args]
        if not str(self.typemap[value.func.name]).endswith("range'>)") or not all(args):
            return None
        start, stop = args[:2] if len(args) > 1 else ((0, 0), args[0])
        if len(args) > 2 and args[2][0] < 0:
            return min(start[0], stop[0]), max(start[1], stop[1])
        return start[0], max(start[0], stop[1] - 1)


def bounds_of(kind):
    """(lowest, highest) of an integer or boolean type, else None."""
    if isinstance(kind, types.IntegerLiteral):
        return (kind.literal_value,) * 2
    if isinstance(kind, (types.Boolean, types.BooleanLiteral)):
        return 0, 1
    return (kind.minval, kind.maxval) if isinstance(kind, types.Integer) else None


_MONOTONE = {operator.add, operator.sub, operator.mul}


def combined(fn, left, right):
    """The bounds of ``fn(left, right)`` for integers, None where they are not known."""
    if not left or not right:
        return None
    shifts = fn in (operator.rshift, operator.lshift) and 0 <= right[0] and right[1] < 64
    if fn in _MONOTONE or shifts or fn is operator.floordiv and right[0] > 0:
        corners = [fn(a, b) for a in left for b in right]
        return min(corners), max(corners)
    if fn is operator.and_ and (left[0] >= 0 or right[0] >= 0):
        return 0, min(part[1] for part in (left, right) if part[0] >= 0)
    if fn in (operator.and_, operator.or_, operator.xor):
        bits = max((n if n >= 0 else ~n).bit_length() for n in (*left, *right))
        return (0 if left[0] >= 0 and right[0] >= 0 else -1 << bits), (1 << bits) - 1
    return (0, right[1] - 1) if fn is operator.mod and right[0] > 0 else None


# --- functions that are alike -------------------------------------------------------------------------
class _Itself:
    """Stands in a key for what equals nothing else, and keeps it, so that nothing else comes to its address."""

    def __init__(self, thing):
        self.thing = thing

    def __eq__(self, other):
        return isinstance(other, _Itself) and other.thing is self.thing

    def __hash__(self):
        return id(self.thing)


class _Alike:
    """Stands in a key for all functions that Numba types alike."""

    __slots__ = ("__weakref__",)


_alike = weakref.WeakValueDictionary()


def identity(function, known=None):
    """One object for all functions that Numba types alike: made from one text, in one module, of equal
    constants and device functions, as those of a kernel are that is built a second time. ``known`` holds those
    of functions around which nothing changes meanwhile."""
    known = {} if known is None else known
    if function not in known:
        known[function] = _Itself(function)  # as which it counts in itself, if it calls itself
        code, scope = function.__code__, function.__globals__
        outside = tuple((n, _part_of(scope[n], known)) for n in sorted(all_names(code)) if n in scope)
        cells = tuple(_part_of(cell.cell_contents, known) for cell in function.__closure__ or ())
        defaults = _part_of(function.__defaults__, known)
        module = None if REBUILT in scope else _Itself(scope)  # whose names may change
        parts = code.co_filename, code, module, outside, cells, defaults
        known[function] = _alike.setdefault(parts, _Alike())
    return known[function]


def _part_of(value, known):
    if isinstance(value, CUDADispatcher):
        return value.targetoptions.get("inline"), identity(value.py_func, known)
    if isinstance(value, tuple):
        return type(value), tuple(_part_of(part, known) for part in value)
    if isinstance(value, (int, float, str, type(None), np.generic)):
        return type(value), repr(value)  # 0.0 is not -0.0
    return _Itself(value)


# --- running Numba's front end ------------------------------------------------------------------------
class _FrontEnd(compiler.CUDACompiler):
    """Numba's compiler for CUDA up to the inferred types."""

    def _compile_core(self):
        state = self.state
        whole = _needs_all_passes(state.func_id.code)
        with _base.ConfigStack().enter(state.flags.copy()):
            (pipeline,) = self.define_pipelines()
            for kind, _ in pipeline.passes:
                if kind.__name__ in PASSES or whole and kind.__name__ != "InlineInlinables":
                    one = kind()
                    one.analysis = defaultdict(bool)
                    one.run_pass(state)
                if kind.__name__ == PASSES[-1]:
                    return state


def _needs_all_passes(code):
    return any(isinstance(c, python.CodeType) for c in code.co_consts) or "literal_unroll" in code.co_names


_post_process = postproc.PostProcessor.run


def _blocks_alone(self, *args, **options):
    """Numba's PostProcessor.run, without what lives where a block begins: only passes left out ask for it."""
    func = self.func_ir
    if func.is_generator or _needs_all_passes(func.func_id.code):
        return _post_process(self, *args, **options)
    func.blocks, func.generator_info = transforms.canonicalize_cfg(func.blocks), None


_known, _underway, _failed, _calls = {}, set(), [], {}
_whole = deque()


def infer(function, args):
    """The :class:`Inferred` of a kernel's Python function for the types of its arguments.

    Raises Refused for what Numba does not compile, NotInferred where the types cannot be had."""
    with lock, _as_device_functions():
        _failed.clear()
        try:
            return inferred(function, tuple(args))
        except NotInferred:
            raise
        except Exception:
            if not NUMBA_CUDA:
                raise NotInferred("Numba's own numba.cuda lacks some of what numba-cuda compiles") from None
            if not _failed:
                raise
            raise _place_of_the_caller(_failed) from None


def _place_of_the_caller(failed):
    """What failed first; inside a function of this package's, with the place where the kernel calls it."""
    first = failed[0]
    own = next((f for f in failed if not in_library(f.function)), first)
    if own is first:
        return first
    return Refused(own.function, f"{first.function.__name__}: {first.words}", own.line)


def fresh():
    """A context in which all is inferred anew, and nothing of it is kept."""
    return mock.patch(f"{__name__}._known", {})


@contextlib.contextmanager
def _as_device_functions():
    """Numba sees device functions as DeviceFunction, and keeps the statements that only load a variable."""
    device = property(DeviceFunction)
    methods = mock.patch.object(types.Dispatcher, "get_call_type", _overload_type)
    keep = "_remove_unused_temporaries"
    with (
        mock.patch.object(CUDADispatcher, "_numba_type_", device),
        mock.patch.object(interpreter.Interpreter, keep, lambda self: None),
        mock.patch.object(types.Function, "get_call_type", _remembered(types.Function.get_call_type)),
        mock.patch.object(types.Dispatcher, "get_overload", lambda self, sig: self.dispatcher),
        # For code of its own that it inlines, as of bool(None), Numba would ask a driver what GPU there is.
        mock.patch.object(CUDADispatcher, "compile_device", lambda self, args, return_type=None: None),
        mock.patch.object(postproc.PostProcessor, "run", _blocks_alone),
        methods, target_override(),
    ):  # fmt: skip
        yield


def _overload_type(self, context, args, kws):
    """What Python code of Numba's own returns, which stands for an attribute or a function."""
    return DeviceFunction(self.dispatcher).get_call_type(context, args, kws, exact=True)


def inferred_call(called, signature):
    """The :class:`Inferred` of the Python function behind a function or method of Numba's type ``called``: of a
    device function, or of what an ``@overload`` has returned. None if Numba writes LLVM for it."""
    args = signature.args
    if isinstance(called, DeviceFunction):
        return inferred(called.dispatcher.py_func, args, declared=called.declared(args))
    if isinstance(called, types.BoundFunction):
        overload = getattr(called.template, "_overload_func", None)
        if overload is None:
            return None
        called, args = descriptor.cuda_target.typing_context.resolve_value_type(overload), (called.this, *args)
    try:
        key = called.get_impl_key(signature.replace(args=args))
    except (AttributeError, KeyError):
        return None
    return inferred(key.py_func, args) if isinstance(key, CUDADispatcher) else None


def _remembered(get_call_type):
    """Numba's look-up of an operator or function, done once for the same numbers."""

    def get(self, context, args, kws):
        if kws or not all(isinstance(a, (types.Number, types.Boolean, types.Literal)) for a in args):
            return get_call_type(self, context, args, kws)
        key = self, tuple(args)
        if key not in _calls:
            _calls[key] = get_call_type(self, context, args, kws)
        return _calls[key]

    return get


def target_override():
    """Numba's context in which ``cuda`` is what is compiled for."""
    try:
        from numba.cuda.utils import numba_target_override

        return numba_target_override()
    except ImportError:
        from numba.core.target_extension import target_override

        return target_override("cuda")


def inferred(function, args, inline="never", declared=None):
    """As ``infer``, while Numba is at it: raises Numba's own errors, and notes what failed first. ``declared``
    is the type of the result where it is not to be inferred."""
    key = identity(function), args, declared
    found = _known.get(key)
    # What stands around the function it was found for may have changed since.
    if found and (found.function is function or identity(found.function) == key[0]):
        return found
    found = _inferred(function, args, inline, declared, key)
    if len(_known) >= KEPT:
        _known.clear()
    _known[key] = found
    return found


def _inferred(function, args, inline, declared, key=None):
    """The same, whatever is known."""
    if key in _underway:
        raise NotInferred(f"{function.__name__} calls itself")
    try:
        source, lack = source_of(function), ""
        code, lines = numbered(source)
    except (OSError, ValueError) as error:
        source, code, lines, lack = None, function.__code__, {}, str(error)
    cells = _cells(function, code) or None
    form = python.FunctionType(code, function.__globals__, function.__name__, function.__defaults__, cells)
    flags = compiler.CUDAFlags()
    flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    flags.error_model = "numpy"
    if inline == "always":
        flags.inline = inline  # such a function may return arrays
    with contextlib.suppress(AttributeError, ValueError):
        flags.compute_capability = (9, 0)
    target = descriptor.cuda_target
    contexts = target.typing_context, target.target_context
    _underway.add(key)
    try:
        pipeline = _FrontEnd(*contexts, None, args, declared, flags, {})
        found = Inferred(function, args, inline, declared, source, lines, pipeline.compile_extra(form))
        _check_fields(found)
        computed = [s.return_type for e, s in found.calltypes.items() if getattr(e, "op", 0) in COMPUTING and s]
        found.lack = lack if any(isinstance(kind, types.Number) for kind in computed) else ""
    except NotInferred:
        raise
    except Exception as error:  # of which Numba does not catch all that it raises
        if (function.__module__ or "").partition(".")[0] not in ("numba", "numba_cuda"):
            words, line = _words(error, lines)
            if _failed:  # in a function that this one calls: the outermost place, named last, is the call
                told = map(int, re.findall(re.escape(FILE) + r" \((\d+)\)", str(error)))
                places = *told, *_places(error.__traceback__)
                line = next((lines[n] for n in reversed(places) if n in lines), None)
            _failed.append(Refused(function, words, line))
        raise
    finally:
        _underway.discard(key)
    _failed.clear()
    return found


def _cells(function, code):
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return tuple(cells[name] for name in code.co_freevars)


def numbered(source):
    """The code object of a source in which each node's line is its number, and the true line of each number.

    Nodes of ``source.tree`` get their number as ``node.number``."""
    lines, places = {}, []
    for number, node in enumerate(ast.walk(source.tree), FIRST):
        node.number = number
        lines[number] = getattr(node, "lineno", source.tree.lineno)
        if hasattr(node, "lineno"):
            places.append((node, [getattr(node, name) for name in PLACE]))
            node.lineno = node.end_lineno = number
            node.col_offset = node.end_col_offset = 0
    try:
        return source.code_of(source.tree, FILE), lines
    finally:
        for node, place in places:
            for name, value in zip(PLACE, place, strict=True):
                setattr(node, name, value)


def _check_fields(found):
    """Raise TypingError, as Numba's lowering for CUDA does, where a field of a record is used that does not lie
    on a multiple of its alignment."""
    for statement in (s for block in found.ir.blocks.values() for s in block.body):
        use = getattr(statement, "value", None)
        if isinstance(statement, ir.SetAttr):
            record, field = statement.target, statement.attr
        elif isinstance(statement, ir.StaticSetItem):
            record, field = statement.target, statement.index
        elif isinstance(use, ir.Expr) and use.op in ("getattr", "static_getitem"):
            record, field = use.value, use.attr if use.op == "getattr" else use.index
        else:
            continue
        kind = found.typemap[record.name]
        if type(kind).__name__ != "Record" or not isinstance(field, str) or field not in kind.fields:
            continue
        if kind.offset(field) % as_dtype(kind.typeof(field)).base.alignment:
            raise TypingError(f"field {field} of {kind} is not aligned", loc=statement.loc)


def _words(error, lines):
    """What Numba says without the text that repeats the source, and the line it means."""
    raiser = traceback.extract_tb(error.__traceback__)[-1].name
    text = str(error) or f"{type(error).__name__} by Numba's {raiser}"
    # What is said of candidates may name places in functions of Numba's own, which have such numbers, too.
    own, *others = re.split(r"(?=There (?:are|is) \d+ candidate)", text, maxsplit=1)
    told = [re.findall(re.escape(FILE) + r'"?,? (?:\(|line )(\d+)', part) for part in (own, *others)]
    numbers = [*map(int, told[0]), *_places(error.__traceback__), *map(int, told[-1])]
    if getattr(error, "loc", None) is not None and error.loc.filename == FILE:
        numbers.insert(0, error.loc.line)
    line = next((lines[n] for n in numbers if n in lines), None)
    text = without_source(text)
    return re.sub(re.escape(FILE) + r" \((\d+)\)", lambda m: f"line {lines.get(int(m[1]), '?')}", text), line


def without_source(text):
    """What Numba says, without candidates, passes and the source around it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.split(r"\n\s*(?:There (?:are|is) \d+ candidate|During: |File \"|raised from )", text)[0]
    text = re.sub(r"Failed in \w+ mode pipeline \(step: [^)]*\)\n?", "", text)
    text = re.sub(r"\.? Raised from .*", "", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def _places(trace):
    """The numbers that Numba was at when it raised, the innermost first."""
    return [line for file, line in places_of(trace) if file == FILE]


def places_of(trace):
    """(file, line) of all that Numba was at when it raised, the innermost first."""
    found = []
    for frame, _ in traceback.walk_tb(trace):
        here = frame.f_locals
        locs = [here.get("loc"), *(getattr(here.get(name), "loc", None) for name in ("inst", "self"))]
        found[:0] = [(loc.filename, loc.line) for loc in locs if hasattr(loc, "filename")]
    return found
