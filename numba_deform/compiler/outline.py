"""What a kernel is made of, as a key that is the same in every process, and what was made of it, on disk.

An :class:`Outline` goes through all that a function can reach: its code, the text of its file, the values of
its globals, of its closure and of its defaults, and the same of the device functions and modules among these.
Whatever it meets counts into the key, or there is none. Where the file lies does not count, but its text does.

What is kept under the key refers to functions, classes and other things that the kernel brings by their number
in the order in which they are met, and to those of this package and of the libraries by name: their versions
count.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import io
import linecache
import marshal
import os
import pickle
import sys
import types as python
from dis import opmap

import numpy as np
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.cuda.dispatcher import CUDADispatcher

from ..device.ptx import Intrinsic
from . import cache
from .inference import identity
from .rewrite import REBUILT, all_names

PACKAGE = __name__.partition(".")[0]
FOR_GPU, FOR_CPU = ("device", "compiler"), ("device", "compiler", "engines")  # whose code makes what is kept
LIBRARIES = {"numba", "numba_cuda", "numpy", "llvmlite"}  # whose versions count
PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...))
# Types of Numba's that their texts tell from all others.
TOLD = (types.Number, types.Boolean, types.NoneType, types.Array, types.Record, types.CharSeq,
        types.UnicodeCharSeq, types.NPDatetime, types.NPTimedelta, types.NumberClass)  # fmt: skip


class _Unknown(Exception):
    """A value of which nobody knows what belongs to it."""


class Outline:
    """The key of a function for arguments of Numba's types ``kinds``, in ``key``: None where there is none."""

    def __init__(self, function, kinds, rooms=FOR_CPU):
        self.key, self._things, self._numbers, self._modules = None, [], {}, []
        self._hash, self._names = hashlib.sha256(), set()
        if not cache.directory():
            return
        with contextlib.suppress(_Unknown, RecursionError):
            for part in (*cache.sources(rooms), function, *kinds):
                self._value(part)
            self._attributes()
            self.key = self._hash.hexdigest()

    def has(self, kind, *more):
        """Whether something of this kind is kept; what it depends on besides is in the texts ``more``."""
        return cache.has(kind, self._key_with(more))

    def load(self, kind, *more):
        """What was kept, or None."""
        data = cache.load(kind, self._key_with(more))
        try:
            return data and _Reader(io.BytesIO(data), self._things).load()
        except Exception:  # a file that was written by who knows whom: as if there were none
            return None

    def store(self, kind, content, *more):
        """Keep it, if it can be kept."""
        if self.key is None or content is None:
            return
        file = io.BytesIO()
        try:
            _Writer(file, self._number_of).dump(content)
        except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError):
            return
        cache.store(kind, self._key_with(more), file.getvalue())

    def _key_with(self, more):
        return self.key and cache.digest(self.key, *more)

    def _number_of(self, thing):
        """The number of a thing; of a function also that of one that Numba types alike."""
        number = self._numbers.get(id(thing))
        if number is None and isinstance(thing, python.FunctionType) and not _is_named(thing, own=True):
            return self._alike.get(identity(thing))
        return number

    @functools.cached_property
    def _alike(self):
        functions, known = (t for t in self._things if isinstance(t, python.FunctionType)), {}
        return {identity(function, known): self._numbers[id(function)] for function in functions}

    # --- what counts --------------------------------------------------------------------------------
    def _note(self, *words):
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            self._hash.update(b"%d:" % len(data) + data)

    def _value(self, value):
        if isinstance(value, types.Type):
            return self._type(value)
        if type(value) in PLAIN:
            return self._note(type(value).__name__, repr(value))
        if isinstance(value, (tuple, list)):
            self._note(len(value))
            self._value(type(value))
            return [self._value(part) for part in value] and None
        if isinstance(value, (frozenset, set, dict)):
            parts = value.items() if isinstance(value, dict) else value
            return self._note(type(value).__name__, *sorted(map(repr, parts)))
        if isinstance(value, enum.Enum):
            self._note(value.name)
            return self._value(type(value))
        if isinstance(value, np.dtype):
            return self._note("dtype", repr(value))
        if isinstance(value, np.generic):
            return self._note("number", repr(value.dtype), value.tobytes())
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return self._note("array", repr(value.dtype), value.shape, value.strides, value.tobytes())
        if isinstance(value, python.CodeType):
            return self._code(value)
        if id(value) in self._numbers:
            return self._note("thing", self._numbers[id(value)])
        self._add(value)
        return self._thing(value)

    def _add(self, thing):
        self._numbers[id(thing)] = len(self._things)
        self._things.append(thing)

    def _thing(self, thing):
        if isinstance(thing, python.ModuleType):
            self._note("module", type(thing).__name__, thing.__name__)
            if sys.modules.get(thing.__name__) is not thing or not _is_library(thing.__name__):
                self._modules.append(thing)
        elif _is_named(thing, own=isinstance(thing, Intrinsic)):
            self._note("named", *_name_of(thing))
            for part in ("model", "py_func"):
                if isinstance(getattr(thing, part, None), python.FunctionType):
                    self._add(getattr(thing, part))
        elif isinstance(thing, python.FunctionType):
            self._function(thing)
        elif isinstance(thing, (CUDADispatcher, Dispatcher)):
            self._note("device function", *map(str, sorted(thing.targetoptions.items())))
            self._value(thing.py_func)
        elif isinstance(thing, type) and issubclass(thing, tuple) and hasattr(thing, "_fields"):
            self._note("tuple", thing.__qualname__, *thing._fields)
        elif isinstance(thing, enum.EnumMeta):
            self._note("enumeration", thing.__qualname__, *((m.name, m.value) for m in thing))
        else:
            raise _Unknown(thing)

    def _type(self, kind):
        """A type of Numba's."""
        self._note(type(kind).__name__)
        if isinstance(kind, types.BaseTuple):
            self._value(getattr(kind, "instance_class", tuple))
            self._value(tuple(kind.types))
        elif isinstance(kind, (types.Literal, types.BooleanLiteral)):
            self._value(kind.literal_value)
        elif isinstance(kind, types.Omitted):
            self._value(kind.value)
        elif isinstance(kind, types.EnumMember):
            self._value(kind.instance_class)
            self._type(kind.dtype)
        elif isinstance(kind, TOLD):
            self._note(kind)
        elif hasattr(kind, "dispatcher"):
            self._value(kind.dispatcher)
        else:
            raise _Unknown(kind)

    def _code(self, code):
        self._note("code", code.co_name, code.co_code, code.co_firstlineno, code.co_flags, code.co_argcount,
                   code.co_kwonlyargcount, code.co_posonlyargcount, code.co_names, code.co_varnames,
                   code.co_freevars, code.co_cellvars, tuple(code.co_lines()), len(code.co_consts))  # fmt: skip
        for constant in code.co_consts:
            self._value(constant)

    def _function(self, function):
        code, scope = function.__code__, function.__globals__
        self._note("function", function.__module__, function.__qualname__, REBUILT in scope)
        self._code(code)
        self._note(_text_of(code.co_filename, scope))
        self._value(function.__defaults__)
        self._value(tuple((function.__kwdefaults__ or {}).items()))
        for cell in function.__closure__ or ():
            self._value(cell.cell_contents)
        for name in sorted(_globals_of(code) & scope.keys()):
            self._note(name)
            self._value(scope[name])
        self._names |= all_names(code)

    def _attributes(self):
        """What modules hold under a name that some function reads; from there to more functions, and so on."""
        seen, here = set(), lambda: ((m, name) for m in self._modules for name in sorted(self._names))
        while new := [(module, name) for module, name in here() if (id(module), name) not in seen]:
            for module, name in new:
                seen.add((id(module), name))
                # one that lists its names is not asked for another, to which it would look for close ones
                lists = "__dir__" in vars(module)
                if name in vars(module) or (name in dir(module) if lists else hasattr(module, name)):
                    self._note(module.__name__, name)
                    self._attribute(getattr(module, name))

    def _attribute(self, value):
        """As ``_value`` for one that perhaps nobody reads: of what no kernel can use, its kind is enough."""
        before = len(self._things)
        if isinstance(value, python.FunctionType):
            return self._code(value.__code__)
        try:
            self._value(value)
        except _Unknown:
            if isinstance(value, (CUDADispatcher, Dispatcher)):
                raise
            self._note("unknown", type(value))
            for thing in self._things[before:]:
                self._numbers.pop(id(thing), None)
            del self._things[before:]


