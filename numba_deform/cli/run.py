"""``numba-deform run`` and ``timeline``: the operator on either engine, compared with the float64 reference,
and what each warp of a block does when."""

from contextlib import nullcontext
from pathlib import Path

from rich.table import Table

from ..attention.debug import check_tiles, has_tiles
from ..attention.request import engine_for, pick_engine
from ..device.limits import HOPPER, SHARED_LIMIT
from ..engines.gpu.device import GpuMissing, gpu_or_none
from ..engines.waivers import in_words as waivers_in_words
from ..measure.systems import describe, plan_operator, run_plan
from ..measure.timeline import ACTIVITIES, check_path, record, save, shares
from ..workloads import picture
from . import keys
from .commands import RIGHT
from .inputs import check_duration, check_memory, choose_source, families, try_inspect, variant_options
from .keys import UsageError
from .output import console, duration, in_words, lasting, say, verdict


def run(pairs):
    """The result of one variant beside the reference, and how long it took."""
    name, note = _default_variant(pairs)
    options, chosen, parameters = variant_options(pairs, "run", name)
    engine, gpu = pick_engine(options.get("engine", "auto"), chosen)
    _check_engine_keys(options, engine)
    _check_picture_out(options)
    if "debug_rows" in options and not parameters.get("debug"):
        raise UsageError("debug_rows says what debug=1 compares; add debug=1")
    source = choose_source(options, engine)
    if engine == "cpu":
        check_duration(source, options)
    # Again inside plan_operator, but before the arrays are made, which can take a while.
    chosen.configure(source.constants, **parameters)
    check_memory(source)
    inputs = source.load()
    plan = plan_operator(inputs, name, engine, options.get("linked", False),
                         options.get("im2col_step"), **parameters)  # fmt: skip

    say("device", describe(gpu, options.get("engine", "auto")))
    if note:
        say("note", note)
    say("workload", source.text)
    bound = plan.bound
    chosen, linked = bound.variant, " (linked PTX)" if bound.kernel.linked else ""
    say("variant", f"{chosen.name}: {chosen.summary}{linked}")
    if plan.why:
        say("auto", plan.why)
    say("configuration", in_words(vars(bound.config)))
    say("shared memory", _shared_memory(bound))
    say("registers", _registers(bound))
    if engine == "cpu":
        say("running", f"about {duration(source.seconds(options))}, thread by thread ...")
    # Slow machines exist; a hang ends all the same.
    simulation = {**keys.simulation_options(options), "timeout": max(60.0, 20 * source.seconds({}))}
    with lasting(source.seconds(options)) if engine == "cpu" else nullcontext():
        result = run_plan(plan, simulate_options=simulation)
    few = result.rows_checked < result.rows
    rows = f"{result.rows_checked:,} random ones of {result.rows:,}" if few else f"all {result.rows:,}"
    say("error", f"{result.error:.2e} against float64, must be below {result.tolerance:g} "
                 f"(output rows compared: {rows})")  # fmt: skip
    if result.unwritten:
        say("unwritten", f"{result.unwritten:,} of {result.out.size:,} elements are NaN")
    _say_time(bound.problem, result)
    if "picture_out" in options:
        picture.write_picture(options["picture_out"], result.out, source.workload)
        say("picture", options["picture_out"])
    rows = options.get("debug_rows", (0,) * has_tiles(bound.config))
    matched = [_say_tiles(check_tiles(bound, plan.case.arrays, row, simulation)) for row in rows]
    return verdict(result.passed and all(matched))


def _say_tiles(checks):
    """A table of one row's tiles; whether all of them match."""
    table = Table("level", "point", "tile at x,y", "delivered to shared memory", "plain loads",
                  "match",
                  title=f"row {checks[0].row}: first 4 channels of each tile's upper left pixel")  # fmt: skip
    for check in checks:
        table.add_row(
            str(check.level), str(check.point), "{},{}".format(*check.corner),
            *(" ".join(f"{float(v):.4f}" for v in t[0, 0, :4]) for t in (check.delivered, check.plain)),
            "yes" if check.match else "NO",
        )  # fmt: skip
    console().print(table)
    wrong = sum(not check.match for check in checks)
    say("tiles", f"{len(checks) - wrong} of {len(checks)} match in every bit")
    return not wrong


def _default_variant(pairs):
    """(name, a note or ""): tma, unless the GPU that is going to be used is too old for it."""
    if "variant" in pairs:
        return pairs["variant"], ""
    gpu = gpu_or_none() if pairs.get("engine", "auto") in ("auto", "gpu") else None
    if gpu and gpu.capability < HOPPER:
        note = f"{gpu.name} is older than Hopper and has no TMA, so direct runs; engine=cpu runs tma"
        return "direct", note
    return "tma", ""


