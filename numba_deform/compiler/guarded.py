"""The guarded form of a kernel: its own source with every wait bounded (device/guard.py).

The kernel's syntax tree and those of its device functions are changed in three places, and compiled again
under their own line numbers:

    while <a poll>: ...          counts how long it polls, and stops after the limit
    syncthreads, bar.sync        become counters that can be polled
    the end of the kernel        says that this thread comes to no more barriers

A wait inside a library function (device/) is reported at the line of the kernel that called it: such
functions get that line's number as one more argument.
"""

import ast
import functools
import inspect
import textwrap
import types
from dataclasses import dataclass

from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher

from ..device import guard
from ..device.mbarrier import mbarrier_test_wait_parity, mbarrier_try_wait_parity
from ..device.memory import ld_acquire_cta_shared_b32
from ..device.sync import bar_arrive, bar_sync
from .rebind import rebind

LIBRARY = "numba_deform.device."
HELPERS = {f"__{f.__name__}": f for f in (
    guard.guard_start, guard.guard_poll, guard.guard_barrier, guard.guard_leave,
)}  # fmt: skip
SITE = "__guard_site"
POLLS = {mbarrier_try_wait_parity: guard.MBARRIER, mbarrier_test_wait_parity: guard.MBARRIER,
         ld_acquire_cta_shared_b32: guard.FLAG}  # fmt: skip
BARRIERS = {bar_sync: True, bar_arrive: False}


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
def guarded(function):
    """(the rewritten Python function, a tuple of its :class:`Site`), for a kernel's function.

    Raises ValueError where the source is not to be had.
    """
    sites = {}
    done = rebind(
        function,
        lambda value: value,
        lambda dispatcher, rebuilt: cuda.jit(rebuilt, **dispatcher.targetoptions),
        extra_globals=lambda _: HELPERS,
        rewrite=lambda f: _rewrite(f, sites, f is function),
    )
    return done, tuple(sites)


def _in_library(function):
    return (function.__module__ or "").startswith(LIBRARY)


def _rewrite(function, sites, is_kernel):
    """The code object of ``function`` with its waits bounded; its own one if there is nothing to do."""
    if not is_kernel and not waits(function):
        return function.__code__
    tree, file, lines = _parse(function)
    change = _Bound(function, sites, file, lines, is_kernel)
    tree = change.visit(tree)
    if is_kernel:
        tree.body.append(_statement("__guard_leave()"))
    names = function.__code__.co_freevars
    factory = ast.parse(f"def factory({', '.join(names)}):\n    pass").body[0]
    factory.body = [tree]
    module = ast.fix_missing_locations(ast.Module([factory], []))
    code = _inner(_inner(compile(module, file, "exec"), "factory"), tree.name)
    return code.replace(co_qualname=function.__code__.co_qualname)


def _parse(function):
    """(the function's syntax tree with true line numbers and no decorators, its file, the file's lines)."""
    try:
        lines, first = inspect.getsourcelines(function)
    except OSError as error:
        raise ValueError(
            f"the guarded form of {function.__name__} needs its source: {error}"
        ) from None
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    ast.increment_lineno(tree, first - 1)
    tree.decorator_list = []
    return tree, function.__code__.co_filename, dict(enumerate(lines, first))


def _inner(code, name):
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


def _statement(text):
    return ast.parse(text).body[0]


@functools.cache
def waits(function):
    """Whether ``function`` polls, or stands at a barrier of threads, itself or in what it calls."""
    for value in _names(function).values():
        if value in BARRIERS or isinstance(value, CUDADispatcher) and waits(value.py_func):
            return True
    tree, _, _ = _parse(function)
    return any(
        isinstance(node, ast.While) and _calls(node.test) or _is_syncthreads(node)
        for node in ast.walk(tree)
    )


def _names(function):
    """What the function's global and free names stand for, as far as it can be hashed."""
    scope = inspect.getclosurevars(function)
    found = {**scope.globals, **scope.nonlocals}
    return {name: value for name, value in found.items() if callable(value)}


def _calls(node):
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]


def _is_syncthreads(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "syncthreads"
    )


class _Bound(ast.NodeTransformer):
    """Bounds the waits of one function; ``sites`` is filled with the lines that have one."""

    def __init__(self, function, sites, file, lines, is_kernel):
        self.names, self.sites = _names(function), sites
        self.file, self.lines, self.is_kernel = file, lines, is_kernel
        self.library = _in_library(function)
        self.polls = 0

    def visit_FunctionDef(self, node):
        if self.library:
            node.args.args.append(ast.arg(SITE))
        self.generic_visit(node)
        return node

    def visit_While(self, node):
        calls = _calls(node.test)
        poll = self._poll(node, calls) if calls else None
        self.generic_visit(node)
        if not poll:
            return node
        since = f"__guard_since_{self.polls}"
        self.polls += 1
        start = _statement(f"{since} = __guard_start()")
        again = _statement(f"{since} = __guard_poll({since}, {poll})")
        for made in (start, again):
            ast.copy_location(made, node)
            ast.fix_missing_locations(made)
        node.body.insert(0, again)
        return [start, node]

    def _poll(self, node, calls):
        """The arguments for guard_poll after ``since``: kind, site, address, detail."""
        for call in calls:
            kind = POLLS.get(self._called(call))
            if kind == guard.MBARRIER:
                address, detail = call.args
                return self._arguments(kind, call, address, detail)
            if kind == guard.FLAG:
                wanted = node.test.comparators[0] if isinstance(node.test, ast.Compare) else None
                return self._arguments(kind, call, call.args[0], wanted)
        return self._arguments(guard.SPIN, calls[0], None, None)

    def _arguments(self, kind, call, address, detail):
        address, detail = (ast.unparse(part) if part else "0" for part in (address, detail))
        return f"{kind}, {ast.unparse(self._site(call))}, {address}, {detail}"

    def visit_Call(self, node):
        self.generic_visit(node)
        called = self._called(node)
        if _is_syncthreads(node):
            return self._barrier(node, [ast.Constant(0), ast.Constant(0)], True)
        if called in BARRIERS:
            return self._barrier(node, node.args, BARRIERS[called])
        if isinstance(called, CUDADispatcher):
            inner = called.py_func
            if _in_library(inner) and waits(inner):
                node.args.append(self._site(node))
        return node

    def _barrier(self, node, arguments, waits):
        function = ast.Name("__guard_barrier", ast.Load())
        made = ast.Call(function, [*arguments, ast.Constant(waits), self._site(node)], [])
        return ast.copy_location(made, node)

    def visit_Return(self, node):
        self.generic_visit(node)
        return [_statement("__guard_leave()"), node] if self.is_kernel else node

    def _called(self, call):
        return self.names.get(call.func.id) if isinstance(call.func, ast.Name) else None

    def _site(self, call):
        """The number of the call's line, or in library code the name that holds the caller's."""
        if self.library:
            return ast.Name(SITE, ast.Load())
        line = call.lineno
        site = Site(self.file, line, self.lines[line].strip(), ast.unparse(call))
        return ast.Constant(self.sites.setdefault(site, len(self.sites)))
