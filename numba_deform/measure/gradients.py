"""``numba-deform bench what=gradients``: forward, backward and both of the operator in PyTorch and of its
peers, the backward kernel alone, and ceilings for its additions.

What runs in PyTorch is captured into CUDA graphs, so that no time of the host is in it; what cannot be captured
is timed as it is, and its row says so. *forward* keeps what the gradients need; *backward* is all that autograd
does for the gradients of value, locations and weights, clearing sums and rounding them too. The kernel alone
does neither. Everything is checked against float64, and then timed round by round, in turn."""

import contextlib
import dataclasses
import gc

import numpy as np

from ..attention import gradients
from ..attention.reference import TOLERANCE, reference_gradients
from ..compiler.cache import shared_directory
from ..engines.gpu.device import DeviceArray
from . import baselines, bench, ceilings, record, scatter
from .bench import PEER_TOLERANCE, Entry
from .case import case_on
from .worker import explain

ENTRIES = tuple(Entry(name, sums) for name in gradients.KERNELS for sums in ((), (("sums", "fixed"),)))
OWN, OWN_DETERMINISTIC = "numba_deform.torch", "numba_deform.torch deterministic"
NAMES = ("out", "value", "locations", "weights")
TOLERANCES = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-5}  # of gradients
# A location in fp16 lies in the next pixel for one sample in 25, where the slope is another one.
PEER_LOCATIONS = 0.5
CALLS = 3  # before a capture, and before memory is looked at


def bench_gradients(gpu, workloads, entries=ENTRIES, repeats=10, peer_names=(), seed=1, warm_up=1,
                    progress=lambda text: None, keep=lambda document: None):  # fmt: skip
    """A JSON document like that of :func:`bench.bench`, whose times are those of the backward pass.

    ``keep`` is given what there is after each workload.

    ``entries`` are configurations of the backward kernel. A row that ran in PyTorch also has the spreads
    ``forward`` and ``both``, and ``peak_bytes``: what both passes together take at most beside the inputs.
    ``errors`` are those of the output and of the gradients, by NAMES. Without a GPU (None) the kernels run on
    the CPU engine, and nothing is measured. Raises ValueError for a padded workload."""
    rows, ceiling_rows = [], []
    for workload in workloads:
        if workload.padded:
            raise ValueError(f"workload={workload.name}: value has a border, and there are no gradients for it")
    described = [{**bench.columns(w), "text": w.describe(), "samples": w.samples} for w in workloads]
    about = dict(kind="bench", what="gradients", clock=bench.clock(gpu) if gpu else None, workloads=described,
                 settings={"repeats": repeats, "warm_up": warm_up, "seed": seed})  # fmt: skip
    with shared_directory():
        if gpu:
            progress("compiling")
            tasks = [bench.task_of(entry, workload, seed) for workload in workloads for entry in entries]
            bench.compile_ahead(tasks, gpu.architecture)
        for workload in workloads:
            found = _Workload(gpu, workload, seed, progress)
            for entry in entries:
                found.add_kernel(entry)
            for name in (OWN, OWN_DETERMINISTIC, *peer_names) if gpu else ():
                found.add_peer(name)
            if gpu:
                ceiling_rows += found.time(repeats, warm_up)
            rows += found.rows
            found.forget()
            document = record.document(gpu, rows, ceilings=ceiling_rows, **about)
            keep(document)
    return document


