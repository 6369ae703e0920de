"""Prepared calls without a GPU: on the CPU engine, and on a GPU that is pretended in host memory."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

from numba_deform import (
    ConfigError,
    OperatorError,
    Prepared,
    ms_deform_attn,
    prepare,
    reference,
    relative_error,
)
from numba_deform.attention import auto, bind, call, launch, prepared
from numba_deform.attention.reference import TOLERANCE
from numba_deform.engines.gpu import device as host_gpu
from numba_deform.engines.gpu.device import DeviceArray, Gpu, GpuMissing, stream_handle
from numba_deform.engines.gpu.launch import ArgumentBlock
from numba_deform.workloads.workload import Workload

WORKLOAD = Workload(
    "small", batch=2, levels=((5, 4), (3, 2)), num_query=3, num_heads=2, channels=32, num_points=2
)
OUT_SHAPE = (2, 3, 64)
DEFAULT_STREAM = 7


def arguments(seed=1, workload=WORKLOAD, **changes):
    """``prepare``'s arrays, in order."""
    inputs = workload.generate(seed=seed)
    names = (
        "value", "spatial_shapes", "level_start_index", "sampling_locations", "attention_weights",
    )  # fmt: skip
    return [changes.get(name, getattr(inputs, name)) for name in names]


def operands(arrays):
    return [arrays[i] for i in (0, 3, 4)]


