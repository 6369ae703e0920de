"""The oracle: multi-scale deformable attention in NumPy float64, written to be believed.

Zhu et al., "Deformable DETR", ICLR 2021, equation 3 (equation 2 is its single-scale form):

    out[b, q, h] = sum over l, p of weight[b, q, h, l, p] * bilinear(value[b, level l, h], location)

The bilinear sample is `grid_sample(2 * location - 1, mode="bilinear", padding_mode="zeros",
align_corners=False)` of PyTorch: pixel centres lie at (i + 0.5) / size, outside is zero.
"""

from dataclasses import dataclass

import numpy as np

# Largest relative_error of a right kernel. Rounding the result once costs up to 2^-11 (fp16) or
# 2^-8 (bf16) of each element, 2.1e-4 or 1.7e-3 over all; the rest is room for packed sums within a
# level. Coordinates rounded to fp16 land above 1e-2. For fp32 it is the coordinate x * W - 0.5 that
# decides: fp32 keeps it to 2^-17 pixel at W = 128 .. 256, 3e-6 to 5e-6 over the presets.
TOLERANCE = {"float16": 1e-3, "bfloat16": 4e-3, "float32": 1e-5}

# Gathered float64 elements held at once: 8 MB stays near the caches, which is what makes it fast.
_CHUNK_ELEMENTS = 1 << 20


def reference(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, padded=False, rows=None
) -> np.ndarray:
    """Exact output, float64: (B, Q, H*C), or (len(rows), H*C) for `rows` = flat indices b*Q + q.

    value (B, S, H, C); spatial_shapes (L, 2) as (h, w); level_start_index (L,);
    sampling_locations (B, Q, H, L, P, 2) as (x, y), normalised; attention_weights (B, Q, H, L, P).

    With (h, w) the level's shape, a sample is skipped unless -1 < x*w - 0.5 < w and
    -1 < y*h - 0.5 < h, so NaN and infinite locations contribute zero. A neighbour outside the level
    contributes zero, and nothing is read for it: NaN or inf elsewhere in value cannot leak in.
    padded=True: level l is stored as (h+2) x (w+2) positions with a border of one pixel, which is
    never read; level_start_index then counts padded positions.
    Raises ValueError where shapes do not fit together or rows leave 0 .. B*Q - 1."""
    value, locations, weights = map(np.asarray, (value, sampling_locations, attention_weights))
    shapes, starts = (np.asarray(index, np.int64) for index in (spatial_shapes, level_start_index))
    _check(value, shapes, starts, locations, weights, padded)
    B, S, H, C = value.shape
    Q, L, P = locations.shape[1], locations.shape[3], locations.shape[4]

    wanted = np.arange(B * Q) if rows is None else _checked_rows(rows, B * Q)
    batch, query = np.divmod(wanted, Q)
    out = np.empty((len(wanted), H * C))
    chunk = max(1, _CHUNK_ELEMENTS // (L * P * 4 * C))
    table = np.zeros((S + 1, C))  # row S stays zero: skipped neighbours point there
    for b in np.unique(batch):
        places = np.flatnonzero(batch == b)
        for h in range(H):
            table[:S] = value[b, :, h]
            for first in range(0, len(places), chunk):
                place = places[first : first + chunk]
                of_head = b, query[place], h
                index, factor = _neighbours(
                    locations[of_head].astype(np.float64), weights[of_head].astype(np.float64), shapes,
                    starts, border=1 if padded else 0, nowhere=S)  # fmt: skip
                with np.errstate(invalid="ignore", over="ignore"):  # 0 * inf is NaN, as on a GPU
                    total = np.matmul(factor[:, None, :], table[index])  # (R, 1, K) @ (R, K, C)
                out[place, h * C : (h + 1) * C] = total[:, 0]
    return out.reshape(B, Q, H * C) if rows is None else out


@dataclass(frozen=True, eq=False)
class Exact:
    """Exact rows of an output: `values` (len(rows), H*C) float64 of `rows` = flat indices b*Q + q."""

    rows: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, inputs, most=20_000):
        """All rows for a workload's inputs, or `most` random ones, always the same, where there are more."""
        i = inputs
        rows = np.arange(i.sampling_locations.shape[0] * i.sampling_locations.shape[1])
        if len(rows) > most:
            rows = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
        return cls(rows, reference(
            i.value, i.spatial_shapes, i.level_start_index, i.sampling_locations,
            i.attention_weights, padded=i.padded, rows=rows))  # fmt: skip

    def error(self, out) -> float:
        """`relative_error` of an output (B, Q, H*C) in these rows; NaN if any element of any row is NaN."""
        if np.isnan(out).any():
            return float("nan")
        return relative_error(out.reshape(-1, out.shape[-1])[self.rows], self.values)


