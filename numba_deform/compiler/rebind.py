"""Rebuild a kernel with some of its names replaced.

The CPU engine runs a kernel's own Python code with ``cuda``, the intrinsics and the number types
swapped for models; the linked form of a kernel is its code with every intrinsic swapped for the
call. Both use the one function here. Nothing is written to the original.
"""

import types

from numba.cuda.dispatcher import CUDADispatcher


def rebind(
    function, replace, device_function, extra_globals=None, rewrite=lambda f: f.__code__, _memo=None
):
    """A copy of the Python ``function`` whose globals and closure went through ``replace(value)``, and so did
    what they hold in named tuples.

    ``device_function(dispatcher, rebuilt)`` says what stands in for a ``@cuda.jit(device=True)``
    function whose Python code, rebuilt the same way, is ``rebuilt``. ``extra_globals(function)``
    returns names to add, ``rewrite(function)`` its code object or another one in its place. Modules are left
    alone: kernels name what they use.
    """
    memo = {} if _memo is None else _memo
    if function in memo:
        return memo[function]

    def swap(value):
        if isinstance(value, CUDADispatcher):
            inner = rebind(value.py_func, replace, device_function, extra_globals, rewrite, memo)
            return device_function(value, inner)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value._make(map(swap, value))
        return replace(value)

    code, scope = rewrite(function), dict(function.__globals__)
    rebuilt = types.FunctionType(
        code, scope, function.__name__, function.__defaults__, _cells(function, code)
    )
    memo[function] = rebuilt
    for name in _global_names(code):
        if name in scope:
            scope[name] = swap(scope[name])
    for cell in rebuilt.__closure__ or ():
        cell.cell_contents = swap(cell.cell_contents)
    if extra_globals:
        scope.update(extra_globals(function))
    return rebuilt


def _cells(function, code):
    """New cells with the contents of the function's own, in the order of ``code``."""
    own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return tuple(types.CellType(own[name].cell_contents) for name in code.co_freevars) or None


def _global_names(code):
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
