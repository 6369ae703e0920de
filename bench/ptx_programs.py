"""Programs of others, compiled to PTX, on the CPU engine: each as it is, and with faults planted in its PTX.

    python bench/ptx_programs.py --mirrors FOLDER --work FOLDER --out bench/results/ptx_programs.json [NAME ..]
    python bench/ptx_programs.py --table         # bench/PTX_PROGRAMS.md from the results

Sources are fetched by commit. A small program of ours (``programs/``) includes them and launches them on small
problems, with parameters that the library's own host code makes.
"""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import originals
import own_main
import real_bugs
from cuda_programs.command import is_asked_for, main
from cuda_programs.judge import Case, record_of, run
from cuda_programs.sources import checkout

from numba_deform.measure import record

HERE = Path(__file__).parent
RESULT, PAGE = HERE / "results" / "ptx_programs.json", HERE / "PTX_PROGRAMS.md"
ON_GPU = HERE / "results" / "ptx_programs_on_gpu.json"
WAIT = r"mbarrier\.try_wait\.parity[.\w:]* *(\w+), *\[[^]]*\], *[^;]*;"
# name -> (pattern in the PTX, replacement, what the engine may name)
FAULTS = {
    "a wait is left out": (WAIT, r"setp.eq.u32 \1, 0, 0;",
                           "InFlightRead|RefillRace|StaleRefill|CopyCollision|StaleWait|UnobservedPhase|"
                           "MissedPhase|TooManyArrivals|ReadAfterRelease|CopyOutlivesBlock|TensorInFlight|"
                           "DataRace|InvalNotOrdered"),
    "too few bytes are expected": (r"(mbarrier\.(?:arrive\.)?expect_tx[.\w:]* *(?:\S+, *)?\[[^]]*\], *)[^;]*;",
                                   r"\g<1>16;", "MoreBytesThanExpected|StaleWait"),
    "one arrival too many is awaited": (r"(mbarrier\.init[.\w:]* *\[[^]]*\], *)[^;]*;", r"\g<1>333;",
                                        "MissingArrivals"),
    "no fence after the init": (r"fence\.mbarrier_init\.release\.cluster;|fence\.proxy\.async[.\w:]*;", "",
                                "MissingInitFence|MissingProxyFence"),
    "no fence before a store": (r"fence\.proxy\.async[.\w:]*;", "", "MissingProxyFence|MissingRefillFence"),
    "no fence before a refill": (r"fence\.proxy\.async[.\w:]*;", "", "MissingRefillFence"),
    "an answer is taken for yes": (r"(query_cancel\.is_canceled\.pred\.b128 +(\w+), *\w+;)",
                                   r"\1 setp.eq.u32 \2, 0, 0;", "CancelMisuse"),
    "an arrival is left out": (r"^\s*(?:@\S+\s+)?mbarrier\.arrive\.shared[.\w:]* *[^;]*;", "",
                               "MissingArrivals"),
    "no wait for a product": (r"wgmma\.wait_group\.sync\.aligned +0;", "", "AccumulatorInFlight|RefillRace|"
                              "ReadAfterRelease|ProductInFlight"),
    "no fence before a product": (r"wgmma\.fence\.sync\.aligned;", "",
                                  "MissingWarpgroupFence|AccumulatorInFlight"),
    "products are not committed": (r"tcgen05\.commit[.\w:]*\.b64 *(\[[^]]*\])[^;]*;",
                                   r"mbarrier.arrive.b64 _, \1;",
                                   "TensorInFlight|RefillRace|ReadAfterRelease|MissingArrivals"),
    "tensor memory is not freed": (r"(?:@!?%p\d+\s+)?tcgen05\.dealloc[^;]*;", "", "TensorMemoryMisuse"),
    "too few columns are allocated": (r"(tcgen05\.alloc[^;]*\], *)\d+;", r"\g<1>32;", "TensorMemoryMisuse"),
    "the first product adds": (r"(?:@(%p\d+) )?(tcgen05\.mma[^;]*, )(%p\d+);",
                               r"mov.pred \3, -1; @\1 \2\3;", "UninitialisedRead"),
    "cells of another warp": (r"(shl\.b32\s+%r\d+, %r\d+, )21;", r"\g<1>22;", "BadTensorOperand"),
    "no wait for a store of cells": (r"tcgen05\.wait::st[^;]*;", "", "TensorInFlight|DataRace"),
    "no barrier of threads": (r"(?:bar\.sync\s+0|barrier\.sync(?:\.aligned)?\s+0);", "",
                              "InitNotOrdered|NotABarrier|DataRace|RefillRace|InFlightRead"),
    "a store is not waited for": (r"cp\.async\.bulk\.wait_group(?:\.read)?\s+\d;", "",
                                  r"\w*InFlight\w*|DataRace|CopyOutlivesBlock|RefillRace"),
    "copies are not waited for": (r"cp\.async\.wait_group\s+\d;", "", r"\w*InFlight\w*"),
    "results past the end": (r"(st\.global[.\w]*\s+\[[^]+]*)(?:\+ *\d+ *)?\]", r"\g<1>+99999744]",
                             "OutOfRange"),
    "results out of line": (r"(st\.global[.\w]*\s+\[[^]+]*)(?:\+ *\d+ *)?\]", r"\g<1>+1]",
                            "Misaligned|OutOfRange"),
    "reads past the end": (r"(ld\.global[.\w]* +[^,]*(?:\{[^}]*\})?, *\[[^]+]*|cp\.async\.c\w\.shared\.global "
                           r"\[[^]]*\], \[[^]+]*)(?:\+ *\d+ *)?\]", r"\g<1>+99999744]", "OutOfRange"),
    "reads out of line": (r"(ld\.global[.\w]*(?:v\d|64|32)[.\w]* +[^;]*\[[^]+]*)(?:\+\d+)?\]",
                          r"\g<1>+1]", "Misaligned"),
}  # fmt: skip


