"""Lesson 3, one tile: drawings of samples and of their weights, and the checks."""

import math
import traceback

import numpy as np

from ...attention.reference import TOLERANCE, reference, relative_error
from ...engines import faults
from ...engines.tensormap import TensorMap, TensorMapArray
from ...measure.timeline import BLACK, BLUE, GREEN, ORANGE, SKY, VERMILION
from ..bugs.base import poison
from . import pictures
from .exercise import Wrong, exercise, require, value_of
from .running import run

CORNERS = {  # (dy, dx) -> name, colour, hatch
    (0, 0): ("top left", ORANGE, "//"),
    (0, 1): ("top right", SKY, "\\\\"),
    (1, 0): ("bottom left", GREEN, ".."),
    (1, 1): ("bottom right", VERMILION, "xx"),
}


# --- pictures -------------------------------------------------------------------------------------
def samples_on_picture(image, locations, loaded=(), title=""):
    """``pictures.box_on_picture`` of the 2x2 tiles around ``locations`` (P, 2), with the samples as crosses."""
    high, wide = np.shape(image)[:2]
    places = [(u * wide, v * high) for u, v in np.asarray(locations, float)]
    boxes = [(math.floor(x - 0.5), math.floor(y - 0.5), 2, 2) for x, y in places]
    picture = pictures.box_on_picture(image, boxes, names=[""] * len(boxes), loaded=loaded)
    axes, *beside = picture.figure.axes
    axes.set_title(title)
    for number, (x, y) in enumerate(places):
        _cross(axes, x, y)
        axes.annotate(
            str(number), (x, y), (7, 7), textcoords="offset points", weight="bold", color=BLACK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
        )  # fmt: skip
    for number, panel in enumerate(beside):
        panel.set_title(f"tile {number}", fontsize="medium")
        x, y = (place - corner for place, corner in zip(places[number], boxes[number], strict=False))
        _cross(panel, x, y)
    parts = [
        f"sample {n} at ({x:.2f}, {y:.2f}), its tile at ({b[0]}, {b[1]})"
        for n, ((x, y), b) in enumerate(zip(places, boxes, strict=True))
    ]
    return pictures.Picture(picture.figure, f"{wide}x{high} pixels; " + "; ".join(parts))


def _cross(axes, x, y, size=9, widths=(4, 1.6)):
    """A sample, to be seen on any picture."""
    for colour, width in zip(("white", BLACK), widths, strict=True):
        axes.plot(x, y, "+", markersize=size, markeredgewidth=width, color=colour)


def weights_as_areas(fx, fy):
    """The square between four pixel centres, cut at a sample: a corner's weight is the area opposite it."""
    figure = pictures._figure(5.6, 3.6)
    axes, parts = figure.subplots(), []
    for (dy, dx), (name, colour, hatch) in CORNERS.items():
        weight = (fx if dx else 1 - fx) * (fy if dy else 1 - fy)
        parts.append(f"{name} {weight:.3f}")
        x, w = (0, fx) if dx else (fx, 1 - fx)  # the side away from this corner
        y, h = (0, fy) if dy else (fy, 1 - fy)
        pictures._rectangle(axes, x, y, w, h, facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0)
        axes.plot(dx, dy, "o", markersize=13, color=colour, markeredgecolor=BLACK, clip_on=False)
        beside, side = (1.12, "left") if dx else (-0.12, "right")
        axes.text(beside, dy, f"{name}\n{weight:.3f}", ha=side, va="center", fontsize=10)
        if min(w, h) > 0.12:
            pictures._write(axes, x + w / 2, y + h / 2, f"{weight:.3f}", 1.5, fontsize=9)
    _cross(axes, fx, fy, 16, (5, 2))
    pictures._rectangle(axes, 0, 0, 1, 1, fill=False, edgecolor=BLACK)
    axes.set(xlim=(-0.75, 1.75), ylim=(1.12, -0.12), aspect="equal")
    axes.set_title(f"fx = {fx:.2f}, fy = {fy:.2f}", fontsize="medium")
    axes.axis("off")
    return pictures.Picture(figure, f"corner weights at fx={fx:.2f}, fy={fy:.2f}: {', '.join(parts)}")


