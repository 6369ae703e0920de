"""``torch.ops.numba_deform``: the operator and its gradients as PyTorch's own operators.

    ms_deform_attn           on CUDA the kernels of this package, on the CPU PyTorch's own operations
    ms_deform_attn_backward  the gradients, of what needs them; differentiable once

Both have fake implementations, so that ``torch.compile`` and ``torch.export`` can look at shapes alone.
"""

import ctypes
import functools
import threading
import weakref

import numpy as np
import torch

from ..attention import gradients
from ..attention.auto import LEAST_ROWS
from ..attention.bind import Bound
from ..attention.call import ms_deform_attn as any_array
from ..attention.checks import OperatorError, check_problem
from ..device.limits import HOPPER
from ..engines.gpu.device import find_gpu, require
from ..engines.gpu.launch import ArgumentBlock, ready_launch
from ..kernels.registry import runnable, variant
from .reference import backward_of, forward_of

ARGUMENTS = (
    "Tensor value, Tensor spatial_shapes, Tensor level_start_index, Tensor sampling_locations, "
    "Tensor attention_weights, int[]? num_points=None, str method='default'"
)
LIBRARY = torch.library.Library("numba_deform", "DEF")
LIBRARY.define(f"ms_deform_attn({ARGUMENTS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
LIBRARY.define(
    f"ms_deform_attn_backward(Tensor grad_out, {ARGUMENTS}, bool of_value=True, bool of_locations=True, "
    "bool of_weights=True, bool? deterministic=None) -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
FORWARD = torch.ops.numba_deform.ms_deform_attn.default
BACKWARD = torch.ops.numba_deform.ms_deform_attn_backward.default


# --- the shapes of levels --------------------------------------------------------------------------
class Numbers(tuple):
    """The numbers of an index tensor, one object for the same numbers: compared and hashed by what it is."""

    __slots__ = ()
    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__


@functools.lru_cache(maxsize=1024)
def _numbers(nested):
    return Numbers(nested)


def numbers_from(nested):
    """The :class:`Numbers` of lists of numbers, or of lists of such lists."""
    return _numbers(tuple([tuple(n) if isinstance(n, (list, tuple)) else n for n in nested]))


@functools.lru_cache(maxsize=256)
def starts_of(levels):
    """Where each level starts, for the Numbers of the levels' shapes, if they follow one another."""
    if not all(isinstance(level, tuple) and len(level) == 2 for level in levels):
        raise OperatorError(f"spatial_shapes={list(levels)}: it is a height and a width for each level")
    sizes = [height * width for height, width in levels]
    return numbers_from(sum(sizes[:i]) for i in range(len(sizes)))


@functools.lru_cache(maxsize=256)
def index_tensor(numbers):
    """A tensor on the CPU with the numbers, always the same one."""
    with torch.inference_mode(False):  # others may save it for a gradient
        tensor = torch.tensor(numbers, dtype=torch.int64)
    numbers_of("index", tensor)  # known from now on
    return tensor


_known = {}  # id of a tensor -> (weak reference to it, its version, its Numbers)


def numbers_of(name, tensor):
    """The :class:`Numbers` in an index tensor.

    One on a GPU has to be copied, which waits for it: that happens once for each version of the tensor, and
    never while a graph is captured (OperatorError)."""
    is_inference = tensor.is_inference()  # such a tensor does not tell when it is changed
    entry = None if is_inference else _known.get(id(tensor))
    if entry is not None and entry[0]() is tensor and entry[1] == tensor._version:
        return entry[2]
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise OperatorError(
            f"{name} is on a GPU, and cannot be read while a graph is captured; call the operator once with "
            "this tensor before the capture, or give the numbers as a list"
        )
    if tensor.dtype not in (torch.int64, torch.int32):
        raise OperatorError(f"{name} has dtype {str(tensor.dtype)[6:]}; it must be one of int64, int32")
    numbers = numbers_from(tensor.tolist())
    if not is_inference:
        key = id(tensor)
        forget = weakref.ref(tensor, lambda _: _known.pop(key, None))
        _known[key] = forget, tensor._version, numbers
    return numbers


class _Array:
    """What ``check_problem`` looks at."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = tuple(shape), dtype


# --- on a GPU --------------------------------------------------------------------------------------
class Plan:
    """A kernel bound to one problem on one GPU: called with a stream and the addresses of its operands."""

    def __init__(self, bound, *names):
        operands = {name: ctypes.c_uint64() for name in names}
        four = [operands.get(name, 0) for name in ("value", "locations", "weights", "out")]
        block = ArgumentBlock(bound.kernel, bound.arguments(four, extra=operands))
        self.problem, self._operands, self._lock = bound.problem, tuple(operands.values()), threading.Lock()
        self._launch = ready_launch(bound.gpu, bound.kernel, bound.blocks, bound.shared_bytes, block)

    def __call__(self, stream, *addresses):
        with self._lock:
            for operand, address in zip(self._operands, addresses, strict=True):
                operand.value = address
            self._launch(stream)


def problem_for(value, locations, weights, levels, starts, num_points, method):
    """The ``Problem`` of (shape, type) of value, locations and weights, and the Numbers of the levels."""
    arrays = [_Array(*facts) for facts in (value, locations, weights)]
    index = [np.asarray(tuple(numbers), np.int64) for numbers in (levels, starts)]
    return check_problem(arrays[0], *index, *arrays[1:], num_points=num_points, method=method)


@functools.lru_cache(maxsize=256)
def forward_plan(device, *call):
    """The :class:`Plan` of ``direct`` for what :func:`problem_for` takes: operands value, locations, weights,
    out. None where windows may be faster, which ``auto`` has to find out."""
    problem = problem_for(*call)
    if problem.rows >= LEAST_ROWS and problem.constants.is_usual and call[5] is None:
        return None
    direct = variant("direct")
    with torch.cuda.device(device):  # and the caller's current one again afterwards
        bound = Bound(problem, direct, direct.configure(problem.constants), find_gpu(device))
        return Plan(bound, "value", "locations", "weights", "out")


@functools.lru_cache(maxsize=256)
def backward_plan(device, of_value, of_samples, sums, *call):
    """The :class:`Plan` of the backward kernel, likewise: operands value, locations, weights and
    ``gradients.operands``."""
    with torch.cuda.device(device):
        gpu = find_gpu(device)
        require(gpu, HOPPER, "the backward kernel", runnable(gpu.capability))
        bound = gradients.bound(problem_for(*call), gpu, of_value=of_value, of_samples=of_samples, sums=sums)
        return Plan(bound, "value", "locations", "weights", *gradients.operands(0, 0, 0, 0))


def _call(value, levels, starts, locations, weights, num_points, method):
    """(device, what :func:`problem_for` takes) of a call."""
    device = value.get_device()
    for name, tensor in (("sampling_locations", locations), ("attention_weights", weights)):
        if tensor.get_device() != device:
            raise OperatorError(f"value is on {value.device} but {name} on {tensor.device}")
    points = None if num_points is None else tuple(num_points)
    facts = ((value.shape, value.dtype), (locations.shape, locations.dtype), (weights.shape, weights.dtype))
    return device, (*facts, levels, starts, points, method)


def forward_on_gpu(value, levels, starts, locations, weights, num_points=None, method="default"):
    """The output; ``levels`` and ``starts`` are Numbers."""
    device, call = _call(value, levels, starts, locations, weights, num_points, method)
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    plan = forward_plan(device, *call)
    if plan is None:
        index = [np.asarray(tuple(numbers), np.int64) for numbers in (levels, starts)]
        with torch.cuda.device(device):
            return any_array(value.detach(), *index, locations.detach(), weights.detach())
    out = value.new_empty(plan.problem.out_shape)
    stream = torch._C._cuda_getCurrentRawStream(device)
    plan(stream, value.data_ptr(), locations.data_ptr(), weights.data_ptr(), out.data_ptr())
    return out


def forward_cuda(value, shapes, starts, locations, weights, num_points=None, method="default"):
    levels, starts = numbers_of("spatial_shapes", shapes), numbers_of("level_start_index", starts)
    return forward_on_gpu(value, levels, starts, locations, weights, num_points, method)


def backward_cuda(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    levels, starts = numbers_of("spatial_shapes", shapes), numbers_of("level_start_index", starts)
    device, call = _call(value, levels, starts, locations, weights, num_points, method)
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    grad_out = grad_out.to(value.dtype).contiguous()
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    is_fixed = of_value and deterministic
    of_samples, nothing = of_locations or of_weights, value.new_empty(0)
    plan = backward_plan(device, of_value, of_samples, "fixed" if is_fixed else "fp32", *call)
    grad_locations = torch.empty_like(locations) if of_samples else nothing
    grad_weights = torch.empty_like(weights) if of_samples else nothing
    sums = scale = nothing
    if is_fixed:
        shape, _ = gradients.sums_shape(plan.problem, "fixed")
        sums = torch.zeros(shape, dtype=torch.int64, device=value.device)
        scale, exponent = fixed_scale(plan.problem, grad_out, weights)
    elif of_value:
        sums = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
    operands = (value, locations, weights, grad_out, sums, grad_locations, grad_weights, scale)
    plan(torch._C._cuda_getCurrentRawStream(device), *[tensor.data_ptr() for tensor in operands])
    if is_fixed:
        sums = torch.ldexp(sums.transpose(-1, -2).to(torch.float32), -exponent).reshape(value.shape)
    return (
        sums.to(value.dtype) if of_value else nothing,
        grad_locations if of_locations else nothing,
        grad_weights if of_weights else nothing,
    )


def fixed_scale(problem, grad_out, weights):
    """(the float32 2^e, e) of ``gradients.fixed_exponent``, both on the GPU: nothing waits for it."""
    largest = grad_out.abs().amax().float() * weights.abs().amax().float()
    _, exponent = torch.frexp(largest)
    spare = gradients.fixed_exponent(problem, 0)
    exponent = (spare - exponent).clamp(-126, 126)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    return torch.where(torch.isfinite(largest), scale, torch.nan).reshape(1), exponent


def is_plain(*tensors):
    """Whether nobody but autograd wants to see a call of these tensors: no subclass, no autocast, no mode or
    transformation of PyTorch. Such a call may leave out the dispatcher, which costs as much as the launch."""
    return not (
        torch.is_autocast_enabled("cuda")
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ) and all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)


# --- what PyTorch asks for -------------------------------------------------------------------------
def forward_fake(value, shapes, starts, locations, weights, num_points=None, method="default"):
    batch, _, heads, channels = value.shape
    return value.new_empty((batch, locations.shape[1], heads * channels))


def backward_fake(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if wanted else value.new_empty(0)
        for tensor, wanted in ((value, of_value), (locations, of_locations), (weights, of_weights))
    )


class Differentiable(torch.autograd.Function):
    """The operator with its gradients, once. The index tensors may be Numbers, of a call on a GPU."""

    @staticmethod
    def forward(ctx, value, shapes, starts, locations, weights, num_points, method):
        index = (shapes, starts)
        if isinstance(shapes, Numbers):
            out = forward_on_gpu(value, shapes, starts, locations, weights, num_points, method)
            index = index_tensor(shapes), index_tensor(starts)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                out = FORWARD(value, shapes, starts, locations, weights, num_points, method)
        ctx.save_for_backward(value, *index, locations, weights)
        ctx.options = num_points, method
        return out

    @staticmethod
    def backward(ctx, grad_out):
        needs = [ctx.needs_input_grad[i] for i in (0, 3, 4)]
        found = BACKWARD(grad_out, *ctx.saved_tensors, *ctx.options, *needs)
        of_value, of_locations, of_weights = (
            gradient if needed else None for gradient, needed in zip(found, needs, strict=True)
        )
        return of_value, None, None, of_locations, of_weights, None, None


def _no_second(ctx, *grads):
    raise NotImplementedError("ms_deform_attn can be differentiated once: its gradients have no gradients")


def _with_gradients(value, shapes, starts, locations, weights, num_points=None, method="default"):
    if torch.is_grad_enabled() and (value.requires_grad or locations.requires_grad or weights.requires_grad):
        return Differentiable.apply(value, shapes, starts, locations, weights, num_points, method)
    with torch._C._AutoDispatchBelowAutograd():
        return FORWARD(value, shapes, starts, locations, weights, num_points, method)


def _with_autocast(kind):
    """Under autocast, value gets the type asked for; locations keep theirs: fp16 names the wrong pixels."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{kind.upper()}"))

    def call(value, shapes, starts, locations, weights, num_points=None, method="default"):
        if value.is_floating_point() and value.dtype is not torch.float64:
            value = value.to(torch.get_autocast_dtype(kind))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return FORWARD(value, shapes, starts, locations, weights, num_points, method)

    return call


LIBRARY.impl("ms_deform_attn", forward_cuda, "CUDA")
LIBRARY.impl("ms_deform_attn", forward_of, "CPU")
LIBRARY.impl("ms_deform_attn", _with_autocast("cuda"), "AutocastCUDA")
LIBRARY.impl("ms_deform_attn", _with_autocast("cpu"), "AutocastCPU")
LIBRARY.impl("ms_deform_attn_backward", backward_cuda, "CUDA")
LIBRARY.impl("ms_deform_attn_backward", backward_of, "CPU")
torch.library.register_fake("numba_deform::ms_deform_attn", forward_fake, lib=LIBRARY)
torch.library.register_fake("numba_deform::ms_deform_attn_backward", backward_fake, lib=LIBRARY)
LIBRARY.impl("ms_deform_attn", _with_gradients, "Autograd")
torch.library.register_autograd("numba_deform::ms_deform_attn_backward", _no_second, lib=LIBRARY)
