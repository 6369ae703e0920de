"""Predicted times of kernels that the model was not made with, beside measured ones: of our own writing
(``other_kernels.py``), of cuda-samples (``fetched_kernels.py``) and of Triton's tutorials
(``tutorial_kernels.py``) by their own source, and of the corpus (``corpus_kernels.py``).

    python bench/predicted_others.py prepare --mirrors FOLDER      # fetch and compile sources, without a GPU
    python bench/predicted_others.py predict                       # without a GPU, rows that are not there
    python bench/predicted_others.py measure SET .. --out FILE     # on a GPU, all within --limit seconds
    python bench/predicted_others.py --table                       # the tables of bench/PREDICTED.md

``measure`` compares each kernel's results and times it in a child process, which may hang or crash; FILE is
written after each, and rows for which no time was left say so. ``--table`` joins the predictions with the files
of MEASURED and with TIMES, which others measured on an H100 and to which nothing here was fitted."""

import argparse
import dataclasses
import json
import pickle
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import corpus_kernels
import fetched_kernels
import other_kernels
import tutorial_kernels

from numba_deform.engines.sass import ONE_SM, Failed, Stuck, emulate
from numba_deform.engines.sass.units import H100, HOPPER
from numba_deform.measure import record
from numba_deform.measure.predict import OTHERS_HIGH, OTHERS_LOW, predict
from numba_deform.measure.worker import Worker

RESULTS = Path(__file__).resolve().parent / "results"
RESULT = RESULTS / "others_predicted.json"
SETS = {"own": other_kernels, "samples": fetched_kernels, "tutorials": tutorial_kernels,
        "corpus": corpus_kernels}  # fmt: skip
KERNELS = {name: make for kernels in SETS.values() for name, make in kernels.KERNELS.items()}
CASES = [case for kernels in SETS.values() for case in kernels.CASES]
MEASURED = ("H100", "others_h100.json"), ("H200", "others_h200.json"), ("H200", "others_fetched_h200.json")
GPUS = {"H100": H100, "H200": HOPPER}
FAR = 0.3  # off; such rows stand on the page
# Medians of 20 on an H100 80GB HBM3, 2026-11-26, of kernels that others wrote and described.
TIMES = {("saxpy", 16 << 20, 1056): 76.2, ("saxpy", 16 << 20, 132): 251.5, ("transpose", 4096, 0): 101.7,
         ("transpose", 4096, 1): 61.8, ("row_sums", 32768, 1024): 48.3, ("gather", 1 << 20, 1 << 20): 93.1,
         ("gather", 1 << 20, 16384): 90.9, ("product", 1024): 400.7, ("chain", 4 << 20, 64, "ex2"): 71.0,
         ("boxes", 33792 * 32, 32, 4, 528): 108.1, ("boxes", 33792 * 32, 32, 2, 528): 105.5,
         ("boxes", 33792 * 8, 8, 8, 528): 29.7, ("boxes", 33792 * 64, 64, 1, 528): 198.9}  # fmt: skip


def predicted(case):
    """{what is known of one case on each of GPUS}, or why nothing is"""
    name, size = case
    started, launch, told = time.perf_counter(), KERNELS[name](*size), {}
    try:
        run = emulate(launch, only=ONE_SM, traced=True)
    except (Failed, Stuck) as error:
        return {"kernel": name, "size": list(size), "error_text": str(error)[:300]}
    kept = pickle.dumps(run.traces)  # playing them uses them up
    for gpu, constants in GPUS.items():
        found = predict(dataclasses.replace(run, traces=pickle.loads(kept)), constants)
        told[gpu] = {"predicted_us": found.microseconds, "binds": found.binds,
                     "busy": {unit: round(share, 3) for unit, share in found.busy.items()}}  # fmt: skip
    return {"kernel": name, "size": list(size), **told, "seconds": round(time.perf_counter() - started, 1)}


def key_of(row):
    return row["kernel"], *row["size"]


def set_of(row):
    return next(name for name, kernels in SETS.items() if row["kernel"] in kernels.KERNELS)


def run_predictions(cases, processes):
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    there = {key_of(row) for row in rows}
    wanted = [case for case in cases if (case[0], *case[1]) not in there]
    wanted.sort(key=lambda case: (case[0], *case[1]) not in TIMES)
    with ProcessPoolExecutor(processes) as pool:
        for row in pool.map(predicted, wanted):
            if "error_text" in row:
                print(*key_of(row), row["error_text"], flush=True)
                continue
            rows.append(row)
            times = [f"{gpu} {row[gpu]['predicted_us']:.1f}" for gpu in GPUS]
            print(*key_of(row), *times, row["seconds"], flush=True)
            record.write(RESULT, None, rows)


