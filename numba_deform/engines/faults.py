"""What the CPU engine says when a kernel breaks a rule: one class per rule.

Every fault carries

    rule     what must hold, with its source
    what     what happened here
    cure     what usually mends it
    where    ``file:line`` in the kernel; ``source`` is that line
    block    the block's number
    threads  those of its threads that the report is about; ``thread`` is the first of them
    barrier  the Python name of the barrier, array element or address it is about: ``bars[0]``
    state    the state of that barrier, in words
    waits    who waits for whom, where nobody gets on: ``waiting.Wait`` records

and has None (``threads`` and ``waits`` are empty) where there is nothing to say. Its text is all of
them. Faults can be pickled.
"""

from pathlib import Path

from ..device import sections
from ..device.limits import KB, MAX_THREADS, SHARED_LIMIT, STATIC_LIMIT
from .waiting import ranges
from .waivers import WAIVERS


class SimFault(Exception):
    """Base of all faults. ``thread`` is None where no thread is to blame."""

    rule = ""
    cure = ""
    waiver = None  # its name where the run could have waived this rule, see ``waivers``
    nothing_left = False  # whether the launch has run to its end all the same, or could not begin
    seed = landing = None  # of the schedule that met it: simulate(..., seed=, landing=) replays it
    basis = None  # what the verdict stands on, where that is less than a GPU

    def __init__(
        self, what, *, thread=None, threads=(), block=None, where=None, source=None, barrier=None,
        state=None, waits=()
    ):
        one = () if thread is None else (thread,)
        self.what, self.threads, self.block = what, tuple(threads) or one, block
        self.thread = self.threads[0] if self.threads else None
        self.where, self.source, self.barrier = where, source, barrier
        self.state, self.waits = state, tuple(waits)
        super().__init__(what)

    def add(self, what):
        """Say more of what happened."""
        self.what += "; " + what
        self.args = (self.what,)

    def lines(self):
        """What a kind of fault has to say beside all that."""
        return []

    def __str__(self):
        lines = [f"{type(self).__name__}: {self.what}"]
        if self.threads:
            who = f"thread {self.thread} (warp {self.thread // 32}, lane {self.thread % 32})"
            who = ranges(self.threads) if len(self.threads) > 1 else who
            lines.append(f"  by     block {self.block}, {who}")
        if self.where:
            lines.append(f"  at     {self.where}    {self.source or ''}".rstrip())
        if self.state:
            lines.append(f"  state  {self.barrier}: {self.state}")
        lines += self.lines()
        lines += [f"  {name}   {getattr(self, name)}" for name in ("rule", "cure") if getattr(self, name)]
        lines += [f"  see    {line}" for line in sections.looked_up(self.rule)]
        if self.waiver:
            why = WAIVERS[self.waiver].why
            lines.append(f"  waive  this rule can be waived, by waive={self.waiver}: {why}")
        if self.basis:
            lines.append(f"  basis  {self.basis}")
        if self.seed is not None:
            lines.append(f"  seed   {self.seed!r}, landing {self.landing}")
        return "\n".join(lines)


# --- memory ---------------------------------------------------------------------------------------
class OutOfRange(SimFault):
    rule = "An access stays inside one array."
    cure = "Check the index arithmetic and the size the array was made with."

class Misaligned(SimFault):
    rule = "An address is a multiple of the access size; a TMA tile of 128 bytes, a barrier of 8."
    cure = "Give shared arrays `alignment=`, and keep offsets multiples of the access size; or access less."

class MisalignedBox(Misaligned):
    """The corner of a tensor map's box, where the copy engine does not take it."""
    rule = "The innermost coordinate of a tensor load or store, times the element's size, is a multiple of 16 "
    rule += "bytes, negative ones too, whatever rank and swizzle. No manual says so; an H200 ends the kernel "
    rule += "with an illegal instruction."
    cure = "Start the box at the multiple of 16 bytes before what you need and make it wider (the other "
    cure += "coordinates are free), or pad the tensor so that what you need starts on 16 bytes."

class UninitialisedRead(SimFault):
    rule = "Shared and local memory hold garbage until something is written."
    cure = "Write (or copy) before reading; look for a branch or a loop bound that skips the write."

class ReadOnlyWrite(SimFault):
    rule = "A kernel does not write to an array that NumPy marks as read-only."
    cure = "Pass a writeable array (np.array(a) makes one), or check which argument is written."

