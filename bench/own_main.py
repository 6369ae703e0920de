"""CUDA C++ programs of others by their own ``main``, as ``numba-deform check program.cu`` takes them.

    python bench/own_main.py --mirrors FOLDER --work FOLDER --out bench/results/own_main.json [NAME ..]

``ptx_programs.py --table`` puts its results onto bench/PTX_PROGRAMS.md.
Sources are fetched by commit and are as they are there; words after their names are only the size of a problem.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from cuda_programs.command import is_asked_for, main
from cuda_programs.judge import record_of
from cuda_programs.sources import checkout

from numba_deform.measure import record

HERE = Path(__file__).parent
RESULT = HERE / "results" / "own_main.json"
KEPT = "launches", "launches_not_run_again", "kernels", "blocks", "threads", "faults", "notes"
LIMIT = 600  # seconds for a program
SAMPLES, CUTLASS = ("NVIDIA/cuda-samples", "c94ff366"), ("NVIDIA/cutlass", "7107b0553")
INCLUDES = ("include", "tools/util/include", "examples/common", "examples/cute/tutorial")
CUTE = ("-std=c++17", "--expt-relaxed-constexpr", "-DNDEBUG", *(f"-I{{tree}}/{folder}" for folder in INCLUDES))


@dataclass
class Program:
    """``file`` of a repository's commit; nvcc's ``options``, ``words`` for the program, and what is waived."""

    file: str
    source: tuple
    paths: tuple
    options: tuple
    words: tuple = ()
    waive: tuple = ()

    @property
    def name(self):
        return f"{self.source[0].rpartition('/')[2]} {Path(self.file).stem}"


def sample(folder, *words, waive=()):
    file = f"Samples/{folder}/{Path(folder).name}.cu"
    options = "-std=c++17", "-I{tree}/Common"
    return Program(file, SAMPLES, (f"Samples/{folder}", "Common", ":!*_2_18*"), options, words, waive)


def cutlass(file, *words, options=(), waive=()):
    paths, options = ("include", "tools", "examples"), (*CUTE, *options)
    return Program(f"examples/{file}.cu", CUTLASS, paths, options, words, waive)


SM100 = "-arch=sm_100a", "-I{tree}/examples/cute/tutorial/blackwell"
ON_BLACKWELL = {"options": SM100, "waive": ("init-fence",)}
PROGRAMS = (
    *(sample(f"0_Introduction/{name}") for name in (
        "clock", "fp16ScalarProduct", "simpleAssert", "simpleCooperativeGroups",
        "simpleMultiGPU", "simpleOccupancy", "simplePrintf", "simpleTemplates", "simpleVoteIntrinsics",
        "simpleZeroCopy", "vectorAdd",
    )),
    sample("0_Introduction/matrixMul", *(f"-{name}=128" for name in ("wA", "hA", "wB", "hB"))),
    sample("2_Concepts_and_Techniques/inlinePTX"),
    sample("2_Concepts_and_Techniques/threadFenceReduction", "--n=16384", waive=("thread-fence-reduction",)),
    sample("3_CUDA_Features/binaryPartitionCG"),
    sample("3_CUDA_Features/newdelete"),
    sample("5_Domain_Specific/dwtHaar1D"),
    sample("6_Performance/LargeKernelParameter"),
    cutlass("00_basic_gemm/basic_gemm", "64", "64", "32"),
    cutlass("02_dump_reg_shmem/dump_reg_shmem"),
    cutlass("04_tile_iterator/tile_iterator"),
    cutlass("cute/tutorial/tiled_copy"),
    cutlass("cute/tutorial/tiled_copy_if"),
    cutlass("cute/tutorial/sgemm_1", "128", "128", "16"),
    cutlass("cute/tutorial/sgemm_2", "128", "128", "16"),
    cutlass("cute/tutorial/sgemm_sm70", "128", "128", "16"),
    cutlass("cute/tutorial/sgemm_sm80", "128", "128", "64", "T", "N"),
    cutlass("cute/tutorial/hopper/wgmma_sm90", "256", "128", "256"),
    cutlass("cute/tutorial/hopper/wgmma_tma_sm90", "256", "128", "256", waive=("init-fence",)),
    cutlass("cute/tutorial/blackwell/02_mma_tma_sm100", "128", "256", "64", **ON_BLACKWELL),
    cutlass("cute/tutorial/blackwell/03_mma_tma_multicast_sm100", "512", "1024", "64", **ON_BLACKWELL),
    cutlass("cute/tutorial/blackwell/04_mma_tma_2sm_sm100", "512", "1024", "64", **ON_BLACKWELL),
    cutlass("cute/tutorial/blackwell/05_mma_tma_epi_sm100", "512", "1024", "64", **ON_BLACKWELL),
)  # fmt: skip


def judged(program, work, mirrors):
    """What ``check`` says of a program, and how long it takes."""
    into = work / re.sub(r"\W+", "-", f"{program.source[0]} {program.paths[0]}")
    tree = checkout(*program.source, program.paths, into, mirrors)
    file, said = tree / program.file, work / f"{Path(program.file).stem}.json"
    said.unlink(missing_ok=True)
    options = " ".join(option.replace("{tree}", str(tree)) for option in program.options)
    command = [sys.executable, "-m", "numba_deform", "check", f"json={said}"]
    command += [f"waive={','.join(program.waive)}"] if program.waive else []
    command += [str(file), f"options={options}", "--", *program.words]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=file.parent, start_new_session=True, **pipes)
    try:
        told = process.communicate(timeout=LIMIT)[1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the program runs in a child of it
        process.communicate()
        return {"refused": f"did not end within {LIMIT} s"}
    row = json.loads(said.read_text()) if said.exists() else {}
    row = {name: row[name] for name in KEPT if name in row}
    row |= {"seconds": round(time.perf_counter() - started, 1), "status": process.returncode}
    return row | ({"refused": _why(told)} if process.returncode == 2 else {})


def _why(text):
    said = [line for line in text.splitlines() if "ended here" in line or "error" in line]
    return said[-1].rpartition("/")[2] if said else text.strip().splitlines()[-1]


def verdict(run):
    if "refused" in run:
        return f"refused: {run['refused']}"
    faults = dict.fromkeys(f"{f['fault']} at `{Path(f['where']).name}`" for f in run["faults"])
    return "; ".join(faults) or f"silent, status {run['status']}"


def measure(args):
    rows = record_of(args.out, args.names)
    for program in PROGRAMS:
        if is_asked_for(args.names, program.name):
            rows[:] = [row for row in rows if row["name"] != program.name]
            run = judged(program, args.work.resolve(), args.mirrors.resolve())
            rows.append(dict(name=program.name, commit=program.source[1], file=program.file,
                             words=program.words, waive=program.waive, run=run))  # fmt: skip
            print(program.name, verdict(run), run.get("seconds"), flush=True)
            record.write(args.out, None, rows, load_average=os.getloadavg())


def table():
    """The lines of a table of the results."""
    yield "| program, its words | launches | of these not run again | blocks | s | verdict |"
    yield "|---|---|---|---|---|---|"
    for row in sorted(json.loads(RESULT.read_text())["rows"], key=lambda row: row["name"].lower()):
        run, words = row["run"], " ".join((row["name"], *row["words"], *(f"waive={w}" for w in row["waive"])))
        numbers = (f"{run.get(name, 0):,}" for name in ("launches", "launches_not_run_again", "blocks"))
        yield f"| {words} | {' | '.join(numbers)} | {run.get('seconds', '')} | {verdict(run)} |"


if __name__ == "__main__":
    main(__doc__, "work", RESULT, measure, lambda: "\n".join(table()))
