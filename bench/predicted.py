"""Times that were predicted without a GPU, beside times that were recorded on one.

    python bench/predicted.py predict [--only seen] [--limit SECONDS] [--processes 2]  # rows that are not there
    python bench/predicted.py summary                         # again, from the rows that are there
    python bench/predicted.py shares                          # of what each warp of a pipeline does
    python bench/predicted.py lesson                          # lesson 9's variant and two others, today
    python bench/predicted.py --table                         # the tables of bench/PREDICTED.md

Each row of these files is bound as on the GPU, the blocks of one SM are emulated, and ``measure.predict`` plays
them on the model of an SM. Rows of the pattern local(2) count as seen: by those the model was made. All other
patterns are held back (bench/PREDICTED.md). Rows come in a random order, so that a part of them speaks for all.
A persistent kernel of a large batch is emulated with a part of it;
``error``: predicted / measured - 1. Rows whose configuration is another today are left out, and so are peers
and "auto".
"""

import argparse
import functools
import itertools
import json
import random
import runpy
import statistics
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from numba_deform.compiler.cache import save
from numba_deform.engines.sass.units import CONSTANTS, H100, HOPPER
from numba_deform.measure import record, timeline
from numba_deform.measure.bench import parse_entries
from numba_deform.measure.case import Case
from numba_deform.measure.predict import TIE, emulate_bound, predict, resident_blocks
from numba_deform.measure.systems import plan_operator
from numba_deform.workloads.presets import preset

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
RESULT = RESULTS / "predicted.json"
LESSON = "level_ring_bench"  # lesson 9's variant and two others, timed on an H200
SHARES = "timeline_phase2"  # what each warp of phase2 does on the seeds' shape, recorded on an H200
FILES = ("sweep_stages_encoder", "tune_encoder", "types_decoders", "types_encoders", "types_seeds",
         "pipelines_detr", "pipelines_seeds", "counted")  # fmt: skip
MOST_SAMPLES = 3_000_000  # of a launch of a persistent kernel; larger batches go in parts
APART = 0.05  # pairs that differ by less are none
OWN = ("binds", "busy", "reasons", "parts", "instructions", "seconds")  # of a prediction, beside the time
COUNTED = RESULTS / "counted.json"  # what warps wait for, by Nsight Compute
# Nsight Compute's reasons and the model's, in common: it has no words for mbarriers and the copy engine,
# and where the model holds a warp back before the data path, a GPU may have it wait for the result.
GROUPS = {
    "memory": "long_scoreboard short_scoreboard mio_throttle lg_throttle tex_throttle mbarrier copy_engine",
    "issue": "selected not_selected", "stalls": "wait branch_resolving dispatch_stall no_instruction",
    "units": "math_pipe_throttle", "barrier": "barrier",
}  # fmt: skip
FAR = 0.15  # rows that are further off stand in the page's table
KEYS = ("file", "workload", "pattern", "dtype", "num_query", "variant")


def is_seen(row):
    """Whether a row may have been looked at before the model was as it is."""
    return row["pattern"] == "local(2)"


def recorded(files=FILES):
    """The rows to predict, with what was measured."""
    rows = []
    for file in files:
        document = json.loads((RESULTS / f"{file}.json").read_text())
        for row in document["rows"]:
            milliseconds = row.get("median_ms") or row.get("duration_ns", 0) / 1e6
            ours = row.get("kind", "variant") == "variant" and row["variant"] != "auto"
            if not ours or "linked" in row["variant"] or not milliseconds:
                continue
            found = {"file": file, "dtype": "float16", "num_query": None}
            found |= {key: row[key] for key in KEYS if key in row}
            gpu = document["machine"]["gpu"].split(" (")[0].removeprefix("NVIDIA ")
            rows.append(found | {"gpu": gpu, "measured_us": 1e3 * milliseconds, "config": row.get("config")})
    return rows


