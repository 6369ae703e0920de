"""Compiled kernels on disk, for tables and sweeps that would otherwise compile for minutes.

The directory is named by the environment variable ``NUMBA_DEFORM_CACHE``; without it nothing is kept.
A file's name is a SHA-256 over all that the machine code depends on: the sources that kernels are made
from, the versions of the compilers, the architecture, and the kernel itself: its byte code with every
value that it reads from its closure or its globals, through all device functions. A value of a kind
not known here makes the kernel uncacheable, so a stale answer cannot come from overlooking it.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import tempfile
import types
from pathlib import Path

import numpy as np
from numba.core.types import Type
from numba.cuda.dispatcher import CUDADispatcher

from ..device.ptx import Intrinsic, ptx_directory
from .rebind import _global_names

OWN = "NUMBA_DEFORM_"  # variables that say where things are, not what they are
VARIABLE = f"{OWN}CACHE"
PACKAGE = __name__.partition(".")[0]
TOOLS = (
    "numba", "numba-cuda", "llvmlite", "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-cuda-nvcc",
    "cuda-core", "cuda-bindings", "numpy",
)  # fmt: skip


class Uncacheable(Exception):
    """A kernel depends on something whose identity is not known here."""


def directory():
    """Where compiled kernels are kept, or None."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None


@contextlib.contextmanager
def shared_directory():
    """Inside, compiled kernels are kept, child processes included: a temporary directory if need be."""
    if directory():
        yield directory()
        return
    with tempfile.TemporaryDirectory(prefix="numba-deform-") as made:
        os.environ[VARIABLE] = made
        try:
            yield Path(made)
        finally:
            del os.environ[VARIABLE]


def cached(kernel, architecture, compile):
    """(ptx, cubin, entry) of the kernel: from disk, or by ``compile()``, which returns just that."""
    place = directory()
    if place is None:
        return compile()
    try:
        path = place / f"{kernel_key(kernel, architecture)}.json"
    except Uncacheable:
        return compile()
    found = _read(path)
    if found is None:
        found = compile()
        _write(path, *found)
    return found


def _read(path):
    """What ``_write`` wrote, or None if it is not there or not whole."""
    try:
        stored = json.loads(path.read_text())
        cubin = base64.b64decode(stored["cubin"])
        if hashlib.sha256(cubin).hexdigest() != stored["sha256"]:
            return None
        return stored["ptx"], cubin, stored["entry"]
    except (OSError, ValueError, KeyError):
        return None


def _write(path, ptx, cubin, entry):
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {
        "entry": entry,
        "ptx": ptx,
        "cubin": base64.b64encode(cubin).decode(),
        "sha256": hashlib.sha256(cubin).hexdigest(),
    }
    # Several processes may compile the same kernel: each writes its own file and renames it.
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(json.dumps(stored))
    own.replace(path)


# --- the key --------------------------------------------------------------------------------------
def kernel_key(kernel, architecture):
    """Hexadecimal SHA-256; raises Uncacheable."""
    digest = hashlib.sha256()
    for part in (*_surroundings(), architecture, str(kernel.signature)):
        digest.update(part.encode() + b"\0")
    identity = _Identity()
    for field in dataclasses.fields(kernel):
        if field.name not in ("py_func", "signature"):
            identity.add(field.name)
            identity.add(getattr(kernel, field.name))
    identity.add(kernel.py_func)
    digest.update("\n".join(identity.parts).encode())
    return digest.hexdigest()


def sources(*more):
    """Texts that differ when what kernels are made from does, or one of the package's files ``more``."""
    files = [Path(__file__).parents[1] / name for name in more]
    return (*_surroundings(), *map(_fingerprint, files))


def _fingerprint(file):
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


