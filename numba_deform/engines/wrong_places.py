"""Where an output of a Launch is wrong, who wrote that, and what stands there: facts, and no guesses.

What an output holds is compared with the right numbers in other places and with terms of sums. It is said only
where as many numbers fit that chance would hardly do it (``CHANCE``), and how many of the wrong ones fit.
"""

import itertools
import math
from dataclasses import dataclass, field

import numpy as np

from .tensormap import TensorMapArray
from .waiting import ranges
from .wrong_values import kinds

MARKS = ".+#o"  # of a cell of the picture: right, some wrong, all wrong, all as before the run
COLOURS = {".": "#DDDDDD", "+": "#E69F00", "#": "#D55E00", "o": "#56B4E9"}
WORDS = {".": "right", "+": "some wrong", "#": "wrong", "o": "never written"}
ROWS, COLUMNS, CELL = 32, 64, 8  # of the picture at most; pixels of a cell
PATTERN = 12  # different lines of a picture that may have one
SOME = 6  # tiles that are named


@dataclass(frozen=True, eq=False)
class Difference:
    """What is wrong with one output.

    wrong, unwritten  flags in its shape: what is not as expected; what nobody has written
    where             the rows, columns and tiles, in words
    writers           who wrote the wrong elements last, in words; "" where that is not known
    holds             sentences on what stands there"""

    name: str
    wrong: np.ndarray = field(repr=False)
    unwritten: np.ndarray = field(repr=False)
    where: str
    writers: str
    holds: tuple

    def lines(self):
        """(label, text) for a report; the picture is its last lines."""
        told = [("where", self.where), ("wrote", self.writers), *(("holds", text) for text in self.holds)]
        told, first, rows = [pair for pair in told if pair[1]], 0, self.map()
        step = -(-len(_flat(self.wrong)) // ROWS)
        if (count := len(set(rows))) > PATTERN:
            return [*told, ("map", f"no pattern, {count} different lines; save('wrong.svg') draws them")]
        for row, alike in itertools.groupby(rows):
            last = first + len(list(alike))
            numbers = f"{first * step}-{min(last * step, len(_flat(self.wrong))) - 1}"
            told.append(("" if first else "map", f"{row}  {numbers}"))
            first = last
        return told

    def map(self):
        """The picture as text: a line for a row or several, with ``MARKS``."""
        wrong, never = (_cells(_flat(flags)) for flags in (self.wrong, self.unwritten & self.wrong))
        levels = (wrong > 0).astype(int) + (wrong == 1) + ((wrong == 1) & (never == 1))
        return ["".join(MARKS[level] for level in row) for row in levels]

    def svg(self):
        """The same as a picture."""
        rows = self.map()
        width, height = CELL * max(len(rows[0]), 36), CELL * (len(rows) + 5)
        parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
                 f'font-family="sans-serif" font-size="{CELL}">'
                 f'<text y="{CELL}">{self.name}: {np.count_nonzero(self.wrong):,} of {self.wrong.size:,} '
                 f"wrong</text>"]  # fmt: skip
        for y, row in enumerate(rows, 2):
            parts += [f'<rect x="{CELL * x}" y="{CELL * y}" width="{CELL}" height="{CELL}" '
                      f'fill="{COLOURS[mark]}" stroke="white"/>' for x, mark in enumerate(row)]  # fmt: skip
        for number, (mark, word) in enumerate(WORDS.items()):
            x, y = 9 * CELL * number, height - CELL
            parts.append(f'<rect x="{x}" y="{y - CELL}" width="{CELL}" height="{CELL}" fill="{COLOURS[mark]}"/>'
                         f'<text x="{x + 1.3 * CELL}" y="{y}">{word}</text>')  # fmt: skip
        return "\n".join([*parts, "</svg>"])

    _repr_svg_ = svg


def difference(launch, name, wrong, unwritten, writer_of=None):
    """The :class:`Difference` of one output of a Launch, whose elements ``wrong`` are off and ``unwritten``
    hold what they were poisoned with. ``writer_of(address)`` is (block, thread, line) of its last writer, or
    None."""
    out, right = launch.outputs[name], launch.expected[name]
    box = tile_of(launch, out)
    holds = kinds(launch, name, wrong & ~unwritten, box)
    if unwritten.any():
        holds = (*holds, f"{np.count_nonzero(unwritten):,} were written by nobody: {_places(unwritten)}")
    writers = _writers(out, wrong & ~unwritten, writer_of) if writer_of else ""
    where = _places(wrong) + (_tiles(wrong, box) if box else "")
    return Difference(name, wrong, unwritten, where if right.ndim else "", writers, holds)


def tile_of(launch, out):
    """The shape of a box of the launch's tensor maps of arrays that are like the output; None without one."""
    maps = [m for arg in launch.args if isinstance(arg, TensorMapArray) for m in arg if m.mode == "tile"]
    same = [m for m in maps if m.array is out] or [m for m in maps if m.dims[::-1] == out.shape]
    boxes = {m.box_shape[::-1] for m in same}
    box = boxes.pop() if len(boxes) == 1 else None
    return box if box and box != out.shape else None


