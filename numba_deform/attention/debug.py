"""What a kernel found in shared memory, beside what plain loads find in ``value``.

A kernel built with debug=1 copies the tiles of one row to a buffer, just as it adds them up; a second,
simple kernel loads the same tiles straight from ``value``. Both run on either engine.
"""

from dataclasses import dataclass

import numpy as np

from ..engines.cpu import simulate
from ..engines.gpu.device import DeviceArray
from ..engines.gpu.launch import launch
from ..kernels import plain_tiles


@dataclass(frozen=True, eq=False)
class TileCheck:
    """One sample of a row: level, point, corner (x, y) in pixels, and both tiles (2, 2, C), rows first."""

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


def check_tiles(bound, arrays, row, simulate_options=None):
    """:class:`TileCheck` of all L*P samples of ``row`` = (b * Q + q) * H + h.

    ``bound`` is a ``bind.Bound`` whose configuration has debug, ``arrays`` are contiguous value, locations and
    weights. Raises DebugError, and what the engines raise."""
    problem = bound.problem
    if not has_tiles(bound.config):
        raise DebugError(f"variant {bound.variant.name} was not built with debug=1, or has no tiles")
    if not 0 <= row < problem.rows:
        raise DebugError(f"row {row} does not exist: B*Q*H={problem.rows}")
    c = problem.constants
    samples = c.levels * c.points
    delivered, plain = (np.full((samples, 2, 2, c.channels), np.nan, arrays[0].dtype) for _ in range(2))
    corners = np.zeros((samples, 2), np.int32)
    bound.run(arrays, {"debug": delivered, "debug_row": row}, **(simulate_options or {}))
    _load_plainly(bound.gpu, problem, arrays, row, plain, corners)
    return [
        TileCheck(row, k // c.points, k % c.points, tuple(map(int, corners[k])), delivered[k], plain[k])
        for k in range(samples)
    ]


def _load_plainly(gpu, problem, arrays, row, plain, corners):
    """Fill ``plain`` and ``corners`` by the kernel plain_tiles."""
    kernel = plain_tiles.build(problem.constants)
    sources = (arrays[0], problem.level_table, arrays[1])
    counts = (row, problem.queries * problem.heads, problem.heads, problem.spatial_size)
    if not gpu:
        simulate(kernel, 1, plain_tiles.THREADS, (*sources, plain, corners, *counts))
        return
    copies = [DeviceArray.of(gpu, array) for array in (*sources, plain, corners)]
    launch(gpu, kernel, 1, (*copies, *counts))
    for array, copy in zip((plain, corners), copies[3:], strict=True):
        array[...] = copy.to_numpy()
