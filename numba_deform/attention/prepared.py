"""``prepare``: the operator for one shape, with all that does not change from call to call done once.

For small problems, where launching takes longer than computing. A call compares four arrays with what was
prepared, writes their addresses into a block of arguments that is already there, and calls the driver.
So it may be captured into a CUDA graph.
"""

import ctypes
import functools
import statistics
import threading
import time
from collections import OrderedDict

import numpy as np

from ..engines.gpu.device import device_of, is_capturing, stream_from, stream_handle
from ..engines.gpu.launch import ArgumentBlock, ready_launch
from ..kernels.problem import ConfigError
from .arrays import checked_place, current_stream, empty_like, library_of, view_of
from .auto import bounds_of
from .bind import OnGpu, device_maps
from .checks import OperatorError, check_gradient, check_out
from .launch import gates
from .request import INPUTS, ask

KEPT_VALUES = 8  # how many values' tensor maps a plan keeps, beside those of captured graphs


def prepare(
    value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant="auto", *,
    engine="auto", padded=False, **parameters):  # fmt: skip
    """A :class:`Prepared` for calls with arrays like these: the same shapes, types and GPU.

    Arguments, checks and errors are those of :func:`ms_deform_attn`; nothing is computed. A first call with
    this very ``value`` finds its tensor maps made, so it may be captured into a CUDA graph at once. NumPy
    arrays have to be contiguous; on the GPU engine every call copies them.

    ``variant="auto"`` chooses here what follows from the shape; where the locations matter, each call looks at
    its own, on the GPU. So one plan serves all layers of a model.

    ``debug=True`` raises ConfigError: it would wait for the end of every launch."""
    request = ask(
        value, spatial_shapes, level_start_index, sampling_locations, attention_weights, variant, engine,
        padded, None, parameters)  # fmt: skip
    if not request.problem.rows:
        batch, queries, _ = request.problem.out_shape
        sizes = f"B={batch} Q={queries} H={request.problem.heads}"
        raise OperatorError(f"{sizes}: a prepared call has something to launch; ms_deform_attn takes this too")
    if getattr(request.config, "debug", False):
        rule = "must be off in a prepared call, which waits for nothing; ms_deform_attn has it"
        raise ConfigError("debug", True, rule)
    bounds, arrays = bounds_of(request), (value, sampling_locations, attention_weights)
    return (_ForNumpy if request.on_host else _OnGpu)(bounds, arrays, bounds[0].why)


# --- what a call looks at -------------------------------------------------------------------------
# A reader gives (address, facts) of an array; facts are its shape, dtype, GPU (None: NumPy's memory,
# -1: other host memory) and whether it is contiguous.
_name_of = functools.cache(lambda dtype: str(dtype).rpartition(".")[2])


def _read_torch(name, tensor):
    if tensor.requires_grad:
        check_gradient(name, tensor)
    facts = tensor.shape, _name_of(tensor.dtype), tensor.get_device(), tensor.is_contiguous()
    return tensor.data_ptr(), facts


def _read_cupy(name, array):
    memory = array.data
    facts = array.shape, _name_of(array.dtype), memory.device_id, array.flags.c_contiguous
    return memory.ptr, facts


def _read_numpy(name, array):
    return array.ctypes.data, (array.shape, _name_of(array.dtype), None, array.flags.c_contiguous)


def _read_interface(name, array):
    interface = array.__cuda_array_interface__
    if interface.get("strides"):  # contiguous, perhaps
        return _read_any(name, array)
    address = interface["data"][0]
    return address, (interface["shape"], _name_of(array.dtype), device_of(address), True)


def _read_any(name, array):
    check_gradient(name, array)
    view = view_of(name, array)
    return view.address, (view.shape, view.dtype, view.device, True)


@functools.cache
def _reader(kind):
    if hasattr(kind, "data_ptr"):  # torch.Tensor and its subclasses
        return _read_torch
    if issubclass(kind, np.ndarray):
        return _read_numpy
    library = kind.__module__.partition(".")[0]
    if library == "cupy":
        return _read_cupy
    by_interface = hasattr(kind, "__cuda_array_interface__") and not library.startswith("jax")
    return _read_interface if by_interface else _read_any


def _in_words(shape, dtype, device, contiguous):
    place = {None: "of NumPy", -1: "in host memory"}.get(device, f"on GPU {device}")
    return f"{'' if contiguous else 'non-'}contiguous {tuple(shape)} {dtype} {place}"


