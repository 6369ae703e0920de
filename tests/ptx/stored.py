"""The PTX texts of ``kernels/`` that compilers make of the sources beside them: NVVM by Numba, nvcc, Triton. As
a program it writes those anew whose compiler is there."""

import importlib.util
import json
import re
import tempfile
import types
from pathlib import Path
from unittest.mock import patch

from numba_deform.course.lessons import lesson15
from numba_deform.engines.cpu.frontends.ptx.compilers import cuda_kernels

KERNELS = Path(__file__).parent / "kernels"
COMPILED = ("pipeline",)  # each of the file of its name
CUDA = "ring", "volatile", "unset", "grid_sync", "fences", "wmma", "stages"
TRITON = "triton_rows", "triton_count"


def ptx_of(kernel):
    """NVVM's PTX of a ``compiler.Kernel`` for sm_90a, with its lines. What Numba would inline itself, and give
    lines of the kernel's file, LLVM inlines, which says where it is from."""
    from numba import cuda
    from numba.cuda.cudadrv import nvvm

    from numba_deform.compiler.build import _no_driver_needed
    from numba_deform.compiler.rewrite import rewritten

    def without_variables(text, plain=nvvm.llvm_replace):
        """Names of variables may have characters that NVVM does not take."""
        return plain(re.sub(r'(?m)^.*call void @"llvm\.dbg\.(declare|value)".*\n', "", text))

    function, _ = rewritten(kernel.py_func)
    function = called_by_llvm(function, {})
    with _no_driver_needed((9, 0)), patch.object(nvvm, "llvm_replace", without_variables):
        return cuda.compile_ptx(function, kernel.signature.args, cc=(9, 0, "a"), lineinfo=True)[0]


def called_by_llvm(function, made):
    """A copy of a function whose device functions with ``inline="always"`` are calls that LLVM inlines."""
    from numba import cuda

    scope = dict(function.__globals__)
    copy = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    for name in function.__code__.co_names:
        value = scope.get(name)
        if getattr(value, "targetoptions", {}).get("inline") == "always":
            if value not in made:
                made[value] = None
                inner = called_by_llvm(value.py_func, made)
                made[value] = cuda.jit(device=True, forceinline=True, lineinfo=True)(inner)
            scope[name] = made[value] or value
    return copy


def compiled(name):
    """The text of a kernel of ``kernels/``: names and files as they are everywhere."""
    spec = importlib.util.spec_from_file_location(name, KERNELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = ptx_of(getattr(module, name)).replace(str(KERNELS / f"{name}.py"), f"{name}.py")
    text = re.sub(r"B\d+v\d+B", "B2v1B", text)  # how many functions Numba had compiled before
    mangled = re.search(r"\.entry (\w+)", text)[1]
    lines = [line for line in text.replace(mangled, name).splitlines() if not line.startswith("//")]
    return "\n".join(lines).strip() + "\n"


def tidied(text):
    """A compiler's text without empty lines, comments, folders, and what is there for other debuggers."""
    text = re.sub(r'(\.file\s+\d+\s+")[^"]*/', r"\1", text.partition("\t.section")[0])
    lines = (re.sub(r"\s*//(?! (begin|end) inline asm).*", "", line).rstrip() for line in text.splitlines())
    return "\n".join(filter(None, lines)) + "\n"


# --- CUDA C++ -----------------------------------------------------------------------------------------
def of_cuda(name, *options):
    """The PTX of ``kernels/NAME.cu`` by the nvcc that from_cuda takes."""
    return tidied(cuda_kernels.compiled(KERNELS / f"{name}.cu", options))


def of_lesson(name):
    """The PTX of lesson 15's ring with that fault, by NVRTC, as of the readers' lines."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / lesson15.FILE
        file.write_text(lesson15.source(name))
        return tidied(cuda_kernels.compiled(file, compiler="nvrtc"))


# --- Triton -------------------------------------------------------------------------------------------
METADATA = ("name", "num_warps", "num_ctas", "shared", "global_scratch_size", "profile_scratch_size",
            "tensordesc_meta")  # fmt: skip


def of_triton(name, **constants):
    """(the PTX, what from_triton asks of a CompiledKernel besides) of ``kernels/NAME.py``."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = importlib.util.spec_from_file_location(name, KERNELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = ASTSource(getattr(module, name), module.SIGNATURE, constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    said = {key: getattr(compiled.metadata, key) for key in METADATA} | {"signature": module.SIGNATURE}
    return tidied(compiled.asm["ptx"]), said


def stored_triton(name):
    """The stored kernel, as ``from_triton`` takes it."""
    said = json.loads((KERNELS / f"{name}.json").read_text())
    source = types.SimpleNamespace(signature=said.pop("signature"))
    ptx = (KERNELS / f"{name}.ptx").read_text()
    return types.SimpleNamespace(asm={"ptx": ptx}, metadata=types.SimpleNamespace(**said), src=source)


if __name__ == "__main__":
    for name in COMPILED:
        (KERNELS / f"{name}.ptx").write_text(compiled(name))
    if cuda_kernels.nvcc():
        for name in CUDA:
            (KERNELS / f"{name}.ptx").write_text(of_cuda(name))
    if importlib.util.find_spec("cuda"):
        for name in lesson15.CHANGES:
            (lesson15.FOLDER / f"ring_{name}.ptx").write_text(of_lesson(name))
    if importlib.util.find_spec("triton"):
        for name in TRITON:
            text, said = of_triton(name, FAULT=0)
            (KERNELS / f"{name}.ptx").write_text(text)
            (KERNELS / f"{name}.json").write_text(json.dumps(said, indent=1) + "\n")
