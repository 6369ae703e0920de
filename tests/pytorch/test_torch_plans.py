"""What a plan of a call gives to its launches, without a GPU: they are recorded."""

import contextlib
import ctypes
import dataclasses
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
            return (0,)

        return run

    def encoded(problem, address, kind, box, l2_promotion):
        count = len(problem.levels) * (problem.batch if kind == "batch" else 1)
        launches.append(("encoded", address, kind))
        return np.random.default_rng(address + len(kind)).integers(0, 256, (count, MAP_BYTES), np.uint8)

    def clear(place, size):
        return lambda stream: launches.append(("clear", stream, size)) or (0,)

    monkeypatch.setattr(plans, "in_context", lambda gpu, steps: lambda stream: [step(stream) for step in steps])
    monkeypatch.setattr(plans, "launch_step", ready)
    monkeypatch.setattr(plans, "clear_step", clear)
    monkeypatch.setattr(plans, "encoded_maps", encoded)
    monkeypatch.setattr(plans, "is_capturing", lambda stream: stream == CAPTURED)
    monkeypatch.setattr(plans, "_captured", set())
    monkeypatch.setattr(torch.cuda, "device", lambda number: torch.no_grad())
    return launches


def plan_of(*bounds):
    plan = plans.Plan(PROBLEM, FakeBound.gpu, "value", "locations", "weights", "out").run(bounds)
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
        assert batch == level + 3 * MAP_BYTES and level == gate + MAP_BYTES and level % 64 == 0
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


SAMPLES = PROBLEM.batch, PROBLEM.queries, PROBLEM.heads, 3, 2


def gradients_of(plan_of, monkeypatch, dtype, wanted, deterministic=False):
    """(addresses that the plan was called with, gradients) of tensors with the problem's shapes."""
    launches = []

    def plan(stream, *addresses):
        launches.append((stream, addresses))

    plan.out_shape = PROBLEM.out_shape
    monkeypatch.setattr(operator, "current_stream", lambda device: 7)
    value, locations, weights = torch.rand(6, 27, 2, 32).to(dtype), torch.rand(*SAMPLES, 2), torch.rand(SAMPLES)
    given = torch.rand(PROBLEM.out_shape)
    tensors = given, value, locations, weights
    found = operator.backward_by(lambda *asked: plan_of(*asked) or plan, *tensors, *wanted, deterministic)
    ((stream, addresses),) = launches
    assert stream == 7 and addresses[:3] == tuple(t.data_ptr() for t in (value, locations, weights))
    for gradient, tensor, yes in zip(found, (value, locations, weights), wanted, strict=True):
        assert (gradient.dtype, gradient.shape) == (tensor.dtype, tensor.shape) if yes else gradient is None
    return addresses[3:], found


def shifted(tensor):
    """The same numbers, from where no multiple of 16 bytes is."""
    view = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)
    assert view.data_ptr() % 16
    return view