def _globals_of(code):
    """The global names that a code object loads, those inside it too."""
    names, high, shift = set(), 0, sys.version_info >= (3, 11)
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= high
        if operation == opmap["LOAD_GLOBAL"]:
            names.add(code.co_names[argument >> shift])
        high = argument << 8 if operation == opmap["EXTENDED_ARG"] else 0
    return names.union(*(_globals_of(c) for c in code.co_consts if isinstance(c, python.CodeType)))


def cached(kind, kernel, architecture, make):
    """``make()``, which is of plain values, for a Kernel and an architecture: from disk, if it is there."""
    key = kernel_key(kernel, architecture)
    content = cache.load(kind, key)
    if content is None:
        content = make()
        cache.store(kind, key, content)
    return content


def kernel_key(kernel, architecture):
    """The key of a Kernel's machine code, None where there is none."""
    key = Outline(kernel.py_func, kernel.signature.args, FOR_GPU).key
    fields = [field.name for field in dataclasses.fields(kernel) if field.name not in ("py_func", "shared")]
    files = [kernel.py_func.__code__.co_filename] if kernel.lined else []  # stand in its line information
    words = (f"{name}={getattr(kernel, name)}" for name in fields)
    return key and cache.digest(key, architecture, *words, *files)


def _name_of(thing):
    return getattr(thing, "__module__", None), getattr(thing, "__qualname__", getattr(thing, "__name__", None))


