"""Public Numba CUDA programs, unchanged, under ``numba-deform check``: what is found in them, and whether they
compute what they should.

    python bench/public_programs.py --out bench/results/public_programs.json
    python bench/public_programs.py --table             the table of notebooks/site/programs.md

Each is fetched by its commit, from GitHub or from a folder of repositories (``--base``), or has been installed
by pip, and is run as it is: a script as a script, a function by a few lines below, which compare what it
computes with NumPy.
"""

import argparse
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

TABLE = Path(__file__).resolve().parent / "results" / "public_programs.json"


@dataclass(frozen=True)
class Program:
    """``source``: owner/name on GitHub, or a package of PyPI; ``version``: its commit, or release. ``fault`` is
    the one that is to be found and the text of its line, and ``judged`` what it is. ``options`` of check."""

    name: str
    source: str
    version: str
    file: str
    fault: tuple | None = None
    judged: str = ""
    options: tuple = ()


EXAMPLES = "numba/numba-examples", "c423f5419a459f5ab8874fda6d39bb5ea05d04b2"
TUTORIAL = "numba/nvidia-cuda-tutorial", "d2ef2bc1e73eb0781313869b2e9d7e2ebc757aba"
MATCHING = "Rheinwalt/numba_cuda_block_matching", "2aa7de010bce2410bfa56d82487853f7cc1d622d"
STOP = ("stop=yes",)
PROGRAMS = [
    Program("sum", *EXAMPLES, "legacy/cudajit/sum.py"),
    Program("zero_suppression", *EXAMPLES, "examples/waveforms/zero_suppression/gpu.py"),
    Program("blackscholes", *EXAMPLES, "examples/finance/blackscholes/blackscholes_cuda.py"),
    Program("mandelbrot", *TUTORIAL, "session-1/mandelbrot/solutions/mandel_cuda.py"),
    Program("quaternion", *TUTORIAL, "session-4/exercise/quaternion_solution.py"),
    Program("block_matching", *MATCHING, "block_matching.py"),
    Program("debug_3", *TUTORIAL, "session-3/exercises/debug/ex3.py", None,
            "wrong by intent, but in its logic: a sign and an `or` give negative bins, which Numba counts from "
            "the end. No rule is broken"),
    Program("debug_1", *TUTORIAL, "session-3/exercises/debug/ex1.py",
            ("DataRace", "histogram_out[bin_number] += 1"),
            "a defect by intent: threads add without an atomic"),
    Program("laplace2d", *EXAMPLES, "legacy/laplace2d/laplace2d-numba-cuda-smem.py",
            ("OutOfRange", "smem[sy, 33] = A[j, i + 1]"),
            "a defect: the last column reads the first element of the next row, and the last thread reads "
            "behind the array. What it reads is not used", STOP),
    Program("histogram", *EXAMPLES, "examples/density_estimation/histogram/gpu.py",
            ("DataRace", "local_min = min_max_array[0]"),
            "a race that its comment means to be harmless: a plain read of what others change by atomics. An "
            "old value would do, but PTX promises none; an atomic read has one", STOP),
    Program("gpu_stump", "stumpy", "1.14.1", "stumpy/gpu_stump.py",
            ("DataRace", "QT_out[0] = QT_first[j]"),
            "a race: all threads store this element in every round, and thread 0 reads it. They store one "
            "value, and the result is right on today's GPUs; if thread 0 alone stored it, there would be no "
            "race", STOP),
]
BY_NAME = {program.name: program for program in PROGRAMS}


# --- what each computes -------------------------------------------------------------------------------
def run_blackscholes(module, dice):
    from math import erf

    stock, strike, years = (dice.uniform(*ends, 3000) for ends in ((5, 30), (1, 100), (0.25, 10)))
    call, put = module.black_scholes_cuda(stock, strike, years, 0.02, 0.30)
    one = (np.log(stock / strike) + (0.02 + 0.5 * 0.3**2) * years) / (0.3 * np.sqrt(years))
    normal = np.vectorize(lambda d: 0.5 * (1 + erf(d / np.sqrt(2))))
    paid = strike * np.exp(-0.02 * years)
    expected = stock * normal(one) - paid * normal(one - 0.3 * np.sqrt(years))
    np.testing.assert_allclose(call, expected, atol=1e-4)  # it has a polynomial
    np.testing.assert_allclose(put, expected + paid - stock, atol=1e-4)


def run_zero_suppression(module, dice):
    given = dice.normal(0, 5, 10_000).astype(np.float32)
    found = module.numba_zero_suppression(given, np.float32(4))
    np.testing.assert_array_equal(found, np.where(np.abs(given) >= 4, given, 0))


def run_histogram(module, dice):
    given = dice.normal(0, 5, 10_000).astype(np.float32)
    counts, edges = module.numba_gpu_histogram(given, 10)
    expected, _ = np.histogram(given, 10)
    np.testing.assert_array_equal(counts, expected)


def run_block_matching(module, dice):
    """An image against itself, moved."""
    image = dice.random((48, 48)).astype(np.float32)
    u, v, w, c = module.block_matching_ncc(image, np.roll(image, (1, -2), (0, 1)), 9, 2)
    inside = (slice(8, -8),) * 2
    assert (u[inside] == -2).all() and (v[inside] == 1).all() and (c[inside] >= 999).all()


