"""What a call asks for, checked: the first step of every door, and the one object that it hands on.

A call takes four steps, whichever door it came by (NumPy, arrays of any library, ``prepare``): it is checked
here, auto.py chooses the kernels, bind.py binds them to the problem, launch.py or the CPU engine runs them. For
PyTorch's own door the first three are ``torch.plans``, and kept.
"""

from dataclasses import dataclass

import numpy as np

from ..engines.gpu.device import Gpu, find_gpu, gpu_or_none, require
from ..kernels.problem import Problem
from ..kernels.registry import Variant, runnable, variant
from .arrays import checked_place, empty_like, on_host, view_of
from .checks import OperatorError, check_gradient, check_im2col_step, check_out, check_problem

ENGINES = ("auto", "gpu", "cpu")
INPUTS = ("value", "sampling_locations", "attention_weights")


@dataclass(frozen=True, eq=False)
class Request:
    """One call of the operator whose arguments fit.

    problem   its shape
    gpu       where it runs; None for the CPU engine
    inputs    value, locations and weights: NumPy arrays, or views (``arrays.view_of``) of what is on that GPU
    on_host   whether they are NumPy's
    variant   the one asked for; for "auto" ``direct``, until there is a GPU to choose for
    config    its configuration
    is_open   whether the variant is to be chosen; the parameters of "auto" are those of ``direct``"""

    problem: Problem
    gpu: Gpu | None
    inputs: tuple
    on_host: bool
    variant: Variant
    config: object
    is_open: bool

    def output(self, value, out):
        """Where the result goes: ``out``, checked, or a new array of the library of ``value``."""
        shape, dtype = self.problem.out_shape, self.inputs[0].dtype
        if self.on_host:
            if out is None:
                return np.empty(shape, dtype)
            check_out(out, shape, dtype)
            return out
        return empty_like(value, shape) if out is None else out

    def address_of(self, out):
        """Where ``out`` lies on the GPU; OperatorError if it is not as the result has to be."""
        check_gradient("out", out)
        target, shape, dtype = view_of("out", out), self.problem.out_shape, self.inputs[0].dtype
        if target.shape != shape or target.dtype != dtype:
            raise OperatorError(f"out is {target.shape} {target.dtype}; it must be {shape} {dtype}")
        return checked_place("out", target.address)


def ask(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, name="auto", engine="auto",
    padded=False, im2col_step=None, parameters=None):  # fmt: skip
    """The :class:`Request` of a call of ``ms_deform_attn``; its errors come before anything runs."""
    arrays, parameters = (value, sampling_locations, attention_weights), parameters or {}
    check_engine(engine)
    numpy = all(isinstance(array, np.ndarray) for array in arrays)
    if engine == "cpu" and not numpy:
        raise OperatorError("engine=cpu takes NumPy arrays; copy the arrays to the host first")
    chosen = pick_variant(name)
    if numpy:
        gpu, views, read = None, arrays, lambda _, index: np.asarray(index)
    else:
        chosen.unresolved(**parameters)  # what is wrong there comes before all else
        gpu, views = _on_one_gpu(arrays)
        read = on_host
    levels = read("spatial_shapes", spatial_shapes), read("level_start_index", level_start_index)
    problem = check_problem(views[0], *levels, *views[1:], padded)
    check_im2col_step(im2col_step, problem.batch)
    config = chosen.configure(problem.constants, **parameters)
    if numpy:
        _, gpu = pick_engine(engine, chosen)
    return Request(problem, gpu, views, numpy, chosen, config, name == "auto" and not parameters)


def _on_one_gpu(arrays):
    """(Gpu, views of the arrays) of value, locations and weights that are on one GPU."""
    named = dict(zip(INPUTS, arrays, strict=True))
    for name, array in named.items():
        check_gradient(name, array)
    views = {name: view_of(name, array) for name, array in named.items()}
    device = views["value"].device
    for name, view in views.items():
        if view.device != device:
            raise OperatorError(f"value is on GPU {device} but {name} on GPU {view.device}")
        checked_place(name, view.address)
    return find_gpu(device), tuple(views.values())


def check_engine(engine):
    """OperatorError for a name of no engine."""
    if engine not in ENGINES:
        raise OperatorError(f"engine={engine!r} must be auto, gpu or cpu")


def pick_engine(engine, chosen):
    """The engine for a variant; see ``engine_for``."""
    return engine_for(engine, chosen.capability, f"variant {chosen.name}")


def engine_for(engine, capability, what):
    """("gpu", Gpu) or ("cpu", None) for engine = auto, gpu, cpu; says why a GPU cannot be used."""
    check_engine(engine)
    gpu = find_gpu() if engine == "gpu" else gpu_or_none() if engine == "auto" else None
    if gpu is None:
        return "cpu", None
    require(gpu, capability, what, runnable(gpu.capability))
    return "gpu", gpu


def pick_variant(name):
    """The variant of that name; "auto" stands for ``direct`` until there is a GPU to choose for."""
    return variant("direct" if name == "auto" else name)
