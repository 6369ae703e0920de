"""``run``, ``timeline``, ``budget`` and ``inspect`` of a pipeline of one's own, brought by ``load=my.py``."""

from contextlib import nullcontext

from ..attention.request import engine_for
from ..compiler.sass import inspect_kernel
from ..device.layout import Array
from ..device.limits import SHARED_LIMIT, limits_of
from ..device.rings import BARRIERS
from ..engines.cpu import explore, simulate
from ..engines.cpu.schedules.explore import LIMIT
from ..engines.faults import WrongResult
from ..engines.gpu.in_place import has_guarded_form, run_launch
from ..kernels.budget import Budget
from ..kernels.parts.config import SharedBytes
from ..kernels.pipelines import PIPELINES
from ..kernels.problem import ConfigError
from ..measure import pipelines as measure
from ..measure.bench import Entry
from ..measure.parameters import kind_of, show
from ..measure.systems import describe
from ..measure.timeline import check_path
from . import keys
from .budget import COMPILING, Row, print_rows
from .commands import COMMANDS
from .inputs import check_architecture, combinations, try_inspect
from .keys import Key, UsageError, parse_pairs
from .output import counting, duration, in_words, lasting, say, verdict
from .run import drawn_by, print_shares, say_report, write_timelines
from .tools import print_inspection

OF_VARIANTS = {key.name for key in (*keys.SHAPE, *keys.DRAW, keys.DIRECTORY, keys.LOAD, *keys.COMPILED_FOR)}
KEYS = {
    name: tuple(key for key in COMMANDS[name].keys if key.name not in OF_VARIANTS - {"arch"})
    for name in ("timeline", "profile", "budget", "inspect")
}
KEYS["run"] = (
    keys.VARIANT, keys.ENGINE_KEY, keys.LINKED, Key("schedules", keys.SCHEDULES, ""), *keys.SIMULATION[1:],
    keys.WAIVE, Key("limit", keys.COUNT, "with schedules=all"),
    Key("debug", keys.FLAG, "bounded waits on a GPU"),
)  # fmt: skip
"""The keys that a command has for a pipeline, beside the pipeline's parameters."""


def options_of(pairs, command):
    """(the options of the command, the pipeline, the parameters that were given)."""
    pipeline = PIPELINES[pairs["variant"]]
    own = tuple(Key(name, kind_of(d), f"default {show(d)}") for name, d in pipeline.defaults.items())
    for key in KEYS[command]:
        if key.name in pipeline.defaults:
            raise UsageError(f"pipeline {pipeline.name} has a parameter {key.name}, which is a key of "
                             f"{command}: give it another name")  # fmt: skip
    options = parse_pairs(pairs, (*KEYS[command], *own), command)
    return options, pipeline, {key.name: options.pop(key.name) for key in own if key.name in options}


def introduce(pipeline, parameters):
    say("pipeline", f"{pipeline.name}: {pipeline.summary}")
    say("parameters", in_words(pipeline.checked(parameters)) or "none")


# --- run ------------------------------------------------------------------------------------------
def run(pairs):
    """Its outputs beside what is expected of them, and how long it took."""
    options, pipeline, parameters = options_of(pairs, "run")
    launch = measure.launch_for(Entry(pipeline.name, tuple(parameters.items()), options.get("linked", False)))
    asked = options.get("engine", "auto")
    engine, gpu = engine_for(asked, launch.capability, f"pipeline {pipeline.name}")
    _check(options, engine)
    say("device", describe(gpu, asked))
    introduce(pipeline, parameters)
    say("launch", _shape(launch))
    say("shared memory", f"{launch.shared_bytes:,} bytes a block (at most {SHARED_LIMIT:,})")
    if not launch.outputs:
        say("note", "nothing is compared: nd.Launch has no expected=")
    try:
        errors = _on_gpu(gpu, launch, options) if gpu else _on_cpu(launch, options)
    except WrongResult as wrong:
        say("wrong", wrong.what)
        for found in wrong.differences:
            for label, text in found.lines():
                say(label, text)
        if wrong.seed is not None:
            say("replay", f"schedule_seed={wrong.seed} landing={wrong.landing}")
        return verdict(False)
    for name, error in errors.items():
        say(name, f"error {error:.2e}, allowed {launch.allowed(name):g} "
                  f"({launch.outputs[name].size:,} elements compared)")  # fmt: skip
    return verdict(True)


def _check(options, engine):
    if engine == "gpu":
        keys.refuse_for_the_gpu(options, ("schedules", "schedule_seed", "landing", "waive", "limit"))
        return
    for name, why in (("debug", "debug=1 bounds the waits of a GPU; add engine=gpu"),
                      ("linked", "linked=1 is a form of the GPU's code; add engine=gpu")):  # fmt: skip
        if options.get(name):
            raise UsageError(why)
    if isinstance(options.get("schedule_seed"), str) and options.get("schedules", 1) != 1:
        raise UsageError(f"schedule_seed={options['schedule_seed']} is one schedule: leave schedules out")
    keys.check_all_schedules(options)


def _shape(launch):
    kernel = launch.kernel
    threads = "x".join(map(str, kernel.block)) if kernel.block else kernel.threads
    grid = "x".join(map(str, launch.grid)) if isinstance(launch.grid, tuple) else launch.grid
    cluster = f", in clusters of {show(launch.cluster)}" if launch.cluster else ""
    return f"{grid} block{'s' * (launch.grid != 1)} of {threads} threads{cluster}"


