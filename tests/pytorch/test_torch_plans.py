"""What a plan of a call gives to its launches, without a GPU: they are recorded."""

import ctypes
import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from numba import types  # noqa: E402

from numba_deform.engines.cpu import simulate  # noqa: E402
from numba_deform.kernels.level_maps import level_maps, level_maps_rank5  # noqa: E402
from numba_deform.kernels.problem import Constants, Problem, make_levels  # noqa: E402
from numba_deform.kernels.set_maps import MAP_BYTES, MOST, WORDS, build  # noqa: E402
from numba_deform.torch import operator, plans  # noqa: E402

SHAPES = [[5, 4], [2, 3], [1, 1]]
CAPTURED = 5  # a stream
PROBLEM = Problem(6, 27, 2, 3, make_levels(SHAPES), Constants(3, 2, 32))


class FakeBound:
    """A Bound of a kernel with these parameters; those named maps stand for tensor maps of that kind."""

    problem, gpu, blocks, shared_bytes = PROBLEM, SimpleNamespace(device=SimpleNamespace(device_id=0)), 7, 0

    def __init__(self, name, *parameters):
        signature = types.void(*[types.uint64] * len(parameters))
        self.kernel = SimpleNamespace(name=name, parameters=parameters, signature=signature)

    def arguments(self, operands, maps, extra):
        known = dict(zip(("value", "locations", "weights", "out"), operands, strict=True)) | dict(extra)
        return tuple(
            maps(name, (2, 2), "none") if name in ("level", "batch") else known[name]
            for name in self.kernel.parameters
        )


@pytest.fixture
def launched(monkeypatch):
    """(name, stream, arguments) of each launch so far; those of ``set_maps`` as (target, bytes of maps)."""
    launches = []

    def ready(gpu, kernel, grid, shared_bytes, block):
        def run(stream):
            count = len(kernel.signature.args)
            count += sum(kind.count - 1 for kind in kernel.signature.args if isinstance(kind, types.UniTuple))
            places = (ctypes.c_void_p * count).from_address(block.address)
            numbers = [ctypes.c_uint64.from_address(place).value for place in places]
            if kernel.name == "set_maps":
                numbers = numbers[0], np.array(numbers[1:], np.uint64).tobytes()
            launches.append((kernel.name, stream, numbers))

        return run

    def encoded(problem, address, kind, box, l2_promotion):
        count = len(problem.levels) * (problem.batch if kind == "batch" else 1)
        launches.append(("encoded", address, kind))
        return np.random.default_rng(address + len(kind)).integers(0, 256, (count, MAP_BYTES), np.uint8)

    monkeypatch.setattr(plans, "ready_launch", ready)
    monkeypatch.setattr(plans, "encoded_maps", encoded)
    monkeypatch.setattr(plans, "is_capturing", lambda stream: stream == CAPTURED)
    monkeypatch.setattr(plans, "_captured", set())
    monkeypatch.setattr(torch.cuda, "device", lambda number: torch.no_grad())
    return launches


def plan_of(*bounds):
    plan = plans.Plan(bounds, "value", "locations", "weights", "out")
    plan._device = "cpu"
    return plan


def test_a_launch_gets_its_operands(launched):
    plan_of(FakeBound("direct", "out", "value", "weights", "locations"))(9, 1, 2, 3, 4)
    assert launched == [("direct", 9, [4, 1, 3, 2])]


def test_launches_come_in_order_and_share_a_gate(launched):
    plan = plan_of(FakeBound("first", "value", "gate"), FakeBound("second", "gate", "out"))
    plan(9, 1, 2, 3, 4)
    (first, _, (value, gate)), (second, _, (same, out)) = launched
    assert (first, second, value, out) == ("first", "second", 1, 4)
    assert gate == same and gate % 4 == 0 and gate


