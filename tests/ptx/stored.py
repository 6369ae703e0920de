"""The PTX texts of ``kernels/`` that a compiler makes of the sources beside them. As a program it writes them
anew."""

import importlib.util
import re
from pathlib import Path

KERNELS = Path(__file__).parent / "kernels"
COMPILED = ("pipeline",)  # each of the file of its name


def ptx_of(kernel, lines=True):
    """NVVM's PTX of a ``compiler.Kernel`` for sm_90a, with its lines."""
    from numba import cuda

    from numba_deform.compiler.build import _no_driver_needed
    from numba_deform.compiler.rewrite import rewritten

    function, _ = rewritten(kernel.py_func)
    with _no_driver_needed((9, 0)):
        return cuda.compile_ptx(function, kernel.signature.args, cc=(9, 0, "a"), lineinfo=lines)[0]


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


if __name__ == "__main__":
    for name in COMPILED:
        (KERNELS / f"{name}.ptx").write_text(compiled(name))
