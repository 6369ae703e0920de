"""Drawings of the lessons: boxes on a picture, numbers, barriers, banks, timelines.

Each function returns a :class:`Picture`, which a notebook shows when it is a cell's last value. What a colour
says is said again by a hatch or a text.
"""

import base64
import html
import io
import os
import textwrap
from collections import namedtuple
from dataclasses import dataclass

import numpy as np

from ...measure import timeline
from ...measure.svg import svg
from ...measure.timeline import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, SERIES, SKY, VERMILION, YELLOW
from .display import WHOLE_WORDS
from .frames import framed

DOTS_PER_INCH = 110
WIDEST = 9.5  # inches: wider ones are shrunk in a notebook, and their texts with them
SMALL, TEXT = 7.5, 9  # points
STATES_ABREAST = 4  # of a barrier; more are shrunk
BANKS, BANK_BYTES = 32, 4  # of shared memory; a wavefront serves each bank once

BarrierState = namedtuple("BarrierState", ["what", "phase", "pending", "expected", "tx"])


@dataclass(frozen=True)
class Picture:
    """A matplotlib ``figure`` and the same in words, ``alt``: for readers who cannot see it, and scripts."""

    figure: object
    alt: str

    def png(self):
        """The bytes of a PNG file."""
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight")
        return file.getvalue()

    def save(self, path):
        """Write it in the format of the path's suffix (.png, .svg, .pdf); returns the path."""
        self.figure.savefig(path, dpi=DOTS_PER_INCH, bbox_inches="tight")
        return path

    def __repr__(self):
        return f"[picture: {self.alt}]"

    def _repr_html_(self):
        if os.environ.get("NUMBA_DEFORM_STATIC"):  # a page: text that scales, lines that turn light in the dark
            return framed(svg(self.figure), self.alt)
        data = base64.b64encode(self.png()).decode()
        alt = html.escape(self.alt, quote=True)
        return f'<img alt="{alt}" style="max-width:100%" src="data:image/png;base64,{data}">'


def _figure(width, height):
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# --- boxes on a picture ---------------------------------------------------------------------------
def box_on_picture(image, boxes, names=None, loaded=(), title=""):
    """``boxes`` = (x, y, width, height) in pixels on a feature map; what lies outside it is hatched.

    ``image`` is (height, width) or (height, width, C): the first three channels are drawn as colours, of
    fewer the first as grey. ``loaded``: the boxes' contents, shaped as ``image``, drawn below it.
    ``names``: a label for each box, default 0, 1, ...
    """
    boxes = [tuple(int(v) for v in box) for box in boxes]
    names = [str(i) for i in range(len(boxes))] if names is None else [str(name) for name in names]
    high, wide = np.shape(image)[:2]
    left, right, top, bottom = 0, wide, 0, high
    for x, y, w, h in boxes:
        left, right = min(left, x - 1), max(right, x + w + 1)
        top, bottom = min(top, y - 1), max(bottom, y + h + 1)
    ratio = (right - left) / (bottom - top)
    heights = [4.2, 1.9] if loaded else [4.2]
    figure = _figure(min(WIDEST, max(4.2 * ratio, 1.9 * len(loaded))), sum(heights))
    places = figure.add_gridspec(len(heights), max(1, len(loaded)), height_ratios=heights)
    axes = figure.add_subplot(places[0, :])
    below = [figure.add_subplot(places[1, column]) for column in range(len(loaded))]
    _show(axes, image)
    axes.set(xlim=(left, right), ylim=(bottom, top), xlabel="x", ylabel="y", title=title)
    axes.set_facecolor("white")
    for number, (box, name) in enumerate(zip(boxes, names, strict=True)):
        _draw_box(axes, box, name, _edge(number), (wide, high))
    for number, (panel, content) in enumerate(zip(below, loaded, strict=True)):
        h, w = np.shape(content)[:2]
        _show(panel, content)
        x, y = boxes[number][:2]
        for part in outside(boxes[number], wide, high):
            _fill(panel, part[0] - x, part[1] - y, *part[2:])
        panel.set_title(f"box {names[number]} as loaded", fontsize="medium")
        panel.set(xticks=[0, w], yticks=[0, h])
        for spine in panel.spines.values():
            spine.set(edgecolor=_edge(number), linewidth=2.5)
    zero = [sum(w * h for *_, w, h in outside(box, wide, high)) for box in boxes]
    parts = [
        f"box {name} at x={x}, y={y}, {w} wide, {h} high, {fill} of {w * h} pixels outside"
        for name, (x, y, w, h), fill in zip(names, boxes, zero, strict=True)
    ]
    return Picture(figure, f"a feature map of {wide}x{high} pixels; " + "; ".join(parts))