def _places(wrong):
    """The rows and columns of flags, in words."""
    names = {1: ("elements",), 2: ("rows", "columns")}.get(wrong.ndim)
    names = names or tuple(f"index {axis}:" for axis in range(wrong.ndim))
    found = [np.flatnonzero(wrong.any(tuple(a for a in range(wrong.ndim) if a != axis)))
             for axis in range(wrong.ndim)]  # fmt: skip
    parts = [f"{name} {_numbers(indices, size)}"
             for name, indices, size in zip(names, found, wrong.shape, strict=True)]  # fmt: skip
    whole, count = math.prod(map(len, found)), np.count_nonzero(wrong)
    return ", ".join(parts) + ("" if whole == count else f"; {count:,} of the {whole:,} elements there")


def _numbers(indices, size):
    """Numbers below ``size`` in words: ranges, or what they leave when divided by a power of two."""
    if len(indices) == size:
        return f"0-{size - 1} (all)" if size > 1 else "0 (all)"
    missing = np.setdiff1d(np.arange(1, size - 1), indices)
    if len(missing) == 1 == size - len(indices):
        return f"0-{size - 1} except {missing[0]}"
    for period in (2, 4, 8, 16, 32, 64, 128):
        rests = np.unique(indices % period)
        if len(rests) < period and len(indices) == np.isin(np.arange(size) % period, rests).sum() > len(rests):
            return f"that leave {_ranges(rests)} when divided by {period}"
    return _ranges(indices)


def _ranges(numbers):
    return ranges(numbers.tolist(), "").lstrip("s ")


def _tiles(wrong, box):
    """Which tiles have wrong elements, in words; nothing where all have."""
    numbers = [np.arange(size) // step for size, step in zip(wrong.shape, box, strict=True)]
    index = np.meshgrid(*numbers, indexing="ij")
    flat = np.ravel_multi_index(index, [n[-1] + 1 for n in numbers])
    sizes = np.bincount(flat.ravel())
    counts = np.bincount(flat.ravel(), wrong.ravel(), len(sizes)).astype(int)
    bad = np.flatnonzero(counts)
    if len(bad) == len(sizes):
        return ""
    shape = [int(n[-1]) + 1 for n in numbers]
    single = sum(n > 1 for n in shape) <= 1  # tiles in one row have one number
    named = [str(t) if single else str(tuple(map(int, np.unravel_index(t, shape)))) for t in bad[:SOME]]
    more = f" and {len(bad) - SOME} more" if len(bad) > SOME else ""
    whole = "all of" if (counts[bad] == sizes[bad]).all() else "in"
    size = " x ".join(map(str, box))
    return f"; {whole} tile{'s' * (len(bad) > 1)} {', '.join(named)}{more} of {len(sizes)} ({size})"


def _writers(out, wrong, writer_of):
    """Who wrote the wrong elements, in words, where that tells them from the right ones."""
    base, strides = out.__array_interface__["data"][0], out.strides
    places = np.argwhere(np.ones(out.shape, bool))
    if not wrong.any() or len(places) > 1 << 16:
        return ""
    flags = wrong.ravel().tolist()
    found = [writer_of(base + int(place @ strides)) for place in places]
    bad = [writer for writer, flag in zip(found, flags, strict=True) if flag]
    good = [writer for writer, flag in zip(found, flags, strict=True) if not flag and writer]
    if None in bad:
        return ""
    lines = dict.fromkeys(line for _, _, line in bad)
    told = []
    axes = (("block", lambda w: w[0]), ("warp", lambda w: w[1] // 32), ("lane", lambda w: w[1] % 32))
    for noun, part in axes:
        mine, others = {part(w) for w in bad}, {part(w) for w in good}
        if good and mine != others and not others <= mine:
            only = "" if mine & others else ", which wrote nothing that is right"
            told.append(ranges(sorted(mine), noun) + only)
    if len(lines) <= 2:
        told.append(f"at {' and '.join(lines)}")
    return "; ".join(told)


def _flat(flags):
    """In two dimensions, the last of them the columns."""
    return np.atleast_2d(flags).reshape(-1, flags.shape[-1] if flags.ndim else 1)


def _cells(flags):
    """The share of flags that are set in each cell of a picture of at most ROWS x COLUMNS."""
    for axis, most in ((0, ROWS), (1, COLUMNS)):
        step = -(-flags.shape[axis] // most)
        starts = np.arange(0, flags.shape[axis], step)
        sizes = np.minimum(flags.shape[axis] - starts, step)
        flags = np.add.reduceat(flags.astype(float), starts, axis) / np.expand_dims(sizes, 1 - axis)
    return flags
