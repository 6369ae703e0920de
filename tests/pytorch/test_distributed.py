"""More than one process: DistributedDataParallel, FSDP2, tensor parallelism, DTensors; gloo on the CPU."""

import importlib.util
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: E402
from two_processes import SCENARIOS, passed, run_both  # noqa: E402

from numba_deform.torch import MSDeformAttn  # noqa: E402
from numba_deform.torch.sharding import _ways  # noqa: E402


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(the folder of two processes, what went wrong there)."""
    folder = tmp_path_factory.mktemp("both")
    return folder, run_both("cpu", folder, 300)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_two_processes(scenario, ran):
    folder, error = ran
    assert passed(scenario, folder), error


def spec(sizes, shape, *placements):
    mesh = SimpleNamespace(size=lambda i: sizes[i])
    return SimpleNamespace(mesh=mesh, shape=shape, placements=placements)


@pytest.mark.parametrize(
    ("sizes", "batch", "heads", "placements", "dims"),
    [
        ((2, 4), 2, 4, (Shard(0), Shard(2)), (0, 2)),  # each dimension of the mesh has its own
        ((2, 4), 2, 4, (Shard(2), Shard(0)), ()),
        ((2, 4), 4, 2, (Shard(2), Shard(0)), (0, 2)),
        ((2, 4), 8, 4, (Shard(0), Shard(0)), (0, 2)),
        ((2, 4), 8, 6, (Shard(0), Shard(1)), (0,)),  # 1 may become 2, which does not divide
        ((2, 4), 3, 8, (Shard(1), Replicate()), (2,)),
        ((4,), 4, 6, (Shard(2),), (0,)),
        ((4,), 6, 4, (Shard(0),), (2,)),
        ((4,), 6, 6, (Partial(),), ()),
        ((4,), 1, 3, (Replicate(),), (0, 2)),
    ],
)
def test_no_process_gets_more_than_another(sizes, batch, heads, placements, dims):
    value = spec(sizes, (batch, 27, heads, 8), *placements)
    locations = spec(sizes, (batch, 3, heads, 3, 2, 2), *[Replicate()] * len(sizes))
    for specs in ((value, locations), (spec(sizes, value.shape, *locations.placements), value)):
        assert _ways(*specs) == [Replicate(), *map(Shard, dims)]


def test_nothing_of_it_is_needed_by_one_process(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", None)  # which an import then refuses
    with pytest.raises(ImportError):
        importlib.import_module("torch.distributed.tensor")
    found = importlib.util.find_spec("numba_deform.torch.sharding")
    found.loader.exec_module(importlib.util.module_from_spec(found))
    layer = MSDeformAttn(16, 1, 2, 1)
    out = layer(torch.rand(1, 2, 16), torch.rand(1, 2, 1, 2), torch.rand(1, 6, 16), [[2, 3]])
    out.sum().backward()
    assert layer.sampling_offsets.weight.grad.any()
