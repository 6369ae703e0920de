"""A CUDA C++ program with its own ``main``, for ``numba-deform check program.cu``: nvcc compiles all of it, the
host's code runs in a child process over a stand-in for the CUDA runtime (``cudart.c``), launches are judged.

Memory and streams are those of the stand-in for the driver (``driver.py``). A function of CUDA's libraries that
``cudart.c`` does not have ends the program where it is called, by its name."""

import copy
import ctypes
import functools
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np

from ..engines.cpu import SimFault
from ..engines.cpu.frontends.ptx.compilers import cuda_kernels
from ..engines.cpu.frontends.ptx.demangling import unmangled, with_arguments
from ..engines.cpu.frontends.ptx.kernels import contents, from_ptx
from ..engines.cpu.frontends.ptx.parser import SIZES
from ..engines.faults import BadLaunch, HostRace, OutOfRange, StreamRace
from ..engines.launches import History
from ..engines.tensormap import maps, packed, rules
from .children import keep, watched
from .driver import HostDriver, at
from .endings import status_of
from .summary import short
from .triton_driver import REGISTERS, Launched, Unset

RUNTIME = Path(__file__).with_name("cudart.c")
SUCCESS, INVALID_VALUE, INVALID_CONFIGURATION, LAUNCH_FAILURE = 0, 1, 9, 719
LOW, TABLE = 1 << 20, 1 << 16  # no address is below; bytes of what may hold addresses
REFUSED, BYTE = 2, np.dtype(np.uint8)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)
MAIN = re.compile(r"\b(?:int|auto|void)\s+main\s*\(")
LIBRARIES = re.compile(r"-l?(?:cuda|cudart|cudart_static|cudadevrt|nvidia-ml)$")  # which the stand-in replaces
LIBRARY = re.compile(r"(?m)\bU ((?:_*cuda[A-Z]|cu[A-Z]|cu(?:blas|fft|rand|sparse|solver|dnn)|nv|nccl)\w*)$")
AS_LIBRARY = ("-shared", "-Xcompiler", "-fPIC", "--cudart=none")
OF_RUNTIME = ("-Xcompiler", "-w,-fexceptions", "-Xlinker", "-Bsymbolic")
WITH_LINES = ("-lineinfo", "-Xcompiler", "-g1", "--keep")  # and with the PTX in the folder of --keep-dir
CALL = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint64))


def has_main(file):
    """Whether a file of CUDA C++ is a whole program."""
    return bool(MAIN.search(COMMENT.sub(" ", Path(file).read_text(errors="replace"))))


def run(file, options, compiler, words, session, asked):
    """(the Session, the exit status of ``main``) of a program that is called with ``words``. ``options`` and
    ``compiler`` are those of ``from_cuda``, ``asked`` those of the Session. One that is ended by a signal has
    128 and its number for a status, and one that calls what is not supported 2."""
    if not hasattr(os, "fork"):
        raise ValueError(f"check {file}: a program with main() is run on Linux; entry=NAME judges one launch")
    nvcc = compiler or cuda_kernels.nvcc()
    with tempfile.TemporaryDirectory(prefix="numba_deform_cuda_") as folder, watched(session, asked):
        built = compiled(file, options, nvcc, folder)
        sys.stdout.flush(), sys.stderr.flush()
        if not (child := os.fork()):
            _in_child(session, built, file, words)
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except KeyboardInterrupt as interrupt:
            os.waitpid(child, 0)
            status = status_of(interrupt)
    if status < 0 and status != -signal.SIGINT:
        session.note(f"the program was ended by {signal.Signals(-status).name}")
    return session, status if status >= 0 else 128 - status


