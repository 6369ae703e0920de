"""Other forms of a kernel, made from its own source.

``rewritten`` changes the syntax trees of a kernel and of its device functions, and compiles them again under
their own line numbers. ``rebind`` swaps what their names stand for. Nothing is written to the original.

    unrolled   ``for i in static_range(n)`` is written out, before Numba compiles it
    guarded    loops that poll stop after a limit; ``syncthreads`` and ``bar.sync`` become counters that can be
               polled; at its end a thread says that it comes to no more barriers (device/guard.py)
    traced     marks stand around the steps of the pipeline (device/marks.py), which are known by name:
               ``acquire``, ``issue``, ``wait`` and ``release``, called with a ring and a state; without
               ``issue`` that ends where the producer's state advances. The kernel gets two parameters more,
               ``trace_buffer`` and ``trace_block``

A guarded wait inside a library function (device/) is reported at the line of the kernel that called it, whose
number such functions get as one more argument; functions with marks get the thread's marks.
"""

import ast
import copy
import dis
import functools
import inspect
import linecache
import textwrap
import types
import weakref
from dataclasses import dataclass

from numba import cuda
from numba.core.dispatcher import Dispatcher
from numba.cuda.dispatcher import CUDADispatcher

from ..device import guard, marks
from ..device.namespace import Namespace
from ..device.ptx import u64
from ..device.sync import bar_arrive, bar_sync
from .steps import STEPS, advanced, calls_in, ends_of_issue, given_back_by_hand, is_expect, ring_of, step_of

LIBRARY = "numba_deform.device."
HELPERS = {f"__{f.__name__}": f for f in (
    guard.guard_start, guard.guard_poll, guard.guard_barrier, guard.guard_leave, marks.open_marks, marks.mark,
)}  # fmt: skip
REBUILT = "__rebuilt__"  # in the names of a copy, which nobody changes afterwards
SITE, MARKS = "__guard_site", "__marks"
POLLS = {"mbarrier": guard.MBARRIER, "flag": guard.FLAG}  # by what an intrinsic says that it polls
BARRIERS = {bar_sync: True, bar_arrive: False}
TRACE_PARAMETERS = ("trace_buffer", "trace_block")


def static_range(*bounds):
    """``range(*bounds)`` for a loop that is written out before the kernel is compiled.

    The bounds are numbers that are known by then: constants, and names from outside the function. The loop
    variable is a constant in each copy of the body, which neither assigns it nor leaves the loop. The CPU
    engine sees the plain loop."""
    return range(*bounds)


@dataclass(frozen=True)
class Site:
    """One line of a kernel that may wait: its file, its number, its text, and the call that waits there."""

    file: str
    line: int
    source: str
    call: str

    @property
    def where(self):
        return f"{self.file}:{self.line}"


@functools.cache
def rewritten(function, unrolled=True, guarded=False, traced=False):
    """(a Python function, a tuple of the :class:`Site` where it may wait), for a kernel's function.

    Raises ValueError where the source is needed and not to be had, or a loop cannot be written out."""
    sites, traced_functions = {}, _with_steps(function) if traced else set()
    given = _given(function) if guarded else {}

    def rewrite(f):
        is_kernel = f is function
        changes = []
        if guarded and (is_kernel or waits(f) or given.get(f) and _waits(_Source(f, given[f]))):
            changes.append(lambda source: _Guard(source, sites, is_kernel))
        if f in traced_functions:
            changes.append(lambda source: _Trace(source, traced_functions, is_kernel))
        if unrolled and "static_range" in all_names(f.__code__):
            changes.append(_Unroll)
        return _compiled(f, changes, given.get(f, {})) if changes else f.__code__

    return rebind(function, extra_globals=lambda _: HELPERS, rewrite=rewrite), tuple(sites)


# --- names ----------------------------------------------------------------------------------------
def _compiled_again(dispatcher, rebuilt):
    if isinstance(dispatcher, CUDADispatcher):
        return cuda.jit(rebuilt, **dispatcher.targetoptions)
    return dispatcher  # a function for the CPU, which Numba compiles for a GPU by itself


