"""Compiled kernels on disk, for tables and sweeps that would otherwise compile for minutes.

The directory is named by the environment variable ``NUMBA_DEFORM_CACHE``; without it nothing is kept.
A file's name is a SHA-256 over all that the machine code depends on: the sources of kernels, the versions of
the compilers, the architecture, and what the kernel was made from: the function that built it, and its
arguments, which are dataclasses of plain values (``build.built``). A kernel that was not built so, or not in
this package, is compiled each time.
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
import sys
import tempfile
from pathlib import Path

from ..device.ptx import ptx_directory

OWN = "NUMBA_DEFORM_"  # variables that say where things are, not what they are
VARIABLE = f"{OWN}CACHE"
PACKAGE = __name__.partition(".")[0]
ROOMS = ("device", "compiler", "kernels")  # where the code of kernels comes from
TOOLS = (
    "numba", "numba-cuda", "llvmlite", "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-cuda-nvcc",
    "cuda-core", "cuda-bindings", "numpy")  # fmt: skip


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
    key = place and kernel_key(kernel, architecture)
    if key is None:
        return compile()
    path = place / f"{key}.json"
    parts = _read(path)
    if parts is None:
        parts = compile()
        _write(path, *parts)
    return parts


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
    encoded, digest = base64.b64encode(cubin).decode(), hashlib.sha256(cubin).hexdigest()
    save(path, {"entry": entry, "ptx": ptx, "cubin": encoded, "sha256": digest})


def save(path, content):
    """Write JSON so that a reader, or the next run after a crash, finds the old file or the new; the Path.

    Several processes may do so: each writes a file of its own and renames it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(path)
    return path


# --- the key --------------------------------------------------------------------------------------
def kernel_key(kernel, architecture):
    """Hexadecimal SHA-256, or None for a kernel whose sources are not all this package's."""
    if kernel.key is None or not kernel.key[0].startswith(f"{PACKAGE}."):
        return None
    source = Path(sys.modules[kernel.key[0]].__file__)
    fields = [field.name for field in dataclasses.fields(kernel) if field.name != "py_func"]
    kernel_parts = [f"{name}={getattr(kernel, name)}" for name in fields]
    parts = (*sources(), _fingerprint(source), architecture, *kernel_parts)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _fingerprint(file):
    return f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}"


@functools.cache
def sources():
    """Sources, versions and settings that kernels are made from: the same for all of a process."""
    package = Path(__file__).parents[1]
    files = [file for room in ROOMS for file in (package / room).rglob("*.py")]
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