def compiled(file, options, nvcc, folder):
    """(the library with ``main`` and the stand-in, its PTX texts) in a folder. Raises as ``from_cuda``."""
    file, folder = Path(file), Path(folder)
    if nvcc in (None, "nvrtc"):
        raise FileNotFoundError(f"{file} has a main(), which nvcc compiles, and NVRTC does not; "
                                f"{cuda_kernels.INSTALL}")  # fmt: skip
    runtime, library = made_runtime(nvcc, folder / "cudart.so"), folder / "program.so"
    words = cuda_kernels.virtual([option for option in options if not LIBRARIES.match(option)])
    words += [*AS_LIBRARY, *WITH_LINES, "--keep-dir", str(folder)]
    cuda_kernels.run_nvcc(nvcc, [*words, str(file), str(runtime), "-o", str(library)], file)
    refuse_missing(nvcc, library, runtime)
    return library, [path.read_text() for path in sorted(folder.glob("*.ptx"))]


def made_runtime(nvcc, runtime, more=()):
    """The stand-in for the runtime, compiled with ``more`` sources."""
    words = [*AS_LIBRARY, *OF_RUNTIME, *map(str, more), str(RUNTIME), "-lstdc++", "-o", str(runtime)]
    cuda_kernels.run_nvcc(nvcc, words, RUNTIME)
    return runtime


def refuse_missing(nvcc, library, runtime):
    """Give the runtime of a library what that calls of CUDA's libraries and it has not: it says so."""
    stubs = library.with_name("missing.c")
    said = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True).stdout
    here = subprocess.run(["nm", "-D", "--defined-only", str(runtime)], capture_output=True, text=True).stdout
    if missing := set(LIBRARY.findall(said)) - {line.split()[-1] for line in here.splitlines()}:
        functions = "".join(f'int {name}() {{ return unsupported("{name}"); }}\n' for name in sorted(missing))
        stubs.write_text(f"int unsupported(const char *);\n{functions}")
        made_runtime(nvcc, runtime, [stubs])