class DataRace(SimFault):
    """Two accesses of which one writes, with nothing that orders them."""
    rule = "Two threads may touch the same bytes, one of them writing, only if a barrier orders them."
    cure = "Put a barrier (syncthreads, syncwarp, mbarrier) between the two accesses."

class ScopeRace(DataRace):
    """Two blocks are ordered, or would be, by fences and atomics of which one has too narrow a scope."""
    rule = "A fence, release, acquire or atomic of scope cta is for the threads of one block, one of scope "
    rule += "cluster for those of one cluster (PTX section 8.5)."
    cure = "Use gpu scope on both sides: cuda.threadfence() or fence_acq_rel_gpu(), not threadfence_block() or "
    cure += "fence_acq_rel_cta(); st_release_gpu_..., ld_acquire_gpu_..., atom_..._gpu_..."

class StreamRace(DataRace):
    """Two operations of the host's on different streams, with nothing that orders them."""
    rule = "Streams are ordered by events, the default stream and the host's waits alone (CUDA guide, streams)."
    cure = "Put event.record(a) behind the first, event.wait(b) before the second, or a.synchronize() between."

class HostRace(DataRace):
    """The host touches pinned memory that a copy still uses."""
    rule = "A copy between pinned memory and the device returns before it is over (CUDA guide, asynchronous "
    rule += "copies)."
    cure = "Wait between the two: stream.synchronize(), or event.record(stream) and event.synchronize()."

class NotReadOnly(DataRace):
    """A load through the read-only path of something that the kernel itself writes."""
    rule = "ld.global.nc may read only what nobody writes while the kernel runs (PTX 9.7.9.9)."
    cure = "Use a plain load (ld_global_b32, ld_global_v4) for data that the kernel writes."

class InFlightRead(DataRace):
    """A read of a copy's destination, with no wait on the copy's barrier before it."""
    rule = "A copy's destination may be read only after a successful wait on its barrier (PTX 9.7.9.25.1.2)."
    cure = "Wait on the full barrier before the first read of the stage."

class StaleWait(InFlightRead):
    """The thread did wait on the right barrier, but for an older phase."""
    rule = "A wait returns for one phase only; its parity must flip each time the ring wraps."
    cure = "Track one parity bit per stage and flip it whenever the stage index wraps to 0."

class ReadAfterRelease(InFlightRead):
    """The thread waited for the stage and gave it back, and reads it after that."""
    rule = "A thread reads a stage only between its wait on full and its release."
    cure = "Release after the last read of the stage; for its next use, wait on full again."

class FreshBarrierPassed(StaleWait):
    """The wait named parity 1 of a barrier no phase of which had completed."""
    rule = "A fresh barrier is in phase 0, and a wait for parity 1 passes at once (PTX 9.7.13.15)."
    cure = "Consumers start with parity 0 on full barriers; only producers start with 1, on empty ones."

class RefillRace(DataRace):
    """A copy is issued into memory that other threads may still be reading."""
    rule = "A stage may be refilled only after all its readers have released it."
    cure = "Wait on the empty barrier (or synchronise the warp) before issuing into the stage again."

class StaleRefill(RefillRace):
    """As RefillRace, but the producer waited on the readers' barrier for an older phase."""
    rule = "The producer's wait on empty must name the phase that the last readers complete."
    cure = "Start the producer's parity at 1 and flip it whenever the stage index wraps to 0."

class BadSize(SimFault):
    rule = "A bulk copy moves a multiple of 16 bytes, at least 16; cp.async 4, 8 or 16, of which none, some or "
    rule += "all come from its source."
    cure = "Pad the rows to 16 bytes, or copy what is left over with ordinary loads and stores."

class CopyCollision(DataRace):
    """A copy is issued into the destination of one that nobody has waited for."""
    rule = "A destination belongs to one copy at a time."
    cure = "Give each copy a place of its own; or issue this one only once the earlier was waited for and "
    cure += "read, and its readers have said so: by a barrier (syncthreads), or on an empty barrier that the "
    cure += "issuing thread waits for."

# --- proxies --------------------------------------------------------------------------------------
class MissingProxyFence(SimFault):
    rule = "Ordinary writes reach the copy engine only past fence.proxy.async (PTX 9.7.13.4)."
    cure = "Call fence_proxy_async() in each writing thread, then a barrier, then issue the copy; or call it "
    cure += "behind the barrier, in the thread that issues."

class MissingInitFence(MissingProxyFence):
    waiver = "init-fence"
    rule = "The copy engine sees mbarrier.init only past a fence by the thread that did it."
    cure = "Call fence_mbarrier_init() (or fence_proxy_async()) after mbarrier_init(), then a barrier."