# --- the plans ------------------------------------------------------------------------------------
class Prepared:
    """The operator for one shape; made by :func:`prepare`, called as often as one likes.

    ``plan(value, sampling_locations, attention_weights, out=None, stream=None)`` returns ``out``, (B, Q,
    H*C). It gives what ``ms_deform_attn`` gives, on the caller's current stream unless ``stream`` says
    otherwise, and neither waits nor copies. Arrays may be others than those prepared with; one of
    another shape, type or GPU, or not contiguous, raises OperatorError and nothing is launched. Without
    ``out`` it is allocated, which takes longer than the launch. Threads may share a plan.

    A variant with TMA needs tensor maps, which hold the address of ``value``. They are made when a value
    comes for the first time, kept for the last 8 values, and kept for good for those of a captured call.
    They cannot be made while a stream is captured: that raises OperatorError, and calling the plan once
    with the same ``value`` beforehand mends it. A graph uses this object's memory: keep both.

    ``variant``, ``config`` and ``problem`` are those of the registry and the operator, ``why`` says how "auto"
    came to its choice: of two launches (auto.py), they are the first one's."""

    def __init__(self, bounds, arrays, why, gpu):
        first = bounds[0]
        self.variant, self.config, self.why = first.variant, first.config, why
        self.problem = problem = first.problem
        self.gpu = gpu  # the Gpu that launches go to; None for NumPy arrays
        self._bounds, device = bounds, gpu and gpu.device.device_id
        self._lock = threading.Lock()  # one block of arguments, or of buffers, whoever calls
        c = problem.constants
        rows = (problem.batch, problem.queries, problem.heads, c.levels, c.points)
        value = (problem.batch, problem.spatial_size, problem.heads, c.channels)
        self._wanted = {
            "value": (value, c.dtype, device, True),
            "sampling_locations": ((*rows, 2), c.location_dtype, device, True),
            "attention_weights": (rows, c.weight_dtype, device, True),
            "out": (problem.out_shape, c.dtype, device, True),
        }
        for name, array in zip(INPUTS, arrays, strict=True):
            self._address(name, array)

    def _address(self, name, array):
        """Where the array is; OperatorError if it is not as prepared for."""
        address, facts = _reader(type(array))(name, array)
        if facts != self._wanted[name]:
            raise OperatorError(
                f"{name} is {_in_words(*facts)}; this call was prepared for {_in_words(*self._wanted[name])}"
            )
        return checked_place(name, address) if self.gpu else address

    def describe(self):
        """One readable line: variant, parameters, engine, shape."""
        p, c = self.problem, self.problem.constants
        parameters = " ".join(f"{name}={value}" for name, value in vars(self.config).items())
        auto = f"auto: {self.why}; " if self.why else ""
        return (
            f"{auto}{self.variant.name} ({parameters}) on {self._place}: B={p.batch} S={p.spatial_size} "
            f"Q={p.queries} H={p.heads} C={c.channels} L={c.levels} P={c.points} {c.dtype}, locations "
            f"{c.location_dtype}, weights {c.weight_dtype}"
        )

    def host_overhead(self, value, sampling_locations, attention_weights, out, calls=1000):
        """Microseconds that a call takes on the host: the median of ``calls`` calls.

        Not in it: allocating ``out``, and the kernel, since the GPU's queue is emptied every 50 calls and never
        fills. Raises OperatorError for NumPy arrays, whose calls copy or compute on the host."""
        if self.gpu is None:
            raise OperatorError("host_overhead is that of launches: prepare with arrays on a GPU")
        arrays = (value, sampling_locations, attention_weights, out)
        return host_microseconds(self.gpu, lambda: self(*arrays), calls)


