"""What stands where an output is wrong: the right numbers in other places, a multiple of them, zeros, or sums
that lack a term. Each is tried on all wrong elements; none is said that might fit by chance."""

import itertools
import math
from collections import Counter

import numpy as np

from .tensormap import TensorMapArray
from .tensormap.rules import SWIZZLE_SPANS

TURNS = {128: "(r % 8)", 64: "(r // 2 % 4)", 32: "(r // 4 % 2)"}  # that swizzle the chunks of a row r
CHANCE = 1e-9  # by how likely an accident it may fit, all places that are tried counted
MOST_TERMS = 64  # of a sum, that are tried together
SAMPLE = 48  # wrong elements that a shift is first looked for with
LARGEST = 1 << 22  # elements of an output up to which these are tried


class Values:
    """An output, with what was expected of it, as float64; ``wrong`` are the elements to explain."""

    def __init__(self, launch, name, wrong):
        self.out, self.right = (a.astype(np.float64) for a in (launch.outputs[name], launch.expected[name]))
        finite = self.right[np.isfinite(self.right)]
        self.room = max(launch.allowed(name), 1e-12) * (np.abs(finite).max(initial=0) or 1.0)
        self.wrong, self.count = wrong, np.count_nonzero(wrong)
        common = Counter(np.round(self.right[wrong] / (2 * self.room)).ravel().tolist()).most_common(1)
        self.likely = min(0.999, 2 * common[0][1] / self.count)  # how often two of the right numbers agree

    def agree(self, numbers, other=None):
        """Flags: where they are the output's, within its tolerance."""
        with np.errstate(invalid="ignore"):
            return np.abs((self.out if other is None else other) - numbers) <= self.room

    def is_sure(self, fitting, tried=1):
        """Whether so many wrong elements fit by no accident, and are most of them."""
        return 2 * fitting > self.count and fitting * math.log(self.likely) < math.log(CHANCE / tried)

    def share(self, fitting):
        """``all``, or how many of the wrong ones, for a sentence."""
        return "all" if fitting == self.count else f"{fitting:,} of the {self.count:,} wrong ones"


def kinds(launch, name, wrong, box):
    """A tuple of sentences on what the elements ``wrong`` of an output hold: of the first explanation that is
    sure. ``box`` is the shape of its tiles, or None."""
    out = launch.outputs[name]
    if not wrong.any() or out.dtype == bool or out.size > LARGEST:
        return ()
    values = Values(launch, name, wrong)
    for explain in (
        _constant, _swizzled, _transposed, _shifted, _multiple, _term, _terms, _scattered, _permuted,
    ):  # fmt: skip
        if said := explain(values, launch, box):
            return (said,)
    return ()


def _constant(values, launch, box):
    held = values.out[values.wrong]
    if (held == held[0]).all() and (held[0] == 0 or values.count > 8 and np.ptp(values.right) > 0):
        return "all are zero" if held[0] == 0 else f"all are {held[0]:g}"
    return ""


def _shifted(values, launch, box):
    """The right numbers of another place, at the same distance for all."""
    best = (0, 0, 0)
    for axis in range(values.right.ndim):
        for step in _steps(values, axis):
            fitting = np.count_nonzero(values.agree(_moved(values.right, axis, step))[values.wrong])
            best = max(best, (fitting, axis, step), key=lambda found: (found[0], -abs(found[2])))
    fitting, axis, step = best
    if not values.is_sure(fitting, sum(2 * n for n in values.right.shape)):
        return ""
    rank = values.right.ndim
    noun = ("row", "column")[axis] if rank == 2 else "element" if rank == 1 else f"step along index {axis}"
    far, side = _plural(abs(step), noun), "before" if step < 0 else "behind"
    if not box or step % box[axis]:
        return f"{values.share(fitting)} hold what belongs {far} {side} them"
    tiles, stages = abs(step) // box[axis], _stages(launch)
    lap = "; that is a lap of the ring of stages: what the stage held before" if tiles == stages else ""
    when = "late" if step < 0 else "early"
    return (f"{values.share(fitting)} hold what belongs {_plural(tiles, 'tile')} ({far}) {side} them: "
            f"{_plural(tiles, 'step')} {when}{lap}")  # fmt: skip


def _plural(count, noun):
    return f"{count} {noun}{'s' * (count != 1)}"


def _steps(values, axis):
    """Distances along an axis at which most of a sample of wrong elements find their number."""
    places = np.argwhere(values.wrong)
    places = places[np.linspace(0, len(places) - 1, min(SAMPLE, len(places))).astype(int)]
    votes, size = Counter(), values.right.shape[axis]
    for place in map(tuple, places):
        line = values.right[(*place[:axis], slice(None), *place[axis + 1 :])]
        found = np.flatnonzero(values.agree(line, values.out[place]))
        votes.update((found - place[axis]).tolist())
    votes.pop(0, None)
    return [step for step, count in votes.most_common(4) if abs(step) < size]


