"""The package in a browser, on Pyodide: stand-ins for what is not built for WebAssembly, and cells that run.

Numba's type inference is Python: it works without Numba's C extensions and without LLVM, which only its code
generation needs. So kernels are interpreted: there is no machine code here, no thread and no process."""

import ast
import collections
import ctypes
import importlib
import importlib.abc
import importlib.machinery
import linecache
import sys
import traceback
import types
import warnings

NARROW = "bfloat16 float8_e4m3fn float8_e5m2 float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e8m0fnu".split()
GET_HANDLER = 305  # PyDataMem_GetHandler's place in NumPy's C API


class Missing:
    """A name of a module that is not here. It may be imported, put into tables and stand beside a function as
    a decorator's argument; whatever comes out of it is missing as well."""

    def __init__(self, name):
        self.__dict__["_name"] = name

    def __getattr__(self, name):
        if name[:2] == "__":
            raise AttributeError(name)
        return Missing(f"{self._name}.{name}")

    def __call__(self, *args, **named):
        return Missing(f"{self._name}()")

    def __int__(self):
        raise RuntimeError(f"{self._name} is not there in a browser")

    __index__ = __float__ = __str__ = __iter__ = __bool__ = __int__


class Conversions:
    """Numba's table of which type becomes which, in place of its C++ one."""

    NAMES = {"p": "promote", "s": "safe", "u": "unsafe", "e": "exact", None: None}

    def __init__(self):
        self.known = {}

    def code(self, origin, target):
        return "e" if origin == target else self.known.get((origin, target))

    def select(self, given, overloads, allow_unsafe, exact):
        """The number of the overload that fits best, None if none does; TypeError if two fit equally well."""
        rated = []
        for number, wanted in enumerate(overloads):
            codes = [self.code(*pair) for pair in zip(given, wanted, strict=False)]
            fits = len(wanted) == len(given) and None not in codes and not (exact and set(codes) - {"e"})
            if fits and (allow_unsafe or "u" not in codes):
                rated.append((*(codes.count(kind) for kind in "usp"), number))
        rated.sort()
        if len(rated) > 1 and rated[0][:3] == rated[1][:3]:
            raise TypeError("ambiguous overloads")
        return rated[0][3] if rated else None


def conversions(module):
    module.new_type_manager = Conversions
    module.select_overload = Conversions.select
    module.check_compatible = lambda table, *pair: Conversions.NAMES[table.code(*pair)]
    module.set_compatible = lambda table, a, b, code: table.known.__setitem__((a, b), chr(code))
    module.get_pointer = lambda table: table


def dispatcher(module):
    class Dispatcher:
        def __init__(self, *args, **named):
            pass

        def _insert(self, *args, **named):
            pass

    module.Dispatcher, module.typeof_init = Dispatcher, lambda *args: None


def dynfunc(module):
    class Environment:
        __slots__ = "globals", "consts", "__dict__"

    module.Environment, module.c_helpers = Environment, collections.defaultdict(int)


def holds(**values):
    """Sets names of a stand-in: types are classes of that name, with nothing in them."""
    return lambda module: vars(module).update(
        {name: type(name, (), {}) if value is type else value for name, value in values.items()})  # fmt: skip


def narrow(module):
    """Types of a float of few bits have their size, and cannot be computed with."""
    import numpy as np

    module.finfo = np.finfo
    for name in NARROW:
        setattr(module, name, np.dtype([(name, np.uint16 if name == NARROW[0] else np.uint8)]))


