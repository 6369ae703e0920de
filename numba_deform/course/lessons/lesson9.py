"""The checks of lesson 9, a variant of your own, and what it runs its variants on."""

import contextlib
import functools
import inspect
import linecache

from ...device.limits import HOPPER
from ...engines.faults import CopyOutlivesBlock, Deadlock
from ...engines.gpu.device import find_gpu
from ...kernels import user_variants
from ...kernels.parts.row import items
from ...kernels.problem import ConfigError, Constants
from ...kernels.registry import Registration, is_registered, variant
from ...measure import report, timeline
from ...measure.bench import bench, parse_entries
from ...measure.systems import plan_operator, run_plan
from ...workloads.presets import preset
from ...workloads.workload import Workload
from . import running
from .exercise import Wrong, exercise, require, value_of

LANDINGS = ("late", "random", "earliest")
SMALL = Workload(
    "small", batch=2, levels=((9, 7), (5, 3), (3, 1)), num_query=3, num_heads=1, num_points=2,
    pattern="uniform", outside=0.15,
)  # fmt: skip
# Four items of two rows each: the CPU engine holds two blocks of a persistent kernel, so each goes round twice.
ROWS = SMALL.replace(name="rows", batch=1, num_query=7)
MANY = Workload("many", 1, ((4, 4),) * 5, 2, num_heads=1, num_points=8, pattern="uniform")  # 40 samples a row
_inputs = SMALL.generate(1)
call = (
    _inputs.value, _inputs.spatial_shapes, _inputs.level_start_index, _inputs.sampling_locations,
    _inputs.attention_weights,
)  # fmt: skip


# --- running --------------------------------------------------------------------------------------
def error(name, workload=SMALL, schedules=2, **parameters):
    """The largest error of a variant over all landing modes, on the CPU engine.

    Raises the SimFault of a broken rule, AssertionError for an output that is not right."""
    plan, errors = plan_operator(workload.generate(1), name, "cpu", **parameters), []
    for landing in LANDINGS:
        result = run_plan(plan, simulate_options={"landing": landing, "schedules": schedules})
        assert result.passed, f"{result.unwritten} numbers not written, error {result.error:.1e}"
        errors.append(result.error)
    return max(errors)


@contextlib.contextmanager
def without(line, entry, scope):
    """The name of a variant, while the ``with`` lasts: ``entry``, an ``nd.variant``, without that line of its
    function. ``scope`` are the names that the function knows. ValueError where there is no such line."""
    source = inspect.getsource(entry.module.function)
    if line not in source:
        raise ValueError(f"{entry.name} has no line {line}")
    source = source.replace(line, "pass  # left out").replace(f'"{entry.name}"', '"broken"')
    file = f"<without {line}>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec"), dict(scope))
    try:
        yield "broken"
    finally:
        Registration(variant("broken")).remove()


def trace(name, **parameters):
    """The Timeline of a block of a variant, on the CPU engine."""
    plan = plan_operator(SMALL.generate(1), name, "cpu", trace=True, **parameters)
    return timeline.record(plan, title=f"{name}, stages={parameters['stages']}")


def machine_code(name, **parameters):
    """What ``lessons.machine_code`` says of a variant for the preset ``seeds``: 4 levels of 8 points."""
    chosen, seeds = variant(name), Constants(levels=4, points=8, channels=32)
    return running.machine_code(chosen.kernel(chosen.configure(seeds, **parameters), seeds))


def table(names, engine):
    """The table of ``bench``, as text: times on a GPU, else virtual cycles of a small problem."""
    gpu = find_gpu() if engine == "gpu" else None
    workload = preset("detr-encoder", pattern="local(2)") if gpu else SMALL
    shape = f"stages=3,warps={8 if gpu else 1}"
    entries = [f"{name}:{shape}" if is_registered(name) else name for name in names]
    document = bench(gpu, [workload], parse_entries(",".join(entries)), isolated=False, with_ceilings=False)
    return report.markdown(document)