def rebind(
    function, replace=lambda value: value, device_function=_compiled_again, extra_globals=lambda f: {},
    rewrite=lambda f: f.__code__, module=None, _memo=None):  # fmt: skip
    """A copy of the Python ``function`` whose globals and closure went through ``replace(value)``, and so did
    what they hold in named tuples and Namespaces.

    ``device_function(dispatcher, rebuilt)`` says what stands in for a ``@cuda.jit(device=True)`` or ``@njit``
    function whose Python code, rebuilt the same way, is ``rebuilt``. ``extra_globals(function)`` returns names
    to add, ``rewrite(function)`` its code object or another. ``module(module, swap)`` says what stands in for a
    module; ``swap`` is what its attributes have to go through. Without it, those do that the function names."""
    memo = {} if _memo is None else _memo
    if function in memo:
        return memo[function]

    def swap(value):
        if isinstance(value, (CUDADispatcher, Dispatcher)):
            inner = rebind(
                value.py_func, replace, device_function, extra_globals, rewrite, module, memo)  # fmt: skip
            return device_function(value, inner)
        if isinstance(value, Namespace):
            return value.map(swap)
        if isinstance(value, types.ModuleType):
            return module(value, swap) if module else _with_swapped(value, names, swap)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value._make(map(swap, value))
        return replace(value)

    code, scope = rewrite(function), {**function.__globals__, REBUILT: True}
    names = all_names(code)
    # New cells with the contents of the function's own, in the order of the code.
    contents = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = tuple(types.CellType(contents[name].cell_contents) for name in code.co_freevars)
    rebuilt = types.FunctionType(code, scope, function.__name__, function.__defaults__, cells or None)
    memo[function] = rebuilt
    for name in names:
        if name in scope:
            scope[name] = swap(scope[name])
    for cell in cells:
        cell.cell_contents = swap(cell.cell_contents)
    scope.update(extra_globals(function))
    return rebuilt


def _with_swapped(module, names, swap):
    """The module, or a Namespace in its place where ``swap`` changes one of the attributes ``names``."""
    own = {name: getattr(module, name) for name in names if hasattr(module, name)}  # also what is imported late
    new = {name: swap(value) for name, value in own.items() if not isinstance(value, types.ModuleType)}
    changed = any(new[name] is not own[name] for name in new)
    return Namespace(module.__name__, **{**vars(module), **new}) if changed else module


def all_names(code):
    """The names that a code object reads from outside, those inside it too."""
    names = {*code.co_names, *code.co_freevars}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= all_names(constant)
    return names


def _values(function):
    """What the function's global and free names stand for."""
    scope = inspect.getclosurevars(function)
    return {**scope.globals, **scope.nonlocals}


# --- source ---------------------------------------------------------------------------------------
_TREES = weakref.WeakKeyDictionary()  # the syntax trees of code that was made here


