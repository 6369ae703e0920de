"""``profile``: what the machine code of a variant, or of a pipeline, does line by line."""

import numpy as np
from rich.table import Table

from ..engines.gpu.device import GpuMissing, find_gpu
from ..engines.sass import emulate
from ..measure import counters
from ..measure.bench import Entry
from ..measure.bench import task_of as task_of_entry
from ..measure.case import Case
from ..measure.pipelines import counters_task, launch_for
from ..measure.profile import NSIGHT, Profile
from .commands import RIGHT
from .inputs import choose_source, variant_options
from .keys import UsageError
from .output import console, lasting, say
from .pipelines import introduce, options_of


def variant(pairs):
    """Of an operator's variant: figures also for each sample; its error is told."""
    options, chosen, parameters = variant_options(pairs, "profile")
    source = choose_source({"workload": "tiny", **options}, "cpu")
    say("workload", source.text)
    if _wants(options, "cpu"):
        case = Case(source.load())
        bound, _ = case.bind(chosen.name, parameters)
        out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
        with lasting(None):
            args = bound.arguments((*case.arrays, out))
            run = emulate(bound.kernel, bound.blocks, args, bound.shared_bytes, only=options.get("only"))
        samples = int(np.prod(case.arrays[2].shape))
        if "only" not in options:
            say("error", f"{case.error(out):.2e} against float64")
        _print(Profile(chosen.name, run, {"sample": samples}), options)
    if _wants(options, "gpu"):
        entry = Entry(chosen.name, tuple(parameters.items()))
        if source.workload is None:
            raise UsageError("engine=gpu counts on a preset: workload=")
        _print_counters(lambda: task_of_entry(entry, source.workload, options.get("seed", 0)), options)
    return RIGHT


def pipeline(pairs):
    """Of a pipeline of one's own, whose outputs are compared."""
    options, chosen, parameters = options_of(pairs, "profile")
    launch = launch_for(Entry(chosen.name, tuple(parameters.items())))
    introduce(chosen, parameters)
    if _wants(options, "cpu"):
        with lasting(None):
            run = emulate(launch, only=options.get("only"))
        items = {"byte": launch.bytes} if launch.bytes else {}
        _print(Profile(launch.title, run, items), options)
    if _wants(options, "gpu"):
        _print_counters(lambda: counters_task(launch), options)
    return RIGHT


def _wants(options, engine):
    return options.get("engine", "cpu") in (engine, "both")


def _print(profile, options):
    print(profile.text(options.get("lines", 25), options.get("sass", False)))
    if "out" in options:
        profile.save(options["out"])
        say("written", options["out"])


def _print_counters(task, options):
    """Nsight Compute's figures by the same names; with engine=both a missing GPU is told, else refused."""
    try:
        find_gpu()
    except GpuMissing as error:
        if options["engine"] == "gpu":
            raise
        say("note", f"only the CPU's half: {error}")
        return
    counted, table = counters.count(task()), Table("counter", "Nsight Compute", "value")
    if "error_text" in counted:
        say("note", counted["error_text"])
        return
    for name, value in counted.items():
        table.add_row(name, NSIGHT.get(name, counters.METRICS.get(name, "")), f"{value:,.6g}")
    console().print(table)