@dataclass
class Program:
    """``source``: ours, or (in the fetched tree) the project's; ``faults``: of FAULTS, with which match;
    ``excerpt``: as ``real_bugs.Bug`` has it."""

    name: str
    source: str
    faults: tuple
    repository: str = ""
    commit: str = ""
    paths: tuple = ()
    options: tuple = ("-std=c++17",)
    mends: tuple = ()
    waive: tuple = ()
    words: tuple = ()
    excerpt: tuple = ()


# The sixth wait is the consumers' first: nvcc unrolls their loop, and its last copy does not run here. Of
# ThunderKittens the ninth is the producer's first for a stage in use, and the sixteenth the consumers' first.
RING = (("a wait is left out", 0), ("a wait is left out", 5), ("too few bytes are expected", 0),
        ("one arrival too many is awaited", 0), ("no fence after the init", 0), ("no barrier of threads", 0))
KITTENS = ("-std=c++20", "-O3", "--use_fast_math", "--expt-extended-lambda", "--expt-relaxed-constexpr",
           "-DNDEBUG", "-DKITTENS_HOPPER", "-I{tree}/include", "-I{tree}/prototype", "-I{tree}")  # fmt: skip
TUTORIAL_COMMIT, KITTENS_COMMIT, GEMM_COMMIT = "0edaa6e47", "0b55588d2", "54e226124"
CUTLASS_PATHS = ("include", "tools/util/include", "examples/cute/tutorial/hopper")
ORIGINAL = ("-std=c++17", "-include", str(HERE / "cuda_programs" / "cuda12.h"))
KEYS = tuple(f"{key}={value}" for key, value in originals.KEYS.items())
PROGRAMS = (
    Program("ring", "ring.cu", RING, options=("-std=c++17", f"-I{HERE.parent}")),
    Program("deform_attn.cu", "tma_experiments/deform_attn.cu",
            (("results past the end", 0), ("results out of line", 0), ("reads past the end", 0),
             ("reads out of line", 0)),
            originals.REPOSITORY, originals.HEAD, ("tma_experiments/*.cu",), ORIGINAL, words=KEYS),
    Program("deform_attn_tma.cu", "tma_experiments/deform_attn_tma.cu",
            (("too few bytes are expected", 0), ("no fence after the init", 0),
             ("one arrival too many is awaited", 0), ("results past the end", 0)),
            originals.REPOSITORY, "4e6a31ee", ("tma_experiments/*.cu",), ORIGINAL, (originals.IN_STEP,),
            ("map-fence",), KEYS),
    Program("CUTLASS tutorial wgmma_tma_sm90", "../real_bugs/tutorial.cu",
            (("a wait is left out", 0), ("a wait is left out", -1), ("too few bytes are expected", 0),
             ("one arrival too many is awaited", 1), ("an arrival is left out", 0),
             ("no wait for a product", 0),
             ("no fence before a product", 0)),
            real_bugs.CUTLASS, TUTORIAL_COMMIT, CUTLASS_PATHS,
            tuple(real_bugs.CUTE), waive=("init-fence",)),
    Program("ThunderKittens bf16_h100_gemm", "thunderkittens_gemm.cu",
            (("a wait is left out", 8), ("a wait is left out", 15), ("too few bytes are expected", 0),
             ("one arrival too many is awaited", 0), ("no wait for a product", 0),
             ("no fence before a product", 0)),
            "HazyResearch/ThunderKittens", KITTENS_COMMIT, ("include", "prototype", "kernels/gemm"),
            KITTENS, waive=("init-fence", "same-init")),
    Program("DeepGEMM sm90_bf16_gemm", "deepgemm.cu",
            (("a wait is left out", 0), ("a wait is left out", 1), ("too few bytes are expected", 0),
             ("one arrival too many is awaited", 0), ("no fence after the init", 0),
             ("an arrival is left out", 0),
             ("no wait for a product", 0)),
            "deepseek-ai/DeepGEMM", GEMM_COMMIT, ("deep_gemm/include",),
            ("-std=c++20", "--expt-relaxed-constexpr", "-I{tree}/deep_gemm/include", "-I{cutlass}/include"),
            waive=("store-at-exit",)),
    Program("CUTLASS warp-specialised GEMM", "cutlass_gemm.cu",
            (("a wait is left out", 0), ("a wait is left out", 1), ("too few bytes are expected", 0),
             ("one arrival too many is awaited", 0), ("no wait for a product", 0),
             ("no fence before a store", 0)),
            real_bugs.CUTLASS, TUTORIAL_COMMIT, CUTLASS_PATHS,
            (*real_bugs.CUTE, "-DSCHEDULE=KernelTmaWarpSpecialized", "-DBETA=0.0f"),
            waive=("one-per-warp",)),
    Program("FlashAttention-3 forward", "flash3.cu",
            (("a wait is left out", 0), ("a wait is left out", 1), ("too few bytes are expected", 0),
             ("one arrival too many is awaited", 0), ("no wait for a product", 0),
             ("no fence before a product", 0), ("no fence before a store", -1)),
            "Dao-AILab/flash-attention", "0251105a2", ("hopper",),
            ("-std=c++17", "-O3", "--use_fast_math", "--expt-relaxed-constexpr", "--expt-extended-lambda",
             "-DNDEBUG", "-I{tree}/hopper", "-I{cutlass}/include"),
            waive=("own-arrival", "own-rows")),
)  # fmt: skip


