"""A picture as the operator's input, so that a wrong kernel can be seen.

The picture becomes a feature pyramid whose first three channels are its own red, green and blue.
Each query looks around its own pixel, so the output's first three channels are the picture again,
slightly blurred: a wrong tile, a swapped axis or a stale stage shows as blocks, streaks or noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..kernels.problem import NUMPY_DTYPES, pixel_centres
from .workload import Inputs, Workload, WorkloadError, softmax

BLURS = (1.0, 2.0, 4.0)  # sigma in pixels of the level
NUM_FEATURES = 32
NAN_COLOUR = (1.0, 0.0, 1.0)  # magenta is rare in photographs


@dataclass(frozen=True)
class PictureWorkload(Workload):
    """A workload whose `generate` reads a picture instead of drawing random values.

    image   path of the picture; None: the portrait that matplotlib ships
    grid    (rows, columns): the first rows * columns queries tile the finest level, row by row
    """

    image: str | None = None
    grid: tuple[int, int] = (1, 1)

    def __post_init__(self):
        super().__post_init__()
        rows, columns = self.grid
        if rows < 1 or columns < 1 or rows * columns > self.num_query:
            raise WorkloadError(
                f"grid={self.grid!r}: must be (rows, columns) of at most num_query={self.num_query}"
            )
        if not 3 <= self.channels <= NUM_FEATURES:
            raise WorkloadError(f"channels={self.channels}: must be 3 to {NUM_FEATURES}")
        if self.padded or self.points_per_level is not None or self.batch != 1:
            raise WorkloadError("a picture is one batch item, unpadded, without points_per_level")

    def generate(self, seed: int = 0) -> Inputs:
        """The picture's pyramid and the locations and weights around each query's own pixel.

        Offset of point p of head k: p * 0.5 pixels along angle 2 pi k / H, plus N(0, sigma)
        pixels of the level. Weights: softmax of N(0, 0.5) - 1.5 * level - 0.5 * p, so the finest
        level counts most and the picture stays sharp.
        """
        H, L, P = self.num_heads, self.num_levels, self.num_points
        value_dtype = NUMPY_DTYPES[self.dtype]
        value = np.empty((1, self.spatial_size, H, self.channels), value_dtype)
        finest = _load(self.image, self.levels[0])
        for (h, w), start in zip(self.levels, self.level_start_index, strict=True):
            features = _features(_resize(finest, (h, w))).reshape(h * w, NUM_FEATURES)
            for head in range(H):
                # Heads differ in all but the colours, so that mixing up heads changes the numbers.
                others = np.roll(features[:, 3:], head, axis=1)
                both = np.concatenate([features[:, :3], others], axis=1)[:, : self.channels]
                value[0, start : start + h * w, head] = both

        if self.num_query == self.num_positions:
            points = pixel_centres(self.levels)
        else:
            points = pixel_centres([self.grid])
        rng = np.random.default_rng(seed)
        size = np.array(self.levels)[:, None, ::-1]  # (L, 1, 2) as (w, h)
        angle = 2 * np.pi * np.arange(H) / H
        direction = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        bias = 0.5 * np.arange(P)[:, None] * direction[:, None, None, :]  # (H, 1, P, 2)
        offset = bias + rng.normal(0, self.sigma, (len(points), H, L, P, 2))
        locations = points[:, None, None, None] + offset / size
        logits = rng.normal(0, 0.5, (len(points), H, L, P))
        logits -= 1.5 * np.arange(L)[:, None] + 0.5 * np.arange(P)
        weights = softmax(logits.reshape(len(points), H, L * P)).reshape(logits.shape)
        return Inputs(
            value,
            self.spatial_shapes,
            self.level_start_index,
            locations[None].astype(NUMPY_DTYPES[self.location_dtype]),
            weights[None].astype(value_dtype),
        )


def picture_workload(
    image=None,
    size: tuple[int, int] = (96, 80),
    num_heads: int = 8,
    channels: int = 32,
    num_levels: int = 3,
    num_points: int = 4,
    queries: int | tuple[int, int] | None = None,
    dtype: str = "float16",
    sigma: float = 0.3,
    seed: int = 0,
) -> tuple[PictureWorkload, Inputs]:
    """A picture's workload and its inputs.

    image: a path, anything Pillow reads; None: the portrait of Grace Hopper that matplotlib ships.
    size: (h, w) of the finest level in pixels; each further level is half of it, rounded up. The
    picture is cropped at its centre to that shape.
    queries: None is an encoder's, one for each pixel of all levels; (rows, columns) is a grid over
    the finest level, small enough for the CPU engine if you want; an int is the largest grid of
    about the picture's shape with at most that many queries.
    sigma: spread of the offsets in pixels.

    Raises ImportError naming the extra if Pillow or matplotlib is missing, WorkloadError for bad
    sizes.
    """
    h, w = size
    levels = [(h, w)]
    while len(levels) < num_levels:
        h, w = levels[-1]
        levels.append(((h + 1) // 2, (w + 1) // 2))
    positions = sum(h * w for h, w in levels)
    grid = levels[0] if queries is None else _grid(queries, levels[0])
    workload = PictureWorkload(
        name="picture",
        batch=1,
        levels=tuple(levels),
        num_query=positions if queries is None else grid[0] * grid[1],
        num_heads=num_heads,
        channels=channels,
        num_points=num_points,
        dtype=dtype,
        sigma=sigma,
        outside=0.0,  # the edges of the picture yield more than enough
        image=None if image is None else str(image),
        grid=grid,
    )
    return workload, workload.generate(seed)


def write_picture(path, out, workload: PictureWorkload) -> Path:
    """Write the operator's output (1, Q, H*C) as a PNG: colours of head 0 over the finest level.

    Each query becomes a square; the longer side is about 480 pixels. NaN is drawn in magenta.
    Raises ValueError where out does not have the workload's shape.
    """
    image_module = _import_pillow()
    out = np.asarray(out).astype(np.float64)
    expected = (1, workload.num_query, workload.num_heads * workload.channels)
    if out.shape != expected:
        raise ValueError(f"out has shape {out.shape}; the workload's output is {expected}")
    rows, columns = workload.grid
    colours = out[0, : rows * columns, :3].reshape(rows, columns, 3)
    colours = np.where(np.isnan(colours).any(axis=-1, keepdims=True), NAN_COLOUR, colours)
    pixels = np.round(255 * np.clip(colours, 0, 1)).astype(np.uint8)
    scale = max(1, 480 // max(rows, columns))
    path = Path(path)
    image_module.fromarray(np.kron(pixels, np.ones((scale, scale, 1), np.uint8))).save(path, "PNG")
    return path


def _grid(queries, finest) -> tuple[int, int]:
    """(rows, columns) of the query grid; an int is the most queries it may have."""
    if not isinstance(queries, int):
        rows, columns = queries
        if rows < 1 or columns < 1:
            raise WorkloadError(f"queries={queries!r}: a grid has at least 1 row and 1 column")
        return int(rows), int(columns)
    h, w = finest
    rows = min(h, max(1, int((queries * h / w) ** 0.5)))
    return rows, min(w, max(1, queries // rows))


def _load(image, size) -> np.ndarray:
    """The picture cropped at its centre and reduced to size (h, w): (h, w, 3) in 0..1."""
    image_module = _import_pillow()
    with image_module.open(_default_picture() if image is None else image) as file:
        picture = file.convert("RGB")
    h, w = size
    scale = min(picture.width / w, picture.height / h)
    left, top = (picture.width - scale * w) / 2, (picture.height - scale * h) / 2
    box = (left, top, left + scale * w, top + scale * h)
    small = picture.resize((w, h), image_module.Resampling.BOX, box=box)
    return np.asarray(small, np.float64) / 255


def _resize(picture, size) -> np.ndarray:
    """Reduce (h, w, 3) to `size` by averaging the pixels under each new one."""
    for axis, new in enumerate(size):
        old = picture.shape[axis]
        edges = np.arange(new + 1) * old / new
        # Overlap of each old pixel with each new one: exact also where the ratio is not whole.
        low = np.maximum(edges[:-1, None], np.arange(old))
        high = np.minimum(edges[1:, None], np.arange(old) + 1)
        overlap = np.maximum(high - low, 0) * new / old
        picture = np.moveaxis(np.tensordot(overlap, picture, axes=(1, axis)), 0, axis)
    return picture


def _features(picture) -> np.ndarray:
    """(h, w, 3) -> (h, w, 32): colours, gradients, blurs, texture, place; all within -1..1."""
    grey = picture.mean(axis=-1, keepdims=True)
    dy, dx = _gradient(picture)
    planes = [picture, grey, dy, dx, np.hypot(*_gradient(grey))]
    for sigma in BLURS:
        soft = _blur(picture, sigma)
        soft_grey = soft.mean(axis=-1, keepdims=True)
        planes += [soft, *_gradient(soft_grey), grey - soft_grey]
    squares = _blur(grey**2, 1.0) - _blur(grey, 1.0) ** 2
    h, w = picture.shape[:2]
    y, x = np.mgrid[0:h, 0:w]
    place = np.stack([(y + 0.5) / h, (x + 0.5) / w], axis=-1)
    planes += [np.sqrt(np.maximum(squares, 0)), place]
    return np.concatenate(planes, axis=-1)


def _gradient(planes):
    """Central differences along y and x; the edge is repeated, so 1-pixel levels work too."""
    wide = np.pad(planes, ((1, 1), (1, 1), (0, 0)), mode="edge")
    return (wide[2:, 1:-1] - wide[:-2, 1:-1]) / 2, (wide[1:-1, 2:] - wide[1:-1, :-2]) / 2


def _blur(planes, sigma):
    """Gaussian blur of (h, w, n) along y and x, the edge repeated."""
    reach = int(3 * sigma)
    taps = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    taps /= taps.sum()
    for axis in (0, 1):
        width = [(reach, reach) if a == axis else (0, 0) for a in range(planes.ndim)]
        wide = np.pad(planes, width, mode="edge")
        views = np.lib.stride_tricks.sliding_window_view(wide, len(taps), axis=axis)
        planes = views @ taps
    return planes


def _import_pillow():
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pictures need Pillow: pip install 'numba-deform[plot]'") from error
    return Image


def _default_picture() -> str:
    try:
        from matplotlib import cbook
    except ImportError as error:
        raise ImportError(
            "the default picture comes with matplotlib: pip install 'numba-deform[plot]', or give "
            "an image of your own"
        ) from error
    return cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