@functools.cache
def _surroundings():
    """Sources, versions and settings: the same for all kernels of a process."""
    package = Path(__file__).parents[1]
    files = [*package.glob("device/*.py"), *package.rglob("kernels/**/*.py")]
    files += package.glob("compiler/*.py")
    files += ptx_directory().glob("*.ptx")
    parts = [platform.python_version(), platform.machine()]
    parts += map(_fingerprint, sorted(files))
    for tool in TOOLS:
        try:
            parts.append(f"{tool} {importlib.metadata.version(tool)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    parts += sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith("NUMBA_") and not name.startswith(OWN)
    )
    return tuple(parts)


class _Identity:
    """Collects texts in ``parts`` that differ whenever two values differ."""

    def __init__(self):
        self.parts, self.numbers, self.kept = [], {}, []

    def add(self, value):
        """Append the identity of one value, and of all that it refers to."""
        if (
            value is None
            or value is Ellipsis
            or isinstance(value, (bool, int, str, bytes, complex))
        ):
            self._say(type(value).__name__, repr(value))
        elif isinstance(value, float):
            self._say("float", value.hex())
        elif isinstance(value, np.generic):
            self._say(str(value.dtype), value.tobytes().hex())
        elif isinstance(value, (tuple, list)):
            self._say(_type_name(type(value)), len(value))
            for item in value:
                self.add(item)
        elif isinstance(value, frozenset):
            self._say("frozenset", sorted(map(repr, value)))
        elif isinstance(value, np.dtype):
            self._say("dtype", value.str)
        elif isinstance(value, Type):
            self._say("numba type", value)
        elif isinstance(value, types.CodeType):
            self._code(value)
        elif id(value) in self.numbers:
            self._say("again", self.numbers[id(value)])
        else:
            self.numbers[id(value)] = len(self.numbers)
            self.kept.append(value)  # an id means something only while its object lives
            self._object(value)

    def _say(self, kind, text):
        self.parts.append(f"{kind} {text!s}")

    def _object(self, value):
        if isinstance(value, CUDADispatcher):
            options = sorted(value.targetoptions.items())
            self._say("device function", len(options))
            for name, option in options:
                self.add(name)
                self.add(option)
            self.add(value.py_func)
        elif isinstance(value, Intrinsic):
            self._foreign("intrinsic", value.model, PACKAGE)
            self._say("linked", value.is_linked)
        elif isinstance(value, types.ModuleType):
            # A module of this package could hold anything; the compilers' are known by their version.
            self._named("module", value.__name__, value.__name__, ("numba", "numpy", "math"))
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.FunctionType) and not _belongs(value.__module__, ("numba",)):
            self._function(value)
        elif callable(value) and hasattr(value, "__qualname__"):
            self._foreign("function", value, "numba", "builtins", "math", "numpy")
        else:
            raise Uncacheable(f"a {_type_name(type(value))}")

    def _class(self, value):
        if issubclass(value, tuple) and hasattr(value, "_fields"):
            self._say("named tuple", (_type_name(value), value._fields))
        else:
            self._foreign("class", value, "numba", "builtins", "numpy")

    def _foreign(self, kind, value, *owners):
        self._named(kind, _type_name(value), value.__module__, owners)

    def _named(self, kind, name, module, owners):
        if not _belongs(module, owners):
            raise Uncacheable(f"the {kind} {name}")
        self._say(kind, name)

    def _function(self, function):
        self._say("function", function.__name__)
        self.add(function.__code__)
        self.add(function.__defaults__)
        if function.__kwdefaults__:
            raise Uncacheable("keyword defaults")
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self.add(name)
            self.add(cell.cell_contents)
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                self.add(name)
                self.add(function.__globals__[name])

    def _code(self, code):
        self._say("code", code.co_code.hex())
        self._say("exceptions", getattr(code, "co_exceptiontable", b"").hex())
        self._say("arguments", (code.co_argcount, code.co_kwonlyargcount, code.co_flags))
        for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
            self.add(names)
        self.add(code.co_consts)


def _type_name(value):
    return f"{value.__module__}.{value.__qualname__}"


def _belongs(module, owners):
    return (module or "").partition(".")[0].lstrip("_") in owners
