"""A kernel from PTX as a program."""

import ast
import functools

from ......compiler import cache
from ......compiler.outline import FOR_CPU, Outline
from ......compiler.rewrite import rebind
from ....machine.program import Program
from ....memory.scalars import start_of
from ....native.codegen.coroutine import Coroutine
from ....reports.call_sites import KERNEL
from ...numba_python.cuda_module import CudaModule
from ...numba_python.name_binding import NameBinding
from .body import Body, Found


class PtxProgram(Program):
    """A ``PtxKernel`` for types; its text has them all."""

    def __init__(self, kernel, kinds):
        self.kernel, self.kinds = kernel, tuple(kinds)
        self.key = kernel.digest, self.kinds
        self.outline = _Outline(kernel.plain, kernel.digest, *map(str, kinds))

    def entry(self, execution, held):
        binding, function = NameBinding(CudaModule(execution), held), self.kernel.plain
        return rebind(function, binding.replace, extra_globals=lambda _: {KERNEL: True}, module=binding.module)

    def coroutine(self, module):
        return PtxCoroutine(module, self)

    def models(self, execution):
        return Models(self.kernel, execution)


class _Outline(Outline):
    """The key of texts: a PTX kernel can reach nothing else but this package."""

    def __init__(self, function, *texts):
        self.key = cache.directory() and cache.digest(*cache.sources(FOR_CPU), *texts)
        self._things, self._numbers = [function], {id(function): 0}


class PtxCoroutine(Coroutine):
    """A kernel's thread."""

    def __init__(self, module, program):
        self.program = program
        super().__init__(module, program.kinds)

    def statements(self, args):
        kernel = self.program.kernel
        tree, = ast.parse("\n".join(line for line, _ in kernel.lines)).body
        found = Found(kernel.plain, len(kernel.lines))
        Body(self, tree, found, args, kernel.registers, [name for name, *_ in kernel.held]).lower()

    def hold(self):
        """It has no routines whose variables would be kept in memory."""


class Models:
    """The interpreter's functions for what machine code asks of it by name, in one execution."""

    replace = staticmethod(lambda value: value)  # constants are handed over as they are

    def __init__(self, kernel, execution):
        self.cuda = CudaModule(execution)
        self.scope, self.binding = kernel.plain.__globals__, NameBinding(self.cuda)
        self.addresses = {f"{name}.address": start_of(array) for name, _, array in kernel.held}

    def model(self, name, result):
        if name in self.addresses:
            return functools.partial(self.addresses.get, name)
        if name.startswith("cuda."):
            return getattr(self.cuda, name.removeprefix("cuda."))
        return self.binding.replace(self.scope[name])
