"""A kernel of Numba's as a program."""

from dataclasses import dataclass

from numba import types

from .....compiler import inference
from .....compiler.rewrite import all_names
from ....launches import Launchable
from ...machine.program import Program
from ..math_functions import MATH
from .arithmetic import caster
from .cuda_module import CudaModule
from .name_binding import NameBinding
from .native_functions import NumbaCoroutine
from .program import all_forms, entry_of, lacking, typed_form


@dataclass(eq=False)
class NumbaKernel(Launchable):
    """A function as a launch takes it: plain, or one that Numba has compiled."""

    py_func: object
    signature: object = None
    held: tuple = ()
    unset: tuple = ()
    plain = property(lambda self: self.py_func)


class NumbaProgram(Program):
    """A kernel's function for types; ``typed`` is its typed form."""

    def __init__(self, function, kinds):
        self.function, self.kinds = function, tuple(kinds)
        self.key = inference.identity(function), self.kinds
        self.typed, self.outline = typed_form(function, kinds, self.key)
        self.is_confined = self.typed is not None  # else it may do what it likes, to any object

    @property
    def has_breakpoints(self):
        return any("breakpoint" in all_names(form.function.__code__) for form in all_forms(self.typed))

    def lacking(self):
        return lacking(self.typed)

    def entry(self, execution, held):
        return entry_of(self.function, self.typed, CudaModule(execution), held)

    def coroutine(self, module):
        return NumbaCoroutine(module, inference.infer(self.function, self.kinds))

    def models(self, execution):
        return Callbacks(execution)


class Callbacks:
    """The interpreter's functions for what machine code asks of it, in one execution."""

    def __init__(self, execution):
        self.replace = NameBinding(CudaModule(execution)).replace

    def model(self, function, result):
        """The interpreter's function for one of Numba's or of Python's."""
        convert = caster(result) if isinstance(result, types.Number) else None
        replaced = MATH.get(function)
        if replaced is None:
            replaced = self.replace(function)
            if replaced is not function and function not in (round, pow):
                return replaced
        return replaced if convert is None else lambda *args: convert(replaced(*args))