def coordinate_steps(width, first=None, pixels=4):
    """The coordinate u * width - 0.5 in fp16 arithmetic for every fp16 location within ``pixels`` pixels."""
    first = width - 8 if first is None else first
    u = np.arange(0x3C00, dtype=np.uint16).view(np.float16)  # all from 0 to 1
    exact = u.astype(np.float64) * width - 0.5
    seen = (exact > first - 0.2) & (exact < first + pixels + 0.2)
    u, exact = u[seen], exact[seen]
    half = (u * np.float16(width) - np.float16(0.5)).astype(np.float64)
    wrong = np.floor(half) != np.floor(exact)
    figure = pictures._figure(7.5, 4.2)
    axes = figure.subplots()
    for border in range(first, first + pixels + 1):
        axes.axhline(border, color=BLACK, linewidth=0.7, linestyle=":")
        axes.axvline(border, color=BLACK, linewidth=0.7, linestyle=":")
    axes.plot(exact, exact, color=BLUE, linewidth=1.2, label="exact")
    axes.plot(exact[~wrong], half[~wrong], "o", markersize=5, color=ORANGE,
              markeredgecolor=BLACK, label="fp16 arithmetic")  # fmt: skip
    axes.plot(exact[wrong], half[wrong], "X", markersize=9, color=VERMILION,
              markeredgecolor=BLACK, label="fp16 arithmetic, in a wrong tile")  # fmt: skip
    axes.set(
        xlabel="exact coordinate, in pixels", ylabel="coordinate as computed",
        title=f"a level {width} pixels wide (dotted: where a tile begins)",
    )  # fmt: skip
    axes.legend(frameon=False)
    told = f"{len(u)} fp16 locations on {width} pixels: coordinates in fp16 are off by up to "
    told += f"{np.abs(half - exact).max():.3f} pixels, {wrong.sum()} are in a wrong tile"
    return pictures.Picture(figure, told)


# --- the exercises --------------------------------------------------------------------------------
@exercise(
    "A sample on a pixel's centre (fx = fy = 0) takes everything from the top left. How does each weight grow?"
)
def corner_weights(answer):
    """answer(fx, fy) -> ((top left, top right), (bottom left, bottom right))."""
    for fx, fy in ((0.25, 0.375), (0.125, 0.75), (0.0, 0.0), (1.0, 0.25)):
        got = np.asarray(value_of(answer, fx, fy), float)
        require(got.shape == (2, 2), f"It has the shape {got.shape}; return two rows of two weights.")
        right = np.outer((1 - fy, fy), (1 - fx, fx))
        if np.allclose(got, right):
            continue
        given = f"For fx={fx}, fy={fy} it says {got.tolist()}. "
        require(not np.allclose(got, right.T), given + "The right column of the first row is top right: fx "
                "goes across, fy goes down.")  # fmt: skip
        require(not np.allclose(got, right[::-1, ::-1]), given + "That gives the nearest pixel least. fx is "
                "the distance from the left column, so it is the weight of the right one.")  # fmt: skip
        for axis, side, starts in ((0, "row", "fy"), (1, "column", "fx")):
            require(not np.allclose(got, np.flip(right, axis)), given + f"The two {side}s are exchanged: at "
                    f"{starts} = 0 the first {side} has everything.")  # fmt: skip
        require(abs(got.sum() - 1) < 1e-6, given + f"They sum to {got.sum():.3g}. Weights are shares of one: "
                "their sum has to be 1.")  # fmt: skip
        raise Wrong(given + "Their sum is 1, but they are not the areas in the picture: each is opposite its "
         "corner.")
    return "Each weight is a product of two shares, one across and one down, and all four sum to 1."


def _problem(seed, *places, high=12, wide=16, channels=32):
    """An image and a query of samples at ``places``, with random weights."""
    rng = np.random.default_rng(seed)
    image = rng.standard_normal((high, wide, channels)).astype(np.float16)
    weights = rng.dirichlet(np.ones(len(places))).astype(np.float32)
    return image, np.array(places, np.float32), weights


def expected(image, locations, weights):
    """C numbers in float64: what the reference says of one query with one head and one level."""
    high, wide, channels = image.shape
    points = len(weights)
    return reference(
        image.reshape(1, high * wide, 1, channels), [(high, wide)], [0],
        locations.reshape(1, 1, 1, 1, points, 2), weights.reshape(1, 1, 1, 1, points),
    ).reshape(channels)  # fmt: skip