def _check_engine_keys(options, engine):
    if engine == "gpu":
        keys.refuse_for_the_gpu(options, [key.name for key in (*keys.SIMULATION, keys.WAIVE)])
    elif options.get("linked"):
        raise UsageError("linked=1 is another form of the GPU's code, and the CPU engine runs neither; "
                         "'numba-deform inspect linked=1' shows it without a GPU")


def _check_picture_out(options):
    if "picture_out" not in options:
        return
    if options.get("workload") != "picture":
        raise UsageError("picture_out draws the output of workload=picture only; add it")
    parent = Path(options["picture_out"]).absolute().parent
    if not parent.is_dir():
        raise UsageError(f"picture_out={options['picture_out']}: there is no directory {parent}")


def _shared_memory(bound):
    shared = bound.config.shared_bytes(bound.problem.constants)
    if not sum(shared):
        return "none"
    metadata = f" + {shared.metadata:,} of metadata" if shared.metadata else ""
    return (f"{shared.tiles:,} bytes of tiles + {shared.barriers:,} of barriers{metadata} a block "
            f"(at most {SHARED_LIMIT:,})")


def _registers(bound):
    architecture = bound.gpu.architecture if bound.gpu else "sm_90a"
    inspection, why = try_inspect(bound.kernel, architecture)
    if not inspection:  # only information: the CPU engine runs all the same
        return f"not known: {why}"
    spills = f"{inspection.spill_loads} spill loads" if inspection.spill_loads else "no spills"
    return f"{inspection.registers} a thread, {spills} ({architecture})"


def _say_time(problem, result):
    if result.report:
        say_report(result.report)
        return
    ms = result.milliseconds
    say("time", f"{ms:.4f} ms (median of 10 after 3 warm-ups; for orientation: use bench)")
    say("throughput", f"{result.bytes_moved / ms / 1e6:,.0f} GB/s of compulsory traffic, "
         f"{problem.samples / ms / 1e6:.2f} G samples (tiles)/s")  # fmt: skip


def say_report(report):
    """What the CPU engine did, and which rules it let be broken."""
    plural = "s" if report.schedules > 1 else ""
    say("CPU engine", f"{report.seconds:.1f} s, {report.schedules} schedule{plural} without a fault")
    for text in waivers_in_words(report.waived):
        say("waived", text)
    for text in filter(None, [report.untried]):
        say("not tried", text)
    say("virtual time", f"{report.cycles:,.0f} cycles of the longest thread, nothing measured")
    say("events", f"{report.copies:,} TMA copies, {report.switches:,} switches between threads")


def timeline(pairs):
    """Shares of each warp's time, and the picture."""
    options, chosen, parameters = variant_options(pairs, "timeline")
    if not hasattr(chosen.config, "trace"):
        drawn = [members[0].name for config, members in families().items() if hasattr(config, "trace")]
        raise UsageError(f"variant {chosen.name} has no parameter trace, which makes a kernel write down what "
                         f"its warps do; {', '.join(drawn)} and their like have it")
    keys.refuse_for_the_model(options)
    asked = options.get("engine", "auto")
    gpus, without = drawn_by(asked, chosen.capability, f"variant {chosen.name}")
    if "out" in options:
        check_path(options["out"])
    source = choose_source({"workload": "tiny", **options}, "cpu")
    simulation = keys.simulation_options(options) if asked != "model" else {}
    if None in gpus and simulation:
        check_duration(source, options)
    inputs = source.load()
    say("workload", source.text)
    recorded = []
    for gpu in gpus:
        plan = plan_operator(inputs, chosen.name, "gpu" if gpu else "cpu", **{**parameters, "trace": True})
        for block in options.get("block", (0,)):
            recorded.append(record(plan, block, {} if gpu else simulation, model=asked == "model"))
            print_shares(recorded[-1])
    return write_timelines(recorded, options, without)


def write_timelines(recorded, options, without):
    """Where the keys say so; ``without``: why the GPU draws none, or "". RIGHT."""
    if without:
        say("note", f"only the CPU engine's half: {without}")
    if "out" in options:
        say("written", save(recorded, options["out"], options.get("start", 0), options.get("end")))
    return RIGHT


def drawn_by(asked, capability, what):
    """([None for the CPU engine or the model, the GPU], why that does not draw where both were asked for)."""
    if asked == "model":
        return [None], ""
    if asked != "both":
        return [engine_for(asked, capability, what)[1]], ""
    try:
        return [None, engine_for("gpu", capability, what)[1]], ""
    except GpuMissing as error:
        return [None], str(error)


def print_shares(recorded):
    """A table of what each warp of a Timeline spends its time on."""
    names = list(ACTIVITIES.values())
    last = max(span.end for span in recorded.spans)
    table = Table("warp", *names, title=f"{recorded.title}: {recorded.engine}, {last:,} cycles")
    for warp, of in shares(recorded).items():
        table.add_row(str(warp), *(f"{of[name]:.0%}" if name in of else "" for name in names))
    console().print(table)
    for note in recorded.notes():
        say("note", note)