class MissingRefillFence(MissingProxyFence):
    waiver, nothing_left = "refill-fence", True
    rule = "A copy overwrites what threads have read only past fence.proxy.async (PTX 9.7.13.4, 8.6): "
    rule += "an arrival or a barrier alone lets loads that are under way return the new bytes (an H100)."
    cure = "Call fence_proxy_async() in each thread that has read, before it gives the bytes back."

class MissingTensormapFence(SimFault):
    rule = "A tensor map in global memory needs an acquire in each block, after each change (PTX 9.7.13.4)."
    cure = "Call fence_proxy_tensormap_acquire_sys(map) before the first load that uses it."

class BadTensorMap(SimFault):
    rule = "A tensor load names a tensor map of its own rank and mode."
    cure = "Pass the address of a slot of a TensorMapArray, and use the intrinsic of the map's rank."

class BadCachePolicy(SimFault):
    rule = "A cache hint is a policy of createpolicy's, for a fraction above 0 and at most 1 (PTX 9.7.9.18)."
    cure = "Make the policy by createpolicy_fractional_evict_first(1.0) or its like, and pass that on."

# --- products by warpgroups -----------------------------------------------------------------------
class BadMatrixDescriptor(SimFault):
    rule = "A descriptor's address and offsets are multiples of 16 below 2^18, base is 0..7, swizzle 0..3. "
    rule += "All threads of a warpgroup give the same operands (PTX 9.7.15.5.1)."
    cure = "Make it by wgmma_descriptor, of the matrix's shared address and the bytes between its parts."

class AccumulatorInFlight(SimFault):
    rule = "The accumulators belong to wgmma.mma_async until its group has been waited for (PTX 9.7.15.7.3)."
    cure = "Call wgmma_commit_group() and wgmma_wait_group_n..(sums, 0) before reading or writing them."

class MissingWarpgroupFence(SimFault):
    rule = "A wgmma.fence stands before the first wgmma.mma_async, and between other accesses to its registers "
    rule += "and the next one (PTX 9.7.15.7.1)."
    cure = "Call wgmma_fence() in all threads of the warpgroup after the last access, before the product."

# --- tensor memory --------------------------------------------------------------------------------
class TensorMemoryMisuse(SimFault):
    rule = "tcgen05.alloc gives 32, 64, 128, 256 or 512 columns, which its block alone uses, and frees by "
    rule += "tcgen05.dealloc before it ends (PTX 9.7.16)."
    cure = "Allocate once, in one warp, and free in that warp behind a barrier of all that use it."

class TensorInFlight(DataRace):
    """An access to cells that an asynchronous operation may still read or write."""
    rule = "Products are over for who has waited on the mbarrier of their tcgen05.commit; tcgen05.ld and st "
    rule += "for who has executed tcgen05.wait (PTX 9.7.16.6)."
    cure = "Wait for the operation before this."

class BadTensorOperand(SimFault):
    rule = "Descriptors and addresses of tcgen05 are as PTX has them (PTX 9.7.16.4.1, 9.7.16.4.2)."
    cure = "Compare it with the matrix in memory, field by field."

class CancelMisuse(SimFault):
    rule = "After a try_cancel that is known to have failed a block issues no other, and only the answer of "
    rule += "one that has not has a first block (PTX 9.7.13.17, 9.7.13.18)."
    cure = "Ask is_canceled of each answer, and leave the loop where it says no."

# --- mbarrier -------------------------------------------------------------------------------------
class BarrierFault(SimFault):
    """Base of the mbarrier rules."""

class NotABarrier(BarrierFault):
    rule = "mbarrier operations other than init need an initialised object (PTX 9.7.13.15.9)."
    cure = "Initialise every barrier of the array, and check the index or address used here."

class InitNotOrdered(BarrierFault):
    rule = "Other threads may use a barrier only after a barrier that follows its init."
    cure = "Call cuda.syncthreads() (or syncwarp for a warp's own barrier) after mbarrier_init()."

class LiveBarrierInit(BarrierFault):
    rule = "mbarrier.init on an object in use is undefined (PTX 9.7.13.15.9)."
    cure = "Initialise once, before the loop; to start over, mbarrier_inval() first. Phases need no reset."

class InvalNotOrdered(BarrierFault):
    rule = "mbarrier.inval comes after everything else that is done with the barrier (PTX 9.7.13.15.10)."
    cure = "Put cuda.syncthreads() between the last use and mbarrier_inval()."