@functools.cache
def _is_library(module):
    """Whether a module's content is told by the version of what it comes with."""
    top = module.partition(".")[0]
    if top in LIBRARIES:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)  # a user's file may have the name of one of Python's
    return top in sys.stdlib_module_names and (file is None or file.startswith(os.path.dirname(os.__file__)))


def _is_named(thing, own=False):
    """Whether a thing of a library, or of this package if it may be its ``own``, is what its name says."""
    module, name = _name_of(thing)
    if isinstance(thing, np.ufunc):
        return getattr(np, thing.__name__, None) is thing
    if not isinstance(module, str) or not isinstance(name, str):
        return False
    if not _is_library(module) and not (own and module.startswith(f"{PACKAGE}.")):
        return False
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


_texts = {}  # file -> (its lines, their digest)


def _text_of(file, scope):
    """The digest of a file's text as it is now, of nothing where there is none."""
    linecache.checkcache(file)
    lines = linecache.getlines(file, scope)
    if file not in _texts or _texts[file][0] is not lines:
        _texts[file] = lines, hashlib.sha256("".join(lines).encode()).hexdigest()
    return _texts[file][1]


# --- what is kept ---------------------------------------------------------------------------------
class _Writer(pickle.Pickler):
    def __init__(self, file, number_of):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.number_of = number_of

    def persistent_id(self, thing):
        return self.number_of(thing)

    def reducer_override(self, thing):
        if isinstance(thing, python.CodeType):
            return marshal.loads, (marshal.dumps(thing),)
        if isinstance(thing, python.ModuleType):
            return importlib.import_module, (thing.__name__,)
        if not isinstance(thing, (type, python.FunctionType, python.BuiltinFunctionType)):
            return NotImplemented
        if _is_named(thing, own=True):
            return NotImplemented
        if isinstance(thing, python.FunctionType) and thing.__module__.startswith(f"{PACKAGE}.engines."):
            cells = tuple(cell.cell_contents for cell in thing.__closure__ or ())
            return _made_inside, (thing.__code__, thing.__module__, thing.__name__, thing.__defaults__, cells)
        raise pickle.PicklingError(f"{thing} is nobody's")


def _made_inside(code, module, name, defaults, cells):
    """A function that one of the engine makes."""
    scope = vars(importlib.import_module(module))
    return python.FunctionType(code, scope, name, defaults, tuple(map(python.CellType, cells)) or None)


class _Reader(pickle.Unpickler):
    def __init__(self, file, things):
        super().__init__(file)
        self.things = things

    def persistent_load(self, number):
        return self.things[number]
