"""Every kind of bad input of ``ms_deform_attn``: refused with a message, and ``out`` left alone."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from numba_deform import ConfigError, OperatorError, SimFault, ms_deform_attn, prepare
from numba_deform.attention import prepared, request
from numba_deform.attention.bind import Bound
from numba_deform.attention.checks import check_problem
from numba_deform.engines.gpu import device as host_gpu
from numba_deform.engines.gpu.device import Gpu, GpuMissing
from numba_deform.workloads.workload import Workload

WORKLOAD = Workload(
    "bad", batch=2, levels=((5, 4), (3, 2)), num_query=3, num_heads=2, channels=32, num_points=2
)
PADDED = WORKLOAD.replace(padded=True)
OUT_SHAPE = (2, 3, 64)
pytestmark = pytest.mark.usefixtures("no_gpu")


def arguments(workload=WORKLOAD):
    """The operator's arguments by name, right as they are."""
    inputs = workload.generate(seed=1)
    names = (
        "value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights",
    )  # fmt: skip
    return {name: getattr(inputs, name) for name in names} | {"variant": "direct"}


def refused(error, message, out=None, **changes):
    """The call fails with ``error``, its text starts with ``message``, ``out`` keeps its bytes."""
    given = arguments() | changes
    if out is None:
        out = np.full(OUT_SHAPE, 42, np.float16)
    before = out.copy()
    with pytest.raises(error) as caught:
        ms_deform_attn(**given, out=out)
    assert str(caught.value).startswith(message), str(caught.value)
    assert np.array_equal(out, before)


def cut(name, index):
    """The right argument, indexed."""
    return {name: arguments()[name][index]}


def test_the_arguments_are_right_before_they_are_spoilt():
    out = np.full(OUT_SHAPE, np.nan, np.float16)
    assert ms_deform_attn(**arguments(), threads=32, out=out) is out
    assert np.isfinite(out).all()
    assert ms_deform_attn(**arguments(PADDED), threads=32, padded=True).shape == OUT_SHAPE


# --- ranks, types, shapes -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("value", "value has shape (26, 2, 32); it must have rank 4: (B, S, H, C)"),
        (
            "sampling_locations",
            "sampling_locations has shape (3, 2, 2, 2, 2); it must have rank 6: (B, Q, H, L, P, 2)",
        ),
        (
            "attention_weights",
            "attention_weights has shape (3, 2, 2, 2); it must have rank 5: (B, Q, H, L, P)",
        ),
        ("spatial_shapes", "spatial_shapes has shape (2,); it must have rank 2: (L, 2)"),
        ("level_start_index", "level_start_index has shape (); it must have rank 1: (L,)"),
    ],
)
def test_wrong_rank(name, message):
    refused(OperatorError, message, **cut(name, 0))


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        ("value", (slice(None), slice(0, 0)), "value has shape (2, 0, 2, 32): no dimension but B, Q and H may"),
        ("value", (..., slice(0, 0)), "value has shape (2, 26, 2, 0): no dimension but B, Q and H may be 0"),
        ("value", slice(0, 0), "value has B=0 (dimension 0) but sampling_locations has B=2"),
        ("sampling_locations", np.s_[:, :, :, :0], "sampling_locations has shape (2, 3, 2, 0, 2, 2): no dim"),
        ("attention_weights", np.s_[..., :0], "attention_weights has shape (2, 3, 2, 2, 0): no dimension but"),
        ("spatial_shapes", slice(0, 0), "spatial_shapes has shape (0, 2): no dimension but B, Q and H may be"),
        ("level_start_index", slice(0, 0), "level_start_index has shape (0,): no dimension but B, Q and H may"),
    ],
)
def test_empty(name, index, message):
    refused(OperatorError, message, **cut(name, index))


