"""Cures in the words of the language that a kernel is written in: those of faults are Numba's and this
package's. ``PreparedLaunch`` has them put into others."""

import functools
import re

from .... import faults
from .intrinsics import ROOTS, all_intrinsics
from .parser import SIZES, STATEMENT

# Columns of WORDS; Gluon's authors write barriers, and kernels of CUDA C++ may be launched by others.
LANGUAGES = {"cuda": 1, "cupy": 1, "torch": 1, "triton": 2, "ptx": 3, "gluon": 3}
RELEASE, ACQUIRE = 'an atomic with sem="release"', 'an atomic with sem="acquire"'
# Numba's words, as a pattern; CUDA C++; Triton; PTX.
WORDS = (
    (r"a barrier \(syncthreads, (?:an )?mbarrier[^)]*\)", "a barrier (__syncthreads(), an mbarrier)",
     "tl.debug_barrier()", "a barrier (bar.sync, an mbarrier)"),
    (r"a barrier \(syncthreads, syncwarp, (?:an )?mbarrier[^)]*\)", "a barrier (__syncthreads(), __syncwarp(), "
     "an mbarrier)", "tl.debug_barrier()", "a barrier (bar.sync, bar.warp.sync, an mbarrier)"),
    (r"cuda\.threadfence\(\) and an atomic, or st_release_gpu_global_b32", None, RELEASE, None),
    (r"ld_acquire_gpu_global_b32 in a loop, or an atomic and cuda\.threadfence\(\)", None, ACQUIRE, None),
    (r"st_release_gpu_\.\., ld_acquire_gpu_\.\., or cuda\.threadfence\(\) and atomics", None,
     'atomics with sem="release" and sem="acquire"', None),
    (r"cuda\.threadIdx\.x in it; or let one thread write \(if cuda\.threadIdx\.x == 0\)",
     "threadIdx.x in it; or let one thread write (if threadIdx.x == 0)", "tl.arange in it",
     "%tid.x in it; or let one thread write"),
    (r"cuda\.atomic\.add, atom_add_gpu_\.\.\.", "atomicAdd.", "tl.atomic_add.", "atom.add."),
    (r"cuda\.grid\(1\), or cuda\.blockIdx\.x,", "blockIdx.x", "tl.program_id(0)", "%ctaid.x"),
    (r"cuda\.grid\(\.*1?\)", "blockIdx.x * blockDim.x + threadIdx.x",
     "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "%ctaid.x * %ntid.x + %tid.x"),
    (r"cuda\.blockIdx\.x", "blockIdx.x", "tl.program_id(0)", "%ctaid.x"),
    (r"cuda\.threadIdx\.x", "threadIdx.x", "tl.arange", "%tid.x"),
    (r"cuda\.cg\.this_grid\(\)\.sync\(\)", "cooperative_groups::this_grid().sync()",
     "an atomic that all programs add to", "a barrier of all blocks"),
    (r"(?:cuda\.)?syncthreads(?:\(\))?", "__syncthreads()", "tl.debug_barrier()", "bar.sync 0"),
    (r"(?:cuda\.)?syncwarp(?:\(\))?", "__syncwarp()", "tl.debug_barrier()", "bar.warp.sync"),
    (r"Call cuda\.threadfence\(\) right behind the atomic", "Call __threadfence() right behind the atomic",
     'Give sem="acq_rel" to the atomic', "Put fence.acq_rel.gpu right behind the atomic"),
    (r"(?:cuda\.)?threadfence\(\)", "__threadfence()", "an atomic", "fence.acq_rel.gpu"),
    (r"(?:cuda\.)?threadfence_block\(\)", "__threadfence_block()", None, "fence.acq_rel.cta"),
    (r"cuda\.atomic\.(\w+)\(a, i, 0\)", r"atomic_\1(&a[i], 0)", r"tl.atomic_\1(a + i, 0)", r"atom.\1"),
    (r"cuda\.atomic\.exch", "atomic_exch", "tl.atomic_xchg", "atom.exch"),
    (r"cuda\.atomic\.(\w+)", r"atomic_\1", r"tl.atomic_\1", r"atom.\1"),
    (r"st_release_(\w+?)_(?:\.\.\.?|global|shared)\w*", r"st.release.\1", RELEASE, r"st.release.\1"),
    (r"ld_acquire_(\w+?)_(?:\.\.\.?|global|shared)\w*", r"ld.acquire.\1", ACQUIRE, r"ld.acquire.\1"),
    (r"atom_\.+_(cluster|gpu)_[\w.]+", r"atom.\1", "an atomic", r"atom.\1"),
    (r"cuda\.shared\.array\(0, [\w.]+\)", "extern __shared__", "shared memory", ".extern .shared"),
    (r"shared_bytes= here, kernel\[grid, block, stream, bytes\] in Numba",
     "kernel<<<grid, block, bytes>>>, or shared=BYTES of check FILE.cu", None, "shared=BYTES of check FILE"),
    (r"mbarrier_wait(_cluster)?\b", "a loop of mbarrier.try_wait", None, "a loop of mbarrier.try_wait"),
    (r"wgmma_wait_group_n\.\.\(sums, 0\)", "wgmma.wait_group 0", None, "wgmma.wait_group 0"),
    (r"Make it by wgmma_descriptor, of", "Make it of", None, "Make it of"),
    (r"Give a map of it, nd\.TensorMapArray\(.*box\)\]\),",
     "Pass a CUtensorMap that cuTensorMapEncodeTiled has filled, and look at what that returns;", None, None),
    (r"shared arrays `alignment=`", "shared arrays __align__(128)", None, ".shared variables .align 128"),
    (r"cuda\.to_device\(np\.zeros\(\.\.\)\) in place of cuda\.device_array",
     "cudaMemset behind cudaMalloc", "torch.zeros in place of torch.empty", "by the host"),
    (r"What cuda\.device_array and its like give", "What cudaMalloc gives",
     "What torch.empty and its like give", "What the host has not set"),
)  # fmt: skip
SET, GIVES = "cudaMemset behind cudaMalloc", "What cudaMalloc gives"
# What those who launch them say in place of CUDA's words for the host.
CALLERS = {
    "cupy": {SET: "cupy.zeros in place of cupy.empty", GIVES: "What cupy.empty and its like give",
             "kernel<<<grid, block, bytes>>>, or shared=BYTES of check FILE.cu":
             "kernel(grid, block, args, shared_mem=bytes)"},
    "torch": {SET: "torch.zeros in place of torch.empty", GIVES: "What torch.empty and its like give",
              ", or shared=BYTES of check FILE.cu": ""},
}  # fmt: skip
COMPILERS = (
    "The compiler has made this copy and its barriers: num_stages=1 makes none. If the program is silent with "
    "that, it is right, and the compiler is not; else look for two programs that touch these bytes."
)
# Cures of what the author of a Triton program does not write.
CURES = {
    "triton": dict.fromkeys((
        faults.InFlightRead, faults.RefillRace, faults.CopyCollision, faults.MissingProxyFence,
        faults.BarrierFault, faults.IncompletePhase, faults.AccumulatorInFlight, faults.MissingWarpgroupFence,
        faults.CopyOutlivesBlock, faults.MissingTensormapFence,
    ), COMPILERS) | {faults.ScopeRace: 'Use scope="gpu" in both atomics.'},
}  # fmt: skip


@functools.cache
def _instructions():
    """{intrinsic's name: its instruction, without types and spaces}"""
    found = {}
    for name, value in all_intrinsics():
        statements = filter(None, map(STATEMENT.fullmatch, value.ptx.statements))
        opcodes = [m[3] for m in statements if m[3].partition(".")[0] in (*ROOTS, "wgmma", "st", "ld", "atom")]
        opcodes = [opcode.split(".") for opcode in opcodes if ".param" not in opcode]
        for parts in opcodes[:1]:
            left_out = *SIZES, "sync", "aligned"
            kept = (p for p in parts if p not in left_out and not p.startswith(("shared", "mbarrier::")))
            found[name] = ".".join(kept)
    return found


def put(text, language):
    """A text with the words of a language."""
    for row in WORDS:
        if (word := row[LANGUAGES[language]]) is not None:
            text = re.sub(rf"(?<![\w.%]){row[0]}", word, text)
    for word, own in CALLERS.get(language, {}).items():
        text = text.replace(word, own)
    text = re.sub(r"(?<![\w.])atomic_([a-z])", lambda m: f"atomic{m[1].upper()}", text)  # atomicAdd
    return re.sub(r"(?<![\w.])([a-z]\w*_\w+)(?:\(([\d, ]*)\))?", lambda m: (
        f"{name} {m[2] or ''}".strip() if (name := _instructions().get(m[1])) else m[0]), text)  # fmt: skip


def translate(fault, language):
    """Have a fault of a kernel in a language say its rule and its cure in that."""
    if language in LANGUAGES:
        own = CURES.get(language, {})
        cure = next((own[kind] for kind in type(fault).__mro__ if kind in own), fault.cure)
        fault.cure, fault.rule = put(cure, language), put(fault.rule, language)
        if isinstance(fault, faults.InvalNotOrdered) and LANGUAGES[language] == 1:
            fault.cure += " A cuda::pipeline invalidates its barriers where it goes out of scope: put "
            fault.cure += "block.sync() or __syncthreads() before that."
        if "no array of this launch" in fault.what and language == "cuda":
            fault.cure += " What pointers in a structure point to is given by kernel.reaching({name: array})."
