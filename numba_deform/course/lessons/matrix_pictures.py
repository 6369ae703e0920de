"""Drawings of lessons 11 and 12: a tile in the banks, fragments of a product, the two blocks of a cluster."""

import re

import numpy as np

from ...measure.timeline import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, SKY, VERMILION, YELLOW
from .pictures import BANKS, SMALL, TEXT, Picture, _figure, _rectangle, _write, wavefronts

WIDTH = 7.6  # inches, which JupyterLab shows unshrunk
ROWS, CHUNKS, CHUNK_BANKS, ROW_BYTES = 8, 8, 4, 128  # of an 8x8 matrix in rows of 128 bytes
PLAIN, SWIZZLED = "without swizzle", "swizzled by 128 bytes"
REGISTERS = ((SKY, ""), (YELLOW, "..."), (ORANGE, "///"), (PALE, "\\\\\\"))  # colour and hatch of words 0 .. 3


# --- banks ----------------------------------------------------------------------------------------
def place_of_chunk(row, chunk, swizzle):
    """In which 16 bytes of its row a chunk lies."""
    return chunk ^ row if swizzle else chunk


def tile_in_banks(chunk):
    """Eight rows of 128 bytes as they lie in the banks, plain and swizzled; the matrix at ``chunk`` is marked.

    The numbers are chunks, eight elements of k each: which of its row lies there."""
    figure = _figure(WIDTH, 3.3)
    parts = []
    for axes, (title, swizzle) in zip(figure.subplots(1, 2), ((PLAIN, False), (SWIZZLED, True)), strict=True):
        for row in range(ROWS):
            for c in range(CHUNKS):
                place, chosen = place_of_chunk(row, c, swizzle), c == chunk
                style = {"facecolor": BLUE, "hatch": "///"} if chosen else {"facecolor": "white"}
                _rectangle(axes, CHUNK_BANKS * place, row, CHUNK_BANKS, 1, edgecolor=GREY, **style)
                pad, weight = (1, "bold") if chosen else (None, "normal")
                _write(axes, CHUNK_BANKS * (place + 0.5), row + 0.5, c, pad, fontsize=TEXT, weight=weight)
        places = [place_of_chunk(row, chunk, swizzle) for row in range(ROWS)]
        turns = len(wavefronts([ROW_BYTES * row + 16 * place for row, place in enumerate(places)], 16))
        count = f"{turns} wavefront{'s' * (turns > 1)}"
        axes.set(xlim=(0, BANKS), ylim=(ROWS, 0), xlabel="bank")
        axes.set_title(f"{title}: {count}", fontsize="medium")
        axes.set_xticks(range(0, BANKS + 1, CHUNK_BANKS), range(0, BANKS + 1, CHUNK_BANKS), fontsize=SMALL)
        axes.set_yticks(np.arange(ROWS) + 0.5, range(ROWS), fontsize=SMALL)
        axes.tick_params(length=0)
        first = ", ".join(str(CHUNK_BANKS * place) for place in places)
        parts.append(f"{title}, chunk {chunk} of rows 0 to 7 begins in the banks {first}: {count}")
    figure.axes[0].set_ylabel("row of the matrix")
    return Picture(figure, "; ".join(parts))


