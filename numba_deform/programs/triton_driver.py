"""A stand-in for Triton's driver: Triton compiles as for a GPU, and each launch goes elsewhere.

    with stand_in(run, note, (9, 0)):
        kernel[grid](tensor, n)        # -> run(Launched(..))

It is put in place when the program imports Triton. Public there are ``DriverBase``, ``driver.set_active`` and
the hook on the stages of compilation, by which the PTX takes the place of the machine code: no ptxas runs, and
Triton's cache keeps such code apart from a GPU's. What is not public stands in this file as well (what a
launcher and ``utils`` are asked for, ``Autotuner._bench``, ``triton_key``, ``CublasLt``); tried with Triton 3.8
and 3.9, PyTorch 2.13 and 2.14. Tensors are on the CPU: ``device="cuda"`` means that here (a mode of PyTorch's
functions), and what programs ask ``torch.cuda`` gets an answer."""

import contextlib
import copy
import ctypes
import functools
import hashlib
import importlib.abc
import importlib.util
import math
import sys
import types as python
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from ..device.limits import LIMITS
from ..engines.cpu.frontends.arguments import extents
from ..engines.cpu.frontends.ptx.compilers.triton_kernels import TritonKernel
from ..engines.gc_pauses import kept
from ..engines.launches import PATTERN
from ..engines.waivers import OF_TRITON

MULTIPROCESSORS = 132
REGISTERS = 128  # of a thread, for programs that ask: nobody has counted them without ptxas
PROPERTIES = {
    "max_num_regs": 65536, "multiprocessor_count": MULTIPROCESSORS,
    "warpSize": 32, "sm_clock_rate": 1_980_000, "mem_clock_rate": 2_619_000, "mem_bus_width": 5120,
}  # fmt: skip
EXTENSIONS = "torch.utils.cpp_extension"
NO_TIME = math.nan  # what a benchmark measures here
EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")


@dataclass
class Launched:
    """A launch of a kernel from PTX, as ``driver.Launched``."""

    kernel: object
    grid: tuple
    block: tuple
    args: list
    shared_bytes: int
    cluster: tuple | None
    where: str = ""
    unset: tuple = ()

    def raised(self, fault):
        """No exception of Python's is behind a fault."""
        return None


class Awaited(importlib.abc.MetaPathFinder):
    """Calls ``then(module)`` once a module of that name has been imported."""

    def __init__(self, name, then):
        self.name, self.then, self.is_looking = name, then, False

    def find_spec(self, name, path=None, target=None):
        if name != self.name or self.is_looking:
            return None
        self.is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.is_looking = False
        if spec is not None and spec.loader is not None:  # who asks may import nothing
            execute = spec.loader.exec_module

            def exec_module(module):
                sys.meta_path.remove(self)
                with kept():
                    execute(module)
                self.then(module)

            spec.loader.exec_module = exec_module
        return spec


@contextlib.contextmanager
def stand_in(run, note, capability, extensions=contextlib.nullcontext):
    """Inside, each launch of Triton's or Gluon's goes to ``run``; ``note(text)`` hears what is left out. The
    GPU that programs find has that compute ``capability``. ``extensions()`` is entered for a program that
    builds extensions of PyTorch's."""
    with contextlib.ExitStack() as stack:
        there, unset = set(), Unset()  # PyTorch may import Triton before it is complete itself
        on_the_cpu = []

        def imported(name):
            there.add(name)
            if name == "triton":
                stack.enter_context(_triton(run, note, unset, capability))
            elif name == EXTENSIONS:
                stack.enter_context(extensions())
            if "torch" in there and len(there) > 1 and not on_the_cpu:
                on_the_cpu.append(stack.enter_context(_torch(unset, capability)))

        for name in "torch", "triton", EXTENSIONS, "cupy":
            if name in sys.modules:
                imported(name)
                continue
            awaited = Awaited(name, lambda module: imported(module.__name__))
            sys.meta_path.insert(0, awaited)
            stack.callback(lambda awaited=awaited: awaited in sys.meta_path and sys.meta_path.remove(awaited))
        yield


class Unset:
    """The memory that ``torch.empty`` and its like have given. It is filled with a pattern: as long as that is
    there, nobody has set it."""

    def __init__(self):
        self.given = {}  # start -> stop

    def note(self, tensor):
        """That of a new tensor; of a few bytes the pattern might come by chance."""
        storage = tensor.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
        if size >= 4:
            ctypes.memset(start, PATTERN, size)
            self.given[start] = start + size

    def ranges(self, launch):
        """(start, stop) of the bytes of a launch's arrays that hold garbage."""
        arrays = extents(launch.args, launch.kernel.parameters)
        found = ((max(start, a.start), min(stop, a.stop)) for a in arrays for start, stop in self.given.items())
        return tuple(each for each in found if each[0] < each[1] and self.holds(*each))

    @staticmethod
    def holds(start, stop):
        """Whether these bytes are the pattern, at first the beginning."""
        sizes = min(8, stop - start), stop - start
        return all(ctypes.string_at(start, size) == bytes([PATTERN]) * size for size in sizes)