def _moved(right, axis, step):
    """At each place the number ``step`` behind it along the axis; NaN where there is none."""
    moved = np.full_like(right, np.nan)
    to = [slice(None)] * right.ndim
    of = list(to)
    to[axis] = slice(max(0, -step), min(right.shape[axis], right.shape[axis] - step))
    of[axis] = slice(max(0, step), min(right.shape[axis], right.shape[axis] + step))
    moved[tuple(to)] = right[tuple(of)]
    return moved


def _stages(launch):
    """The stages of the kernel's ring, if it has one."""
    layout = launch.kernel.shared
    found = {part.stages for part in layout.parts() if hasattr(part, "stages")} if layout else set()
    return found.pop() if len(found) == 1 else 0


def _transposed(values, launch, box):
    if values.right.ndim != 2:
        return ""
    rows, columns = values.right.shape
    if rows == columns and values.is_sure(fitting := _fitting(values, values.right.T)):
        return f"{values.share(fitting)} hold what belongs in the mirrored place: the matrix is transposed"
    sides = [box[0]] if box and box[0] == box[1] else []
    for side in (*sides, 8, 16):  # 8 x 8 is what ldmatrix and stmatrix may transpose
        if rows % side or columns % side or values.count < side:
            continue
        tiles = values.right.reshape(rows // side, side, columns // side, side).transpose(0, 3, 2, 1)
        fitting = _fitting(values, tiles.reshape(rows, columns))
        if values.is_sure(fitting, 4):
            place = f"the mirrored place of their {side} x {side} tile"
            return f"{values.share(fitting)} hold what belongs in {place}"
    return ""


def _swizzled(values, launch, box):
    """The 16-byte chunks of rows in the order of a swizzle that only one side has applied."""
    if values.right.ndim != 2:
        return ""
    rows, columns = values.right.shape
    arrays = [m.array for a in launch.args if isinstance(a, TensorMapArray) for m in a if m.array is not None]
    for itemsize in {array.itemsize for array in arrays} | {next(iter(launch.outputs.values())).itemsize}:
        for name, span in SWIZZLE_SPANS.items():
            width = 16 // itemsize
            if columns * itemsize % span or not width:
                continue
            row, column = np.indices((rows, columns), sparse=True)
            turn = row * span // 128 & span // 16 - 1  # rows of 128 bytes have the pattern's number
            fitting = _fitting(values, values.right[row, column ^ turn * width])
            if values.is_sure(fitting, 6):
                return (f"{values.share(fitting)} hold what belongs in chunk c ^ {TURNS[span]} of their row r, "
                        f"c being their own 16-byte chunk: a swizzle of {name}, on one side alone")  # fmt: skip
    return ""


def _fitting(values, moved):
    return np.count_nonzero(values.agree(moved)[values.wrong])


def _multiple(values, launch, box):
    """A factor: one for all, or one for each row."""
    sizes = np.where(values.wrong & np.isfinite(values.right), np.abs(values.right), 0)
    if not sizes.any():
        return ""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = values.out / values.right
    factor = float(ratio.ravel()[sizes.argmax()])
    fitting = _fitting(values, factor * values.right)
    if fitting > 8 and values.is_sure(fitting - 1):  # the factor comes from one of them
        return f"{values.share(fitting)} are {factor:.6g} times the right numbers"
    if ratio.ndim != 2 or ratio.shape[1] < 4:
        return ""
    rows = values.wrong.any(1)
    factors = np.take_along_axis(ratio, sizes.argmax(1)[:, None], 1)
    if _fitting(values, factors * values.right) == values.count and values.is_sure(values.count - rows.sum()):
        low, high = factors[rows].min(), factors[rows].max()
        return f"each row is the right one times a factor of its own, from {low:.6g} to {high:.6g}"
    return ""


def _term(values, launch, box):
    """Sums that lack one row, tile or step of an input, or have it twice."""
    off = values.right - values.out
    terms = [*_sums(launch, values.right.shape), *_products(launch, values.right.shape)]
    for what, term in terms:
        for sign, verb in ((1, "lack"), (-1, "have once more")):
            fitting = np.count_nonzero((np.abs(sign * term - off) <= values.room)[values.wrong])
            if fitting == values.count and values.is_sure(fitting, 2 * len(terms)):
                return f"all {verb} the term of {what}"
    return ""


def _terms(values, launch, box):
    """Products that lack several of their steps along k, or have several twice."""
    off = (values.right - values.out)[values.wrong]
    some = np.linspace(0, len(off) - 1, min(len(off), 4096)).astype(int)
    for product, terms in _steps_of_products(values, launch).items():
        terms = [(step, term[values.wrong]) for step, term in terms]
        if len(off) < 8 * len(terms) or not np.isfinite(off).all():
            continue
        factors = np.linalg.lstsq(np.stack([term[some] for _, term in terms], 1), off[some], rcond=None)[0]
        factors = np.rint(factors)
        fitting = np.count_nonzero(np.abs(sum(f * t for f, (_, t) in zip(factors, terms, strict=True)) - off)
                                   <= values.room)  # fmt: skip
        if np.abs(factors).max() == 1 and values.is_sure(fitting, 3 ** len(terms)):
            told = [(verb, [step for f, (step, _) in zip(factors, terms, strict=True) if f == sign])
                    for sign, verb in ((1, "lack"), (-1, "have once more"))]  # fmt: skip
            said = [f"{verb} the terms of k = {', '.join(steps)}" for verb, steps in told if steps]
            return f"{values.share(fitting)} {' and '.join(said)} of {product}"
    return ""


def _steps_of_products(values, launch):
    """{product, in words: its [(step along k, term)]}."""
    groups = {}
    for what, term in itertools.islice(_products(launch, values.right.shape), MOST_TERMS):
        step, _, product = what.removeprefix("k = ").partition(" of ")
        groups.setdefault(product, []).append((step, term))
    return groups


def _scattered(values, launch, box):
    """Products of which some steps along k are right, and the others stand in another order."""
    for product, terms in _steps_of_products(values, launch).items():
        whole, count = sum(term for _, term in terms), len(terms)
        if len(np.unique(values.right)) < 8 or not values.agree(whole, values.right).all():
            continue
        for some in (*map(range, range(1, count)), range(0, count, 2)):
            others = [n for n in range(count) if n not in some]
            part = sum(terms[n][1] for n in some)
            for right, kept, moved in ((part, some, others), (whole - part, others, some)):
                rest, there = values.out - right, whole - right
                if abs(rest.sum() - there.sum()) > values.room * rest.size:
                    continue  # they differ in any order
                if (np.abs(np.sort(rest, None) - np.sort(there, None)) <= values.room).all():
                    told = [", ".join(terms[n][0] for n in numbers) for numbers in (moved, kept)]
                    return (f"the terms of k = {told[0]} of {product} are there in another order, those of "
                            f"k = {told[1]} are right")  # fmt: skip
    return ""


def _matrices(launch):
    """{parameter: matrix of float64} of the inputs, also behind tensor maps, with the depth of a box."""
    found = {}
    for parameter, arg in zip(launch.kernel.parameters, launch.args, strict=True):
        steps = ()
        if isinstance(arg, TensorMapArray) and len(arg) == 1 and arg[0].mode == "tile":
            arg, steps = arg[0].array, arg[0].box_shape[::-1]
        outputs = any(arg is out for out in launch.outputs.values())
        if isinstance(arg, np.ndarray) and arg.ndim == 2 and not outputs and arg.size <= LARGEST:
            found[parameter] = arg.astype(np.float64), steps
    return found


def _sums(launch, shape):
    """(in words, term) of a sum over the rows of an input: its rows, and its tiles' sums."""
    for name, (matrix, steps) in _matrices(launch).items():
        if shape != matrix.shape[1:]:
            continue
        if steps and 1 < steps[0] < len(matrix):
            for tile in range(-(-len(matrix) // steps[0])):
                first = tile * steps[0]
                yield f"tile {tile} of {name}", matrix[first : first + steps[0]].sum(0)
        yield from ((f"row {number} of {name}", row) for number, row in enumerate(matrix))


def _products(launch, shape):
    """(in words, term) of a product A B^T or A B of two inputs: its steps along k."""
    inputs = _matrices(launch)
    for one, (a, steps) in inputs.items():
        for other, (b, _) in inputs.items():
            if one == other or not steps or steps[1] >= a.shape[1]:
                continue
            for text, factor in ((f"{one} {other}^T", b), (f"{one} {other}", b.T)):
                if factor.shape[1] != a.shape[1] or (len(a), len(factor)) != shape:
                    continue
                for first in range(0, a.shape[1], steps[1]):
                    k = slice(first, first + steps[1])
                    yield f"k = {first} .. {min(k.stop, a.shape[1]) - 1} of {text}", a[:, k] @ factor[:, k].T


def _permuted(values, launch, box):
    """The same numbers, in an order that nothing above has explained."""
    if len(np.unique(values.right[values.wrong])) < 8:
        return ""
    places = [("the output has", (values.out.ravel()[None], values.right.ravel()[None]))]
    if values.right.ndim == 2:
        by_columns = values.out.T, values.right.T
        places = [("each row has", (values.out, values.right)), ("each column has", by_columns), *places]
    for what, pair in places:
        out, right = (np.sort(each, 1) for each in pair)
        if (np.abs(out - right) <= values.room).all():
            return f"{what} the right numbers in another order"
    return ""
