"""PyTorch's CUDA extensions under ``numba-deform check program.py``, unchanged: ``load`` and ``load_inline`` of
``torch.utils.cpp_extension`` build them for tensors on the CPU.

PyTorch's own build runs, with other flags. Kernels become PTX that the engine judges, the host's code calls
the stand-in for the CUDA runtime (``cuda_program.py``) and finds ``torch_cuda.h`` for PyTorch's CUDA headers;
in the sources ``CUDA`` means the CPU. Tensors are memory that the program has asked for: ``torch_memory.cpp``
is told of each allocation. Not public there is ``_jit_compile``, with what it calls; tried with PyTorch 2.13
and 2.14."""

import contextlib
import ctypes
import functools
import gc
import hashlib
import inspect
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

from ..engines.cpu.frontends.ptx.compilers import cuda_kernels
from ..engines.launches import PATTERN
from .callers import located, program_frame
from .cuda_program import AS_LIBRARY, LIBRARIES, RUNTIME, WITH_LINES, ArraysHost, made_runtime, refuse_missing

STAND_IN, ALLOCATOR = (Path(__file__).with_name(name) for name in ("torch_cuda.h", "torch_memory.cpp"))
HEADERS = (
    *(f"c10/cuda/CUDA{name}.h" for name in
      ("CachingAllocator", "Exception", "Functions", "Guard", "Macros", "Stream")),
    *(f"ATen/cuda/{name}.h" for name in ("CUDAContext", "CUDAContextLight", "CUDAUtils", "Exceptions")),
)  # fmt: skip
OF_TYPES = "ATen/core/DeprecatedTypeProperties.h"  # where there is no is_cpu yet
IS_CUDA = "bool is_cuda() const {"
IS_CPU = "bool is_cpu() const { return backendToDeviceType(backend_) == kCPU; }\n  "
ON_THE_CPU = "\n#define CUDA CPU\n#define kCUDA kCPU\n#define is_cuda is_cpu\n"
INCLUDE = re.compile(r'(?m)^[ \t]*#[ \t]*include[ \t]*[<"]((?:torch|ATen|c10)/[^>"]+)[>"]')
ARCHITECTURE = re.compile(r"(?:-arch|-gencode|--gpu-architecture|--generate-code|-code)[=\0][^\0]*\0")
LOOKING = b"launch", b"moved", b"filled", b"kind", b"cudaFree"  # what asks for the tensors' memory
STOPPED = -(2**63)  # what cudart.c takes for an exception


