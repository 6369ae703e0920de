"""Timelines: what each warp of a block does when, from marks that the kernel itself writes.

One format for both engines: on the GPU the marks hold the SM's clock, on the CPU engine virtual cycles, so
that prediction and measurement can be drawn one above the other. ``device/marks.py`` writes them."""

import io
import itertools
import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from ..device.marks import ACQUIRE, CAPACITY, COMMIT, COMPUTE, ISSUE, MARK_BYTES, RELEASE, WAIT
from ..engines.gpu.device import DeviceArray
from ..engines.waivers import told

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
           "other": YELLOW, "flight": GREEN}  # fmt: skip
HATCHES = {"acquire": "////"}  # in print its grey looks like that of wait
WIDTH, ROW = 9.5, 0.75  # inches, of a picture and of a warp in it: what a notebook shows unshrunk
SMALLEST_TEXT, TEXT = 6.5, 7.5  # points


class TimelineError(ValueError):
    """Nothing can be drawn: no such block, a kernel without marks, an unknown file type."""


@dataclass(frozen=True)
class Span:
    """``activity`` of a warp on a stage, in cycles from the block's first mark. ``use`` counts how often
    the warp has come to this activity on that ring; parity is that of the stage's barrier. ``ring`` is its
    name in the kernel's ``Shared``, "" where the step was not called as the ring's function."""

    activity: str
    warp: int
    stage: int
    parity: int
    use: int
    start: int
    end: int
    ring: str = ""


@dataclass(frozen=True)
class Timeline:
    """``spans`` of one block. ``flights``: from the end of an issue until the first warp has seen the
    stage full, by the warp that issued. ``undrawn`` counts, by ring, what was issued and has no flight: nobody
    computed it, or not after its issue. ``lost`` warps wrote more marks than fit.

    ``began`` is the cycle of the first mark. On the CPU engine a Launch's timeline has the engine's own events
    too, in cycles from there: ``copies``, a flight for each copy that signals a barrier, and ``unsignalled``,
    the issue of every other asynchronous operation."""

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

    def notes(self):
        """Sentences on what the picture does not show, though it was issued."""
        others = Counter(event.barrier for event in self.unsignalled)
        said = [f"{n} issues of {ring or 'a ring'} have no flight: no compute is known to be theirs"
                for ring, n in self.undrawn.items()]  # fmt: skip
        said += [f"{n} x {what}: the file for Perfetto has when each was issued" for what, n in others.items()]
        if self.lost:
            said.append(f"{self.lost} warps wrote more marks than are kept; their end is missing")
        return said

    def save(self, path, start=0, end=None):
        """Write it, as :func:`save` does; returns the Path."""
        return save([self], path, start, end)

    def _repr_png_(self):
        """The picture, for notebooks; None without matplotlib."""
        picture = io.BytesIO()
        try:
            figure([self]).savefig(picture, format="png", dpi=100, bbox_inches="tight")
        except ModuleNotFoundError:
            return None
        return picture.getvalue()


def record(plan, block=0, simulate_options=None, title=None):
    """The :class:`Timeline` of one block of a ``systems.Plan`` whose configuration has trace.

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
    else:
        extra = {"trace_buffer": marks, "trace_block": block}
        told(case.run(bound, extra=extra, **(simulate_options or {}))[1])
    if not marks.any():
        raise TimelineError(f"block {block} has written nothing: is there such a block?")
    engine = case.gpu.name if case.gpu else "CPU engine, virtual cycles"
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
    as one without a ring, are flights as they are."""
    def of(kind):
        return [event._replace(start=event.start - timeline.began, end=event.end - timeline.began)
                for event in events if event.kind == kind]  # fmt: skip

    copies, rings = of("flight"), {flight.ring for flight in timeline.flights}
    more = []
    for copy in copies:
        ring, _, number = copy.barrier.partition(".")
        if "" not in rings and ring not in rings:
            stage = int("".join(filter(str.isdigit, number)) or 0)
            span = Span("flight", copy.warp, stage, copy.phase & 1, copy.phase, copy.start, copy.end, ring)
            more.append(span)
    drawn = {span.ring for span in more}
    undrawn = {ring: count for ring, count in timeline.undrawn.items() if ring not in drawn}
    return replace(timeline, flights=[*timeline.flights, *more], undrawn=undrawn, copies=copies,
                   unsignalled=of("async"))  # fmt: skip


