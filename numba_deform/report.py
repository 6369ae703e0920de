"""Tables and plots from the JSON of ``bench`` and ``sweep``."""

import json
from pathlib import Path

from .bench import show
from .variants import VARIANTS

# Okabe and Ito's colours, which people with colour-blind eyes can tell apart; markers and dashes say
# the same once more.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKERS = "osD^vPX*"
DASHES = ("-", "--", "-.", ":")

HEADINGS = (
    "workload", "variant", "ms", "min .. max", "error", "Gtiles/s", "cycles/tile", "bounded by",
    "closeness",
)  # fmt: skip
VIRTUAL_HEADINGS = ("workload", "variant", "virtual cycles", "error")
FAILED_HEADINGS = ("workload", "variant", "why there is no time")
CEILING_HEADINGS = ("workload", "ceiling", "ms", "cycles/tile", "configuration")
CEILING_NAMES = {
    "l1": "tiles through L1",
    "shared": "tiles from shared memory",
    "tma": "a TMA instruction per tile",
    "copy": "copy bandwidth",
    "launch": "an empty launch",
}


def load(path):
    """The document of a result file; raises ValueError for one that is none."""
    document = json.loads(Path(path).read_text())
    if not isinstance(document, dict) or document.get("kind") not in ("bench", "sweep"):
        raise ValueError(f"{path} is no result of bench or sweep")
    return document


# --- tables ---------------------------------------------------------------------------------------
def _where(row):
    text = f"{row['workload']} {row['pattern']}"
    return text if row["dtype"] == "float16" else f"{text} {row['dtype']}"


def _having(document, name):
    """The rows that have ``name``, by workload and then by its value."""
    rows = [r for r in document["rows"] if name in r and "error_text" not in r]
    return sorted(rows, key=lambda row: (_where(row), row[name]))


def _measured(row):
    closeness = f"{row['closeness']:.0%}" if "closeness" in row else ""
    return (
        _where(row), row["variant"], f"{row['median_ms']:.3f}",
        f"{row['min_ms']:.3f} .. {row['max_ms']:.3f}", f"{row['error']:.1e}",
        f"{row['gigatiles_per_second']:.1f}", f"{row['cycles_per_tile']:.1f}",
        CEILING_NAMES.get(row.get("bounded_by"), ""), closeness,
    )  # fmt: skip


def _virtual(row):
    return _where(row), row["variant"], f"{row['virtual_cycles']:,.0f}", f"{row['error']:.1e}"


def _failed(row):
    return _where(row), row["variant"], row["error_text"]


def ceiling_cells(document):
    """Rows of texts under CEILING_HEADINGS, the best configuration of each ceiling."""
    return [
        (
            _where(row), CEILING_NAMES[row["ceiling"]], f"{row['median_ms']:.3f}",
            f"{row['cycles_per_tile']:.1f}" if "cycles_per_tile" in row else "", row["config"],
        )
        for row in document.get("ceilings", ())
        if row["best"]
    ]  # fmt: skip


def caption(document):
    """Where and how the numbers were measured, in a line."""
    machine, clock = document["machine"], document.get("clock")
    if not machine["gpu"]:
        return "CPU engine: virtual time, not measured"
    settings = document["settings"]
    text = f"{machine['gpu']}, driver {machine['driver']}, medians of {settings['repeats']}"
    return text + (f", cycles at {clock['ghz']:.2f} GHz" if clock else "")


def summary(documents):
    """(title, headings, rows of texts): variants against the workloads of all documents, times in ms and
    what costs them. In brackets, how many times as long as ``direct`` each takes.
    """
    measured = [row for document in documents for row in _having(document, "median_ms")]
    places = list(dict.fromkeys(_where(row) for row in measured))
    times = {(row["variant"], _where(row)): row["median_ms"] for row in measured}
    listed = [row["variant"] for document in documents for row in document["rows"]]
    rows = []
    for name in dict.fromkeys(listed):
        errors = [row["error"] for row in measured if row["variant"] == name]
        if errors:
            known = VARIANTS.get(name.split(" ")[0])  # a peer is none
            cells = [_against(times, name, place) for place in places]
            told = (known.systems, known.why) if known else ("", "")
            rows.append((name, told[0], *cells, f"{max(errors):.1e}", told[1]))
    headings = ("variant", "rows", *places, "error", "what costs it time")
    return caption(documents[0]), headings, rows


def _against(times, name, place):
    ms, base = times.get((name, place)), times.get(("direct", place))
    if ms is None:
        return ""
    return f"{ms:.3f} ({ms / base:.2f})" if base else f"{ms:.3f}"


def tables(document, parts=None):
    """rich tables: the rows, and the ceilings if there are any; or other ``parts``, such as a summary."""
    from rich.table import Table

    made = []
    for title, headings, rows in parts or _parts(document):
        table = Table(title=title, title_justify="left")
        for heading in headings:
            table.add_column(heading, overflow="fold")
        previous = None
        for row in rows:
            if previous not in (None, row[0]):
                table.add_section()
            table.add_row(row[0] if row[0] != previous else "", *row[1:])
            previous = row[0]
        made.append(table)
    return made


