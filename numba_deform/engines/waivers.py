"""Rules of the letter that programs break and work all the same: each has a name, and a run may waive it.

``simulate(.., waive=("same-value",))`` and ``explore`` take names from WAIVERS; a fault that can be waived has
the name in ``waiver``. Nothing is waived in silence: a clean run says what it waived, how often and where.
"""

import warnings
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Waiver:
    """``rule``: what is broken; ``why`` programs that break it work; ``met``: where they were."""

    name: str
    rule: str
    why: str
    met: str


WAIVERS = {row[0]: Waiver(*row) for row in (
    ("same-value", "Two stores to the same bytes are ordered by something",
     "they store one and the same value, so that it does not matter which comes last; reads, and stores of "
     "other values, are still to be ordered with each of them",
     "flags that every thread sets that finds something; results that all threads store"),
    ("init-fence", "The copy engine sees mbarrier.init only past fence.mbarrier_init or fence.proxy.async",
     "a barrier of threads behind the init leaves it time enough: the planted fault no_init_fence ends right "
     "on an H200 (bench/FAULTS.md), and nobody has told of a copy that came too early",
     "Triton; a tutorial of CUTLASS"),
    ("alloc-fence",
     "A copy overwrites the word that tcgen05.alloc has stored past a fence.proxy.async; so with loads of it",
     "all threads have it in a register before a barrier that the copy comes after, PTX does not say by which "
     "proxy it is stored, and Meta's developers of Triton say that none is needed (facebookexperimental/"
     "triton, 1553); no GPU has been asked here",
     "Triton and Gluon, which put a tile where tcgen05.alloc has stored the address"),
    ("same-init", "One thread initialises an mbarrier, once",
     "all lanes of a converged warp write one and the same state, before anybody uses the barrier",
     "ThunderKittens, whose first warp initialises its semaphores"),
    ("grid-exited", "this_grid().sync() waits for all threads of the grid, also for those that have returned",
     "the first thread of each block waits for the other blocks, and the rest of a block at a syncthreads, "
     "which waits for nobody who has returned; the first ones are still to come",
     "the heat equation among numba-cuda's examples, which begins with `if i >= len(buf): return`"),
    ("thread-fence-reduction",
     "Who reads what other blocks wrote has acquired it: the atomic that tells of it has a fence behind it",
     "the reads come after a branch on what the atomic returned, and the L1 cache has no older copy of what "
     "nobody has read there; what was written before that still has to be released by a fence",
     "NVIDIA's sample threadFenceReduction, whose fence stands before its atomic alone"),
    ("map-fence", "A tensor map that lies in global memory needs an acquire of its 128 bytes in each block",
     "the host wrote it before the launch, so that nothing on the chip holds what was there before; a map that "
     "a kernel has made or changed still needs its acquire",
     "the CUDA C++ experiments that this project grew from, whose kernels take an array of maps"),
    ("map-without-a-meeting",
     "The lanes of a warp meet between what one of them writes into a map and tensormap.cp_fenceproxy",
     "that instruction waits for all lanes itself (.sync.aligned), and copies what they wrote before it",
     "Triton, of maps that a kernel makes"),
    ("one-per-warp", "One thread issues a bulk store: each thread that executes the instruction stores",
     "all lanes of a warp store the same bytes to the same place, so that it does not matter how often; stores "
     "that differ in anything are still to be ordered",
     "CUTLASS's epilogues with TMA stores, whose first warp issues them"),
    ("own-arrival", "A thread comes once to each use of a named barrier",
     "the barrier counts warps, and not which: who has arrived by bar.arrive and waits there counts twice; to "
     "arrive twice without waiting is still refused",
     "FlashAttention-3, whose first warpgroup gives itself its first turn"),
    ("own-rows", "A warpgroup multiplies what all its threads know to be in shared memory",
     "each warp of the four reads 16 rows of A itself, those that it has written, fenced and met for with its "
     "own lanes; B, and rows of other warps, are still to be known to all",
     "FlashAttention-3, whose warps write their rows of P and meet by syncwarp"),
    ("pipeline-end", "Lanes that meet in match.any.sync know nothing of what the others have done to memory",
     "the warp has converged there, so that each of its lanes is past its last use of a barrier: who counts "
     "them off behind that, by an atomic, may invalidate it, as libcu++'s cuda::pipeline does",
     "libcu++: the destructor of cuda::pipeline with shared state"),
    ("store-at-exit", "A block waits for its bulk stores before it ends, for they read its shared memory",
     "the stores are committed, nothing writes those bytes any more, and nobody has told of a block whose "
     "memory went to the next one before they were read",
     "DeepGEMM, whose blocks end with the stores of their last tile"),
    ("refill-fence", "A copy of the async proxy overwrites what threads have read past a fence.proxy.async",
     "a load that has returned before its thread gives the bytes back cannot see the new ones. What is risked: "
     "a compiler puts uses of the data behind the arrival or the barrier, and then, where many blocks share an "
     "SM, some loads return the next tile: of such pipelines an H100 had 100 wrong launches of 100 "
     "(bench/NOTES.md), and nothing but wrong numbers tells",
     "NVIDIA's own examples, which have a barrier there; this package's pipelines before the experiment"),
)}  # fmt: skip


# What Triton's compiler emits and its users cannot mend, "same-value" in shared memory alone: its launches
# under ``check`` have these waived.
OF_TRITON = frozenset(("same-value", "init-fence", "alloc-fence", "map-without-a-meeting"))


def names(waive):
    """The waivers that ``waive`` names, one or several: a frozenset. ValueError for one that there is not."""
    asked = (waive,) if isinstance(waive, str) else tuple(waive)
    for name in asked:
        if name not in WAIVERS:
            raise ValueError(f"waive={name!r} is none of the rules that can be waived: {', '.join(WAIVERS)}")
    return frozenset(asked)


class Waived:
    """What one execution may waive, ``names``, which were asked for or are the compiler's, and what it has:
    ``used``, {name: {line: how often}}."""

    def __init__(self, asked, emitted=frozenset()):
        self.asked, self.names, self.used = asked, asked | emitted, {}

    def allows(self, name, thread, site=None):
        """Whether this rule may be broken, as ``thread`` does now, or did at ``site``; it is noted."""
        if name not in self.names:
            return False
        self.used.setdefault(name, Counter())[thread.at(site or thread.site())] += 1
        return True

    def excuses(self, fault, thread, site=None):
        """The same of a fault, which must be one that can be waived."""
        return self.allows(fault.waiver, thread, site)

    def totals(self):
        """{name: (how often, lines)}, as ``Report.waived`` has it."""
        return {name: (counts.total(), tuple(sorted(counts))) for name, counts in self.used.items()}


def added(one, other):
    """The sum of two such totals."""
    result = dict(one)
    for name, (count, lines) in other.items():
        before, known = result.get(name, (0, ()))
        result[name] = before + count, tuple(sorted({*known, *lines}))
    return result


def in_words(waived):
    """The totals in words, a text for each name."""
    return [
        f"{name}: {count:,} time{'s' * (count > 1)}, at {', '.join(lines)}"
        for name, (count, lines) in waived.items()
    ]


def told(report):
    """``report``, with a warning of what it waived: for those who show nothing else of it."""
    if report.waived:
        warnings.warn("; ".join(f"waived {text}" for text in in_words(report.waived)), stacklevel=3)
    return report


def table():
    """All of them in Markdown."""
    rows = [f"| `{w.name}` | {w.rule} | {w.why} | {w.met} |" for w in WAIVERS.values()]
    return "\n".join(["| name | rule that is broken | why it works | met in |", "|---|---|---|---|", *rows])