def feature_maps(images, titles):
    """Feature maps side by side, at the same scale; shapes and colours as in :func:`box_on_picture`."""
    shapes = [np.shape(image)[:2] for image in images]
    scale = 4.0 / max(high for high, _ in shapes)
    widths = [scale * wide for _, wide in shapes]
    figure = _figure(min(WIDEST, sum(widths) + 0.7 * len(images)), 4.4)
    panels = figure.subplots(1, len(images), squeeze=False, width_ratios=widths)[0]
    for axes, image, title, (high, wide) in zip(panels, images, titles, shapes, strict=True):
        _show(axes, image)
        axes.set(title=title, xticks=[0, wide], yticks=[0, high])
    parts = (f"{title}, {w}x{h} pixels" for title, (h, w) in zip(titles, shapes, strict=True))
    return Picture(figure, "; ".join(parts))


def _show(axes, image):
    high, wide = np.shape(image)[:2]
    axes.imshow(_colours(image), extent=(0, wide, high, 0), interpolation="nearest", cmap="gray")


def outside(box, wide, high):
    """The parts of ``box`` = (x, y, width, height) outside a wide x high picture: a list of such boxes."""
    x, y, w, h = box
    parts = []
    above, below = min(h, max(0, -y)), min(h, max(0, y + h - high))
    parts.append((x, y, w, above))
    parts.append((x, y + h - below, w, below))
    middle = h - above - below
    if middle > 0:
        before, after = min(w, max(0, -x)), min(w, max(0, x + w - wide))
        parts.append((x, y + above, before, middle))
        parts.append((x + w - after, y + above, after, middle))
    return [part for part in parts if part[2] > 0 and part[3] > 0]


def _draw_box(axes, box, name, colour, size):
    from matplotlib.patheffects import withStroke

    x, y, w, h = box
    for part in outside(box, *size):
        _fill(axes, *part)
    frame(axes, x, y, w, h, colour)
    _write(axes, x + w / 2, y + h / 2, name, color=colour, weight="bold", clip_on=True,
           path_effects=[withStroke(linewidth=3, foreground="white")])  # fmt: skip


def _fill(axes, x, y, w, h):
    """What a load fills in."""
    _rectangle(axes, x, y, w, h, facecolor=PALE, edgecolor=BLACK, hatch="///", linewidth=0, label="zero fill")


def frame(axes, x, y, w, h, colour):
    """A rectangle's edge, to be seen on any picture."""
    for edge, width in (("white", 4), (colour, 2)):
        _rectangle(axes, x, y, w, h, fill=False, edgecolor=edge, linewidth=width)