# --- Triton -------------------------------------------------------------------------------------------
class Utils:
    """What Triton asks its driver's C module for."""

    def __init__(self, capability):
        self.properties = PROPERTIES | {"max_shared_mem": LIMITS[capability].block_shared}

    def load_binary(self, name, kernel, shared, device):
        """(module, function, registers, spills, most threads); the "binary" is the PTX."""
        return None, kernel.decode(), REGISTERS, 0, 1024

    def unload_module(self, module):
        """Nothing was loaded."""

    def get_device_properties(self, device):
        return self.properties

    def cuOccupancyMaxActiveClusters(self, *args):
        return MULTIPROCESSORS

    def set_printf_fifo_size(self, size):
        """There is no such queue here."""


class Launcher:
    """Of one compiled kernel; called for each launch."""

    def __init__(self, driver, source, metadata):
        self.driver, self.source, self.metadata, self.kernel = driver, source, metadata, None

    def __call__(self, x, y, z, stream, ptx, packed, launch_metadata, on_enter, on_exit, *args):
        if self.driver.only_compiles or not x * y * z:
            return
        if self.kernel is None:
            self.kernel = TritonKernel(ptx, self.metadata, self.source)
        for hook in filter(None, [on_enter]):
            hook(launch_metadata)
        launch = self.kernel[x, y, z](*args)
        kernel = copy.copy(launch.kernel)
        kernel.unset, kernel.emitted = self.driver.unset.ranges(launch), OF_TRITON
        call = launch.grid, (kernel.threads,), launch.args, kernel.shared_bytes, launch.cluster
        self.driver.run(launched := Launched(kernel, *call))
        self.driver.unset.given.update(launched.unset)  # what a kernel has set in part
        for hook in filter(None, [on_exit]):
            hook(launch_metadata)


def _driver_class():
    """The class, which Triton's base class is needed for."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    class HostDriver(DriverBase):
        """One device, whose memory is the host's."""

        def __init__(self, run, unset, capability):
            self.run, self.unset, self.utils, self.only_compiles = run, unset, Utils(capability), False
            self.capability = capability
            self.launcher_cls = functools.partial(Launcher, self)

        @staticmethod
        def is_active():
            return False  # only by set_active

        def map_python_to_cpp_type(self, ty):
            raise NotImplementedError("there is no C launcher here")

        def get_current_target(self):
            return GPUTarget("cuda", 10 * self.capability[0] + self.capability[1], 32)

        def get_active_torch_device(self):
            import torch

            return torch.device("cpu")

        def get_device_interface(self):
            import torch

            return torch.cuda

        def get_benchmarker(self):
            from triton.testing import do_bench

            return do_bench

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

        def get_device_capability(self, device=None):
            return self.capability

        def set_current_device(self, device):
            """There is one."""

        def get_empty_cache_for_benchmark(self):
            import torch

            return torch.empty(1)

        def clear_cache(self, cache):
            """There is none."""

    return HostDriver


def stages(backend=None, stages=None, *more):
    """Triton's hook on the stages of compilation: the last one hands on the PTX. Without arguments, (key, hash)
    by which such code is kept apart."""
    if stages is None:
        name = "numba_deform: PTX"
        return name, hashlib.sha256(name.encode()).hexdigest()
    stages["cubin"] = lambda ptx, metadata: ptx.encode()


@functools.cache
def version():
    """What tells this Triton from others in the keys of its cache: size and time of each of its files. Triton's
    own reads all of them at each start."""
    import triton

    files = sorted(path for path in Path(triton.__file__).parent.rglob("*") if path.suffix in (".py", ".so"))
    found = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return f"{triton.__version__} {hashlib.sha256(str(found).encode()).hexdigest()}"


@contextlib.contextmanager
def _triton(run, note, unset, capability):
    from triton import knobs, testing
    from triton._C import libtriton
    from triton.runtime import autotuner, cache, driver

    host, tuner = _driver_class()(run, unset, capability), autotuner.Autotuner
    before = driver._active
    driver.set_active(host)
    benchmark = Benchmarks(note)
    with (
        mock.patch.object(knobs.runtime, "add_stages_inspection_hook", stages),
        mock.patch.object(tuner, "_bench", first_that_fits(host, note, tuner._bench)),
        mock.patch.object(testing, "do_bench", benchmark),
        mock.patch.object(testing, "do_bench_cudagraph", benchmark),
        mock.patch.object(cache, "triton_key", version, create=True),
        mock.patch.object(libtriton.nvidia, "cublas", python.SimpleNamespace(CublasLt=CublasLt)),
    ):
        try:
            yield
        finally:
            benchmark.close()
            driver.set_active(before)