def _on_cpu(launch, options):
    """The errors of the outputs after the last schedule; every one has been compared."""
    if options.get("schedules") == "all":
        with lasting(None) as tell:
            tried = explore(launch, limit=options.get("limit", LIMIT), waive=options.get("waive", ()),
                            progress=lambda count: tell(f"{count:,} schedules"))  # fmt: skip
        say("explored", tried)
        return launch.errors()
    asked = keys.simulation_options(options)
    count, seed = asked.pop("schedules"), asked.pop("seed")
    with lasting(None):
        report = simulate(launch, seed=seed, **asked)
    if count > 1:  # the first has told how long one takes
        rest = report.seconds * (count - 1)
        if rest > 2:
            say("running", f"{count - 1} more schedules, about {duration(rest)} ...")
        with lasting(rest):
            more = simulate(launch, seed=seed + 1, schedules=count - 1, **asked)
        report.add(more)
        report.seconds += more.seconds
        report.schedules = count
    say_report(report)
    return launch.errors()


def _on_gpu(gpu, launch, options):
    """The errors of the outputs, which timing poisons again; with debug=1 the guarded form alone."""
    if options.get("debug"):
        if not has_guarded_form(launch):
            raise UsageError("debug=1 is for grids and blocks of one dimension, without clusters")
        run_launch(gpu, launch, guarded=True)
        return launch.errors()
    measure.check(gpu, launch)
    errors, row = launch.errors(), measure.time_one(gpu, launch, 10)
    say("time", f"{row['median_ms']:.4f} ms (median of 10; for orientation: use bench)")
    for name, unit in (("gigabytes_per_second", "GB/s"), ("teraflops_per_second", "TFLOP/s")):
        if name in row:
            say("throughput", f"{row[name]:,.1f} {unit}")
    return errors


# --- timeline -------------------------------------------------------------------------------------
def timeline(pairs):
    """Shares of each warp's time, and the picture."""
    options, pipeline, parameters = options_of(pairs, "timeline")
    if "out" in options:
        check_path(options["out"])
    keys.refuse_for_the_model(options)
    launch, asked = pipeline(**parameters), options.get("engine", "auto")
    gpus, without = drawn_by(asked, launch.capability, launch.title)
    model = asked == "model"
    introduce(pipeline, parameters)
    simulation, recorded = {} if model else keys.simulation_options(options), []
    simulation.pop("schedules", None)
    for gpu in gpus:
        for block in options.get("block", (0,)):
            with nullcontext() if gpu else lasting(None):
                recorded.append(measure.record_launch(launch, gpu, block, simulation, model))
            print_shares(recorded[-1])
    return write_timelines(recorded, options, without)


# --- budget and inspect ---------------------------------------------------------------------------
class LaunchBudget(Budget):
    """The budget of a launch, whose shared memory is told and not planned."""

    how = "dynamic"

    @property
    def allocated(self):
        return self.total


def budget(pairs):
    """A long form for one set of parameters, a table for several."""
    pipeline = PIPELINES[pairs["variant"]]
    each, swept = combinations(pairs, pipeline.defaults)
    rows = []
    with counting(COMPILING) as advance:
        for number, one in enumerate(each):
            options, _, parameters = options_of(one, "budget")
            architecture = options.get("arch", "sm_90a")
            advance(number, len(each), in_words(parameters))
            rows.append(_examine(pipeline, parameters, architecture, options))
    title = f"{pipeline.name} for {architecture}: {pipeline.summary}"
    return print_rows(rows, swept, title, architecture, options.get("markdown", False))


def _examine(pipeline, parameters, architecture, options):
    """The Row of one set of parameters."""
    limits = limits_of(architecture)
    config = pipeline.checked(parameters)
    try:
        launch = pipeline(**parameters)
    except ValueError as error:
        refusal = error if isinstance(error, ConfigError) else ConfigError(pipeline.name, "", str(error))
        return Row(parameters, refusal)
    check_architecture(options, launch.capability, f"pipeline {pipeline.name}")
    given, inspection, unknown = options.get("registers"), None, ""
    if given == 0:
        unknown = "left out"
    elif given is None:
        inspection, unknown = try_inspect(launch.kernel, architecture)
    registers = inspection.registers if inspection else given or None
    static = inspection.shared if inspection else 0
    needs = LaunchBudget(_parts(launch, static), launch.kernel.threads, limits, registers)
    return Row(parameters, None, config, needs, inspection and inspection.spill_loads, unknown)


def _parts(launch, static):
    """The shared memory of a block by what it is for; arrays that belong to no layout count as metadata."""
    layout = launch.kernel.shared
    parts = list(layout.parts()) if layout else []
    tiles = sum(part.bytes for part in parts if isinstance(part, Array))
    barriers = sum(part.bytes for part in parts if isinstance(part, BARRIERS))
    return SharedBytes(tiles, barriers, launch.shared_bytes + static - tiles - barriers)


def inspect(pairs):
    """What its kernel became, without a GPU."""
    options, pipeline, parameters = options_of(pairs, "inspect")
    launch = pipeline(**parameters)
    architecture = check_architecture(options, launch.capability, f"pipeline {pipeline.name}")
    kernel = launch.kernel.with_linked_ptx() if options.get("linked") else launch.kernel
    with lasting(None):
        inspection = inspect_kernel(kernel, architecture)
    values = in_words(pipeline.checked(parameters))
    heads = {"pipeline": f"{pipeline.name} for {architecture}", "parameters": values}
    return print_inspection(inspection, options.get("show", "summary"), heads, launch.shared_bytes)
