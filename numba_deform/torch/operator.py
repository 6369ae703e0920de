"""``torch.ops.numba_deform``: the operator and its gradients as PyTorch's own operators.

    ms_deform_attn           on CUDA the kernels of this package, on the CPU PyTorch's own operations
    ms_deform_attn_backward  the gradients, of what needs them; differentiable once

Each has two overloads. The default one takes index tensors, as other implementations do: on a GPU they have to
be read, so it is left out of the CUDA graphs that ``torch.compile`` makes. ``lists`` takes numbers, heights and
widths in turn, and makes no tensor of them on any way. All have fake implementations, so that ``torch.compile``
and ``torch.export`` can look at shapes alone.
"""

import functools
import weakref

import torch
from torch._C import _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from ..attention import gradients
from ..attention.checks import RANKS, OperatorError, check_grad_out
from .plans import backward_plan, current_stream, forward_plan
from .reference import backward_of, forward_of

TENSORS = "Tensor spatial_shapes, Tensor level_start_index"
LISTS = "SymInt[] spatial_shapes, SymInt[] level_start_index"
REST = "Tensor sampling_locations, Tensor attention_weights, int[]? num_points=None, str method='default'"
WANTED = "bool of_value=True, bool of_locations=True, bool of_weights=True, bool? deterministic=None"
LIBRARY = torch.library.Library("numba_deform", "DEF")
# Reading a tensor on a GPU waits for it, which no capture allows. PyTorch before 2.8 has no word for that.
READS = tuple(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))
for overload, index, tags in (("", TENSORS, READS), (".lists", LISTS, ())):
    tags = (torch.Tag.pt2_compliant_tag, *tags)
    arguments = f"Tensor value, {index}, {REST}"
    LIBRARY.define(f"ms_deform_attn{overload}({arguments}) -> Tensor", tags=tags)
    arguments = f"Tensor grad_out, {arguments}, {WANTED}"
    LIBRARY.define(f"ms_deform_attn_backward{overload}({arguments}) -> (Tensor, Tensor, Tensor)", tags=tags)
# Not public in PyTorch: the lengths of its stacks, peek_interpreter_stack and _current_level, by which is_plain
# sees who wants to see a call, and the guards of dispatch keys in torch._C. The oldest PyTorch allowed, 2.6,
# has them; with one that lacks the first three, importing this module fails.
PLAIN = torch.Tensor, torch.nn.Parameter
FORWARD = torch.ops.numba_deform.ms_deform_attn.default
FORWARD_LISTS = torch.ops.numba_deform.ms_deform_attn.lists
BACKWARD = torch.ops.numba_deform.ms_deform_attn_backward.default
BACKWARD_LISTS = torch.ops.numba_deform.ms_deform_attn_backward.lists


# --- the numbers of levels -------------------------------------------------------------------------
def numbers_from(name, nested):
    """A flat tuple of the numbers of a list: of ``spatial_shapes``, pairs, or of ``level_start_index``."""
    nested = nested.tolist() if hasattr(nested, "tolist") else nested
    try:
        if name == "level_start_index":
            return tuple(nested)
        return tuple([number for height, width in nested for number in (height, width)])
    except (TypeError, ValueError):
        rule = "a number" if name == "level_start_index" else "a height and a width"
        raise OperatorError(f"{name}={nested}: it is {rule} for each level") from None


def starts_of(shapes):
    """Where each level starts, for the flat shapes, if levels follow one another."""
    starts = [0]
    for height, width in zip(shapes[::2], shapes[1::2], strict=True):
        starts.append(starts[-1] + height * width)
    return tuple(starts[:-1])


known_starts = functools.lru_cache(maxsize=256)(starts_of)  # not for numbers that a graph does not know


_known = {}  # id of a tensor -> (weak reference to it, its version, its numbers)


def numbers_of(name, index):
    """A flat tuple of the numbers in an index tensor, or of a list of them.

    A tensor on a GPU has to be copied, which waits for it: that happens once for each version of the tensor,
    and never while a graph is captured (OperatorError)."""
    if not isinstance(index, torch.Tensor):
        return tuple(index)
    # One of inference mode does not tell when it is changed, nor one on the CPU whose memory NumPy shares.
    is_kept = index.is_cuda and not index.is_inference()
    entry = _known.get(id(index)) if is_kept else None
    if entry is not None and entry[0]() is index and entry[1] == index._version:
        return entry[2]
    if index.is_cuda and torch.cuda.is_current_stream_capturing():
        raise OperatorError(
            f"{name} is on a GPU, and cannot be read while a graph is captured; call the operator once with "
            "this tensor before the capture, or give the numbers as a list"
        )
    _check_index(name, index)
    numbers = tuple(index.flatten().tolist())
    if is_kept:
        key = id(index)
        forget = weakref.ref(index, lambda _: _known.pop(key, None))
        _known[key] = forget, index._version, numbers
    return numbers


