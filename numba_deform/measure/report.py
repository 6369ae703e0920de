"""Tables and plots from the JSON of ``bench`` and ``sweep``."""

import itertools
import json
import re
from pathlib import Path

from ..engines.suggestions import closest
from ..kernels.registry import VARIANTS, current_name
from ..workloads.presets import PRESETS
from .parameters import show
from .predict import TIE
from .timeline import SERIES

# Markers and dashes say the same as the colours once more.
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")

HEADINGS = ("ms", "min .. max", "error", "Gtiles/s", "cycles/tile", "MB", "GB/s", "reached")
OWN_HEADINGS = ("ms", "min .. max", "error", "GB/s", "TFLOP/s", "reached")  # of pipelines of one's own
GRADIENT_HEADINGS = ("forward ms", "backward ms", "both ms", "MiB", "errors: out, value, locations, weights",
                     "reached")  # fmt: skip
STEP_HEADINGS = ("step ms", "min .. max", "MiB", "errors: loss, gradients")
COUNTERS = (  # heading, name in the row's profile, in what unit, written how
    ("ms", "duration_ns", 1e6, ".3f"),
    ("wavefronts/tile", "wavefronts_per_sample", 1, ".2f"),
    ("of peak", "wavefronts_percent", 100, ".0%"),
    ("issue slots", "issue_percent", 100, ".0%"),
    ("warps", "warps_percent", 100, ".0%"),
    ("L1 hits", "l1_hit_percent", 100, ".0%"),
    ("L2 MB", "l2_bytes", 1e6, ",.0f"),
    ("DRAM MB", "dram_bytes", 1e6, ",.0f"),
    ("instr./tile", "instructions_per_sample", 1, ".1f"),
    ("conflicts/tile", "bank_conflicts_per_sample", 1, ".2f"),
)
CEILING_NAMES = {"l1": "tiles through L1", "shared": "tiles from shared memory",
                 "tma": "a TMA instruction per tile", "copy": "copy bandwidth",
                 "launch": "an empty launch", "add-fp32": "additions in fp32",
                 "add-fp16": "additions in fp16", "add-fixed": "additions in 64-bit integers"}  # fmt: skip
LIMITS = {"l1": "L1", "shared": "shared memory", "tma": "TMA", "copy": "copy", "launch": "launch",
          "add-fp32": "additions", "add-fixed": "additions"}  # fmt: skip


PREDICTED = ("predicted for an {} by a model of an SM, not measured, and nothing compared (how far off: "
             f"bench/PREDICTED.md); those of one place are a tie, within {TIE:.0%}")  # fmt: skip
PLACED = "place", "ms", "probably within", "busiest"


def load(path):
    """The document of a result file, with the names that variants have now; ValueError if it is none."""
    document = json.loads(Path(path).read_text())
    if not isinstance(document, dict) or document.get("kind") not in ("bench", "sweep"):
        raise ValueError(f"{path} is no result of bench or sweep")
    for row in document["rows"]:
        name, *parameters = row["variant"].split(" ")
        row["variant"] = " ".join([current_name(name), *parameters])
    return document


def _where(row):
    """The row's workload: its name, pattern, and what is unusual about it."""
    words = [word for word in (row["workload"], row["pattern"]) if word]
    if row["dtype"] not in ("float16", ""):
        words.append(row["dtype"])
    usual = PRESETS.get(row["workload"])
    if usual and row.get("num_query") not in (None, usual.num_query):
        words.append(f"Q={row['num_query']}")
    return " ".join(words)


def _having(document, name):
    """The rows that have ``name``, by workload and then by its value."""
    rows = [r for r in document["rows"] if name in r and "error_text" not in r]
    return sorted(rows, key=lambda row: (_where(row), row[name]))


def _reached(row):
    return f"{row['closeness']:.0%} of {LIMITS[row['bounded_by']]}" if "closeness" in row else ""


def _measured(row):
    return (
        f"{row['median_ms']:.3f}", f"{row['min_ms']:.3f} .. {row['max_ms']:.3f}", f"{row['error']:.1e}",
        f"{row['gigatiles_per_second']:.1f}", f"{row['cycles_per_tile']:.1f}",
        f"{row['gigabytes_per_second'] * row['median_ms']:,.0f}",  # older files lack the bytes
        f"{row['gigabytes_per_second']:,.0f}", _reached(row),
    )  # fmt: skip


def _moved(row):
    """Of a pipeline."""
    names = "gigabytes_per_second", "teraflops_per_second"
    rates = [f"{row[name]:,.1f}" if name in row else "" for name in names]
    spread = f"{row['min_ms']:.4f} .. {row['max_ms']:.4f}"
    return f"{row['median_ms']:.4f}", spread, f"{row['error']:.1e}", *rates, _reached(row)


