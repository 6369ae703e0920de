"""The CUDA C++ programs that this project grew from, on the CPU engine: their own host code, their own kernels.

    python bench/originals.py --mirrors FOLDER --work FOLDER --out bench/results/originals.json [NAME ..]
    python bench/originals.py --table            # the table in bench/ORIGINS.md from the result

Sources come from the public repository by commit, into ``--work``, and are compiled by nvcc; a header gives the
host code of CUDA 12 the names that CUDA 13 has dropped. Shapes are the programs' own but for the queries: 64 of
them, and 2 pictures. Each launch is judged with maps in global memory as they are, and again with the waiver
for that. A mend is a substitution in the program's text; it shows what stands behind the first fault.
"""

import json
from pathlib import Path

import numpy as np
from cuda_programs.command import main
from cuda_programs.judge import Case, record_of, run
from cuda_programs.sources import checkout

from numba_deform.measure import record

REPOSITORY = "DrXuQian/ai-benchmark"
HERE = Path(__file__).parent
RESULT = HERE / "results" / "originals.json"
HEAD = "2b0fd093"
BATCH, QUERIES, LEVELS, POINTS, CHANNELS, PIXELS = 2, 64, 4, 8, 32, 20522
SHAPES = np.array([[92, 160], [46, 80], [23, 40], [12, 20]], np.int64)
STARTS = np.array([0, 15228, 19164, 20214], np.int64)  # of the levels with their borders
KEYS = dict(batch=BATCH, spatial_size=PIXELS, num_query=QUERIES, num_heads=1, channels=CHANNELS,
            num_levels=LEVELS, num_points=POINTS, im2col_step=BATCH, dir="working")  # fmt: skip
# What keeps a fast lane from the next load while a slow one reads: the mend of RefillRace.
IN_STEP = (r"^\s*if (\(is_loader_thread and within_range\))", r"__syncwarp(); if \1")
BY_VALUE = ("auto& next_point_meta = ", "auto next_point_meta = ")  # what the notes' broken version had
STRIDES = (r"^\s*sizeof\(dtype\),\n", "")
# (what it is, commit, file, mends)
FULL = (
    ("baseline", HEAD, "deform_attn.cu", ()),
    ("tma, first working version", "4e6a31ee", "deform_attn_tma.cu", ()),
    ("tma, lanes kept in step", "4e6a31ee", "deform_attn_tma.cu", (IN_STEP,)),
    ("tma, two stages", "2d7be87d", "deform_attn_tma.cu", ()),
    ("tma, two stages, lanes kept in step", "2d7be87d", "deform_attn_tma.cu", (IN_STEP,)),
    ("tma, metadata by reference", "8ca544f3", "deform_attn_tma.cu", ()),
    ("tma, metadata by reference, lanes kept in step", "8ca544f3", "deform_attn_tma.cu", (IN_STEP,)),
    ("tma, metadata by value, lanes kept in step", "8ca544f3", "deform_attn_tma.cu", (IN_STEP, BY_VALUE)),
    ("tma, tiles padded against bank conflicts", "abb240e9", "deform_attn_tma.cu", ()),
    ("persistent", "3b705707", "deform_attn_tma_persistent.cu", ()),
    ("warp specialization, phase 2", "7f78c979", "deform_attn_tma_warp_spec_phase2.cu", ()),
    ("cp.async", "3b705707", "deform_attn_cp_async_v2.cu", ()),
    ("tma, maps for each picture", "3b705707", "deform_attn_tma_match_original.cu", ()),
    ("tiles without TMA", "3b705707", "deform_attn_2x2x32_optimized.cu", ()),
)
SMALL = (  # programs of fixed shapes: the first two blocks
    ("one tile", "tma_baseline_single_load.cu", ()),
    ("eight tiles at once", "tma_concurrent_8loads.cu", ()),
    ("a barrier for each warp", "tma_concurrent_warp_barrier.cu", ()),
    ("four levels, a barrier for each warp", "tma_multiscale_warp_barrier.cu", ()),
    ("four levels, 48 pictures", "tma_multiscale_multibatch.cu", ()),
    ("every fourth thread loads", "tma_multiscale_stride4_loaders.cu", ()),
    ("as deform_attn.cu, every fourth thread loads", "tma_multiscale_stride4_deform.cu", ()),
    ("the same, strides of its maps mended", "tma_multiscale_stride4_deform.cu", (STRIDES,)),
    ("timing of loads", "benchmark_tma_loading.cu", ()),
    ("bilinear sampling by 8 warps", "verified_tests/test_8warp_bilinear_sampling.cu", ()),
    ("several loads of a warp", "verified_tests/test_multi_tma_in_warp.cu", ()),
    ("layout of a tile", "verified_tests/verify_tma_layout.cu", ()),
)


