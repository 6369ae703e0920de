"""Real bugs before and after their public fixes, on the CPU engine.

    python bench/real_bugs.py --mirrors FOLDER --work FOLDER --out bench/results/real_bugs.json [NAME ..]
    python bench/real_bugs.py --table            # the table in bench/PTX_PROGRAMS.md from the result

Each row compiles one small program of ours (``real_bugs/``) with the project's own headers, or a part of one,
as they are before the fix and at it. Where the defect is in generated code, the program has it by hand.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from cuda_programs.command import is_asked_for, main
from cuda_programs.judge import Case, record_of, run
from cuda_programs.sources import checkout

from numba_deform.measure import record

HERE = Path(__file__).parent
RESULT = HERE / "results" / "real_bugs.json"
CUTLASS = "NVIDIA/cutlass"
CUTE = ["-std=c++17", "--expt-relaxed-constexpr", "-I{tree}/include", "-I{tree}/tools/util/include", "-I{tree}"]
# A part of TransformerEngine's kernel for Blackwell, of whose headers those of device code are taken.
ENGINE, HADAMARD, BELOW = "NVIDIA/TransformerEngine", "57b5b6076", "transformer_engine/common"
ENGINE_PATHS = tuple(f"{BELOW}/{path}" for path in ("hadamard_transform", "util/ptx.cuh", "utils.cuh"))
ENGINE_OPTIONS = ("-std=c++17", "--expt-relaxed-constexpr", "-gencode=arch=compute_100a,code=compute_100a",
                  "-I{tree}/transformer_engine",
                  f"-I{{tree}}/{BELOW}/hadamard_transform")  # fmt: skip
EXCERPT = (f"{BELOW}/hadamard_transform/hadamard_transform.cu", "^constexpr int kThreadsPerWarp",
           "^template <typename T, int kHadamardDimension,")  # fmt: skip


@dataclass
class Bug:
    """``name``: where the public can read of it; ``source`` in ``real_bugs``; ``commits``: before and after the
    fix, in ``repository``, of which ``paths`` are needed; none: by hand, with a macro FIXED. ``excerpt``:
    (file, pattern of its first line, of the line behind its last), which the source includes as excerpt.cuh."""

    name: str
    what: str
    source: str
    cause: str  # the fault that the engine has to name
    words: str  # in the line that it has to blame
    repository: str = ""
    commits: tuple = ()
    paths: tuple = ()
    options: tuple = ("-std=c++17",)
    excerpt: tuple = ()
    by_hand: bool = False
    waive: tuple = ()


def by_hand(name, what, cause, words):
    number = name.rpartition(" ")[2]
    return Bug(name, what, "by_hand.cu", cause, words, options=("-std=c++17", f"-DBUG={number}"), by_hand=True)


BUGS = (
    Bug("DeepEP 657", "a stage is loaded again while its bulk store still reads it", "copy_through_stages.cu",
        "RefillRace", "tma_load_1d|cp.async.bulk|asm volatile", "deepseek-ai/DeepEP", ("099d5f2^", "099d5f2"),
        ("deep_ep/include",), ("-std=c++20", "--expt-relaxed-constexpr", "-I{tree}/deep_ep/include"),
        ("deep_ep/include/deep_ep/impls/pp_send_recv.cuh", r"^template <int kNumSMs,$",
         r"^template <int kNumSMs,\n +int kNumRanks,")),
    Bug("CUTLASS 2945", "a tutorial loads past the last tile, and ends with those loads in flight",
        "tutorial.cu", "CopyOutlivesBlock", "copy|asm volatile", CUTLASS, ("0edaa6e47^", "0edaa6e47"),
        ("include", "tools/util/include", "examples/cute/tutorial/hopper"), tuple(CUTE), waive=("init-fence",)),
    Bug("CUTLASS 2172", "a warp of a block without work waits for an arrival that nobody makes",
        "../programs/cutlass_gemm.cu", "MissingArrivals|Deadlock|DivergentBarrier|Unfinished",
        "wait|asm volatile", CUTLASS, ("6c6b78550^", "6c6b78550"), ("include", "tools/util/include"),
        (*CUTE, "-DSCHEDULE=KernelTmaWarpSpecializedPingpong", "-DBETA=1.0f", "-DBLOCKS=2")),
    Bug("CUTLASS 2030", "a pipeline's barriers are initialised without a fence", "pipeline_init.cu",
        "MissingInitFence", "copy|asm volatile", CUTLASS, ("c506e1678^", "c506e1678"), ("include",),
        tuple(CUTE)),
    Bug("Fuser 1552", "no barrier between an mbarrier's init and the first arrival", "transpose_by_mbarrier.cu",
        "InitNotOrdered", "arrive|asm volatile", "NVIDIA/Fuser", ("88727dc82^", "88727dc82"),
        ("runtime/mbarrier.cu",), ("-std=c++17", "-I{tree}"), by_hand=True),
    Bug("TransformerEngine 2695", "readers of a stage come to no proxy fence before the next load into it",
        "hadamard.cu", "MissingRefillFence", "copy_2d_to_shared|asm volatile", ENGINE,
        (f"{HADAMARD}^", HADAMARD), ENGINE_PATHS, ENGINE_OPTIONS, EXCERPT),
    by_hand("triton 10035", "a warp signals for another, which may still wait for the phase before",
            "MissedPhase", "waits on full"),
    by_hand("tilelang 2927", "the parity of a wait is the loop's, not the barrier's", "FreshBarrierPassed",
            "wait|tile"),
    by_hand("tilelang 2406", "warpgroups ask for more registers than there are", "RegisterMisuse",
            "setmaxnreg|else"),
    by_hand("tilelang 2556", "no barrier between stores and loads of 48 threads", "DataRace", "room"),
)  # fmt: skip


def tree(bug, commit, work, mirrors):
    """The folder with the project's files at a commit."""
    if not bug.repository:
        return work
    name = f"{bug.repository.replace('/', '+')}-{commit.replace('^', '-before')}"
    return checkout(bug.repository, commit, bug.paths, work / name, mirrors)