@pytest.mark.parametrize("axis", ["B", "Q", "H"])
@pytest.mark.parametrize("function", [ms_deform_attn, prepare])
def test_nothing_to_compute(axis, function):
    """The result is empty, on whichever engine: nothing is launched. A prepared call would be for nothing."""
    places = {"value": "BSH", "sampling_locations": "BQH", "attention_weights": "BQH"}
    given = arguments() | {"variant": "auto"}
    for name, letters in places.items():
        given[name] = given[name][tuple(slice(0, 0 if axis == letter else None) for letter in letters)]
    if function is prepare:
        with pytest.raises(OperatorError, match=f"{axis}=0.*: a prepared call has something to launch"):
            prepare(**given)
        return
    wanted = [0 if axis == letter else size for letter, size in (("B", 2), ("Q", 3), ("H", 64))]
    assert ms_deform_attn(**given).shape == tuple(wanted)
    out = np.empty(wanted, np.float16)
    assert ms_deform_attn(**given, out=out, im2col_step=1) is out


FLOATS = "; it must be one of float16, bfloat16, float32"
INTEGERS = "; it must be one of int64, int32"


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("value", "float64", f"value has dtype float64{FLOATS}"),
        ("value", "int16", f"value has dtype int16{FLOATS}"),
        ("value", ">f2", "value has dtype >f2; it must be one of"),
        ("sampling_locations", "float64", f"sampling_locations has dtype float64{FLOATS}"),
        ("attention_weights", "int32", f"attention_weights has dtype int32{FLOATS}"),
        ("spatial_shapes", "float32", f"spatial_shapes has dtype float32{INTEGERS}"),
        ("level_start_index", "uint8", f"level_start_index has dtype uint8{INTEGERS}"),
    ],
)
def test_wrong_dtype(name, dtype, message):
    refused(OperatorError, message, **{name: arguments()[name].astype(dtype)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            cut("sampling_locations", (..., slice(0, 1))),
            "sampling_locations ends in 1; its last dimension is (x, y), size 2",
        ),
        (
            cut("attention_weights", (slice(None), slice(0, 2))),
            "attention_weights has shape (2, 2, 2, 2, 2), but sampling_locations asks for "
            "(2, 3, 2, 2, 2)",
        ),
        (
            cut("value", slice(0, 1)),
            "value has B=1 (dimension 0) but sampling_locations has B=2",
        ),
        (
            cut("value", (slice(None), slice(None), slice(0, 1))),
            "value has H=1 (dimension 2) but sampling_locations has H=2",
        ),
        (
            cut("spatial_shapes", slice(0, 1)),
            "spatial_shapes describes 1 levels, sampling_locations has L=2",
        ),
        (
            cut("level_start_index", slice(0, 1)),
            "level_start_index describes 1 levels, sampling_locations has L=2",
        ),
        (
            {"spatial_shapes": np.ones((2, 3), np.int64)},
            "spatial_shapes has shape (2, 3); it is (L, 2)",
        ),
    ],
    ids=lambda change: "+".join(change) if isinstance(change, dict) else "",
)
def test_shapes_that_disagree(change, message):
    refused(OperatorError, message, **change)


# --- levels ---------------------------------------------------------------------------------------
def test_spatial_shapes_disagree_with_value():
    # Without a hint, since padding would not make it right either.
    shapes = np.array([[5, 4], [3, 3]])
    with pytest.raises(OperatorError) as caught:
        ms_deform_attn(**arguments() | {"spatial_shapes": shapes})
    assert str(caught.value) == "spatial_shapes says 29 positions but value has S=26"
    refused(OperatorError, "spatial_shapes=[[5, 4], [-3, -2]]: sizes are >= 1",
            spatial_shapes=np.array([[5, 4], [-3, -2]]))  # fmt: skip
    refused(OperatorError, "spatial_shapes=[[5, 0], [13, 2]]: sizes are >= 1",
            spatial_shapes=np.array([[5, 0], [13, 2]]))  # fmt: skip


