"""A kernel from PTX as a program."""

import functools
import types

from ......compiler import cache
from ......compiler.outline import FOR_CPU, Outline
from ......compiler.rewrite import REBUILT, all_names
from ......device.ptx import Intrinsic
from ....machine.program import Program
from ....memory.scalars import passing_on, start_of
from ....native.codegen.coroutine import Coroutine
from ....reports.call_sites import KERNEL
from ...threads import Threads, inside
from .body import Body


class PtxProgram(Program):
    """A ``PtxKernel`` for types; its text has them all."""

    def __init__(self, kernel, kinds):
        self.kernel, self.kinds = kernel, tuple(kinds)
        self.key = kernel.digest, self.kinds
        self.outline = _Outline(kernel.plain, kernel.digest, *map(str, kinds))

    def entry(self, execution, held):
        function = self.kernel.plain
        scope, names = function.__globals__, all_names(function.__code__)
        bound = {name: _bound(scope[name], held) for name in names if name in scope}
        bound |= {KERNEL: True, REBUILT: True, "cuda": Threads(execution)}
        return types.FunctionType(function.__code__, scope | bound, function.__name__)

    def coroutine(self, module):
        return Coroutine(module, self.kinds, lambda maker, args: Body(maker, self.kernel, args).lower())

    def models(self, execution):
        return Callbacks(self.kernel, execution)


def _bound(value, held=()):
    """What a name of the text stands for in one execution; arithmetic takes undefined numbers, too."""
    if not isinstance(value, Intrinsic):
        return dict(held).get(id(value), value)
    model = inside(value.model)
    return passing_on(model) if value.model.__module__.endswith(".half2") else model


class _Outline(Outline):
    """The key of texts: a PTX kernel can reach nothing else but this package."""

    def __init__(self, function, *texts):
        self.key = cache.directory() and cache.digest(*cache.sources(FOR_CPU), *texts)
        self._things, self._numbers = [function], {id(function): 0}


class Callbacks:
    """The interpreter's functions for what machine code asks of it by name, in one execution."""

    replace = staticmethod(lambda value: value)  # constants are handed over as they are

    def __init__(self, kernel, execution):
        self.threads, self.scope = Threads(execution), kernel.plain.__globals__
        self.addresses = {f"{name}.address": start_of(array) for name, _, array in kernel.held}

    def model(self, name, result):
        if name in self.addresses:
            return functools.partial(self.addresses.get, name)
        if name.startswith("cuda."):
            return getattr(self.threads, name.removeprefix("cuda."))
        return _bound(self.scope[name])
