"""``numba-deform budget``: what blocks take of an SM, for one configuration or a grid of them."""

import itertools
from dataclasses import dataclass

from rich import box
from rich.table import Table

from ..attention.call import pick_variant
from ..device.limits import KB, MAX_REGISTERS, limits_of
from ..kernels.budget import SIZES, Budget
from ..kernels.problem import ConfigError
from .inputs import check_architecture, make_constants, try_inspect
from .keys import (
    COMPILED_FOR,
    FLAG,
    RIGHT,
    VARIANT,
    Key,
    Kind,
    console,
    say,
    say_parameters,
    show,
    split_pairs,
    variant_keys,
    variant_options,
)


def _register_count(text):
    if not 0 <= int(text) <= MAX_REGISTERS:
        raise ValueError
    return int(text)


REGISTERS = Kind(f"a whole number from 0 to {MAX_REGISTERS}", _register_count)
KEYS = {
    "budget": (
        VARIANT, *COMPILED_FOR,
        Key("registers", REGISTERS, "of a thread, instead of compiling to find out; 0 leaves them out"),
        Key("markdown", FLAG, "print the table as Markdown"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One configuration of the grid.

    parameters  those of the command line
    refusal     why it cannot run, or None
    config, budget  both None where it is refused for more than its size
    spills      loads from local memory, or None
    unknown     why the registers are not known, or ""
    """

    parameters: dict
    refusal: ConfigError | None = None
    config: object = None
    budget: Budget | None = None
    spills: int | None = None
    unknown: str = ""


def budget(words):
    """``numba-deform budget``: a long form for one configuration, a table for several."""
    pairs = split_pairs(words)
    chosen = pick_variant(pairs.get("variant", "tma"))
    options, swept, grid = expand(pairs, chosen)
    architecture = options.get("arch", "sm_90a")
    check_architecture(architecture, chosen)
    limits_of(architecture)  # refuses one without known limits before anything is compiled
    constants = make_constants(options)
    rows = [
        _examine(chosen, parameters, constants, architecture, options.get("registers"))
        for parameters in grid
    ]
    title = f"{chosen.name} for {architecture}: {chosen.summary}"
    if options.get("markdown"):
        print(f"{title}; {' '.join(f'{k}={v}' for k, v in vars(constants).items())}\n")
        _print_markdown(*_table(rows, swept))
    elif len(rows) > 1:
        say("variant", title)
        say_parameters("constants", vars(constants))
        _print_table(*_table(rows, swept))
    elif rows[0].budget is None:
        raise rows[0].refusal
    else:
        say("variant", title)
        say_parameters("constants", vars(constants))
        _print_row(rows[0], architecture)
    return RIGHT


def expand(pairs, chosen):
    """(options, names with several values, parameters of each configuration): every combination of
    the comma-separated values of the variant's parameters, the last varying fastest."""
    own = [key.name for key in variant_keys(chosen)]
    values = {name: text.split(",") for name, text in pairs.items() if name in own}
    grid = []
    for combination in itertools.product(*values.values()):
        one = {**pairs, **dict(zip(values, combination, strict=True))}
        options, parameters = variant_options(one, KEYS["budget"], "budget", chosen)
        grid.append(parameters)
    return options, [name for name, texts in values.items() if len(texts) > 1], grid


def _examine(chosen, parameters, constants, architecture, registers):
    """The Row of one configuration; compiles it where ``registers`` is None and it can run."""
    try:
        asked = chosen.unresolved(**parameters)
        config = asked.complete(constants)
    except ConfigError as error:
        return Row(parameters, error)
    refusal, found, unknown = None, None, ""
    try:
        config.resolve(constants)
    except ConfigError as error:
        refusal = error
    if registers == 0:
        unknown = "left out"
    elif registers is None and refusal:
        unknown = "not compiled"
    elif registers is None:
        found, unknown = try_inspect(chosen.kernel(config, constants), architecture)
    registers = found.registers if found else registers or None
    made = Budget.of(config, constants, limits_of(architecture), registers)
    return Row(parameters, refusal, config, made, found and found.spill_loads, unknown)


# --- one configuration ----------------------------------------------------------------------------
def _print_row(row, architecture):
    made = row.budget
    say_parameters("configuration", vars(row.config))
    for part, size in made.shared._asdict().items():
        say(part, f"{size:,} bytes")
    how = "static"
    if made.allocated > made.total:
        how = f"{made.allocated:,} dynamic at launch, with room to align"
    say("shared memory", f"{made.total:,} bytes ({made.total / KB:.2f} KB) a block, {how}")
    for size, left in made.left.items():
        say(size, _fits(left, SIZES[size]))
    say("registers", _registers(row))
    held = made.occupancy
    share = f"{100 * made.resident:.1f} % of {made.limits.warps}"
    say("resident", f"{held.blocks} blocks, {held.warps} warps on an SM of {architecture}: {share}")
    counted = "" if made.registers else " (registers are not counted)"
    say("limited by", " and ".join(held.limiters) + counted)
    if row.refusal:
        say("refused", row.refusal)


def _fits(left, size):
    if left >= 0:
        return f"fits, {left:,} bytes left"
    return f"does not fit: {-left:,} bytes over ({-100 * left / size:.1f} %)"


def _registers(row):
    if row.unknown:
        return f"not known: {row.unknown}"
    spills = "" if row.spills is None else f", {row.spills or 'no'} spill loads"
    return f"{row.budget.registers} a thread{spills}"


# --- a grid ---------------------------------------------------------------------------------------
def _table(rows, swept):
    """(headers, cells of each row, notes): texts; a refused row ends with the number of a note."""
    budgets = [row.budget for row in rows if row.budget]
    parts = ["tiles", "barriers"] + ["metadata"] * any(b.shared.metadata for b in budgets)
    spilled = any(row.spills for row in rows)
    refusals = list(dict.fromkeys(str(row.refusal) for row in rows if row.refusal))
    unknown = list(dict.fromkeys(row.unknown for row in rows if row.unknown))
    sizes = [size.partition(" KB")[0] + " KB" for size in SIZES]
    headers = [
        *swept, *parts, "bytes", *sizes, "registers", *["spill loads"] * spilled, "blocks", "warps",
        "occupancy", "limited by",
    ]  # fmt: skip
    cells = []
    for row in rows:
        given = [show(row.parameters[name]) for name in swept]
        mark = f" ({refusals.index(str(row.refusal)) + 1})" if row.refusal else ""
        if row.budget is None:
            empty = ["-"] * (len(headers) - len(given) - 1)
            cells.append([*given, *empty, "refused" + mark])
            continue
        made, held = row.budget, row.budget.occupancy
        cells.append([
            *given, *(f"{made.shared._asdict()[part]:,}" for part in parts), f"{made.total:,}",
            *("yes" if left >= 0 else f"+{-left:,}" for left in made.left.values()),
            str(made.registers or "?"), *["-" if row.spills is None else str(row.spills)] * spilled,
            str(held.blocks), str(held.warps), f"{100 * made.resident:.1f} %",
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


def _print_markdown(headers, cells, notes):
    rules = [":--" if header == "limited by" else "--:" for header in headers]
    for row in (headers, rules, *cells):
        print(f"| {' | '.join(row)} |")
    for note in notes:
        print(f"\n{note}")


COMMANDS = {"budget": budget}