def _rectangle(axes, x, y, w, h, **style):
    """Draw it; of no size where it stands for others in a legend."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x, y), w, h, **style))


def _write(axes, x, y, text, pad=None, **style):
    """A text around a place, in a white box with so much room around it, if that is not None."""
    box = None if pad is None else {"facecolor": "white", "edgecolor": "none", "pad": pad}
    axes.text(x, y, text, ha="center", va="center", bbox=box, **style)


def _hide_frame(axes):
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _edge(number):
    return (VERMILION, BLUE, SERIES[2], SERIES[3])[number % 4]


def _colours(image):
    image = np.asarray(image).astype(np.float64)
    if image.ndim == 3:
        image = image[:, :, :3] if image.shape[2] >= 3 else image[:, :, 0]
    if image.ndim == 3:
        return np.clip(np.nan_to_num(image, nan=1.0), 0, 1)
    return image


# --- numbers --------------------------------------------------------------------------------------
def numbers(array, title="", marked=None, rows="", columns=""):
    """A rank-1 or rank-2 array as a grid of its numbers; cells where ``marked`` is true are hatched.

    ``rows`` and ``columns`` name the two directions; ``rows`` may be a list, a name for each row. At most
    32 x 32 numbers (ValueError).
    """
    array = np.atleast_2d(np.asarray(array))
    if array.ndim != 2 or max(array.shape) > 32:
        raise ValueError(f"an array of shape {array.shape} is too large for a grid of numbers")
    marked = np.zeros(array.shape, bool) if marked is None else np.broadcast_to(marked, array.shape)
    texts = [[_text(value) for value in row] for row in array]
    longest = max(len(text) for row in texts for text in row)
    high, wide = array.shape
    cell = max(0.38, 0.11 * longest + 0.12)
    names = [rows] if isinstance(rows, str) else rows
    margin = 0.7 if isinstance(rows, str) else 0.3 + 0.08 * max(map(len, rows))
    figure = _figure(min(WIDEST, margin + cell * wide), 0.7 + 0.38 * high)
    size = max(SMALL, min(10, 10 * WIDEST / max(WIDEST, margin + cell * wide)))
    axes = figure.subplots()
    for i in range(high):
        for j in range(wide):
            style = {"facecolor": YELLOW, "hatch": "///"} if marked[i, j] else {"facecolor": "white"}
            _rectangle(axes, j, i, 1, 1, edgecolor=GREY, **style)
            _write(axes, j + 0.5, i + 0.5, texts[i][j], 1 if marked[i, j] else None, fontsize=size)
    axes.set(xlim=(0, wide), ylim=(high, 0), title=title, xlabel=columns)
    axes.set_xticks(np.arange(wide) + 0.5, range(wide), fontsize=SMALL)
    if names == [rows]:
        axes.set_ylabel(rows)
        names = range(high)
    axes.set_yticks(np.arange(high) + 0.5, names, fontsize=TEXT if names == rows else SMALL)
    axes.tick_params(length=0)
    return Picture(figure, f"{title or 'numbers'}: {array.tolist()}")


def _text(value):
    return f"{value:.3g}" if isinstance(value, (float, np.floating)) else str(value)


# --- barriers -------------------------------------------------------------------------------------
def barrier_states(steps, title="", shown=None):
    """A barrier after each of ``steps`` = (what happened, phase, pending, expected, tx), a column each.

    ``steps`` are :class:`BarrierState` or any sequences of five; the first ``shown`` of them are drawn, and for
    the others there is room. A phase of parity 1 is hatched, one that has just begun has a thick frame;
    arrivals that have come are full circles, pending ones empty (up to 8).
    """
    steps = [BarrierState(*step) for step in steps]
    shown = len(steps) if shown is None else shown
    lines = -(-len(steps) // STATES_ABREAST) or 1
    across = -(-len(steps) // lines) or 1
    figure = _figure(1.4 + 1.6 * across, 0.3 + 2.4 * lines)
    panels = figure.subplots(lines, 1, squeeze=False)[:, 0]
    for number, step in enumerate(steps[:shown]):
        axes, column = panels[number // across], number % across
        _draw_state(axes, column, step, number and step.phase != steps[number - 1].phase)
    for axes in panels:
        axes.set(xlim=(0, across), ylim=(4, 0))
        axes.set_yticks([0.5, 1.5, 2.5, 3.5], ["", "phase (parity)", "arrivals", "tx-count"], fontsize=TEXT)
        axes.set_xticks([])
        _hide_frame(axes)
    panels[0].set_title(title)
    told = "after {0.what}: phase {0.phase}, pending {0.pending} of {0.expected}, tx-count {0.tx}"
    return Picture(figure, "; ".join(map(told.format, steps[:shown])))


def _draw_state(axes, column, step, completed):
    middle = column + 0.5
    text = "\n".join(textwrap.wrap(step.what, 22, **WHOLE_WORDS))
    _write(axes, middle, 0.5, text, fontsize=SMALL)
    odd = step.phase % 2
    _rectangle(axes, column + 0.04, 1.1, 0.92, 0.8, facecolor=SKY if odd else "white", edgecolor=BLACK,
               hatch="///" if odd else "", linewidth=2.5 if completed else 0.8)  # fmt: skip
    weight = "bold" if completed else "normal"
    _write(axes, middle, 1.5, f"{step.phase} ({odd})", 1.5, fontsize=10, weight=weight)
    _write(axes, middle, 2.75, f"pending {step.pending} of {step.expected}", fontsize=TEXT)
    if 0 < step.expected <= 8:
        come = step.expected - step.pending
        for i in range(step.expected):
            x = middle + (i - (step.expected - 1) / 2) * 0.11
            axes.plot(x, 2.35, "o", markersize=6, color=BLACK, markerfacecolor=BLUE if i < come else "white")
    tx, weight = (f"{step.tx:+d} B", "bold") if step.tx else ("0", "normal")
    _write(axes, middle, 3.5, tx, fontsize=TEXT, weight=weight)
    if column:
        axes.axvline(column, color=GREY, linewidth=0.5, ymax=0.78)


# --- a ring ---------------------------------------------------------------------------------------
def ring_moments(recorded):
    """The cycles of a Timeline at which something changes in warp 0's ring."""
    ends = [span.end for span in recorded.spans if span.activity == "compute" and span.warp == 0]
    flights = [span for span in recorded.flights if span.warp == 0]
    return sorted({0, *ends, *(f.start for f in flights), *(f.end for f in flights)})


