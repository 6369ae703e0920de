"""Two GPUs of one host: training split over both (nccl), and calls on the one that is not the current one."""

import functools

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if torch.cuda.device_count() < 2:
    pytest.skip(f"needs two GPUs, found {torch.cuda.device_count()}", allow_module_level=True)
if not (torch.distributed.is_available() and torch.distributed.is_nccl_available()):
    pytest.skip("this PyTorch has no nccl", allow_module_level=True)

from two_processes import SCENARIOS, passed, run_both  # noqa: E402

from numba_deform.torch import MSDeformAttn, ms_deform_attn, prepare  # noqa: E402

pytestmark = pytest.mark.timeout(120)
SHAPES = [[25, 42], [13, 21], [7, 11], [1, 1]]
SIZE = 25 * 42 + 13 * 21 + 7 * 11 + 1


@pytest.fixture(autouse=True)
def on_gpu(hopper):
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def ran(hopper, tmp_path_factory):
    """(the folder of two processes, what went wrong there)."""
    folder = tmp_path_factory.mktemp("both")
    return folder, run_both("cuda", folder, 100)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_two_processes(scenario, ran):
    folder, error = ran
    assert passed(scenario, folder), error


def drawn(device, queries=100, dtype=torch.float32):
    """value, locations and weights; some samples outside, none near a pixel's centre line, where they jump."""
    torch.manual_seed(0)
    value = torch.randn(2, SIZE, 8, 32)
    size = torch.tensor(SHAPES).flip(1)[:, None]
    pixel = (torch.rand(2, queries, 8, 4, 4, 2) * 1.4 - 0.2) * size
    locations = (pixel.floor() + (pixel % 1) * 0.98 + 0.51) / size
    weights = torch.randn(2, queries, 8, 16).softmax(-1).unflatten(-1, (4, 4))
    tensors = (value.to(dtype), locations, weights)
    return [tensor.to(device).requires_grad_() for tensor in tensors]


def call(tensors, shapes=SHAPES):
    """The output and the gradients."""
    out = ms_deform_attn(tensors[0], shapes, None, *tensors[1:])
    return [out.detach(), *torch.autograd.grad(out.square().sum(), tensors)]


def error(found, wanted):
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


@functools.cache
def usual(queries):
    """What :func:`call` is of the drawn tensors on the first GPU, while that is the current one."""
    torch.cuda.set_device(0)
    return [tensor.cpu().double() for tensor in call(drawn("cuda:0", queries))]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("queries", [100, 7_000])
@pytest.mark.parametrize(("current", "other"), [(0, 1), (1, 0)])
def test_the_other_gpu(current, other, queries, deterministic):
    """Forward and backward run where the tensors are, on that GPU's current stream; the current GPU stays."""
    drawn_there, wanted = drawn(f"cuda:{other}", queries), usual(queries)
    torch.use_deterministic_algorithms(deterministic)
    torch.cuda.synchronize(other)
    for stream in (torch.cuda.default_stream(other), torch.cuda.Stream(other)):
        with torch.cuda.stream(stream):  # which makes its GPU the current one
            torch.cuda._sleep(20_000_000)
            tensors = [(tensor * 1).detach().requires_grad_() for tensor in drawn_there]
            torch.cuda.set_device(current)
            found = call(tensors)
            assert torch.cuda.current_device() == current
        torch.cuda.synchronize(other)
        for one, reference in zip(found, wanted, strict=True):
            assert one.device.index == other and error(one, reference) < 1e-5


def test_index_tensors_layer_and_plan_on_the_other_gpu():
    tensors = drawn("cuda:1", dtype=torch.float16)
    shapes = torch.tensor(SHAPES, device="cuda:1")
    out, *_ = call(tensors, shapes)
    wanted = call(tensors)[0]
    assert torch.equal(out, wanted)
    layer = MSDeformAttn(device="cuda:1")
    points = torch.rand(2, 100, 4, 2, device="cuda:1")
    given = (torch.randn(2, 100, 256, device="cuda:1"), points, torch.randn(2, SIZE, 256, device="cuda:1"))
    exact = layer(*given, SHAPES).detach().cpu()
    torch.testing.assert_close(layer.cpu()(*(t.cpu() for t in given), SHAPES), exact, rtol=1e-3, atol=1e-3)
    plain = [tensor.detach() for tensor in tensors]
    plan = prepare(plain[0], SHAPES, [0, 1050, 1323, 1400], *plain[1:])
    assert error(plan(*plain), wanted.cpu().double()) < 2e-3
    assert torch.cuda.current_device() == 0


def test_tensors_on_both_are_refused():
    value, locations, weights = drawn("cuda:1")
    with pytest.raises(ValueError, match="^value is on cuda:1 but .*attention_weights on cuda:0"):
        ms_deform_attn(value, SHAPES, None, locations, weights.to("cuda:0"))
