"""The shape of a launch, the same for both engines: grid, block and cluster, each in one to three
dimensions."""

import math

import numpy as np

from ..device.limits import CLUSTER_LIMIT, PORTABLE_CLUSTER
from . import faults


def shape_of(name, sizes):
    """(x, y, z) of a number or of up to three; ValueError, which calls it ``name``, for anything else."""
    shape = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if not 1 <= len(shape) <= 3 or not all(isinstance(n, (int, np.integer)) for n in shape):
        raise ValueError(f"{name}={sizes!r} must be an integer, or a tuple of up to three")
    return *map(int, shape), *(1,) * (3 - len(shape))


def cluster_of(grid, cluster, own=None):
    """(x, y, z) of ``cluster``; ``grid`` is a shape in blocks. None is what the kernel is compiled for, its
    ``own``, or else one block.

    BadLaunch for another one, for one that is too large, or of which the grid is no multiple (CUDA guide,
    thread block clusters).
    """
    shape = shape_of("cluster", own or 1 if cluster is None else cluster)
    size, what = math.prod(shape), ""
    if own and shape != own:
        fault = faults.BadLaunch(f"cluster={cluster}, and the kernel is compiled for clusters of {own}")
        fault.cure = "Leave cluster out: the kernel itself says it (__cluster_dims__ in CUDA C++)."
        raise fault
    if min(shape) < 1 or size > CLUSTER_LIMIT:
        what = f"cluster={cluster} has {size} blocks"
    elif any(blocks % n for blocks, n in zip(grid, shape, strict=True)):
        what = f"grid={grid} is no multiple of cluster={cluster or own}"
    if what:
        fault = faults.BadLaunch(what)
        fault.rule = f"A cluster has 1 to {CLUSTER_LIMIT} blocks (on Hopper; elsewhere to {PORTABLE_CLUSTER}), "
        fault.rule += "and the grid is a multiple of it in each dimension."
        fault.cure = "Make the grid larger, and have blocks past the end of the data do nothing; or use a "
        fault.cure += "smaller cluster."
        raise fault
    return shape


def clusters(grid, cluster):
    """The numbers of the blocks of each cluster, by rank; both are shapes. Blocks are numbered x first."""
    corners = (
        (x, y, z)
        for z in range(0, grid[2], cluster[2])
        for y in range(0, grid[1], cluster[1])
        for x in range(0, grid[0], cluster[0])
    )
    places = [(x, y, z) for z in range(cluster[2]) for y in range(cluster[1]) for x in range(cluster[0])]
    for x0, y0, z0 in corners:
        yield tuple(x0 + x + grid[0] * (y0 + y + grid[1] * (z0 + z)) for x, y, z in places)
