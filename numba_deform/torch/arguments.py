"""What a call is given, checked and read: the first step of PyTorch's door."""

import functools
import itertools
import operator
import weakref

import numpy as np
import torch
from torch._C import _is_tracing, _len_torch_dispatch_stack, _len_torch_function_stack, is_autocast_enabled
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from ..attention.checks import LIMIT, RANKS, OperatorError, check_im2col_step
from ..attention.request import INPUTS
from ..kernels.problem import METHODS, ConfigError

# Not public in PyTorch: the lengths of its stacks, peek_interpreter_stack, _is_tracing and _current_level, by
# which is_plain sees who wants to see a call. The oldest PyTorch allowed, 2.6, has them; with one that lacks
# the first four, importing this module fails.
PLAIN = torch.Tensor, torch.nn.Parameter
INT64 = 2**63


def checked(value, shapes, starts, locations, weights, num_points, method, im2col_step, keeps_tensors):
    """The arguments of an overload of the operator: with index tensors, or with flat tuples of their numbers.

    ``keeps_tensors``: index tensors stay what they are, since a graph is made and they cannot be read."""
    check_tensors(value, locations, weights)
    check_places(value, locations, weights)
    check_im2col_step(im2col_step, value.shape[0])
    if method not in METHODS:
        raise ConfigError("method", method, f"must be one of {', '.join(METHODS)}")
    index = [i for i in (shapes, starts) if isinstance(i, torch.Tensor)]
    if index and (keeps_tensors or any(type(i) is not torch.Tensor for i in index)):
        return value, *as_tensors(shapes, starts), locations, weights, num_points, method
    shapes, starts = level_numbers(shapes, starts, starts_of)
    if not torch.compiler.is_compiling():  # PyTorch refuses them in other words
        check_numbers("spatial_shapes", shapes)
        check_numbers("level_start_index", starts)
    return value, shapes, starts, locations, weights, num_points, method


def check_tensors(*arrays):
    """OperatorError for value, locations or weights that are no tensors."""
    for name, array in zip(INPUTS, arrays, strict=True):
        if not isinstance(array, torch.Tensor):
            raise OperatorError(
                f"{name} is a {type(array).__name__}; numba_deform.torch takes PyTorch's tensors, and "
                "numba_deform.ms_deform_attn arrays of any library")  # fmt: skip


def check_places(*tensors):
    """OperatorError for value, locations, weights and grad_out on several devices, or of a sparse layout."""
    for name, tensor in zip((*INPUTS, "grad_out"), tensors, strict=False):
        if tensor.device != tensors[0].device:
            raise OperatorError(f"value is on {tensors[0].device} but {name} on {tensor.device}")
        kind = "nested" if tensor.is_nested else "quantized" if tensor.is_quantized else str(tensor.layout)[6:]
        if kind != "strided":
            raise OperatorError(f"{name} is {kind}; it must be strided (dense)")


def is_plain(*tensors):
    """Whether these are tensors as they lie in memory, and nobody but autograd wants to see a call of them: no
    subclass, autocast, mode or transformation of PyTorch. Such a call may leave out the dispatcher, which costs
    as much as the launch."""
    for tensor in tensors:
        if type(tensor) not in PLAIN or tensor.is_neg():
            return False
    return not (
        is_autocast_enabled()  # of CUDA; by its name takes twice as long
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or peek_interpreter_stack() is not None
        or _is_tracing()
        or forward_ad._current_level >= 0
    )


def points_of(num_points):
    """A tuple: the points of each level."""
    try:
        points = tuple(map(operator.index, num_points))
    except TypeError:
        raise OperatorError(f"num_points={num_points!r}: it is an integer for each level") from None
    if not all(1 <= count < LIMIT for count in points):
        raise OperatorError(f"num_points={list(points)}: they are at least 1, and less than 2^31")
    return points


# --- the numbers of levels -------------------------------------------------------------------------
def level_numbers(shapes, starts, follow):
    """Flat tuples of both, which may be tensors or lists; ``follow`` gives the starts of levels that follow one
    another, where ``starts`` is None."""
    shapes = numbers("spatial_shapes", shapes)
    return shapes, follow(shapes) if starts is None else numbers("level_start_index", starts)


def numbers(name, index):
    """A flat tuple of what is in an index tensor, or in a list."""
    return numbers_of(name, index) if isinstance(index, torch.Tensor) else numbers_from(name, index)


def numbers_from(name, nested):
    """A flat tuple of the numbers of a list: of ``spatial_shapes``, pairs, or of ``level_start_index``."""
    if type(nested) is not list and hasattr(nested, "tolist"):
        nested = nested.tolist()
    try:
        if name == "level_start_index":
            return tuple(nested)
        return tuple([number for height, width in nested for number in (height, width)])
    except (TypeError, ValueError):
        rule = "a number" if name == "level_start_index" else "a height and a width"
        raise OperatorError(f"{name}={nested!r}: it is {rule} for each level") from None


def starts_of(shapes):
    """Where each level starts, for the flat shapes, if levels follow one another."""
    return (0, *itertools.accumulate(map(operator.mul, shapes[::2], shapes[1::2])))[:-1]


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
            "this tensor before the capture, or give the numbers as a list")  # fmt: skip
    _check_index(name, index)
    if index.is_meta:
        raise OperatorError(f"{name} is on the device meta, where it has no numbers")
    numbers = tuple(index.flatten().tolist())
    if is_kept:
        key = id(index)
        forget = weakref.ref(index, lambda _: _known.pop(key, None))
        _known[key] = forget, index._version, numbers
    return numbers


def _check_index(name, tensor):
    if tensor.layout is not torch.strided or tensor.is_nested:
        raise OperatorError(f"{name} is {'nested' if tensor.is_nested else str(tensor.layout)[6:]}; it must be "
                            "strided (dense)")  # fmt: skip
    if tensor.dtype not in (torch.int64, torch.int32):
        raise OperatorError(f"{name} has dtype {str(tensor.dtype)[6:]}; it must be one of int64, int32")
    rank, letters = RANKS[name]
    if tensor.ndim != rank or tensor.shape[1:] not in ((), (2,)):
        raise OperatorError(f"{name} has shape {tuple(tensor.shape)}; it is {letters}")


def as_tensors(shapes, starts):
    """Both as tensors, where one is."""
    shapes = shapes if isinstance(shapes, torch.Tensor) else torch.tensor(shapes)
    if starts is None:
        sizes = shapes.prod(1)
        return shapes, sizes.cumsum(0) - sizes
    return shapes, starts if isinstance(starts, torch.Tensor) else torch.tensor(starts)


def as_index(name, numbers):
    """An index tensor as it is, or a flat list of its numbers as the NumPy array that ``check_arguments``
    takes; ``name`` is that of the argument."""
    if isinstance(numbers, torch.Tensor):
        return numbers
    check_numbers(name, numbers)
    array = np.array(numbers, np.int64)
    return array if name == "level_start_index" else array.reshape(-1, 2)


def check_numbers(name, numbers):
    """OperatorError for a flat list that no index tensor could be made of."""
    if not all(isinstance(number, (int, np.integer, torch.SymInt)) for number in numbers):
        raise OperatorError(f"{name}={list(numbers)}: they are integers")
    if any(isinstance(number, int) and not -INT64 <= number < INT64 for number in numbers):
        raise OperatorError(f"{name}={list(numbers)}: they must fit into 64 bits")
    if name == "spatial_shapes" and len(numbers) % 2:
        raise OperatorError(f"{name}={list(numbers)}: it is a height and a width for each level")