def ring(recorded, step):
    """The ring of warp 0 at the ``step``-th of its moments: what is in each stage, and what is done with it.

    ``recorded`` is a Timeline of a warp that fills its own stages. A stage is free (white), asked for (green,
    dotted) until its tile is read, or being read (blue, hatched); the arrow follows the one that is read.
    """
    from matplotlib.patches import Wedge

    moments = ring_moments(recorded)
    now = moments[min(step, len(moments) - 1)]
    stages = 1 + max(span.stage for span in recorded.spans)
    doing = {}
    for word, spans in (("asked for", recorded.flights), ("being read", recorded.spans)):
        for span in spans:
            if span.warp == 0 and span.activity in ("flight", "compute") and span.start <= now < span.end:
                doing[span.stage] = (word, span)
    figure = _figure(5.6, 4.4)
    axes = figure.subplots()
    parts = []
    for stage in range(stages):
        word, span = doing.get(stage, ("free", None))
        first, last = 90 - 360 * (stage + 1) / stages, 90 - 360 * stage / stages
        colour, hatch = {"asked for": (GREEN, ".."), "being read": (SKY, "//")}.get(word, ("white", ""))
        style = {"facecolor": colour, "hatch": hatch, "edgecolor": BLACK}
        axes.add_patch(Wedge((0, 0), 1, first, last, width=0.55, **style))
        angle = np.deg2rad((first + last) / 2)
        x, y = np.cos(angle), np.sin(angle)
        text = f"stage {stage}\n{word}" + (f"\ntile {span.use}, parity {span.parity}" if span else "")
        _write(axes, 0.74 * x, 0.74 * y, text, 1.5, fontsize=TEXT)
        if word == "being read":
            arrow = {"arrowstyle": "->", "lw": 2}
            axes.annotate("", (0.45 * x, 0.45 * y), (0.1 * x, 0.1 * y), arrowprops=arrow)
        parts.append(text.replace("\n", ", "))
    axes.set(xlim=(-1.35, 1.35), ylim=(-1.05, 1.05), aspect="equal", title=f"{recorded.title}: cycle {now}")
    axes.axis("off")
    return Picture(figure, f"{recorded.title} at cycle {now}: {'; '.join(parts)}")