class LiveBarrierAccess(BarrierFault):
    rule = "A live barrier's bytes may be touched by mbarrier operations only."
    cure = "Keep barriers in an array of their own, or mbarrier_inval() before the memory is reused."

class BadCount(BarrierFault):
    rule = "Arrival counts lie in 1 .. 2^20-1, tx-counts within +-(2^20-1), a parity is 0 or 1."
    cure = "A count is 1 at least, a megabyte takes several phases, and the parity of a use is use & 1."

class TooManyArrivals(BarrierFault):
    rule = "A phase takes exactly the expected arrivals; more spill into the next phase."
    cure = "Initialise with the number of arrivals that each phase gets; a producer waits on empty before it "
    cure += "arms a stage again. Of n producers in turn, no more than there are stages, each starts at its own "
    cure += "use and advances by n."

class CompletesPhase(BarrierFault):
    rule = "An arrival by mbarrier.arrive.noComplete must not complete the phase (PTX 9.7.13.15.13)."
    cure = "Arrive without noComplete wherever no other arrival of the phase is bound to come later."

class NobodyLeft(BarrierFault):
    rule = "mbarrier.arrive_drop leaves an expected count of at least 1 (PTX 9.7.13.15.14)."
    cure = "Arrive without dropping out. A barrier needs no reset: its next phase begins by itself."

class UnobservedPhase(BarrierFault):
    rule = "An arrival counts in the current phase, so its thread must know that the one before is over."
    cure = "Wait on the barrier in every phase, e.g. the producer on empty before each refill."

class MoreBytesThanExpected(BarrierFault):
    rule = "The bytes that land in a phase are exactly those expected (tx-count returns to 0)."
    cure = "Expect the full box of every copy: elements outside the tensor count too."

class BadToken(BarrierFault):
    rule = "A wait by token takes the state that an arrival on the same barrier returned (PTX 9.7.13.15.16)."
    cure = "Keep one state for each barrier, and wait with the one that the last arrival on it returned."

class MissedPhase(BarrierFault):
    rule = "A wait is valid for the current and the preceding phase; two behind, its parity aliases."
    cure = "Make the next phase's completion depend on this waiter: let it arrive there as well; or, where "
    cure += "another thread arrives or issues copies for it, let this thread meet it (syncwarp, syncthreads) "
    cure += "after its wait."

# --- no progress ----------------------------------------------------------------------------------
class Deadlock(SimFault):
    rule = "Every wait needs somebody left who can end it."
    cure = "Compare the arrivals that are made with those that the barrier expects."

class IncompletePhase(Deadlock):
    """What a GPU can tell of a wait that never ends; the CPU engine knows what is missing."""
    rule = "A phase completes when all expected arrivals are in and all expected bytes have landed."
    cure = "Run the kernel on the CPU engine: it counts both, and knows who waits for whom."

class MissingArrivals(IncompletePhase):
    rule = "A phase completes when all expected arrivals are in."
    cure = "Initialise with the arrivals really made: one per arriving thread, tails and roles included."

class MissingBytes(IncompletePhase):
    rule = "A phase completes when all expected bytes have landed."
    cure = "Expect what the copies of this phase deliver, and issue every copy that is expected."

class Livelock(SimFault):
    rule = "A spin ends only if somebody changes what it reads."
    cure = "Check who sets the flag, and that it is not a thread behind the spin itself."

class NotResident(Deadlock):
    """Blocks wait for one that can start only when one of them has ended."""
    rule = "A block may wait for another only where both fit on the GPU at once; the rest start later."
    cure = "Launch no more blocks than fit, and loop over the work; or wait for blocks only that have started."

class Unfinished(SimFault):
    rule = "A simulation ends within its time limit."
    cure = "Look for a loop without end at the place above; if the work is just long, raise `timeout`."

# --- warps and blocks -----------------------------------------------------------------------------
class DivergentBarrier(SimFault):
    rule = "All threads of the block reach the same syncthreads()."
    cure = "Move the barrier out of the branch, or use a named barrier for the threads that take part."

class NamedBarrierMisuse(SimFault):
    rule = "bar.sync id, n: id 0..15, n a multiple of 32 and the same for all; whole warps arrive."
    cure = "Call it by an id of 0 to 15 in every lane of the warps that take part, n being 32 x their number."

class RegisterMisuse(SimFault):
    rule = "setmaxnreg: a multiple of 8 from 24 to 256, by all warps of a warpgroup alike; it only moves "
    rule += "the registers that the block has (65536 an SM) from those who give some up (PTX 9.7.19.5)."
    cure = "Give each role a multiple of four warps and one count; have the others give up, by setmaxnreg.dec, "
    cure += "as much as setmaxnreg.inc takes."