@pytest.fixture
def pretended(monkeypatch):
    """A GPU whose memory is the host's and whose driver notes what each launch would have read."""
    seen = SimpleNamespace(launches=[], maps=[], modes=[], synced=0, capturing=False)
    stream = SimpleNamespace(sync=lambda: None, cuda_stream=DEFAULT_STREAM)

    def allocate(size, stream):
        memory = ctypes.create_string_buffer(size)
        return SimpleNamespace(handle=ctypes.addressof(memory), memory=memory)

    def sync():
        seen.synced += 1

    class Device(SimpleNamespace):
        __hash__ = object.__hash__

    device = Device(
        device_id=0, set_current=lambda: None, allocate=allocate, default_stream=stream, sync=sync
    )
    gpu = Gpu(device, "pretended", (9, 0), 132, 13000)

    def copy_from(self, array):
        assert array.nbytes <= self.nbytes
        ctypes.memmove(self.address, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def to_numpy(self):
        return np.frombuffer(self.buffer.memory, self.dtype).reshape(self.shape).copy()

    def ready_launch(gpu, kernel, grid, shared_bytes, block):
        kinds = {"uint64": ctypes.c_uint64, "int32": ctypes.c_int32}
        kinds = [kinds[str(kind)] for kind in kernel.signature.args]

        def run(stream):
            places = (ctypes.c_void_p * len(kinds)).from_address(block.address)
            values = tuple(k.from_address(p).value for k, p in zip(kinds, places, strict=True))
            seen.launches.append(SimpleNamespace(grid=grid, stream=stream, values=values))

        return run

    def device_maps(gpu, problem, address, *options):
        seen.maps.append((address, *options))
        return DeviceArray(gpu, (8, 128), np.uint8)

    monkeypatch.setattr(host_gpu, "_find", lambda number: gpu)
    monkeypatch.setattr(host_gpu, "driver_call", lambda name, mode: seen.modes.append((name, mode)) or "before")

    def fill(self, byte):
        ctypes.memset(self.address, byte, self.nbytes)

    monkeypatch.setattr(bind, "_level_table", bind._level_table.__wrapped__)
    monkeypatch.setattr(bind, "resident_blocks", lambda *_: 132)
    monkeypatch.setattr(DeviceArray, "fill", fill)
    monkeypatch.setattr(DeviceArray, "copy_from", copy_from)
    monkeypatch.setattr(DeviceArray, "to_numpy", to_numpy)

    monkeypatch.setattr(prepared, "ready_launch", ready_launch)
    monkeypatch.setattr(prepared, "device_maps", device_maps)
    monkeypatch.setattr(prepared, "is_capturing", lambda stream: seen.capturing)
    seen.gpu = gpu
    return seen


def on_gpu(seen, arrays):
    """Value, locations and weights in the pretended GPU's memory, the index arrays as they are."""
    return [a if a.dtype == np.int64 else DeviceArray.of(seen.gpu, a) for a in arrays]


def new_out(seen):
    return DeviceArray(seen.gpu, OUT_SHAPE, np.float16)


# --- NumPy arrays ---------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["auto", "tma", "phase2"])
def test_cpu_engine_equals_reference(no_gpu, name):
    plan = prepare(*arguments(), name, engine="cpu")
    assert isinstance(plan, Prepared)
    for seed in (1, 2):  # the second with other arrays than those prepared with
        arrays = arguments(seed)
        out = np.full(OUT_SHAPE, np.nan, np.float16)
        assert plan(*operands(arrays), out=out) is out
        assert relative_error(out, reference(*arrays)) < TOLERANCE["float16"]
        assert np.array_equal(out, ms_deform_attn(*arrays, name, engine="cpu"))
    assert np.array_equal(plan(*operands(arrays)), out)


def test_describe(no_gpu):
    plan = prepare(*arguments(), lanes=8, threads=64)
    assert (plan.variant.name, plan.config.threads, plan.problem.queries) == ("direct", 64, 3)
    text = plan.describe()
    assert text.startswith("direct (lanes=8 ") and "threads=64" in text
    assert text.endswith(
        "on the CPU engine: B=2 S=26 Q=3 H=2 C=32 L=2 P=2 float16, locations float16, weights float16"
    )


def test_numpy_arrays_are_copied_to_the_gpu_and_back(pretended):
    plan = prepare(*arguments(), "direct")
    assert plan.describe().startswith("direct (") and "with copies" in plan.describe()
    plan._copies.out.copy_from(np.full(OUT_SHAPE, 3, np.float16))
    out = np.zeros(OUT_SHAPE, np.float16)
    given = operands(arguments(2))
    assert plan(*given, out=out) is out and (out == 3).all() and len(pretended.launches) == 1
    for array, copy in zip(given, plan._copies.inputs, strict=True):
        assert np.array_equal(copy.to_numpy(), array)


# --- what prepare refuses -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "parameters", "error", "message"),
    [
        ({}, {"engine": "tpu"}, OperatorError, "engine='tpu' must be auto, gpu or cpu"),
        ({}, {"variant": "dirct"}, ConfigError, "variant=dirct: must be one of"),
        ({}, {"stage": 2}, ConfigError, "stage=2: direct has the parameters"),
        ({}, {"padded": True}, OperatorError, "spatial_shapes says 62 positions but value has S=26"),
        ({}, {"engine": "gpu"}, GpuMissing, "no CUDA GPU can be used: no driver"),
        ({"value": np.zeros((2, 26, 2, 32))}, {}, OperatorError, "value has dtype float64"),
        (
            {"value": np.zeros((2, 26, 32, 2), np.float16).transpose(0, 1, 3, 2)},
            {},
            OperatorError,
            "value is non-contiguous (2, 26, 2, 32) float16 of NumPy; this call was prepared for "
            "contiguous (2, 26, 2, 32) float16 of NumPy",
        ),
        (
            {},
            {"variant": "tma", "debug": True},
            ConfigError,
            "debug=True: must be off in a prepared call, which waits for nothing; ms_deform_attn has it",
        ),
    ],
    ids=["engine", "variant", "parameter", "padded", "no gpu", "dtype", "contiguity", "debug"],
)  # fmt: skip
def test_prepare_refuses(no_gpu, changes, parameters, error, message):
    with pytest.raises(error) as caught:
        prepare(*arguments(**changes), **parameters)
    assert str(caught.value).startswith(message), str(caught.value)


def test_foreign_arrays_and_the_cpu_engine(pretended):
    with pytest.raises(OperatorError, match="engine=cpu takes NumPy arrays; copy the arrays"):
        prepare(*on_gpu(pretended, arguments()), engine="cpu")
    mixed = on_gpu(pretended, arguments())
    mixed[4] = arguments()[4]
    with pytest.raises(
        OperatorError, match="attention_weights is a NumPy array and others are not"
    ):
        prepare(*mixed)