@pytest.mark.parametrize("number", range(4))
def test_kernels_read_from_multiples_of_16_bytes(monkeypatch, number):
    """What starts elsewhere, as a view may, is copied: a load of 16 bytes from there would be the last use of
    the GPU. Mutants: one of the tensors is passed as it is, by either pass."""
    shapes = (6, 27, 2, 32), (*SAMPLES, 2), SAMPLES, PROBLEM.out_shape
    tensors = [torch.rand(shape) for shape in shapes]
    tensors[number] = shifted(tensors[number])
    read = []

    def plan(stream, *addresses):
        assert not any(address % 16 for address in addresses)
        read.append([ctypes.string_at(*pair) for pair in zip(addresses, sizes, strict=False)])

    plan.out_shape, sizes = PROBLEM.out_shape, [tensor.nbytes for tensor in tensors]
    monkeypatch.setattr(operator, "current_stream", lambda device: 7)
    operator.forward_by(plan, *tensors[:3])
    operator.backward_by(lambda *asked: plan, tensors[3], *tensors[:3], True, True, True, False)
    of_forward, of_backward = read
    right = [tensor.numpy().tobytes() for tensor in tensors]
    assert of_forward[:3] == right[:3] and of_backward == right


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("wanted", [(True, True, True), (True, False, False), (False, False, True)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_backward_launch_gets_its_operands(monkeypatch, wanted, dtype, deterministic):
    """What is not computed has no address, and is not asked for."""
    asked = []
    called = gradients_of(lambda *a: asked.append(a), monkeypatch, dtype, wanted, deterministic)
    (given, *addresses), found = called
    of_value, of_samples = wanted[0], wanted[1] or wanted[2]
    assert asked == [(of_value, of_samples, "fixed" if of_value and deterministic else "fp32")]
    assert given and [bool(address) for address in addresses[1:]] == [of_samples] * 2
    assert [a for a, yes in zip(addresses, wanted, strict=True) if yes] == [
        gradient.data_ptr() for gradient, yes in zip(found, wanted, strict=True) if yes]  # fmt: skip


def test_an_operator_has_something_empty_for_what_is_not_wanted(monkeypatch):
    """In each one's own type, as the fake implementation says. Mutant: all in the type of value."""
    value, weights = torch.zeros(1, 4, 2, 32, dtype=torch.float16), torch.zeros(1, 3, 2, 1, 2)
    monkeypatch.setattr(operator, "backward_by", lambda *_: [None] * 3)
    tensors = value, (2, 2), (0,), torch.zeros(1, 3, 2, 1, 2, 2), weights
    found = operator.backward_on_gpu(torch.zeros(1, 3, 64), *tensors, None, "default", False, False, False)
    assert [(t.dtype, t.numel()) for t in found] == [(torch.float16, 0), (torch.float32, 0), (torch.float32, 0)]


@pytest.mark.parametrize("dtype, sums, wanted", [
    ("float32", "fp32", ["clear 1", "backward 1"]),
    ("float16", "fp32", ["clear 2", "backward 2", "rounded 2 1"]),
    ("float32", "fixed", ["clear 2", "largest", "_scale", "backward 2", "rounded 2 1"]),
])  # fmt: skip
def test_what_a_backward_plan_launches(launched, monkeypatch, dtype, sums, wanted):
    """Sums are cleared, then added up; those that are no gradient lie in memory of the call (2) and are rounded
    into the gradient (1), fixed ones by the scale that was found before."""
    problem = dataclasses.replace(PROBLEM, constants=Constants(3, 2, 32, dtype))
    bound = FakeBound("backward", "grad_value", "scale")
    monkeypatch.setattr(plans, "problem_for", lambda *call: problem)
    monkeypatch.setattr(plans, "_on", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(plans, "find_gpu", lambda device: SimpleNamespace(**vars(bound.gpu), capability=(9, 0)))
    monkeypatch.setattr(plans, "require", lambda *_: None)
    monkeypatch.setattr(plans.gradients, "launches", lambda *_: (bound,))
    plans.backward_plan.forget()
    plan = plans.backward_plan(0, True, True, sums)
    plans.backward_plan.forget()  # nobody else gets this one
    plan._device = "cpu"
    plan(9, 1, 2, 3, 4, 5, 6, 7)
    sizes = {"fp32": 4, "fixed": 8}
    assert [(name, size) for name, _, size in launched if name == "clear"] == [
        ("clear", 6 * 27 * 2 * 32 * sizes[sums])]  # fmt: skip
    assert [name.split(" ")[0] for name in wanted] == [name for name, *_ in launched]
    arguments = {name: numbers for name, _, numbers in launched if name != "clear"}
    total, scale = arguments["backward"]
    assert (total == 5) == (wanted[1] == "backward 1") and bool(scale) == (sums == "fixed")
    if "rounded" in arguments:
        assert arguments["rounded"][0] == total and arguments["rounded"][1] == scale
        assert arguments["rounded"][4] == 5
    if sums == "fixed":
        grad_out, _, weights, _, largest = arguments["largest"]
        assert (grad_out, weights) == (4, 3) and arguments["_scale"][0] == largest
        assert arguments["_scale"][3] == scale
