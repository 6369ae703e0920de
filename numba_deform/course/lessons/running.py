"""Run a notebook's kernels on either engine, and show faults and sliders."""

import os
import time
from dataclasses import dataclass

import numpy as np

from ...compiler.build import ARCHITECTURE
from ...compiler.sass import ToolMissing, inspect_kernel
from ...device.limits import HOPPER
from ...device.marks import CAPACITY, MARK_BYTES
from ...device.packages import CudaMissing
from ...engines.cpu import Report, SimFault, simulate
from ...engines.gpu.device import GpuMissing, find_gpu, gpu_or_none
from ...engines.gpu.in_place import launch_in_place
from ...engines.tensormap import TensorMapError
from ...measure import timeline
from ...workloads.picture import picture_workload
from . import display
from .frames import Frames

VARIABLE = "NUMBA_DEFORM_ENGINE"
SLIDER = "420px"  # wide, with its name and its value: JupyterLab's 300 cut the value off
FAULTS = (SimFault, TensorMapError)  # what a lesson shows instead of ending


def engine():
    """Where this notebook's kernels run: ``"gpu"`` or ``"cpu"``.

    The environment variable NUMBA_DEFORM_ENGINE says which; without it, the GPU if there is one of compute
    capability 9.0 or newer. Raises ValueError for another value, GpuMissing for ``gpu`` without such a GPU.
    """
    wanted = os.environ.get(VARIABLE, "auto")
    if wanted not in ("auto", "cpu", "gpu"):
        raise ValueError(f"{VARIABLE}={wanted!r} is not one of auto, cpu, gpu")
    if wanted == "cpu":
        return "cpu"
    gpu = find_gpu() if wanted == "gpu" else gpu_or_none()
    if gpu is not None and gpu.capability >= HOPPER:
        return "gpu"
    if wanted == "gpu":
        raise GpuMissing(f"{VARIABLE}=gpu needs compute capability 9.0, and {gpu.describe()} is older")
    return "cpu"


def machine_code(kernel, architecture=ARCHITECTURE):
    """The ``Inspection`` of a kernel, or None, with the reason printed, where there is no compiler."""
    try:
        return inspect_kernel(kernel, architecture)
    except (CudaMissing, ToolMissing) as error:
        print(f"No machine code to look at here: {error}.")
        return None


@dataclass(frozen=True)
class Ran:
    """A launch that ended well. ``report`` is the CPU engine's ``Report``, None on the GPU.

    ``seconds`` is the time of the whole call: on the CPU engine of checking, on the GPU of compiling, copying
    and launching.
    """

    engine: str
    grid: int
    threads: int
    seconds: float
    report: Report | None

    def __repr__(self):
        blocks = f"{self.grid} block{'s' * (self.grid > 1)} of {self.threads} threads"
        if self.report is None:
            return f"ran on {find_gpu().describe()}: {blocks}"
        schedules = self.report.schedules
        tried = f"{schedules} schedule{'s' * (schedules > 1)}, no rule broken"
        return f"ran on the CPU engine: {blocks}, {tried}, {self.seconds:.2f} s"


def run(kernel, grid, args, engine=None, shared_bytes=None, **simulated):
    """A :class:`Ran`, of a ``compiler.Kernel`` on ``grid`` blocks of its own size.

    ``args`` are numbers, NumPy arrays (their addresses go to ``u64`` parameters) and TensorMapArray over NumPy
    arrays; what the kernel writes is in the arrays afterwards. ``engine`` is "cpu", "gpu" or None, which
    asks :func:`engine`. On the GPU the guarded form is launched, so that a wrong kernel ends in a report
    and does not hang. ``shared_bytes`` is dynamic shared memory, if not what the kernel's layout takes.
    ``simulated`` goes to ``simulate`` (seed, schedules, landing, trace, timeout); a GPU has only the schedule
    that it happens to have.

    Raises SimFault for a broken rule, ValueError for an unknown engine or what cannot be launched.
    """
    engine = engine or _default_engine()
    shared_bytes = kernel.shared_bytes if shared_bytes is None else shared_bytes
    started = time.perf_counter()
    if engine == "cpu":
        report = simulate(kernel, grid, kernel.threads, args, shared_bytes, **simulated)
    elif engine == "gpu":
        report = None
        launch_in_place(find_gpu(), kernel, grid, args, shared_bytes)
    else:
        raise ValueError(f"engine={engine!r} is not one of cpu, gpu")
    return Ran(engine, int(grid), kernel.threads, time.perf_counter() - started, report)


