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
                near = _neighbours(locations[of_head].astype(np.float64), shapes, starts, padded, S)
                weight = weights[of_head].astype(np.float64)[..., None]
                with np.errstate(invalid="ignore", over="ignore"):  # 0 * inf is NaN, as on a GPU
                    factor = _flat(np.where(near.real, weight * near.share, 0.0))
                    total = np.matmul(factor[:, None, :], table[_flat(near.position)])  # (R, 1, K) @ (R, K, C)
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


def reference_gradients(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, grad_out
):
    """Exact gradients, float64, of value, sampling locations and attention weights, in the shapes of these.

    Arguments are those of :func:`reference`, without a border; grad_out (B, Q, H*C). Where a location lies on a
    pixel's centre line its gradient has two sides, and the one towards larger coordinates is taken."""
    value, locations, weights = map(np.asarray, (value, sampling_locations, attention_weights))
    shapes, starts = (np.asarray(index, np.int64) for index in (spatial_shapes, level_start_index))
    _check(value, shapes, starts, locations, weights, False)
    B, S, H, C = value.shape
    given = np.asarray(grad_out, np.float64).reshape(B, -1, H, C)
    of_value, of_locations = np.zeros((B, S + 1, H, C)), np.zeros(locations.shape)
    of_weights = np.zeros(weights.shape)
    size = shapes[:, None, ::-1]  # (L, 1, 2): what x and y are multiplied by
    for b, h in np.ndindex(B, H):
        near = _neighbours(locations[b, :, h].astype(np.float64), shapes, starts, False, S)
        table = np.vstack([value[b, :, h].astype(np.float64), np.zeros((1, C))])
        dots = np.einsum("qlpkc,qc->qlpk", table[near.position], given[b, :, h])
        weight = np.where(near.real.any(-1), weights[b, :, h].astype(np.float64), 0.0)
        of_weights[b, :, h] = (near.share * dots).sum(-1)
        slopes = np.stack([(slope * dots).sum(-1) for slope in near.slopes], -1)
        of_locations[b, :, h] = size * weight[..., None] * slopes
        shares = (weight[..., None] * near.share)[..., None] * given[b, :, h][:, None, None, None, :]
        np.add.at(of_value[b, :, h], near.position, shares)
    return of_value[:, :S], of_locations, of_weights


@dataclass(frozen=True, eq=False)
class _Neighbours:
    """The four neighbours of samples, arrays of shape (R, L, P, 4), upper left, upper right, lower left, lower
    right: position along S, whether it is there at all, bilinear share (0 if not), and how that grows with x
    and with y (in pixels)."""

    position: np.ndarray
    real: np.ndarray
    share: np.ndarray
    slopes: tuple


def _flat(array):
    return array.reshape(len(array), -1)


def _neighbours(locations, shapes, starts, padded, nowhere):
    """:class:`_Neighbours` of the samples at ``locations`` (R, L, P, 2) float64; those that are not there have
    the position ``nowhere``."""
    height, width = shapes[:, 0, None], shapes[:, 1, None]  # (L, 1) beside (R, L, P)
    border = 1 if padded else 0
    start, pitch = starts[:, None], width + 2 * border
    with np.errstate(invalid="ignore", over="ignore"):  # NaN and inf compare as outside
        x = locations[..., 0] * width - 0.5
        y = locations[..., 1] * height - 0.5
        near = (x > -1) & (x < width) & (y > -1) & (y < height)
        x, y = (np.where(near, numbers, 0.0) for numbers in (x, y))
    left, top = np.floor(x), np.floor(y)
    to_right, to_bottom = x - left, y - top
    left, top = left.astype(np.int64), top.astype(np.int64)
    parts = []
    for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
        row, column = top + dy, left + dx
        across, down = to_right if dx else 1 - to_right, to_bottom if dy else 1 - to_bottom
        real = near & (row >= 0) & (row < height) & (column >= 0) & (column < width)
        position = np.where(real, start + (row + border) * pitch + column + border, nowhere)
        slopes = down if dx else -down, across if dy else -across
        parts.append((position, real, *(np.where(real, n, 0.0) for n in (across * down, *slopes))))
    position, real, share, by_x, by_y = (np.stack(part, -1) for part in zip(*parts, strict=True))
    return _Neighbours(position, real, share, (by_x, by_y))


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
