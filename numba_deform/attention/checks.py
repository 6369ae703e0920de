"""What the operator refuses before it runs: arguments that do not fit, and gradients that would be lost."""

import sys
from math import prod

import numpy as np

from ..kernels.problem import ITEMSIZE, Constants, Problem, make_levels

RANKS = {
    "value": (4, "(B, S, H, C)"),
    "sampling_locations": (6, "(B, Q, H, L, P, 2)"),
    "attention_weights": (5, "(B, Q, H, L, P)"),
    "spatial_shapes": (2, "(L, 2)"),
    "level_start_index": (1, "(L,)"),
}
FLAT_RANKS = {"sampling_locations": (5, "(B, Q, H, N, 2)"), "attention_weights": (4, "(B, Q, H, N)")}
MAY_BE_EMPTY = ("B", "Q", "H")  # then the result is empty, and so are gradients, or zero
LIMIT = 2**31  # of a kernel's 32-bit numbers


class OperatorError(ValueError):
    """An argument of the operator is unusable; the text names it, its value and the rule."""


def problem_of(inputs):
    """The :class:`Problem` of a workload's inputs."""
    return check_problem(
        inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
        inputs.attention_weights, inputs.padded)  # fmt: skip


def check_problem(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, padded=False,
    num_points=None, method="default",
):  # fmt: skip
    """A :class:`Problem` from objects with ``shape`` and ``dtype``; the index arrays are NumPy.

    With ``num_points``, the points of each level, sampling_locations are (B, Q, H, N, 2) and attention_weights
    (B, Q, H, N), where N is their sum. Raises OperatorError for ranks, types or shapes that do not fit, and
    ConfigError for a number of channels that no kernel supports."""
    dtypes, starts = check_arguments(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, padded, num_points
    )
    batch, spatial_size, heads, channels = value.shape
    queries = sampling_locations.shape[1]
    points = sampling_locations.shape[4] if num_points is None else tuple(map(int, num_points))
    if num_points is not None and len(set(points)) == 1:
        points = points[0]
    constants = Constants(len(starts), points, channels, *dtypes, method)
    problem = Problem(
        batch, spatial_size, heads, queries,
        make_levels(spatial_shapes, starts, padded), constants)  # fmt: skip
    if problem.rows >= LIMIT:
        raise OperatorError(f"B*Q*H={problem.rows} must stay below 2^31; split the batch")
    plane = prod((spatial_size, heads, channels, ITEMSIZE[constants.dtype]))
    if plane >= LIMIT:
        raise OperatorError(
            f"one batch of value takes S*H*C*itemsize={plane} bytes; it must stay below 2^31, since "
            "kernels use 32-bit offsets inside a batch; split the heads"
        )
    return problem


def check_arguments(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, padded, num_points,
    dtypes=tuple(ITEMSIZE),
):  # fmt: skip
    """(names of the types of value, locations and weights, starts of the levels) of arguments that fit; see
    :func:`check_problem`. ``dtypes`` are those that may be."""
    arrays = {
        "value": value, "sampling_locations": sampling_locations, "attention_weights": attention_weights,
        "spatial_shapes": spatial_shapes, "level_start_index": level_start_index}  # fmt: skip
    ranks = RANKS if num_points is None else {**RANKS, **FLAT_RANKS}
    for name, array in arrays.items():
        rank, letters = ranks[name]
        if len(array.shape) != rank:
            hint = ""
            if num_points is None and len(array.shape) == FLAT_RANKS.get(name, (None,))[0]:
                hint = f"; flat ones, {FLAT_RANKS[name][1]}, need num_points, which numba_deform.torch takes"
            shape = tuple(array.shape)
            raise OperatorError(f"{name} has shape {shape}; it must have rank {rank}: {letters}{hint}")
        sizes = zip(array.shape, letters.strip("()").split(", "), strict=False)
        if any(size == 0 and letter not in MAY_BE_EMPTY for size, letter in sizes):
            rule = "no dimension but B, Q and H may be 0"
            raise OperatorError(f"{name} has shape {tuple(array.shape)}: {rule}")
    names = [_dtype_name(name, arrays[name], dtypes) for name in list(arrays)[:3]]
    for name in ("spatial_shapes", "level_start_index"):
        _dtype_name(name, arrays[name], ("int64", "int32"))
    _check_shapes(arrays, num_points)
    starts = [int(start) for start in level_start_index]
    _check_levels(spatial_shapes, starts, value.shape[1], padded)
    return names, starts


def _dtype_name(name, array, allowed):
    text = str(array.dtype).rpartition(".")[2]
    if text not in allowed:
        raise OperatorError(f"{name} has dtype {text}; it must be one of {', '.join(allowed)}")
    return text