# --- what a call refuses --------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("place", "change", "found"),
    [
        (0, lambda a: a[:1], "value is contiguous (1, 26, 2, 32) float16"),
        (0, lambda a: a.astype(np.float32), "value is contiguous (2, 26, 2, 32) float32"),
        (1, lambda a: a[:, :2].copy(), "sampling_locations is contiguous (2, 2, 2, 2, 2, 2) float16"),
        (2, lambda a: a[..., :1].copy(), "attention_weights is contiguous (2, 3, 2, 2, 1) float16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["numpy", "gpu"])
def test_call_refuses_other_arrays(pretended, kind, place, change, found):
    arrays = arguments()
    changed = operands(arrays)
    wanted = changed[place]
    changed[place] = change(wanted)
    where, out = "of NumPy", np.full(OUT_SHAPE, 42, np.float16)
    plan = prepare(*arrays, engine="cpu" if kind == "numpy" else "auto")
    if kind == "gpu":
        plan = prepare(*on_gpu(pretended, arrays))
        changed, out = on_gpu(pretended, changed), new_out(pretended)
        where = "on GPU 0"
    with pytest.raises(OperatorError) as caught:
        plan(*changed, out=out)
    assert str(caught.value) == (
        f"{found} {where}; this call was prepared for contiguous {wanted.shape} {wanted.dtype} {where}"
    )
    assert not pretended.launches and (kind == "gpu" or (out == 42).all())


def test_call_refuses_out(pretended):
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays)
    with pytest.raises(OperatorError, match="^out is contiguous \\(2, 3, 64\\) float32 on GPU 0; "):
        plan(*operands(arrays), out=DeviceArray(pretended.gpu, OUT_SHAPE, np.float32))
    with pytest.raises(OperatorError, match="^out is contiguous \\(2, 3, 64\\) float16 of NumPy; "):
        plan(*operands(arrays), out=np.zeros(OUT_SHAPE, np.float16))
    with pytest.raises(OperatorError, match="cannot allocate the output for a DeviceArray: pass"):
        plan(*operands(arrays))
    with pytest.raises(OperatorError, match="value \\(list\\) offers neither DLPack nor"):
        plan([1.0], *operands(arrays)[1:], out=new_out(pretended))
    with pytest.raises(TypeError, match="stream='fast' is not a CUDA stream"):
        plan(*operands(arrays), out=new_out(pretended), stream="fast")
    assert not pretended.launches
    on_host = prepare(*arguments(), engine="cpu")
    with pytest.raises(
        OperatorError, match="out is \\(2, 3, 32\\) of float16; it must be a writable"
    ):
        on_host(*operands(arguments()), out=np.zeros((2, 3, 32), np.float16))


# --- what a launch gets ---------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["direct", "tile", "tma", "tma-rank5", "persistent", "phase2"])
def test_arguments_of_a_launch(pretended, name):
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays, name)
    for stream in (None, 5):
        given = on_gpu(pretended, operands(arguments(2)))
        out = new_out(pretended)
        assert plan(*given, out=out, stream=stream) is out
        launch = pretended.launches[-1]
        assert launch.stream == (stream or DEFAULT_STREAM)
        assert launch.grid == plan.variant.module.blocks(plan.problem, plan.config, lambda: 132)
        # The same arguments, bound for this call alone; tables are read where the plan has them.
        bound = bind.Bound(plan.problem, plan.variant, plan.config, pretended.gpu)
        wanted = bound.arguments(
            [a.address for a in (*given, out)], lambda *_: None, {"levels": None}
        )
        assert len(launch.values) == len(wanted)
        tables = 0
        for value, want in zip(launch.values, wanted, strict=True):
            tables += want is None
            assert value if want is None else value == want
        assert tables == (2 if pretended.maps else 1)


