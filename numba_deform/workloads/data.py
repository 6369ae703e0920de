"""Data directories: the operator's inputs as five headerless little-endian files.

    value.bin               float16  (B, S, H, C)
    spatial_shapes.bin      int64    (L, 2)             (h, w), without the border
    level_start_index.bin   int64    (L,)               in the layout of value.bin
    sampling_locations.bin  float16  (B, Q, H, L, P, 2) (x, y), normalised
    attention_weights.bin   float16  (B, Q, H, L, P)

The files do not hold their shapes, so the caller gives them, and every byte count is checked. Value
may be stored with a border of one zero pixel around every level; S tells which.
"""

from pathlib import Path

import numpy as np

from ..kernels.problem import interior_rows, level_sizes, level_starts
from .workload import Inputs

HALF, INT64 = np.dtype("<f2"), np.dtype("<i8")


class DataError(ValueError):
    """A data directory that cannot be read or written; the message names the file."""


def read_directory(
    path, batch: int, num_query: int, num_heads: int, channels: int, num_levels: int,
    num_points: int, spatial_size: int, padded: bool | None = None) -> Inputs:  # fmt: skip
    """The five files' arrays. spatial_size is S as stored; padded=None finds out from it.

    Raises DataError for a missing file, a wrong number of bytes, a spatial_size that
    spatial_shapes.bin contradicts, wrong level starts, or a border that is not zero."""
    path = Path(path)
    points = (batch, num_query, num_heads, num_levels, num_points)
    layout = {
        "spatial_shapes": (INT64, "L, 2", (num_levels, 2)),
        "level_start_index": (INT64, "L", (num_levels,)),
        "value": (HALF, "B, S, H, C", (batch, spatial_size, num_heads, channels)),
        "sampling_locations": (HALF, "B, Q, H, L, P, 2", (*points, 2)),
        "attention_weights": (HALF, "B, Q, H, L, P", points),
    }
    needed = [f"{name}.bin" for name in layout]
    if missing := [name for name in needed if not (path / name).is_file()]:
        raise DataError(f"{path}: no {', '.join(missing)}; it must hold all five of {', '.join(needed)}")

    arrays = {}
    for name, (dtype, letters, shape) in layout.items():
        arrays[name] = _read_file(path / f"{name}.bin", dtype, letters, shape)
        if name == "spatial_shapes":
            # Before value.bin: if spatial_size is wrong, this says so better than a byte count.
            padded = _find_padding(path, arrays[name], spatial_size, padded)

    shapes = arrays["spatial_shapes"]
    starts = level_starts(shapes, padded)
    if not np.array_equal(arrays["level_start_index"], starts):
        raise DataError(
            f"{path / 'level_start_index.bin'}: holds {arrays['level_start_index'].tolist()} but "
            f"levels {_text(shapes)}{' with padding' if padded else ''} start at {starts.tolist()}"
        )
    if padded:
        _check_border(path, arrays["value"], shapes)
    return Inputs(**arrays, padded=padded)


def write_directory(path, inputs: Inputs, convert: bool = False) -> None:
    """Write the five files, creating the directory.

    The format has float16 only: other dtypes raise DataError, unless convert=True rounds them, and
    even then if a finite number would become infinite. Nothing is written if anything is wrong."""
    path = Path(path)
    arrays = {k: getattr(inputs, k).astype(INT64) for k in ("spatial_shapes", "level_start_index")}
    for name in ("value", "sampling_locations", "attention_weights"):
        array = getattr(inputs, name)
        if array.dtype != np.float16:
            if not convert:
                raise DataError(
                    f"{path / name}.bin: the format stores float16 but {name} is {array.dtype}; "
                    "convert=True rounds it"
                )
            wide = array.astype(np.float32)  # holds float16 and bfloat16 exactly
            with np.errstate(over="ignore"):
                array = wide.astype(np.float16)
            if np.isinf(array[np.isfinite(wide)]).any():
                raise DataError(f"{path / name}.bin: {name} exceeds 65504, the largest float16")
        arrays[name] = array.astype(HALF, copy=False)

    path.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        array.tofile(path / f"{name}.bin")


def _read_file(path, dtype, letters, shape) -> np.ndarray:
    expected = dtype.itemsize * int(np.prod(shape, dtype=object))
    size = path.stat().st_size
    if size != expected:
        raise DataError(
            f"{path}: expected {expected:,} bytes for ({letters}) = {shape} of {dtype.name}, found {size:,}; "
            "the files do not say their sizes: give those that they were written with, or the workload"
        )
    # astype: to the machine's own byte order, free where that is little-endian already.
    return np.fromfile(path, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _find_padding(path, shapes, spatial_size, padded) -> bool:
    """Which layout spatial_size means; DataError if neither, or not the one asked for."""
    file = path / "spatial_shapes.bin"
    if (shapes < 1).any():
        raise DataError(f"{file}: holds {shapes.tolist()}; every (h, w) must be at least 1")
    plain, grown = (int(level_sizes(shapes, p).sum()) for p in (False, True))
    if spatial_size not in (plain, grown):
        raise DataError(
            f"{file}: spatial_shapes says {plain} positions, or {grown} with one pixel of padding "
            f"({_text(shapes)}), but spatial_size={spatial_size}"
        )
    has_border = spatial_size == grown
    if padded is None or bool(padded) == has_border:
        return has_border
    asked = f"{grown} positions with one pixel of padding" if padded else f"{plain} positions"
    raise DataError(
        f"{file}: spatial_shapes says {asked} but spatial_size={spatial_size}; a data directory "
        f"{'with one pixel of' if has_border else 'without'} padding needs padded={has_border}"
    )


def _check_border(path, value, shapes):
    """Kernels fetch the border instead of testing for the edge, so it must really be zero."""
    border = np.ones(value.shape[1], bool)
    border[interior_rows(shapes, padded=True)] = False
    wrong = np.argwhere(value[:, border] != 0)
    if len(wrong):
        b, row, h, c = wrong[0]
        position = int(np.flatnonzero(border)[row])
        raise DataError(
            f"{path / 'value.bin'}: {len(wrong):,} elements of the border are not zero, "
            f"the first is value[{b}, {position}, {h}, {c}] = {value[b, position, h, c]}"
        )


def _text(shapes) -> str:
    return " ".join(f"{h}x{w}" for h, w in shapes)