class _Source:
    """A function's syntax tree, with true line numbers and no decorators, its file and its lines. ``given``:
    {parameter: the Namespace that it stands for where the function's calls are read}."""

    def __init__(self, function, given=None):
        self.file, first = function.__code__.co_filename, function.__code__.co_firstlineno
        linecache.checkcache(self.file)  # inspect.getsourcelines would look through all modules besides
        lines = inspect.getblock(linecache.getlines(self.file, function.__globals__)[first - 1 :])
        if not lines:
            raise ValueError(f"a form of {function.__name__} needs its source: could not get source code")
        self.function, self.values, self.given = function, _values(function), given or {}
        self.lines = dict(enumerate(lines, first))
        if function.__code__ in _TREES:
            self.tree = copy.deepcopy(_TREES[function.__code__])
            return
        try:
            self.tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
        except SyntaxError:
            self.tree = None
        if not isinstance(self.tree, ast.FunctionDef):
            raise ValueError(f"a form of {function.__name__} needs a source that is a definition by itself")
        ast.increment_lineno(self.tree, first - 1)
        self.tree.decorator_list = []
        self._name_aliases()
        for argument in (node for node in ast.walk(self.tree.args) if isinstance(node, ast.arg)):
            argument.annotation = None

    def _name_aliases(self):
        """Local names of Namespaces, as in ``ring = shared.ring``, stand for these."""
        for node in ast.walk(self.tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                names, parts = (target.elts, node.value.elts) if both else ([target], [node.value])
                for name, part in zip(names, parts, strict=False):
                    value = self.value(part)
                    if isinstance(name, ast.Name) and isinstance(value, Namespace):
                        self.values[name.id] = value

    def value(self, node):
        """What a name, or a name in a module or Namespace, stands for; else None."""
        if isinstance(node, ast.Name):
            return self.values.get(node.id, self.given.get(node.id))
        if isinstance(node, ast.Attribute):
            place = self.value(node.value)
            return getattr(place, node.attr, None) if isinstance(place, types.ModuleType) else None
        return None

    def called(self, call):
        """What a call by name calls, or None."""
        value = self.value(call.func)
        return value if callable(value) else None

    def device_function(self, call):
        """The Python function that a call of a device function runs, or None."""
        value = self.called(call)
        return value.py_func if isinstance(value, CUDADispatcher) else None

    def code_of(self, tree, file=None):
        """The code object of a function's tree, in whose place the function's own free names are free."""
        names = self.function.__code__.co_freevars
        factory = ast.parse(f"def factory({', '.join(names)}):\n    pass").body[0]
        factory.body = [tree]
        code = compile(ast.fix_missing_locations(ast.Module([factory], [])), file or self.file, "exec")
        for name in ("factory", tree.name):
            code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
        if hasattr(code, "co_qualname"):  # Python 3.11 on
            code = code.replace(co_qualname=self.function.__code__.co_qualname)
        return code


def in_library(function):
    return (function.__module__ or "").startswith(LIBRARY)


def _given(function):
    """{device function below a kernel's, outside the library: {its parameter: the Namespace, such as a ring,
    that its first call gives}}."""
    found = {function: {}}

    def visit(f):
        source = _Source(f, found[f])
        for call in calls_in(source.tree):
            inner = source.device_function(call)
            if inner is None or in_library(inner):
                continue
            parts = [*zip(inspect.signature(inner).parameters, call.args, strict=False)]
            parts += [(keyword.arg, keyword.value) for keyword in call.keywords]
            is_new, given = inner not in found, found.setdefault(inner, {})
            rings = {name: value for name, part in parts if isinstance(value := source.value(part), Namespace)}
            more = rings.keys() - given.keys()
            given.update({name: rings[name] for name in more})
            if is_new or more:
                visit(inner)

    visit(function)
    return found


def _compiled(function, changes, given):
    """The code object of ``function`` after all ``changes``, each a NodeTransformer for its source."""
    source = _unchanged(function, given)
    tree = source.tree
    for change in changes:
        tree = change(source).visit(tree)
    code = source.code_of(tree)
    _TREES[code] = tree
    return code


def source_of(function):
    """The source of a function whose loops over ``static_range`` are written out: its ``tree``, and
    ``code_of(tree)``, the code object of a tree in its place. Raises ValueError as ``rewritten`` does."""
    source = _unchanged(function)
    if "static_range" in all_names(function.__code__):
        source.tree = _Unroll(source).visit(source.tree)
    return source


def _unchanged(function, given=None):
    source = _Source(function, given)
    code, own = source.code_of(source.tree), function.__code__
    if code.co_code != own.co_code and _operations(code) != _operations(own) or _words(code) != _words(own):
        raise ValueError(f"the source of {function.__name__} in {source.file} has changed since its import")
    return source


def _words(code):
    """Names and constants of a code object, docstrings and inner functions aside."""
    constants = [c for c in code.co_consts if not isinstance(c, (str, types.CodeType))]
    return code.co_names, code.co_varnames, code.co_freevars, constants


def _operations(code):
    """What a code object does, the same for all ways to call: Python takes another for a module's function if
    it has seen the import."""
    jumps, result = {*dis.hasjrel, *dis.hasjabs}, []
    for step in dis.get_instructions(code):
        if step.opname not in ("PUSH_NULL", "PRECALL", "CACHE", "NOP", "EXTENDED_ARG"):
            text = step.opname == "LOAD_CONST" and isinstance(step.argval, (str, types.CodeType))
            plain = step.opcode not in jumps and not text  # a text may name where the function stands
            name = step.opname.replace("LOAD_METHOD", "LOAD_ATTR").replace("CALL_METHOD", "CALL_FUNCTION")
            result.append((name, repr(step.argval) if plain else None))
    return result


def _statement(text, place):
    """The statement of a text, at the place of a node."""
    statement = ast.parse(text).body[0]
    for node in ast.walk(statement):
        ast.copy_location(node, place)
    return statement


# --- loops written out ----------------------------------------------------------------------------
class _Unroll(ast.NodeTransformer):
    """Writes out the loops over ``static_range``."""

    def __init__(self, source, constants=None):
        self.source, self.constants = source, constants or {}

    def visit_For(self, node):
        call = node.iter
        if not (isinstance(call, ast.Call) and self.source.called(call) is static_range):
            return self.generic_visit(node)
        where = f"{self.source.file}:{node.lineno}"
        try:
            scope = {**self.source.values, **self.constants}
            values = eval(compile(ast.Expression(call), where, "eval"), {}, scope)
        except (NameError, TypeError) as error:
            raise ValueError(
                f"{ast.unparse(call)} at {where} needs numbers that are known before compiling: {error}"
            ) from None
        self._check(node, where)
        copies = []
        for value in values:
            inner = _Unroll(self.source, {**self.constants, node.target.id: value})
            for statement in copy.deepcopy(node.body):
                done = inner.visit(statement)
                copies += done if isinstance(done, list) else [done]
        return copies or ast.copy_location(ast.Pass(), node)

    def visit_Name(self, node):
        if node.id not in self.constants:
            return node
        return ast.copy_location(ast.Constant(self.constants[node.id]), node)

    def _check(self, node, where):
        if not isinstance(node.target, ast.Name) or node.orelse:
            raise ValueError(f"the static_range at {where} needs one loop variable, and no else")
        for inner in (n for statement in node.body for n in ast.walk(statement)):
            if isinstance(inner, (ast.Break, ast.Continue)):
                raise ValueError(f"the static_range at {where} is written out: no break, no continue")
            if isinstance(inner, ast.Name) and inner.id == node.target.id:
                if not isinstance(inner.ctx, ast.Load):
                    raise ValueError(f"{inner.id}, of the static_range at {where}, is assigned")


# --- waits bounded --------------------------------------------------------------------------------
@functools.cache
def waits(function):
    """Whether ``function`` polls, or stands at a barrier of threads, itself or in what it calls."""
    return _waits(_Source(function))


def _waits(source):
    # By its names alone: a function `add` may call `cuda.atomic.add`, and does not wait for itself then.
    names = {node.id for node in ast.walk(source.tree) if isinstance(node, ast.Name)}
    for value in (*map(source.values.get, names), *map(source.called, calls_in(source.tree))):
        if isinstance(value, CUDADispatcher) and value.py_func is not source.function and waits(value.py_func):
            return True
        if callable(value) and value in BARRIERS:
            return True
    return any(
        isinstance(node, ast.While) and calls_in(node.test) or _is_syncthreads(node)
        for node in ast.walk(source.tree)
    )


def _is_syncthreads(node):
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "syncthreads"
    )