def _gradients(row):
    def ms(of):
        return f"{of['median_ms']:.3f}" if of else ""

    errors = ", ".join(f"{row['errors'][name]:.1e}" if name in row["errors"] else "-"
                       for name in ("out", "value", "locations", "weights"))  # fmt: skip
    return ms(row.get("forward")), ms(row), ms(row.get("both")), _mebibytes(row), errors, _reached(row)


def _step(row):
    errors = ", ".join(f"{error:.1e}" for error in row["errors"].values())
    return f"{row['median_ms']:.1f}", f"{row['min_ms']:.1f} .. {row['max_ms']:.1f}", _mebibytes(row), errors


def _mebibytes(row):
    return f"{row['peak_bytes'] / 2**20:,.0f}" if "peak_bytes" in row else ""


def _counted(row):
    counts = row["profile"]
    return [format(counts[key] / unit, how) if key in counts else "" for _, key, unit, how in COUNTERS]


def _places(rows):
    """The rows with their ``place`` among those of their workload: whatever is within TIE of the first of a
    place shares it."""
    placed = []
    for _, own in itertools.groupby(rows, _where):
        first, place = 0.0, 0
        for number, row in enumerate(own, 1):
            if row["predicted_ms"] > first * (1 + TIE):
                first, place = row["predicted_ms"], number
            placed.append({**row, "place": place})
    return placed


def _predicted(row):
    least, most = row["interval_ms"]
    return str(row["place"]), f"{row['predicted_ms']:.4f}", f"{least:.4f} .. {most:.4f}", row["binds"]


def _ceiling(row):
    cycles = f"{row['cycles_per_tile']:.1f}" if "cycles_per_tile" in row else ""
    return f"{row['median_ms']:.3f}", cycles, row["config"]


def caption(document):
    """Where and how the numbers were measured, in a line."""
    machine, clock = document["machine"], document.get("clock")
    if not machine["gpu"]:
        return "CPU engine: virtual time, not measured"
    settings = document["settings"]
    text = f"{machine['gpu']}, driver {machine['driver']}, medians of {settings['repeats']}"
    return text + (f", cycles at {clock['ghz']:.2f} GHz" if clock else "")


def summary(documents, variants=()):
    """(title, headings, rows of texts): variants against the workloads of all documents, times in ms and
    what costs them. In brackets, how many times as long as ``direct`` each takes. ``variants`` chooses rows,
    in this order; ValueError names one that is not there."""
    measured = [row for document in documents for row in _having(document, "median_ms")]
    places = list(dict.fromkeys(_where(row) for row in measured))
    times = {(row["variant"], _where(row)): row["median_ms"] for row in measured}
    listed = [row["variant"] for document in documents for row in document["rows"]]
    rows = {}
    for name in dict.fromkeys(listed):
        errors = [row["error"] for row in measured if row["variant"] == name]
        if errors:
            known = VARIANTS.get(name.split(" ")[0])  # a peer is none
            cells = [_against(times, name, place) for place in places]
            told = (known.systems, known.why) if known else ("", "")
            rows[name] = (name, told[0], *cells, f"{max(errors):.1e}", told[1])
    for name in variants:
        if name not in rows:
            raise ValueError(f"no row {name!r}; there are {', '.join(rows)}{closest(name, rows)}")
    headings = ("variant", "rows", *places, "error", "what costs it time")
    return caption(documents[0]), headings, [rows[name] for name in variants or rows]


def _against(times, name, place):
    ms, base = times.get((name, place)), times.get(("direct", place))
    if ms is None:
        return ""
    return f"{ms:.3f} ({ms / base:.2f})" if base else f"{ms:.3f}"


def tables(document, parts=None):
    """rich tables: the rows, and the ceilings if there are any; or other ``parts``, such as a summary.

    They break lines between words only, and may so be wider than a narrow terminal: print with crop=False."""
    from rich.table import Table

    drawn = []
    for title, headings, rows in parts or _parts(document):
        table = Table(title=title, title_justify="left")
        for heading, *cells in zip(headings, *rows, strict=True):
            words = " ".join([heading, *map(str, cells)]).split()
            table.add_column(heading, overflow="fold", min_width=max(map(len, words)))  # no word is split
        for _, group in itertools.groupby(rows, lambda row: row[0]):
            first, *others = group
            table.add_row(*first, end_section=not others)
            for row in others:
                table.add_row("", *row[1:], end_section=row is others[-1])
        drawn.append(table)
    return drawn


