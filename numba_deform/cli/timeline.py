"""``numba-deform timeline``: what each warp of a block does when, on either engine or on both."""

from rich.table import Table

from ..attention.call import ENGINES, pick_engine
from ..measure.parameters import TEXT, WHOLE, one_of
from ..measure.systems import plan_operator
from ..measure.timeline import ACTIVITIES, record, save, shares
from . import keys
from .inputs import check_duration, choose_source
from .keys import RIGHT, Key, command, console, say, split_pairs, variant_options


@command(
    "timeline",
    *keys.SHAPE, *keys.DRAW, keys.VARIANT, *keys.SIMULATION[1:],
    Key("engine", one_of(*ENGINES, "both"), "both: CPU engine and GPU, one above the other"),
    Key("block", WHOLE, "which block, default 0"),
    Key("out", TEXT, "the file to write: .png, .svg, or .json for Perfetto"),
    Key("start", WHOLE, "first cycle of the picture, default 0"),
    Key("end", WHOLE, "last cycle of the picture, default the block's last"),
    raw=True,
)  # fmt: skip
def timeline(words):
    """Shares of each warp's time, and the picture."""
    options, chosen, parameters = variant_options(split_pairs(words), "timeline")
    asked = options.get("engine", "auto")
    engines = ("cpu", "gpu") if asked == "both" else (pick_engine(asked, chosen)[0],)
    source = choose_source({"workload": "tiny", **options}, "cpu")
    if "cpu" in engines:
        check_duration(source, options)
    inputs = source.load()
    say("workload", source.text)
    recorded = []
    for engine in engines:
        plan = plan_operator(inputs, chosen.name, engine, **{**parameters, "trace": True})
        simulation = {}
        if engine == "cpu":
            simulation["seed"] = options.get("schedule_seed", 0)
            simulation["landing"] = options.get("landing", "late")
        recorded.append(record(plan, options.get("block", 0), simulation))
        _print(recorded[-1])
    if "out" in options:
        say("written", save(recorded, options["out"], options.get("start", 0), options.get("end")))
    return RIGHT


def _print(recorded):
    names = list(ACTIVITIES.values())
    last = max(span.end for span in recorded.spans)
    table = Table("warp", *names, title=f"{recorded.title}: {recorded.engine}, {last:,} cycles")
    for warp, of in shares(recorded).items():
        table.add_row(str(warp), *(f"{of[name]:.0%}" if name in of else "" for name in names))
    console().print(table)
    if recorded.lost:
        say("note", f"{recorded.lost} warps wrote more marks than are kept; their end is missing")
