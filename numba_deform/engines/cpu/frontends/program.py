"""What a launch is handed, as a kernel and as a program. ``PreparedLaunch`` asks."""

import inspect

from numba.core.dispatcher import Dispatcher
from numba.cuda.dispatcher import CUDADispatcher

from ....compiler import Kernel
from ...launches import Launchable
from .numba_python.native_program import NumbaKernel, NumbaProgram
from .ptx.kernels import PtxKernel
from .ptx.native.program import PtxProgram


def launchable(kernel):
    """``kernel`` with all that a launch asks of it; ValueError for what is no kernel."""
    if not isinstance(kernel, (Kernel, Launchable)):
        kernel = NumbaKernel(kernel.py_func if isinstance(kernel, (CUDADispatcher, Dispatcher)) else kernel)
    if not inspect.isfunction(kernel.plain) or inspect.isgeneratorfunction(kernel.plain):
        raise ValueError(f"kernel={kernel.plain!r} is no function that a GPU could run")
    return kernel


def program_of(kernel, kinds):
    """The Program of such a kernel for Numba's types of its arguments."""
    return PtxProgram(kernel, kinds) if isinstance(kernel, PtxKernel) else NumbaProgram(kernel.plain, kinds)