# For a Blackwell GPU, which the engine knows from PTX's text alone. The first tutorial writes its tiles by
# ordinary stores, with no proxy fence before the product: that is its one mend. In the second nothing keeps the
# warps together that only wait, so it takes one step.
BLACKWELL = "examples/cute/tutorial/blackwell"
TENSOR = (("products are not committed", 0), ("tensor memory is not freed", 0))
FENCE = (r"(__syncthreads\(\);\n\n    // tcgen05\.mma instructions)",
         r"cutlass::arch::fence_view_async_shared(); \1")  # fmt: skip


def on_blackwell(number, name, faults, words, mends=(), waive=("init-fence",)):
    options = (*real_bugs.CUTE, "-gencode=arch=compute_100a,code=compute_100a", "-I{tree}/examples/common",
               f"-I{{tree}}/{BLACKWELL}")  # fmt: skip
    return Program(f"CUTLASS tutorial {name}", f"{BLACKWELL}/{number}_{name}.cu", faults, real_bugs.CUTLASS,
                   "7107b0553", ("include", "tools/util/include", BLACKWELL, "examples/common"), options, mends,
                   waive, words)  # fmt: skip


PROGRAMS += (
    on_blackwell("01", "mma_sm100", (*TENSOR, ("a wait is left out", 0)), ("128", "256", "64"), (FENCE,), ()),
    on_blackwell("02", "mma_tma_sm100", (
        ("products are not committed", -1), TENSOR[1], ("a wait is left out", -2), ("a wait is left out", -1),
        ("too few bytes are expected", -1), RING[3]), ("128", "256", "64")),
    on_blackwell("03", "mma_tma_multicast_sm100", (), ("512", "1024", "64")),
    on_blackwell("04", "mma_tma_2sm_sm100", (
        ("products are not committed", -1), TENSOR[1], ("a wait is left out", -1),
        ("too few bytes are expected", -1), RING[3]), ("512", "1024", "64")),
    on_blackwell("05", "mma_tma_epi_sm100", (), ("512", "1024", "64")),
)  # fmt: skip


