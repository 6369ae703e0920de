"""``numba-deform bench profile=1``: the few hardware counters that explain a kernel's time.

Nsight Compute (``ncu``) watches a child process, which launches one variant twice on the bench's inputs
(``python -m numba_deform.measure.counters FILE``), and counts the second launch. Clocks and caches stay as they
are in the bench."""

import contextlib
import csv
import functools
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ..compiler.sass import ToolMissing
from ..engines.gpu.device import find_gpu
from ..engines.gpu.in_place import OnGpu
from ..engines.gpu.launch import launch, profile_launch
from ..kernels.pipelines import PIPELINES
from ..kernels.registry import load
from .case import case_of
from .worker import run_program

USUAL_PLACE = "/usr/local/cuda/bin"  # often not on PATH
OPTIONS = ("--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none",
           "--cache-control", "none", "--profile-from-start", "off")  # fmt: skip

METRICS = {
    "duration_ns": "gpu__time_duration.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts.sum",
    "wavefronts_percent": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "issue_percent": "sm__inst_issued.avg.pct_of_peak_sustained_active",
    "warps_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l1_hit_percent": "l1tex__t_sector_hit_rate.pct",
    "l2_bytes": "lts__t_bytes.sum",
    "dram_bytes": "dram__bytes.sum",
    "instructions": "smsp__inst_executed.sum",
    "bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
"""What is counted: name in the result -> ncu's metric."""
PER_SAMPLE = ("wavefronts", "instructions", "bank_conflicts")

DENIED = ("no permission to read the GPU's counters (ERR_NVGPUCTRPERM): run as root, or load the driver with "
          "NVreg_RestrictProfilingToAdminUsers=0; see https://developer.nvidia.com/ERR_NVGPUCTRPERM")


def find_ncu():
    """The path of Nsight Compute's program; raises ToolMissing."""
    path = shutil.which("ncu") or shutil.which("ncu", path=USUAL_PLACE)
    if path is None:
        raise ToolMissing(
            f"counters need Nsight Compute, and there is no ncu on PATH or in {USUAL_PLACE}: it comes "
            "with the CUDA toolkit, or from https://developer.nvidia.com/nsight-compute"
        )
    return path


def count(task, limit=300.0):
    """Counters of one launch on the first GPU: of a task as ``bench.task_of`` makes it, or
    ``pipelines.counters_task``.

    The keys of METRICS, as far as this GPU has them, in ns, bytes, percent and numbers; of an operator those
    of PER_SAMPLE also divided by the workload's samples, as ``wavefronts_per_sample``. What fails, or takes
    longer than ``limit`` seconds, gives ``error_text`` instead: DENIED without the permission. Raises
    ToolMissing."""
    metrics = ("--metrics", ",".join(METRICS.values()))
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "task.pickle"
        file.write_bytes(pickle.dumps(task))
        command = [find_ncu(), *OPTIONS, *metrics, sys.executable, "-m", __name__, str(file)]
        try:
            pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            done = run_program(command, limit, **pipes)
        except subprocess.TimeoutExpired:
            return {"error_text": f"no counters within {limit:g} s: stopped"}
    kernels = parse(done.stdout)
    if done.returncode or not kernels:
        return {"error_text": _why(done)}
    return figures(kernels[-1], task["workload"].samples if task.get("workload") else None)


def parse(text):
    """``[{column: text}]``, one for each kernel, of what ``ncu --csv --page raw`` printed.

    Before and after the table there may be other lines, of ncu (``==PROF==``) and of the program. The
    table's second line holds the units, and has no ID."""
    lines = text.splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if line.startswith('"ID",')]
    table = csv.DictReader(lines[starts[0] :] if starts else [])
    return [row for row in table if row["ID"].isdigit()]


def figures(kernel, samples):
    """The result of :func:`count` for one kernel of :func:`parse`; ``samples`` is None for a pipeline."""
    counts = {}
    for name, metric in METRICS.items():
        with contextlib.suppress(ValueError):  # "n/a", or nothing: not counted on this GPU
            counts[name] = float((kernel.get(metric) or "").replace(",", ""))
    if samples is None:
        return counts
    return counts | {f"{name}_per_sample": counts[name] / samples for name in PER_SAMPLE if name in counts}


def _why(done):
    """Why ncu has no counters: its own words, and the last of the program's."""
    lines = [line.strip() for line in (done.stdout + "\n" + done.stderr).splitlines()]
    if any("ERR_NVGPUCTRPERM" in line for line in lines):
        return DENIED
    last = [line for line in lines if line and not line.startswith("==")][-1:]
    last += [line.removeprefix("==ERROR== ") for line in lines if line.startswith("==ERROR==")]
    return f"ncu, exit status {done.returncode}: {' '.join(last) or 'no kernel was profiled'}"[:500]


def launch_twice(file):
    """What runs under ncu: a warm-up, and the launch that counts."""
    task = pickle.loads(Path(file).read_bytes())
    for path in task["load"]:
        load(path)
    if "pipeline" in task:
        gpu = find_gpu()
        request = PIPELINES[task["pipeline"]](**task["parameters"])
        request.prepare()
        there = OnGpu(gpu, request.kernel, request.args).args
        where = request.grid, there, request.shared_bytes
        run = functools.partial(launch, gpu, request.kernel, *where, cluster=request.cluster)
    else:
        case = case_of("gpu", task["workload"], task["seed"])
        gpu, run = case.gpu, case.launcher(task["entry"].bind(case)[0])
    run()
    profile_launch(gpu, run)


if __name__ == "__main__":
    launch_twice(sys.argv[1])