def _neighbours(locations, weights, shapes, starts, border, nowhere):
    """What R queries of one head read: position along S and factor, both (R, L*P*4).

    locations (R, L, P, 2) and weights (R, L, P) in float64. Skipped neighbours get the position
    `nowhere` and the factor 0."""
    height, width = shapes[:, 0, None], shapes[:, 1, None]  # (L, 1) beside (R, L, P)
    start, pitch = starts[:, None], width + 2 * border
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf compare as outside
        x = locations[..., 0] * width - 0.5
        y = locations[..., 1] * height - 0.5
        near = (x > -1) & (x < width) & (y > -1) & (y < height)
        x, y, weights = (np.where(near, numbers, 0.0) for numbers in (x, y, weights))
        left, top = np.floor(x), np.floor(y)
        to_right, to_bottom = x - left, y - top
        left, top = left.astype(np.int64), top.astype(np.int64)

        index = np.empty((*near.shape, 4), np.int64)
        factor = np.empty((*near.shape, 4))
        for corner, (dy, dx) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
            row, column = top + dy, left + dx
            share = (to_bottom if dy else 1 - to_bottom) * (to_right if dx else 1 - to_right)
            real = near & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            position = start + (row + border) * pitch + column + border
            index[..., corner] = np.where(real, position, nowhere)
            factor[..., corner] = np.where(real, weights * share, 0.0)
    return index.reshape(len(index), -1), factor.reshape(len(factor), -1)


def _check(value, shapes, starts, locations, weights, padded):
    if value.ndim != 4:
        raise ValueError(f"value has shape {value.shape}; it must be (B, S, H, C)")
    B, S, H, _ = value.shape
    if shapes.ndim != 2 or shapes.shape[1] != 2 or starts.shape != shapes.shape[:1]:
        raise ValueError(
            f"spatial_shapes {shapes.shape} and level_start_index {starts.shape} must be (L, 2) and (L,)"
        )
    L = len(shapes)
    shape = locations.shape
    if len(shape) != 6 or (shape[0], shape[2], shape[3], shape[5]) != (B, H, L, 2):
        raise ValueError(f"sampling_locations has shape {shape}; it must be (B={B}, Q, H={H}, L={L}, P, 2)")
    if weights.shape != locations.shape[:-1]:
        raise ValueError(
            f"attention_weights has shape {weights.shape}; sampling_locations asks for {locations.shape[:-1]}"
        )
    grown = shapes + (2 if padded else 0)
    sizes = grown[:, 0] * grown[:, 1]
    if sizes.sum() != S:
        hint = "" if padded else "; a value with one pixel of padding needs padded=True"
        kind = "padded positions" if padded else "positions"
        raise ValueError(f"spatial_shapes says {sizes.sum()} {kind} but value has S={S}{hint}")
    if (starts < 0).any() or (starts + sizes > S).any():
        raise ValueError(
            f"level_start_index {starts.tolist()} with levels of {sizes.tolist()} positions leaves "
            f"value, which has S={S}"
        )


def _checked_rows(rows, count) -> np.ndarray:
    rows = np.asarray(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(f"rows must be a list of whole numbers, not {rows.dtype} {rows.shape}")
    rows = rows.astype(np.int64)
    if ((rows < 0) | (rows >= count)).any():
        raise ValueError(f"rows must lie in 0 .. {count - 1} (b*Q + q), not {rows.min()} .. {rows.max()}")
    return rows


def relative_error(out, ref) -> float:
    """||out - ref|| / ||ref|| over all elements in float64; ||out|| where ref is zero.

    NaN if any element of either is NaN, so `relative_error(...) < tolerance` is False for it.
    Raises ValueError where the shapes differ: broadcasting would compare the wrong elements."""
    out, ref = np.asarray(out), np.asarray(ref)
    if out.shape != ref.shape:
        raise ValueError(f"out has shape {out.shape} but ref has shape {ref.shape}")
    ref = ref.astype(np.float64, copy=False).ravel()
    with np.errstate(invalid="ignore"):
        difference = np.linalg.norm(out.astype(np.float64, copy=False).ravel() - ref)
        norm = np.linalg.norm(ref)
        return float(difference / norm) if norm != 0 else float(difference)
