"""What takes long to make, on disk: machine code, typed code of the CPU engine, what a disassembler said.

The directory is ``numba-deform/code`` of the user's cache directory. The environment variable
``NUMBA_DEFORM_CACHE`` names another, and ``off`` or nothing at all turns it off. A file's name is a SHA-256 of
all that its content depends on. What was used least recently goes where all together is more than ``LIMIT``. A
file that is damaged counts as none; a directory that cannot be written, or into which others can write, is said
once and not used: no run depends on what is here.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import marshal
import os
import platform
import re
import sys
import tempfile
import threading
import time
import warnings
import zlib
from pathlib import Path

import platformdirs

from ..device.ptx import ptx_directory

OWN = "NUMBA_DEFORM_"  # variables that say where things are, not what they are
VARIABLE = f"{OWN}CACHE"
OFF = ("", "off")
LIMIT = 512 << 20  # bytes of all files together
STARTED = time.time()  # files of this package that are younger may be others than those that run
ROOMS = ("device", "compiler", "kernels")  # where the code of this package's kernels comes from
TOOLS = ("numba", "numba-cuda", "llvmlite", "nvidia-nvjitlink", "nvidia-nvvm", "nvidia-cuda-nvcc", "cuda-core",
         "cuda-bindings", "numpy")  # fmt: skip


# --- files ----------------------------------------------------------------------------------------
def directory():
    """Where all is kept, or None."""
    named = os.environ.get(VARIABLE)
    if named in OFF:
        return None
    return Path(named) if named else user_directory() / "code"


def user_directory():
    """This package's part of the user's cache directory."""
    return platformdirs.user_cache_path("numba-deform", appauthor=False)


@contextlib.contextmanager
def shared_directory():
    """Inside, compiled kernels are kept, child processes included: in a temporary directory if need be."""
    if directory():
        yield directory()
        return
    before = os.environ[VARIABLE]
    with tempfile.TemporaryDirectory(prefix="numba-deform-") as made:
        os.environ[VARIABLE] = made
        try:
            yield Path(made)
        finally:
            os.environ[VARIABLE] = before


def has(kind, key):
    """Whether there is such a file."""
    path = _path(kind, key)
    return bool(path) and path.exists()


def load(kind, key):
    """What ``store`` was given for this kind and key, or None if it is not there or not whole."""
    path = _path(kind, key)
    try:
        data = path.read_bytes() if path else b""
        if hashlib.sha256(data[32:]).digest() != data[:32]:
            return None
        content = marshal.loads(zlib.decompress(data[32:]))
    except (OSError, ValueError, EOFError, TypeError, zlib.error):
        return None
    with contextlib.suppress(OSError):  # of a directory that can only be read
        os.utime(path)  # it has been used
    return content


def store(kind, key, content):
    """Keep ``content``, which consists of plain values, tuples, lists and dictionaries."""
    path = _path(kind, key)
    if path is None:
        return
    packed = zlib.compress(marshal.dumps(content), 1)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _replace(path, hashlib.sha256(packed).digest() + packed)
        _make_room(path.parent, len(packed))
    except OSError as error:
        _say_once(f"{path.parent} cannot be written ({error.strerror}): what is compiled is not kept; "
                  f"{VARIABLE} names another directory, or is off")  # fmt: skip


def save(path, content):
    """Write JSON so that a reader, or the next run after a crash, finds the old file or the new; the Path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, (json.dumps(content, indent=1) + "\n").encode())
    return path


def files(place):
    """(time of its last use, bytes, Path) of each file that is kept in a directory."""
    found = []
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if re.fullmatch(r"[0-9a-f]{64}\..*", entry.name):
                with contextlib.suppress(OSError):  # another process has just removed it
                    found.append((entry.stat().st_mtime, entry.stat().st_size, Path(entry.path)))
    return found


def clear(place):
    """Remove all that is kept in a directory; returns how many files that were."""
    found = files(place)
    for *_, path in found:
        path.unlink(missing_ok=True)
    return len(found)


def _path(kind, key):
    place = directory()
    return place / f"{key}.{kind}" if place and key and _is_ours(place) else None


def _is_ours(place):
    """Whether nobody else can put code here; told once if somebody can. What is not there yet will be ours."""
    try:
        state = place.stat()
    except OSError:
        return True
    if os.name != "posix" or state.st_uid in (0, os.getuid()) and not state.st_mode & 0o022:
        return True
    _say_once(f"others can write into {place}: it is not used; {VARIABLE} names another directory, or is off")
    return False


def _replace(path, data):
    """Several processes and threads may do so: each writes a file of its own and renames it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


_written = LIMIT  # bytes since ``_make_room`` has looked: it does for the first file of a process


def _make_room(place, size):
    """Remove what was used least recently, until a tenth of the limit is free: once every so many bytes."""
    global _written
    _written += size
    if _written < LIMIT // 20:
        return
    _written, found = 0, sorted(files(place))
    total = sum(size for _, size, _ in found)
    for _, size, path in found if total > LIMIT else ():
        if total <= LIMIT * 9 // 10:
            break
        path.unlink(missing_ok=True)
        total -= size


@functools.cache
def _say_once(text):
    warnings.warn(text, stacklevel=2)


# --- keys -----------------------------------------------------------------------------------------
def digest(*parts):
    """Hexadecimal SHA-256 of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def sources(rooms=ROOMS):
    """Sources, versions and settings that something is made from by the code of these rooms: the same in each
    process, but for one whose files have changed since its start, which shares with no other."""
    package = Path(__file__).parents[1]
    files = {*ptx_directory().glob("*.ptx"), *(f for room in rooms for f in (package / room).rglob("*.py"))}
    parts = [sys.implementation.cache_tag, platform.python_version(), platform.machine()]
    parts += (f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in sorted(files))
    states = [file.stat() for file in files]  # a copy may keep its date of change, but not that of its making
    if max(max(state.st_mtime, state.st_ctime) for state in states) > STARTED:
        parts.append(f"process {os.getpid()} since {STARTED}")
    for tool in TOOLS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append(f"{tool} {importlib.metadata.version(tool)}")
    settings = (name for name in os.environ if name.startswith("NUMBA_") and not name.startswith(OWN))
    return *parts, *sorted(f"{name}={os.environ[name]}" for name in settings)