def timed(task):
    """In the child: results are compared, then the time."""
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.engines.gpu.in_place import run_launch
    from numba_deform.measure.pipelines import time_one

    gpu, launch = find_gpu(), KERNELS[task["kernel"]](*task["size"])
    run_launch(gpu, launch, guarded=False)
    return time_one(gpu, launch, 20)


def measure(cases, out, limit):
    from numba_deform.engines.gpu.device import find_gpu

    gpu, rows, started = find_gpu(), [], time.monotonic()
    with Worker("predicted_others:timed", 40.0) as worker:
        for name, size in cases:
            row = {"kernel": name, "size": list(size)}
            left = limit - (time.monotonic() - started)
            rows.append(row | (worker.call(row) if left > 0 else {"error_text": "no time was left"}))
            print(*key_of(row), rows[-1].get("median_ms") or rows[-1]["error_text"], flush=True)
            record.write(out, gpu, rows)


def joined():
    """[(gpu, source, key, measured us, predicted us, what binds)]"""
    told = {key_of(row): row for row in json.loads(RESULT.read_text())["rows"]}
    found = [("H100", "others", key, us, told[key]["H100"]) for key, us in TIMES.items() if key in told]
    for gpu, file in MEASURED:
        rows = json.loads((RESULTS / file).read_text())["rows"] if (RESULTS / file).exists() else []
        rows = [row for row in rows if "median_ms" in row and key_of(row) in told]
        found += [(gpu, set_of(row), key_of(row), 1e3 * row["median_ms"], told[key_of(row)][gpu])
                  for row in rows]  # fmt: skip
    return [(*one[:4], one[4]["predicted_us"], one[4]["binds"]) for one in found]


def off(row):
    """How far a predicted time is off, of the measured one."""
    return row[4] / row[3] - 1


def interval(rows):
    """(least, most) measured by predicted times, where nine of ten lie; as ``predicted.summary`` has it."""
    factors = sorted(row[3] / row[4] for row in rows)
    return factors[int(0.05 * (len(factors) - 1))], factors[int(0.95 * (len(factors) - 1))]


def table():
    """Markdown: how far off rows of each source are, and those that are more than FAR off."""
    rows = joined()
    groups = {f"{name}, {gpu}": [row for row in rows if row[:2] == (gpu, name)]
              for gpu, name in dict.fromkeys(row[:2] for row in rows)} | {"all": rows}  # fmt: skip
    heads = "source", "how many", "median error", "worst", f"within {100 * FAR:.0f} %", "in the interval"
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, group in groups.items():
        errors = sorted(abs(off(row)) for row in group)
        near = sum(error <= FAR for error in errors)
        inside = sum(OTHERS_LOW <= row[3] / row[4] <= OTHERS_HIGH for row in group)
        lines.append(f"| {name} | {len(group)} | {100 * statistics.median(errors):.1f} % "
                     f"| {100 * errors[-1]:.0f} % | {near} | {inside} |")  # fmt: skip
    lines += ["", "| GPU | source | kernel | measured, us | predicted, us | off | binds |", "|---" * 7 + "|"]
    for row in sorted((row for row in rows if abs(off(row)) > FAR), key=off):
        gpu, source, (name, *size), measured, told, binds = row
        words = " ".join([name, *map(str, size)])
        lines.append(f"| {gpu} | {source} | {words} | {measured:,.1f} | {told:,.1f} "
                     f"| {100 * off(row):+.1f} % | {binds} |")  # fmt: skip
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("mode", nargs="?", choices=("prepare", "predict", "measure"))
    parser.add_argument("sets", nargs="*", help=f"of {', '.join(SETS)}; else all")
    parser.add_argument("--mirrors", type=Path, default=Path("mirrors"), help="of bare repositories")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", default="others.json")
    parser.add_argument("--limit", type=float, default=300, help="seconds, of measure")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    cases = [case for name in options.sets or SETS for case in SETS[name].CASES]
    if options.table:
        return print(table())
    if options.mode == "prepare":
        for name in options.sets or ("samples", "tutorials"):
            SETS[name].prepare(options.mirrors.resolve())
        return
    if options.mode == "predict":
        return run_predictions(cases, options.processes)
    if options.mode == "measure":
        return measure(cases, options.out, options.limit)
    parser.error("prepare, predict, measure or --table")


if __name__ == "__main__":
    main()
