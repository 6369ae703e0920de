"""``torch.ops.numba_deform``: the operator and its gradients as PyTorch's own operators.

    ms_deform_attn           on CUDA the kernels of this package, on the CPU functions compiled by Numba
    ms_deform_attn_backward  the gradients, of what needs them

Where gradients are to have gradients, and under transformations of torch.func that differentiate, formula.py
takes their place.

Each has two overloads. The default one takes index tensors, as other implementations do: on a GPU they have to
be read, so it is left out of the CUDA graphs that ``torch.compile`` makes. ``lists`` takes numbers, heights and
widths in turn, and makes no tensor of them on any way. All have fake implementations, so that ``torch.compile``
and ``torch.export`` can look at shapes alone.
"""

import contextlib

import torch
from torch._C._functorch import is_legacy_batchedtensor, peek_interpreter_stack, unwrap_if_dead
from torch.autograd import forward_ad

from ..attention.checks import OperatorError, check_grad_out
from . import cpu, formula
from .arguments import check_places, is_plain, numbers_of
from .plans import backward_plan, current_stream, forward_plan, problem_for

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
FORWARD = torch.ops.numba_deform.ms_deform_attn.default
FORWARD_LISTS = torch.ops.numba_deform.ms_deform_attn.lists
BACKWARD = torch.ops.numba_deform.ms_deform_attn_backward.default
BACKWARD_LISTS = torch.ops.numba_deform.ms_deform_attn_backward.lists


# --- on a GPU --------------------------------------------------------------------------------------
def forward_on_gpu(value, shapes, starts, locations, weights, num_points=None, method="default"):
    """The output; ``shapes`` and ``starts`` are flat tuples, or tensors, which may have to be read."""
    call = call_of(value, shapes, starts, locations, weights, num_points, method)
    if not (value.numel() and locations.numel()):  # there is nothing to launch
        return value.new_empty(problem_for(*call).out_shape)
    return forward_by(forward_plan(value.get_device(), *call), value, locations, weights)


def at_16_bytes(tensor):
    """The tensor, or a copy where it starts at no multiple of 16 bytes, which kernels read at once: a view of
    another tensor may."""
    return tensor.clone() if tensor.data_ptr() & 15 else tensor


def call_of(value, shapes, starts, locations, weights, num_points, method):
    """What ``problem_for`` takes, of tensors on one device."""
    if type(shapes) is not tuple:
        shapes, starts = numbers_of("spatial_shapes", shapes), numbers_of("level_start_index", starts)
    if not value.get_device() == locations.get_device() == weights.get_device():
        check_places(value, locations, weights)
    return (value.shape, value.dtype, locations.shape, locations.dtype, weights.shape, weights.dtype, shapes,
            starts, num_points if num_points is None else tuple(num_points), method)  # fmt: skip


def forward_by(plan, value, locations, weights):
    """The output, by the launches of a ``forward_plan``."""
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    places = value.data_ptr(), locations.data_ptr(), weights.data_ptr()
    if (places[0] | places[1] | places[2]) & 15:
        return forward_by(plan, *map(at_16_bytes, (value, locations, weights)))
    out = value.new_empty(*plan.out_shape)  # quicker than one tuple of them
    plan(current_stream(value.get_device()), *places, out.data_ptr())
    if _propagates and plan.problem.constants.method == "default":
        strange = locations.flatten(3).sum(-1, dtype=torch.float32).mul_(0)  # (B, Q, H): 0, or no number
        out.unflatten(2, strange.shape[2:] + (-1,)).add_(strange.unsqueeze(-1))
    return out


_propagates = 0  # how many ask for it


@contextlib.contextmanager
def propagate_nan():
    """Inside, in all threads, a location that is NaN or infinite makes the output's row NaN on a GPU too.

    On a CPU it always does, as in a model's own code. The kernels for a GPU let such a sample contribute
    nothing, which hides that a model diverges. This costs three launches more a call, which read the locations
    and go over the output once. Calls captured into a graph keep what held then. Samples by
    ``method="discrete"`` are at an edge of the level then, on every device."""
    global _propagates
    _propagates += 1
    try:
        yield
    finally:
        _propagates -= 1


def _check_fake(value, shapes, starts, locations, weights):
    """The same where only shapes are looked at, as on the device meta."""
    check_places(value, locations, weights)
    for name, index in (("spatial_shapes", shapes), ("level_start_index", starts)):
        if isinstance(index, torch.Tensor) and index.is_meta and not value.is_meta:
            raise OperatorError(f"value is on {value.device} but {name} on meta")


