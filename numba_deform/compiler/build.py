"""From a Python kernel to a cubin, with or without a GPU.

Numba-CUDA turns the kernel into PTX, nvJitLink turns that into machine code. The driver is never
handed PTX, since an older driver may not read what a newer toolchain wrote, and a cubin can be made
where there is no GPU at all. This file and ``device/ptx.py`` are all that know the insides of Numba-CUDA.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from numba import cuda, types
from numba.cuda.dispatcher import CUDADispatcher

from ..device.packages import require_cuda
from ..device.ptx import Intrinsic, ptx_directory, read_ptx
from .inference import places_of, without_source
from .outline import cached
from .rewrite import TRACE_PARAMETERS, rebind, rewritten

DEVICE = Path(inspect.getfile(Intrinsic)).parent  # of the functions that kernels call
ARCHITECTURE = "sm_90a"
# Instructions that some architectures alone have.
ALONE = {"wgmma.": ("sm_90a",)} | dict.fromkeys(("tcgen05.", ".cta_group::"), ("sm_100a", "sm_103a", "sm_110a"))
GRID_BARRIER = "cudaCGSynchronize"  # what Numba makes of this_grid().sync(); a function of the device runtime
i32, u32, u64 = types.int32, types.uint32, types.uint64


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel with its signature: what the launcher, the CPU engine and ``inspect`` work on.

    ``threads`` is the block size it is written for (0: any, a launch then says it), in the shape ``block`` if
    not in x alone, ``min_blocks`` how many blocks should fit on an SM (0: no wish), ``max_registers`` a cap for
    each thread (0: none). ``whole_program`` is for setmaxnreg, which is ignored in code that might be linked
    with other code. ``linked``, ``guarded``, ``traced`` and ``lined`` are forms of a kernel, see the methods.
    Parameters of type ``uint64`` take the address of an array. ``shared`` is the layout of its dynamic shared
    memory, if it has one."""

    py_func: object
    signature: object
    threads: int
    min_blocks: int = 0
    max_registers: int = 0
    linked: bool = False
    whole_program: bool = False
    guarded: bool = False
    traced: bool = False
    block: tuple = ()
    shared: object = None
    lined: bool = False
    # What other kernels that are launched may have besides (engines.launches.Launchable).
    held, unset, language, cluster, is_empty, shared_alignment, by_bytes = (), (), "", None, False, 16, False

    @property
    def name(self):
        return self.py_func.__name__

    @property
    def shared_bytes(self):
        """The dynamic shared memory that its layout takes."""
        return self.shared.bytes if self.shared else 0

    @property
    def parameters(self):
        """The names of the kernel's parameters, in order."""
        names = tuple(inspect.signature(self.py_func).parameters)
        return names + TRACE_PARAMETERS if self.traced else names

    @property
    def plain(self):
        """The Python function that the CPU engine runs: with marks in the traced form, loops as they stand."""
        return rewritten(self.py_func, unrolled=False, traced=True)[0] if self.traced else self.py_func

    @property
    def sites(self):
        """The lines where the guarded form may wait, a tuple of ``rewrite.Site``."""
        return rewritten(self.py_func, guarded=True, traced=self.traced)[1]

    @functools.cache  # noqa: B019
    def with_linked_ptx(self):
        """The same kernel with every intrinsic as a call to the linked ``.ptx`` function."""
        return dataclasses.replace(self, linked=True, whole_program=False)

    @functools.cache  # noqa: B019
    def with_bounded_waits(self):
        """The same kernel in its guarded form, which never hangs (rewrite.py); without setmaxnreg."""
        return dataclasses.replace(self, guarded=True, whole_program=False)

    @functools.cache  # noqa: B019
    def with_marks(self):
        """The same kernel in its traced form: it writes down what its warps do when (rewrite.py)."""
        signature = types.void(*self.signature.args, u64, i32)  # trace_buffer, trace_block
        return dataclasses.replace(self, traced=True, signature=signature)

    @functools.cache  # noqa: B019
    def with_lines(self):
        """The same kernel and the same instructions, with the lines that they come from; device functions
        too."""
        return dataclasses.replace(self, lined=True)

    @functools.cache  # noqa: B019  kernels are few and live as long as their compiled code
    def compile(self, architecture=ARCHITECTURE):
        """A :class:`Compiled` for ``architecture`` such as ``sm_90a``, from disk if there (outline.py)."""
        parts = cached("gpu", self, architecture, functools.partial(_compile, self, architecture))
        return Compiled(self, architecture, *parts)


