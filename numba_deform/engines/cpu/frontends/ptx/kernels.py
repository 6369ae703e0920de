"""``from_ptx``: the kernels of a PTX text for ``simulate`` and ``explore``."""

import copy
import functools
import hashlib
import linecache
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numba import types

from .....device.memory import shared_address
from ....launches import Launchable
from ...reports.call_sites import ORIGINS
from . import intrinsics, parser
from .demangling import is_spelled, unmangled, with_arguments
from .operations import FUNCTIONS
from .parser import SIZES, BadPtx
from .semantics import floats, integers, memory, threads  # noqa: F401 (they name themselves in FUNCTIONS)
from .translation import ENDS, Program, kinds_of_parameters

ARGUMENTS = {"u64": types.uint64, "f32": types.float32, "f64": types.float64}  # of others the bits
EXTRA = (
    "clock64", "globaltimer", "warp", "cluster_ctarank", "cluster_nctarank", "cluster_ctaid_x",
    "cluster_ctaid_y", "cluster_ctaid_z", "cp_async_bulk_wait_group", "cp_async_bulk_wait_group_read",
    "cp_async_wait_group",
    "setmaxnreg_inc", "setmaxnreg_dec", "bar_sync", "bar_arrive",
)  # fmt: skip
LANGUAGES = {".cu": "cuda", ".cuh": "cuda", ".h": "cuda", ".hpp": "cuda", ".py": ""}  # of source files
ROUNDED = re.compile(r"(add|mul|fma|cvt)_(rn|f32)_\w+")


@functools.cache
def names():
    """What the Python text of a kernel may name: the functions of ``operations``, and intrinsics."""
    found = {p.intrinsic.__name__: p.intrinsic for group in intrinsics.patterns().values() for p in group}
    for name, value in intrinsics.all_intrinsics():
        if name in EXTRA or ROUNDED.fullmatch(name) or name.startswith("tensormap_replace_"):
            found[name] = value
    return {**found, **FUNCTIONS, "shared_address": shared_address, "float32": np.float32,
            "uint8": types.uint8, "float": float, "int": int, "bool": bool, "abs": abs,
            "copysign": lambda x, y: np.copysign(x, y)}  # fmt: skip


class PtxKernel(Launchable):
    """An entry of a PTX text. ``plain`` is the Python function that the engine runs, ``parameters`` the names
    of what a launch hands over: pointers take arrays, structures arrays of their bytes or TensorMapArrays."""

    def __init__(self, module, entry, file, parameters=(), text="", language=""):
        self.name, self.entry, self.text = with_arguments(entry.name), entry, text
        place, main = _places(entry, file)
        self.language = language or LANGUAGES.get(Path(main or "").suffix, "ptx")
        program = Program(module, entry, names(), place, parameters, self.language)
        lines = program.text("kernel_")
        self.parameters = tuple(program.params.values())
        self.declared_alignment, self.shared_alignment, self.static_bytes = _alignments(list(program.placed()))
        self.is_empty = all(i.root in ENDS for i in entry.instructions)
        kinds = kinds_of_parameters(entry)
        self.signature = types.void(*(ARGUMENTS.get(kind, types.uint32) for kind in kinds))
        self.threads, self.cluster = entry.threads or 0, entry.cluster
        self.held = tuple((name, _Variable(v.name), contents(v)) for name, v in program.memory.values())
        scope = dict(names()) | {name: value for name, value, _ in self.held}
        self.plain = self.py_func = _compiled(self.name, lines, scope)
        self.registers, self.lines = program.registers, lines

    @functools.cached_property
    def digest(self):
        """Of all that machine code depends on, besides the types of arguments and this package."""
        names = [name for name, *_ in self.held]
        return hashlib.sha256(repr((self.lines, self.registers, names)).encode()).hexdigest()

    def reaching(self, arrays):
        """The kernel with memory beside its arguments, {name: array}: what structures point to."""
        kernel = copy.copy(self)
        kernel.held = (*self.held, *((name, object(), array) for name, array in arrays.items()))
        vars(kernel).pop("digest", None)
        return kernel

    def strict(self):
        """The kernel with its dynamic shared memory on a multiple of what the text declares, and of no more."""
        kernel = copy.copy(self)
        kernel.shared_alignment = self.declared_alignment
        return kernel

    def __repr__(self):
        return f"<{self.name}({', '.join(self.parameters)}) from PTX>"


def _alignments(placed):
    """What dynamic shared memory is a multiple of: as the variables declare it, and as a GPU places it. On an
    H200 a block's memory begins at 1024, with the static variables, and the dynamic part at the next multiple
    of what is declared, of 16 at least (bench/ENGINE.md). Last: the bytes of static variables."""
    declared = max(16, *(v.align for _, v, _ in placed if not v.size), 0)
    end = max((address + v.size for _, v, address in placed), default=1024)
    base = end + -end % declared
    return declared, max(declared, min(1024, base & -base)), end - 1024


class _Variable(str):
    """The name of a module's variable; stands for it in a kernel's names until a launch brings its array."""


def contents(variable):
    """What a module's variable holds before a launch: as its text says, else zeros."""
    content = np.zeros(variable.size, np.uint8)
    numbers = variable.initial.strip("{} ")
    if numbers:
        size, data = SIZES[variable.type], b""
        for text in numbers.replace("{", "").replace("}", "").split(","):
            m = re.fullmatch(r"\s*(?:0[fFdD]([0-9a-fA-F]+)|(-?(?:0[xX][0-9a-fA-F]+|\d+))U?)\s*", text)
            if m is None:
                raise BadPtx(f"the initial value {text.strip()} of {variable.name} is not known to the engine")
            value = int(m[1], 16) if m[1] else int(m[2], 0)
            data += (value & (1 << 8 * size) - 1).to_bytes(size, "little")
        content[: len(data)] = np.frombuffer(data, np.uint8)
    return content


