"""``profile``: what the machine code of a variant, or of a pipeline, does line by line."""

import json
from pathlib import Path

import numpy as np
from rich.table import Table

from ..engines.gpu.device import GpuMissing, find_gpu
from ..engines.sass import ONE_SM, emulate
from ..engines.sass.units import GPUS
from ..measure import counters
from ..measure.bench import Entry
from ..measure.bench import task_of as task_of_entry
from ..measure.case import Case
from ..measure.pipelines import counters_task, launch_for
from ..measure.predict import MOST, emulate_bound, predict, resident_blocks
from ..measure.profile import NSIGHT, Profile
from ..measure.profiled import profile_program
from .commands import RIGHT
from .inputs import choose_source, variant_options
from .keys import PROFILE, UsageError, parse_pairs, refuse_keys
from .output import console, lasting, say
from .pipelines import introduce, options_of

OF_PROGRAMS = ("only", "limit", "lines", "sass", "out")


def variant(pairs):
    """Of an operator's variant: figures also for each sample; its error is told. Or of a whole program."""
    if words := pairs.pop("program", ()):
        return whole_program(words, pairs)
    options, chosen, parameters = variant_options(pairs, "profile")
    source = choose_source({"workload": "tiny", **options}, "cpu")
    say("workload", source.text)
    if _wants(options, "cpu"):
        case, timed = Case(source.load()), _timed(options)
        bound, _ = case.bind(chosen.name, parameters, resident=resident_blocks if timed else None)
        with lasting(None):
            run, out = emulate_bound(case, bound, timed, **_part(options))
        samples = int(np.prod(case.arrays[2].shape))
        if run.ran == run.blocks:
            say("error", f"{case.error(out):.2e} against float64")
        _print(Profile(chosen.name, run, {"sample": samples}, _predicted(run, options, own=True)), options)
    if _wants(options, "gpu"):
        entry = Entry(chosen.name, tuple(parameters.items()))
        if source.workload is None:
            raise UsageError("engine=gpu counts on a preset: workload=")
        _print_counters(lambda: task_of_entry(entry, source.workload, options.get("seed", 0)), options)
    return RIGHT


def pipeline(pairs):
    """Of a pipeline of one's own, whose outputs are compared."""
    if words := pairs.pop("program", ()):
        raise UsageError(f"profile: a pipeline is loaded, and there is {words[0]} besides")
    options, chosen, parameters = options_of(pairs, "profile")
    launch = launch_for(Entry(chosen.name, tuple(parameters.items())))
    introduce(chosen, parameters)
    if _wants(options, "cpu"):
        with lasting(None):
            run = emulate(launch, traced=_timed(options), **_part(options))
        items = {"byte": launch.bytes} if launch.bytes else {}
        _print(Profile(launch.title, run, items, _predicted(run, options)), options)
    if _wants(options, "gpu"):
        _print_counters(lambda: counters_task(launch), options)
    return RIGHT


def whole_program(words, pairs):
    """Of all launches of a program, or of one of a kernel of PTX or CUDA C++: a table for each kernel. The exit
    status is the program's."""
    options = parse_pairs(pairs, [key for key in PROFILE if key.name in OF_PROGRAMS], "profile")
    with lasting(None):
        found, status = profile_program(words, **_part(options))
    for profile in found.profiles:
        print(profile.text(options.get("lines", 25), options.get("sass", False)), end="\n\n")
    for text in found.notes:
        say("note", text)
    if not found.profiles:
        say("note", "the program has launched nothing")
    if "out" in options:
        documents = [profile.document() for profile in found.profiles]
        Path(options["out"]).write_text(json.dumps(documents, indent=1) + "\n")
        say("written", options["out"])
    return status


def _wants(options, engine):
    return options.get("engine", "cpu") in (engine, "both")


def _part(options):
    """Which blocks run, and how many instructions at most."""
    only = options.get("only", ONE_SM)
    return {"only": None if only == "all" else only, "limit": options.get("limit", MOST)}


def _timed(options):
    if not options.get("time"):
        refuse_keys(options, ["gpu"], "is of the predicted time; add time=1")
    return options.get("time", False)


def _predicted(run, options, own=False):
    return predict(run, GPUS[options.get("gpu", "h200")], own=own) if _timed(options) else None


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