@functools.lru_cache(maxsize=2)
def case_of(workload, pattern, dtype, num_query, parts):
    given = {"num_query": num_query} if num_query else {}
    chosen = preset(workload, pattern=pattern, dtype=dtype, **given)
    return Case(chosen.replace(batch=chosen.batch // parts).generate(1))


def bound_of(row, parts):
    """(case, Bound) of a row, with the part of its batch."""
    case = case_of(row["workload"], row["pattern"], row["dtype"], row["num_query"], parts)
    name, *words = row["variant"].split()
    entry = parse_entries(name + ":" * bool(words) + ",".join(words))[0]
    return case, case.bind(entry.variant, dict(entry.parameters), resident=resident_blocks)[0]


def predicted(row):
    """The row with what is predicted, or why it is not."""
    started, config = time.perf_counter(), row.pop("config")
    row |= {"held_back": not is_seen(row)}
    try:
        case, bound = bound_of(row, 1)
        if not is_same(config, bound.config):
            return row | {"left_out": "its configuration is another today"}
        held, parts = resident_blocks(bound.kernel, bound.shared_bytes), 1
        batch, samples = case.problem.batch, int(np.prod(case.arrays[2].shape))
        if bound.blocks <= held:
            parts = next(d for d in range(1, batch + 1)
                         if batch % d == 0 and (samples / d <= MOST_SAMPLES or d == batch))  # fmt: skip
            case, bound = bound_of(row, parts) if parts > 1 else (case, bound)
        run, _ = emulate_bound(case, bound, timed=True)
        found = predict(run, H100 if row["gpu"].startswith("H100") else HOPPER, repeats=parts, own=True)
    except Exception as error:
        return row | {"left_out": f"{type(error).__name__}: {error}"[:200]}
    return row | {
        "predicted_us": found.microseconds, "error": found.microseconds / row["measured_us"] - 1,
        "interval_us": [*found.interval],
        "binds": found.binds, "busy": {unit: round(share, 3) for unit, share in found.busy.items()},
        "reasons": {reason: round(share, 3) for reason, share in found.reasons.items()}, "parts": parts,
        "instructions": run.counts.total("executed"), "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def again(row, rows):
    """The row with what was predicted for the same launch on such a GPU in another file, if it was."""
    names = "workload", "pattern", "dtype", "variant", "gpu"
    for other in rows:
        same = [row[name] for name in names] == [other[name] for name in names]
        if same and "error" in other and None in (row["num_query"], other["num_query"], row["config"]):
            row.pop("config")
            own = {name: other[name] for name in (*OWN, "predicted_us")}
            return row | own | {"held_back": other["held_back"],
                                "error": other["predicted_us"] / row["measured_us"] - 1}  # fmt: skip
    return row


def is_same(config, own):
    """Whether a recorded configuration, of JSON or a text, is today's."""
    if config is None or isinstance(config, str):
        return config in (None, str(own))
    plain = json.loads(json.dumps({name: getattr(own, name, None) for name in config}, default=str))
    return plain == config


def key_of(row):
    return tuple(row[key] for key in KEYS)


def run(files, limit, held_back, processes):
    """Predict the rows that are not there, for so many seconds; those held back, those seen, or (None) all."""
    there = {key_of(row): row for row in json.loads(RESULT.read_text())["rows"]} if RESULT.exists() else {}
    wanted = [row for row in recorded(files) if key_of(row) not in there]
    wanted = [row for row in wanted if held_back in (None, not is_seen(row))]
    random.Random(0).shuffle(wanted)
    started = time.monotonic()
    with ProcessPoolExecutor(processes, max_tasks_per_child=24) as pool:
        for begin in range(0, len(wanted), step := 4 * processes):
            if limit and time.monotonic() - started > limit:
                break
            batch = [again(row, there.values()) for row in wanted[begin : begin + step]]
            ready = [row for row in batch if "error" in row]
            for row in [*ready, *pool.map(predicted, [row for row in batch if "error" not in row])]:
                there[key_of(row)] = row
                told = f"{row['error']:+.1%}" if "error" in row else row["left_out"]
                print(*key_of(row), told, row.get("seconds"), flush=True)
            write(list(there.values()))


def predict_shares():
    """[{warp, what it does, the share of its time that it was measured to take, and that is predicted}]. One
    image of the batch stands for all: each block goes on with the same work."""
    measured = json.loads((RESULTS / f"{SHARES}.json").read_text())["rows"]
    plan = plan_operator(preset("seeds").replace(batch=1).generate(1), "phase2", "cpu", trace=True)
    found = timeline.shares(timeline.record(plan, model=True))
    return [{"warp": row["warp"], "activity": activity, "measured": share,
             "predicted": round(found[row["warp"]].get(activity, 0.0), 3)}
            for row in measured for activity, share in row["share"].items()]  # fmt: skip


def predict_lesson():
    """Add what the model says today of lesson 9's variant, which its notebook registers, and of two others, to
    what it said before a GPU had run that."""
    runpy.run_path(str(ROOT / "notebooks" / "09_your_variant.py"))
    file = RESULTS / "level_ring.json"
    document = json.loads(file.read_text())
    for row, today in zip(document["rows"], map(predicted, recorded((LESSON,))), strict=True):
        assert row["variant"] == today["variant"]
        row["today_us"] = today["predicted_us"]
    save(file, document)


def write(rows, shares=None):
    if shares is None:
        shares = json.loads(RESULT.read_text()).get("shares", []) if RESULT.exists() else []
    record.write(RESULT, None, rows, summary=summary(rows), shares=shares)


def summary(rows):
    """{name of a part of the rows: its figures}"""
    rows = [row for row in rows if "error" in row]
    parts = {
        "seen": [row for row in rows if not row["held_back"]],
        "held back": [row for row in rows if row["held_back"]],
        "held back, H200": [row for row in rows if row["held_back"] and row["gpu"] == "H200"],
        "held back, H100": [row for row in rows if row["held_back"] and "H100" in row["gpu"]],
    }
    return {name: figures(part) for name, part in parts.items() if part}


def figures(rows):
    errors = sorted(abs(row["error"]) for row in rows)
    factors = sorted(row["measured_us"] / row["predicted_us"] for row in rows)
    right = wrong = apart_right = apart = ranked_right = ranked = 0
    groups = defaultdict(list)
    for row in rows:
        groups[key_of(row)[:-1]].append(row)
    for a, b in (pair for group in groups.values() for pair in itertools.combinations(group, 2)):
        product = (a["measured_us"] - b["measured_us"]) * (a["predicted_us"] - b["predicted_us"])
        right, wrong = right + (product > 0), wrong + (product < 0)
        high, low = max(a["measured_us"], b["measured_us"]), min(a["measured_us"], b["measured_us"])
        if high / low - 1 > APART:
            apart, apart_right = apart + 1, apart_right + (product > 0)
        high, low = max(a["predicted_us"], b["predicted_us"]), min(a["predicted_us"], b["predicted_us"])
        if high / low - 1 > TIE:
            ranked, ranked_right = ranked + 1, ranked_right + (product > 0)
    return {
        "rows": len(rows), "median_percent": 100 * statistics.median(errors), "worst_percent": 100 * errors[-1],
        "within_12_percent": sum(error <= 0.12 for error in errors),
        "within_30_percent": sum(error <= 0.30 for error in errors), "pairs_apart": apart,
        "pairs_in_order": apart_right / apart if apart else None,
        "ranked": ranked, "ranked_in_order": ranked_right / ranked if ranked else None,
        "kendall_tau": (right - wrong) / (right + wrong) if right + wrong else None,
        "measured_by_predicted": [factors[int(share * (len(factors) - 1))] for share in (0.05, 0.5, 0.95)],
        "most_seconds": max(row["seconds"] for row in rows),
    }  # fmt: skip


def waits():
    """[(variant, {group of reasons: its mean share, measured and predicted})] of the rows of COUNTED."""
    measured = {key_of({"file": "counted", "dtype": "float16", "num_query": None, **row}): row["stalls"]
                for row in json.loads(COUNTED.read_text())["rows"]}  # fmt: skip
    pairs = defaultdict(list)
    for row in json.loads(RESULT.read_text())["rows"]:
        if "reasons" in row and key_of(row) in measured:
            pairs[row["variant"]].append((measured[key_of(row)], row["reasons"]))

    def share(reasons, names):
        return sum(value for reason, value in reasons.items() if reason in names.split())

    return [(variant, {group: [statistics.mean(share(pair[k], names) for pair in found) for k in (0, 1)]
                       for group, names in GROUPS.items()}) for variant, found in pairs.items()]  # fmt: skip


def constants():
    """Markdown: the constants of the model."""
    lines = ["| name | value | what | from |", "|---|---|---|---|"]
    return "\n".join(lines + [f"| {name} | {value:g} | {what} | {source} |"
                               for name, (value, what, source) in CONSTANTS.items()])  # fmt: skip


def table():
    """Markdown: the figures, the rows that are far off, shares of what warps do and wait for."""
    document = json.loads(RESULT.read_text())
    heads = ("rows", "how many", "median error", "worst", "within 30 %", "pairs in order", "no tie, in order",
             "Kendall's tau")  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, found in document["summary"].items():
        lines.append(
            f"| {name} | {found['rows']} | {found['median_percent']:.1f} % | {found['worst_percent']:.0f} % "
            f"| {found['within_30_percent']} | {_told(found['pairs_in_order'])} of {found['pairs_apart']} "
            f"| {_told(found['ranked_in_order'])} of {found['ranked']} "
            f"| {_told(found['kendall_tau'])} |")  # fmt: skip
    heads = ("file", "workload", "pattern", "type", "variant", "measured, us", "predicted, us", "off", "binds")
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for row in sorted(document["rows"], key=lambda row: -abs(row.get("error", 0))):
        if abs(row.get("error", 0)) < FAR:
            break
        cells = [row["file"], row["workload"], row["pattern"], row["dtype"], row["variant"]]
        cells += [f"{row['measured_us']:,.1f}", f"{row['predicted_us']:,.1f}", f"{100 * row['error']:+.1f} %"]
        cells.append(row["binds"])
        lines.append(f"| {' | '.join(cells)} |")
    heads = "warp", "activity", "measured", "predicted"
    lines += ["", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {row['warp']} | {row['activity']} | {row['measured']:.1%} | {row['predicted']:.1%} |"
              for row in document["shares"]]  # fmt: skip
    lines += ["", f"| variant | {' | '.join(GROUPS)} |", "|---" * (1 + len(GROUPS)) + "|"]
    lines += [f"| {variant} | {' | '.join(f'{a:.0%} / {b:.0%}' for a, b in found.values())} |"
              for variant, found in waits()]  # fmt: skip
    return "\n".join(lines)


def _told(number):
    return "" if number is None else f"{number:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", nargs="?", choices=("predict", "summary", "shares", "lesson"))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", choices=("held-back", "seen"))
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.step == "predict":
        run(given.files or FILES, given.limit, given.only and given.only == "held-back", given.processes)
    elif given.step == "summary":
        write(json.loads(RESULT.read_text())["rows"])
    elif given.step == "shares":
        write(json.loads(RESULT.read_text())["rows"], predict_shares())
    elif given.step == "lesson":
        predict_lesson()
    if given.table:
        print(table(), constants(), sep="\n\n")


if __name__ == "__main__":
    main()
