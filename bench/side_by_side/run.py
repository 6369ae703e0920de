"""What each tool does with the right program and with five mistakes, each in a process of its own.

    python bench/side_by_side/run.py --out bench/results/side_by_side.json
    python bench/side_by_side/run.py --only gluon_copy:gpu,gluon_copy:consan --mistakes right,full,empty

``WAYS`` says how a program can be run. Those whose library is not installed, or that want a GPU where there is
none, are left out and named. The libraries: numba_deform; triton and torch; nvidia-cutlass-dsl and torch; jax
with jaxlib and absl-py; and for ``draw`` a checkout of srush/GPU-Puzzles (``--puzzles``), chalk-diagrams and
colour. Without torch ``compile`` still works. Outcomes: ``right``, ``wrong``, of the numbers; ``compiled`` and
``drawn``, where nothing ran and nothing was said; ``refused``, before anything ran; ``reported``, while it ran;
``hangs``, after ``--limit`` seconds.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import types
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
from mistakes import KINDS, MISTAKES, module_of

STEPS = 8  # tiles that are copied
MARK = "side_by_side: "  # begins the line of a child's output that is its answer
WAYS = {
    "here_copy": ("engine", "gpu", "guarded"),
    "gluon_copy": ("compile", "gpu", "consan"),
    "cute_copy": ("compile", "gpu"),
    "pallas_copy": ("interpret", "lower", "gpu"),
    "pallas_emit": ("lower", "gpu"),
    "puzzle_copy": ("draw", "gpu"),
}
ON_GPU = ("gpu", "guarded", "consan")
NEEDS = {
    "here_copy": ("numba_deform",),
    "gluon_copy": ("triton",),
    "cute_copy": ("cutlass",),
    "pallas_copy": ("jax", "absl"),
    "pallas_emit": ("jax", "absl"),
    "puzzle_copy": ("numba",),
}
ENVIRONMENT = {
    "compile": {"CUTE_DSL_ARCH": "sm_90a"},
    "consan": {"TRITON_INSTRUMENTATION_MODE": "consan", "CUDA_LAUNCH_BLOCKING": "1"},
    "interpret": {"JAX_PLATFORMS": "cpu"},
    "lower": {"JAX_PLATFORMS": "cpu"},
}
NOTHING_RAN = {"compile": "compiled", "lower": "compiled", "draw": "drawn"}  # if nothing was said
PACKAGES = ("numba", "numba-cuda", "triton", "torch", "nvidia-cutlass-dsl", "jax", "jaxlib", "chalk-diagrams")


def data_of(module):
    """The numbers of ``STEPS`` tiles."""
    rows, columns = (int(getattr(size, "value", size)) for size in (module.ROWS, module.COLUMNS))
    return np.random.default_rng(1).standard_normal((STEPS * rows, columns)).astype(np.float32)


# --- one way each: a function of program and module that returns the copy, or None where nothing ran ----------
def gpu(program, module):
    if program == "here_copy":
        on_gpu(module, "launch", "launch")
    return module.run(data_of(module))


def guarded(program, module):
    on_gpu(module, "guard", "launch_guarded")
    return module.run(data_of(module))


def on_gpu(module, where, how):
    """``nd.simulate`` launches on the GPU instead."""
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.engines.gpu.in_place import launch_in_place

    launch = getattr(importlib.import_module(f"numba_deform.engines.gpu.{where}"), how)
    device = find_gpu()

    def simulate(kernel, grid, args):
        launch_in_place(device, kernel, grid, args, kernel.shared_bytes, launch)

    module.nd.simulate = simulate


def engine(program, module):
    return module.run(data_of(module))


def consan(program, module):
    """The environment asks Triton for its sanitizer, which wants memory for its notes."""
    import torch
    import triton

    def allocate(size, alignment, stream):
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(allocate)
    return module.run(data_of(module))


def interpret(program, module):
    """Pallas's interpreter, with its race detector."""
    from jax._src.pallas.mosaic_gpu.interpret.interpret_pallas_call import get_races
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    options = InterpretGPUParams(detect_races=True, num_cores_or_threads=2)
    out = module.run(data_of(module), interpret=options)
    if get_races().races_found:
        raise RuntimeError("races_found is set, and what was printed says where")
    return out


