"""Inputs that any variant can be run on, by either engine, and how far an output is from float64."""

import contextlib
import functools

import numpy as np

from ..attention.auto import launches
from ..attention.bind import Bound, OnGpu
from ..attention.checks import problem_of
from ..attention.reference import Exact
from ..attention.request import pick_variant
from ..engines.gpu.device import DeviceArray, find_gpu
from ..kernels.direct import GATE_WORDS
from . import baselines


class Case:
    """Inputs, checked: ``problem``, and contiguous value, locations and weights as ``arrays``.

    gpu      where variants run; None for the CPU engine
    torch    PyTorch, to compare whole outputs on the GPU; None compares rows of them in NumPy"""

    def __init__(self, inputs, gpu=None, torch=None):
        self.inputs, self.gpu, self.torch = inputs, gpu, torch
        self.problem = problem_of(inputs)
        arrays = (inputs.value, inputs.sampling_locations, inputs.attention_weights)
        self.arrays = [np.ascontiguousarray(array) for array in arrays]

    @functools.cached_property
    def on_gpu(self):
        """The arrays there, and the output."""
        return OnGpu(self.gpu, self.problem, self.arrays)

    @property
    def bytes_moved(self):
        """The compulsory bytes: value, locations and weights read once, the output written once."""
        out = np.prod(self.problem.out_shape) * self.arrays[0].itemsize
        return sum(array.nbytes for array in self.arrays) + int(out)

    def bind(self, name, parameters, form="plain", resident=None):
        """(the :class:`Bound` of a variant on this case's engine, why "auto" chose it or "")."""
        if self.gpu and name == "auto" and not parameters:
            bound = launches(self.gpu, self.problem, form)[0]
        else:
            chosen = pick_variant(name)
            config = chosen.configure(self.problem.constants, **parameters)
            bound = Bound(self.problem, chosen, config, self.gpu, form, resident)
        return bound, bound.why

    def launcher(self, bound, extra=()):
        """A function of no arguments that launches it on the GPU, and what comes ``then``; ``extra`` as for
        ``Bound``."""
        if bound.then is None:
            return bound.launcher(self.on_gpu.addresses, extra=extra)
        extra = {**dict(extra), "gate": DeviceArray.of(self.gpu, np.zeros(GATE_WORDS, np.uint32))}
        runs = [one.launcher(self.on_gpu.addresses, extra=extra) for one in (bound, bound.then)]
        return lambda: [run() for run in runs]

    def run(self, bound, **options):
        """(output, the CPU engine's report or None): NaN where nothing was written. ``options`` are those of
        ``Bound.simulate``."""
        if not self.gpu:
            return bound.run(self.arrays, **options)
        self.on_gpu.poison()
        self.launcher(bound)()
        return self.on_gpu.out.to_numpy(), None

    @functools.cached_property
    def exact(self):
        """The float64 output: all of it on the GPU with PyTorch, else an ``Exact`` of NumPy's."""
        return baselines.float64_output(self.inputs) if self.torch else Exact.of(self.inputs)

    def error(self, out):
        """||out - exact|| / ||exact||; NaN if an element was not written. ``out`` is NumPy's, with PyTorch
        also a tensor."""
        if not self.torch:
            return float(self.exact.error(out))
        if isinstance(out, np.ndarray):
            out = baselines.tensor_of(DeviceArray.of(self.gpu, out))
        return float((out.double() - self.exact).norm() / self.exact.norm())


def case_on(gpu, workload, seed):
    """The :class:`Case` of a workload; with PyTorch, if it is installed and sees the GPU."""
    torch = None
    if gpu:
        with contextlib.suppress(ImportError):
            import torch
    return Case(workload.generate(seed), gpu, torch if torch and torch.cuda.is_available() else None)


@functools.lru_cache(maxsize=1)
def case_of(engine, workload, seed):
    """The case that the tasks of one workload share."""
    return case_on(find_gpu() if engine == "gpu" else None, workload, seed)