class Tensors:
    """The memory of all tensors, for ``ArraysHost``: the allocator tells of what is made from ``begin`` on, and
    a search finds the rest."""

    def __init__(self):
        self.others, self.users, self.allocator = {}, [], None

    def begin(self, nvcc, folder):
        """Be told of each allocation of PyTorch's, once."""
        import torch

        if self.allocator is None:
            library, own = folder / f"torch_memory_{torch.__version__}.so", Path(torch.__file__).parent
            if not library.exists():
                words = ["-std=c++20", f"-I{own / 'include'}", str(ALLOCATOR), f"-L{own / 'lib'}", "-lc10"]
                cuda_kernels.run_nvcc(nvcc, [*AS_LIBRARY, *words, "-o", str(library)], ALLOCATOR)
            self.allocator = ctypes.CDLL(str(library))
            self.allocator.begin(PATTERN)
            self.search()

    def end(self):
        """No extension asks anything from now on."""
        for user in self.users:
            user.end()
            user.runtime.stand_in(None, 0, None)
        if self.allocator is not None:
            self.allocator.end()

    def search(self):
        """Find what was made before, or elsewhere, as by NumPy."""
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        for thing in gc.get_objects():
            if type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.is_cpu:
                with contextlib.suppress(RuntimeError, NotImplementedError):  # a sparse one has no such memory
                    storage = thing.untyped_storage()
                    self.others[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()

    def memory(self):
        self.others = {start: other for start, other in self.others.items() if not other[0].expired()}
        known = {start: size for start, (_, size) in self.others.items()}
        if self.allocator is not None:
            pairs = (ctypes.c_uint64 * (2 * self.allocator.memory(None, 0)))()
            self.allocator.memory(pairs, len(pairs) // 2)
            known |= zip(pairs[::2], pairs[1::2], strict=True)
        return {start: (None, size, f"a tensor of {size:,} bytes") for start, size in known.items() if size}


class Extension(ArraysHost):
    """The runtime of one extension."""

    language = "torch"

    def __init__(self, tensors, runtime, *built):
        self.arrays, self.of_arrays, self.why, self.runtime_name = tensors, {}, None, runtime.name
        super().__init__(*built)

    def call(self, name, words):
        """As for a program of its own; what is raised becomes a RuntimeError where the extension was called."""
        if name == b"why":
            return ctypes.addressof(self.why)
        try:
            if name in LOOKING:
                self.look()
            return self.called(name, words)
        except BaseException as error:
            text = error.args[0] if isinstance(error, KeyError) else error
            self.why = ctypes.create_string_buffer(f"{self.line()}: {text}".encode())
            return STOPPED


# --- building -----------------------------------------------------------------------------------------
def prepared(folder, nvcc, sources):
    """Files in a folder that every source of an extension is compiled with. Returns the words for that, of C++
    and of kernels, and the folders of headers."""
    import torch

    headers, own = folder / "include", Path(torch.__file__).parent / "include"
    for name in HEADERS:
        _write(headers / name, '#include "torch_cuda.h"\n')
    _write(headers / "torch_cuda.h", STAND_IN.read_text())
    _write(headers / OF_TYPES, (own / OF_TYPES).read_text().replace(IS_CUDA, IS_CPU + IS_CUDA))
    said = subprocess.run([nvcc, "-v", "--dryrun", "-c", "a.cu"], capture_output=True, text=True).stderr
    of_cuda = re.findall(r'-I"?([^"\s]+)', "".join(re.findall(r"INCLUDES=.*", said)))
    words = []
    for name, is_kernel in (("first.h", False), ("first.cuh", True)):
        texts = (file.read_text(errors="replace") for source in sources if source.endswith(".cu") == is_kernel
                 for file in beside(source))  # fmt: skip
        # PyTorch's own headers come first, as they are.
        names = dict.fromkeys(header for text in texts for header in INCLUDE.findall(text))
        found = [header for header in names if header not in HEADERS and (is_kernel or ".cuh" not in header)
                 and any((at / header).exists() for at in (own, own / "torch/csrc/api/include"))]  # fmt: skip
        text = "".join(f"#include <{header}>\n" for header in (*found, "torch_cuda.h")) + ON_THE_CPU
        _write(folder / name, text)
        words.append(["-include", str(folder / name)])
    return *words, [str(headers), *of_cuda]


def beside(source):
    """A source and the headers in its folder."""
    source = Path(source)
    return [source, *(p for kind in ("*.h", "*.hpp", "*.cuh") for p in sorted(source.parent.glob(kind)))]


def _write(file, text):
    """Where the text is another: what is built of it is not built again otherwise."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def build(session, tensors, original, *args, **kwargs):
    """In place of ``_jit_compile``."""
    from torch.utils import cpp_extension

    given = inspect.signature(original).bind(*args, **kwargs).arguments
    more = {name: list(value or ()) for name, value in given.items() if name.startswith("extra_")}
    sources = [os.path.abspath(source) for source in given["sources"]]
    kernels = [source for source in sources if source.endswith(".cu")]
    if not kernels:
        return original(**given)
    folder = Path(given["build_directory"]).resolve() / f"numba_deform_{session.arch}"
    nvcc = cuda_kernels.nvcc()
    if nvcc is None:
        raise FileNotFoundError(f"nvcc compiles an extension, and is not there; {cuda_kernels.INSTALL}")
    of_cpp, of_cuda, headers = prepared(folder, nvcc, sources)
    texts = repr([*(Path(source).read_text() for source in (*sources, RUNTIME)), more])
    runtime = folder / f"cudart_{hashlib.sha256(texts.encode()).hexdigest()[:8]}.so"  # no build takes another's
    if not runtime.exists():
        made_runtime(nvcc, runtime)
    target = session.arch.replace("sm", "compute")
    asked = ARCHITECTURE.sub("", "".join(f"{word}\0" for word in more["extra_cuda_cflags"])).split("\0")[:-1]
    libraries = [word for word in more["extra_ldflags"] if not LIBRARIES.match(word)]
    given |= more | {
        "sources": sorted(sources, key=kernels.__contains__),  # of operators for both the last counts
        "extra_cflags": [*more["extra_cflags"], *of_cpp, "-g1"],
        "extra_cuda_cflags": [*of_cuda, *WITH_LINES, "--keep-dir", str(folder),
                              f"-gencode=arch={target},code={target}", *asked],
        "extra_include_paths": [*headers, *more["extra_include_paths"]],
        "extra_ldflags": [*libraries, str(runtime)], "build_directory": str(folder), "with_cuda": True,
    }  # fmt: skip

    def load(name, path, *more):
        library = Path(path) / f"{name}.so"
        refuse_missing(nvcc, library, runtime)
        texts = [ptx.read_text() for kernel in kernels for ptx in folder.glob(f"{Path(kernel).stem}.*ptx")]
        files = dict.fromkeys(path for source in (*kernels, *sources) for path in beside(source))
        tensors.begin(nvcc, folder)
        program = program_frame()[0].f_code.co_filename
        tensors.users.append(Extension(tensors, runtime, session, library, texts, *files, program))
        return import_library(name, path, *more)

    import_library, flags = cpp_extension._import_module_from_library, cpp_extension._prepare_ldflags
    with (
        mock.patch.object(cpp_extension, "_import_module_from_library", load),
        mock.patch.object(cpp_extension, "_prepare_ldflags", lambda own, _, *more: flags(own, False, *more)),
        mock.patch.object(cpp_extension, "CUDA_HOME", cpp_extension.CUDA_HOME or str(Path(nvcc).parents[1])),
        mock.patch.dict(os.environ, PYTORCH_NVCC=str(nvcc)),
    ):
        return original(**given)


def build_inline(original, name, cpp_sources, cuda_sources=None, *args, **kwargs):
    """In place of ``load_inline``: kernels' lines are those of the program, where their text stands there."""
    sources = [cuda_sources] if isinstance(cuda_sources, str) else cuda_sources or ()
    texts = list(map(located, sources))
    known = all(text.startswith("#line") for text in texts)  # PyTorch joins them
    return original(name, cpp_sources, texts if known else list(sources), *args, **kwargs)


@contextlib.contextmanager
def stand_in(session):
    """Inside, extensions are built for the CPU, and each launch goes to ``session``."""
    from torch.utils import cpp_extension

    with contextlib.ExitStack() as stack:
        tensors = Tensors()
        stack.callback(tensors.end)
        compiler = functools.partial(build, session, tensors, cpp_extension._jit_compile)
        inline = functools.partial(build_inline, cpp_extension.load_inline)
        stack.enter_context(mock.patch.object(cpp_extension, "_jit_compile", compiler))
        stack.enter_context(mock.patch.object(cpp_extension, "load_inline", inline))
        yield