@dataclass(frozen=True, eq=False)
class Compiled:
    """PTX and machine code of one kernel; ``entry`` is its name in both."""

    kernel: Kernel
    architecture: str
    ptx: str
    cubin: bytes
    entry: str

    @property
    def cooperative(self):
        """Whether it has a barrier of the whole grid, whose blocks must then be there all at once."""
        return GRID_BARRIER in self.ptx


def kernel(signature=None, *, threads, min_blocks=0, max_registers=0, whole_program=False, shared=None):
    """Decorator: a plain Python function, each parameter annotated with its type, becomes a :class:`Kernel`.

    ``threads`` of a block are a number, or a tuple of up to three, x first. ``min_blocks``: how many blocks
    should fit on an SM together, which bounds the registers of a thread (0: no wish). ``max_registers``: a cap
    for each thread (0: none). ``whole_program=True`` links it as one program: needed for setmaxnreg, and by
    products of a warpgroup. ``shared`` is the ``nd.Shared`` that it uses. ``signature`` stands in for
    annotations. Raises TypeError naming a parameter that has no type."""

    def wrap(function):
        types = signature or _signature_of(function)
        block = tuple(threads) if isinstance(threads, (tuple, list)) else ()
        count = math.prod(block) if block else threads
        bounds = count, min_blocks, max_registers
        return Kernel(function, types, *bounds, whole_program=whole_program, block=block, shared=shared)

    return wrap


def function(python):
    """Decorator: a function that kernels call, such as a role of a pipeline; it is written out at each call."""
    return cuda.jit(device=True, forceinline=True)(python)


def _signature_of(function):
    parameters = inspect.signature(function).parameters
    for name, parameter in parameters.items():
        if not isinstance(parameter.annotation, types.Type):
            raise TypeError(
                f"parameter {name} of kernel {function.__name__} needs a type as its annotation, such as u64"
            )
    return types.void(*(parameter.annotation for parameter in parameters.values()))


@functools.cache
def built(build, *arguments):
    """The :class:`Kernel` that ``build(*arguments)`` makes, once."""
    return build(*arguments)


class NotBuilt(ValueError):
    """Numba does not compile a kernel for a GPU; the text says what it says, and of which line."""


@contextlib.contextmanager
def _in_words(kernel, architecture):
    """Inside, what Numba raises while it compiles becomes a NotBuilt, with Numba's error as its cause."""
    try:
        yield
    except Exception as error:
        places = places_of(error.__traceback__) + re.findall(r" at (\S+) \((\d+)\)", str(error))
        own = [place for place in places if Path(place[0]).parent != DEVICE] or places
        place = " at {}:{}".format(*own[0]) if own else ""
        told = " ".join(without_source(str(error)).split())
        raise NotBuilt(f"kernel {kernel.name} does not compile for {architecture}{place}: "
                       f"{type(error).__name__}: {told}") from error  # fmt: skip


def _compile(kernel, architecture):
    """(PTX, cubin, the kernel's name in both)."""
    require_cuda("compiling a kernel")
    from cuda.core import Linker, LinkerOptions, ObjectCode

    capability = _capability(architecture)
    _check_instructions(kernel, architecture)
    function, _ = rewritten(kernel.py_func, guarded=kernel.guarded, traced=kernel.traced)
    if kernel.linked:  # calls instead of inline assembly
        function = rebind(function, lambda v: v.linked if isinstance(v, Intrinsic) and v.ptx else v)
    if kernel.lined:
        function = rebind(function, device_function=_lined)
    bounds = (kernel.threads, kernel.min_blocks) if kernel.min_blocks else kernel.threads or None
    arguments = dict(cc=capability, launch_bounds=bounds, lineinfo=kernel.lined)
    limits = dict(arch=architecture, max_register_count=kernel.max_registers or None, lineinfo=kernel.lined)
    if kernel.whole_program:
        with _in_words(kernel, architecture), _no_driver_needed(capability):
            code, _ = cuda.compile(
                function, kernel.signature.args, device=False, abi="numba", output="ltoir", **arguments
            )
        objects = [ObjectCode.from_ltoir(bytes(code))]
        limits["link_time_optimization"] = True
        asked = LinkerOptions(**limits, ptx=True)
        ptx = Linker(*objects, options=asked).link("ptx").code.decode().rstrip("\0")
    else:
        with _in_words(kernel, architecture), _no_driver_needed(capability):
            ptx, _ = cuda.compile_ptx(function, kernel.signature.args, **arguments)
        objects = [ObjectCode.from_ptx(ptx.encode())]
        objects += [ObjectCode.from_ptx(path.read_bytes()) for path in _files_to_link(ptx)]
        if GRID_BARRIER in ptx:
            objects.append(ObjectCode.from_library(_device_runtime()))
    cubin = Linker(*objects, options=LinkerOptions(**limits)).link("cubin").code
    entry = re.search(r"\.visible\s+\.entry\s+(\w+)", ptx)[1]
    return ptx, bytes(cubin), entry