def test_maps_are_made_once_for_each_value(pretended, monkeypatch):
    monkeypatch.setattr(prepared, "KEPT_VALUES", 2)
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays, "tma")
    out = new_out(pretended)
    values = [arrays[0]] + [on_gpu(pretended, arguments())[0] for _ in range(3)]
    rest = operands(arrays)[1:]

    def call(i):
        plan(values[i], *rest, out=out)
        return pretended.launches[-1].values[0]

    def made():
        return [[v.address for v in values].index(address) for address, *_ in pretended.maps]

    first, second = call(0), call(1)
    assert made() == [0, 1] and first != second
    assert call(0) == first and call(1) == second and pretended.synced == 0
    call(0)
    call(2)  # 1 is the one that was used longest ago
    assert made() == [0, 1, 2] and call(0) == first and pretended.synced == 1

    pretended.capturing = True
    assert call(0) == first
    with pytest.raises(OperatorError) as caught:
        call(3)
    assert str(caught.value) == (
        f"value is at {values[3].address:#x}, where this plan has not met it, and its tensor maps "
        "cannot be made while the stream is captured; call the plan once with this value before the "
        "capture"
    )
    pretended.capturing = False
    for i in (1, 2, 3):
        call(i)
    before = len(pretended.maps)
    assert call(0) == first and len(pretended.maps) == before  # kept for the graph


def test_maps_are_there_before_the_first_call(pretended):
    """So that it may be captured."""
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays, "tma")
    pretended.capturing = True
    plan(*operands(arrays), out=new_out(pretended))
    assert len(pretended.maps) == 1 and pretended.synced == 0


def test_host_overhead(pretended, no_gpu):
    with pytest.raises(OperatorError, match="host_overhead is that of launches: prepare with"):
        prepare(*arguments(), engine="cpu").host_overhead(*operands(arguments()), None)


def test_host_overhead_keeps_the_queue_short(pretended):
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays)
    taken = plan.host_overhead(*operands(arrays), new_out(pretended), calls=120)
    assert 0 < taken < 1e5 and len(pretended.launches) == 120 and pretended.synced == 4


# --- arrays of other libraries --------------------------------------------------------------------
class Tensor:
    """What is asked of a PyTorch tensor."""

    requires_grad = False

    def __init__(self, array, device=0, contiguous=True):
        self.array, self.shape, self.device, self.contiguous = (
            array,
            array.shape,
            device,
            contiguous,
        )
        self.dtype = f"torch.{array.dtype}"

    def data_ptr(self):
        return self.array.address

    def get_device(self):
        return self.device

    def is_contiguous(self):
        return self.contiguous


def cupy_array(array):
    kind = type("ndarray", (), {"__module__": "cupy"})
    made = kind()
    made.shape, made.dtype = array.shape, array.dtype
    made.data = SimpleNamespace(ptr=array.address, device_id=0)
    made.flags = SimpleNamespace(c_contiguous=True)
    return made


class Foreign:
    """An array with the CUDA array interface and nothing else."""

    def __init__(self, array):
        self.dtype = array.dtype
        self.interface = {"shape": array.shape, "data": (array.address, False), "strides": None}

    @property
    def __cuda_array_interface__(self):
        return self.interface


@pytest.mark.parametrize("wrap", [Tensor, cupy_array, Foreign])
def test_other_libraries(pretended, wrap, monkeypatch):
    monkeypatch.setattr(prepared, "device_of", lambda address: 0)
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays, "direct")
    out = wrap(new_out(pretended))
    assert plan(*map(wrap, operands(arrays)), out=out, stream=SimpleNamespace(ptr=9)) is out
    assert pretended.launches[0].values[0] == arrays[0].address
    assert pretended.launches[0].stream == 9