# --- a schedule -----------------------------------------------------------------------------------
def schedule(steps, shown=None, title=""):
    """The ``steps`` of a schedule, (who, what it does) each, one below the other, a column for each of them.

    The first ``shown`` of them are drawn, the last of these in bold; for the others there is room.
    """
    actors = sorted({who for who, _ in steps})
    shown = len(steps) if shown is None else min(shown, len(steps))
    figure = _figure(min(WIDEST, 0.7 + 3.4 * len(actors)), 0.9 + 0.34 * len(steps))
    axes = figure.subplots()
    for row, (who, what) in enumerate(steps[:shown]):
        column, last = actors.index(who), row == shown - 1
        _rectangle(axes, column + 0.02, row + 0.08, 0.96, 0.84, edgecolor=BLACK,
                   linewidth=2 if last else 0.8, facecolor=PALE if column % 2 else "white")  # fmt: skip
        axes.text(column + 0.04, row + 0.5, textwrap.shorten(what, 64), va="center", fontsize=SMALL,
                  weight="bold" if last else "normal")  # fmt: skip
    axes.set(xlim=(0, len(actors)), ylim=(len(steps), 0), title=title)
    axes.set_xticks(np.arange(len(actors)) + 0.5, actors, fontsize=TEXT)
    axes.set_yticks(np.arange(len(steps)) + 0.5, range(1, len(steps) + 1), fontsize=SMALL)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    parts = [f"{i}: {who}: {what}" for i, (who, what) in enumerate(steps[:shown], 1)]
    return Picture(figure, "; ".join(parts) or "no step yet")


