"""CuPy under ``numba-deform check program.py``, where there is neither CuPy nor a GPU: a module in its place.

Its arrays are NumPy's, on the host. ``RawKernel`` and ``RawModule`` compile their code with NVRTC, as CuPy
does, and each launch is judged; streams and events are those of the stand-in for the driver. Other functions
are NumPy's of the same name, and what has neither is refused by its name."""

import contextlib
import copy
import functools
import importlib.abc
import importlib.machinery
import sys
import types as python

import numpy as np

from ..device.limits import LIMITS
from .cupy_kernels import ElementwiseKernel, RawKernel, RawModule, ReductionKernel
from .cupy_runtime import CUDA, HERE, STREAMS, UNASKED, Array, Device, Refused, Runtime, Stream, cleared
from .driver import MULTIPROCESSORS

NUMPY = ("linalg", "random", "fft", "testing", "polynomial")  # submodules that are NumPy's


class Module(python.ModuleType):
    """Names of its own, and those of a module of NumPy's."""

    def __init__(self, name, own, of_numpy=None):
        super().__init__(name)
        vars(self).update(own, __path__=[], of_numpy=of_numpy)

    def __getattr__(self, name):
        value = getattr(self.of_numpy, name, None)
        if value is None or isinstance(value, python.ModuleType):
            raise Refused(f"{self.__name__}.{name} is not supported by check")
        if value is np.random.RandomState or callable(value) and not isinstance(value, (type, np.ufunc)):
            value = on_device(value, self.of_numpy is np.random)
        setattr(self, name, value)
        return value


def on_device(function, has_no_types=False):
    """A function of NumPy's whose arrays are Arrays. Those of ``random`` take no ``dtype`` there."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        HERE[-1].session.note("cupy's functions of arrays ran in NumPy: of theirs no kernel was judged")
        kind = kwargs.pop("dtype", None) if has_no_types else None
        made = function(*args, **kwargs)
        if isinstance(made, (np.random.Generator, np.random.RandomState)):
            return Drawing(made)
        made = _as_arrays(np.asarray(made, kind) if kind else made, args)
        return cleared(made) if function.__name__ in ("empty", "empty_like") else made

    return call


class Drawing:
    """One of NumPy's generators of random numbers, which draws Arrays."""

    def __init__(self, of):
        self._of = of

    def __getattr__(self, name):
        value = getattr(self._of, name)
        return on_device(value) if callable(value) else value


def _as_arrays(made, args):
    """Arrays for NumPy's; none has its memory from one of the host."""
    if isinstance(made, (list, tuple)):
        each = [_as_arrays(one, args) for one in made]
        return type(made)(*each) if hasattr(made, "_fields") else type(made)(each)
    if not isinstance(made, np.ndarray) or isinstance(made, Array):
        return made
    from_host = any(type(arg) is np.ndarray and np.may_share_memory(arg, made) for arg in args)
    return (made.copy(order="K") if from_host else made).view(Array)


def modules(major, minor):
    """{name: module}, of all that there is on a GPU of that compute capability."""
    properties = {"name": b"CPU engine of numba_deform", "major": major, "minor": minor, "warpSize": 32,
                  "multiProcessorCount": MULTIPROCESSORS, "maxThreadsPerBlock": 1024,
                  "sharedMemPerBlock": UNASKED,
                  "sharedMemPerBlockOptin": LIMITS[major, minor].block_shared}  # fmt: skip
    pool = python.SimpleNamespace(free_all_blocks=lambda: None, used_bytes=lambda: 0, total_bytes=lambda: 0)
    runtime = Module("cupy.cuda.runtime", {
        "getDeviceCount": lambda: 1, "getDevice": lambda: 0, "setDevice": Device,
        "getDeviceProperties": lambda device: properties,
        "deviceSynchronize": lambda: Device().synchronize()})  # fmt: skip
    cuda = CUDA | {"runtime": runtime}
    numpys = {name: Module(f"cupy.{name}", {}, getattr(np, name)) for name in NUMPY}
    own = {
        "ndarray": Array, "RawKernel": RawKernel, "RawModule": RawModule,
        "ElementwiseKernel": ElementwiseKernel, "ReductionKernel": ReductionKernel, "__version__": "14.0.0",
        "asnumpy": lambda array, *more, **named: array.get() if isinstance(array, Array) else np.array(array),
        "get_array_module": lambda *args: cupy if any(isinstance(arg, Array) for arg in args) else np,
        "get_default_memory_pool": lambda: pool, "get_default_pinned_memory_pool": lambda: pool,
        "is_available": lambda: True, "memoize": lambda for_each_device=False: functools.cache,
        # Fused or not, the function computes the same, in NumPy as those that it calls.
        "fuse": lambda function=None, kernel_name=None: function or (lambda function: function),
    }  # fmt: skip
    names = [Module(f"cupy.cuda{name}", own) for name, own in
             (("", cuda | STREAMS), (".stream", STREAMS), (".device", cuda))]  # fmt: skip
    vars(names[0]).update(stream=names[1], device=names[2])
    cupy = Module("cupy", own | numpys | {"cuda": names[0]}, np)
    return {module.__name__: module for module in (cupy, *names, runtime, *numpys.values())}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Brings the modules when the program asks for them."""

    def __init__(self, session):
        self.session, self.modules = session, {}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("cupy", "cupyx"):
            return None
        if not HERE:
            HERE.append(Runtime(self.session))
            Stream.null, self.modules = Stream(null=True), modules(*HERE[-1].capability)
        if name not in self.modules:
            raise ModuleNotFoundError(f"{name} is not supported by check", name=name)
        return importlib.machinery.ModuleSpec(name, copy.copy(self), is_package=True)

    def create_module(self, spec):
        return self.modules[spec.name]

    def exec_module(self, module):
        """It is complete."""


@contextlib.contextmanager
def stand_in(session):
    """Inside, programs that import CuPy find this module, and each launch goes to ``session``."""
    sys.meta_path.insert(0, finder := Finder(session))
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.modules:
            sys.modules.pop(name, None)
        HERE.clear(), Stream.now.clear()