def data(folder):
    """Write the files that the programs read, of random values, and return (values, locations, weights)."""
    folder = folder / "working"
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    value = random.standard_normal((48, PIXELS, CHANNELS), np.float32).astype(np.float16)
    locations = random.random((48, 1000, LEVELS, POINTS, 2), np.float32).astype(np.float16)
    weights = random.random((48, 1000, LEVELS, POINTS), np.float32)
    weights = (weights / weights.sum((2, 3), keepdims=True)).astype(np.float16)
    named = dict(value=value, sampling_locations=locations, attention_weights=weights, spatial_shapes=SHAPES,
                 level_start_index=STARTS)  # fmt: skip
    for name, array in named.items():
        array.tofile(folder / f"{name}.bin")
        other = folder / f"test_data_{name}.bin"
        other.unlink(missing_ok=True)
        other.symlink_to(f"{name}.bin")
    return value, locations, weights


def expected(value, locations, weights):
    """The operator in float64, as the programs define it: x * W + 0.5 is a pixel of a level with its border."""
    out = np.zeros((BATCH, QUERIES, CHANNELS))
    shape = BATCH, QUERIES, LEVELS, POINTS
    flat = locations.reshape(-1, 2)[: np.prod(shape)].reshape(*shape, 2)
    scale = weights.reshape(-1)[: np.prod(shape)].reshape(shape)
    for level, (h, w) in enumerate(SHAPES):
        start = STARTS[level]
        pixels = value[:BATCH, start : start + (h + 2) * (w + 2)].astype(float).reshape(BATCH, h + 2, w + 2, -1)
        x, y = (flat[:, :, level, :, i].astype(float) * n + 0.5 for i, n in ((0, w), (1, h)))
        left, top = np.floor(x).astype(int), np.floor(y).astype(int)
        picture = np.arange(BATCH)[:, None, None]
        for dy in (0, 1):
            for dx in (0, 1):
                part = (1 - abs(x - left - dx)) * (1 - abs(y - top - dy)) * scale[:, :, level]
                out += np.einsum("bqp,bqpc->bqc", part, pixels[picture, top + dy, left + dx])
    return out


def cases(work, mirrors):
    """The Cases: of each program as it is, and with the waiver for its maps."""
    words = [f"{key}={value}" for key, value in KEYS.items()]
    rows = [(*row, dict(words=words, keep=-1)) for row in FULL]
    rows += [(what, HEAD, file, mends, dict(blocks=[0, 1])) for what, file, mends in SMALL]
    for what, commit, file, mends, more in rows:
        folder = checkout(REPOSITORY, commit, ["tma_experiments/*.cu"], work / commit, mirrors)
        name = what.replace(",", "").replace(" ", "-").replace(".", "-")
        options = ["-std=c++17", "-include", str(HERE / "cuda_programs" / "cuda12.h")]
        source = str(folder / "tma_experiments" / file)
        yield what, commit, file, Case(name, source, options, folder=str(work), mends=list(mends), **more)


def measure(args):
    work = args.work.resolve()
    truth, rows = expected(*data(work)), record_of(args.out, args.names)
    for what, commit, file, case in cases(work, args.mirrors.resolve()):
        if args.names and not any(name in what for name in args.names):
            continue
        rows[:] = [row for row in rows if row["what"] != what]
        first = run(case, work / "built")
        row = dict(what=what, commit=commit, file=file, mended=len(case.mends), run=first)
        if any(one["verdict"] == "MissingTensormapFence" for one in first.get("launches", ())):
            case.waive = ["map-fence"]
            row["waived"] = run(case, work / "built")
        kept = work / "built" / f"{case.name}.npy"
        last = row.get("waived", first)
        if case.keep and kept.exists() and last.get("launches") and last["launches"][0]["verdict"] == "silent":
            out = np.load(kept).view(np.float16)[: truth.size].reshape(truth.shape).astype(float)
            row["error"] = float(abs(out - truth).max() / abs(truth).max())
        rows.append(row)
        print(what, verdict(first), "|", verdict(row["waived"]) if "waived" in row else "", flush=True)
        record.write(args.out, None, rows, repository=REPOSITORY, shape=KEYS)


def verdict(run):
    """What was said, in a few words of a table."""
    if "compile_error" in run:
        return f"does not compile: {run['compile_error']}"
    if run.get("refused") or run.get("error"):
        return str(run.get("refused") or run["error"])
    words = [f"{count} tensor maps refused: {why}" for why, count in run.get("maps_refused", {}).items()]
    for one in run["launches"]:
        at = f", line {one['line']}: {one['says']}" if "line" in one else ""
        words.append(f"{one['verdict']}{at}")
    return "; ".join(dict.fromkeys(words)) or "no launch"


def table():
    rows = json.loads(RESULT.read_text())["rows"]
    lines = ["| program | file at commit | engine | with `map-fence` waived | error |", "|---|---|---|---|---|"]
    for row in rows:
        error = f"{row['error']:.4f}" if "error" in row else ""
        waived = verdict(row["waived"]) if "waived" in row else ""
        what = f"`{row['file']}` at {row['commit']}"
        lines.append(f"| {row['what']} | {what} | {verdict(row['run'])} | {waived} | {error} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, "originals", RESULT, measure, table)