def markdown(document, parts=None):
    """The same as Markdown."""
    texts = ("\n".join(markdown_lines(*part)) for part in parts or _parts(document))
    return "\n\n".join(texts) + "\n"


def markdown_lines(title, headings, rows, right=()):
    """The lines of one table of texts under its title; the columns ``right`` are set to the right."""
    rules = ["--:" if heading in right else "---" for heading in headings]
    cells = ([str(cell).replace("|", "\\|") for cell in row] for row in (headings, rules, *rows))
    return [title, "", *(f"| {' | '.join(row)} |" for row in cells)]


def _parts(document):
    """(title, headings, rows of texts) of each table that has rows."""
    measured = _having(document, "median_ms")
    profiled, told = [row for row in measured if "profile" in row], _having(document, "predicted_ms")
    usual = {"gradients": (GRADIENT_HEADINGS, _gradients), "training": (STEP_HEADINGS, _step)}.get(
        document.get("what"), (HEADINGS, _measured))  # fmt: skip
    own, timed = ([row for row in measured if (row.get("kind") == "pipeline") == is_own] for is_own in (1, 0))
    for title, headings, rows, cells in (
        (caption(document), usual[0], timed, usual[1]),
        (caption(document), OWN_HEADINGS, own, _moved),
        *((f"{caption(document)}; {how}", ("virtual cycles", "error"), rows,
           lambda row: (f"{row['virtual_cycles']:,.0f}", f"{row['error']:.1e}"))
          for how, rows in _by_fetch(_having(document, "virtual_cycles")).items()),
        (PREDICTED.format(next((row["model"] for row in told if "model" in row), "H200")), PLACED,
         _places(told), _predicted),
        ("ceilings, for the same number of tiles or bytes", ("ms", "cycles/tile", "configuration"),
         [row for row in document.get("ceilings", ()) if row["best"]], _ceiling),
        ("counters of one launch, by Nsight Compute", [heading for heading, *_ in COUNTERS],
         [row for row in profiled if "error_text" not in row["profile"]], _counted),
        ("without counters", ("why there are no counters",),
         [row for row in profiled if "error_text" in row["profile"]],
         lambda row: (row["profile"]["error_text"],)),
        ("without a time", ("why there is no time",),
         [row for row in document["rows"] if "error_text" in row], lambda row: (row["error_text"],)),
    ):  # fmt: skip
        if rows:
            kind = "ceiling" if "ceiling" in rows[0] else "variant"
            names = [CEILING_NAMES[row[kind]] if kind == "ceiling" else row[kind] for row in rows]
            if all(row.get("kind") == "pipeline" for row in rows):
                kind = "pipeline"
            texts = [(_where(row), name, *cells(row)) for row, name in zip(rows, names, strict=True)]
            yield title, ("workload", kind, *headings), texts


def _by_fetch(rows):
    """Rows of the CPU engine by what their virtual cycles can be compared with, in words.

    Its clock does not let a plain load wait, so a pipeline of plain loads is no rival of one that TMA feeds."""
    groups = {}
    for row in rows:
        known = VARIANTS.get(row["variant"].split(" ")[0])
        how = "tiles through L1, where plain loads have no latency" if known and known.fetch == "l1" else "TMA"
        how = {"pipeline": "pipelines", "kernel": "gradients"}.get(row.get("kind"), how)
        groups.setdefault(how, []).append(row)
    return groups


PANELS_ABREAST = 3


def plot(document, path, x=None):
    """Draw ``document`` into a file, PNG or SVG by its name. Needs the extra ``plot``.

    With ``x``, time against it, a line for each variant and workload, its bars from the fastest run to the
    slowest: ``sigma`` in pixels, of the pattern local(sigma); ``queries``; or a parameter of the variants, such
    as ``stages``, which is the default for a sweep. An axis whose values differ much is logarithmic. Without,
    a bench is time by variant, a panel for each workload, its ceilings as lines. A document of the CPU engine
    has virtual cycles in place of milliseconds, and its axis says so.

    Raises ValueError when nothing was measured or no two rows differ in ``x`` alone, ImportError without
    matplotlib."""
    from matplotlib.figure import Figure

    rows, unit = _having(document, "median_ms"), "ms"
    if not rows:
        unit = "virtual cycles of the CPU engine, not measured"
        rows = [dict(row, **dict.fromkeys(("median_ms", "min_ms", "max_ms"), row["virtual_cycles"]))
                for row in _having(document, "virtual_cycles")]  # fmt: skip
    if not rows:
        raise ValueError("there is nothing to plot: no row has a measured time, nor virtual cycles")
    if document["kind"] == "bench" and x is None:
        figure = _plot_bars(Figure, document, rows, unit)
    else:
        figure = _plot_lines(Figure, rows, x or "stages", unit)
    figure.suptitle(caption(document), fontsize="small")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    return path