# Module -> what it gets beside names that are missing.
STAND_INS = {
    "_multiprocessing": holds(),
    "fcntl": holds(),
    "gmpy2": holds(),
    "llvmlite.binding": holds(llvm_version_info=(20, 1, 8), check_jit_execution=lambda: None),
    "ml_dtypes": narrow,
    "numba._devicearray": holds(DeviceArray=type),
    "numba._dispatcher": dispatcher,
    "numba._dynfunc": dynfunc,
    "numba._helperlib": holds(c_helpers=collections.defaultdict(int)),
    "numba.core.runtime._nrt_python": holds(c_helpers=collections.defaultdict(int), _MemInfo=type),
    "numba.core.typeconv._typeconv": conversions,
    "numba.cuda.cudadrv._extras": holds(CUDA_IPC_HANDLE_SIZE=64),
    "numba.experimental.jitclass._box": holds(Box=type),
    "numba.mviewbuf": holds(MemAlloc=type),
    "numba.np.ufunc._internal": holds(_DUFunc=type),
    "numba.np.ufunc.workqueue": holds(),
}


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports them."""

    def find_spec(self, name, path=None, target=None):
        if name in STAND_INS or name.startswith("llvmlite.binding."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = Missing(spec.name).__getattr__
        return module

    def exec_module(self, module):
        STAND_INS.get(module.__name__, holds())(module)


class Wide:
    """Numba's configuration, which is of kernels here: their intp has 64 bits, as on a GPU."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "numba.core.config":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.MACHINE_BITS, module.IS_32BITS = 64, False

        spec.loader.exec_module = exec_module
        return spec


class Allocators(ctypes.Structure):
    """NumPy's PyDataMem_Handler."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("context", ctypes.c_void_p),
                ("functions", ctypes.c_void_p * 3)]  # fmt: skip


def align_arrays(functions):
    """NumPy takes the memory of arrays by these functions of C from now on: malloc, calloc and realloc.
    They replace those of its own handler: another one would be of this context alone."""
    import numpy as np

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = ctypes.cast(pointer(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    handler = ctypes.PYFUNCTYPE(ctypes.py_object)(table[GET_HANDLER])()
    Allocators.from_address(pointer(handler, b"mem_handler")).functions[:] = functions


def begin():
    """Import the package. Kernels are interpreted, and no watchdog ends them: the page's Stop does."""
    sys.meta_path[:0] = [StandIns(), Wide]
    if sys.platform == "emscripten":
        sys.modules["greenlet"] = importlib.import_module("promise_greenlet")
    warnings.filterwarnings("ignore", "FNV hashing")  # of Numba; nothing here depends on hashes
    from numba_deform.engines.cpu.schedules import prepared_launch, watchdog

    prepared_launch.is_known = lambda program: False
    prepared_launch.PATIENCE = float("inf")
    watchdog.Watchdog.start = lambda self, execution: None


class Shell:
    """What the lessons ask of IPython: whether a cell's last value is shown, and which cell a file is."""

    class compile:  # noqa: N801  IPython's name
        _filename_map = {}

    def __init__(self, show):
        self.show = show
        notebook = types.ModuleType("IPython")
        notebook.get_ipython, notebook.version_info = lambda: self, (9, 0)  # matplotlib asks for it
        notebook.core, notebook.display = types.ModuleType("IPython.core"), types.ModuleType("IPython.display")
        notebook.core.pylabtools = None  # matplotlib imports it
        notebook.display.display = lambda *values: [self.display(value) for value in values]
        sys.modules |= {one.__name__: one for one in (notebook, notebook.core, notebook.display)}
        self.names = {"__name__": "__main__", "display": notebook.display.display}

    def display(self, value):
        """As HTML where it has some, else as text."""
        html = getattr(value, "_repr_html_", lambda: None)()
        self.show("text" if html is None else "html", repr(value) if html is None else html)

    def run(self, source, number):
        """Run a cell; whether it ended well."""
        file = f"cell_{number}.py"
        self.compile._filename_map[file] = number
        linecache.cache[file] = len(source), None, source.splitlines(True), file
        try:
            tree = ast.parse(source, file)
            last = tree.body and isinstance(tree.body[-1], ast.Expr) and ast.Expression(tree.body.pop().value)
            exec(compile(tree, file, "exec"), self.names)
            value = last and eval(compile(last, file, "eval"), self.names)
            if last and value is not None:
                self.display(value)
        except BaseException as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # this function
            self.show("error", "".join(traceback.format_exception(error)))
            return False
        return True