class WarpDivergence(SimFault):
    rule = "All lanes of the mask run the same warp-wide operation, and the caller is one of them."
    cure = "Compute the mask from who really gets there, or move the operation out of the branch."

class BlockNotStarted(SimFault):
    rule = "A block's shared memory is there once the block has started, which a barrier of its cluster says."
    cure = "Have all threads of the cluster call cluster_arrive() and cluster_wait() before the first access."

class BlockEnded(SimFault):
    rule = "A block's shared memory is gone once the block has ended, whoever else still uses it."
    cure = "Have all threads of the cluster call cluster_arrive() and cluster_wait() after the last access, or "
    cure += "have the block wait for the arrivals that others make on its barriers."

class NotInCluster(SimFault):
    rule = "Ranks, and the bits of a multicast mask, are 0 to %cluster_nctarank - 1; a mask names a block."
    cure = "Make ranks and masks from cluster_nctarank(), and check cluster= of the launch."

class ClusterBarrierMisuse(SimFault):
    rule = "Every thread of the cluster arrives at its barrier once, then waits there once (PTX 9.7.13.3)."
    cure = "Pair each cluster_arrive() with one cluster_wait(), in all threads of all blocks."

class CopyOutlivesBlock(SimFault):
    rule = "A block may end only when its copies are done: their shared memory goes away with it."
    cure = "Wait for every copy that was issued (mbarrier for loads, wait_group for stores and cp.async)."

# --- everything else ------------------------------------------------------------------------------
class EngineError(RuntimeError):
    """The CPU engine failed: no fault of the kernel, and no SimFault. The original is ``__cause__``."""

class KernelError(SimFault):
    """The kernel's own Python code raised; the original is ``__cause__``."""
    rule = "Of what a kernel raises a GPU says nothing, unless Numba compiles it with debug=True."
    cure = "Handle the case in the kernel, say by an error number in an array that the host looks at."

class NotCompiled(SimFault):
    """Numba does not compile the kernel for the types of its arguments; ``what`` is what Numba says."""
    nothing_left = True
    rule = "The operations of a kernel are those that Numba has for the types of their operands."
    cure = "Change the line, or the types of the arguments."

class WrongResult(SimFault):
    """A Launch has left something else than it expected, without breaking a rule of the hardware.

    ``differences`` has a ``wrong_places.Difference`` for each output that is wrong, which draws itself in a
    notebook; ``save("wrong.svg")`` writes the picture of the first. ``remarks`` are sentences on odd loads,
    which break no rule."""
    nothing_left = True
    rule = "After a run every output holds what expected= of its nd.Launch says, within tolerance=."
    cure = "Look at the element named above: who writes it, from which stage, and at which index?"

    def __init__(self, what, differences=()):
        super().__init__(what)
        self.differences = list(differences)
        self.remarks = []

    def lines(self):
        told = [pair for found in self.differences for pair in found.lines()]
        told = [*(("loads", text) for text in self.remarks), *told]  # the picture comes last
        return [f"  {label:<6} {text}" for label, text in told]

    def save(self, path):
        """Write the picture of the first output that is wrong, as .svg; returns the Path."""
        path = Path(path)
        if path.suffix != ".svg":
            raise ValueError(f"{path}: the picture is written as .svg")
        path.write_text(self.differences[0].svg() + "\n")
        return path

class NotCommutative(SimFault):
    """An operation of ``cuda.reduce`` that depends on the order of its operands."""
    rule = "cuda.reduce takes elements and results of parts in any order: its operation has to be commutative."
    cure = "Reduce by an operation for which f(a, b) is f(b, a), or write a kernel that keeps the order."

class NothingRan(SimFault):
    """A kernel whose PTX has no instruction but ret: nothing was judged."""
    rule = "A kernel does something: what the compiler has left out cannot be judged."
    cure = "Where the body stands under #if of __CUDA_ARCH__ or of a feature macro, compile for an architecture"
    cure += " that it is there for, such as sm_90a; else see why the compiler found that nothing depends on it."

class BadLaunch(SimFault):
    nothing_left = True
    rule = f"grid >= 1 and 1 <= block <= {MAX_THREADS} threads; shared memory at most "
    rule += f"{SHARED_LIMIT // KB} KB (static part {STATIC_LIMIT // KB} KB)."
    cure = "Launch what fits. For more than the static part holds: cuda.shared.array(0, ..) and shared_bytes=."