class _Workload:
    """The rows of one workload, and what is to be timed for them.

    given    (B, Q, H*C) NumPy: the gradient of the output
    exact    the gradients in float64: of NumPy, or tensors where the case has PyTorch"""

    def __init__(self, gpu, workload, seed, progress):
        self.workload, self.progress, self.rows, self._jobs = workload, progress, [], []
        self._alive = []  # what graphs read: inputs, and what a forward pass keeps
        self.case = case_on(gpu, workload, seed)
        problem = self.case.problem
        given = np.random.default_rng(seed).standard_normal(problem.out_shape, np.float32)
        self.given = given.astype(self.case.arrays[0].dtype)
        progress(f"{workload.name}: gradients in float64")
        inputs = self.case.inputs
        if self.case.torch:
            self.exact = baselines.float64_gradients(inputs, baselines.on_gpu(self.given))
            self._stream, self._pool = self.case.torch.cuda.Stream(), self.case.torch.cuda.graph_pool_handle()
        else:
            self.exact = reference_gradients(
                inputs.value, inputs.spatial_shapes, inputs.level_start_index, inputs.sampling_locations,
                inputs.attention_weights, self.given)  # fmt: skip

    def _row(self, kind, name):
        self.progress(f"{self.workload.name}: {name}")
        self.rows.append({**bench.columns(self.workload), "kind": kind, "variant": name})
        return self.rows[-1]

    # --- the kernel alone -------------------------------------------------------------------------
    def add_kernel(self, entry):
        """Check one configuration of the backward kernel, and note it to be timed."""
        row = self._row("kernel", entry.label)
        with baselines.failing_into(row):
            bound = gradients.bound(self.case.problem, self.case.gpu, entry.variant, **dict(entry.parameters))
            row["config"] = dataclasses.asdict(bound.config)
            adds = bound.config.of_value and entry.variant == gradients.BACKWARD.name
            row["fetch"] = bound.config.sums if adds else None  # what does not add each sample up there
            found, run, cycles = run_kernel(self.case, bound, self.given)
            limit = TOLERANCES[self.case.problem.constants.dtype]
            self._judge(row, NAMES[1:], found, dict.fromkeys(NAMES, limit))
            if not self.case.gpu:
                row |= {"measured": False, "virtual_cycles": cycles}
            elif "error_text" not in row:
                self._jobs.append((row, "backward", run))

    def _judge(self, row, names, found, limits):
        """Errors into the row; ``found`` are gradients, None for what was not asked for."""
        exact = dict(zip(NAMES[1:], self.exact, strict=True))
        errors = {name: relative_error(f, exact[name])
                  for name, f in zip(names, found, strict=True) if f is not None}  # fmt: skip
        row["errors"] = row.get("errors", {}) | errors
        row["error"] = max(row["errors"].values())
        judge_errors(row, limits)

    # --- in PyTorch -------------------------------------------------------------------------------
    def add_peer(self, name):
        """Check the operator of this package (OWN, OWN_DETERMINISTIC) or a peer, and note its passes."""
        is_own = name in (OWN, OWN_DETERMINISTIC)
        peer = baselines.Peer(_own) if is_own else baselines.peer_of(name)
        dtype = self.case.problem.constants.dtype
        row = self._row("operator" if is_own else "peer", peer.label(name, dtype))
        limits = {**dict.fromkeys(NAMES, PEER_TOLERANCE), "locations": PEER_LOCATIONS}
        if is_own:
            limits = {**dict.fromkeys(NAMES, TOLERANCES[dtype]), "out": TOLERANCE[dtype]}
        with baselines.failing_into(row):
            passes = self._prepared(name, peer, row, limits)
            if "error_text" not in row:
                self._jobs += [(row, which, run) for which, run in passes.items()]
        if self.case.torch:
            gc.collect()
            self.case.torch.cuda.empty_cache()

    def _prepared(self, name, peer, row, limits):
        """``{pass: function without arguments}`` after a check, whose figures go into the row."""
        torch = self.case.torch
        if torch is None:
            raise baselines.NotInstalled(f"{name} is not installed: PyTorch is missing, or sees no GPU")
        inputs = self.case.inputs
        levels = baselines.geometry(inputs.spatial_shapes, inputs.level_start_index, len(inputs.value))
        call = baselines.made(name, peer, levels)
        given = baselines.on_gpu(self.given)
        learning = baselines.tensors_for(peer, self.case.on_gpu.inputs)
        if name in (OWN, OWN_DETERMINISTIC):  # which needs no conversion of the locations
            learning = [baselines.tensor_of(array) for array in self.case.on_gpu.inputs]
        learning = [tensor.detach().requires_grad_() for tensor in learning]
        given = given.to(learning[0].dtype)

        def forward():
            return call(*learning)

        def gradients_of(out, **options):
            return torch.autograd.grad(out, learning, given, **options)

        def backward():
            return gradients_of(out, retain_graph=True)

        def both():
            return gradients_of(forward())

        with _deterministic(torch, name == OWN_DETERMINISTIC), on_stream(torch, self._stream):
            out = forward()
            found = backward()
            row["errors"] = {"out": self.case.error(out.detach())}
            self._judge(row, NAMES[1:], found, limits)
            row["equal_again"] = all(map(torch.equal, found, backward()))
            del found
            row["peak_bytes"] = peak_bytes(torch, both)
            passes = {"forward": forward, "backward": backward, "both": both}
            self._alive.append(passes)
            return {which: self._captured(row, run) for which, run in passes.items()}

    def _captured(self, row, run):
        """A CUDA graph's replay of ``run``; ``run`` itself if it cannot be captured, which the row says."""
        torch = self.case.torch
        for _ in range(CALLS):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                run()
        except Exception as error:
            row["not_captured"] = explain(error)
            torch.cuda.synchronize()
            return run
        return graph.replay

    # --- all --------------------------------------------------------------------------------------
    def time(self, repeats, warm_up):
        """Times everything round by round, into the rows; returns the ceilings' rows."""
        case, jobs, times = self.case, self._jobs, None
        with bench.timing(self.rows):
            tried = list(scatter.trials(case))
            self.progress(f"{self.workload.name}: timing {len(jobs)} passes and {len(tried)} ceilings")
            runs = [run for *_, run in jobs] + [trial.run for trial in tried]
            times = bench.time_round_by_round(case.gpu, runs, repeats, warm_up)
        if times is None:
            return []
        samples, ghz = case.problem.samples, bench.clock(case.gpu)["ghz"]
        ceiling_rows = [{**bench.columns(self.workload), **ceilings.figures(trial, own, samples, 0)}
                        for trial, own in zip(tried, times[len(jobs) :], strict=True)]  # fmt: skip
        best = ceilings.best(ceiling_rows)
        for (row, which, _), own in zip(jobs, times[: len(jobs)], strict=True):
            if which == "backward":
                row |= record.spread(own)
                row |= ceilings.attribute(row["median_ms"], row.get("fetch"), best)
                row["cycles_per_tile"] = row["median_ms"] / 1e3 * ghz * 1e9 * case.gpu.sms / samples
            else:
                row[which] = record.spread(own)
        return ceiling_rows

    def forget(self):
        """Give back what the graphs and the checks hold on the GPU."""
        self._jobs.clear()
        self._alive.clear()
        torch, self.exact, self.case = self.case.torch, None, None
        gc.collect()
        if torch:
            torch.cuda.empty_cache()