def test_padding_that_was_not_mentioned():
    refused(
        OperatorError,
        "spatial_shapes says 26 positions but value has S=62; a data directory with one pixel of "
        "padding needs padded=True",
        **arguments(PADDED),
    )


def test_padding_that_is_not_there():
    refused(
        OperatorError,
        "spatial_shapes says 62 positions but value has S=26; it has no padding, so padded must be "
        "False",
        padded=True,
    )


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([0, 21], "level_start_index[1]=21 with 6 positions does not lie inside S=26"),
        ([-1, 20], "level_start_index[0]=-1 with 20 positions does not lie inside S=26"),
        ([7, 20], "level_start_index[0]=7 with 20 positions does not lie inside S=26"),
        ([0, 2**40], f"level_start_index[1]={2**40} with 6 positions"),
    ],
)
def test_level_outside_of_value(starts, message):
    refused(OperatorError, message, level_start_index=np.array(starts))


def test_offsets_that_no_kernel_can_count():
    """Checked on shapes alone: nobody has the memory."""
    shapes = arguments()
    value = SimpleNamespace(shape=(1, 2**20, 64, 32), dtype="float16")
    where = SimpleNamespace(shape=(1, 3, 64, 1, 2, 2), dtype="float16")
    weights = SimpleNamespace(shape=(1, 3, 64, 1, 2), dtype="float16")
    levels, starts = np.array([[1024, 1024]]), np.array([0])
    with pytest.raises(
        OperatorError, match="S\\*H\\*C\\*itemsize=4294967296 bytes; it must stay below 2\\^31"
    ):
        check_problem(value, levels, starts, where, weights)
    value.shape = (2**16, 26, 2, 32)
    where.shape, weights.shape = (2**16, 2**15, 2, 2, 2, 2), (2**16, 2**15, 2, 2, 2)
    with pytest.raises(OperatorError, match="B\\*Q\\*H=4294967296"):
        check_problem(
            value, shapes["spatial_shapes"], shapes["level_start_index"], where, weights
        )


# --- channels, variants, parameters ---------------------------------------------------------------
@pytest.mark.parametrize(
    ("channels", "dtype", "found"),
    [(4, np.float16, 8), (20, np.float16, 40), (30, np.float32, 120), (136, np.float16, 272)],
)
def test_channels_that_no_kernel_has(channels, dtype, found):
    name = np.dtype(dtype).name
    refused(
        ConfigError,
        f"channels={channels}: of {name} are {found} bytes a head; a multiple of 16 from 16 to 256",
        value=np.zeros((2, 26, 2, channels), dtype),
        out=np.full((2, 3, 2 * channels), 42, dtype),
    )


def test_unknown_variant():
    with pytest.raises(ConfigError) as caught:
        ms_deform_attn(**arguments() | {"variant": "dirct"})
    assert "variant=dirct: must be one of" in str(caught.value)
    assert str(caught.value).endswith("did you mean direct?")
    refused(ConfigError, "variant=cudnn: must be one of", variant="cudnn")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"stage": 2}, "stage=2: direct has the parameters lanes, min_blocks, arithmetic, threads"),
        ({"lanes": 3}, "lanes=3: must be a power of two from 1 to 32"),
        ({"threads": 100}, "threads=100: must be a multiple of 32 from 32 to 1024"),
        ({"min_blocks": 99}, "min_blocks=99"),
        ({"arithmetic": "fp8"}, "arithmetic=fp8"),
        ({"variant": "tma", "stages": 0}, "stages=0: must be at least 1"),
        ({"variant": "tma", "stages": 999}, "stages=999: "),
    ],
    ids=str,
)
def test_parameters(parameters, message):
    refused(ConfigError, message, **parameters)


@pytest.mark.parametrize("step", [0, -1, 3, 1.0, "2"])
def test_im2col_step(step):
    workload = WORKLOAD.replace(batch=4)
    refused(
        OperatorError,
        f"im2col_step={step}: it must be >= 1 and divide the batch 4",
        out=np.full((4, 3, 64), 42, np.float16),
        **arguments(workload) | {"im2col_step": step},
    )


