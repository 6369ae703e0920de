"""``numba-deform bugs``: the planted faults, their stories, and what either engine says of them."""

from pathlib import Path

from rich.table import Table

from ..course.bugs import BUGS
from ..course.bugs.gpu import run_on_gpu
from ..engines.cpu import SimFault, explore, simulate
from ..engines.cpu.schedules.explore import LIMIT
from ..engines.suggestions import closest
from .commands import RIGHT
from .keys import UsageError, check_all_schedules, refuse_keys, simulation_options
from .output import console, in_words, say, verdict

WRONG_NUMBERS = "nothing: only the numbers are wrong"


def bugs(options):
    """A list of them; ``bugs NAME`` tells one's story and runs it."""
    if not options:
        return _list()
    if "name" not in options:
        given = in_words(options).split()[0]
        raise UsageError(f"bugs takes a name before {given}; numba-deform bugs lists them")
    bug = _find(options.pop("name"))
    fixed = options.pop("fixed", False)
    engine = options.pop("engine", "cpu")
    debug = options.pop("debug", False)
    if debug and engine == "cpu":
        raise UsageError("debug=1 bounds the waits of a GPU; add engine=gpu")
    if engine == "gpu":
        refuse_keys(options, options, "is for the CPU engine, not for engine=gpu")
    check_all_schedules(options)
    _tell(bug)
    if engine == "gpu":
        return _on_gpu(bug, fixed, debug)
    return _on_cpu(bug, fixed, options)


def _list():
    table = Table("name", "what is wrong", "met in", "the CPU engine says")
    for bug in BUGS.values():
        table.add_row(bug.name, bug.title, bug.met, _expected(bug))
    console().print(table)
    print("numba-deform bugs NAME tells the story and runs it; fixed=1 runs the right twin.")
    return RIGHT


def _find(name):
    bug = BUGS.get(name.replace("-", "_"))
    if bug is None:
        hint = closest(name, BUGS)
        raise UsageError(f"there is no planted fault {name}{hint} (numba-deform bugs lists them)")
    return bug


def _expected(bug):
    return ", ".join(kind.__name__ for kind in bug.faults) or WRONG_NUMBERS


def _tell(bug):
    say("fault", bug.title)
    say("met in", bug.met)
    say("expected", _expected(bug))
    print(f"\n{bug.story}\n")
    for label, (line, text) in zip(("wrong", "right"), bug.lines(), strict=True):
        say(label, f"{Path(bug.file).name}:{line}" if text else "without the line")
        for code in text.splitlines():
            print(f"    {code}")
    say("cure", bug.cure)
    ends = "it ends, with wrong numbers or an error, or by luck right"
    say("on a GPU", "it may hang" if bug.hangs else ends)
    print()


def _on_cpu(bug, fixed, options):
    """Run the bug, or its right twin, in the orders that ``options`` ask for."""
    kernel, launch = bug.kernel(not fixed), bug.arguments()
    what = (kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes)
    try:
        if options.get("schedules") == "all":
            covered = f"; {explore(*what, limit=options.get('limit', LIMIT))}"
        else:
            covered = f" in {simulate(*what, **simulation_options(options)).schedules} schedules"
    except SimFault as fault:
        if fixed:
            raise
        print(fault)
        print(f"  replay schedule_seed={fault.seed} landing={fault.landing}")
        if not bug.reports(fault):
            say("unexpected", "this fault, or its line, is not the expected one")
        return verdict(bug.reports(fault))
    wrong = launch.wrong()
    say("rules", f"none was broken{covered}")
    say("result", f"{wrong} of {launch.out.size} elements are wrong" if wrong or not fixed else "right")
    return verdict(not wrong if fixed else not bug.faults and wrong > 0)


def _on_gpu(bug, fixed, debug):
    """The twin has to be right; a planted fault may do anything, and what it did is shown."""
    outcome = run_on_gpu(bug, fixed, debug=debug)
    say("device", outcome.device)
    say(outcome.kind, outcome.text)
    if outcome.usable is not None:
        say("afterwards", "the GPU works" if outcome.usable else "the GPU does not work")
    if fixed:
        return verdict(outcome.kind == "right")
    if outcome.kind == "right":
        say("note", "right by luck: the fault is still there")
    return RIGHT