# Of other projects for a Blackwell GPU. The first three waits of ThunderKittens' producer are for stages that
# nobody has used, and the rests of two loops do not run.
SM100, UNDONE = "-gencode=arch=compute_100a,code=compute_100a", ("products are not committed", -1)
OWN_LANES = ("deep_gemm/include/deep_gemm/epilogue/sm100_store_cd.cuh",
             r"(uint32_t tmem_addr = )(tmem_base_addr)", r"\1(epilogue_warp_idx << 21) + \2")  # fmt: skip
LADDER = (*TENSOR, UNDONE, *(("a wait is left out", n) for n in (3, 5, 6, 8)), RING[2], RING[3],
          ("no barrier of threads", 1), ("a store is not waited for", 0))  # fmt: skip


def on_ladder(level):
    options = *(option.replace("HOPPER", "BLACKWELL") for option in KITTENS), f"-DLEVEL={level}", SM100
    return Program(f"ThunderKittens educational_b200 level {level}", "thunderkittens_b200.cu", LADDER,
                   "HazyResearch/ThunderKittens", KITTENS_COMMIT, ("include", "prototype", "kernels/gemm"),
                   options, waive=("init-fence",))  # fmt: skip


PROGRAMS += (
    Program("TransformerEngine Hadamard amax", "../real_bugs/hadamard.cu",
            (*RING[:1], *RING[2:], ("no fence before a refill", 1)), real_bugs.ENGINE, real_bugs.HADAMARD,
            real_bugs.ENGINE_PATHS, real_bugs.ENGINE_OPTIONS, excerpt=real_bugs.EXCERPT),
    on_ladder("07"), on_ladder("08"),
    Program("DeepGEMM sm100_bf16_gemm", "deepgemm_sm100.cu",
            (*TENSOR, UNDONE, *(("a wait is left out", n) for n in (3, -3, -2, -1)),
             ("too few bytes are expected", 3), *RING[3:], ("no fence before a store", -1),
             ("a store is not waited for", 0)),
            "deepseek-ai/DeepGEMM", GEMM_COMMIT, ("deep_gemm/include",),
            ("-std=c++20", "--expt-relaxed-constexpr", "-I{tree}/deep_gemm/include", "-I{cutlass}/include",
             SM100), (OWN_LANES,), ("store-at-exit",)),
    Program("CUTLASS GEMM with clusterlaunchcontrol", "cutlass_gemm_sm100.cu",
            (*TENSOR, UNDONE, *(("a wait is left out", n) for n in (13, 16, 18, 20)),
             *(("an answer is taken for yes", n) for n in (0, 1, 2, 4)),
             *(("no fence before a refill", n) for n in (1, 2, 4)), RING[2], RING[3],
             ("no fence before a store", -1)), real_bugs.CUTLASS, "7107b0553",
            ("include", "tools/util/include"), (*real_bugs.CUTE, SM100),
            waive=("one-per-warp", "store-at-exit")),
)  # fmt: skip


# Programs of CUDA's samples with their own main().
SAMPLES, SAMPLES_COMMIT = "NVIDIA/cuda-samples", "c94ff366"
PAST_THE_END = (("results past the end", 0), ("results out of line", 0), ("reads past the end", 0))


FOLDERS = ("0_Introduction/vectorAdd", "0_Introduction/clock", "0_Introduction/simpleCooperativeGroups",
           "0_Introduction/simplePrintf", "0_Introduction/fp16ScalarProduct",
           "2_Concepts_and_Techniques/inlinePTX", "3_CUDA_Features/binaryPartitionCG")  # fmt: skip
SYNC = ("no barrier of threads", 0)
SAMPLED = (PAST_THE_END, (*PAST_THE_END, SYNC), (SYNC,), (), (*PAST_THE_END, SYNC), PAST_THE_END[:2],
           PAST_THE_END[2:])  # fmt: skip