# --- out ------------------------------------------------------------------------------------------
REQUIRED = "it must be a writable C-contiguous NumPy array (2, 3, 64) of float16"


def read_only():
    out = np.zeros(OUT_SHAPE, np.float16)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.zeros((2, 3, 32), np.float16), f"out is (2, 3, 32) of float16; {REQUIRED}"),
        (lambda: np.zeros((2, 3, 2, 32), np.float16), "out is (2, 3, 2, 32) of float16; "),
        (lambda: np.zeros(OUT_SHAPE, np.float32), f"out is (2, 3, 64) of float32; {REQUIRED}"),
        (lambda: np.zeros((64, 3, 2), np.float16).T, "out is non-contiguous (2, 3, 64) of float16"),
        (read_only, "out is read-only (2, 3, 64) of float16; "),
    ],
    ids=["shape", "rank", "dtype", "order", "read-only"],
)
def test_unusable_out(make, message):
    refused(OperatorError, message, out=make())


def test_out_that_is_no_array():
    with pytest.raises(OperatorError) as caught:
        ms_deform_attn(**arguments(), out=[0.0] * 384)
    assert str(caught.value) == f"out is a list; {REQUIRED}"


# --- engines and libraries ------------------------------------------------------------------------
def test_unknown_engine():
    refused(OperatorError, "engine='tpu' must be auto, gpu or cpu", engine="tpu")
    with pytest.raises(OperatorError, match="engine='tpu'"):  # for arrays of other libraries too
        ms_deform_attn(**arguments() | {"value": object(), "engine": "tpu"})


def test_gpu_is_missing():
    refused(GpuMissing, "no CUDA GPU can be used: no driver", engine="gpu")


@pytest.mark.parametrize("engine", ["auto", "gpu"])
def test_gpu_is_too_old(monkeypatch, engine):
    """Nothing falls back: neither to another variant nor to the CPU engine."""
    device = SimpleNamespace(set_current=lambda: None)
    old = Gpu(device, "NVIDIA A100", (8, 0), 108, 12080)
    monkeypatch.setattr(host_gpu, "_find", lambda number: old)
    refused(
        GpuMissing,
        "variant tma needs a GPU of compute capability 9.0 or newer, and NVIDIA A100 (SM 8.0, 108 "
        "SMs) is older; it can run: direct",
        variant="tma",
        engine=engine,
    )
    ancient = Gpu(device, "Tesla V100", (7, 0), 80, 12080)
    monkeypatch.setattr(host_gpu, "_find", lambda number: ancient)
    message = "variant direct needs a GPU of compute capability 8.0 or newer, and Tesla V100"
    refused(GpuMissing, message, engine=engine)


def test_arrays_of_another_library_need_a_gpu():
    class Foreign(list):
        """Something array-like that is no NumPy array."""

    right = arguments()
    foreign = Foreign(right["value"])
    refused(
        OperatorError,
        "engine=cpu takes NumPy arrays; copy the arrays to the host first",
        value=foreign,
        engine="cpu",
    )
    refused(OperatorError, "value (Foreign) offers neither DLPack nor", value=foreign)
    refused(
        OperatorError,
        "value is a NumPy array and others are not; pass all as NumPy arrays, or all on a GPU",
        attention_weights=Foreign(right["attention_weights"]),
    )