def backward_on_gpu(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    """The gradients, an empty tensor for what is not wanted; arguments as of :func:`forward_on_gpu`."""
    call = call_of(value, shapes, starts, locations, weights, num_points, method)
    if grad_out.get_device() != value.get_device():
        check_places(value, locations, weights, grad_out)
    if not (value.numel() and locations.numel()):
        check_grad_out(grad_out.shape, problem_for(*call).out_shape)
        wanted = zip((value, locations, weights), (of_value, of_locations, of_weights), strict=True)
        return tuple(t.new_zeros(t.shape if yes else 0) for t, yes in wanted)
    found = backward_by(lambda *wanted: backward_plan(value.get_device(), *wanted, *call), grad_out, value,
                        locations, weights, of_value, of_locations, of_weights, deterministic)  # fmt: skip
    pairs = zip(found, (value, locations, weights), strict=True)
    return tuple(tensor.new_empty(0) if gradient is None else gradient for gradient, tensor in pairs)


def backward_by(plan_of, grad_out, value, locations, weights, of_value, of_locations, of_weights,
                deterministic=None):  # fmt: skip
    """The gradients, None for what is not wanted, by the launches of the ``backward_plan`` that
    ``plan_of(of_value, of_samples, sums)`` gives."""
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    of_samples = of_locations or of_weights
    plan = plan_of(of_value, of_samples, "fixed" if of_value and deterministic else "fp32")
    if grad_out.shape != plan.out_shape:
        check_grad_out(grad_out.shape, plan.out_shape)
    value, locations, weights = value.contiguous(), locations.contiguous(), weights.contiguous()
    if grad_out.dtype is not value.dtype:
        grad_out = grad_out.to(value.dtype)
    grad_out = grad_out.contiguous()
    places = value.data_ptr(), locations.data_ptr(), weights.data_ptr(), grad_out.data_ptr()
    if (places[0] | places[1] | places[2] | places[3]) & 15:
        kept = [at_16_bytes(tensor) for tensor in (value, locations, weights, grad_out)]
        places = [tensor.data_ptr() for tensor in kept]
    found = [torch.empty_like(value) if of_value else None,
             torch.empty_like(locations) if of_samples else None,
             torch.empty_like(weights) if of_samples else None]  # fmt: skip
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in found]
    plan(current_stream(value.get_device()), *places, *addresses)
    if of_locations is not of_weights:  # the kernel makes both or neither
        found[1 if of_weights else 2] = None
    return found


# --- what PyTorch asks for -------------------------------------------------------------------------
def forward_fake(value, shapes, starts, locations, weights, num_points=None, method="default"):
    _check_fake(value, shapes, starts, locations, weights)
    batch, _, heads, channels = value.shape
    return value.new_empty((batch, locations.shape[1], heads * channels))


def backward_fake(
    grad_out, value, shapes, starts, locations, weights, num_points=None, method="default", of_value=True,
    of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    _check_fake(value, shapes, starts, locations, weights)
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format) if wanted else tensor.new_empty(0)
        for tensor, wanted in ((value, of_value), (locations, of_locations), (weights, of_weights))
    )


class Differentiable(torch.autograd.Function):
    """The operator with its gradients. ``call`` computes it; the rest are the operator's arguments. Without a
    ``setup_context``, for which PyTorch binds a signature in each call: torch.func comes not so far."""

    @staticmethod
    def forward(ctx, call, value, shapes, starts, locations, weights, *options):
        by_tensors = isinstance(shapes, torch.Tensor)
        ctx.save_for_backward(value, locations, weights, *((shapes, starts) if by_tensors else ()))
        ctx.index, ctx.options = None if by_tensors else (shapes, starts), options
        return call(value, shapes, starts, locations, weights, *options)

    @staticmethod
    def backward(ctx, grad_out):
        _, of_value, _, _, of_locations, of_weights, *_ = ctx.needs_input_grad
        value, locations, weights, *index = ctx.saved_tensors
        backward = BACKWARD if index else BACKWARD_LISTS
        if not index and value.is_cpu and _is_left_alone(grad_out, value):
            backward = cpu.backward_of
        found = backward(grad_out, value, *(index or ctx.index), locations, weights, *ctx.options, of_value,
                         of_locations, of_weights)  # fmt: skip
        return (None, found[0] if of_value else None, None, None, found[1] if of_locations else None,
                found[2] if of_weights else None, None, None)  # fmt: skip


def _is_left_alone(*tensors):
    """Whether a backward pass may leave out the dispatcher, as a forward pass may: nobody wants to see it."""
    is_seen = torch.is_grad_enabled() or torch.compiler.is_compiling() or is_legacy_batchedtensor(tensors[0])
    return not is_seen and is_plain(*tensors)