@exercise("Which neighbours are in the picture? How much of one goes into the sum?")
def attend(answer, corner_weights):
    """answer(image, locations, weights) -> C numbers, one query on one level."""
    for seed in range(3):
        u, v = np.random.default_rng(seed).uniform(0.2, 0.8, 2)
        over_each_border = (0.01, 0.7), (0.99, 0.4), (0.37, 0.01), (0.6, 0.99)
        query = _problem(seed, (u, v), (v, u), *over_each_border, (1.4, 0.5))
        right = expected(*query)
        try:
            got = np.asarray(value_of(answer, *query), float)
        except IndexError as error:
            raise Wrong(f"IndexError: {error}. {_which_neighbour(error, query[0])}") from None
        require(got.shape == right.shape, f"It returns the shape {got.shape}, not one number a channel.")
        if relative_error(got, right) < 1e-6:
            continue
        for sentence, mistake in MISTAKES:
            require(relative_error(got, sum(_terms(*query, **mistake))) > 1e-6, sentence)
        require(relative_error(got, _terms(*query)[-1]) > 1e-6, "It is what the last neighbour adds. `total` "
                "has to add them up.")  # fmt: skip
        raise Wrong(f"On random data it is off by {relative_error(got, right):.1g} of the result. Compare with "
                    "the formula: the sum over samples of attention weight, corner weight and pixel.")
    return "It is the operator's definition, and agrees with numba_deform.reference."


def _terms(
    image, locations, weights,
    inside=lambda row, column, high, wide: 0 <= row < high and 0 <= column < wide,
    share=lambda weight, shares, dy, dx: weight * shares[dy][dx],
    at=lambda row, column, dy, dx: (row, column),
):  # fmt: skip
    """What each neighbour adds to a query, by the definition or with a mistake in it."""
    (high, wide, _), terms = image.shape, []
    for (u, v), weight in zip(locations.astype(float), weights.astype(float), strict=True):
        x, y = u * wide - 0.5, v * high - 0.5
        x0, y0 = math.floor(x), math.floor(y)
        shares = np.outer((1 - y + y0, y - y0), (1 - x + x0, x - x0))
        for dy, dx in np.ndindex(2, 2):
            place = y0 + dy, x0 + dx
            if inside(*place, high, wide):
                terms.append(share(weight, shares, dy, dx) * image[at(*place, dy, dx)].astype(float))
    return terms


LAST = "and image[{}] is the *last* {} in Python. Ask for {} as well."
MISTAKES = (  # (what is wrong, what ``_terms`` has instead)
    ("Sample 2 reaches over the left border, " + LAST.format("row, -1", "pixel of the row", "row >= 0 and "
     "column >= 0"),
     {"inside": lambda row, column, high, wide: row < high and column < wide}),
    ("Sample 2 reaches over the left border, " + LAST.format("row, -1", "pixel of the row", "column >= 0"),
     {"inside": lambda row, column, high, wide: 0 <= row < high and column < wide}),
    ("Sample 4 reaches over the upper border, " + LAST.format("-1, column", "row", "row >= 0"),
     {"inside": lambda row, column, high, wide: row < high and 0 <= column < wide}),
    ("Row 0 and column 0 are left out, but they belong to the picture: row >= 0 and column >= 0.",
     {"inside": lambda row, column, high, wide: 0 < row < high and 0 < column < wide}),
    ("Row 0 is left out, but it belongs to the picture.",
     {"inside": lambda row, column, high, wide: 0 < row < high and 0 <= column < wide}),
    ("Column 0 is left out, but it belongs to the picture.",
     {"inside": lambda row, column, high, wide: 0 <= row < high and 0 < column < wide}),
    ("The last row and the last column are left out. `<` stops before its bound.",
     {"inside": lambda row, column, high, wide: 0 <= row < high - 1 and 0 <= column < wide - 1}),
    ("The last row is left out. `<` stops before its bound.",
     {"inside": lambda row, column, high, wide: 0 <= row < high - 1 and 0 <= column < wide}),
    ("The last column is left out. `<` stops before its bound.",
     {"inside": lambda row, column, high, wide: 0 <= row < high and 0 <= column < wide - 1}),
    ("Every sample counts the same here. Each comes with an attention weight of its own.",
     {"share": lambda weight, shares, dy, dx: shares[dy][dx]}),
    ("Each neighbour counts in full. Only a share of its pixel goes into the sum.",
     {"share": lambda weight, shares, dy, dx: weight}),
    ("Top right and bottom left have each other's shares. What is the first index of `shares`?",
     {"share": lambda weight, shares, dy, dx: weight * shares[dx][dy]}),
    ("All four neighbours of a sample have the pixel of the first. Each has its own row and column.",
     {"at": lambda row, column, dy, dx: (row - dy, column - dx)}),
)  # fmt: skip