def _by_ring(spans):
    """``{ring: its spans}``. A step that names no ring is of the only one there is, if there is only one."""
    rings = {span.ring for span in spans if span.ring}
    groups = {}
    for span in spans:
        groups.setdefault(next(iter(rings)) if len(rings) == 1 else span.ring, []).append(span)
    return groups


def _flights(spans):
    """Spans from the end of each issue to the first compute of the same stage in the same lap of the ring.

    A warp that issues and computes has that compute itself, its next one on the stage. What other warps issue
    is computed by any: lap k of a stage is the k-th compute of a warp on it."""
    computing = {span.warp for span in spans if span.activity == "compute"}
    under_way, issued, computed, flights = {}, {}, {}, []
    for span in spans:
        if span.activity == "compute":
            computed.setdefault(span.stage, {}).setdefault(span.warp, []).append(span)
            if issue := under_way.pop((span.warp, span.stage), None):
                flights.append((issue, span.start))
        elif span.activity == "issue" and span.warp in computing:
            under_way[span.warp, span.stage] = span  # an earlier one that nobody has computed was empty
        elif span.activity == "issue":
            issued.setdefault(span.stage, {}).setdefault(span.warp, []).append(span)
    for stage, by_warp in issued.items():
        laps = [min(span.start for span in lap if span)
                for lap in itertools.zip_longest(*computed.get(stage, {}).values())]  # fmt: skip
        for issues in _in_laps(list(by_warp.values()), len(laps)):
            flights += zip(issues, laps, strict=False)
    return [replace(issue, activity="flight", start=issue.end, end=end)
            for issue, end in flights if end >= issue.end]  # fmt: skip


def _in_laps(issues, laps):
    """``issues``, a list for each producer warp of one stage, as lists of which the k-th is of lap k.

    Producers either fill every stage together, or take turns, so that one of them has few of its ``laps``."""
    each, together = max(map(len, issues)), sum(map(len, issues))
    if abs(together - laps) < abs(each - laps):
        return [sorted(itertools.chain(*issues), key=lambda span: span.start)]
    return issues


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
        for number, flight in enumerate((*timeline.flights, *timeline.copies)):  # which overlap each other
            if isinstance(flight, Span):
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
    """A matplotlib figure: a row for each warp, and below it what it has in flight, stage by stage."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    last = end or max(s.end for t in timelines for s in t.spans)
    heights = [t.warps for t in timelines]
    size = WIDTH, 1.2 + ROW * sum(heights) + 0.6 * len(timelines)
    drawing = Figure(figsize=size, layout="constrained")
    panels = drawing.subplots(len(timelines), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, timeline in zip(panels, timelines, strict=True):
        lanes = sorted({(flight.ring, flight.stage) for flight in timeline.flights})
        for span in (*timeline.spans, *timeline.flights):
            if span.end > start and span.start < last:
                _draw(axes, span, lanes, start, last)
        axes.set_ylim(timeline.warps - 0.5, -0.5)
        axes.set_yticks(range(timeline.warps), [f"warp {w}" for w in range(timeline.warps)])
        axes.set_xlim(start, last)
        notes = [f"not drawn: {note}" for note in timeline.notes()]
        axes.set_title("\n".join([f"{timeline.title}: {timeline.engine}", *notes]), fontsize="medium")
    panels[-1].set_xlabel("cycles (numbers in the bars: stages)")
    handles = [Patch(facecolor=colour, edgecolor="white", hatch=HATCHES.get(name), label=name)
               for name, colour in COLOURS.items()]  # fmt: skip
    drawing.legend(handles=handles, ncols=len(handles), loc="outside lower center", fontsize="small")
    return drawing


def _draw(axes, span, lanes, start, last):
    """One bar, with its stage in it where there is room."""
    bottom, height = span.warp - 0.42, 0.4
    if span.activity == "flight":  # a thin line for each stage of each ring
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