PROGRAMS += tuple(
    Program(f"cuda-samples {Path(folder).name}", f"Samples/{folder}/{Path(folder).name}.cu", faults, SAMPLES,
            SAMPLES_COMMIT, (*(f"Samples/{folder}/*.cu" for folder in FOLDERS), "Common/*.h"),
            ("-std=c++17", "-I{tree}/Common"))
    for folder, faults in zip(FOLDERS, SAMPLED, strict=True)
)  # fmt: skip


# The tutorials of Triton and Gluon, and what Triton's own code needs waived. A barrier of threads is one that
# matters: Triton puts in more than are needed.
TRITON, TRITON_COMMIT, WAIVED = "triton-lang/triton", "6cc4505", ("same-value", "init-fence")
LOADS = (("too few bytes are expected", 0), ("one arrival too many is awaited", 0))
PRODUCT = (("no wait for a product", 0), ("no fence before a product", 0))
STORE = (("no fence before a store", -1), ("a store is not waited for", -1))
RESULTS = (("results past the end", 0), ("results out of line", 0))


def wait(which):
    return ("a wait is left out", which)


def barrier(which):
    return ("no barrier of threads", which)


def tutorial(name, word, faults, *waive, commit=TRITON_COMMIT, options=()):
    return Program(name, "triton_tutorials.py", faults, TRITON, commit, ("python/tutorials",), options,
                   words=(word,), waive=(*WAIVED, *waive))  # fmt: skip


def for_blackwell(name, word, faults, *waive):
    """The same for a GPU that the engine knows from PTX's text alone."""
    return tutorial(f"{name} (sm_100a)", word, faults, "alloc-fence", *waive, commit="9d9a2d7ac",
                    options=("sm_100a",))  # fmt: skip


PROGRAMS += (
    tutorial("Triton softmax", "softmax", (*RESULTS, ("reads past the end", 0), barrier(2), barrier(3))),
    tutorial("Triton matmul", "matmul", (*RESULTS, ("copies are not waited for", 0), barrier(1), barrier(2))),
    tutorial("Triton fused attention", "attention", (wait(1), *LOADS, *PRODUCT, *STORE)),
    tutorial("Triton persistent matmul", "persistent", (wait(0), *LOADS, *PRODUCT, *STORE)),
    tutorial("Triton persistent matmul, maps made on the device", "persistent_on_device",
             (wait(0), *LOADS, *PRODUCT, *STORE), "map-without-a-meeting"),
    tutorial("Gluon TMA", "gluon_tma", (wait(0), *LOADS, barrier(8), *STORE)),
    tutorial("Gluon wgmma", "gluon_wgmma", (wait(0), *LOADS, *PRODUCT, barrier(5), *STORE)),
    tutorial("Gluon persistence", "gluon_persistence",
             (wait(0), *LOADS, ("no wait for a product", 1), ("no fence before a product", 1), *STORE)),
    tutorial("Gluon warp specialization", "gluon_warp_specialization", (wait(0), *LOADS, *STORE)),
)  # fmt: skip