def run_kernel(case, bound, given):
    """([gradients of value, locations and weights], a function that launches it again, virtual cycles) of one
    run of the backward kernel on either engine; None for gradients that it does not compute."""
    problem, config = case.problem, bound.config
    shape, dtype = gradients.sums_shape(problem, config.sums)
    largest = [float(np.abs(a.astype(np.float32)).max()) for a in (given, case.arrays[2])]
    exponent = gradients.fixed_exponent(problem, int(np.ceil(np.log2(np.prod(largest)))) + 1)
    arrays = [given, np.zeros(shape, dtype), *map(np.zeros_like, case.arrays[1:]),
              np.array([2.0**exponent], np.float32)]  # fmt: skip
    run = cycles = None
    if case.gpu:
        arrays = [DeviceArray.of(case.gpu, array) for array in arrays]
        run = case.launcher(bound, gradients.operands(*arrays))
        run()
    else:
        extra = gradients.operands(*arrays)
        cycles = bound.simulate(case.arrays, np.empty(0, given.dtype), extra=extra, timeout=600.0).cycles
    sums, *of_samples = [readable(case, array) for array in arrays[1:4]]
    if config.sums == "fixed":
        sums = (sums.swapaxes(-1, -2) * 2.0**-exponent).reshape(problem.batch, problem.spatial_size,
                                                                problem.heads, -1)  # fmt: skip
    found = [sums if config.of_value else None, *(of_samples if config.of_samples else (None, None))]
    return found, run, cycles


def judge_errors(row, limits):
    """The row's ``error_text`` where some of its ``errors`` are not within their limits."""
    wrong = [f"{name} {error:.2g}, allowed {limits[name]:.2g}"
             for name, error in row["errors"].items() if not error < limits[name]]  # fmt: skip
    if wrong:
        row["error_text"] = f"wrong result: error of {'; of '.join(wrong)}"


def readable(case, array):
    """The numbers of a kernel's array: a copy as a tensor where the case has PyTorch, else NumPy's."""
    if case.torch:
        return baselines.tensor_of(array).clone()
    return array.to_numpy() if case.gpu else array


def relative_error(found, exact):
    """||found - exact|| / ||exact||, of NumPy's arrays or of tensors; NaN for what is not a number."""
    if isinstance(found, np.ndarray):
        return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))
    return float((found.double() - exact).norm() / exact.norm())


def peak_bytes(torch, run):
    """Bytes that ``run()`` takes at most on the GPU, beside what lies there before."""
    for _ in range(CALLS):
        run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _own(levels):
    """The operator of this package, as a peer."""
    from ..torch import ms_deform_attn

    return lambda value, locations, weights: ms_deform_attn(
        value, levels.shapes_list, levels.starts_list, locations, weights)  # fmt: skip


@contextlib.contextmanager
def _deterministic(torch, wanted):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextlib.contextmanager
def on_stream(torch, stream):
    """Work on ``stream`` after all that was asked for before, and all afterwards after it: autograd's backward
    runs where its forward ran, and a capture needs both on one stream."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