def test_tensors_that_are_refused(pretended, monkeypatch):
    arrays = on_gpu(pretended, arguments())
    plan = prepare(*arrays, "direct")
    value, rest = arrays[0], operands(arrays)[1:]
    out = new_out(pretended)
    with pytest.raises(OperatorError, match="^value is contiguous .* float16 in host memory; this"):
        plan(Tensor(value, device=-1), *rest, out=out)
    with pytest.raises(OperatorError, match="^value is contiguous .* on GPU 1; .* on GPU 0$"):
        plan(Tensor(value, device=1), *rest, out=out)
    with pytest.raises(OperatorError, match="^value is non-contiguous"):
        plan(Tensor(value, contiguous=False), *rest, out=out)
    monkeypatch.setattr(prepared, "device_of", lambda address: 1)
    with pytest.raises(OperatorError, match="^value is contiguous .* on GPU 1; .* on GPU 0$"):
        plan(Foreign(value), *rest, out=out)
    learning = Tensor(value)
    learning.requires_grad = True
    with pytest.raises(OperatorError, match="value requires a gradient, .*; call that, pass value.detach()"):
        plan(learning, *rest, out=out)
    assert not pretended.launches
    torch = SimpleNamespace(is_grad_enabled=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)  # within torch.no_grad()
    assert plan(learning, *rest, out=out, stream=9) is out and len(pretended.launches) == 1
    traced = type("Tracer", (), {"__module__": "jax._src.core"})
    jax = SimpleNamespace(core=SimpleNamespace(Tracer=traced))
    monkeypatch.setitem(sys.modules, "jax", jax)
    with pytest.raises(OperatorError, match="^value is traced by JAX"):
        plan(traced(), *rest, out=out)
    assert len(pretended.launches) == 1


# --- the parts ------------------------------------------------------------------------------------
def test_argument_block():
    class Kernel:
        signature = SimpleNamespace(args=(types.uint64, types.int32, types.float32, types.uint64))

    changing = ctypes.c_uint64()
    block = ArgumentBlock(Kernel, (changing, -3, 0.5, changing))
    changing.value = 2**63 + 1
    pointers = (ctypes.c_void_p * 4).from_address(block.address)
    kinds = (ctypes.c_uint64, ctypes.c_int32, ctypes.c_float, ctypes.c_uint64)
    values = [kind.from_address(p).value for kind, p in zip(kinds, pointers, strict=True)]
    assert values == [2**63 + 1, -3, 0.5, 2**63 + 1]
    with pytest.raises(ValueError):
        ArgumentBlock(Kernel, (changing, -3, 0.5))


def test_stream_handle():
    assert stream_handle(5) == stream_handle(SimpleNamespace(cuda_stream=5)) == 5
    assert stream_handle(SimpleNamespace(__cuda_stream__=lambda: (0, 6))) == 6
    with pytest.raises(TypeError, match="is not a CUDA stream"):
        stream_handle(None)


# --- windows and "auto" ---------------------------------------------------------------------------
@pytest.fixture
def two_launches(pretended, monkeypatch):
    """Everything is large enough for windows."""
    monkeypatch.setattr(auto, "LEAST_ROWS", 1)
    monkeypatch.setattr(auto, "LEAST_ITEMS", 0)
    monkeypatch.setattr(launch, "is_capturing", lambda handle: pretended.capturing)
    monkeypatch.setattr(call, "stream_from", lambda gpu, stream: gpu.device.default_stream)
    auto.launches.forget()
    launch.gates.cache_clear()
    yield pretended
    auto.launches.forget()
    launch.gates.cache_clear()


def many():
    """Arguments with a query for each pixel."""
    return arguments(workload=WORKLOAD.replace(num_query=26))


def test_a_plan_of_two_launches(two_launches):
    arrays, seen = on_gpu(two_launches, many()), two_launches
    plan = prepare(*arrays)
    assert plan.variant.name == "window" and plan.why.startswith("windows, but direct where more than")
    window, direct = auto.launches(seen.gpu, plan.problem)
    assert window.then is direct and direct.then is None
    place = [bound.kernel.parameters.index("gate") for bound in (window, direct)]
    words = []
    for stream, capturing in ((5, False), (5, False), (6, False), (5, True), (5, True)):
        seen.capturing = capturing
        plan(*operands(arrays), out=DeviceArray(seen.gpu, plan.problem.out_shape, np.float16), stream=stream)
        first, second = seen.launches[-2:]
        assert (first.grid, second.grid) == (window.blocks, direct.blocks)
        assert first.values[place[0]] == second.values[place[1]]
        words.append(first.values[place[0]])
    assert words[0] == words[1] and len(set(words)) == 4 and 0 not in words