def intrinsics_of(kernel):
    """The intrinsics with a PTX text that a Kernel and the device functions below it name."""
    found = set()

    def look(value):
        if isinstance(value, Intrinsic) and value.ptx:
            found.add(value)
        return value

    rebind(kernel.py_func, look)
    return sorted(found, key=lambda one: one.__name__)


def _check_instructions(kernel, architecture):
    """Raises NotBuilt where the kernel calls an intrinsic that is not for this architecture."""
    for one in intrinsics_of(kernel):
        for start, known in ALONE.items():
            if architecture not in known and any(start in statement for statement in one.ptx.statements):
                text = f"kernel {kernel.name} does not compile for {architecture}: {one.__name__} is for "
                raise NotBuilt(text + f"{', '.join(known)} alone")


def assembled(ptx, architecture=ARCHITECTURE):
    """The cubin of a PTX text, with its lines. NotBuilt with the assembler's words, CudaMissing."""
    require_cuda("assembling PTX")
    from cuda.core import Linker, LinkerOptions, ObjectCode

    if ".debug_str" not in ptx:  # where the names of inlined functions stand, which .loc refers to
        ptx = re.sub(r", function_name[^\n]*", "", ptx)
    options = LinkerOptions(arch=architecture, lineinfo=True)
    try:
        return bytes(Linker(ObjectCode.from_ptx(ptx.encode()), options=options).link("cubin").code)
    except Exception as error:
        raise NotBuilt(f"the PTX is not assembled for {architecture}: {error}") from error


def _lined(dispatcher, rebuilt):
    """A device function once more, with line information; without it, all of it counts for the line that
    calls."""
    if not isinstance(dispatcher, CUDADispatcher):
        return dispatcher
    return cuda.jit(rebuilt, **{**dispatcher.targetoptions, "lineinfo": True})


def _device_runtime():
    """The bytes of CUDA's device runtime, which has the barrier of a grid."""
    from cuda.pathfinder import find_static_lib

    return Path(find_static_lib("cudadevrt")).read_bytes()


def _capability(architecture):
    match = re.fullmatch(r"sm_(\d+)(\d)(a?)", architecture)
    if not match:
        raise ValueError(f"architecture={architecture!r} is not of the form sm_90 or sm_90a")
    major, minor, suffix = match.groups()
    return (int(major), int(minor), *suffix)


@contextlib.contextmanager
def _no_driver_needed(capability):
    """Inside, device functions that ask the current device for its capability get this one. And of debug
    information there are the lines alone: libNVVM refuses the values of some variables, and Numba looks for a
    def in the source of a lambda."""
    from numba.cuda.lowering import BaseLower

    device, numbas = SimpleNamespace(compute_capability=capability[:2]), BaseLower.lower_function_body

    def lower_body(lower):
        _keep_own_lines(lower.func_ir)
        return numbas(lower)

    with (
        mock.patch("numba.cuda.dispatcher.get_current_device", lambda: device),
        mock.patch("numba.cuda.lowering.get_func_def_lineno", lambda f: f.__code__.co_firstlineno),
        mock.patch.object(BaseLower, "lower_function_body", lower_body),
        mock.patch.multiple(
            "numba.cuda.debuginfo.CUDADIBuilder", mark_variable=_nothing, update_variable=_nothing
        ),
    ):
        yield


def _keep_own_lines(function):
    """Of what Numba has inlined from another file, it would take the lines for the function's own file: give it
    the line of the call, the last of its own before."""
    from numba.cuda.core.ir_utils import compute_cfg_from_blocks, find_topo_order

    last = {}
    graph = compute_cfg_from_blocks(function.blocks)
    for label in find_topo_order(function.blocks):
        before = [last[p] for p, _ in graph.predecessors(label) if p in last]
        loc = before[0] if before else function.loc
        for statement in function.blocks[label].body:
            own = statement.loc.filename == function.loc.filename
            loc = statement.loc = statement.loc if own else loc
        last[label] = loc


def _nothing(*args, **more):
    """Stands in for what is not wanted."""


def _files_to_link(ptx):
    """The files of ``ptx/`` whose functions the text calls."""
    called = set(re.findall(r"\.extern\s+\.func\s+(?:\([^)]*\)\s*)?(\w+)", ptx))
    return [path for path in sorted(ptx_directory().glob("*.ptx")) if called & set(read_ptx(path))]