class _Guard(ast.NodeTransformer):
    """Bounds the waits of one function; ``sites`` is filled with the lines that have one."""

    def __init__(self, source, sites, is_kernel):
        self.source, self.sites, self.is_kernel = source, sites, is_kernel
        self.polls = 0

    def visit_FunctionDef(self, node):
        if in_library(self.source.function):
            node.args.args.append(ast.arg(SITE))
        self.generic_visit(node)
        if self.is_kernel:
            node.body.append(_statement("__guard_leave()", node.body[-1]))
        return node

    def visit_While(self, node):
        calls = calls_in(node.test)
        poll = self._poll(node, calls) if calls else None
        self.generic_visit(node)
        if not poll:
            return node
        since = f"__guard_since_{self.polls}"
        self.polls += 1
        start = _statement(f"{since} = __guard_start()", node)
        node.body.insert(0, _statement(f"{since} = __guard_poll({since}, {poll})", node))
        return [start, node]

    def _poll(self, node, calls):
        """The arguments for guard_poll after ``since``: kind, site, address, detail."""
        call = next((call for call in calls if self._polls(call)), calls[0])
        kind, address, detail = POLLS.get(self._polls(call), guard.SPIN), None, None
        if kind == guard.MBARRIER:
            address, detail = call.args[:2]
            if self.source.called(call).signature.args[1] == u64:  # a token, opaque and wider than the entry
                detail = ast.Constant(guard.BY_TOKEN)
        elif kind == guard.FLAG:
            address = call.args[0]
            detail = node.test.comparators[0] if isinstance(node.test, ast.Compare) else None
        address, detail = (ast.unparse(part) if part else "0" for part in (address, detail))
        return f"{kind}, {ast.unparse(self._site(call))}, {address}, {detail}"

    def _polls(self, call):
        return getattr(self.source.called(call), "polls", "")

    def visit_Call(self, node):
        self.generic_visit(node)
        if _is_syncthreads(node):
            return self._barrier(node, [ast.Constant(0), ast.Constant(0)], True)
        called = self.source.called(node)
        if called in BARRIERS:
            return self._barrier(node, node.args, BARRIERS[called])
        inner = self.source.device_function(node)
        if inner and in_library(inner) and waits(inner):
            node.args.append(self._site(node))
        return node

    def _barrier(self, node, arguments, waits):
        function = ast.Name("__guard_barrier", ast.Load())
        barrier = ast.Call(function, [*arguments, ast.Constant(waits), self._site(node)], [])
        return ast.copy_location(barrier, node)

    def visit_Return(self, node):
        self.generic_visit(node)
        return [_statement("__guard_leave()", node), node] if self.is_kernel else node

    def _site(self, call):
        """The number of the call's line, or in library code the name that holds the caller's."""
        if in_library(self.source.function):
            return ast.Name(SITE, ast.Load())
        line = call.lineno
        site = Site(self.source.file, line, self.source.lines[line].strip(), ast.unparse(call))
        return ast.Constant(self.sites.setdefault(site, len(self.sites)))


