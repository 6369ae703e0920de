"""``numba-deform budget``: what blocks take of an SM, for one configuration or a grid of them."""

from dataclasses import dataclass

from rich import box
from rich.table import Table

from ..attention.request import pick_variant
from ..device.limits import KB, limits_of
from ..kernels.budget import SIZES, Budget
from ..kernels.problem import ConfigError
from ..measure.parameters import show
from ..measure.report import markdown_lines
from .commands import RIGHT
from .inputs import check_architecture, combinations, make_constants, try_inspect, variant_keys, variant_options
from .output import console, counting, in_words, say

COMPILING = 5  # seconds that a kernel takes to compile, roughly


@dataclass(frozen=True)
class Row:
    """One configuration of the grid.

    parameters  those of the command line
    refusal     why it cannot run, or None
    config, budget  both None where it is refused for more than its size
    spills      loads from local memory, or None
    unknown     why the registers are not known, or nothing"""

    parameters: dict
    refusal: ConfigError | None = None
    config: object = None
    budget: Budget | None = None
    spills: int | None = None
    unknown: str = ""


def budget(pairs):
    """A long form for one configuration, a table for several."""
    options, chosen, swept, grid = expand(pairs)
    architecture = check_architecture(options, chosen.capability, f"variant {chosen.name}")
    limits_of(architecture)  # refuses one without known limits before anything is compiled
    constants = make_constants(options)
    given = options.get("registers")
    rows = []
    with counting(COMPILING) as advance:
        for number, parameters in enumerate(grid):
            advance(number, len(grid), in_words(parameters))
            rows.append(_examine(chosen, parameters, constants, architecture, given))
    title = f"{chosen.name} for {architecture}: {chosen.summary}"
    return print_rows(rows, swept, title, architecture, options.get("markdown", False), constants)


def print_rows(rows, swept, title, architecture, markdown=False, constants=None):
    """One Row in its long form, several as a table; a refused one by itself is raised. RIGHT."""
    if markdown:
        headers, cells, notes = _table(rows, swept)
        title += f"; {in_words(vars(constants))}" if constants else ""
        print("\n".join(markdown_lines(title, headers, cells, right=headers[:-1])))
        print("".join(f"\n{note}\n" for note in notes), end="")
        return RIGHT
    if rows[0].budget is None and len(rows) == 1:
        raise rows[0].refusal
    say("variant" if constants else "pipeline", title)
    if constants:
        say("constants", in_words(vars(constants)))
    if len(rows) > 1:
        _print_table(*_table(rows, swept))
    else:
        _print_row(rows[0], architecture)
    return RIGHT


def expand(pairs):
    """(options, variant, names with several values, parameters of each configuration): every combination
    of the values of the variant's parameters."""
    chosen = pick_variant(pairs.get("variant", "tma"))
    each, swept = combinations(pairs, [key.name for key in variant_keys(chosen)])
    parsed = [variant_options(one, "budget") for one in each]
    return parsed[-1][0], chosen, swept, [parameters for *_, parameters in parsed]


def _examine(chosen, parameters, constants, architecture, registers):
    """The Row of one configuration; compiles it where ``registers`` is None and it can run."""
    try:
        asked = chosen.unresolved(**parameters)
        config = asked.complete(constants) if hasattr(asked, "complete") else asked.resolve(constants)
    except ConfigError as error:
        return Row(parameters, error)
    refusal, inspection, unknown = None, None, ""
    try:
        config.resolve(constants)
    except ConfigError as error:
        refusal = error
    if registers == 0:
        unknown = "left out"
    elif registers is None and refusal:
        unknown = "not compiled"
    elif registers is None:
        inspection, unknown = try_inspect(chosen.kernel(config, constants), architecture)
    registers = inspection.registers if inspection else registers or None
    needs = Budget.of(config, constants, limits_of(architecture), registers)
    return Row(parameters, refusal, config, needs, inspection and inspection.spill_loads, unknown)


def _print_row(row, architecture):
    needs = row.budget
    config = row.config if isinstance(row.config, dict) else vars(row.config)
    say("configuration", in_words(config))
    for part, size in needs.shared._asdict().items():
        say(part, f"{size:,} bytes")
    say("shared memory", f"{needs.total:,} bytes ({needs.total / KB:.2f} KB) a block, {needs.how}")
    for size, left in needs.left.items():
        over = f"does not fit: {-left:,} bytes over ({-100 * left / SIZES[size]:.1f} %)"
        say(size, f"fits, {left:,} bytes left" if left >= 0 else over)
    say("registers", _registers(row))
    held = needs.occupancy
    share = f"{100 * needs.resident:.1f} % of {needs.limits.warps}"
    say("resident", f"{held.blocks} blocks, {held.warps} warps on an SM of {architecture}: {share}")
    counted = "" if needs.registers else " (registers are not counted)"
    say("limited by", " and ".join(held.limiters) + counted)
    if row.refusal:
        say("refused", row.refusal)


def _registers(row):
    if row.unknown:
        return f"not known: {row.unknown}"
    spills = "" if row.spills is None else f", {row.spills or 'no'} spill loads"
    return f"{row.budget.registers} a thread{spills}"


def _table(rows, swept):
    """(headers, cells of each row, notes): texts; a refused row ends with the number of a note."""
    budgets = [row.budget for row in rows if row.budget]
    parts = ["tiles", "barriers"] + ["metadata"] * any(b.shared.metadata for b in budgets)
    spilled = any(row.spills for row in rows)
    refusals = list(dict.fromkeys(str(row.refusal) for row in rows if row.refusal))
    unknown = list(dict.fromkeys(row.unknown for row in rows if row.unknown))
    sizes = [size.partition(" KB")[0] + " KB" for size in SIZES]
    headers = [*swept, *parts, "bytes", *sizes, "registers", *["spill loads"] * spilled, "blocks",
               "warps", "occupancy", "limited by"]  # fmt: skip
    cells = []
    for row in rows:
        given = [show(row.parameters[name]) for name in swept]
        mark = f" ({refusals.index(str(row.refusal)) + 1})" if row.refusal else ""
        if row.budget is None:
            empty = ["-"] * (len(headers) - len(given) - 1)
            cells.append([*given, *empty, "refused" + mark])
            continue
        needs, held = row.budget, row.budget.occupancy
        cells.append([
            *given, *(f"{needs.shared._asdict()[part]:,}" for part in parts), f"{needs.total:,}",
            *("yes" if left >= 0 else f"+{-left:,}" for left in needs.left.values()),
            str(needs.registers or "?"), *["-" if row.spills is None else str(row.spills)] * spilled,
            str(held.blocks), str(held.warps), f"{100 * needs.resident:.1f} %",
            ", ".join(held.limiters) + mark,
        ])  # fmt: skip
    notes = [f"({number}) {refusal}" for number, refusal in enumerate(refusals, 1)]
    notes += [f"? registers are not known and not counted: {why}" for why in unknown]
    return headers, cells, notes


def _print_table(headers, cells, notes):
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in headers:
        table.add_column(header, justify="left" if header == "limited by" else "right")
    for row in cells:
        table.add_row(*row)
    console(width=1000).print(table)  # as wide as it is: no number is cut off in a narrow terminal
    for note in notes:
        console().print(note, soft_wrap=True)
