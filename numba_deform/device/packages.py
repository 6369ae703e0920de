"""What a user reads where a GPU or the compiler is asked for and the CUDA packages are missing.

The CPU engine does without them: Numba's own ``numba.cuda`` reads the kernels then.
"""

import functools
import importlib
from pathlib import Path

from numba import cuda


class CudaMissing(ImportError):
    """A CUDA package is not installed; the text names it, and the platforms that it exists for."""


@functools.cache
def require_cuda(what):
    """Raise CudaMissing unless numba-cuda, cuda-core and cuda-python, which ``what`` needs, are there."""
    missing = [] if "numba_cuda" in Path(cuda.__file__).parts else ["numba-cuda"]
    for package, module in (("cuda-core", "cuda.core"), ("cuda-python", "cuda.bindings.driver")):
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise CudaMissing(
            f"{what} needs the packages {', '.join(missing)}; pip install numba_deform brings them on "
            "Linux and Windows, and there are none for macOS"
        )