# --- banks ----------------------------------------------------------------------------------------
def wavefronts(addresses, width=4):
    """How one shared-memory instruction is served: a list of wavefronts, each ``{bank: (word, [lanes])}``.

    ``addresses``: the byte address of each of up to 32 lanes, None for a lane that takes no part; ``width``:
    4, 8 or 16 bytes a lane. 128 bytes' worth of lanes go together (all 32, 16 or 8 of them); of those, each
    wavefront serves one 4-byte word of each of the 32 banks, for all lanes that want that word. A model:
    hardware may serve wide reads of the same address by different groups together, so it needs this many
    at most. ValueError for other widths and for addresses that are not multiples of it.
    """
    if width not in (4, 8, 16):
        raise ValueError(f"width={width} is not 4, 8 or 16 bytes")
    if len(addresses) > 32:
        raise ValueError(f"{len(addresses)} addresses for the 32 lanes of a warp")
    if any(a is not None and a % width for a in addresses):
        raise ValueError(f"an address is not a multiple of {width} bytes")
    group = 32 * BANK_BYTES // width
    served = []
    for first in range(0, len(addresses), group):
        wanted = {}  # bank -> {word: lanes}
        for lane in range(first, min(first + group, len(addresses))):
            if addresses[lane] is None:
                continue
            start = int(addresses[lane]) // BANK_BYTES
            for word in range(start, start + width // BANK_BYTES):
                wanted.setdefault(word % BANKS, {}).setdefault(word, []).append(lane)
        queues = {bank: list(words.items()) for bank, words in wanted.items()}
        for turn in range(max(map(len, queues.values()), default=0)):
            served.append({bank: q[turn] for bank, q in queues.items() if turn < len(q)})
    return served


def banks(addresses, width=4, title=""):
    """The 32 banks, one row for each wavefront of an instruction; the numbers are the lanes served.

    Arguments as for :func:`wavefronts`. Hatched rows are those beyond what the bytes would need: conflicts.
    """
    served = wavefronts(addresses, width)
    words = {word for wavefront in served for word, _ in wavefront.values()}
    least = max(1, -(-len(words) // BANKS))
    figure = _figure(WIDEST, 1.1 + 0.36 * max(1, len(served)))
    axes = figure.subplots()
    for row, wavefront in enumerate(served):
        for bank in range(BANKS):
            lanes = wavefront.get(bank, (0, []))[1]
            colour = "white" if not lanes else ORANGE if row >= least else SKY
            hatch = "///" if lanes and row >= least else ""
            _rectangle(axes, bank, row, 1, 1, facecolor=colour, edgecolor=GREY, hatch=hatch)
            if lanes:
                others = f"+{len(lanes) - 1}" if len(lanes) > 1 else ""
                _write(axes, bank + 0.5, row + 0.5, f"{lanes[0]}{others}", 0.6, fontsize=SMALL)
    axes.set(xlim=(0, BANKS), ylim=(max(1, len(served)), 0))
    axes.set_xlabel("bank (numbers: lanes; 3+7 is lane 3 and 7 more)")
    axes.set_xticks(np.arange(BANKS) + 0.5, range(BANKS), fontsize=SMALL)
    names = [f"wavefront {i}" for i in range(len(served))]
    axes.set_yticks(np.arange(len(served)) + 0.5, names, fontsize=TEXT)
    axes.tick_params(length=0)
    count = f"{len(served)} wavefront{'s' * (len(served) != 1)}; {least} would do for these bytes"
    axes.set_title(f"{title}: {count}" if title else count, fontsize="medium")
    return Picture(figure, f"{title or 'shared-memory banks'}: {count}")


# --- timelines ------------------------------------------------------------------------------------
def timelines(*recorded, start=0, end=None):
    """``timeline.Timeline`` objects one above the other, from cycle ``start`` to ``end``."""
    named = "; ".join(f"{t.title}: {t.engine}" for t in recorded)
    return Picture(timeline.figure(recorded, start, end), f"timelines of {named}")


# --- tables ---------------------------------------------------------------------------------------
def grid(marks, rows, columns, title=""):
    """A table of truth values with names at its rows and columns: full, hatched squares where it is true."""
    width = min(WIDEST, 1.6 + 0.09 * max(map(len, rows)) + 0.95 * len(columns))
    figure = _figure(width, 1.1 + 0.3 * len(rows))
    axes = figure.subplots()
    for i, row in enumerate(marks):
        for j, mark in enumerate(row):
            colour, hatch, text = (BLUE, "///", "yes") if mark else ("white", "", "-")
            _rectangle(axes, j + 0.08, i + 0.1, 0.84, 0.8, facecolor=colour, edgecolor=GREY, hatch=hatch)
            _write(axes, j + 0.5, i + 0.5, text, 1.2, fontsize=SMALL)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0), title=title)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, fontsize=8)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=8)
    axes.xaxis.tick_top()
    _hide_frame(axes)
    parts = (
        f"{name}: {', '.join(c for c, mark in zip(columns, row, strict=True) if mark) or 'none'}"
        for name, row in zip(rows, marks, strict=True)
    )
    return Picture(figure, "; ".join(parts))


# --- times ----------------------------------------------------------------------------------------
def times(measured, ceilings, title="", unit="ms"):
    """Bars of ``measured`` = {name: time}, below hatched ones of ``ceilings``, {name: time} too."""
    rows = [(name, time, True) for name, time in ceilings.items()]
    rows += [(name, time, False) for name, time in measured.items()]
    figure = _figure(9.5, 0.9 + 0.3 * len(rows))
    axes = figure.subplots()
    longest = max(time for _, time, _ in rows)
    for place, (_, time, ceiling) in enumerate(rows):
        colour, edge, hatch = ("white", ORANGE, "///") if ceiling else (BLUE, BLUE, "")
        axes.barh(place, time, height=0.7, color=colour, edgecolor=edge, hatch=hatch, linewidth=1.2)
        axes.text(time + 0.01 * longest, place, f"{time:#.3g}", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=8)
    axes.set(xlim=(0, 1.1 * longest), xlabel=unit, title=title)
    axes.invert_yaxis()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    parts = (f"{name} {time:#.3g}" for name, time, _ in rows)
    return Picture(figure, f"{title or 'times'} in {unit}: {', '.join(parts)}")
