"""Timelines: what each warp of a block does when, from marks that the kernel itself writes.

One format for both engines: on the GPU the marks hold the SM's clock, on the CPU engine virtual cycles, so
that prediction and measurement can be drawn one above the other. ``device/marks.py`` writes them."""

import bisect
import contextlib
import html
import io
import itertools
import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..attention.bind import Bound
from ..device.marks import ACQUIRE, CAPACITY, COMMIT, COMPUTE, ISSUE, MARK_BYTES, RELEASE, WAIT
from ..engines.gpu.device import DeviceArray
from ..engines.waivers import told
from .predict import resident_blocks, write_clocks
from .svg import zoomed

# Okabe and Ito's colours, which people with colour-blind eyes can tell apart, by their names. Whatever is
# drawn says the same once more by a hatch, a marker or a word, for print without colour.
BLUE, ORANGE, GREEN, PURPLE = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, BLACK = "#56B4E9", "#D55E00", "#F0E442", "#000000"
GREY, PALE = "#BBBBBB", "#DDDDDD"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, BLACK)  # curves, one after another

# What a warp does from a mark on, until its next one.
ACTIVITIES = {ACQUIRE: "acquire", ISSUE: "issue", COMMIT: "prepare", WAIT: "wait",
              COMPUTE: "compute", RELEASE: "other"}  # fmt: skip
# Waiting is grey, whatever it is for.
COLOURS = {"acquire": GREY, "issue": VERMILION, "prepare": SKY, "wait": PALE, "compute": BLUE,
           "other": YELLOW, "flight": GREEN, "group": PURPLE, "at a barrier": BLACK}  # fmt: skip
HATCHES = {"acquire": "////"}  # in print its grey looks like that of wait
MODEL = "model of an SM of an H200"
WIDTH, ROW = 9.5, 0.75  # inches, of a picture and of a warp in it: what a notebook shows unshrunk
SMALLEST_TEXT, TEXT = 6.5, 7.5  # points


class TimelineError(ValueError):
    """Nothing can be drawn: no such block, a kernel without marks, an unknown file type."""


@dataclass(frozen=True)
class Span:
    """``activity`` of a warp on a stage, in cycles from the block's first mark. ``use`` counts how often
    the warp has come to this activity on that ring; parity is that of the stage's barrier. ``ring`` is its
    name in the kernel's ``Shared``, "" where the step was not called as the ring's function. Of "group" it
    is what has been issued, and ``use`` the number of its group; of "at a barrier", the barrier's name."""

    activity: str
    warp: int
    stage: int
    parity: int
    use: int
    start: int
    end: int
    ring: str = ""


class _Drawn:
    """What one Timeline and several can do, which are drawn one above the other."""

    def save(self, path, start=0, end=None):
        """Write it, or them, as :func:`save` does; returns the Path."""
        return save(self._each(), path, start, end)

    def _repr_html_(self):
        """The picture as SVG that zooms, for notebooks and pages; None without matplotlib."""
        titles = html.escape("; ".join(timeline.title for timeline in self._each()), quote=True)
        with contextlib.suppress(ModuleNotFoundError):
            return zoomed(figure(self._each()), titles)

    def _repr_png_(self):
        """The picture, for who shows no HTML; None without matplotlib."""
        picture = io.BytesIO()
        with contextlib.suppress(ModuleNotFoundError):
            figure(self._each()).savefig(picture, format="png", dpi=100, bbox_inches="tight")
            return picture.getvalue()