class _OnGpu(Prepared):
    def __init__(self, bounds, arrays, why=""):
        super().__init__(bounds, arrays, why, bounds[0].gpu)
        gpu, self._place = self.gpu, self.gpu.describe()
        # The kernels' arguments hold these four, the gate, and one for each kind of maps, wherever they stand.
        self._operands, self._gate = [ctypes.c_uint64() for _ in range(4)], ctypes.c_uint64()
        self._map_arguments = {}  # (kind, box, l2_promotion) -> ctypes.c_uint64
        self._launches = [self._ready(bound) for bound in bounds]
        self._gates = gates(gpu) if len(bounds) > 1 else None
        self._default_stream = stream_handle(gpu.device.default_stream)
        self._waits = library_of(arrays[0]) == "jax"  # it has no stream to be ordered on
        self._maps = OrderedDict()  # address of value -> DeviceArrays, the last used at the end
        self._captured = set()  # those addresses that a graph uses
        if self._map_arguments:
            self._make_maps(self._address("value", arrays[0]))

    def __call__(self, value, sampling_locations, attention_weights, out=None, stream=None):
        arrays = (value, sampling_locations, attention_weights)
        addresses = [*map(self._address, INPUTS, arrays)]
        if out is None:
            out = empty_like(value, self.problem.out_shape)
        addresses.append(self._address("out", out))
        if stream is None:
            stream = current_stream(value)
        handle = self._default_stream if stream is None else stream_handle(stream)
        with self._lock:
            if self._map_arguments:
                self._point_at_maps(addresses[0], handle)
            for argument, place in zip(self._operands, addresses, strict=True):
                argument.value = place
            self._launch(handle)
        if self._waits:
            stream_from(self.gpu, stream).sync()
        return out

    def _ready(self, bound):
        arguments = bound.arguments(self._operands, self._map_argument, {"gate": self._gate})
        block = ArgumentBlock(bound.kernel, arguments)
        return ready_launch(self.gpu, bound.kernel, bound.blocks, bound.shared_bytes, block)

    def _launch(self, stream):
        if self._gates is None:
            self._launches[0](stream)
            return
        with self._gates.gate(stream, is_capturing(stream)) as self._gate.value:
            for launch in self._launches:
                launch(stream)

    def _map_argument(self, *options):
        return self._map_arguments.setdefault(options, ctypes.c_uint64())

    def _point_at_maps(self, address, stream):
        capturing = is_capturing(stream)
        if address not in self._maps:
            if capturing:
                raise OperatorError(
                    f"value is at {address:#x}, where this plan has not met it, and its tensor maps "
                    "cannot be made while the stream is captured; call the plan once with this value "
                    "before the capture"
                )
            self._make_maps(address)
        self._maps.move_to_end(address)
        if capturing:
            self._captured.add(address)
        for argument, maps in zip(self._map_arguments.values(), self._maps[address], strict=True):
            argument.value = maps.address

    def _make_maps(self, address):
        self.gpu.device.set_current()
        spare = [known for known in self._maps if known not in self._captured]
        if len(spare) >= KEPT_VALUES:
            self.gpu.device.sync()  # a launch may be reading them
            del self._maps[spare[0]]
        make = functools.partial(device_maps, self.gpu, self.problem, address)
        self._maps[address] = [make(*options) for options in self._map_arguments]


def host_microseconds(gpu, call, calls=1000, together=50):
    """Median microseconds on the host of ``call()``; the GPU's queue is emptied every ``together`` calls."""
    times = []
    for i in range(calls):
        if i % together == 0:
            gpu.device.sync()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    gpu.device.sync()
    return 1e6 * statistics.median(times)


class _ForNumpy(Prepared):
    """On the CPU engine (``gpu`` is None), or on a GPU with arrays of its own to copy to and from."""

    def __init__(self, bounds, arrays, why):
        super().__init__(bounds, arrays, why, None)
        gpu = bounds[0].gpu
        self._dtype, self._plan, self._place = arrays[0].dtype, None, "the CPU engine"
        if gpu:
            self._place = f"{gpu.describe()}, with copies"
            self._copies = OnGpu(gpu, self.problem, arrays)
            self._plan = _OnGpu(bounds, self._copies.inputs)

    def __call__(self, value, sampling_locations, attention_weights, out=None, stream=None):
        arrays = (value, sampling_locations, attention_weights)
        for name, array in zip(INPUTS, arrays, strict=True):
            self._address(name, array)
        if out is None:
            out = np.empty(self.problem.out_shape, self._dtype)
        else:
            check_out(out, self.problem.out_shape, self._dtype)
        with self._lock:
            if self._plan is None:
                self._bounds[0].simulate(arrays, out)
                return out
            for copy, array in zip(self._copies.inputs, arrays, strict=True):
                copy.copy_from(array)
            self._plan(*self._copies.inputs, self._copies.out)
            out[...] = self._copies.out.to_numpy()
        return out