UNCOMMITTED, UNFREED = TENSOR
BOTH = (UNCOMMITTED, ("products are not committed", -1))
FEW, ADDS, OTHERS = (
    (name, 0) for name in ("too few columns are allocated", "the first product adds", "cells of another warp")
)
PROGRAMS += (
    for_blackwell("Triton softmax", "softmax", (*RESULTS, ("reads past the end", 0), barrier(2))),
    for_blackwell("Triton matmul", "matmul", (*RESULTS, ("copies are not waited for", 0), *TENSOR)),
    for_blackwell("Triton fused attention", "attention", (wait(1), *LOADS, *TENSOR, FEW, ADDS, OTHERS, *STORE)),
    for_blackwell("Triton persistent matmul", "persistent", (wait(0), *LOADS, *TENSOR, *STORE)),
    for_blackwell("Triton persistent matmul, maps made on the device", "persistent_on_device",
                  (wait(0), *LOADS, *TENSOR, *STORE), "map-without-a-meeting"),
    for_blackwell("Gluon tensor memory", "tcgen05_cells",
                  (UNFREED, OTHERS, ("no wait for a store of cells", 0))),
    for_blackwell("Gluon tcgen05", "tcgen05_small",
                  (wait(0), wait(1), *LOADS, *TENSOR, ("no wait for a store of cells", -1), *STORE)),
    for_blackwell("Gluon tcgen05, blocked", "tcgen05_blocked",
                  (wait(0), wait(1), *LOADS, *TENSOR, FEW, ADDS, OTHERS, barrier(0), *STORE)),
    for_blackwell("Gluon tcgen05, pipelined", "tcgen05_pipelined",
                  (wait(0), wait(2), wait(-1), *LOADS, *BOTH, UNFREED, *STORE)),
    for_blackwell("Gluon persistence", "tcgen05_persistence", (wait(0), *LOADS, *TENSOR, ADDS, *STORE)),
    for_blackwell("Gluon warp specialization, tcgen05", "tcgen05_warp_specialization",
                  (wait(0), wait(1), wait(3), *LOADS, *BOTH, UNFREED, ADDS, *STORE)),
    for_blackwell("Gluon tcgen05.cp", "tcgen05_copy",
                  (wait(0), wait(1), *LOADS, *BOTH, UNFREED)),
    for_blackwell("Gluon scaled products, mxfp8", "tcgen05_scaled",
                  (wait(0), wait(2), wait(3), *LOADS, *TENSOR, ADDS, *STORE)),
    for_blackwell("Gluon scaled products, nvfp4", "tcgen05_scaled_nvfp4", (wait(0), UNCOMMITTED, *STORE)),
    for_blackwell("Gluon pair of blocks", "tcgen05_pair", (wait(0), wait(1), *LOADS, *TENSOR), "store-at-exit"),
    for_blackwell("Gluon gather and scatter", "gather_scatter", (wait(0), *LOADS, *RESULTS)),
    for_blackwell("Gluon cluster launch control", "launch_control",
                  (wait(0), wait(-1), LOADS[1], ("too few bytes are expected", -1), *TENSOR, *STORE)),
)  # fmt: skip


def case_of(program, work, mirrors):
    tree = work
    if program.repository:
        name = f"{program.repository.replace('/', '+')}-{program.commit}"
        tree = checkout(program.repository, program.commit, program.paths, work / name, mirrors)
    options = list(program.options)
    if any("{cutlass}" in option for option in options):
        name = f"{real_bugs.CUTLASS.replace('/', '+')}-{TUTORIAL_COMMIT}"
        cutlass = checkout(real_bugs.CUTLASS, TUTORIAL_COMMIT, CUTLASS_PATHS, work / name, mirrors)
        options = [option.replace("{cutlass}", str(cutlass)) for option in options]
    options = [option.replace("{tree}", str(tree)) for option in options]
    name = re.sub(r"\W+", "-", program.name)
    if program.excerpt:
        options.append(f"-I{real_bugs.excerpted(program, tree, work / name)}")
    source = HERE / "programs" / program.source
    if not source.exists():
        source = tree / program.source
    faults = [(what, *FAULTS[what][:2], which) for what, which in program.faults]
    in_tree = program.source.endswith(".py") or any(len(mend) > 2 for mend in program.mends)
    below = str(tree) if in_tree else ""
    return Case(name, str(source), options, list(program.words), str(work), below, mends=list(program.mends),
                waive=list(program.waive), faults=faults)  # fmt: skip


def judged(program, work, mirrors):
    """The row of a program."""
    case = case_of(program, work, mirrors)
    return run(case, work / "built", "triton_judge" if program.source.endswith(".py") else "judge")


def from_the_shell(case):
    """The seconds that ``numba-deform check`` takes for a program of Triton's, the shortest of three: Triton
    has compiled it before."""
    check = [sys.executable, "-m", "numba_deform", "check", f"waive={','.join(case.waive)}"]
    spent = []
    check += [f"arch={case.options[0]}"] if case.options else []
    for _ in range(3):
        started = time.perf_counter()
        subprocess.run([*check, case.source, case.tree, *case.words], check=True, capture_output=True)
        spent.append(time.perf_counter() - started)
    return round(min(spent), 2)


def is_named(fault):
    return bool(re.fullmatch(FAULTS[fault["fault"]][2], fault["verdict"]))