def test_plans_of_one_shape_have_the_same_windows_wherever_samples_lie(two_launches):
    others = [a.copy() for a in many()]
    others[3][:] = 0.5
    plans = [prepare(*on_gpu(two_launches, given)) for given in (many(), others)]
    assert plans[0].config == plans[1].config and plans[0]._bounds is plans[1]._bounds


@pytest.mark.parametrize("capturing", [False, True])
def test_auto_launches_two_kernels_with_one_gate(two_launches, monkeypatch, capturing):
    launched = []
    monkeypatch.setattr(bind, "launch", lambda *what: launched.append((what[1], what[3])))
    monkeypatch.setattr(bind, "_kept_maps", lambda *_: DeviceArray(two_launches.gpu, (8, 128), np.uint8))
    arrays, two_launches.capturing = on_gpu(two_launches, many()), capturing
    out = DeviceArray(two_launches.gpu, (2, 26, 64), np.float16)

    def gates():
        return [values[kernel.parameters.index("gate")] for kernel, values in launched[-2:]]

    assert ms_deform_attn(*arrays, out=out) is out
    assert [kernel.name for kernel, _ in launched] == ["window", "direct_gated"]
    first = gates()
    assert first[0] == first[1] > 0
    assert bool(launch._OF_GRAPHS) == capturing  # what a graph reads is kept
    ms_deform_attn(*arrays, "direct", out=out)
    ms_deform_attn(*arrays, lanes=4, out=out)  # these name the kernel
    assert [kernel.name for kernel, _ in launched[2:]] == ["direct", "direct"]
    ms_deform_attn(*arrays, out=out)
    assert (gates() == first) == (not capturing)
    launch._OF_GRAPHS.clear()


def test_copies_to_the_gpu_are_no_part_of_a_capture(pretended):
    DeviceArray.of(pretended.gpu, np.zeros(3))
    (name, relaxed), back = pretended.modes
    assert name == "cuThreadExchangeStreamCaptureMode" and relaxed.name.endswith("MODE_RELAXED")
    assert back == (name, "before")  # what it was


def test_a_launch_that_needs_a_gate_is_given_one(two_launches):
    plan = prepare(*on_gpu(two_launches, many()))
    for bound in auto.launches(two_launches.gpu, plan.problem):
        with pytest.raises(ConfigError, match="gate=0: two launches of auto share a gate"):
            bound.arguments([0] * 4, lambda *_: None)


def test_a_variant_by_name_has_no_limit(two_launches):
    plan = prepare(*on_gpu(two_launches, many()), "window")
    assert plan.config.limit == -1 and len(plan._bounds) == 1 and not plan.why


# --- the way of a call -----------------------------------------------------------------------------
STEPS = {"ask": "check", "bounds_of": "choose", "simulate": "run", "launch_all": "run", "Prepared": "run"}


def way(call):
    """The steps that a call enters, in order: which functions of attention/ it goes into, of those of STEPS."""
    entered = []

    def note(frame, event, _):
        code = frame.f_code
        name = "Prepared" if code.co_qualname == "Prepared.__init__" else code.co_name
        if event == "call" and "/attention/" in code.co_filename.replace("\\", "/") and name in STEPS:
            entered.append(STEPS[name])

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code objects have no qualified names")
def test_all_doors_lead_through_the_same_steps_once(two_launches, monkeypatch):
    monkeypatch.setattr(bind, "launch", lambda *_: None)
    monkeypatch.setattr(bind, "_kept_maps", lambda *_: DeviceArray(two_launches.gpu, (8, 128), np.uint8))
    arrays = on_gpu(two_launches, many())
    out = DeviceArray(two_launches.gpu, (2, 26, 64), np.float16)
    once = ["check", "choose", "run"]
    assert way(lambda: ms_deform_attn(*arguments(), engine="cpu")) == once
    assert way(lambda: ms_deform_attn(*arrays, out=out)) == once
    assert way(lambda: ms_deform_attn(*many(), engine="gpu")) == once
    assert way(lambda: prepare(*arrays)) == once