_default_engine = engine  # ``run`` has a parameter of that name


def traced(kernel, title, launch):
    """The ``timeline.Timeline`` of a kernel, whose traced form ``launch(form, marks)`` runs, as :func:`run`."""
    marks = np.zeros((kernel.threads // 32, CAPACITY, MARK_BYTES // 4), np.uint32)
    ran = launch(kernel.with_marks(), marks)
    where = find_gpu().name if ran.engine == "gpu" else "CPU engine, virtual cycles"
    return timeline.decode(marks, title, where, kernel.shared)


def cpu_only(what):
    """Print, where kernels run on the GPU, that ``what`` exists on the CPU engine only.

    It stands at the top of a cell that uses the CPU engine whatever the machine has.
    """
    if engine() == "gpu":
        print(f"{what}: on the CPU engine only. This cell runs there.")


def show_fault(function, kinds=FAULTS):
    """A :class:`display.Shown` with the report of what ``function()`` raises.

    ``kinds`` are the exceptions to show; others are raised. Where nothing is raised it says so: that
    a kernel is wrong does not mean that every run of it goes wrong.
    """
    try:
        function()
    except kinds as error:
        return display.Shown(error)
    return display.Shown(None)


def slider(function, start=None, page=None, **values):
    """What ``function(name=value)`` returns, below a slider over ``values`` for each name.

    ``start`` maps names to the values to begin with; default the first. The sliders live in a notebook with
    ipywidgets. A page with NUMBA_DEFORM_STATIC=1 gets :class:`frames.Frames`; ``page`` maps names to the fewer
    values that it has. Without a notebook the function is called once, for ``start``.
    """
    values = {name: list(options) for name, options in values.items()}
    first = {name: options[0] for name, options in values.items()} | (start or {})
    widgets = _widgets()
    if widgets is None:
        if display.in_notebook() and os.environ.get("NUMBA_DEFORM_STATIC"):
            return Frames(function, first, values | {name: list(few) for name, few in (page or {}).items()})
        return function(**first)
    sliders = {
        name: widgets.SelectionSlider(
            options=options, value=first[name], description=name, continuous_update=False,
            layout=widgets.Layout(width=SLIDER),
        )  # fmt: skip
        for name, options in values.items()
    }
    # alone, ``interactive`` calls the function and shows only what that displays itself
    return widgets.interactive(function, {"auto_display": True}, **sliders)


def _widgets():
    """The module ipywidgets where a notebook may have a live front end, else None."""
    if not display.in_notebook() or os.environ.get("NUMBA_DEFORM_STATIC"):
        return None
    try:
        import ipywidgets
    except ImportError:
        return None
    return ipywidgets


def feature_map(height=40, width=48, channels=32, dtype="float16"):
    """A real picture as a feature map: a fresh (height, width, channels) array, values within -1..1.

    Its first three channels are red, green and blue; the others are gradients, blurs and textures. Needs the
    extra ``plot`` (ImportError says so); WorkloadError for less than 3 or more than 32 channels.
    """
    _, inputs = picture_workload(
        size=(height, width), num_heads=1, channels=channels, num_levels=1, num_points=1,
        queries=(1, 1), dtype=dtype,
    )  # fmt: skip
    return np.ascontiguousarray(inputs.value.reshape(height, width, channels))
