"""The profiler's counts beside Nsight Compute's, of the machine code that the GPU runs.

    python bench/counted.py measure --out FOLDER           # on a GPU with ncu: what it and the emulator count
    python bench/counted.py emulate --out FOLDER           # again, what the emulator counts
    python bench/counted.py compare FOLDER [EMULATED] --out bench/results/counted.json
    python bench/counted.py again EMULATED                 # L1 and L2 in counted.json by those, without FOLDER
    python bench/counted.py --table                        # the tables of bench/PROFILE.md

Each variant, with the configuration that the GPU has, on two presets in three patterns. Nsight Compute counts a
launch of each: who asks L2 (``l2_sectors``: the SMs' L1, and the other half of L2), what warps wait for
(``stalls``), and of the first pattern wavefronts by kind of access; another run counts each instruction's
executions, and is so slow that warps which poll do so more often. Beside it the same machine code runs in
``engines.sass``: of a kernel with a block for each few rows the blocks of one SM from three places of the grid,
of a persistent one all its blocks there, so that L1 sees what an SM's does. ``off_percent``: counted / measured
- 1. ``by_instruction`` and ``by_line``: the sum of the differences of executions, as a share of all, over
instructions and over lines. What was emulated again, on another machine, is taken from EMULATED, but not its
lines; ``same_code``: its opcodes are those that ran on the GPU.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from numba_deform.compiler.cache import save
from numba_deform.engines.sass.counters import SECTOR
from numba_deform.engines.sass.units import SMS
from numba_deform.measure import counters, record
from numba_deform.measure.case import Case, case_on
from numba_deform.measure.predict import resident_blocks
from numba_deform.measure.profile import NSIGHT, Profile
from numba_deform.workloads.presets import preset

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "bench" / "results" / "counted.json"
VARIANTS = ("direct", "tile", "tile-cp-async", "tma", "tma-fastest", "persistent", "roles-4-4",
            "warp-specialized", "window")  # fmt: skip
CASES = [(w, p) for w in ("seeds", "detr-encoder") for p in ("local(2)", "uniform", "seed")]
ASKED = {"l1": "lts__t_sectors_srcunit_tex.sum", "fabric": "lts__t_sectors_srcunit_ltcfabric.sum",
         "all": "lts__t_sectors.sum", "gpcs": "lts__t_sectors_srcnode_gpc.sum"}  # fmt: skip
METRICS = list(dict.fromkeys([*counters.METRICS.values(), *NSIGHT.values(), *ASKED.values(),
                              "sm__cycles_elapsed.max"]))  # fmt: skip
PLACES, BLOCKS, LIMIT, AT_ONCE = 3, 24, 280, 12  # blocks at each place
SOURCES = "--section", "SourceCounters"
KINDS = "l1tex__data_pipe_lsu_wavefronts_mem_"
STALLS = "smsp__average_warps_issue_stalled_"


def serve_gpu(workload, pattern, with_lines):
    """What runs under Nsight Compute: each variant twice, of which it counts the second launch."""
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.engines.gpu.launch import profile_launch

    gpu = find_gpu()
    case = case_on(gpu, preset(workload, pattern=pattern), 1)
    for name in VARIANTS:
        bound, _ = case.bind(name, {})
        if with_lines:
            bound.kernel = bound.kernel.with_lines()
        run = case.launcher(bound)
        run()
        profile_launch(gpu, run)
        print("bound", json.dumps([name, str(bound.config), bound.blocks]), flush=True)


def serve_emulator(workload, pattern, name, file):
    """Count the same machine code without a GPU, and write what was counted."""
    from numba_deform.engines.sass import emulate

    case = Case(preset(workload, pattern=pattern).generate(1))
    bound, _ = case.bind(name, {}, resident=resident_blocks)
    of_one_sm = list(range(0, bound.blocks, SMS))
    held = resident_blocks(bound.kernel, bound.shared_bytes)
    only = of_one_sm if bound.blocks <= held else some_of(of_one_sm)
    out = np.full(case.problem.out_shape, np.nan, case.arrays[0].dtype)
    started = time.perf_counter()
    args = bound.arguments((*case.arrays, out))
    run = emulate(bound.kernel, bound.blocks, args, bound.shared_bytes, only=only)
    profile = Profile(name, run, {})
    executed, wavefronts = (profile.scale * np.asarray(x, float)
                            for x in (run.counts.executed, run.counts.wavefronts))  # fmt: skip
    code = [[one.opcode, Path(one.line[0]).name, one.line[1], executed[one.number], wavefronts[one.number]]
            for one in run.listing]  # fmt: skip
    Path(file).write_text(json.dumps({
        "config": str(bound.config), "blocks": bound.blocks, "ran": len(only), "totals": profile.totals,
        "roofline": profile.roofline, "code": code, "seconds": time.perf_counter() - started,
    }))  # fmt: skip


def some_of(blocks):
    """BLOCKS of them one behind the other in the middle of each of PLACES equal parts, or all.

    The first ones of a grid would all lie at the picture's upper edge, where boxes bring fewer bytes."""
    if len(blocks) <= PLACES * BLOCKS:
        return blocks
    starts = [len(blocks) * (2 * place + 1) // (2 * PLACES) - BLOCKS // 2 for place in range(PLACES)]
    return [block for start in starts for block in blocks[start : start + BLOCKS]]


def measure(folder, ncu):
    """Everything that needs the GPU's machine: texts in a folder, one of each run; by ``ncu``, where there is
    one, and by the emulator."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths}

    def child(command, file, limit=LIMIT):
        started = time.perf_counter()
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit)
            text = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            text = f"no end within {limit} s"
        if file:
            file.write_text(text)
        seconds, wrong = round(time.perf_counter() - started, 1), text[-200:] if "rror" in text else ""
        print(" ".join(command[-3:]), seconds, "s", wrong, flush=True)

    this = [sys.executable, __file__]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        jobs = [pool.submit(child, [*this, "emulator", w, p, v, str(folder / f"{w}.{p}.{v}.json")], None)
                for w, p in reversed(CASES) for v in VARIANTS]  # fmt: skip
        ncu = ncu and [ncu, "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off",
                       "--csv"]  # fmt: skip
        for workload, pattern in CASES if ncu else ():
            raw = ["--page", "raw", "--print-units", "base", "--metrics", ",".join(METRICS)]
            child([*ncu, *raw, *this, "gpu", workload, pattern], folder / f"{workload}.{pattern}.raw")
            for of, kind in ((STALLS, "stalls"), (KINDS, "kinds")):
                raw[-1] = f"regex:{of}.*"
                if kind == "stalls" or pattern == CASES[0][1]:
                    file = folder / f"{workload}.{pattern}.{kind}"
                    child([*ncu, *raw, *this, "gpu", workload, pattern], file)
        for workload, pattern in CASES if ncu else ():
            source = ["--page", "source", *SOURCES]
            words = [*ncu, *source, *this, "lines", workload, pattern]
            child(words, folder / f"{workload}.{pattern}.source")
        for job in jobs:
            job.result()


def tables_of(text):
    """The tables of ``ncu --page source --csv``, one for each kernel: lists of rows by column."""
    tables, lines = [], text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith('"Address"')]
    for start in starts:
        rows = [lines[start]]
        for line in lines[start + 1 :]:
            if not line.startswith('"0x'):
                break
            rows.append(line)
        tables.append(list(csv.DictReader(rows)))
    return tables


def opcodes(table):
    """Those of ``tables_of``'s rows, without guards."""
    return [next(word for word in row["Source"].split() if word[0] != "@") for row in table]


def number(text):
    return float((text or "0").replace(",", "") or 0)


def by_source(table, code):
    """How far executions are off by instruction and by line, and the wavefronts that are missing most."""
    column = next(name for name in table[0] if "Instructions Executed" in name and "Thread" not in name)
    there = np.array([number(row[column]) for row in table])
    here = np.array([row[3] for row in code])
    found = {"instructions_there": len(there), "instructions_here": len(here)}
    if len(there) < len(here):
        return found
    rest = there[len(here) :]
    there = there[: len(here)]
    found |= {"executed_behind_the_listing": float(rest.sum())}
    found["by_instruction_percent"] = 100 * float(np.abs(there - here).sum() / there.sum())
    lines = defaultdict(lambda: [0.0, 0.0])
    for (_, file, line, *_), a, b in zip(code, there, here, strict=True):
        lines[file, line][0] += a
        lines[file, line][1] += b
    found["by_line_percent"] = 100 * sum(abs(a - b) for a, b in lines.values()) / float(there.sum())
    worst = sorted(lines.items(), key=lambda item: -abs(item[1][0] - item[1][1]))[:3]
    found["worst_lines"] = [[f"{f}:{n}", a, b] for (f, n), (a, b) in worst]
    return found


def compare(folder, again, out):
    rows = []
    for workload, pattern in CASES:
        raw = (folder / f"{workload}.{pattern}.raw").read_text()
        kernels = counters.parse(raw)
        bound = [json.loads(line.split(" ", 1)[1]) for line in raw.splitlines() if line.startswith("bound ")]
        kinds = folder / f"{workload}.{pattern}.kinds"
        by_kind = counters.parse(kinds.read_text()) if kinds.exists() else []
        stalled = folder / f"{workload}.{pattern}.stalls"
        stalls = counters.parse(stalled.read_text()) if stalled.exists() else []
        source = folder / f"{workload}.{pattern}.source"
        tables = tables_of(source.read_text()) if source.exists() else []
        for n, ((name, config, blocks), kernel) in enumerate(zip(bound, kernels, strict=True)):
            row = {"workload": workload, "pattern": pattern, "variant": name, "config": config}
            row |= {"blocks": blocks}
            measured = {ours: number(kernel[theirs]) for ours, theirs in NSIGHT.items() if theirs in kernel}
            row |= {"duration_ns": number(kernel["gpu__time_duration.sum"]),
                    "cycles": number(kernel["sm__cycles_elapsed.max"]), "measured": measured}  # fmt: skip
            row["l2_sectors"] = {name: number(kernel[theirs]) for name, theirs in ASKED.items()}
            if stalls:
                row["stalls"] = shares_of(stalls[n])
            if by_kind:
                row["wavefronts"] = {key[len(KINDS) : -len(".sum")]: number(value)
                                     for key, value in by_kind[n].items()
                                     if key.startswith(KINDS) and key.endswith(".sum") and number(value)}
            file = folder / f"{workload}.{pattern}.{name}.json"
            if file.exists():
                here = first = json.loads(file.read_text())
                if again and (newer := again / file.name).exists():
                    here = json.loads(newer.read_text())
                same = here["config"] == config and here["blocks"] == blocks
                row["same_config"] = same
                row |= counted_of(here, measured)
                if len(tables) == len(bound):
                    row |= by_source(tables[n], first["code"])
                    row["same_code"] = opcodes(tables[n])[: len(here["code"])] == [c[0] for c in here["code"]]
            rows.append(row)
            print(json.dumps(row))
    machine = json.loads((folder / "machine.json").read_text())
    record.write(out, None, rows)
    Path(out).write_text(json.dumps({**json.loads(Path(out).read_text()), **machine}, indent=1) + "\n")


def shares_of(kernel):
    """{reason: share of all warps' time} by Nsight Compute's averages of warps that wait when one issues."""
    ends = "_per_issue_active.ratio"
    found = {name[len(STALLS) : -len(ends)]: number(value) for name, value in kernel.items()
             if name.startswith(STALLS) and name.endswith(ends)}  # fmt: skip
    return {reason: value / sum(found.values()) for reason, value in found.items() if value}


def counted_of(here, measured):
    """What a row says of an emulator's run, beside what was measured."""
    off = {ours: 100 * (here["totals"][ours] / value - 1)
           for ours, value in measured.items() if value and here["totals"][ours]}  # fmt: skip
    return {"ran": here["ran"], "counted": {ours: here["totals"][ours] for ours in NSIGHT},
            "roofline_cycles": max(here["roofline"].values()),
            "binds": max(here["roofline"], key=here["roofline"].get), "off_percent": off}  # fmt: skip


def again(folder):
    """Put into RESULT what depends on the blocks that run, as they were emulated once more with the same
    configuration; instructions stay those of the compiler release that the GPU's machine has."""
    document = json.loads(RESULT.read_text())
    for row in document["rows"]:
        file = folder / f"{row['workload']}.{row['pattern']}.{row['variant']}.json"
        here = json.loads(file.read_text()) if file.exists() else {}
        if (here.get("config"), here.get("blocks")) != (row["config"], row["blocks"]):
            continue
        row["ran_again"], found = here["ran"], counted_of(here, row["measured"])
        for name in ("l2_bytes", "l1_hit_percent"):
            for part in ("counted", "off_percent"):
                row[part][name] = found[part][name]
    save(RESULT, document)


def table():
    """Markdown: how far each count is off, by variant; and lines."""
    rows = json.loads(RESULT.read_text())["rows"]
    heads = ("workload", "pattern", "variant", "instructions", "LSU wavefronts", "sectors", "L1 hits, points",
             "L2 bytes", "of SMs", "by line", "cycles: roofline / measured")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in rows:
        off = row.get("off_percent", {})
        cells = [row["workload"], row["pattern"], row["variant"] + " *" * (row.get("same_code") is False)]
        cells += [f"{off[k]:+.1f} %" if k in off else ""
                  for k in ("instructions", "lsu_wavefronts", "global_sectors")]  # fmt: skip
        here, there = row.get("counted", {}).get("l1_hit_percent"), row["measured"].get("l1_hit_percent")
        cells += [f"{here - there:+.1f}" if here is not None and there is not None else ""]
        cells += [f"{off['l2_bytes']:+.1f} %" if "l2_bytes" in off else ""]
        asked = row.get("counted", {}).get("l2_bytes", 0) / SECTOR / row["l2_sectors"]["l1"]
        cells += [f"{100 * (asked - 1):+.1f} %" if asked else ""]
        cells += [f"{row['by_line_percent']:.2f} %" if "by_line_percent" in row else ""]
        cells += [f"{row['roofline_cycles'] / row['cycles']:.2f}, {row['binds']}" if "binds" in row else ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = "measure", "emulate", "compare", "again", "gpu", "lines", "emulator"
    parser.add_argument("step", nargs="?", choices=steps)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        print(table())
    elif given.step == "measure":
        from numba_deform.engines.gpu.device import find_gpu

        given.out.mkdir(parents=True, exist_ok=True)
        document = record.document(find_gpu(), [])
        (given.out / "machine.json").write_text(json.dumps({k: v for k, v in document.items() if k != "rows"}))
        measure(given.out, counters.find_ncu())
    elif given.step == "emulate":
        given.out.mkdir(parents=True, exist_ok=True)
        measure(given.out, None)
    elif given.step == "compare":
        compare(Path(given.words[0]), Path(given.words[1]) if given.words[1:] else None, given.out)
    elif given.step == "again":
        again(Path(given.words[0]))
    elif given.step == "emulator":
        serve_emulator(*given.words)
    else:
        serve_gpu(*given.words, given.step == "lines")


if __name__ == "__main__":
    main()