def _which_neighbour(error, image):
    """What an IndexError of ``attend`` is about, from the reader's own variables where they are there."""
    told = [frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__) if "row" in frame.f_locals]
    if not told or "column" not in told[-1]:
        return "A neighbour may lie past the right or the lower border too."
    (high, wide, _), row, column = image.shape, told[-1]["row"], told[-1]["column"]
    if isinstance(told[-1].get("inside"), tuple):
        return "`inside` is a tuple of two answers, and a tuple is always true: write `and`."
    if 0 <= row < high and 0 <= column < wide:
        return f"Row {row} and column {column} are in the picture. Is that the order of the indices of `image`?"
    past = f"row {row} of {high}" if row >= high else f"column {column} of {wide}"
    return f"A neighbour may lie past the right or the lower border too: `inside` was true for {past}."


@exercise("What type has `np.float16(0.9) * 160`?")
def pixel(answer):
    """answer(location: np.float16, size) -> (index of the lower neighbour, fraction)."""
    rng = np.random.default_rng(5)
    bad, half_bad, count = 0, 0, 0
    for size in (48, 160, 334):
        for location in rng.random(200).astype(np.float16):
            exact = float(location) * size - 0.5
            right = math.floor(exact)
            got = value_of(answer, location, size)
            require(isinstance(got, tuple) and len(got) == 2, f"It returns {got!r}, not a tuple (index, "
                    "fraction).")  # fmt: skip
            lower, fraction = int(got[0]), float(got[1])
            where = f"For location {float(location):.4f} on {size} pixels it says {lower} + {fraction:.4f}. "
            require((lower, round(fraction, 3)) != (math.floor(exact + 0.5), round((exact + 0.5) % 1, 3)) or (
                    exact + 0.5) % 1 < 1e-3, where + "The half pixel is missing: centre 0 lies at 0.5.")
            half = location * np.float16(size) - np.float16(0.5)
            count += 1
            bad += lower != right or abs(fraction - (exact - right)) > 1e-4
            half_bad += lower == math.floor(half) and abs(fraction - (float(half) % 1)) < 1e-3
    require(bad == 0 or half_bad < count, f"{bad} of {count} samples are off. The arithmetic is in fp16: an "
            "np.float16 times a Python number is an np.float16 again. Convert the location first, then "
            "multiply.")  # fmt: skip
    require(bad == 0, f"{bad} of {count} samples are off. The index is floor(location * size - 0.5), the "
            "fraction the rest.")  # fmt: skip
    return "Stored in fp16, computed in more bits: all 600 samples are in their tile, to 1/10000 of a pixel."