def test_each_call_has_maps_of_its_value(launched):
    """Put there before the launch that reads them; those of more than MOST maps by several launches."""
    assert 3 * 6 > MOST > 3
    plan = plan_of(FakeBound("window", "level", "batch", "value", "gate"))
    for stream, value in ((9, 1), (8, 5), (9, 1)):
        launched.clear()
        plan(stream, value, 2, 3, 4)
        sets = [numbers for name, at, numbers in launched if name == "set_maps" and at == stream]
        name, at, (level, batch, same, gate) = launched[-1]
        assert (name, at, same) == ("window", stream, value) and len(sets) == 3
        assert [target for target, _ in sets] == [level, batch, batch + MOST * MAP_BYTES]
        assert batch == level + 3 * MAP_BYTES and gate == batch + 18 * MAP_BYTES
        for kind, found in (("level", sets[0][1]), ("batch", sets[1][1] + sets[2][1])):
            wanted = plans.encoded_maps(PROBLEM, value, kind, (2, 2), "none")
            assert found == wanted.tobytes()


def test_maps_are_encoded_once_for_each_value_that_is_kept(launched, monkeypatch):
    monkeypatch.setattr(plans, "KEPT_VALUES", 2)
    plan = plan_of(FakeBound("window", "level"))
    for value in (1, 2, 1, 3, 2, 1):
        plan(9, value, 2, 3, 4)
    assert [address for name, address, _ in launched if name == "encoded"] == [1, 2, 3, 1]


@pytest.mark.parametrize("stream", [9, CAPTURED])
def test_a_plan_lives_on_in_graphs_alone(launched, stream):
    """A graph reads the plan's tables, whether others push the plan out of the cache or not."""
    plan = plan_of(FakeBound("direct", "value", "out"))
    plan(stream, 1, 2, 3, 4)
    known = weakref.ref(plan)
    del plan
    gc.collect()
    assert (known() is not None) == (stream == CAPTURED)


@pytest.mark.parametrize("make", [level_maps, level_maps_rank5])
def test_set_maps_on_the_cpu_engine(make):
    value = np.zeros((2, 26, 2, 32), np.float16)
    maps = make(value, 2, 2, 32, "float16", make_levels(SHAPES[:2]), 26)
    kernel, count = build(len(maps)), len(maps)
    room = np.zeros((count + 1) * MAP_BYTES, np.uint8)
    target = room[-room.ctypes.data % MAP_BYTES :][: count * MAP_BYTES]
    words = tuple(map(int, maps.host.reshape(-1).view(np.uint64)))
    assert len(words) == count * WORDS
    simulate(kernel, 1, 32, (target, words), shared_bytes=kernel.shared_bytes)
    assert target.tobytes() == maps.host.tobytes()


@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, False, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_backward_launch_gets_its_operands(monkeypatch, wanted, dtype):
    """What is not computed has no address; the gradient of value is added up in float32."""
    launches, keys = [], []

    def plan(stream, *addresses):
        launches.append((stream, addresses))

    def plan_of(device, *key):
        keys.append(key)
        return plan

    plan.problem, plan.out_shape = PROBLEM, (2, 5, 64)
    monkeypatch.setattr(operator, "backward_plan", plan_of)
    monkeypatch.setattr(operator, "current_stream", lambda device: 7)
    rows = 2, 5, 2, 3, 2
    value, locations, weights = torch.rand(2, 27, 2, 32).to(dtype), torch.rand(*rows, 2), torch.rand(rows)
    given = torch.rand(2, 5, 64).to(dtype)
    call = given, value, (5, 4, 2, 3, 1, 1), (0, 20, 26), locations, weights, None, "default", *wanted
    found = operator.backward_on_gpu(*call)
    of_value, of_samples = wanted[0], wanted[1] or wanted[2]
    assert keys[0][:3] == (of_value, of_samples, "fp32")
    ((stream, (*inputs, sums, of_locations, of_weights, scale)),) = launches
    assert stream == 7 and inputs == [t.data_ptr() for t in (value, locations, weights, given)]
    assert [bool(address) for address in (sums, of_locations, of_weights, scale)] == [
        of_value, of_samples, of_samples, False]  # fmt: skip
    for gradient, tensor, yes in zip(found, (value, locations, weights), wanted, strict=True):
        assert gradient.dtype == tensor.dtype and gradient.shape == (tensor.shape if yes else (0,))
    if of_value:
        assert not found[0].any() and (found[0].data_ptr() == sums) == (dtype is torch.float32)
