"""``nd.tune``: what is wrong or does not fit is refused, the rest is ranked, and how is said."""

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.course.pipelines.cluster import multicast
from numba_deform.course.pipelines.copy import copy
from numba_deform.course.pipelines.stencil import stencil
from numba_deform.kernels.pipelines import PIPELINES


@pytest.fixture(autouse=True)
def no_more_pipelines():
    before = dict(PIPELINES)
    yield
    PIPELINES.clear()
    PIPELINES.update(before)


def test_more_stages_are_better_until_they_do_not_fit():
    found = nd.tune(copy, stages=[1, 3, 60], steps=[6], engine="cpu")
    assert [row["stages"] for row in found.rows] == [3, 1] and found.best.origin[1]["stages"] == 3
    assert found.by == "virtual_cycles" and found.rows[0]["virtual_cycles"] < found.rows[1]["virtual_cycles"]
    assert [row["blocks_per_sm"] for row in found.rows] == [17, 32]  # 12 KB of 228, and 64 warps
    ((parameters, why),) = found.refused
    assert parameters == {"stages": 60, "steps": 6} and "bytes of shared memory" in why
    shown = str(found)
    assert "of the CPU engine" in shown and "nothing is measured" in shown and "not stages=60" in shown


def test_what_is_wrong_is_refused():
    @nd.pipeline
    def adds(by=1, skip=0):
        """Adds a number: right by=1 alone, a race with skip=1."""
        shared = nd.Shared(numbers=nd.Array(64, nd.float32))

        @nd.kernel(threads=64, shared=shared)
        def adds(data: nd.float32[:], out: nd.float32[:]):
            numbers, i = shared.numbers.view(), nd.lane() + 32 * nd.warp()
            numbers[i] = data[i] + nd.float32(by)
            if not skip:
                nd.bar_sync(nd.uint32(0), nd.uint32(64))
            out[i] = numbers[63 - i]

        data = np.arange(64, dtype=np.float32)
        return nd.Launch(adds, 1, [data, np.empty_like(data)], {"out": data[::-1] + 1})

    found = nd.tune(adds, by=[1, 2], skip=[0, 1], engine="cpu", schedules=2)
    assert [(row["by"], row["skip"]) for row in found.rows] == [(1, 0)]
    assert [why.partition(":")[0] for _, why in found.refused] == ["DataRace", "WrongResult", "DataRace"]
    nothing = nd.tune(adds, by=[3], engine="cpu")
    assert nothing.best is None and nothing.rows == []


@pytest.mark.parametrize("values, error, words", [
    ({"stagse": [1]}, nd.ConfigError, "copy has the parameters stages, rows, steps.* did you mean stages"),
    ({"stages": 3}, ValueError, "stages=3 must be a list of values"),
    ({"stages": []}, ValueError, "must be a list"),
])  # fmt: skip
def test_bad_values(values, error, words):
    with pytest.raises(error, match=words):
        nd.tune(copy, engine="cpu", **values)


def test_of_what_is_no_pipeline():
    with pytest.raises(ValueError, match="must be a function that @nd.pipeline decorates"):
        nd.tune(len)


# --- the templates that no other file tests --------------------------------------------------------
@pytest.mark.parametrize("launch", [
    stencil(), stencil(height=33, width=40, stages=1, blocks=3), multicast(), multicast(blocks=4, stages=1),
], ids=lambda launch: launch.title)  # fmt: skip
def test_templates_are_right(launch):
    nd.simulate(launch, landing="random", schedules=2)


def test_a_cluster_of_three():
    with pytest.raises(nd.ConfigError, match="blocks=3: must be 2, 4 or 8"):
        multicast(blocks=3)