@exercise(
    "The barrier expects one arrival from each of the lanes 0 .. POINTS - 1, and a tile that nobody loaded "
    "holds garbage.",
    faults={
        faults.MissingArrivals: "A lane that loads nothing has to arrive all the same: the barrier was "
        "initialised with POINTS.",
        faults.MissingBytes: "A lane announces bytes, and no copy brings them: a tile that is not loaded is "
        "not expected.",
        faults.UninitialisedRead: "This tile was not loaded, and is read. A weight of 0 would not help, since "
        "0 times garbage may be NaN. Leave it out.",
        faults.TooManyArrivals: "A lane arrives twice. One arrival of each lane is expected, and "
        "`expect` is one, too.",
    },
)
def skip(kernel, engine=None):
    """A kernel (map, locations, weights, out, width, height) that loads the tiles of near samples only."""
    for places in NEAR_AND_FAR:
        image, locations, weights = _problem(1, *places)
        high, wide, channels = image.shape
        near = sum(-1 <= u * wide - 0.5 < wide and -1 <= v * high - 0.5 < high for u, v in places)
        maps = TensorMapArray([TensorMap.of(image, (channels, 2, 2))])
        for where in dict.fromkeys(("cpu", engine or "cpu")):
            out = poison(channels, dtype=np.float32)
            ran = run(kernel, 1, (maps, locations, weights, out, wide, high), engine=where)
            error = relative_error(out, expected(image, locations, weights))
            if where == "cpu":
                require(ran.report.copies <= near, f"The result may be right, but it loads {ran.report.copies} "
                        f"tiles where {near} would do: the tile of a sample far outside is all zeros.")
            if error >= TOLERANCE["float16"]:
                raise Wrong(f"The result is off by {error:.1g}: {_left_out(out, image, locations, weights)}")
    return "A sample outside costs an arrival and nothing else, and the result is the reference's."


NEAR_AND_FAR = (  # four samples each: over two borders and far outside; the others; over a corner, and inside
    ((0.01, 0.4), (0.99, 0.6), (1.4, 0.5), (0.5, -0.5)),
    ((0.4, 0.01), (0.6, 0.99), (-0.3, 0.5), (0.5, 1.6)),
    ((0.01, 0.99), (0.9, 0.3), (0.6, 0.7), (0.3, 0.2)),
)


def _left_out(out, image, locations, weights):
    """Which samples ``out`` lacks, in words."""
    high, wide, _ = image.shape
    for counted in list(np.ndindex(*[2] * len(weights)))[::-1]:
        if relative_error(out, expected(image, locations, weights * np.array(counted, np.float32))) < 1e-3:
            lost = counted.index(0)
            x, y = (float(of) for of in locations[lost] * (wide, high) - 0.5)
            over = not (0 <= x <= wide - 1 and 0 <= y <= high - 1)
            where = ". Half of its tile is in the picture, and counts" if over else ", within the picture"
            return f"the sample at x={x:.1f}, y={y:.1f} (of {wide} x {high} pixels) is left out{where}."
    return "some sample that counts is left out, or one that does not is added."


LINES = {  # what the exercise asks for -> (its instruction, others that it may be taken for)
    "load": ("UTMALDG", {"UTMACCTL": "UTMACCTL drops what the cache knows of the map: it is the acquire fence.",
                         "LDS": "LDS reads shared memory; the tile is there by then."}),
    "announce": ("SYNCS.ARRIVE", {"SYNCS.EXCH": "SYNCS.EXCH writes a new barrier: that is mbarrier_init.",
                                  "SYNCS.PHASECHK": "SYNCS.PHASECHK asks for a phase, as a wait does."}),
    "wait": ("SYNCS.PHASECHK", {"BAR.SYNC": "BAR.SYNC is cuda.syncthreads, which knows nothing of copies.",
                                "SYNCS.ARRIVE": "SYNCS.ARRIVE is an arrival. A wait checks a phase."}),
}  # fmt: skip


@exercise("They stand in the order of the kernel: init, fence, sync, arrive, load, wait.")
def sass(load, announce, wait, taken_apart):
    """The opcodes of three lines, as strings; ``taken_apart``: the kernel's ``sass.Inspection``, or None."""
    for name, got in (("load", load), ("announce", announce), ("wait", wait)):
        opcode, others = LINES[name]
        require(isinstance(got, str), f"{name} = {got!r}: write the instruction's name, as a string.")
        got = got.strip().upper()
        if got.startswith(opcode):
            continue
        for other, why in others.items():
            require(not got.startswith(other), f"{name} is not {other}. {why}")
        require(got != "SYNCS", f"{name} = 'SYNCS' names all operations on mbarriers. Which of them is it? "
                "Take the word after the dot too.")  # fmt: skip
        known = taken_apart is None or got.split(".")[0] in taken_apart.instructions
        absent = "" if known else ", which is not in this kernel"
        raise Wrong(f"{name} is not {got}{absent}. Look for the registers: who uses the barrier's address?")
    return ("Three lines of Python, and each of them is an instruction that no ordinary load or barrier uses.")