def measure(args):
    work, mirrors, rows = args.work.resolve(), args.mirrors.resolve(), record_of(args.out, args.names)
    originals.data(work)
    for program in PROGRAMS:
        if not is_asked_for(args.names, program.name):
            continue
        rows[:] = [row for row in rows if row["name"] != program.name]
        found = judged(program, work, mirrors)
        if program.source.endswith(".py") and "error" not in found:
            found["check_seconds"] = from_the_shell(case_of(program, work, mirrors))
        for fault in found.get("faults", ()):
            fault["named"] = is_named(fault)
        rows.append(dict(name=program.name, repository=program.repository, commit=program.commit,
                         source=program.source, waive=program.waive, run=found))  # fmt: skip
        print(program.name, *lines_of(rows[-1]), sep="\n   ", flush=True)
        record.write(args.out, None, rows, load_average=os.getloadavg())


def lines_of(row):
    """What was said of a program and of each of its faults."""
    found = row["run"]
    if not found.get("launches"):
        return [str(found.get("compile_error") or found.get("refused") or found)]
    return [real_bugs.short(found), *(
        f"{f['fault']}: {f['verdict']} {f.get('file', '')}:{f.get('line', '')} {'' if f['named'] else '(!)'} "
        f"{f.get('source', '')}" for f in found["faults"])]  # fmt: skip


PROSE = """# Programs of others on the CPU engine

CUDA C++ of other projects, compiled to PTX by nvcc without a GPU, and tutorials of Triton and Gluon, with each
launch judged as [`ENGINE.md`](ENGINE.md) says. Sources are fetched by commit and not copied; small programs of
ours ([`programs/`](programs), [`real_bugs/`](real_bugs)) include them and launch them on small problems. Host
code of CUDA C++ runs over the stand-in of `check program.cu` for the CUDA runtime
([`cudart.c`](../numba_deform/programs/cudart.c)), so that
parameters and tensor maps are made by the library itself. "check" is what `numba-deform check` takes for a
program of Triton's from the shell, the imports of PyTorch and Triton included. Made by
`python bench/ptx_programs.py --table` from `results/ptx_programs.json` and `results/real_bugs.json`. What has
not been run yet is not in the tables.

## Right programs, and faults planted in their PTX

{programs}

The tutorials `mma_sm100`, `mma_tma_sm100`, `mma_tma_multicast_sm100`, `mma_tma_2sm_sm100`, whose products are
of two blocks, and `mma_tma_epi_sm100` are for a Blackwell GPU and are judged by PTX's text alone; their own
comparison of the results says that they are right. As it stands the first is a
MissingProxyFence: threads store its tiles, and no `fence.proxy.async` comes before the product. It runs here
with that fence. The second takes one step: with more it is a MissedPhase, since nothing keeps the warps that
only wait within a phase of the one that goes on.

CUTLASS' example 48, by its own `main()`, comes to its GEMM, whose maps round to tf32 on the way: BadTensorMap,
"not modelled".

TransformerEngine's kernel, the two of ThunderKittens, `sm100_bf16_gemm` of DeepGEMM and CUTLASS' GEMM whose
tile scheduler is `clusterlaunchcontrol` are for Blackwell as well; our programs compare what they leave with
sums in float64. In the last, the first block does all six tiles under seed 0, and two blocks share them under
seed 1. DeepGEMM's warps all read tensor memory from lane 0 on, and say that the hardware puts in their own
lanes; by PTX's text that is a BadTensorOperand, so that it runs here with their own. ThunderKittens' level 06
is a MissedPhase: in it, too, warps only wait.

Rows with `(sm_100a)` are what Triton makes for a Blackwell GPU (`check arch=sm_100a`), likewise by PTX's text
alone; Triton 3.8 compiled them. Three kernels of these tutorials are no rows, because they are not right:
`persistent_matmul_pipelined_kernel` of `07-persistence.py` and `matmul_fused_gather_scatter_kernel` of
`09-tma-gather-scatter.py` issue the last load ahead without the predicate of the others, past the last tile,
and end with it in flight (CopyOutlivesBlock, the first on Hopper as well);
`mma_scaled_pipelined_kernel` of `11-tcgen05-mma-scaled.py` copies scales to tensor memory in steps whose
product and commit are masked out, and frees the columns with those copies in flight (TensorInFlight).

## Programs by their own main(), from the shell

`numba-deform check program.cu` for programs as they are, each in a process of its own, two at a time: made by
`python bench/own_main.py` (`results/own_main.json`). Every block of every launch is judged; one that is equal
to the launch before of its kind, with the same content of memory, is not run again. Most compare their results
with what the host computes, and end with status 0 where these are right: 28 do, and are silent. Of the others
`newdelete` is refused by name, and four have faults. `simpleAssert` fails its own assertion, which is what it
shows. `threadFenceReduction` lacks a fence behind its ticket: reads of the others' sums can be waived, the last
block's write over one of them cannot. `sgemm_sm80` ends with `cp.async` in flight. In `wgmma_sm90` each thread
waits for its own `cp.async`, and no barrier tells the warpgroup of them, nor a fence the products.

{own}

Of the other samples of CUDA's with one file, those that ask for textures, graphs, cuBLAS, cuFFT or dynamic
parallelism are refused at that call or by nvcc, and a dozen launch more than this machine judges in 150 s: 16 M
threads at once, or millions of atomics, each of which Python does.

## The same programs on a GPU

Compiled for sm_90a with the real CUDA runtime, and run as they are: each allocation, when it is freed or at the
end, beside what the engine leaves there. Made by `python bench/ptx_programs_on_gpu.py`
(`results/ptx_programs_on_gpu.json`). Inputs of a megabyte and more were not brought back from the machine,
and tensor maps, which the driver encodes in its own way, are not compared. The first run showed that two of our
programs, which launch the GEMMs of DeepGEMM and ThunderKittens, did not ask for more than 48 KB of shared
memory: on a GPU that starts nothing. They ask now, and the stand-in for the runtime refuses such a launch too.

{on_gpu}

## Real bugs, before and after their public fixes

{bugs}
"""


