"""The checks of lesson 8, a variant of your own."""

from types import SimpleNamespace

from ...device.limits import AMPERE, HOPPER, SHARED_LIMIT
from ...engines.faults import CopyOutlivesBlock, Deadlock
from ...kernels.problem import ConfigError, Constants
from ...kernels.registry import Functions, Variant, register
from ...kernels.shared.row import items
from ...measure.systems import plan_operator, run_plan
from ...workloads.workload import Workload
from .exercise import Wrong, exercise, require

# Four items of two rows each: the CPU engine holds two blocks of a persistent kernel, so each goes round twice.
ROWS = Workload(
    "rows", batch=1, levels=((9, 7), (5, 3), (3, 1)), num_query=7, num_heads=1, num_points=2,
    pattern="uniform", outside=0.15,
)  # fmt: skip


# --- refuse ---------------------------------------------------------------------------------------
ALLOWED = (
    (dict(), Constants(4, 8, 32), "32 samples are a lane each, just right."),
    (dict(stages=1, warps=32), Constants(2, 4, 32), "A block can have 32 warps."),
    (
        dict(stages=5, warps=1),
        Constants(1, 1, 32),
        "More stages than levels is a waste, and works.",
    ),
)
REFUSED = (
    (dict(stages=0), Constants(4, 8, 32), "stages", "a ring without a stage"),
    (dict(), Constants(5, 8, 32), "points", "40 samples, and only 32 lanes to own them"),
    (dict(), Constants(4, 8, 32, "bfloat16"), "dtype", "bfloat16 read as float16"),
    (dict(), Constants(4, 8, 64), "channels", "64 channels, of which the lanes add up 32"),
    (dict(warps=0), Constants(4, 8, 32), "warps", "a block without a warp"),
    (dict(warps=33), Constants(4, 8, 32), "warps", "1056 threads in a block"),
    (dict(stages=16, warps=8), Constants(4, 8, 32), "stages",
     f"262144 bytes of tiles, where a block has at most {SHARED_LIMIT}: every warp has a ring"),
)  # fmt: skip


@exercise("One `if` and one `raise` for each line of the list; the first is there as a pattern.")
def refuse(answer, config):
    """answer(config, constants) raises ConfigError for what level-ring cannot run; ``config`` is its class."""
    for parameters, constants, sentence in ALLOWED:
        error = _raised(answer, config(**parameters), constants)
        given = _shown(parameters, constants)
        _require_verdict(error, given)
        require(error is None, f"It refuses {given} ({error}). {sentence}")
    for parameters, constants, field, why in REFUSED:
        given = _shown(parameters, constants)
        error = _raised(answer, config(**parameters), constants)
        require(error is not None, f"It lets {given} pass: {why}.")
        _require_verdict(error, given)
        require(
            isinstance(error, ConfigError),
            f"For {given} it raises {type(error).__name__}: {error}. A ConfigError tells field, value and "
            "rule apart, and the command line shows it without a traceback.",
        )
        require(
            error.field == field,
            f"For {given} it blames {error.field!r}; what the caller has to change is {field!r}: {why}.",
        )
        require(
            len(str(error.rule).split()) >= 3,
            f"For {given} the rule is {error.rule!r}. Say it in words: what would be allowed?",
        )
    return (
        "Every limit is told with its field, and nothing is refused that works. Nobody who calls the "
        "variant will meet a hang."
    )


def _require_verdict(error, given):
    """Neither a yes nor a no: the function itself has gone wrong, whatever the configuration."""
    require(
        error is None or isinstance(error, (ValueError, AssertionError)),
        f"For {given} it neither refuses nor allows: it stops by a mistake of its own, "
        f"{type(error).__name__}: {error}. A caller would take that for a fault of the package.",
    )


def _shown(parameters, constants):
    words = [f"{name}={value}" for name, value in parameters.items()] or [
        "the default configuration"
    ]
    c = constants
    return (
        f"{' '.join(words)} with {c.levels} levels of {c.points} points, {c.channels} x {c.dtype},"
    )


def _raised(answer, config, constants):
    try:
        answer(config, constants)
    except Exception as error:
        return error
    return None


# --- turn -----------------------------------------------------------------------------------------
@exercise("Count the uses of the ring from the very beginning: what number has this one?")
def turn(answer):
    """answer(n, level, levels, stages) -> (stage, parity)."""
    for levels, stages in ((4, 3), (4, 4), (3, 2), (1, 2), (2, 1), (3, 4)):
        for n in range(6):
            for level in range(levels):
                _check_turn(answer(n, level, levels, stages), n, level, levels, stages)
    return (
        "Use number u = n * levels + level goes into stage u % stages, and the parity flips each time "
        "the ring wraps. Rows do not matter to a barrier."
    )


