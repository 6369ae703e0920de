"""A picture as the operator's input, so that a wrong kernel can be seen.

The picture becomes a feature pyramid whose first three channels are its own red, green and blue.
Each query looks around its own pixel, so the output's first three channels are the picture again,
slightly blurred: a wrong tile, a swapped axis or a stale stage shows as blocks, streaks or noise.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..kernels.problem import NUMPY_DTYPES, level_sizes, pixel_centres
from .workload import Inputs, Workload, WorkloadError, halved, head_directions, softmax

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
        level counts most and the picture stays sharp."""
        H, L, P = self.num_heads, self.num_levels, self.num_points
        value_dtype = NUMPY_DTYPES[self.dtype]
        value = np.empty((1, self.spatial_size, H, self.channels), value_dtype)
        with _import_pillow().open(_default_picture() if self.image is None else self.image) as file:
            picture = file.convert("RGB")
        for (h, w), start in zip(self.levels, self.level_start_index, strict=True):
            level = _resize(picture, (h, w), self.levels[0])
            features = _features(level).reshape(h * w, NUM_FEATURES)
            for head in range(H):
                # Heads differ in all but the colours, so that mixing up heads changes the numbers.
                others = np.roll(features[:, 3:], head, axis=1)
                both = np.concatenate([features[:, :3], others], axis=1)[:, : self.channels]
                value[0, start : start + h * w, head] = both

        points = pixel_centres(self.levels if self.num_query == self.num_positions else [self.grid])
        rng = np.random.default_rng(seed)
        size = np.array(self.levels)[:, None, ::-1]  # (L, 1, 2) as (w, h)
        bias = 0.5 * np.arange(P)[:, None] * head_directions(H)[:, None, None]  # (H, 1, P, 2)
        offset = bias + rng.normal(0, self.sigma, (len(points), H, L, P, 2))
        locations = points[:, None, None, None] + offset / size
        logits = rng.normal(0, 0.5, (len(points), H, L, P))
        logits -= 1.5 * np.arange(L)[:, None] + 0.5 * np.arange(P)
        weights = softmax(logits.reshape(len(points), H, L * P)).reshape(logits.shape)
        locations = locations[None].astype(NUMPY_DTYPES[self.location_dtype])
        weights = weights[None].astype(value_dtype)
        return Inputs(value, self.spatial_shapes, self.level_start_index, locations, weights)


def picture_workload(
    image=None, size: tuple[int, int] = (96, 80), num_heads: int = 8, channels: int = 32, num_levels: int = 3,
    num_points: int = 4, queries: int | tuple[int, int] | None = None, dtype: str = "float16",
    sigma: float = 0.3, seed: int = 0) -> tuple[PictureWorkload, Inputs]:  # fmt: skip
    """A picture's workload and its inputs.

    image    path of any picture that Pillow reads; None: the portrait that matplotlib ships
    size     (h, w) of the finest level in pixels, to whose shape the picture is cut at its centre;
             each further level is half of it, rounded up
    queries  None: one for each pixel of all levels, as an encoder has them; (rows, columns): a grid over the
             finest level; an int: the largest grid of about its shape with at most so many queries
    sigma    spread of the offsets in pixels

    Raises ImportError naming the extra if Pillow or matplotlib is missing, WorkloadError for bad sizes.
    """
    levels = halved(size, num_levels)
    grid = levels[0] if queries is None else _grid(queries, levels[0])
    workload = PictureWorkload(
        "picture", 1, levels, math.prod(grid) if queries is not None else int(level_sizes(levels).sum()),
        num_heads, channels, num_points, dtype, sigma=sigma, grid=grid,
        outside=0.0,  # the edges of the picture yield more than enough
        image=None if image is None else str(image))  # fmt: skip
    return workload, workload.generate(seed)


def write_picture(path, out, workload: PictureWorkload) -> Path:
    """Write the operator's output (1, Q, H*C) as a PNG: colours of head 0 over the finest level.

    Each query becomes a square; the longer side is about 480 pixels. NaN is drawn in magenta.
    Raises ValueError where out does not have the workload's shape."""
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
    image = image_module.fromarray(pixels)
    path = Path(path)
    image.resize((columns * scale, rows * scale), image_module.Resampling.NEAREST).save(path, "PNG")
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


def _resize(picture, size, finest):
    """`picture` reduced to `size` (h, w), cut at its centre to the shape of `finest` (h, w)."""
    h, w = finest
    scale = min(picture.width / w, picture.height / h)
    left, top = (picture.width - scale * w) / 2, (picture.height - scale * h) / 2
    box = (left, top, left + scale * w, top + scale * h)
    return picture.resize(size[::-1], _import_pillow().Resampling.BOX, box=box)


def _features(image) -> np.ndarray:
    """(h, w, 32) of a Pillow image: colours, gradients, blurs, contrast, place; all in -1..1."""
    from PIL import ImageFilter

    def grey_of(planes):
        return planes.mean(axis=-1, keepdims=True)

    def filtered(name, number):
        return np.asarray(image.filter(getattr(ImageFilter, name)(number)), np.float64) / 255

    picture = np.asarray(image, np.float64) / 255
    grey = grey_of(picture)
    planes = [picture, grey, *_gradient(picture), np.hypot(*_gradient(grey))]
    for sigma in BLURS:
        soft = filtered("GaussianBlur", sigma)
        planes += [soft, *_gradient(grey_of(soft)), grey - grey_of(soft)]
    contrast = grey_of(filtered("MaxFilter", 3) - filtered("MinFilter", 3))
    y, x = np.mgrid[0 : image.height, 0 : image.width]
    place = np.stack([(y + 0.5) / image.height, (x + 0.5) / image.width], axis=-1)
    return np.concatenate([*planes, contrast, place], axis=-1)


def _gradient(planes):
    """Central differences along y and x; the edge is repeated, so 1-pixel levels work too."""
    wide = np.pad(planes, ((1, 1), (1, 1), (0, 0)), mode="edge")
    return (wide[2:, 1:-1] - wide[:-2, 1:-1]) / 2, (wide[1:-1, 2:] - wide[1:-1, :-2]) / 2


def _import_pillow():
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("pictures need Pillow: pip install pillow") from error
    return Image


def _default_picture() -> str:
    try:
        from matplotlib import cbook
    except ImportError as error:
        raise ImportError(
            "the default picture comes with matplotlib: pip install matplotlib, or give "
            "an image of your own"
        ) from error
    return cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)
