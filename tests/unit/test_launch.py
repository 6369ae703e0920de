"""What the GPU launcher asks the CUDA packages for: shapes of grid, block and cluster. Nothing is launched."""

from types import SimpleNamespace

import pytest
from numba import cuda

from numba_deform.compiler import kernel, u64
from numba_deform.engines import faults
from numba_deform.engines.gpu import guard, launch
from numba_deform.engines.shapes import clusters

DEVICE = SimpleNamespace(default_stream="stream", set_current=lambda: None)
GPU = SimpleNamespace(architecture="sm_90a", device=DEVICE)


@kernel(threads=96)
def line(out: u64):
    pass


@kernel(threads=(16, 4))
def plane(out: u64):
    pass


@kernel(threads=32)
def together(out: u64):
    cuda.cg.this_grid().sync()


@pytest.fixture
def asked(monkeypatch):
    """The configurations of launches, which are not made."""
    import cuda.core

    made = []
    monkeypatch.setattr(launch, "_loaded", lambda *_: (None, SimpleNamespace(handle=0)))
    monkeypatch.setattr(cuda.core, "LaunchConfig", SimpleNamespace)
    monkeypatch.setattr(cuda.core, "launch", lambda stream, config, function, *values: made.append(config))
    return made


@pytest.mark.parametrize("one, grid, cluster, wanted", [
    (line, 7, None, {"grid": (7, 1, 1), "block": (96, 1, 1)}),
    (plane, (3, 5), None, {"grid": (3, 5, 1), "block": (16, 4, 1)}),
    # LaunchConfig's grid counts clusters.
    (plane, (4, 6, 2), (2, 3), {"grid": (2, 2, 2), "block": (16, 4, 1), "cluster": (2, 3, 1)}),
    (line, 8, 1, {"grid": (8, 1, 1), "block": (96, 1, 1)}),
])  # fmt: skip
def test_shapes(asked, one, grid, cluster, wanted):
    launch.launch(GPU, one, grid, [0], 64, cluster=cluster)
    assert vars(asked[0]) == {**wanted, "shmem_size": 64}


def test_a_grid_with_a_barrier_is_launched_together(asked):
    launch.launch(GPU, together, 4, [0])
    assert asked[0].is_cooperative and together.compile().cooperative and not line.compile().cooperative


def test_a_launch_that_cannot_be(asked):
    with pytest.raises(faults.BadLaunch, match="no multiple"):
        launch.launch(GPU, line, 6, [0], cluster=4)
    with pytest.raises(ValueError, match="grid='4'"):
        launch.launch(GPU, line, "4", [0])
    for one, grid in ((line, (2, 2)), (plane, 4)):
        with pytest.raises(ValueError, match="one dimension"):
            guard.launch_guarded(GPU, one, grid, [0])
    assert not asked


OTHER = ["cuCtxPushCurrent", "cuCtxPopCurrent"]


@pytest.mark.parametrize("current, around", [(7, []), (8, OTHER), (0, OTHER)])
def test_ready_launches_have_all_dimensions(asked, monkeypatch, current, around):
    """They go to the context that they were made in, whichever is the current one, or none."""
    from cuda.bindings import driver

    calls, block = [], SimpleNamespace(address=5)
    monkeypatch.setattr(launch, "driver_call", lambda name, *_: calls.append(name) or 7)
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (0, current))
    monkeypatch.setattr(driver, "cuLaunchKernel", lambda *args: calls.append(args) or (0,))
    run = launch.ready_launch(GPU, plane, (2, 3), 64, block)
    calls.clear()
    run(9)
    (launched,) = [call for call in calls if isinstance(call, tuple)]
    assert launched[1:] == (2, 3, 1, 16, 4, 1, 64, 9, 5, 0)
    assert calls == [*around[:1], launched, *around[1:]]


def test_threads_of_a_kernel():
    assert (plane.threads, plane.block, line.block) == (64, (16, 4), ())


def test_the_blocks_of_each_cluster():
    """By rank, x first, each block in one cluster; a grid too large to be listed is no trouble."""
    assert list(clusters((4, 2, 1), (2, 2, 1))) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert sorted(sum(clusters((4, 3, 2), (2, 1, 2)), ())) == list(range(24))
    assert next(clusters((2**31 - 1, 65535, 65535), (1, 1, 1))) == (0,)