def _plot_bars(make, document, rows, unit):
    places = list(dict.fromkeys(map(_where, rows)))
    most = max(sum(_where(row) == place for row in rows) for place in places)
    across = min(PANELS_ABREAST, len(places))
    down = -(-len(places) // across)
    figure = make(figsize=(7 * across, (1.5 + 0.3 * most) * down), layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes in panels[len(places) :]:
        axes.set_axis_off()
    for axes, place in zip(panels, places, strict=False):
        bars = sorted((r for r in rows if _where(r) == place), key=lambda r: -r["median_ms"])
        times = [row["median_ms"] for row in bars]
        colours = [SERIES[1] if row["kind"] == "peer" else SERIES[0] for row in bars]
        names = [row["variant"] for row in bars]
        axes.barh(names, times, xerr=_spreads(bars), color=colours, height=0.7)
        ceilings = [r for r in document["ceilings"] if r["best"] and _where(r) == place]
        for number, row in enumerate(r for r in ceilings if r["ceiling"] != "launch"):
            axes.axvline(row["median_ms"], color=SERIES[2 + number], linestyle=DASHES[number % 4],
                         label=CEILING_NAMES[row["ceiling"]])  # fmt: skip
        if _wide(times):
            axes.set_xscale("log")
        axes.set_title(place)
        axes.set_xlabel(unit)
        if ceilings:
            axes.legend(fontsize="small")
    return figure


def _spreads(rows):
    """How far the fastest run of each row lies below its median, and the slowest above."""
    below = [row["median_ms"] - row["min_ms"] for row in rows]
    return below, [row["max_ms"] - row["median_ms"] for row in rows]


def _plot_lines(make, rows, x, unit):
    lines = {}
    for row in rows:
        tick = _tick(row, x)
        if tick is not None:
            lines.setdefault(_line_of(row, x), {})[tick] = row
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    if not lines:
        known = {name for row in rows for name in row.get("parameters", {})}
        raise ValueError(f"x={x}: no two rows that were measured differ in it alone"
                         + closest(x, ["sigma", "queries", *known] if x not in known else ()))  # fmt: skip
    figure = make(figsize=(8, 5))
    axes = figure.subplots()
    places, variants = (list(dict.fromkeys(names)) for names in zip(*lines, strict=True))
    for (place, variant), points in lines.items():
        number, ticks = variants.index(variant), sorted(points)
        along = [points[tick] for tick in ticks]
        times, colour = [row["median_ms"] for row in along], SERIES[number % 8]
        axes.errorbar(ticks, times, _spreads(along), fmt="none", color=colour, capsize=3)
        axes.plot(
            ticks, times, label=variant if len(places) == 1 else f"{variant}, {place}", color=colour,
            marker=MARKERS[(number + number // 8) % 8],  # other pairs when the colours come again
            linestyle=DASHES[places.index(place) % 4],
        )  # fmt: skip
    if len(places) == 1:
        axes.set_title(*places)
    _scale(axes, x, [row for points in lines.values() for row in points.values()], lines.values())
    axes.set_ylabel(unit)
    axes.legend(fontsize="small", bbox_to_anchor=(1.02, 1), loc="upper left")
    return figure


def _scale(axes, x, rows, lines):
    """Ticks and labels of both axes; what differs much is logarithmic."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ticks = sorted({tick for points in lines for tick in points})
    if not isinstance(ticks[0], str):
        if _wide(ticks):
            axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    axes.set_xlabel({"sigma": "sigma of local(sigma), pixels"}.get(x, x))
    if _wide([row["median_ms"] for row in rows]):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.05 * max(row["max_ms"] for row in rows))


def _wide(values):
    """Whether an axis with these is better a logarithmic one."""
    return 0 < 8 * min(values) < max(values)


def _tick(row, x):
    """The row's number (or text) on the axis ``x``; None if it has none."""
    if x == "sigma":
        local = re.fullmatch(r"local\((.+)\)", row["pattern"])
        return float(local[1]) if local else None
    if x == "queries":
        return row.get("num_query")
    value = {**row.get("config", {}), **row.get("parameters", {})}.get(x)
    return value if value is None or isinstance(value, (int, float)) else show(value)


def _line_of(row, x):
    """(workload, variant), without what ``x`` says: the name of the line that a row is a point of."""
    hidden = {"sigma": {"pattern": "local"}, "queries": {"num_query": None}}.get(x, {})
    words = [word for word in row["variant"].split(" ") if not word.startswith(f"{x}=")]
    return _where(row | hidden), " ".join(words)