# --- refuse ---------------------------------------------------------------------------------------
ALLOWED = (
    (Constants(4, 8, 32), "32 samples are a lane each, just right."),
    (Constants(1, 1, 32), "Lanes without a sample work along."),
)
REFUSED = (
    (Constants(5, 8, 32), "points", "40 samples, and only 32 lanes to own them"),
    (Constants(4, 9, 32), "points", "36 samples, and only 32 lanes to own them"),
    (Constants(4, 8, 32, "bfloat16"), "dtype", "bfloat16 read as float16"),
    (Constants(4, 8, 32, "float32"), "dtype", "a word of a tile is then one number, not two"),
    (Constants(4, 8, 64), "channels", "64 channels, of which the lanes add up 32"),
)


@exercise("One `if` and one `raise` for each rule, as for the channels.")
def refuse(answer):
    """answer(constants) raises ConfigError for what level-ring cannot run."""
    for constants, sentence in ALLOWED:
        error, given = _raised(answer, constants), _shown(constants)
        _require_verdict(error, given)
        if getattr(error, "field", None) == "dtype":
            sentence = "`dtype` is a text: compare it with \"float16\"."
        require(error is None, f"It refuses {given} ({error}). {sentence}")
    for constants, field, why in REFUSED:
        error, given = _raised(answer, constants), _shown(constants)
        require(not isinstance(error, Returned), f"For {given} it returns {error}, and nobody looks at what it "
                "returns: `raise` it.")  # fmt: skip
        require(error is not None, f"It lets {given} pass: {why}.")
        _require_verdict(error, given)
        require(isinstance(error, ConfigError), f"For {given} it raises {type(error).__name__}: {error}. A "
                "ConfigError tells field, value and rule apart, and the command line shows it without a "
                "traceback.")  # fmt: skip
        require(error.field == field, f"For {given} it blames {error.field!r}; what the caller has to change "
                f"is {field!r}: {why}.")  # fmt: skip
        require(len(str(error.rule).split()) >= 3, f"For {given} the rule is {error.rule!r}. Say it in words: "
                "what would be allowed?")  # fmt: skip
    return ("Every limit is told with its field, and nothing is refused that works. Nobody who calls the "
        "variant will meet a hang.")  # fmt: skip


def _require_verdict(error, given):
    """Neither a yes nor a no: the function itself has gone wrong, whatever it was given."""
    require(error is None or isinstance(error, (ValueError, AssertionError)), f"For {given} it neither refuses "
            f"nor allows: it stops by a mistake of its own, {type(error).__name__}: {error}. A caller would "
            "take that for a fault of the package.")  # fmt: skip


def _shown(c):
    return f"{c.levels} levels of {c.points} points, {c.channels} x {c.dtype},"


class Returned(ValueError):
    """Where an error is returned and not raised."""


def _raised(answer, constants):
    try:
        returned = answer(constants)
    except Exception as error:
        return error
    return Returned(repr(returned)) if isinstance(returned, Exception) else None


# --- turn -----------------------------------------------------------------------------------------
@exercise("Count the uses of the ring from the very beginning: what number has this one?")
def turn(answer):
    """answer(n, level, levels, stages) -> (stage, parity)."""
    for levels, stages in ((4, 3), (4, 4), (3, 2), (1, 2), (2, 1), (3, 4)):
        for n in range(6):
            for level in range(levels):
                _check_turn(value_of(answer, n, level, levels, stages), n, level, levels, stages)
    return ("Use number u = n * levels + level goes into stage u % stages, and the parity flips each time the "
        "ring wraps. Rows do not matter to a barrier.")  # fmt: skip