def _check_turn(got, n, level, levels, stages):
    use = n * levels + level
    expected = (use % stages, use // stages % 2)
    require(isinstance(got, tuple) and len(got) == 2, f"It returns {got!r}, not (stage, parity).")
    if tuple(got) == expected:
        return
    given = f"Row {n}, level {level} of {levels}, {stages} stages: it says {tuple(got)}. "
    require(
        n == 0 or tuple(got) != (level % stages, level // stages % 2),
        given
        + "That starts from the beginning with every row. The barriers do not: nobody has initialised "
        "them again, and their phases go on.",
    )
    require(
        got[0] != expected[0] or got[1] != use % 2,
        given
        + "The stage is right, but the parity flips with every use. A barrier is used only every "
        f"{stages} uses of the ring: its parity flips when the ring wraps.",
    )
    require(
        got[0] != expected[0] or got[1] != n % 2,
        given
        + "The stage is right, but the parity flips with every row. Only if a row had as many levels as "
        "the ring has stages would that be the same.",
    )
    require(
        got[0] == expected[0],
        given
        + f"Before this level the ring was used {use} times, so it is the turn of stage {expected[0]}.",
    )
    raise Wrong(
        given
        + f"The stage is right. It was used {use // stages} times before, which is what the parity counts."
    )


# --- runs_on --------------------------------------------------------------------------------------
@exercise(
    "`later - LEVELS` is a level of the next item. When is there none?",
    faults={
        CopyOutlivesBlock: "The block ends while tiles are on their way that nobody waits for: after the last "
        "item nothing may be asked for. What tells you that there is a next one?",
        Deadlock: "A level is waited for that nobody has asked for: the condition leaves out an item that "
        "exists. Items are numbered from 0 to count - 1.",
    },
)
def runs_on(build, config, engine=None):
    """A build function like the notebook's; ``config`` is its class."""

    def resident_blocks(problem, config, resident):
        return min(resident(), items(problem, config.warps))

    module = Functions(build, resident_blocks)
    variant = Variant("runs-on", "", "the exercise's", config, module, HOPPER, "tma")
    with register(variant, replace=True):
        for parameters, schedules in (
            (dict(stages=2), 2),
            (dict(stages=1), 1),
            (dict(stages=4), 1),
        ):
            for landing in ("late", "random", "earliest"):
                options = {"landing": landing, "schedules": schedules}
                _check_run("cpu", options, warps=2, **parameters)
        if engine == "gpu":
            _check_run("gpu", None, warps=2, stages=2, debug=True)  # a hang would end in a report
    return (
        "The ring runs on from row to row and ends empty: the condition asks whether the item exists to which "
        "the level belongs. Right with 1, 2 and 4 stages, in all landing modes."
    )


def _check_run(engine, options, **parameters):
    plan = plan_operator(ROWS.generate(3), "runs-on", engine, **parameters)
    result = run_plan(plan, repeats=1, simulate_options=options)
    where = " ".join(f"{name}={value}" for name, value in parameters.items())
    require(
        not result.unwritten,
        f"With {where} {result.unwritten} numbers of the output are never written: a row is left out.",
    )
    require(
        result.passed,
        f"With {where} the output is off by {result.error:.2g}: tiles of another row or level are added up.",
    )


# --- entry ----------------------------------------------------------------------------------------
@exercise(
    "As `a_block_for_each_item`, but `resident()` blocks are enough, and more would have no item."
)
def entry(blocks, capability, fetch):
    """blocks(problem, config, resident) -> int; capability and fetch as in a Variant."""
    config = SimpleNamespace(warps=8)
    for queries, fit in ((8 * 500, 264), (8 * 20, 264), (8 * 264 + 1, 264)):
        problem = SimpleNamespace(batch=2, queries=queries, heads=1)
        there = items(problem, 8)
        got = blocks(problem, config, lambda fit=fit: fit)
        given = f"For {there} items on a GPU that holds {fit} blocks it gives {got!r} blocks. "
        require(
            got != fit or there >= fit,
            given
            + "Some find no item, and their prologue asks for the tiles of a row that is not there.",
        )
        require(
            got != there or there <= fit,
            given + "Each has a single item, so no ring ever runs on to a second one.",
        )
        require(got == min(fit, there), given + f"It should be {min(fit, there)}.")
    require(
        capability != AMPERE and tuple(capability) >= HOPPER,
        f"capability={capability}: GPUs of that age have no TMA and no mbarrier that counts bytes. A call on "
        "one of them would fail in the compiler instead of with a sentence.",
    )
    require(
        tuple(capability) == HOPPER,
        f"capability={capability} shuts out GPUs that can run it: TMA came with 9.0.",
    )
    require(
        fetch != "shared",
        "fetch='shared' is for many tiles that one copy brings. Here every tile has an instruction of its own, "
        "and bench would hold the kernel against the wrong ceiling.",
    )
    require(
        fetch == "tma",
        f"fetch={fetch!r}: how do tiles come here? bench compares with the ceiling of that way.",
    )
    return (
        "As many blocks as fit, at most one for each item; a Hopper GPU; and the ceiling of one TMA "
        "instruction a tile."
    )