@pytest.mark.parametrize("name", ["value", "sampling_locations", "attention_weights", "out"])
def test_an_operand_starts_at_a_multiple_of_16_bytes(monkeypatch, name):
    """A view of another array may not, and a load of 16 bytes from there would be the last use of the GPU."""
    gpu = SimpleNamespace(device=SimpleNamespace(device_id=0))
    problem = SimpleNamespace(out_shape=(2, 3))
    places = dict.fromkeys((*request.INPUTS, "out"), 0x7F10010) | {name: 0x7F10008}

    def view_of(name, array):
        return SimpleNamespace(address=places[name], shape=(2, 3), dtype="float16", device=0)

    monkeypatch.setattr(request, "view_of", view_of)
    monkeypatch.setattr(request, "find_gpu", lambda device: gpu)
    with pytest.raises(OperatorError, match=f"{name} starts at address 0x7f10008, which is no multiple of 16"):
        _, views = request._on_one_gpu([None] * 3)
        request.Request.address_of(SimpleNamespace(problem=problem, inputs=views), None)


def test_so_does_what_a_prepared_call_gets(monkeypatch):
    plan, facts = object.__new__(prepared.Prepared), ((2, 3), "float16", 0, True)
    plan._wanted, plan.gpu = {"value": facts}, object()
    monkeypatch.setattr(prepared, "_reader", lambda kind: lambda name, array: (array, facts))
    assert plan._address("value", 0x7F10010) == 0x7F10010
    with pytest.raises(OperatorError, match="value starts at address 0x7f10008, which is no multiple of 16"):
        plan._address("value", 0x7F10008)


def test_a_fault_of_the_cpu_engine_is_passed_on(monkeypatch):
    def simulate(*_, **__):
        raise SimFault("a thread reads garbage")

    monkeypatch.setattr(Bound, "simulate", simulate)
    refused(SimFault, "SimFault: a thread reads garbage", engine="cpu")


# --- gradients ------------------------------------------------------------------------------------
class Tensor:
    """What is asked of a PyTorch tensor before anybody looks where it is."""

    dtype, shape = "torch.float16", (1,)

    def __init__(self, requires_grad=False):
        self.requires_grad = requires_grad

    def detach(self):
        return Tensor()


@pytest.fixture
def torch(monkeypatch):
    """A PyTorch that knows tensors, and whether it records gradients."""
    pretended = ModuleType("torch")
    pretended.Tensor, pretended.recording = Tensor, True
    pretended.is_grad_enabled = lambda: pretended.recording
    monkeypatch.setitem(sys.modules, "torch", pretended)
    monkeypatch.delitem(sys.modules, "numba_deform.torch", raising=False)
    return pretended


@pytest.mark.parametrize("function", [ms_deform_attn, prepare])
@pytest.mark.parametrize("learning", ["value", "sampling_locations", "attention_weights"])
def test_no_gradient_is_lost(torch, function, learning):
    names = ("value", "sampling_locations", "attention_weights")
    given = arguments() | {name: Tensor(name == learning) for name in names}
    with pytest.raises(OperatorError) as caught:
        function(**given)
    assert str(caught.value) == (
        f"{learning} requires a gradient, which only numba_deform.torch.ms_deform_attn computes; call that, "
        f"pass {learning}.detach(), or call this under torch.no_grad()"
    )
    torch.recording = False  # none would be recorded: the tensors themselves are looked at
    with pytest.raises(OperatorError, match="value .Tensor. offers neither DLPack nor"):
        function(**given)


@pytest.mark.parametrize("function", [ms_deform_attn, prepare])
def test_what_jax_traces(monkeypatch, function):
    class Tracer:
        shape, dtype = (1,), "float16"

    jax = ModuleType("jax")
    jax.core = SimpleNamespace(Tracer=Tracer)
    monkeypatch.setitem(sys.modules, "jax", jax)
    given = arguments() | {"sampling_locations": Tracer()}
    with pytest.raises(OperatorError, match="^sampling_locations is traced by JAX .jit, grad, vmap"):
        function(**given)


# --- numba_deform.torch ---------------------------------------------------------------------------
def test_torch_without_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "numba_deform.torch", raising=False)
    with pytest.raises(ImportError, match="needs PyTorch, .* pip install torch$"):
        importlib.import_module("numba_deform.torch")
