"""CUDA C++ programs with their own host code, on a machine without a GPU: a program is compiled, its ``main``
runs in this process over a stand-in for the CUDA runtime (``cudart.c``), and launches go to a function.

Memory is the host's, copies are memcpy, tensor maps are what the CPU engine reads. A program that calls
``exit`` ends the process: give each a process of its own.
"""

import copy
import ctypes
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np

import numba_deform as nd
from numba_deform.engines.cpu.frontends.ptx.demangling import unmangled
from numba_deform.engines.cpu.frontends.ptx.parser import SIZES
from numba_deform.engines.tensormap import maps, packed, rules

HERE = Path(__file__).parent
ELEMENTS = (  # in the driver's order
    "uint8", "uint16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64", "bfloat16",
    "float32_ftz", "tfloat32", "tfloat32_ftz",
)  # fmt: skip
OK, INVALID_VALUE, LAUNCH_FAILURE = 0, 1, 719
POINTER, UNSIGNED, LONGS = ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint64)
MEMORY = ctypes.CFUNCTYPE(None, POINTER, ctypes.c_size_t)
SYMBOL = ctypes.CFUNCTYPE(None, ctypes.c_char_p, POINTER, ctypes.c_size_t, ctypes.c_size_t)
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, UNSIGNED, ctypes.c_size_t, ctypes.POINTER(POINTER))
ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int, POINTER, ctypes.c_int, ctypes.c_uint, ctypes.c_uint, POINTER, LONGS, LONGS, *3 * [UNSIGNED]
)


@dataclass
class Launched:
    """One launch of the program's: what ``nd.simulate`` takes, by its names; ``name``: as in the PTX."""

    name: str
    kernel: object
    options: dict
    number: int
    memory: dict = field(repr=False, default_factory=dict)  # start of each allocation -> its bytes


def compiled(folder, name, source, options, include):
    """(PTX file, library) of a program, compiled with line information for sm_90a if ``options`` name no other;
    both are kept in ``folder`` for the next time. The stand-in is a part of the library, so that no CUDA
    runtime of this process is found in its place. ``include``: of the toolkit."""
    folder = Path(folder)
    ptx, library, runtime = folder / f"{name}.ptx", folder / f"{name}.so", folder / "cudart.o"
    if not (ptx.exists() and library.exists()):
        folder.mkdir(parents=True, exist_ok=True)
        named = next((option for option in options if option.startswith("-gencode")), "")
        target = [] if named else ["-gencode=arch=compute_90a,code=compute_90a"]
        major = f"-DMAJOR={10 if 'compute_10' in named else 9}"
        text = ["cc", "-c", "-O1", "-fPIC", "-w", major, f"-I{include}", str(HERE / "cudart.c")]
        subprocess.run([*text, "-o", str(runtime)], check=True)
        words = ["nvcc", *target, "-lineinfo", "-w", *options, str(source)]
        words += ["-shared", "-Xcompiler", "-fPIC", "-Xlinker", "-Bsymbolic", "--cudart=none", str(runtime)]
        with tempfile.TemporaryDirectory() as parts:
            words += ["--keep", "--keep-dir", parts, "-o", str(library)]
            ended = subprocess.run(words, capture_output=True, text=True)
            if ended.returncode:
                raise ValueError(f"nvcc does not compile {source}:\n{ended.stderr.strip()}")
            shutil.copy(f"{parts}/{Path(source).stem}.ptx", ptx)
    return ptx, library


class Program:
    """A program that has been compiled. ``judge`` is called with each Launched, and returns whether all is
    well."""

    def __init__(self, ptx, library, judge):
        self.module, self.judge = nd.from_ptx(Path(ptx)), judge
        self.memory, self.symbols, self.numbers = {}, {}, count(1)
        self.refused = []  # words on tensor maps that break a rule
        self.error = None
        self.hooks = MEMORY(self.allocated), SYMBOL(self.written), LAUNCH(self.launched), ENCODE(self.encoded)
        self.library = ctypes.CDLL(str(library))
        self.library.stand_in(*self.hooks)

    def main(self, *words, cwd=None):
        """Call ``main``; returns what it returns. Raises what went wrong in Python while it ran."""
        before = Path.cwd()
        try:
            os.chdir(cwd or before)
            argv = (ctypes.c_char_p * (len(words) + 2))(b"program", *(w.encode() for w in words), None)
            status = self.library.main(len(words) + 1, argv)
        finally:
            os.chdir(before)
        if self.error:
            raise self.error
        return status

    # --- what the stand-in calls
    def allocated(self, start, size):
        if size:
            self.memory[start] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(start))
        else:
            self.memory.pop(start, None)

    def written(self, name, source, size, offset):
        content = self.symbols.setdefault(unmangled(name.decode()), {})
        content[offset] = ctypes.string_at(source, size)

    def encoded(self, out, im2col, kind, rank, start, dims, strides, box, steps, four):
        try:
            options = (list(t)[n] for t, n in zip(rules.OPTIONS.values(), four[:4], strict=True))
            made = maps.TensorMap(
                start, ELEMENTS[kind], dims[:rank], strides[: rank - 1], box[:rank],
                element_strides=steps[:rank], **dict(zip(rules.OPTIONS, options, strict=True)))  # fmt: skip
            ctypes.memmove(out, packed.pack(packed.fields_of(made)), 128)
        except rules.TensorMapError as wrong:
            self.refused.append(str(wrong))
            return INVALID_VALUE
        except Exception as error:
            self.error = error
            return INVALID_VALUE
        return OK

    def launched(self, name, nine, shared, args):
        try:
            kernel = self.kernel(self.module[name.decode()])
            nine = [tuple(nine[i : i + 3]) for i in (0, 3, 6)]
            options = dict(zip(("grid", "block", "cluster"), nine, strict=True), shared_bytes=shared)
            if nine[2] == (1, 1, 1):
                del options["cluster"]
            options["args"] = [argument(v, args[n]) for n, v in enumerate(kernel.entry.params)]
            done = self.judge(Launched(kernel.name, kernel, options, next(self.numbers), self.memory))
            return OK if done else LAUNCH_FAILURE
        except Exception as error:
            self.error = self.error or error
            return LAUNCH_FAILURE

    def kernel(self, kernel):
        """The kernel, with all memory that the program has, and with its variables as they are now."""
        kernel, own = copy.copy(kernel), []
        for name, value, content in kernel.held:
            for offset, given in self.symbols.get(name, {}).items():
                content[offset : offset + len(given)] = np.frombuffer(given, np.uint8)
            own.append((name, value, content))
        more = [(f"cudaMalloc {n}", object(), a) for n, a in enumerate(self.memory.values(), 1)]
        kernel.held = (*own, *more)
        return kernel


def argument(variable, place):
    """One argument of a launch, as ``nd.simulate`` takes it."""
    content = ctypes.string_at(place, variable.size)
    if variable.array:
        room = np.zeros(variable.size + 128, np.uint8)
        array = room[-room.ctypes.data % 128 :][: variable.size]
        array[:] = np.frombuffer(content, np.uint8)
        return array
    size = SIZES[variable.type]
    kind = {"f32": np.float32, "f64": np.float64}.get(variable.type, np.dtype(f"u{size}").type)
    return np.frombuffer(content[:size], kind)[0]