def table():
    """The page: programs, their faults, and real bugs."""
    own = "\n".join(own_main.table())
    parts = dict(programs=tables_of_programs(), own=own, on_gpu=table_of_gpu(), bugs=real_bugs.table())
    return PROSE.format(**parts).strip()


def table_of_gpu():
    """What a GPU left in memory, beside the engine."""
    document = json.loads(ON_GPU.read_text())
    gpu = document["machine"]["gpu"]
    lines = [f"| program on {gpu} | exit status | launches | allocations compared | equal |", "|---" * 5 + "|"]
    for row in document["rows"]:
        compared = [part for part in row["allocations"] if "equal" in part]
        equal = sum(part["equal"] for part in compared)
        size = sum(part["bytes"] for part in compared)
        said = "all, bit for bit" if equal == len(compared) else f"{equal} of {len(compared)}"
        lines.append(f"| {row['program']} | {row['status']} | {len(row['launches'])} | "
                     f"{len(compared)}, {size:,} bytes | {said} |")  # fmt: skip
    return "\n".join(lines)


def tables_of_programs():
    rows = json.loads(RESULT.read_text())["rows"]
    names = ("program", "commit", "instructions", "opcodes", "translate, s", "run, s", "check, s", "verdict",
             "waived", "faults named")  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for row in rows:
        found, commit = row["run"], f"{row['repository']} {row['commit']}" if row["repository"] else "ours"
        if not found.get("launches"):
            lines.append(f"| {row['name']} | {commit} | | | | | | {lines_of(row)[0]} | | |")
            continue
        one = max(found["launches"], key=lambda launch: launch["instructions"])
        faults = found["faults"] if one["verdict"] == "silent" else ()  # else they stand behind the first one
        lines.append(f"| {row['name']} | {commit} | {one['instructions']} | {one['opcodes']} | "
                     f"{one['translate_seconds']} | {one['seconds']} | {found.get('check_seconds', '')} | "
                     f"{real_bugs.short(found)} | "
                     f"{', '.join(one.get('waived', ()))} | "
                     f"{sum(f['named'] for f in faults)} of {len(faults)} |")
    lines += ["", "| program | fault | engine | where |", "|---|---|---|---|"]
    for row in rows:
        is_right = row["run"].get("launches", [{"verdict": ""}])[0]["verdict"] == "silent"
        for f in row["run"].get("faults", ()) if is_right else ():
            where = f"`{f['file']}`:{f['line']} `{f['source'][:90]}`" if "line" in f else ""
            wrong = "" if f["named"] else " (not what was planted)"
            lines.append(f"| {row['name']} | {f['fault']} | {f['verdict']}{wrong} | {where} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, "ptx_programs", RESULT, measure, table)
