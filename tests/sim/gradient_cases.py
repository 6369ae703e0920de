"""Small problems for the backward kernel, and what float64 says of them."""

from dataclasses import dataclass

import numpy as np

from numba_deform.attention.gradients import gradients
from numba_deform.attention.reference import reference_gradients
from numba_deform.kernels.problem import NUMPY_DTYPES
from numba_deform.workloads.workload import Workload

LIMITS = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}  # of the relative error


@dataclass(frozen=True, eq=False)
class Case:
    """The ``arguments`` of the operator, the gradient of its output (``given``), and its method.

    ``num_points`` are the points of each level where they differ: locations and weights then hold the samples
    of one level after another."""

    arguments: tuple
    given: np.ndarray
    num_points: tuple | None = None
    method: str = "default"

    def gradients(self, **options):
        """Those of the kernel on the CPU engine."""
        kind = {"num_points": self.num_points, "method": self.method}
        return gradients(*self.arguments, self.given, engine="cpu", **kind, **options)

    def exact(self):
        """Those of float64, from the reference for bilinear samples, as many in every level."""
        value, shapes, starts, locations, weights = self.arguments
        if self.num_points:
            used = _used(self.num_points)
            locations, weights = (_spread(array, used) for array in (locations, weights))
        discrete = self.method == "discrete"
        if discrete:
            locations = _pixel_centres(locations, shapes)
        found = reference_gradients(value, shapes, starts, locations, weights, self.given)
        of_value, of_locations, of_weights = found
        if discrete:
            of_locations = np.zeros_like(of_locations)
        if self.num_points:
            of_locations, of_weights = of_locations[:, :, :, used], of_weights[:, :, :, used]
        return of_value, of_locations, of_weights


def drawn(seed=1, num_points=3, method="default", **changes):
    """The :class:`Case` of a small problem, a fifth of whose samples lie outside. ``num_points`` is a tuple
    where levels have different numbers."""
    shape = dict(batch=2, levels=((5, 4), (2, 3), (1, 1)), num_query=3, num_heads=1, channels=32,
                 pattern="uniform", outside=0.2)  # fmt: skip
    uneven = num_points if isinstance(num_points, tuple) else None
    most = max(uneven) if uneven else num_points
    workload = Workload("small", **{**shape, **changes}, num_points=most, points_per_level=uneven)
    i = workload.generate(seed=seed)
    locations, weights = i.sampling_locations, i.attention_weights
    if uneven:
        used = _used(uneven)
        locations, weights = (np.ascontiguousarray(a[:, :, :, used]) for a in (locations, weights))
    out = (workload.batch, workload.num_query, workload.num_heads * workload.channels)
    given = np.random.default_rng(seed).standard_normal(out).astype(NUMPY_DTYPES[workload.dtype])
    return Case((i.value, i.spatial_shapes, i.level_start_index, locations, weights), given, uneven, method)


def _used(num_points):
    """(L, P): which of the points each level has."""
    return np.arange(max(num_points)) < np.array(num_points)[:, None]


def _spread(array, used):
    """Samples (B, Q, H, N, ..) at their levels and points (B, Q, H, L, P, ..), zeros for those that are not."""
    spread = np.zeros((*array.shape[:3], *used.shape, *array.shape[4:]), array.dtype)
    spread[:, :, :, used] = array
    return spread


def _pixel_centres(locations, shapes):
    """Where the pixels are that ``discrete`` samples take."""
    size = np.asarray(shapes)[:, None, ::-1]
    pixel = np.floor(locations.astype(np.float32) * size.astype(np.float32) + np.float32(0.5))
    return (np.clip(pixel, 0, size - 1) + 0.5) / size