def _in_child(session, built, file, words):
    """Run ``main``, and end as the program does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    libc = ctypes.CDLL(None)
    try:
        host = Host(session, *built, file)
        argv = (ctypes.c_char_p * (len(words) + 2))(*map(os.fsencode, (file, *words)), None)
        status = host.library.main(len(words) + 1, argv)
        sys.stdout.flush(), sys.stderr.flush()
        libc.exit(status)
    except BaseException as error:
        _stop(session, f"{Path(file).name}: {error}", error)


def _stop(session, text, error):
    """End this process, with words in the summary."""
    if not isinstance(error, (ValueError, OSError)):
        traceback.print_exception(error)
    session.note(text)
    keep(session)
    _end(REFUSED)


def _end(status):
    sys.stdout.flush(), sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(status)


class Host(HostDriver):
    """The runtime of one program: ``cudart.c`` calls its methods, and those of the stand-in for the driver, by
    their names, with numbers. What they raise ends the program."""

    runtime_name, knows_all_memory = "cudart.so", True
    # What cures name.
    ORDER = {StreamRace: "Put cudaEventRecord(e, a) behind the first and cudaStreamWaitEvent(b, e) before the "
             "second, or cudaStreamSynchronize(a) between.",
             HostRace: "Wait between the two: cudaStreamSynchronize(stream), or cudaEventRecord(e, stream) and "
             "cudaEventSynchronize(e)."}  # fmt: skip
    ASK, LOOK = "cudaFuncSetAttribute", ", and look at cudaGetLastError() behind each launch"
    COOPERATIVE, language = "cudaLaunchCooperativeKernel", "cuda"

    def __init__(self, session, library, texts, *sources):
        self.session, self.file, self.path = session, Path(sources[0]), library
        self.folders = {Path(source).resolve().parent for source in sources}
        made = f"PTX of {self.file.name}"
        self.modules = [from_ptx(text, language=self.language, made=made) for text in texts]
        if not any(map(len, self.modules)):
            raise ValueError("there is no kernel in it")
        for module, source in itertools.product(self.modules, sources):
            module.parameters |= cuda_kernels.parameters(Path(source).read_text(errors="replace"))
        targets = (re.search(r"(?m)^\.target\s+sm_(\d+)", text) for text in texts)
        capability = max(int(target[1]) for target in targets if target)
        super().__init__(
            lambda fault, name, where=None: session.found(fault, name, where or self.line()),
            divmod(capability, 10),
        )
        self.variables, self.kinds, self.refusal, self.hook = {}, {}, None, CALL(self.call)
        # What the program calls is looked for here first: other packages may have loaded a real runtime.
        self.runtime = ctypes.CDLL(str(library.with_name(self.runtime_name)))
        self.library = ctypes.CDLL(str(library), os.RTLD_DEEPBIND)
        self.runtime.stand_in(self.hook, capability, getattr(self.library, "main", None))

    def called(self, name, words):
        """What a method returns, as a number; it takes as many words as it has parameters."""
        method = getattr(self, name.decode())
        result = int(method(*words[: method.__code__.co_argcount - 1]) or 0)
        if "Alloc" in method.__name__:
            self.kinds[result] = method.__name__
        return result

    def call(self, name, words):
        try:
            with self.pages.open():
                return self.called(name, words)
        except SimFault:  # after ``stop``: it is told with the rest
            _end(1)
        except BaseException as error:
            text = error.args[0] if isinstance(error, KeyError) else error
            _stop(self.session, f"{self.line()}: the program was ended here: {text}", error)

    # --- where the program stands ---------------------------------------------------------------------
    def place(self):
        offsets = (ctypes.c_uint64 * 64)()
        return self._place(tuple(offsets[: self.runtime.stack_of_calls(offsets, 64)]))

    @functools.cache  # noqa: B019 (there is one of it in a process)
    def _place(self, offsets):
        """Of calls on the stack the innermost in the program's folder, behind those that stand for a kernel."""
        words = ["addr2line", "-f", "-i", "-e", str(self.path), *map(hex, offsets)]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        stubs = [n for n, function in enumerate(said[::2]) if "device_stub_" in function]
        lines = (re.match(r"([^?].*):(\d+)", line) for line in said[1::2][stubs[-1] + 2 if stubs else 0 :])
        known = [(m[1], int(m[2])) for m in lines if m]
        own = [place for place in known if self.folders.intersection(Path(place[0]).resolve().parents)]
        return (own or known or [(str(self.file), 0)])[0]

    # --- errors ---------------------------------------------------------------------------------------
    def unsupported(self, name):
        raise ValueError(f"{_text(name)} is not supported")

    def absent(self, name):
        self.session.note(f"{self.line()}: {_text(name)} was asked for, and is not supported")

    def asked(self):
        """The program looks whether something went wrong."""
        if self.refusal:
            self.session.note(f"{short(self.refusal.where)}: {self.refusal.what}")
            self.refusal = keep(self.session)

    def end(self):
        """What a launch with ``<<<>>>`` was refused for, and nobody has asked for."""
        if self.refusal:
            self.session.found(self.refusal, self.refusal.kernel, short(self.refusal.where))
        self.refusal = keep(self.session)

    # --- memory ---------------------------------------------------------------------------------------
    def all_memory(self):
        return self.cuMemGetInfo()[1]

    def free_memory(self):
        return self.cuMemGetInfo()[0]

    def cudaFree(self, start):
        if start not in self.memory:
            at = self.freed.get(start, [""])[-1]
            was = f"was freed before, at {at}" if at else "is no memory that was asked for"
            cure = "Free what cudaMalloc gave, once."
            return not self._found("cudaFree", f"frees {start:#x}, which {was}", cure)
        self.cuMemFree(start)
        return True

    def cudaMallocAsync(self, size, stream):
        address = int(self.cuMemAlloc(size))
        self.done(stream, "cudaMallocAsync", [(address, address + size, True)])
        self.kinds[address] = "cuMemAlloc"
        return address

    def cudaFreeAsync(self, start, stream):
        if start not in self.memory:
            return self.cudaFree(start)  # which says so
        self.done(stream, "cudaFreeAsync", [(start, start + self.memory[start][1], True)])
        self.free(start)
        return True

    def kind(self, address):
        found = self.memory_at(address)
        return found and {"cuMemAlloc": 2, "cuMemAllocManaged": 3}.get(self.kinds.get(found[0]), 1)

    def symbol(self, name):
        array = self.variable(name := _text(name))
        self.memory[array.ctypes.data] = array, array.nbytes, unmangled(name)
        return array.ctypes.data

    def variable(self, name):
        """The bytes of a variable of the program's on the device, one for all kernels."""
        if name not in self.variables:
            of_module = (v for m in self.modules for v in m.variables if v.name == name and v.space != "shared")
            if (found := next(of_module, None)) is None:
                raise ValueError(f"the PTX has no variable {unmangled(name)}")
            self.variables[name] = contents(found)
        return self.variables[name]

    def moved(self, what, to, pitch, source, source_pitch, size, rows, stream, to_device, from_device):
        """Copy rows; whether some of the bytes are none of the program's."""
        name = _text(what)
        for y in range(rows):
            target, start = to + y * pitch, source + y * source_pitch
            ends = ("writes", target, to_device), ("reads", start, from_device)
            if any(self._outside(name, verb, address, size, on_device) for verb, address, on_device in ends):
                return True
            self.copy(ctypes.memmove, name, False, target, start, size, stream)

    def filled(self, what, to, value, size, stream):
        """Set bytes; as ``moved``."""
        if self._outside(_text(what), "writes", to, size, True):
            return True
        waits = False if "Async" in _text(what) else None
        self.copy(ctypes.memset, _text(what), waits, to, value, size, stream)

    def _outside(self, name, verb, start, size, on_device):
        """Whether bytes that a copy takes lie outside what was asked for, which is told."""
        found = self.memory_at(start)
        if found is None and on_device:
            freed = (text for a, b, text in self.freed_memory() if a <= start < b)
            where = next(freed, "no memory of the device is there")
            return self._found(name, f"{verb} {size:,} bytes at {start:#x}: {where}")
        if found and start + size > found[0] + found[1]:
            of = f"the {found[1]:,} bytes asked for at {found[2]}"
            return self._found(name, f"{verb} {size:,} bytes at byte {start - found[0]:,} of {of}")
        return False

    def _found(self, name, what, cure="Check the size, and which pointer and direction are given."):
        fault = self.fault(OutOfRange, what)
        fault.rule = f"{name} stays inside memory that the program has asked for."
        fault.cure = cure
        self.found(fault, name)
        return True

    def fault(self, kind, what):
        fault = super().fault(kind, what)
        if kind in self.ORDER:
            fault.cure = self.ORDER[kind]
        return fault

    def elapsed(self, start, end):
        """Nanoseconds between two events, which tell nothing of a GPU; -1 where one has not been recorded."""
        self.session.note("times between events are the host's: cudaEventElapsedTime says nothing of a GPU")
        return int(1e6 * self.cuEventElapsedTime(start, end)) if {start, end} <= self.times.keys() else -1

    # --- launches -------------------------------------------------------------------------------------
    def entry(self, address):
        """The kernel of a C++ name in the PTX."""
        name = _text(address)
        module = next((m for m in self.modules if name in m.names), None)
        if module is None:
            raise ValueError(f"the PTX has no kernel {with_arguments(name)}")
        return module[name]

    def static(self, name):
        return self.entry(name).static_bytes

    def threads(self, name):
        return self.entry(name).threads or 1024

    def registers(self):
        self.session.note(f"occupancy and attributes are told of {REGISTERS} registers a thread: a guess")
        return REGISTERS

    def launch(self, name, nine, shared, limit, stream, cooperative, by_brackets, args):
        kernel = self.entry(name)
        nine = (ctypes.c_uint * 9).from_address(nine)
        grid, block, cluster = (tuple(nine[i : i + 3]) for i in (0, 3, 6))
        status, why = self._refusal(kernel, grid, block, cluster, shared, limit, cooperative)
        if status:
            return self._refused(kernel, status, why, by_brackets)
        places = ctypes.cast(args, ctypes.POINTER(ctypes.c_void_p))
        values = [_argument(v, places[n]) for n, v in enumerate(kernel.entry.params)]
        launched = Launched(self.with_memory(kernel, values), grid, block, values, shared,
                            None if cluster == (1, 1, 1) else cluster, self.line())  # fmt: skip
        launched.touched = ()
        self.unset, unfinished = [], len(self.session.finished)
        self.session.judge(launched)
        self.left(launched.unset, kernel.name)
        self.done(stream, kernel.name, launched.touched)
        return LAUNCH_FAILURE if any(why for *_, why in self.session.finished[unfinished:]) else SUCCESS

    def _refusal(self, kernel, grid, block, cluster, shared, limit, cooperative):
        """(the number of the error of a launch that a GPU refuses, why); 0 of others."""
        threads, most = math.prod(block), kernel.threads or 1024
        if not 0 < threads <= most or block[2] > 64:
            return INVALID_CONFIGURATION, f"a block of {threads} threads, and it can have 1 to {most}"
        if not math.prod(grid) or max(grid[1:]) > 65535:
            return INVALID_CONFIGURATION, f"a grid of {' x '.join(map(str, grid))} blocks"
        if any(n % of for n, of in zip(grid, cluster, strict=True)):
            return INVALID_CONFIGURATION, f"a grid of {grid} blocks, no multiple of a cluster of {cluster}"
        if shared > limit:
            asked = f"{shared:,} bytes of dynamic shared memory, and it can have {limit:,}"
            return INVALID_VALUE, f"{asked}: {self.ASK} has to ask for more"
        if not cooperative and any(name == "grid_workspace" for name, *_ in kernel.held):
            return LAUNCH_FAILURE, f"this_grid().sync() wants a cooperative launch, {self.COOPERATIVE}"
        return SUCCESS, ""

    def _refused(self, kernel, status, why, by_brackets):
        fault = self.fault(BadLaunch, f"{kernel.name} was not launched: {why}")
        fault.kernel = kernel.name
        fault.cure = f"Launch what fits{self.LOOK}."
        self.end()
        if status == LAUNCH_FAILURE:
            fault.rule = "Blocks that wait for each other all have to run."
            fault.cure = f"Launch it so: {self.COOPERATIVE}."
        if status == LAUNCH_FAILURE or not by_brackets:
            self.found(fault, kernel.name)
        else:
            self.refusal = fault
        return status

    def with_memory(self, kernel, values):
        """The kernel with all memory that the program has, named by its parameters."""
        kernel, names = copy.copy(kernel), {}
        for parameter, value in zip(kernel.parameters, values, strict=True):
            first = value[:8].tobytes() if isinstance(value, np.ndarray) else value.tobytes()  # of a structure
            names.setdefault(int.from_bytes(first, "little"), parameter)
        own = [(name, value, content if value.startswith("%") else self.variable(value))
               for name, value, content in kernel.held]  # fmt: skip
        taken = {array.ctypes.data for *_, array in own}
        more = [(names.get(start, f"memory of {line}"), object(), at(start, (size,), None, BYTE))
                for start, (_, size, line) in self.memory.items() if start not in taken]  # fmt: skip
        kernel.held, kernel.unset, kernel.by_bytes = (*own, *more), tuple(self.unset), self.several
        kernel.history = History(dict(self.ends), self.freed_memory() if self.knows_all_memory else None)
        vars(kernel).pop("digest", None)
        return kernel

    # --- tensor maps ----------------------------------------------------------------------------------
    def encode(self, out, kind, rank, start, dims, strides, box, steps, interleave, swizzle, promotion, fill):
        dims, strides = ((ctypes.c_uint64 * 5).from_address(at)[:rank] for at in (dims, strides or dims))
        box, steps = ((ctypes.c_uint32 * 5).from_address(at)[:rank] for at in (box, steps))
        numbers = zip(rules.OPTIONS.items(), (interleave, swizzle, promotion, fill), strict=True)
        more = {"element_strides": steps} | {name: list(values)[n] for (name, values), n in numbers}
        try:
            made = maps.TensorMap(start, list(rules.ELEMENT_TYPES)[kind], dims, strides[:-1], box, **more)
        except rules.TensorMapError as wrong:
            self.session.note(f"{self.line()}: cuTensorMapEncodeTiled gave CUDA_ERROR_INVALID_VALUE: {wrong}")
            return INVALID_VALUE
        ctypes.memmove(out, packed.pack(packed.fields_of(made)), 128)


