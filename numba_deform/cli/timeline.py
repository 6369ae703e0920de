"""``numba-deform timeline``: what each warp of a block does when, on either engine or on both."""

from rich.table import Table

from ..attention.call import ENGINES, pick_engine, pick_variant
from ..measure.systems import plan_operator
from ..measure.timeline import ACTIVITIES, record, save, shares
from .inputs import check_duration, choose_source
from .keys import (
    DRAW,
    RIGHT,
    SHAPE,
    SIMULATION,
    TEXT,
    VARIANT,
    WHOLE,
    Key,
    console,
    one_of,
    say,
    split_pairs,
    variant_options,
)

KEYS = {
    "timeline": (
        *SHAPE, *DRAW, VARIANT, *SIMULATION[1:],
        Key("engine", one_of(*ENGINES, "both"), "both: CPU engine and GPU, one above the other"),
        Key("block", WHOLE, "which block, default 0"),
        Key("out", TEXT, "the file to write: .png, .svg, or .json for Perfetto"),
        Key("start", WHOLE, "first cycle of the picture, default 0"),
        Key("end", WHOLE, "last cycle of the picture, default the block's last"),
    ),
}  # fmt: skip


def timeline(words):
    """``numba-deform timeline``: shares of each warp's time, and the picture."""
    pairs = split_pairs(words)
    chosen = pick_variant(pairs.get("variant", "tma"))
    options, parameters = variant_options(pairs, KEYS["timeline"], "timeline", chosen)
    asked = options.get("engine", "auto")
    engines = ("cpu", "gpu") if asked == "both" else (pick_engine(asked, chosen)[0],)
    source = choose_source({"workload": "tiny", **options}, "cpu")
    if "cpu" in engines:
        check_duration(source, options)
    inputs = source.load()
    say("workload", source.text)
    made = []
    for engine in engines:
        plan = plan_operator(inputs, chosen.name, engine, **{**parameters, "trace": True})
        simulation = {}
        if engine == "cpu":
            seed, landing = options.get("schedule_seed", 0), options.get("landing", "late")
            simulation = {"seed": seed, "landing": landing}
        made.append(record(plan, options.get("block", 0), simulation))
        _print(made[-1])
    if "out" in options:
        say("written", save(made, options["out"], options.get("start", 0), options.get("end")))
    return RIGHT


def _print(made):
    names = list(ACTIVITIES.values())
    last = max(span.end for span in made.spans)
    table = Table("warp", *names, title=f"{made.title}: {made.engine}, {last:,} cycles")
    for warp, of in shares(made).items():
        table.add_row(str(warp), *(f"{of[name]:.0%}" if name in of else "" for name in names))
    console().print(table)
    if made.lost:
        say("note", f"{made.lost} warps wrote more marks than are kept; their end is missing")


COMMANDS = {"timeline": timeline}