def _check_shapes(arrays, num_points):
    shapes = {name: tuple(array.shape) for name, array in arrays.items()}
    value, locations = shapes["value"], shapes["sampling_locations"]
    if locations[-1] != 2:
        raise OperatorError(f"sampling_locations ends in {locations[-1]}; its last dimension is (x, y), size 2")
    if shapes["attention_weights"] != locations[:-1]:
        raise OperatorError(
            f"attention_weights has shape {shapes['attention_weights']}, but sampling_locations asks "
            f"for {locations[:-1]}"
        )
    for letter, axis in (("B", 0), ("H", 2)):
        if value[axis] != locations[axis]:
            raise OperatorError(
                f"value has {letter}={value[axis]} (dimension {axis}) but sampling_locations has "
                f"{letter}={locations[axis]}"
            )
    levels, who = locations[3], "sampling_locations"
    if num_points is not None:
        levels, who = len(num_points), "num_points"
        if min(num_points) < 1 or sum(num_points) != locations[3]:
            raise OperatorError(
                f"num_points={list(num_points)}: they are at least 1, and sampling_locations has "
                f"{locations[3]} samples a row"
            )
    for name in ("spatial_shapes", "level_start_index"):
        if shapes[name][0] != levels:
            raise OperatorError(f"{name} describes {shapes[name][0]} levels, {who} has L={levels}")
    if shapes["spatial_shapes"][1] != 2:
        raise OperatorError(f"spatial_shapes has shape {shapes['spatial_shapes']}; it is (L, 2)")


def _check_levels(spatial_shapes, starts, spatial_size, padded):
    shapes = [(int(height), int(width)) for height, width in spatial_shapes]
    if min(map(min, shapes)) < 1:
        raise OperatorError(f"spatial_shapes={[list(s) for s in shapes]}: sizes are >= 1")
    plain = [height * width for height, width in shapes]
    bordered = [(height + 2) * (width + 2) for height, width in shapes]
    sizes, others = (bordered, plain) if padded else (plain, bordered)
    if sum(sizes) != spatial_size:
        hint = ""
        if sum(others) == spatial_size:
            hint = "; a data directory with one pixel of padding needs padded=True"
            if padded:
                hint = "; it has no padding, so padded must be False"
        raise OperatorError(f"spatial_shapes says {sum(sizes)} positions but value has S={spatial_size}{hint}")
    for i, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if start < 0 or start + size > spatial_size:
            raise OperatorError(
                f"level_start_index[{i}]={start} with {size} positions does not lie inside S={spatial_size}"
            )


def check_im2col_step(step, batch):
    """Other implementations split the batch by it; here it is only checked, then ignored."""
    if step is None:
        return
    if not isinstance(step, int) or step < 1 or batch and batch % min(step, batch):
        raise OperatorError(f"im2col_step={step}: it must be >= 1 and divide the batch {batch}")


def check_out(out, shape, dtype):
    """Refuse an ``out`` that NumPy results cannot be written to."""
    required = f"it must be a writable C-contiguous NumPy array {shape} of {dtype}"
    if not isinstance(out, np.ndarray):
        raise OperatorError(f"out is a {type(out).__name__}; {required}")
    flags = out.flags
    if out.shape != shape or out.dtype != dtype or not (flags.c_contiguous and flags.writeable):
        kind = "" if flags.writeable else "read-only "
        kind += "" if flags.c_contiguous else "non-contiguous "
        raise OperatorError(f"out is {kind}{out.shape} of {out.dtype}; {required}")


def check_grad_out(shape, out_shape):
    """Refuse a gradient of the output that has another shape than the output, (B, Q, H*C)."""
    if tuple(shape) != tuple(out_shape):
        raise OperatorError(f"grad_out has shape {tuple(shape)}; it must be the output's, {tuple(out_shape)}")


def check_gradient(name, array):
    """Refuse an array of PyTorch or JAX whose gradient would be lost: only numba_deform.torch has gradients.

    Neither library is imported: an array of it means that it is there."""
    torch = sys.modules.get("torch")
    if getattr(array, "requires_grad", False) and (torch is None or torch.is_grad_enabled()):
        raise OperatorError(
            f"{name} requires a gradient, which only numba_deform.torch.ms_deform_attn computes; call that, "
            f"pass {name}.detach(), or call this under torch.no_grad()"
        )
    jax = sys.modules.get("jax")
    if jax and isinstance(array, jax.core.Tracer):
        raise OperatorError(
            f"{name} is traced by JAX (jit, grad, vmap ...), which this operator cannot be; call it outside, "
            "with arrays that have values"
        )