def run_gpu_stump(module, dice):
    """The matrix profile of a series, by its definition."""
    series, m = dice.random(200), 16
    found = np.array(module.gpu_stump(series, m)[:, 0], float)
    windows = np.lib.stride_tricks.sliding_window_view(series, m)
    windows = (windows - windows.mean(1, keepdims=True)) / windows.std(1, keepdims=True)
    distances = np.linalg.norm(windows[:, None] - windows[None], axis=2)
    near = np.abs(np.subtract.outer(*[np.arange(len(windows))] * 2)) <= np.ceil(m / 4)
    np.testing.assert_allclose(found, np.where(near, np.inf, distances).min(1), atol=1e-6)


def run_mandelbrot(scope, dice):
    x, y = dice.integers(scope["width"], size=2000), dice.integers(scope["height"], size=2000)
    c = (-2 + x * (3 / scope["width"])) + 1j * (-1 + y * (2 / scope["height"]))
    expected, z = np.full(len(c), 255), np.zeros(len(c), complex)
    for i in range(20):
        z = z * z + c
        left = (z.real**2 + z.imag**2 >= 4) & (expected == 255)
        expected[left], z[left] = i, 0
    assert (scope["image"][y, x] == expected).mean() > 0.999  # but for roundings at the edge


def run(name, folder):
    """In the program that is checked: run it, and compare what it computes."""
    program, dice = BY_NAME[name], np.random.default_rng(1)
    compare = globals().get(f"run_{name}")
    sys.argv = [program.file]
    if program.source == "stumpy":
        compare(importlib.import_module("stumpy"), dice)
        return
    file = folder / program.file
    sys.path.insert(0, str(file.parent))
    scope = runpy.run_path(str(file), run_name="__main__")
    if compare:
        compare(scope if name == "mandelbrot" else argparse.Namespace(**scope), dice)


# --- all of them ---------------------------------------------------------------------------------------
def fetch(program, folder, base):
    """Put the program's file into the folder, as it is in its repository's commit."""
    repository = Path(base) / program.source
    if "://" in base:
        repository = folder / f"{program.source}.git"
        if not repository.exists():
            subprocess.run(["git", "init", "-q", "--bare", repository], check=True)
            url = f"{base}/{program.source}"
            command = ["git", "-C", repository, "fetch", "-q", "--depth=1", url, program.version]
            subprocess.run(command, check=True)
    text = subprocess.run(["git", "-C", repository, "show", f"{program.version}:{program.file}"],
                          capture_output=True, check=True).stdout  # fmt: skip
    (folder / program.file).parent.mkdir(parents=True, exist_ok=True)
    (folder / program.file).write_bytes(text)


def checked(program, folder, base="https://github.com"):
    """A row: what ``numba-deform check`` says of the program."""
    if program.source != "stumpy":
        fetch(program, folder, base)
    found = folder / f"{program.name}.json"
    command = [sys.executable, "-W", "ignore", "-m", "numba_deform", "check", f"json={found}", *program.options]
    started = time.perf_counter()
    done = subprocess.run([*command, __file__, "--run", program.name, folder], capture_output=True, text=True,
                          env=os.environ | {"MPLBACKEND": "agg"})  # fmt: skip
    seconds = time.perf_counter() - started
    said = json.loads(found.read_text()) if found.exists() else {}
    faults = [{key: fault[key] for key in ("fault", "what", "where", "source", "kernel", "count")}
              for fault in said.get("faults", ())]  # fmt: skip
    for fault in faults:
        file, _, line = fault["where"].rpartition(":")
        fault["where"] = f"{Path(file).name}:{line}"
    return {
        "program": program.name, "source": program.source, "version": program.version, "file": program.file,
        "options": list(program.options), "status": done.returncode, "seconds": round(seconds, 1),
        "results_right": "Traceback" not in done.stderr,
        **{key: said.get(key) for key in ("launches", "blocks", "blocks_not_judged", "threads")},
        "faults": faults,
        "last_words": (done.stderr.strip().splitlines() or [""])[-1],
    }  # fmt: skip


def table(rows):
    """The table of the page, in Markdown."""
    lines = ["| program | source | judged | found |", "|---|---|---|---|"]
    for row in rows:
        program = BY_NAME[row["program"]]
        blocks = f"{row['blocks']:,} of {row['blocks'] + row['blocks_not_judged']:,} blocks"
        found = "; ".join(f"{f['fault']} at {f['where']}" for f in row["faults"])
        found = found or ("no fault, results right" if row["results_right"] else "no fault, results wrong")
        at = program.version if program.source == "stumpy" else program.version[:7]
        where = f"{program.source} {at}, `{program.file}`"
        lines.append(f"| {program.name} | {where} | {'' if row['faults'] else blocks} | "
                     f"{found}{': ' * bool(program.judged)}{program.judged} |")  # fmt: skip
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--base", default="https://github.com", help="where OWNER/NAME are")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true", help="print the page's table")
    options = parser.parse_args()
    if options.table:
        print(table(json.loads(TABLE.read_text())["rows"]))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS:
            if not options.names or program.name in options.names:
                rows.append(checked(program, Path(folder), options.base))
                print(json.dumps(rows[-1], indent=1), file=sys.stderr)
    if options.out:
        from numba_deform.measure.record import write

        write(options.out, None, rows, kind="public_programs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