def _check_index(name, tensor):
    if tensor.dtype not in (torch.int64, torch.int32):
        raise OperatorError(f"{name} has dtype {str(tensor.dtype)[6:]}; it must be one of int64, int32")
    rank, letters = RANKS[name]
    if tensor.ndim != rank or tensor.shape[1:] not in ((), (2,)):
        raise OperatorError(f"{name} has shape {tuple(tensor.shape)}; it is {letters}")


# --- on a GPU --------------------------------------------------------------------------------------
def forward_on_gpu(value, shapes, starts, locations, weights, num_points=None, method="default"):
    """The output; ``shapes`` and ``starts`` are flat tuples."""
    device = value.get_device()
    if locations.get_device() != device or weights.get_device() != device:
        _refuse_places(value, locations, weights)
    plan = forward_plan(
        device, value.shape, value.dtype, locations.shape, locations.dtype, weights.shape, weights.dtype,
        shapes, starts, num_points if num_points is None else tuple(num_points), method,
    )  # fmt: skip
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    out = value.new_empty(plan.out_shape)
    stream = current_stream(device)
    plan(stream, value.data_ptr(), locations.data_ptr(), weights.data_ptr(), out.data_ptr())
    return out


def _refuse_places(value, locations, weights):
    places = f"sampling_locations on {locations.device}, attention_weights on {weights.device}"
    raise OperatorError(f"value is on {value.device} but {places}")


def forward_cuda(value, shapes, starts, locations, weights, num_points=None, method="default"):
    shapes, starts = numbers_of("spatial_shapes", shapes), numbers_of("level_start_index", starts)
    return forward_on_gpu(value, shapes, starts, locations, weights, num_points, method)