def _places(entry, file):
    """A function from an instruction to (file, line, words), of the source where ``.loc`` tells it, else of the
    text; and the file of that source. Of several frames it is the innermost in the file that most of the kernel
    is from, without those that are wrapped around all of it; the words tell of those in it, in other files, and
    of those around it."""
    around = _around([i.frames for i in entry.instructions])
    own = {id(i): i.frames[: -around or None] or i.frames for i in entry.instructions}
    outer = [frames[-1][0] for frames in own.values() if frames]
    main = max(Counter(outer).items(), key=lambda pair: pair[1])[0] if outer else None
    frames = (frame for frames in own.values() for frame in frames if frame[0] == main)
    last = next(((*frame, "") for frame in frames), None)

    def named(frames):
        return [f"{name.rpartition('/')[2]}:{line}" for name, line in frames]

    def place(i):
        nonlocal last
        if main is None:
            return file, i.line, ""
        if i.frames:
            frames = own.get(id(i), i.frames)  # those of a .func are its own
            n = next((n for n, frame in enumerate(frames) if frame[0] == main), len(frames) - 1)
            inner, outer = named(reversed(i.frames[:n])), named(i.frames[n + 1 :])
            words = [f"calls {', '.join(inner)}"] * bool(inner)
            words += [f"inlined at {', at '.join(outer)}"] * bool(outer)
            words += ["volatile"] * ("volatile" in i.parts)
            last = (*i.frames[n], f"   ({'; '.join(words)})" if words else "")
        return last

    return place, main


def _around(chains):
    """How many of the outermost frames wrap a whole kernel: it stands in a function that calls nothing else, as
    where a library launches an object's ``operator()``."""
    found = 0
    while True:
        outermost = Counter(frames[-1 - found] for frames in chains if len(frames) > 1 + found)
        if len(outermost) != 1 or outermost.total() < 0.9 * len(chains):
            return found
        found += 1


def _compiled(name, lines, scope):
    """The Python function of a text, whose lines have places in the source (``call_sites.ORIGINS``)."""
    text = "\n".join(line for line, _ in lines) + "\n"
    file = f"<{name} from PTX {hashlib.sha256(text.encode()).hexdigest()[:12]}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    ORIGINS[file] = tuple(place for _, place in lines)
    scope = {"__name__": "numba_deform_ptx", **scope}
    exec(compile(text, file, "exec"), scope)
    function = scope["kernel_"]
    function.__name__ = function.__qualname__ = name
    return function


class PtxModule(Mapping):
    """The kernels of a PTX text by name: as it is in the source, with template arguments where several have it,
    or as the compiler has changed it. Each is translated when it is first asked for. ``parameters``: {kernel:
    names of its parameters} where they are known."""

    def __init__(self, text, file, parameters=(), language=""):
        self._module, self._file, self._text, self._kernels = parser.read(text), file, text, {}
        self._language = language
        entries = [f for f in self._module.functions.values() if f.is_entry]
        self.parameters = {f.name: tuple(parameters) for f in entries} if parameters else {}
        self._entries, self.variables = {}, self._module.variables
        self.names = names = {f.name: (unmangled(f.name), with_arguments(f.name), f.name) for f in entries}
        taken = [Counter(of_kind) for of_kind in zip(*names.values(), strict=True)]
        for f in entries:
            own = next(name for name, counts in zip(names[f.name], taken, strict=True) if counts[name] == 1)
            self._entries[own] = f

    def __getitem__(self, name):
        entry = self._entries.get(name)
        if entry is None:
            entries = self._entries.values()
            found = [f for f in entries if name in self.names[f.name] or is_spelled(f.name, name)]
            if len(found) != 1:
                what = f"{len(found)} entries" if found else "no entry"
                raise KeyError(f"{self._file} has {what} {name!r}; it has {', '.join(self) or 'none'}")
            entry = found[0]
        if entry.name not in self._kernels:
            names = self.parameters.get(entry.name) or self.parameters.get(unmangled(entry.name), ())
            try:
                self._kernels[entry.name] = PtxKernel(self._module, entry, self._file, names, self._text,
                                                      self._language)  # fmt: skip
            except BadPtx as wrong:
                raise BadPtx(str(wrong) if wrong.is_placed else f"{self._file}: {wrong}") from None
        return self._kernels[entry.name]

    def __iter__(self):
        return iter(self._entries)

    def __len__(self):
        return len(self._entries)

    def __repr__(self):
        return f"<PTX of {', '.join(self)}>"


def from_ptx(source, parameters=(), language="", made="ptx"):
    """The kernels of PTX for the CPU engine, by name: ``nd.simulate(nd.from_ptx("ring.ptx")["ring"], ..)``.

    ``source`` is a file, or PTX text. A fault names the line of the source that ``.loc`` tells (compile
    with line information), else the line of the PTX. The verdict is about the PTX: what the compiler has
    removed is not looked at. Raises ValueError, naming the line, for what is no PTX, for a target beyond
    sm_121, and for an instruction that is not known here (bench/PTX.md); KeyError for an entry that is not
    there. ``language``, of ``languages.LANGUAGES``, is that of cures, where source files do not tell it;
    ``made``: what a text is called, in refusals that name a line of it."""
    text = str(source)
    if "\n" not in text:
        file = Path(text)
        text = file.read_text()
        name = str(file.resolve())
    else:
        name = f"<{made} {hashlib.sha256(text.encode()).hexdigest()[:8]}>"
        linecache.cache[name] = len(text), None, text.splitlines(True), name
    try:
        return PtxModule(text, name, parameters, language)
    except BadPtx as wrong:
        raise BadPtx(f"{name}: {wrong}") from None