def markdown(document, parts=None):
    """The same as Markdown."""
    texts = []
    for title, headings, rows in parts or _parts(document):
        lines = [title, "", _line(headings), _line(["---"] * len(headings))]
        texts.append("\n".join(lines + [_line(row) for row in rows]))
    return "\n\n".join(texts) + "\n"


def _line(row):
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"


def _parts(document):
    """(title, headings, rows of texts) of each table that has rows."""
    failed = [row for row in document["rows"] if "error_text" in row]
    for title, headings, rows in (
        (caption(document), HEADINGS, [_measured(r) for r in _having(document, "median_ms")]),
        (
            caption(document), VIRTUAL_HEADINGS,
            [_virtual(r) for r in _having(document, "virtual_cycles")],
        ),
        (
            "ceilings, for the same number of tiles or bytes", CEILING_HEADINGS,
            ceiling_cells(document),
        ),
        ("without a time", FAILED_HEADINGS, [_failed(row) for row in failed]),
    ):  # fmt: skip
        if rows:
            yield title, headings, rows


# --- plots ----------------------------------------------------------------------------------------
def plot(document, path, x=None):
    """Draw ``document`` into a file, PNG or SVG by its name. Needs the extra ``plot``.

    bench   time by variant, a panel for each workload, its ceilings as lines
    sweep   time against parameter ``x`` (default stages), a line for every combination of the others

    Raises ValueError when nothing was measured or no row has parameter ``x``, ImportError without
    matplotlib.
    """
    from matplotlib.figure import Figure

    rows = _having(document, "median_ms")
    if not rows:
        raise ValueError("there is nothing to plot: no row has a measured time")
    if document["kind"] == "bench":
        figure = _plot_bench(Figure, document, rows)
    else:
        figure = _plot_sweep(Figure, rows, x or "stages")
    figure.savefig(path, dpi=150, bbox_inches="tight")
    return path


def _plot_bench(make, document, rows):
    places = list(dict.fromkeys(map(_where, rows)))
    most = max(sum(_where(row) == place for row in rows) for place in places)
    figure = make(figsize=(7 * len(places), 1.5 + 0.3 * most), layout="constrained")
    for axes, place in zip(figure.subplots(1, len(places), squeeze=False)[0], places, strict=True):
        mine = sorted((r for r in rows if _where(r) == place), key=lambda r: -r["median_ms"])
        times = [row["median_ms"] for row in mine]
        spreads = [
            [row["median_ms"] - row["min_ms"] for row in mine],
            [row["max_ms"] - row["median_ms"] for row in mine],
        ]
        colours = [COLOURS[0] if row["kind"] == "variant" else COLOURS[1] for row in mine]
        axes.barh([row["variant"] for row in mine], times, xerr=spreads, color=colours, height=0.7)
        shown = [r for r in document["ceilings"] if r["best"] and _where(r) == place]
        for number, row in enumerate(r for r in shown if r["ceiling"] != "launch"):
            axes.axvline(
                row["median_ms"], color=COLOURS[2 + number], linestyle=DASHES[number % 4],
                label=CEILING_NAMES[row["ceiling"]],
            )  # fmt: skip
        if max(times) > 8 * min(times):
            axes.set_xscale("log")
        axes.set_title(place)
        axes.set_xlabel("ms")
        axes.legend(fontsize="small")
    figure.suptitle(caption(document), fontsize="small")
    return figure


def _plot_sweep(make, rows, x):
    lines = {}
    for row in rows:
        if x in row.get("parameters", {}):
            rest = {k: v for k, v in row["parameters"].items() if k != x}
            words = [_where(row), row["name"], *(f"{k}={show(v)}" for k, v in rest.items())]
            point = (row["parameters"][x], row["median_ms"])
            lines.setdefault(" ".join(words), []).append(point)
    if not lines:
        raise ValueError(f"x={x}: no row that was measured has this parameter")
    figure = make(figsize=(8, 5))
    axes = figure.subplots()
    for number, (label, points) in enumerate(lines.items()):
        across, times = zip(*sorted(points), strict=True)
        axes.plot(
            across, times, label=label, color=COLOURS[number % 8], marker=MARKERS[number % 8],
            linestyle=DASHES[number // 8 % 4],
        )  # fmt: skip
    axes.set_xticks(list(dict.fromkeys(place for points in lines.values() for place, _ in points)))
    axes.set_xlabel(x)
    axes.set_ylabel("ms")
    axes.set_ylim(0, 1.05 * max(row["median_ms"] for row in rows))
    axes.legend(fontsize="small", bbox_to_anchor=(1.02, 1), loc="upper left")
    return figure