def lower(program, module):
    """JAX's lowering for a CUDA GPU that need not be there."""
    import jax

    jax.jit(module.copy).trace(data_of(module)).lower(lowering_platforms=("cuda",))


def compile(program, module):
    """Machine code for compute capability 9.0, without a GPU."""
    rows, columns = data_of(module).shape
    if program == "cute_copy":
        import cutlass
        from cutlass import cute
        from cutlass.cute.runtime import make_fake_compact_tensor

        array = [
            make_fake_compact_tensor(cutlass.Float32, (rows, columns), stride_order=(1, 0), assumed_align=16)
            for _ in range(2)
        ]
        cute.compile(module.copy, *array)
        return
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    layout = gl.NVMMASharedLayout.get_default_for(module.BOX, gl.float32)
    signature = {"source": f"tensordesc<fp32{module.BOX},{layout!r}>", "out": "*fp32", "steps": "i32"}
    source = GluonASTSource(module.copy, signature, {}, {})
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "maxnreg": 128})


def draw(program, module):
    """What ``show`` of GPU-Puzzles does; its ``lib.py`` lies in the folder ``PUZZLES``."""
    folder = os.environ["PUZZLES"]
    sys.path.insert(0, folder)
    os.chdir(folder)
    import chalk
    from chalk.shapes import image

    def get_subdiagram_envelope(diagram, name):
        part = diagram.get_subdiagram(name)
        return part and part.get_envelope()

    chalk.image = image  # the branch of chalk that the puzzles ask for has these
    chalk.core.BaseDiagram.get_subdiagram_envelope = get_subdiagram_envelope
    chalk.core.set_svg_output_height = lambda height: None
    import lib

    lib.im = lib.circle(1)  # instead of a picture from the net,
    lib.arc_between = lambda *ends: lib.rectangle(1, 1)  # and of straight arcs, which today's chalk refuses
    data = data_of(module)
    side = lib.Coord(module.COLUMNS, module.ROWS)
    out = np.zeros_like(data)
    lib.CudaProblem("Copy", module.copy_test, [data], out, [STEPS], threadsperblock=side).show()


def renames(program):
    """Names that a program has to use instead in the version that is installed."""
    if program == "gluon_copy":
        from triton.experimental.gluon.language.nvidia.hopper import tma

        if not hasattr(tma, "async_load"):
            return {"tma.async_load": "tma.async_copy_global_to_shared"}
    return {}


