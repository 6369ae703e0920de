"""What a kernel found in shared memory, beside what plain loads find in ``value`` (S21).

A kernel built with debug=1 copies the tiles of one row to a buffer, just as it adds them up; a second,
simple kernel loads the same tiles straight from ``value``. Both run on either engine.
"""

from dataclasses import dataclass

import numpy as np

from ..engines.cpu import simulate
from ..engines.gpu.device import DeviceArray
from ..engines.gpu.launch import launch
from ..kernels import plain_tiles
from .call import gpu_launcher, run_cpu


@dataclass(frozen=True, eq=False)
class TileCheck:
    """One sample of a row: its level and point, the tile's corner (x, y) in pixels, and both tiles
    (2, 2, C), rows first."""

    row: int
    level: int
    point: int
    corner: tuple[int, int]
    delivered: np.ndarray
    plain: np.ndarray

    @property
    def match(self):
        """Whether every bit is the same."""
        return self.delivered.tobytes() == self.plain.tobytes()


class DebugError(ValueError):
    """A row that does not exist, or a kernel that was not built for debugging."""


def has_tiles(config):
    """Whether a kernel of that configuration copies its tiles: built with debug=1, and has single tiles."""
    return getattr(config, "debug", False) and hasattr(config, "box")


def check_tiles(plan, row, simulate_options=None):
    """:class:`TileCheck` of all L*P samples of ``row`` = (b * Q + q) * H + h.

    ``plan`` is a ``systems.Plan`` whose configuration has debug. Raises DebugError, and what the engines
    raise.
    """
    problem = plan.problem
    if not has_tiles(plan.config):
        raise DebugError(f"variant {plan.variant.name} was not built with debug=1, or has no tiles")
    if not 0 <= row < problem.rows:
        raise DebugError(f"row {row} does not exist: B*Q*H={problem.rows}")
    c, inputs = problem.constants, plan.inputs
    samples = c.levels * c.points
    arrays = plan.arrays
    shape = (samples, 2, 2, c.channels)
    delivered, plain = (np.full(shape, np.nan, inputs.value.dtype) for _ in range(2))
    corners = np.zeros((samples, 2), np.int32)
    if plan.gpu:
        delivered, plain, corners = _on_gpu(plan, arrays, row, delivered, plain, corners)
    else:
        _on_cpu(plan, arrays, row, delivered, plain, corners, simulate_options or {})
    return [
        TileCheck(
            row, k // c.points, k % c.points, tuple(map(int, corners[k])), delivered[k], plain[k]
        )
        for k in range(samples)
    ]


def _counts(problem, row):
    return row, problem.queries * problem.heads, problem.heads, problem.spatial_size


def _on_cpu(plan, arrays, row, delivered, plain, corners, options):
    problem = plan.problem
    out = np.full(problem.out_shape, np.nan, arrays[0].dtype)
    run_cpu(problem, plan.variant, plan.config, arrays, out, debug=(delivered, row), **options)
    value, locations, _ = arrays
    simulate(
        plain_tiles.build(problem.constants), 1, plain_tiles.THREADS,
        (value, problem.level_table, locations, plain, corners, *_counts(problem, row)),
    )  # fmt: skip


def _on_gpu(plan, arrays, row, *buffers):
    gpu, problem = plan.gpu, plan.problem
    value, locations, weights = (DeviceArray.of(gpu, a) for a in arrays)
    levels = DeviceArray.of(gpu, problem.level_table)
    out = DeviceArray(gpu, problem.out_shape, arrays[0].dtype)
    delivered, plain, corners = (DeviceArray.of(gpu, b) for b in buffers)
    gpu_launcher(
        gpu, problem, plan.variant, plan.config, value.address, locations.address, weights.address,
        out.address, debug=(delivered.address, row),
    )()  # fmt: skip
    arguments = (value, levels, locations, plain, corners, *_counts(problem, row))
    launch(gpu, plain_tiles.build(problem.constants), 1, arguments)
    return delivered.to_numpy(), plain.to_numpy(), corners.to_numpy()
