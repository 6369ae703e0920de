"""Every variant of the registry over many schedules, on problems at the edges of its pipeline."""

import dataclasses
import itertools

import pytest
from helpers import check

from numba_deform.engines.cpu.schedules.simulate import LANDINGS
from numba_deform.kernels.registry import VARIANTS
from numba_deform.workloads.workload import Workload

# (workload, stages where the variant has them, schedules in each landing mode under ``full``). The last block
# is never full; in the first problem the persistent kernels, of which the CPU engine holds two blocks, go
# round more than once.
PROBLEMS = {
    "tail": (dict(batch=1, levels=((4, 3),), num_query=59, num_points=4), None, 5),
    "more stages than points": (
        dict(batch=2, levels=((3, 4), (1, 2)), num_query=2, num_points=2),
        5,
        5,
    ),
    "fewer points than stages": (dict(batch=1, levels=((2, 3),), num_query=5, num_points=1), 4, 20),
}


def parameters(variant, stages):
    """The variant's own configuration in a small block, with another number of stages."""
    names = {f.name for f in dataclasses.fields(variant.config)}
    changed = {}
    if "threads" in names:
        changed = {"threads": 64, "min_blocks": 0}
    if stages and "stages" in names and variant.preset.get("copy") != "plain":
        changed["stages"] = stages
    return changed


def cases():
    """Everything is ``full`` but one schedule of one problem in each landing for the first variant of each
    kernel, and one schedule of one problem and landing for every second other variant. Of a variant each
    problem has all its schedules in one landing, each in another one."""
    grid = list(itertools.product(PROBLEMS, LANDINGS))
    most = [pair for pair in grid if pair[0] == "fewer points than stages"]
    seen, pairs, others, turns = set(), itertools.cycle(grid), itertools.count(), itertools.count()
    for name, variant in VARIANTS.items():
        quick = [next(pairs)] * (next(others) % 2) if variant.config in seen else most
        seen.add(variant.config)
        for problem, landing in quick:
            fewer = {"num_query": 27} if problem == "tail" else {}
            identity = f"{name}-{problem}-{landing}"
            yield pytest.param(name, problem, landing, 1, fewer, id=identity)
        turn, landings = next(turns), list(LANDINGS)
        for problem, landing in zip(PROBLEMS, landings[turn % 3 :] + landings[: turn % 3], strict=True):
            identity = f"{name}-{problem}-{landing}-all"
            whole = name, problem, landing, PROBLEMS[problem][2], {}
            yield pytest.param(*whole, id=identity, marks=pytest.mark.full)


@pytest.mark.parametrize(("name", "problem", "landing", "schedules", "fewer"), list(cases()))
def test_right_and_silent(name, problem, landing, schedules, fewer):
    shape, stages, _ = PROBLEMS[problem]
    workload = Workload("edge", num_heads=1, channels=32, pattern="uniform", outside=0.15, **shape)
    workload = workload.replace(**fewer)
    options = {"schedules": schedules, "landing": landing}
    check(workload.generate(seed=len(name)), name, options, **parameters(VARIANTS[name], stages))