def excerpted(bug, folder, into):
    """Write the part of a file that the program includes; its lines keep their numbers."""
    file, first, end = bug.excerpt
    text = (folder / file).read_text()
    start = re.search(first, text, re.MULTILINE).start()
    stop = re.compile(end, re.MULTILINE).search(text, start + 1).start()
    into.mkdir(parents=True, exist_ok=True)
    line = text[:start].count("\n") + 1
    (into / "excerpt.cuh").write_text(f'#line {line} "{folder / file}"\n{text[start:stop]}')
    return into


def judged(bug, fixed, work, mirrors):
    """What the engine says of one side."""
    folder = tree(bug, bug.commits[fixed] if bug.commits else "", work, mirrors)
    name = f"{bug.name} {'after' if fixed else 'before'}".replace(" ", "-")
    options = [option.format(tree=folder) for option in bug.options] + ["-DFIXED"] * (bug.by_hand and fixed)
    if bug.excerpt:
        options.append(f"-I{excerpted(bug, folder, work / name)}")
    orders = 12 if bug.by_hand else 1
    case = Case(name, str(HERE / "real_bugs" / bug.source), options, waive=list(bug.waive),
                landings=["late", "random"] * orders)  # fmt: skip
    return run(case, work / "built")


def is_named(bug, launch):
    """Whether the cause was named, at a line that holds one of the bug's words."""
    where = f"{launch.get('source', '')} {launch.get('says', '')}"
    return bool(re.fullmatch(bug.cause, launch["verdict"]) and re.search(bug.words, where))


def measure(args):
    rows, work, mirrors = record_of(args.out, args.names), args.work.resolve(), args.mirrors.resolve()
    for bug in BUGS:
        if not is_asked_for(args.names, bug.name, bug.what):
            continue
        rows[:] = [row for row in rows if row["name"] != bug.name]
        before, after = (judged(bug, fixed, work, mirrors) for fixed in (0, 1))
        said = before.get("launches") or [{"verdict": str(before.get("refused") or before)}]
        named = any(is_named(bug, one) for one in said)
        silent = bool(after.get("launches")) and all(one["verdict"] == "silent" for one in after["launches"])
        about = dict(name=bug.name, what=bug.what, repository=bug.repository, commits=bug.commits)
        rows.append(about | dict(by_hand=bug.by_hand, named=named, silent=silent, before=before, after=after))
        print(bug.name, named, silent, *map(short, (before, after)), sep=" | ", flush=True)
        record.write(args.out, None, rows)


def short(side):
    """What was said of one side, in the words of a table."""
    if not side.get("launches"):
        return str(side.get("compile_error") or side.get("refused") or side.get("error") or "no launch")
    one = next((one for one in side["launches"] if one["verdict"] != "silent"), side["launches"][0])
    if "line" not in one:
        return one["verdict"]
    chain = one["source"].rpartition("(")[2].rstrip(")") if one["source"].endswith(")") else ""
    chain = f" ({chain})" if chain.startswith(("calls", "inlined")) else ""
    return f"{one['verdict']}, `{one['file']}`:{one['line']}{chain}: {one['says']}"


def table():
    lines = ["| thread | what is wrong | compiled from | before | after |", "|---|---|---|---|---|"]
    for row in json.loads(RESULT.read_text())["rows"]:
        where = "our own kernel" if row["by_hand"] and not row["repository"] else (
            f"{row['repository']} {' and '.join(row['commits'])}")  # fmt: skip
        cells = row["name"], row["what"], where, short(row["before"]), short(row["after"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, "real_bugs", RESULT, measure, table)