def backward_cuda(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    shapes, starts = numbers_of("spatial_shapes", shapes), numbers_of("level_start_index", starts)
    device, tensors = value.get_device(), (value, locations, weights)
    if any(tensor.get_device() != device for tensor in tensors):
        _refuse_places(*tensors)
    if grad_out.get_device() != device:
        raise OperatorError(f"value is on {value.device} but grad_out on {grad_out.device}")
    facts = [fact for tensor in tensors for fact in (tensor.shape, tensor.dtype)]
    call = *facts, shapes, starts, num_points if num_points is None else tuple(num_points), method
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    is_fixed = of_value and deterministic
    of_samples, nothing = of_locations or of_weights, value.new_empty(0)
    plan = backward_plan(device, of_value, of_samples, "fixed" if is_fixed else "fp32", *call)
    check_grad_out(grad_out.shape, plan.out_shape)
    grad_out = grad_out.to(value.dtype).contiguous()
    grad_locations = torch.empty_like(locations) if of_samples else nothing
    grad_weights = torch.empty_like(weights) if of_samples else nothing
    sums = scale = nothing
    if is_fixed:
        shape, _ = gradients.sums_shape(plan.problem, "fixed")
        sums = torch.zeros(shape, dtype=torch.int64, device=value.device)
        scale = fixed_scale(plan.problem, grad_out, weights)
    elif of_value:
        sums = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
    operands = (value, locations, weights, grad_out, sums, grad_locations, grad_weights, scale)
    plan(current_stream(device), *[tensor.data_ptr() for tensor in operands])
    if is_fixed:
        sums = from_fixed(sums, scale, value)
    return (
        sums.to(value.dtype) if of_value else nothing,
        grad_locations if of_locations else nothing,
        grad_weights if of_weights else nothing,
    )


def fixed_scale(problem, grad_out, weights):
    """(1,) float32, 2^e with the e of ``gradients.fixed_exponent``, NaN for numbers that are not finite; it is
    on the GPU, and nothing waits for it."""
    largest = [torch.linalg.vector_norm(tensor, torch.inf).float() for tensor in (grad_out, weights)]
    largest = largest[0] * largest[1]
    _, exponent = torch.frexp(largest)
    exponent = (gradients.fixed_exponent(problem, 0) - exponent).clamp(-126, 126)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    return torch.where(torch.isfinite(largest), scale, torch.nan).reshape(1)


def from_fixed(sums, scale, value):
    """The gradient of value, in its type, from 64-bit sums of multiples of 1 / scale: one pass over them."""
    found, sums = value.new_empty(value.shape), sums.transpose(-1, -2)
    torch.mul(sums, 1 / scale, out=found.view(sums.shape))
    return found


def is_plain(*tensors):
    """Whether these are tensors, and nobody but autograd wants to see a call of them: no subclass, no autocast,
    no mode or transformation of PyTorch. Such a call may leave out the dispatcher, which costs as much as the
    launch."""
    for tensor in tensors:
        if type(tensor) not in PLAIN:
            return False
    return not (
        torch.is_autocast_enabled("cuda")
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def requires_grad(value, locations, weights):
    """Whether one of them does."""
    return value.requires_grad or locations.requires_grad or weights.requires_grad


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
    """The operator with its gradients, once. ``call`` computes it; the rest are the operator's arguments."""

    @staticmethod
    def forward(ctx, call, value, shapes, starts, locations, weights, num_points, method):
        out = call(value, shapes, starts, locations, weights, num_points, method)
        by_tensors = isinstance(shapes, torch.Tensor)
        ctx.save_for_backward(value, locations, weights, *((shapes, starts) if by_tensors else ()))
        ctx.index, ctx.options = None if by_tensors else (shapes, starts), (num_points, method)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        needs = [ctx.needs_input_grad[i] for i in (1, 4, 5)]
        value, locations, weights, *index = ctx.saved_tensors
        backward = BACKWARD if index else BACKWARD_LISTS
        found = backward(grad_out, value, *(index or ctx.index), locations, weights, *ctx.options, *needs)
        of_value, of_locations, of_weights = (
            gradient if needed else None for gradient, needed in zip(found, needs, strict=True)
        )
        return None, of_value, None, None, of_locations, of_weights, None, None


def _no_second(ctx, *grads):
    raise NotImplementedError("ms_deform_attn can be differentiated once: its gradients have no gradients")


def _refuse_transforms(tensors):
    """NotImplementedError for gradients that would be lost: those of torch.func, and in forward mode."""
    interpreter = peek_interpreter_stack()
    kinds = torch._C._functorch.TransformType
    by_func = interpreter is not None and interpreter.key() in (kinds.Grad, kinds.Jvp)
    is_dual = forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors
    )
    if by_func or is_dual:
        raise NotImplementedError(
            "ms_deform_attn has gradients by torch.autograd, in reverse mode: torch.func.grad, vjp and jvp and "
            "forward mode are not supported"
        )


def _with_gradients(forward):
    def below(*arguments):
        with torch._C._AutoDispatchBelowAutograd():
            return forward(*arguments)

    def call(value, shapes, starts, locations, weights, num_points=None, method="default"):
        arguments = value, shapes, starts, locations, weights, num_points, method
        tensors = value, locations, weights
        _refuse_transforms(tensors)
        if torch.is_grad_enabled() and requires_grad(*tensors):
            return Differentiable.apply(below, *arguments)
        return below(*arguments)

    return call


def _with_autocast(forward, kind):
    """Under autocast, value gets the type asked for; locations keep theirs: fp16 names the wrong pixels."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{kind.upper()}"))

    def call(value, *arguments, **options):
        if value.is_floating_point() and value.dtype is not torch.float64:
            value = value.to(torch.get_autocast_dtype(kind))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return forward(value, *arguments, **options)

    return call


for forward, overload in ((FORWARD, ""), (FORWARD_LISTS, ".lists")):
    name, backward_name = f"ms_deform_attn{overload}", f"ms_deform_attn_backward{overload}"
    LIBRARY.impl(name, forward_cuda, "CUDA")
    LIBRARY.impl(name, forward_of, "CPU")
    LIBRARY.impl(name, _with_autocast(forward, "cuda"), "AutocastCUDA")
    LIBRARY.impl(name, _with_autocast(forward, "cpu"), "AutocastCPU")
    LIBRARY.impl(name, _with_gradients(forward), "Autograd")
    LIBRARY.impl(backward_name, backward_cuda, "CUDA")
    LIBRARY.impl(backward_name, backward_of, "CPU")
    torch.library.register_fake(f"numba_deform::{name}", forward_fake, lib=LIBRARY)
    torch.library.register_fake(f"numba_deform::{backward_name}", backward_fake, lib=LIBRARY)
    torch.library.register_autograd(f"numba_deform::{backward_name}", _no_second, lib=LIBRARY)
