"""How the operator and its gradients run on DTensors: split by batch or by heads, without communication.

``torch.distributed`` is imported when the first DTensor comes, so it need not be there. Whoever calls
``torch.ops.numba_deform`` itself with DTensors, or compiled code alone, calls :func:`register` before.
"""

import functools
import math
import sys

from .operator import BACKWARD, BACKWARD_LISTS, FORWARD, FORWARD_LISTS


def mesh_of(*tensors):
    """The DeviceMesh of the first DTensor among the tensors; None without one."""
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())  # there is none without it
    return next((tensor.device_mesh for tensor in tensors if isinstance(tensor, kind)), None)


def placed_like(other, tensor):
    """The tensor, which is the same in every process, split as the DTensor ``other`` is; else as it is."""
    mesh = mesh_of(other)
    return tensor if mesh is None else _replicated(tensor, mesh).redistribute(mesh, other.placements)


def replicated_for(other, tensor):
    """The tensor, which is the same in every process, as a DTensor if ``other`` is one."""
    mesh = mesh_of(other)
    return tensor if mesh is None or mesh_of(tensor) is not None else _replicated(tensor, mesh)


def _replicated(tensor, mesh):
    from torch.distributed.tensor import DTensor, Replicate

    return DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)


def register_for(*tensors):
    """Tell DTensor how the operators may be split, once, if there is a DTensor among the tensors."""
    if mesh_of(*tensors) is not None:
        register()


@functools.cache
def register():
    """Tell DTensor how the operators may be split."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    for forward, backward in ((FORWARD, BACKWARD), (FORWARD_LISTS, BACKWARD_LISTS)):
        register_sharding(forward)(_forward)
        register_sharding(backward)(_backward)
    # DTensor remembers a call by its tensors, here also by what follows the first six: the gradients asked for.
    # It has no public word for that. Without it a call might get placements of one that asked for others.
    known = DTensor._op_dispatcher.sharding_propagator.op_to_schema_info
    known[BACKWARD].static_argnum = known[BACKWARD_LISTS].static_argnum = 6


def _forward(value, spatial_shapes, level_start_index, sampling_locations, attention_weights, *_, **__):
    """What ``register_sharding`` wants: placements of the output and of the inputs, for each way."""
    ways = _ways(value, sampling_locations, attention_weights)
    return [([way], _inputs(way, spatial_shapes, level_start_index)) for way in ways]


def _backward(
    grad_out, value, spatial_shapes, level_start_index, sampling_locations, attention_weights, num_points=None,
    method="default", of_value=True, of_locations=True, of_weights=True, deterministic=None,
):  # fmt: skip
    ways = _ways(value, sampling_locations, attention_weights, grad_out)
    wanted = of_value, of_locations, of_weights  # what is not is an empty tensor
    index = spatial_shapes, level_start_index
    return [([way if yes else ways[0] for yes in wanted], [way, *_inputs(way, *index)]) for way in ways]


def _inputs(way, *index):
    """Placements of value, of what tells shapes and starts if that is tensors, of locations and weights."""
    from torch.distributed.tensor import Replicate

    return [way, *(Replicate() for numbers in index if not isinstance(numbers, (list, tuple))), way, way]


def _ways(value, *others):
    """How the tensors of these specs may lie along one dimension of their mesh, the first way whole: also split
    by batch, dimension 0 of each of them, and by heads, dimension 2 (where the output has the channels of one
    head after another), if that leaves every process as many of them."""
    from torch.distributed.tensor import Replicate, Shard

    def processes(dim, dims):
        """How many a call may split ``dim`` over at most: wherever a tensor lies in none of the other ways."""
        free = [Replicate(), *(Shard(other) for other in dims if other != dim)]
        placements = zip(*(spec.placements for spec in (value, *others)), strict=True)
        is_split = [any(placement not in free for placement in found) for found in placements]
        return math.prod(value.mesh.size(i) for i, yes in enumerate(is_split) if yes)

    for dims in ((0, 2), (0,), (2,)):
        if all(value.shape[dim] % processes(dim, dims) == 0 for dim in dims):
            return [Replicate(), *map(Shard, dims)]
    return [Replicate()]
