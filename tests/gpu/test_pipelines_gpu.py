"""Pipelines of one's own on a real GPU: run, timed, drawn, counted, and on the command line."""

import json
import shutil

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.cli import main
from numba_deform.course.pipelines import two_producers as module
from numba_deform.course.pipelines.attention import attention
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.gemm import gemm
from numba_deform.course.pipelines.stencil import stencil
from numba_deform.course.pipelines.two_producers import two_producers
from numba_deform.engines.faults import WrongResult
from numba_deform.engines.gpu.in_place import run_launch
from numba_deform.measure.counters import USUAL_PLACE


@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "plain"])
@pytest.mark.parametrize("stages, producers", [(3, 2), (4, 3), (1, 1)])
def test_producers_in_turn(hopper, stages, producers, guarded):
    run_launch(hopper, two_producers(stages=stages, producers=producers, steps=41), guarded)


@pytest.mark.parametrize("options", [
    {"by": "mma"}, {"by": "wgmma"}, {"by": "mma", "steps": 64, "heads": 16, "blocks": 32, "groups": 2},
    {"by": "wgmma", "steps": 64, "heads": 16, "blocks": 32, "groups": 2},
    {"by": "wgmma", "stages": 1, "steps": 9}, {"by": "wgmma", "stages": 4, "steps": 3, "groups": 3},
])  # fmt: skip
def test_attention(hopper, options):
    launch = attention(**options)
    run_launch(hopper, launch)
    assert launch.errors()["out"] <= launch.allowed("out")


OTHERS = [stencil(), stencil(height=100, width=200), multicast(), multicast(blocks=4), gemm(),
          gemm(stages=1, cluster=1, clusters=3, columns=64, down=7),
          gemm(columns=256, groups=2, clusters=40, down=16, across=9, steps=20)]  # fmt: skip


@pytest.mark.parametrize("launch", OTHERS, ids=lambda launch: launch.title)
def test_other_templates(hopper, launch):
    run_launch(hopper, launch)


@pytest.mark.parametrize("by", ["mma", "wgmma"])
def test_the_timeline_of_attention(hopper, by):
    """Each tile of keys and values in flight once; what the engine draws as well."""
    made = nd.timeline(attention(by=by, steps=6), engine="gpu")
    assert sorted(flight.ring for flight in made.flights) == ["keys"] * 6 + ["values"] * 6, made.notes()


def test_tune_ranks_by_time(hopper):
    """Two producers need two stages: what the CPU engine refuses is not timed."""
    found = nd.tune(two_producers, stages=[1, 2, 4], steps=[400], engine="gpu")
    assert [parameters["stages"] for parameters, _ in found.refused] == [1]
    times = {row["stages"]: row["median_ms"] for row in found.rows}
    assert found.by == "median_ms" and times.keys() == {2, 4} and min(times.values()) > 0
    assert times[found.best.origin[1]["stages"]] == min(times.values()) == found.rows[0]["median_ms"]


def test_a_wrong_result_is_told(hopper):
    launch = nd.Launch(copy().kernel, 1, copy().args, {"out": copy().expected["out"] + 1})
    with pytest.raises(WrongResult, match="8,192 of 8,192 elements of out are wrong"):
        run_launch(hopper, launch)


def test_a_cluster(hopper):
    @nd.kernel(threads=32)
    def ranks(out: nd.uint32[:]):
        if nd.lane() == 0:
            out[nd.cluster_ctarank()] = nd.cluster_nctarank()

    run_launch(hopper, nd.Launch(ranks, 2, [np.zeros(2, np.uint32)], {"out": [2, 2]}, cluster=2))


def test_timeline(hopper):
    made = nd.timeline(two_producers(steps=9), engine="gpu")
    assert made.engine == hopper.name and len(made.flights) == 9
    assert {span.warp for span in made.spans if span.activity == "issue"} == {0, 1}


def test_commands(hopper, tmp_path):
    load, out = f"load={module.__file__}", tmp_path / "bench.json"
    assert main(["run", load, "engine=gpu"]) == 0 and main(["run", load, "engine=gpu", "debug=1"]) == 0
    assert main(["timeline", load, "engine=both", f"out={tmp_path}/t.png"]) == 0
    variants = "variants=two_producers:steps=4000,two_producers:stages=6,steps=4000,two_producers"
    assert main(["bench", load, variants, f"out={out}", "repeats=3"]) == 0
    for row in json.loads(out.read_text())["rows"]:
        assert row["error"] == 0 and row["median_ms"] > 0 and row["gigabytes_per_second"] > 0
        assert row["bounded_by"] == "copy" and 0 < row["closeness"] < 1.1
    assert main(["table", str(out)]) == 0
    sweep = tmp_path / "sweep.json"
    assert main(["sweep", load, "stages=2,3", "repeats=3", f"out={sweep}"]) == 0
    assert all(row["median_ms"] > 0 for row in json.loads(sweep.read_text())["rows"])


def test_profile(hopper):
    if not (shutil.which("ncu") or shutil.which("ncu", path=USUAL_PLACE)):
        pytest.skip("no Nsight Compute here")
    counted = nd.profile(two_producers(stages=3), engine="gpu")
    if "ERR_NVGPUCTRPERM" in counted.get("error_text", ""):
        pytest.skip(counted["error_text"])
    assert counted["instructions"] > 0, counted