class ArraysHost(Host):
    """The runtime of a program whose memory is that of a library's arrays. ``arrays`` has their ``memory()``,
    as that of ``Streams``, and a ``search()`` for what is not in it. What nobody has set holds ``PATTERN``.
    Whoever comes from the program calls ``look`` first."""

    knows_all_memory = False

    def look(self):
        """See what memory the arrays have now, and what of it nobody has set."""
        own = {start: memory for start, memory in self.memory.items() if start not in self.of_arrays}
        self.of_arrays = self.arrays.memory()
        self.memory = own | self.of_arrays
        whole = ((start, start + size) for start, (_, size, _) in self.of_arrays.items())
        in_part = (part for part in self.unset if (self.memory_at(part[0]) or part)[0] in self.of_arrays)
        unset = [part for part in dict.fromkeys((*whole, *in_part)) if Unset.holds(*part)]
        self.unset = [part for part in self.unset if (self.memory_at(part[0]) or part)[0] in own] + unset

    def with_memory(self, kernel, values):
        """With the memory that addresses lead to, from the arguments on: what else there is changes from launch
        to launch, and machine code is made for the names of all."""
        words = np.frombuffer(b"".join(value.tobytes() for value in values if value.nbytes % 8 == 0), np.uint64)
        if not _led_to(self.memory, words)[1].all():
            self.arrays.search()
            self.look()
        everything, new = self.memory, _led_to(self.memory, words)[0]
        reached = {start: memory for start, memory in everything.items() if start not in self.of_arrays}
        while new := new - reached.keys():
            reached |= {start: everything[start] for start in new}
            small = [at(start, (everything[start][1] // 8,), None, np.dtype(np.uint64)) for start in new
                     if everything[start][1] < TABLE]  # fmt: skip
            new = _led_to(everything, np.concatenate(small))[0] if small else set()
        self.memory = reached
        try:
            return super().with_memory(kernel, values)
        finally:
            self.memory = everything


def _led_to(memory, words):
    """(starts of the memory that these words are addresses in, which of the words that may be one are)."""
    words, starts = words[words > LOW], np.array(sorted(memory), np.uint64)
    if not len(starts):
        return set(), np.zeros(len(words), bool)
    sizes = np.array([memory[int(start)][1] for start in starts], np.uint64)
    index = np.searchsorted(starts, words, "right") - 1
    inside = (index >= 0) & (words < starts[index] + sizes[index])
    return {int(starts[i]) for i in np.unique(index[inside])}, inside


def _text(address):
    return ctypes.string_at(address).decode()


def _argument(variable, place):
    """One argument of a launch, as ``simulate`` takes it."""
    content = ctypes.string_at(place, variable.size)
    if variable.array:
        room = np.zeros(variable.size + 128, np.uint8)
        array = room[-room.ctypes.data % 128 :][: variable.size]
        array[:] = np.frombuffer(content, np.uint8)
        return array
    size = SIZES[variable.type]
    kind = {"f32": np.float32, "f64": np.float64}.get(variable.type, np.dtype(f"u{size}").type)
    return np.frombuffer(content[:size], kind)[0]