# --- marks put in ---------------------------------------------------------------------------------
def _with_steps(function):
    """The Python functions below a kernel's, itself included, in which steps of a pipeline are taken: those in
    the library, and those that are such a step themselves, are left alone."""
    traced = set()

    def visit(f):
        source = _Source(f)
        steps = False
        for call in calls_in(source.tree):
            if step_of(source, call) or is_expect(source, call):
                steps = True
            elif (inner := source.device_function(call)) and not in_library(inner):
                steps |= inner in traced or visit(inner)
        if steps:
            traced.add(f)
        return steps

    visit(function)
    return traced


class _Trace(ast.NodeTransformer):
    """Puts marks around the steps of one function, and hands the thread's marks on to those that it calls."""

    def __init__(self, source, traced, is_kernel):
        self.source, self.traced, self.is_kernel = source, traced, is_kernel
        self.expects, self.step = functools.partial(is_expect, source), functools.partial(step_of, source)
        steps = {step[0] for step in map(self.step, calls_in(source.tree)) if step}
        self.acquires = "acquire" in steps
        self.ends = set() if "issue" in steps else ends_of_issue(source, self.expects)
        self.issues = "issue" in steps

    def visit_FunctionDef(self, node):
        parameters = TRACE_PARAMETERS if self.is_kernel else (MARKS,)
        node.args.args += [ast.arg(name) for name in parameters]
        self.generic_visit(node)
        if self.is_kernel:
            start = f"{MARKS} = __open_marks({', '.join(parameters)})"
            node.body.insert(0, _statement(start, node.body[0]))
        return node

    def visit_Call(self, node):
        self.generic_visit(node)
        if not self.step(node) and self.source.device_function(node) in self.traced:
            node.args.append(ast.Name(MARKS, ast.Load()))
        return node

    def _mark(self, kind, call, state, place):
        """The statement that marks a call on a state of its ring."""
        ring = next(iter(given_back_by_hand(self.source, call) or [ring_of(self.source, call)]))
        number = getattr(ring, "number", 0)
        return _statement(f"__mark({MARKS}, {kind}, {ast.unparse(state)}, {number})", place)

    def _marked(self, node):
        calls = calls_in(node)
        call, step = next(((call, step) for call in calls if (step := self.step(call))), (None, None))
        expected = next(filter(self.expects, calls), None)
        self.generic_visit(node)
        if step is None and expected and not self.issues:
            return [self._mark(marks.ISSUE, expected, expected.args[0], node), node]
        if step is None and node in self.ends:
            call, state = next((call, state) for call in calls if (state := advanced(call)))
            return [self._mark(marks.COMMIT, call, state, node), node]
        if step is None:
            return node
        name, state = step
        before, after = STEPS[name]
        if name == "issue" and self.acquires:
            before = None  # acquiring has ended in this mark
        first, last = ([self._mark(kind, call, state, node)] if kind else [] for kind in (before, after))
        return [*first, node, *last]

    visit_Expr = visit_Assign = _marked
