"""The persistent GEMM by clusters among the course's pipelines, and what it is made of."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from numba import cuda

import numba_deform as nd
from numba_deform.course.pipelines import gemm as module
from numba_deform.engines import faults

SMALL = {"columns": 64, "steps": 2, "stages": 2}


@pytest.mark.parametrize("options", [
    {**SMALL, "steps": 3}, {**SMALL, "cluster": 1, "clusters": 2, "down": 3, "across": 1},
    pytest.param({}, marks=pytest.mark.full), pytest.param({**SMALL, "stages": 1}, marks=pytest.mark.full),
    pytest.param({"columns": 256, "groups": 2, "across": 1, "steps": 4}, marks=pytest.mark.full),
    pytest.param({**SMALL, "cluster": 4, "clusters": 2, "down": 3, "across": 1}, marks=pytest.mark.full),
])  # fmt: skip
def test_is_right(options):
    launch = module.gemm(**options)
    nd.simulate(launch, landing="random", seed=1)
    assert launch.errors()["c_map"] < 2**-8  # one rounding


# what is changed, into what: the fault, and the part of shared memory that it names
PLANTED = {
    "a tile's last stage is kept": ("    ring.arrive(before)\n                store",
                                    "    pass\n                store", faults.MissingArrivals, "ring.empty"),
    "its own block alone is told": (", empty=empty, cluster=cluster", ", empty=128", faults.RefillRace, "b["),
    "both loads arrive, one is expected": ("full=2", "full=1", faults.TooManyArrivals, "ring.full"),
    "no fence before the store": ("        nd.fence_proxy_async()\n", "", faults.MissingProxyFence, "c["),
    "the last store is not waited for": ("wait_group_read(0)", "wait_group_read(1)", faults.DataRace,
                                         "c["),
    "blocks leave while others arrive": ("nd.cluster_sync()", "pass", faults.BlockEnded, "ring.empty"),
    "tiles of C that overlap": ("columns * tile[1] + SIDE * box,", "SIDE * box,", faults.DataRace, "c_map"),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted(name, tmp_path):
    before, after, fault, words = PLANTED[name]
    text = Path(module.__file__).read_text()
    assert text.count(before) == 1
    path = tmp_path / "planted.py"
    path.write_text(text.replace(before, after))
    spec = importlib.util.spec_from_file_location("planted", path)
    planted = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(planted)
    with pytest.raises(fault) as caught:
        nd.simulate(planted.gemm(**SMALL))
    assert type(caught.value) is fault and words in str(caught.value)


@pytest.mark.parametrize("down, across, group", [(1, 1, 8), (5, 3, 2), (8, 7, 3), (3, 9, 8)])
def test_every_tile_has_one_number(down, across, group):

    @nd.kernel(threads=1)
    def number_tiles(out: nd.int32[:, :]):
        for number in range(cuda.blockIdx.x, down * across, cuda.gridDim.x):
            out[number, 0], out[number, 1] = nd.tile_at(number, down, across, group)

    out = np.full((down * across, 2), -1, np.int32)
    nd.simulate(number_tiles, 2, args=[out])
    order = [tuple(tile) for tile in out.tolist()]
    assert sorted(order) == [(y, x) for y in range(down) for x in range(across)]
    places = [(y // group, x, y) for y, x in order]
    assert places == sorted(places)  # a group of rows after the other, in it column by column