def first_that_fits(host, note, bench):
    """In place of ``Autotuner._bench``: no configuration is timed, and the first that compiles and has room is
    the fastest."""

    def _bench(self, *args, config, **meta):
        if vars(self).get("_settled") is self.nargs:
            return [math.inf]
        self.do_bench = lambda call, quantiles: call() or [0.0]
        with mock.patch.object(host, "only_compiles", True):
            result = bench(self, *args, config=config, **meta)
        if result == [0.0]:
            self._settled = self.nargs
            note(f"{self.base_fn.__name__} was not tuned: it took the first of {len(self.configs)} "
                 f"configurations that fits, {config}")  # fmt: skip
        return result

    return _bench


class Benchmarks:
    """In place of ``do_bench``: what a line of the program times is run once, the first time, and no time is
    measured."""

    def __init__(self, note):
        self.note, self.asked, self.seen = note, 0, set()

    def __call__(self, fn, *args, quantiles=None, return_mode="mean", **more):
        self.asked += 1
        frame = sys._getframe(1)
        place = getattr(fn, "__code__", None), frame.f_code, frame.f_lineno
        if place not in self.seen:
            self.seen.add(place)
            fn()
        if quantiles is not None:
            return [NO_TIME] * len(quantiles) if len(quantiles) > 1 else NO_TIME
        return [NO_TIME] if return_mode == "all" else NO_TIME

    def close(self):
        if self.asked:
            ran = f"{len(self.seen)} of its {self.asked} calls ran what they are for, once"
            self.note(f"do_bench measured nothing: {ran}")


class CublasLt:
    """In place of the class by which Triton's own programs compare with cuBLAS."""

    def __init__(self, workspace):
        pass

    def matmul(self, a, b, c):
        """c = a times the transposed b, with sums in float32."""
        c.copy_(a.float() @ b.float().T)


# --- PyTorch ------------------------------------------------------------------------------------------
class Nothing(contextlib.nullcontext):
    """A stream or an event of ``torch.cuda``: there is nothing to wait for, and no time is measured."""

    cuda_stream = 0

    def __getattr__(self, name):
        return lambda *args, **kwargs: None

    def query(self):
        return True

    def elapsed_time(self, end):
        return NO_TIME


def _cuda(capability):
    """{name in torch.cuda: what stands for it}"""
    properties = python.SimpleNamespace(
        name="CPU engine of numba_deform", major=capability[0], minor=capability[1], total_memory=80 << 30,
        multi_processor_count=MULTIPROCESSORS, warp_size=32,
        shared_memory_per_block_optin=LIMITS[capability].block_shared,
    )  # fmt: skip
    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": capability,
        "get_device_name": properties.name, "get_device_properties": properties, "synchronize": None,
        "set_device": None, "empty_cache": None, "current_stream": Nothing(), "default_stream": Nothing(),
        "device": contextlib.nullcontext(), "stream": contextlib.nullcontext(), "Stream": Nothing(),
        "Event": Nothing(),
    }  # fmt: skip
    return {name: lambda *args, answer=answer, **kwargs: answer for name, answer in answers.items()}


@contextlib.contextmanager
def _torch(unset, capability):
    """Inside, ``cuda`` as a device means the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def is_device(value):
        return isinstance(value, (str, torch.device))

    def on_cpu(value):
        return torch.device("cpu") if is_device(value) and str(value).partition(":")[0] == "cuda" else value

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function == torch.Tensor.is_cuda.__get__:
                return True
            function, kwargs = torch.Tensor.cpu if function is torch.Tensor.cuda else function, kwargs or {}
            made = function(*map(on_cpu, args), **{k: on_cpu(v) for k, v in kwargs.items()})
            moves = function is torch.Tensor.to and any(map(is_device, (*args, *kwargs.values())))
            if (moves or function is torch.Tensor.cpu) and made is args[0]:
                return made.clone()  # what kernels do to one is not seen in the other
            if getattr(function, "__name__", "") in EMPTY and type(made) is torch.Tensor and made.is_cpu:
                unset.note(made)
            return made

    with contextlib.ExitStack() as stack:
        for name, value in _cuda(capability).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        if accelerator := getattr(torch, "accelerator", None):
            stack.enter_context(mock.patch.object(accelerator, "is_available", lambda: False))
        stack.enter_context(OnTheCpu())
        yield