# --- fragments ------------------------------------------------------------------------------------
def _words():
    """{matrix: [(row, column, height, width, lane, register)]} of the words of a product; C's are pairs."""
    words = {"A": [], "B": [], "C": []}
    for lane in range(32):
        g, t = divmod(lane, 4)
        for r in range(4):
            words["A"].append((g + 8 * (r % 2), 2 * t + 8 * (r // 2), 1, 2, lane, r))
        for r in range(2):
            words["B"].append((2 * t + 8 * r, g, 2, 1, lane, r))
            words["C"].append((g + 8 * r, 2 * t, 1, 2, lane, r))
    return words


NAMES = {"A": ("a0", "a1", "a2", "a3"), "B": ("b0", "b1"), "C": ("c0, c1", "c2, c3")}
TITLES = {"A": "A: 16 rows, 16 of k", "B": "B: 16 of k, 8 columns", "C": "C: 16 rows, 8 columns"}


def fragments(lane):
    """Which lane holds which elements of A, B and C of one ``mma.m16n8k16``; those of ``lane`` are framed.

    A number is a lane, in each of the words that it holds; colours and hatches tell its registers apart."""
    figure = _figure(WIDTH, 4.3)
    panels = figure.subplots(1, 3, width_ratios=(16, 8, 8))
    parts = []
    for axes, (name, words) in zip(panels, _words().items(), strict=True):
        wide = 16 if name == "A" else 8
        for row, column, h, w, holder, register in words:
            colour, hatch = REGISTERS[register]
            style = {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.6}
            _rectangle(axes, column, row, w, h, **style)
            weight = "bold" if holder == lane else "normal"
            _write(axes, column + w / 2, row + h / 2, holder, 0.5, fontsize=SMALL, weight=weight)
            if holder == lane:
                frame = {"fill": False, "edgecolor": BLACK, "linewidth": 2.5, "zorder": 3}
                _rectangle(axes, column, row, w, h, **frame)
                rows = f"rows {row} and {row + 1}" if h == 2 else f"row {row}"
                columns = f"columns {column} and {column + 1}" if w == 2 else f"column {column}"
                parts.append(f"{NAMES[name][register]}: {rows}, {columns} of {name}")
        for register, text in enumerate(NAMES[name]):
            colour, hatch = REGISTERS[register]
            _rectangle(axes, 0, 0, 0, 0, facecolor=colour, hatch=hatch, edgecolor=GREY, label=text)
        axes.set(xlim=(0, wide), ylim=(16, 0), aspect="equal")
        axes.set_title(TITLES[name], fontsize=TEXT)
        axes.set_xticks(range(0, wide + 1, 4), range(0, wide + 1, 4), fontsize=SMALL)
        axes.set_yticks(range(0, 17, 4), range(0, 17, 4), fontsize=SMALL)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=2, fontsize=SMALL, frameon=False)
    figure.suptitle(f"the elements of lane {lane} are framed", fontsize=TEXT)
    return Picture(figure, f"lane {lane} holds " + "; ".join(parts))


# --- two blocks -----------------------------------------------------------------------------------
FLIGHTS = {"A, fetched by block 0": (GREEN, ""), "A, fetched by block 1": (SKY, "///"),
           "B": (ORANGE, "...")}  # fmt: skip
STAGE = re.compile(r"ring\.(full|empty)\[(\d+)\]")
BARS = 3  # flights of a stage


def _stage(event):
    kind, stage = STAGE.fullmatch(event.barrier).groups()
    return kind, int(stage)


def two_blocks(events, title="", end=None):
    """What a product's two blocks did, from the events of a ``Report``, to cycle ``end``: a panel for each.

    From above: the producer (hatched: it waits for an empty stage), the flights into each stage, the consumer
    (pale: it waits for a full stage; blue: it multiplies). Dotted lines are its arrivals on the other's empty
    barrier."""
    events = [event for event in events if event.kind not in ("async", "meet")]
    end = end or max(event.end for event in events)
    stages = 1 + max(_stage(event)[1] for event in events)
    rows = ["producer", *(f"stage {s}" for s in range(stages)), "consumer"]
    figure = _figure(WIDTH, 0.9 + 2 * (0.5 + 0.42 * len(rows)))
    panels = figure.subplots(2, 1, sharex=True)
    issued = _fetchers(events)
    for block, axes in enumerate(panels):
        of_block = [event for event in events if event.block == block]
        _draw_roles(axes, of_block, len(rows) - 1, end)
        for event in of_block:
            if event.kind == "flight":
                _draw_flight(axes, event, issued)
        far = [e for e in events if e.kind == "arrive" and e.block != block and _is_far(e, block)]
        for event in far:
            axes.axvline(event.start, color=BLACK, linestyle=":", linewidth=1)
        axes.set(xlim=(0, end), ylim=(len(rows), 0), title=f"block {block}")
        axes.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=TEXT)
        axes.tick_params(axis="y", length=0)
    panels[-1].set_xlabel("virtual cycles")
    for name, (colour, hatch) in FLIGHTS.items():
        _rectangle(panels[0], 0, 0, 0, 0, label=name, facecolor=colour, hatch=hatch, edgecolor="white")
    panels[0].plot([], [], ":", color=BLACK, label="the other block releases the stage")
    panels[0].plot([], [], "|", color=VERMILION, markersize=9, label="the producer asks for a box")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=SMALL)
    figure.suptitle(title, fontsize=TEXT)
    return Picture(figure, f"{title}: {_in_words(events)}")


def _fetchers(events):
    """{(start, address): blocks that issued such a copy}"""
    issued = {}
    for event in events:
        if event.kind == "issue":
            issued.setdefault((event.start, event.address, event.bytes), set()).add(event.block)
    return issued


def _is_far(event, block):
    """Whether an arrival is on an empty barrier of ``block``: lane r of a consumer arrives in rank r."""
    return _stage(event)[0] == "empty" and event.lane == block


def _draw_flight(axes, event, issued):
    from_blocks = issued[event.start, event.address, event.bytes]
    is_b = event.bytes == max(size for _, _, size in issued)
    kind = 2 if is_b else 0 if from_blocks == {0} else 1 if from_blocks == {1} else event.block
    colour, hatch = list(FLIGHTS.values())[kind]
    top = 1 + _stage(event)[1] + 0.1 + 0.8 * kind / BARS
    span = [(event.start, event.end - event.start)]
    axes.broken_barh(span, (top, 0.8 / BARS), facecolor=colour, hatch=hatch, edgecolor="white", linewidth=0.4)


def _draw_roles(axes, events, consumer, end):
    """The producer's waits in row 0, the consumer's waits and work in row ``consumer``."""
    for event in events:
        if event.kind == "wait" and event.warp == 0 and _stage(event)[0] == "empty":
            span = [(event.start, event.end - event.start)]
            axes.broken_barh(span, (0.15, 0.7), facecolor=GREY, hatch="////", edgecolor="white")
        if event.kind == "issue":
            axes.plot([event.start] * 2, [0.15, 0.85], color=VERMILION, linewidth=1.5)
    waits = sorted({(e.start, e.end) for e in events if e.kind == "wait" and e.warp == 1 and e.lane == 0})
    last = max((e.start for e in events if e.kind == "arrive" and e.warp == 1), default=end)
    starts = [start for start, _ in waits[1:]] + [last]
    for (start, stop), following in zip(waits, starts, strict=True):
        axes.broken_barh([(start, stop - start)], (consumer + 0.15, 0.7), facecolor=PALE)
        axes.broken_barh([(stop, following - stop)], (consumer + 0.15, 0.7), facecolor=BLUE, edgecolor="white")


def _in_words(events):
    told = []
    for block in (0, 1):
        ends = [e.end for e in events if e.block == block and e.kind == "wait" and e.warp == 1 and e.lane == 0]
        waits = [e for e in events if e.block == block and e.kind == "wait" and e.warp == 0]
        held = sum(e.end - e.start for e in waits)
        ends = ", ".join(f"{end:.0f}" for end in ends)
        told.append(f"block {block} has its tiles at {ends}, and its producer waits {held:.0f} cycles")
    return "; ".join(told)