class Planned(torch.autograd.Function):
    """The same of a plain call on a GPU: by a ``forward_plan``, and that of its gradients."""

    @staticmethod
    def forward(ctx, plan, value, locations, weights):
        ctx.save_for_backward(value, locations, weights)
        ctx.plan = plan
        return forward_by(plan, value, locations, weights)

    @staticmethod
    def backward(ctx, grad_out):
        (_, *wanted), (value, locations, weights) = ctx.needs_input_grad, ctx.saved_tensors
        if _is_left_alone(grad_out):  # value was plain in the forward pass
            return None, *backward_by(ctx.plan.gradients, grad_out, value, locations, weights, *wanted)
        *_, shapes, starts, num_points, method = ctx.plan.call
        found = BACKWARD_LISTS(
            grad_out, value, shapes, starts, locations, weights, num_points, method, *wanted)  # fmt: skip
        return None, *(gradient if yes else None for gradient, yes in zip(found, wanted, strict=True))


# ``apply`` without what it does for torch.func, with all arguments, in Python before PyTorch 2.14.
_apply_plain = super(torch.autograd.Function, Planned).apply


def _is_recorded(value, locations, weights):
    """Whether autograd is to know of a call, since one of these wants a gradient."""
    needs = value.requires_grad or locations.requires_grad or weights.requires_grad
    return needs and torch.is_grad_enabled()


def planned(plan, value, locations, weights):
    """The output of a plain call, whose gradients are recorded where wanted."""
    if not _is_recorded(value, locations, weights):
        return forward_by(plan, value, locations, weights)
    # Such tensors may yet be what torch.func has left.
    return _apply_plain(plan, unwrap_if_dead(value), unwrap_if_dead(locations), unwrap_if_dead(weights))


def _is_transformed(tensors):
    """Whether torch.func differentiates now, or forward mode does."""
    interpreter = peek_interpreter_stack()
    kinds = torch._C._functorch.TransformType
    return (interpreter is not None and interpreter.key() in (kinds.Grad, kinds.Jvp)) or (
        forward_ad._current_level >= 0
        and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
    )


def _with_gradients(operator):
    def below(*arguments):
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    def call(value, shapes, starts, locations, weights, num_points=None, method="default"):
        arguments = value, shapes, starts, locations, weights, num_points, method
        if _is_transformed((value, locations, weights)):
            return formula.forward_of(*arguments)
        if not _is_recorded(value, locations, weights):
            return below(*arguments)
        return Differentiable.apply(below, *arguments)

    return call


def _with_second_gradients(operator):
    def call(grad_out, value, shapes, starts, locations, weights, *options):
        tensors = grad_out, value, locations, weights
        is_recorded = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if is_recorded or _is_transformed(tensors):
            return formula.backward_of(grad_out, value, shapes, starts, locations, weights, *options)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(grad_out, value, shapes, starts, locations, weights, *options)

    return call


def _with_vmap(operator, places):
    """What ``register_vmap`` wants: mapped calls are one call with a larger batch. ``places`` are those of the
    tensors among the arguments."""

    def call(info, in_dims, *arguments):
        arguments = list(arguments)
        if any(isinstance(dim, int) for i, dim in enumerate(in_dims) if i not in places):
            raise OperatorError("spatial_shapes and level_start_index cannot be mapped by vmap")
        for i in places:
            dim, tensor = in_dims[i], arguments[i]
            tensor = tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)
            both = info.batch_size, tensor.shape[1]  # either may be 0
            arguments[i] = tensor.expand(info.batch_size, *tensor.shape[1:]).flatten(0, 1)
        found = operator(*arguments)
        if isinstance(found, torch.Tensor):
            return found.unflatten(0, both), 0
        split = [t.unflatten(0, both) if t.ndim > 1 else t for t in found]
        return tuple(split), tuple(0 if t.ndim > 1 else None for t in found)

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


for overload, forward, backward in (("", FORWARD, BACKWARD), (".lists", FORWARD_LISTS, BACKWARD_LISTS)):
    name, backward_name = f"ms_deform_attn{overload}", f"ms_deform_attn_backward{overload}"
    LIBRARY.impl(name, forward_on_gpu, "CUDA")
    LIBRARY.impl(name, cpu.forward_of, "CPU")
    LIBRARY.impl(name, _with_autocast(forward, "cuda"), "AutocastCUDA")
    LIBRARY.impl(name, _with_autocast(forward, "cpu"), "AutocastCPU")
    LIBRARY.impl(name, _with_gradients(forward), "Autograd")
    LIBRARY.impl(backward_name, backward_on_gpu, "CUDA")
    LIBRARY.impl(backward_name, cpu.backward_of, "CPU")
    LIBRARY.impl(backward_name, _with_second_gradients(backward), "Autograd")
    torch.library.register_fake(f"numba_deform::{name}", forward_fake, lib=LIBRARY)
    torch.library.register_fake(f"numba_deform::{backward_name}", backward_fake, lib=LIBRARY)
    torch.library.register_vmap(f"numba_deform::{name}", _with_vmap(forward, (0, 3, 4)), lib=LIBRARY)
    torch.library.register_vmap(
        f"numba_deform::{backward_name}", _with_vmap(backward, (0, 1, 4, 5)), lib=LIBRARY
    )