# --- a child's answer, and the parent's -----------------------------------------------------------------------
def told(said, printed):
    """What a reader is told: the report, or a traceback's last line, with the compiler's own lines about it."""
    said = said.strip()
    if "Traceback (most recent" in said:
        said = said.splitlines()[-1]
    lines = [line.strip() for line in printed.splitlines()]
    told = [line for line in lines if re.search("^CUDA|: error: |device-side assert", line)]
    if "RACE DETECTED" in lines:  # Pallas: the first race, a line for each of its two accesses
        first = lines.index("RACE DETECTED")
        told += [line for line in lines[first : first + 5] if line and not line.startswith("clock")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    told += [said] if said else errors[-1:]
    return re.sub(r"/\S*/(?=\w+\.py)", "", "\n".join(dict.fromkeys(told)))[:3000]


def child(program, way, mistake):
    """Runs one case and prints its outcome."""
    if way == "compile" and importlib.util.find_spec("torch") is None:
        sys.modules["torch"] = types.ModuleType("torch")
        sys.modules["torch"].Tensor = type("Tensor", (), {})  # nothing is one
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        try:
            module = module_of(program, folder, None if mistake == "right" else mistake, renames(program))
            out = globals()[way](program, module)
        except BaseException as error:
            kind = "refused" if way in ("compile", "lower") else "reported"
            answer = {"outcome": kind, "error": type(error).__name__, "says": str(error)}
        else:
            same = out is not None and np.array_equal(out, data_of(module))
            answer = {"outcome": NOTHING_RAN[way] if out is None else "right" if same else "wrong"}
    print(MARK + json.dumps(answer), flush=True)


def case(program, way, mistake, limit, puzzles):
    """The row of one case: the child's answer, or that it hangs, and the end of what it printed beside."""
    row = {"program": program, "way": way, "mistake": mistake}
    if mistake != "right" and isinstance(MISTAKES[program][mistake], str):
        return {**row, "outcome": "cannot be made", "says": MISTAKES[program][mistake]}
    command = [sys.executable, __file__, "--child", program, way, mistake]
    environment = {**os.environ, **ENVIRONMENT.get(way, {}), "PUZZLES": str(puzzles)}
    with tempfile.TemporaryDirectory() as cache:  # what Triton compiled with other options is not asked
        environment["TRITON_CACHE_DIR"] = cache
        started = time.perf_counter()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
        except subprocess.TimeoutExpired as late:
            printed = ((late.stdout or b"") + (late.stderr or b"")).decode(errors="replace")
            return {**row, "outcome": "hangs", "says": told("", printed)}
    answers = [line[len(MARK) :] for line in done.stdout.splitlines() if line.startswith(MARK)]
    answer = json.loads(answers[-1]) if answers else {"outcome": "reported", "error": f"exit {done.returncode}"}
    beside = "\n".join(line for line in done.stdout.splitlines() if not line.startswith(MARK)) + done.stderr
    if answer["outcome"] not in ("right", "wrong", "compiled"):
        answer["says"] = told(answer.get("says", ""), beside)
    return {**row, **answer, "seconds": round(time.perf_counter() - started, 1)}


def cases(only, puzzles):
    """The programs and ways that can be run here, and those that cannot with the reason."""
    has_gpu = subprocess.run("nvidia-smi", shell=True, capture_output=True).returncode == 0
    can, cannot = [], {}
    for program, ways in WAYS.items():
        missing = [name for name in NEEDS[program] if importlib.util.find_spec(name) is None]
        for way in ways:
            name = f"{program}:{way}"
            if only and name not in only:
                continue
            if missing:
                cannot[name] = f"{missing[0]} is not installed"
            elif way in ON_GPU and not has_gpu:
                cannot[name] = "no GPU"
            elif way == "draw" and not (puzzles / "lib.py").is_file():
                cannot[name] = "no checkout of srush/GPU-Puzzles (--puzzles)"
            else:
                can.append((program, way))
    return can, cannot


def versions():
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def commit():
    """The checkout's commit, or None outside one."""
    command = ["git", "describe", "--always", "--dirty"]
    told = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    return told.stdout.strip() or None


def now():
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def device():
    """What nvidia-smi calls the GPU, or None."""
    command = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader"
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout.strip() or None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="program:way,..")
    parser.add_argument("--mistakes", default=",".join(["right", *KINDS]))
    parser.add_argument("--limit", type=float, default=60, help="seconds for each case")
    parser.add_argument("--puzzles", type=Path, default=Path("GPU-Puzzles"))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return child(*given.child)
    can, cannot = cases([name for name in given.only.split(",") if name], given.puzzles.resolve())
    for name, why in cannot.items():
        print(f"{name}: left out, {why}", file=sys.stderr)
    rows = []
    for program, way in can:
        for mistake in given.mistakes.split(","):
            row = case(program, way, mistake, given.limit, given.puzzles.resolve())
            rows.append(row)
            said = row.get("says", "").splitlines()[:1]
            print(program, way, mistake, row["outcome"], row.get("error", ""), *said, flush=True)
            if given.out:  # after each case: the next may take the machine with it
                origin = {"machine": {"gpu": device()}, "versions": versions(), "commit": commit()}
                document = {**origin, "date": now(), "left_out": cannot, "rows": rows}
                given.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