def _check_turn(got, n, level, levels, stages):
    use = n * levels + level
    expected = (use % stages, use // stages % 2)
    require(isinstance(got, tuple) and len(got) == 2, f"It returns {got!r}, not (stage, parity).")
    if tuple(got) == expected:
        return
    given = f"Row {n}, level {level} of {levels}, {stages} stages: it says {tuple(got)}. "
    require(n == 0 or tuple(got) != (level % stages, level // stages % 2), given + "That starts from the "
            "beginning with every row. The barriers do not: nobody has initialised them again, and their "
            "phases go on.")  # fmt: skip
    require(got[0] != expected[0] or got[1] != use % 2, given + "The stage is right, but the parity flips with "
            f"every use. A barrier is used only every {stages} uses of the ring: its parity flips when the "
            "ring wraps.")  # fmt: skip
    require(got[0] != expected[0] or got[1] != n % 2, given + "The stage is right, but the parity flips with "
            "every row. Only if a row had as many levels as the ring has stages would that be the same.")
    require(got[0] == expected[0], given + f"Before this level the ring was used {use} times, so it is the "
            f"turn of stage {expected[0]}.")  # fmt: skip
    raise Wrong(given + f"The stage is right. It was used {use // stages} times before, which is what the "
                "parity counts.")  # fmt: skip


# --- runs_on --------------------------------------------------------------------------------------
@exercise(
    "`later - LEVELS` is a level of the next item. When is there none?",
    faults={
        CopyOutlivesBlock: "The block ends while tiles are on their way that nobody waits for: after the last "
        "item nothing may be asked for. The next one is number item + gridDim.x. What tells you that it "
        "exists?",
        Deadlock: "A level is waited for that nobody has asked for: the condition leaves out an item that "
        "exists. Items are numbered from 0 to count - 1.",
    },
)
def runs_on(answer, engine=None):
    """A function like the notebook's, which returns a kernel and a grid."""

    @functools.wraps(answer)
    def persistent(constants, **parameters):
        kernel, _ = answer(constants, **parameters)
        return kernel, lambda problem, resident: min(resident(), items(problem, parameters["warps"]))

    with Registration(user_variants.variant("runs-on", fetch="tma", capability=HOPPER)(persistent)):
        for stages, schedules in ((2, 2), (1, 1), (4, 1)):
            for landing in LANDINGS:
                options = {"landing": landing, "schedules": schedules}
                _check_run("cpu", options, warps=2, stages=stages)
        if engine == "gpu":
            _check_run("gpu", None, warps=2, stages=2, debug=True)  # a hang would end in a report
    return ("The ring runs on from row to row and ends empty: the condition asks whether the item exists to "
        "which the level belongs. Right with 1, 2 and 4 stages, in all landing modes.")  # fmt: skip


def _check_run(engine, options, **parameters):
    plan = plan_operator(ROWS.generate(3), "runs-on", engine, **parameters)
    result = run_plan(plan, repeats=1, simulate_options=options)
    where = " ".join(f"{name}={value}" for name, value in parameters.items())
    require(not result.unwritten, f"With {where} {result.unwritten} numbers of the output are never written: a "
            "row is left out.")  # fmt: skip
    require(result.passed, f"With {where} the output is off by {result.error:.2g}: tiles of another row or "
            "level are added up.")  # fmt: skip


# --- entry ----------------------------------------------------------------------------------------
@exercise("`resident` blocks are enough, and more than `items` would have no item.")
def entry(blocks, capability, fetch):
    """blocks(items, resident) -> int; capability and fetch as ``nd.variant`` has them."""
    for there, fit in ((1000, 264), (40, 264), (529, 264)):
        got = value_of(blocks, there, fit)
        given = f"For {there} items on a GPU that holds {fit} blocks it gives {got!r} blocks. "
        require(got != fit or there >= fit, given + "Some find no item, and their prologue asks for the tiles "
                "of a row that is not there.")  # fmt: skip
        require(got != there or there <= fit, given + "Each has a single item, so no ring ever runs on to a "
                "second one.")  # fmt: skip
        require(got == min(fit, there), given + f"It should be {min(fit, there)}.")
    require(isinstance(capability, tuple) and len(capability) == 2, f"capability={capability!r} must be two "
            "numbers, as (9, 0): a GPU of version 9.0.")  # fmt: skip
    require(capability >= HOPPER, f"capability={capability}: GPUs of that age have no TMA and no mbarrier that "
            "counts bytes. A call on one of them would fail in the compiler instead of with a sentence.")
    require(capability == HOPPER, f"capability={capability} shuts out GPUs that can run it: TMA came with 9.0.")
    require(fetch != "shared", "fetch='shared' is for many tiles that one copy brings. Here every tile has an "
            "instruction of its own, and bench would hold the kernel against the wrong ceiling.")  # fmt: skip
    require(fetch in ("l1", "tma", "shared"), f"fetch={fetch!r} is none of 'l1', 'tma' and 'shared'.")
    require(fetch == "tma", f"fetch={fetch!r}: how do tiles come here? bench compares with the ceiling of that "
            "way.")  # fmt: skip
    return ("As many blocks as fit, at most one for each item; a Hopper GPU; and the ceiling of one TMA "
        "instruction a tile.")  # fmt: skip