@dataclass(frozen=True)
class Timeline(_Drawn):
    """``spans`` of one block. ``flights``: from the end of an issue until the first warp has seen the
    stage full, by the warp that issued. ``undrawn`` counts, by ring, what was issued and has no flight: nobody
    computed it, or not after its issue. ``lost`` warps wrote more marks than fit.

    ``began`` is the cycle of the first mark. On the CPU engine a Launch's timeline has the engine's own events
    too, in cycles from there: ``copies``, a flight for each copy that signals a barrier; ``unsignalled``, every
    other asynchronous operation, from its issue to the end of the first wait for its group; and ``barriers``,
    the waits of warps at barriers of no ring, among threads, blocks or the grid."""

    title: str
    engine: str
    warps: int
    spans: list = field(repr=False)
    flights: list = field(repr=False)
    lost: int
    undrawn: dict = field(default_factory=dict)
    began: int = 0
    copies: list = field(default_factory=list, repr=False)
    unsignalled: list = field(default_factory=list, repr=False)
    barriers: list = field(default_factory=list, repr=False)

    def groups(self):
        """A Span for each group that a warp has waited for, of what signals no barrier; products are of all
        four warps of a warpgroup."""
        found = {}
        for event in self.unsignalled:
            first, count = (event.warp // 4 * 4, 4) if event.barrier.startswith("wgmma") else (event.warp, 1)
            for warp in range(first, first + count) if event.end > event.start else ():
                found.setdefault((warp, event.barrier, event.phase), []).append(event)
        return [Span("group", warp, 0, 0, number, min(e.start for e in group), max(e.end for e in group), what)
                for (warp, what, number), group in found.items()]  # fmt: skip

    def notes(self):
        """Sentences on what the picture does not show, though it was issued."""
        others = Counter(event.barrier for event in self.unsignalled if event.end <= event.start)
        said = [f"{n} issues of {ring or 'a ring'} have no flight: no compute is known to be theirs"
                for ring, n in self.undrawn.items()]  # fmt: skip
        for what, n in others.items():
            why = "over by its commit" if what.startswith("tcgen05") else "no wait for its group was seen"
            said.append(f"{n} x {what}: {why}; the file for Perfetto has when each was issued")
        if self.lost:
            said.append(f"{self.lost} warps wrote more marks than are kept; their end is missing")
        return said

    def _each(self):
        return [self]


class Timelines(_Drawn, list):
    """Those of several blocks of a launch, drawn one above the other."""

    @classmethod
    def of(cls, timelines):
        """In cycles from the first mark of all."""
        began = min(timeline.began for timeline in timelines)
        return cls(_later(timeline, timeline.began - began) for timeline in timelines)

    def notes(self):
        """What the picture does not show, with the title of each that it is about."""
        return [f"{timeline.title}: {note}" for timeline in self for note in timeline.notes()]

    def _each(self):
        return self


def _later(timeline, cycles):
    """The same with all that happens so many cycles later."""
    def moved(entries):
        if entries and not isinstance(entries[0], Span):
            return [event._replace(start=event.start + cycles, end=event.end + cycles) for event in entries]
        return [replace(span, start=span.start + cycles, end=span.end + cycles) for span in entries]

    parts = "spans", "flights", "copies", "unsignalled", "barriers"
    changed = {name: moved(getattr(timeline, name)) for name in parts}
    return replace(timeline, began=timeline.began - cycles, **changed)


def record(plan, block=0, simulate_options=None, title=None, model=False):
    """The :class:`Timeline` of one block of a ``systems.Plan`` whose configuration has trace; ``model``: of the
    model of an SM in place of the CPU engine.

    ``title`` tells it from others of the same picture; default the variant's name and the block.
    Raises TimelineError, and what the engines raise."""
    case, bound = plan.case, plan.bound
    if not getattr(bound.config, "trace", False):
        raise TimelineError(f"variant {bound.variant.name} was not built with trace=1, or has no marks")
    marks = np.zeros((bound.kernel.threads // 32, CAPACITY, MARK_BYTES // 4), np.uint32)
    if case.gpu:
        buffer = DeviceArray.of(case.gpu, marks)
        run = case.launcher(bound, {"trace_buffer": buffer.address, "trace_block": block})
        run()  # the second run finds the kernel loaded and the caches warm
        buffer.copy_from(marks)
        run()
        marks = buffer.to_numpy()
    elif model:
        bound = Bound(bound.problem, bound.variant, bound.config, resident=resident_blocks)  # of a GPU's grid
        out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
        args = bound.arguments((*case.arrays, out), extra={"trace_buffer": marks, "trace_block": block})
        write_clocks(bound.kernel, bound.blocks, args, bound.shared_bytes, marks, block)
    else:
        extra = {"trace_buffer": marks, "trace_block": block}
        told(case.run(bound, extra=extra, **(simulate_options or {}))[1])
    if not marks.any():
        raise TimelineError(f"block {block} has written nothing: is there such a block?")
    engine = case.gpu.name if case.gpu else MODEL if model else "CPU engine, virtual cycles"
    return decode(marks, title or f"{bound.variant.name}, block {block}", engine)


def decode(marks, title, engine, layout=None):
    """A :class:`Timeline` from marks (warps, CAPACITY, 4) uint32: clock low, high, what, 1 if written.

    ``layout`` is the kernel's ``Shared``, which names the rings."""
    names = {0: "", **(layout.rings if layout else {})}
    written = marks[:, :, 3] == 1
    clocks = marks[:, :, 0].astype(np.int64) | marks[:, :, 1].astype(np.int64) << 32
    began = int(clocks[written].min())
    clocks -= began
    spans = []
    for warp in range(len(marks)):
        uses = Counter()
        count = int(written[warp].sum())
        for m in range(count):
            about, start = int(marks[warp, m, 2]), int(clocks[warp, m])
            kind, stage, parity, ring = about & 0xFF, about >> 8 & 0xFF, about >> 16 & 1, about >> 17
            if m == count - 1 and kind not in (ISSUE, COMPUTE):
                continue  # nothing tells when it ended; of these two the beginning counts
            end, ring = int(clocks[warp, min(m + 1, count - 1)]), names.get(ring, f"ring {ring}")
            spans.append(Span(ACTIVITIES[kind], warp, stage, parity, uses[ring, kind], start, end, ring))
            uses[ring, kind] += 1
    lost = int((written.sum(axis=1) == CAPACITY).sum())
    flights, undrawn = [], {}
    for ring, of_ring in _by_ring(spans).items():
        found = _flights(of_ring)
        flights += [replace(flight, ring=ring) for flight in found]
        if missing := sum(span.activity == "issue" for span in of_ring) - len(found):
            undrawn[ring] = missing
    return Timeline(title, engine, len(marks), spans, flights, lost, undrawn, began)


def with_copies(timeline, events):
    """The Timeline with the CPU engine's ``events`` of its block. Copies to a barrier that no flight is about,
    as one without a ring, are flights as they are; so are those that another block of the cluster sends here,
    all that a line of its warp sends for one phase together."""
    def of(kind):
        return [event._replace(start=event.start - timeline.began, end=event.end - timeline.began)
                for event in events if event.kind == kind]  # fmt: skip

    copies, rings = of("flight"), {flight.ring for flight in timeline.flights}
    more = {}
    for number, copy in enumerate(copies):
        ring, _, place = copy.barrier.partition(".")
        sent = copy.sender != copy.block
        if sent or "" not in rings and ring not in rings:
            stage, lane = int("".join(filter(str.isdigit, place)) or 0), f"{ring}, block {copy.sender}"
            key = (copy.sender, copy.warp, copy.line, copy.barrier, copy.phase) if sent else number
            span = Span("flight", copy.warp, stage, copy.phase & 1, copy.phase, copy.start, copy.end,
                        lane if sent else ring)  # fmt: skip
            known = more.get(key, span)
            more[key] = replace(span, start=min(known.start, span.start), end=max(known.end, span.end))
    more = list(more.values())
    drawn = {span.ring for span in more}
    undrawn = {ring: count for ring, count in timeline.undrawn.items() if ring not in drawn}
    marked = {span.ring for span in timeline.spans}
    waits = [] if "" in marked else [w for w in of("wait") if w.barrier.partition(".")[0] not in marked]
    barriers = [*_waits(waits, "phase"), *_waits(of("meet"), "end")]
    return replace(timeline, flights=[*timeline.flights, *more], undrawn=undrawn, copies=copies,
                   unsignalled=of("async"), barriers=barriers)  # fmt: skip


def _waits(events, alike):
    """A Span for each wait of a warp, from when the last of its lanes comes; ``alike``: the field in which all
    events of one are the same."""
    waits = {}
    for event in events:
        waits.setdefault((event.warp, event.barrier, getattr(event, alike)), []).append(event)
    return [Span("at a barrier", warp, 0, 0, 0, max(e.start for e in of), max(e.end for e in of), barrier)
            for (warp, barrier, _), of in waits.items()]  # fmt: skip


def _by_ring(spans):
    """``{ring: its spans}``. A step that names no ring is of the only one there is, if there is only one."""
    rings = {span.ring for span in spans if span.ring}
    groups = {}
    for span in spans:
        groups.setdefault(next(iter(rings)) if len(rings) == 1 else span.ring, []).append(span)
    return groups


def _flights(spans):
    """Spans from the end of each issue until the first warp has seen that use of the stage full."""
    computes, issues = ([s for s in spans if s.activity == kind] for kind in ("compute", "issue"))
    found = max(_by_time(computes, issues), _in_order(computes, issues), key=len)
    return [replace(issue, activity="flight", start=min(issue.end, end), end=end) for issue, end in found]


def _by_time(computes, issues):
    """(an issue, when its use was seen) of all that were: by the next compute of the same stage and parity,
    before the stage is issued anew. A warp that issues and computes has that compute itself; what it does not
    compute, and what all other warps issue, is for any that issues nothing."""
    issuing, seen, anew, found = {span.warp for span in issues}, {}, {}, []
    for span in sorted(computes, key=lambda span: span.start):
        who = span.warp if span.warp in issuing else None
        seen.setdefault((who, span.stage, span.parity), []).append(span.start)
    for span in sorted(issues, key=lambda span: span.start):
        for key in (span.warp, span.stage), (None, span.stage, span.parity):
            anew.setdefault(key, []).append(span.start)

    def first(starts, after, found=bisect.bisect_left):
        return next(iter(starts[found(starts, after) :][:1]), math.inf)

    for issue in issues:
        use = issue.stage, issue.parity
        for who, again in (issue.warp, use[:1]), (None, (issue.stage, 1 - issue.parity)):
            start, again = first(seen.get((who, *use), []), issue.start), (who, *again)
            if start < first(anew.get(again, []), issue.start, bisect.bisect_right):
                found.append((issue, start))
                break
    return found


def _in_order(computes, issues):
    """The same where the warps' clocks do not tell, as the virtual ones of warps that meet by flags: the k-th
    issue of a warp to a stage is the k-th that anybody computes there."""
    issued, seen = {}, {}
    for spans, by in (issues, issued), (computes, seen):
        for span in spans:
            by.setdefault(span.stage, {}).setdefault(span.warp, []).append(span)
    laps = {stage: [min(s.start for s in lap if s) for lap in itertools.zip_longest(*of.values())]
            for stage, of in seen.items()}  # fmt: skip
    return [pair for stage, of in issued.items() for own in of.values()
            for pair in zip(own, laps.get(stage, ()), strict=False) if pair[1] >= pair[0].start]  # fmt: skip


def shares(timeline):
    """``{warp: {activity: share of the warp's time}}``."""
    totals = {}
    for span in timeline.spans:
        totals.setdefault(span.warp, Counter())[span.activity] += span.end - span.start
    return {warp: {activity: time / max(1, of.total()) for activity, time in of.items()}
            for warp, of in totals.items()}  # fmt: skip


def save(timelines, path, start=0, end=None):
    """Write ``timelines`` one above the other: .png or .svg (needs the extra ``plot``), or .json, Chrome's
    trace format, for Perfetto. ``start`` and ``end`` cut a picture to those cycles."""
    path = check_path(path)
    if path.suffix == ".json":
        path.write_text(json.dumps(chrome_trace(timelines)) + "\n")
    else:
        figure(timelines, start, end).savefig(path, dpi=150, bbox_inches="tight")
    return path


def check_path(path):
    """The Path of a file that :func:`save` can write; raises TimelineError, ImportError without matplotlib."""
    path = Path(path)
    if path.suffix not in (".png", ".svg", ".json"):
        raise TimelineError(f"{path.name}: a timeline is written as .png, .svg or .json")
    if not path.absolute().parent.is_dir():
        raise TimelineError(f"{path}: there is no directory {path.absolute().parent}")
    if path.suffix != ".json":
        import matplotlib  # noqa: F401  what has run before would be lost without it
    return path


def chrome_trace(timelines):
    """Chrome's trace events, a process for each timeline; one cycle is shown as a nanosecond."""
    events = []

    def name(what, text, **where):
        events.append({"ph": "M", "name": what, "args": {"name": text}, **where})

    for pid, timeline in enumerate(timelines):
        name("process_name", f"{timeline.title} ({timeline.engine})", pid=pid)
        for span in timeline.spans:
            events.append({
                "ph": "X", "pid": pid, "tid": span.warp, "cat": span.activity,
                "name": _named(span),
                "ts": span.start / 1000, "dur": (span.end - span.start) / 1000,
                "args": {"stage": span.stage, "parity": span.parity, "use": span.use},
            })  # fmt: skip
        overlapping = (*timeline.flights, *timeline.copies, *timeline.groups(), *timeline.barriers)
        for number, flight in enumerate(overlapping):
            if isinstance(flight, Span) and flight.activity != "flight":
                cat, lane = flight.activity, flight.ring
            elif isinstance(flight, Span):
                cat, lane = "flight", _named(flight)
            else:
                cat, lane = "copy", f"copies to {flight.barrier}"
            for ph, when in (("b", flight.start), ("e", flight.end)):
                events.append({"ph": ph, "pid": pid, "tid": flight.warp, "cat": cat, "name": lane,
                               "id": f"{pid}.{number}", "ts": when / 1000})  # fmt: skip
        for event in timeline.unsignalled:
            events.append({
                "ph": "i", "s": "t", "pid": pid, "tid": event.warp, "cat": "issue", "name": event.barrier,
                "ts": event.start / 1000, "args": {"bytes": event.bytes, "line": event.line},
            })  # fmt: skip
        for warp in range(timeline.warps):
            name("thread_name", f"warp {warp}", pid=pid, tid=warp)
    return {"traceEvents": events, "displayTimeUnit": "ns"}


def _named(span):
    return " ".join(filter(None, (span.activity, span.ring, str(span.stage))))


def figure(timelines, start=0, end=None):
    """A matplotlib figure: a row for each warp, below it what it has in flight, stage by stage and kind by
    kind, and above it when it waits at a barrier."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    drawn = (each for t in timelines for each in (*t.spans, *t.flights, *t.groups(), *t.barriers))
    last = end or max(span.end for span in drawn)
    heights = [t.warps for t in timelines]
    size = WIDTH, 1.2 + ROW * sum(heights) + 0.6 * len(timelines)
    drawing = Figure(figsize=size, layout="constrained")
    panels = drawing.subplots(len(timelines), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, timeline in zip(panels, timelines, strict=True):
        groups = timeline.groups()
        lanes = sorted({(flight.ring, flight.stage) for flight in timeline.flights})
        lanes += sorted({(group.ring, 0) for group in groups})
        for span in (*timeline.spans, *timeline.flights, *groups, *timeline.barriers):
            if span.end > start and span.start < last:
                _draw(axes, span, lanes, start, last)
        _name_lanes(axes, (*timeline.flights, *groups), lanes)
        axes.set_ylim(timeline.warps - 0.5, -0.5)
        axes.set_yticks(range(timeline.warps), [f"warp {w}" for w in range(timeline.warps)])
        axes.set_xlim(start, last)
        notes = [f"not drawn: {note}" for note in timeline.notes()]
        axes.set_title("\n".join([f"{timeline.title}: {timeline.engine}", *notes]), fontsize="medium")
    panels[-1].set_xlabel("cycles (numbers in the bars: stages)")
    optional = {"group": any(t.groups() for t in timelines), "at a barrier": any(t.barriers for t in timelines)}
    handles = [Patch(facecolor=colour, edgecolor="white", hatch=HATCHES.get(name), label=name)
               for name, colour in COLOURS.items() if optional.get(name, True)]  # fmt: skip
    drawing.legend(handles=handles, ncols=len(handles), loc="outside lower center", fontsize="small")
    return drawing


def _name_lanes(axes, spans, lanes):
    """Beside each warp's lines: the rings, or kinds of groups, that they are of, none upon another."""
    middles, beside, lowest = {}, axes.get_yaxis_transform(), -1
    for warp, ring in {(span.warp, span.ring) for span in spans}:
        places = [i for i, (name, _) in enumerate(lanes) if name == ring]
        middles[warp, ring] = warp + 0.03 + 0.4 * (sum(places) / len(places) + 0.5) / len(lanes)
    for (_, ring), middle in sorted(middles.items(), key=lambda pair: pair[1]):
        lowest = max(middle, lowest + 1.3 * TEXT / 72 / ROW)
        axes.text(1.005, lowest, ring, transform=beside, va="center", fontsize=TEXT)


def _draw(axes, span, lanes, start, last):
    """One bar, with its stage in it where there is room."""
    bottom, height = span.warp - 0.42, 0.4
    if span.activity == "at a barrier":
        bottom, height = span.warp - 0.48, 0.05
    if span.activity in ("flight", "group"):  # a thin line for each stage of each ring, and each kind of group
        height = 0.4 / len(lanes)
        bottom = span.warp + 0.03 + height * lanes.index((span.ring, span.stage))
    axes.broken_barh([(span.start, span.end - span.start)], (bottom, height),
                     facecolor=COLOURS[span.activity], edgecolor="white", linewidth=0.3,
                     hatch=HATCHES.get(span.activity))  # fmt: skip
    room = 0.9 * 72 * ROW * height  # points
    is_wide = span.end - span.start > 0.012 * (last - start)
    if is_wide and room > SMALLEST_TEXT and span.activity in ("compute", "flight", "issue"):
        middle = (max(span.start, start) + min(span.end, last)) / 2
        axes.text(middle, bottom + height / 2, f"{span.stage}", ha="center", va="center",
                  fontsize=min(TEXT, room), color="white", clip_on=True)  # fmt: skip
