"""Clusters: blocks that start together and reach each other's shared memory (PTX ISA 9.7.13.3, 9.7.9.23).

Memory of another block may be touched once it has started, as a barrier of the cluster says, and until it ends.
What orders accesses of two blocks is a release and an acquire of scope cluster or a wider one: the cluster's
barrier, an arrival on the other's mbarrier and a wait of cluster scope there, or flags in global memory. For
shared memory a wait of scope cta will do. ``resident_blocks`` makes a cluster; the intrinsics of
``device/cluster.py`` call it.
"""

import numpy as np

from ....device.limits import MAX_COUNT
from ... import faults
from ..async_units.copy_engine import Box
from ..async_units.reductions import combine
from ..async_units.tcgen05 import commit_to
from ..memory.access_records import UNWRITTEN, AsyncReduction, Copy, PeerCopy, stretches
from ..memory.cluster_memory import RANK, let_come
from ..memory.cycle_costs import COST
from ..memory.same_value import decide
from ..memory.scalars import WORD, unpack
from ..memory.vector_clocks import STARTED, covers_shared, merged, shared_clocks
from .cross_block_barrier import CrossBlockBarrier
from .thread_memory import FLAG, UINT32


class Cluster:
    """The blocks of one cluster, by rank, and what their threads do to each other's memory."""

    barrier_type = CrossBlockBarrier

    def __init__(self, blocks, shape, number):
        self.blocks, self.shape, self.number = blocks, shape, number
        threads = sum(block.size for block in blocks)
        self.barrier = self.barrier_type("the cluster's barrier", threads, True, faults.ClusterBarrierMisuse)
        self.visits = {block: {} for block in blocks}  # {its visitor: (clock, site, what, barrier, phase)}
        self.refusals = []  # (barrier, phase) of answers to try_cancel that it has failed
        self.sent = {block: [] for block in blocks}  # (issuer, site, what, barrier, phase) of copies out of it
        for rank, block in enumerate(blocks):
            block.cluster, block.rank, block.pauses = self, rank, len(blocks) > 1
            if len(blocks) > 1:  # else with its first arrival
                self.barrier.join(block)

    def place(self, rank):
        """(x, y, z) of the block of that rank in its cluster."""
        x, y, _ = self.shape
        return rank % x, rank // x % y, rank // (x * y)

    # --- addresses ------------------------------------------------------------------------------------
    def map(self, thread, address, rank):
        """``mapa``: the shared::cluster address of the same place in the block of that rank."""
        self._check_rank(thread, rank, f"maps an address to rank {rank}")
        return (address & (1 << RANK) - 1) | rank + 1 << RANK

    def of_leader(self, thread, address):
        """The same place in the even one of its pair of blocks: on hardware, without bit 24."""
        block, place = self._home(thread, address)
        rank = block.rank & ~1
        return place if rank == thread.block.rank else self.map(thread, place, rank)

    def pair_of(self, thread, what, there=True):
        """The two blocks that ``cta_group::2`` means. ``there``: both have to have started."""
        rank = thread.block.rank & ~1
        if len(self.blocks) % 2:
            fault = thread.fault(faults.NotInCluster, f"{what} in a cluster of {len(self.blocks)}")
            fault.rule = "cta_group::2 is for two blocks whose ranks differ in the last bit (PTX 9.7.16)."
            fault.cure = "Launch clusters of an even number of blocks, or use cta_group::1."
            raise fault
        pair = self.blocks[rank : rank + 2]
        for block in pair if there else ():
            self._check_there(thread, block, lambda: f"{what} in tensor memory")
        return pair

    def _check_rank(self, thread, rank, what):
        if not 0 <= rank < len(self.blocks):
            raise thread.fault(faults.NotInCluster, f"{what} of a cluster of {len(self.blocks)}")

    def _home(self, thread, address):
        """(the block that a shared::cluster address means, the address in its shared memory)"""
        address &= WORD
        rank = (address >> RANK) - 1
        if rank < 0:
            return thread.block, address
        self._check_rank(thread, rank, f"uses an address of rank {rank}")
        return self.blocks[rank], address & (1 << RANK) - 1

    def _check_there(self, thread, block, what, barrier=None):
        """``block``, whose memory ``thread`` touches, has to have started, and not ended. Returns the visit."""
        known = shared_clocks(thread.foreign, block)
        met = block is thread.block or (STARTED, block) in thread.foreign
        if not met and (known is None or not known[0, : block.size].any()):
            what = f"{what()} of block {block.index}, and nothing says that this block has started"
            raise thread.fault(faults.BlockNotStarted, what)
        phase = barrier.phase if barrier else 0
        visit = thread.clock, thread.site(), what, barrier, phase
        if not block.live:
            raise thread.explain.visits_ended(block, thread, visit)
        return visit

    def _visit(self, thread, block, what, barrier=None):
        """The same, of what has to come before that block's end."""
        if block is not thread.block:
            self.visits[block][thread] = self._check_there(thread, block, what, barrier)

    def check_visits(self, block):
        """``block`` has ended: all accesses of others to its memory must come before that."""
        self._check_sent(block)
        known = block.clock_table[:, 0].max(axis=0)
        for thread, visit in self.visits[block].items():
            clock, _, _, barrier, phase = visit
            if barrier is not None and known[barrier.component] > phase:
                continue  # it has waited for that arrival
            if not any(t.knows_shared(thread.block, thread.tid, clock) for t in block.threads):
                raise thread.explain.visits_ended(block, thread, visit)

    # --- loads and stores -----------------------------------------------------------------------------
    def _locate(self, thread, address, size, verb):
        block, place = self._home(thread, address)
        memory = block.shared
        if place % size:
            name = memory.name_of(place)
            what = f"{verb} {size} bytes at {name}, not a multiple of {size}"
            raise thread.fault(faults.Misaligned, what, name)
        self._visit(thread, block, lambda: f"{verb} {memory.name_of(place)}")
        thread.time += COST.shared_access
        return memory, place

    def load(self, thread, address, words=1, narrow=0):
        """The 32-bit word at a shared::cluster address, or a tuple of several; ``narrow``: 1 or 2 bytes."""
        size = narrow or 4 * words
        memory, place = self._locate(thread, address, size, "reads")
        memory.on_read(thread, place, size)
        return unpack(memory.bytes, place, size, words)

    def store(self, thread, address, *words, narrow=0):
        """Write the 32-bit words at a shared::cluster address, or ``narrow`` bytes of one."""
        size = narrow or 4 * len(words)
        memory, place = self._locate(thread, address, size, "writes")
        for word in words:
            thread.check_defined(word, lambda: memory.name_of(place))
        record = thread.write_record()
        try:
            memory.on_write(thread, place, size, record)
        except faults.DataRace as race:
            decide(race, memory, thread, place, _little(words)[:size], record)
        memory.bytes[place : place + size] = _little(words)[:size]
        self._changed(thread, memory.block)

    def load_flag(self, thread, address, relaxed=False, size=4):
        """The word at a shared::cluster address, with acquire of cluster scope unless it is ``relaxed``."""
        return thread.load_flag(*self._locate(thread, address, size, FLAG), relaxed=relaxed, size=size)

    def store_flag(self, thread, address, word, relaxed=False, size=4):
        """Write it, with release unless it is ``relaxed``."""
        memory, place = self._locate(thread, address, size, FLAG)
        thread.store_flag(memory, place, word, relaxed=relaxed, size=size)
        self._changed(thread, memory.block)

    def atomic(self, thread, address, change, reads=True, dtype=UINT32, **order):
        """Read-modify-write of that word; returns the old value."""
        memory, place = self._locate(thread, address, dtype.itemsize, FLAG)
        thread.pause()
        before = thread.block.progress
        old = thread.atomic_flag(memory, place, change, reads, dtype, **order)
        if thread.block.progress != before:  # a lock that is taken stays as it is
            self._changed(thread, memory.block)
        return old

    @staticmethod
    def _changed(thread, block):
        for each in {thread.block, block}:
            each.progress += 1

    # --- barriers -------------------------------------------------------------------------------------
    def _barrier(self, thread, block, address, verb):
        """The barrier at that address of ``block``, which ``thread`` of another block uses."""
        live, name = block.barriers.live, block.barriers.place_of(thread, address)
        self._visit(thread, block, lambda: f"{verb} {name}", live.get(address))
        let_come(thread, block.shared, address, lambda: address not in live)
        barrier = live.get(address)
        if barrier is None:
            what = f"{verb} {name} of block {block.index}, which is not an initialised mbarrier"
            raise thread.fault(faults.NotABarrier, what, name)
        owner, clock, site = barrier.init_epoch
        if not thread.knows_shared(block, owner, clock) and not barrier.fenced_before(thread):
            what = f"{verb} {barrier.name} of block {block.index}, which {thread.describe_tid(block, owner)} "
            fault = thread.fault(faults.InitNotOrdered, what + f"initialised at {thread.at(site)}", barrier)
            fault.cure = "After mbarrier_init() call fence_mbarrier_init(), then have the whole cluster meet: "
            fault.cure += "cluster_arrive() and cluster_wait()."
            raise fault
        return barrier

    def mbarrier_arrive(self, thread, address, count, expected=None, drop=False):
        """Arrivals, of cluster scope, on a barrier at a shared::cluster address; bytes are ``expected``
        before. ``drop``: the coming phases expect one arrival less."""
        thread.pause()
        block, place = self._home(thread, address)
        if block is thread.block:
            if expected is not None:
                block.barriers.find(thread, place).expect(thread, expected)
            if drop:
                thread.mbarrier_arrive_drop(place)
            else:
                thread.mbarrier_arrive(place, count)
            return
        barrier = self._barrier(thread, block, place, "arrives on")
        thread.time += COST.barrier
        if expected is not None:
            barrier.expect(thread, expected)
        if not 1 <= count <= MAX_COUNT:
            raise thread.fault(faults.BadCount, f"arrives {count} times on {barrier.name}", barrier)
        known = shared_clocks(thread.foreign, block)
        seen = known[0, barrier.component] if known is not None and barrier.component < known.shape[1] else 0
        if fault := thread.explain.from_afar(barrier, thread, count, seen):
            raise fault
        if drop:
            barrier.drop(thread)
        thread.block.record("arrive", thread, thread.time, thread.time, barrier)
        barrier.arrive_from_afar(thread, count)
        self._changed(thread, block)
        if not barrier.pending:
            barrier.complete_if_done(thread)

    def mbarrier_bytes(self, thread, address, count):
        """Bytes that a barrier of any block expects or, where ``count`` is negative, takes as having come."""
        thread.pause()
        block, place = self._home(thread, address)
        if block is thread.block:
            barrier = block.barriers.find(thread, place)
        else:
            barrier = self._barrier(thread, block, place, "expects bytes on")
        if count < 0:
            barrier._add_bytes(thread, count, thread.site())
        elif block is thread.block:
            barrier.expect_alone(thread, count)
        else:
            barrier.expect(thread, count)
        self._changed(thread, block)
        barrier.complete_if_done(thread)

    def mbarrier_wait(self, thread, address, parity, suspend=True):
        """A try_wait of cluster scope on a barrier of the caller's own block."""
        block, place = self._home(thread, address)
        if block is not thread.block:
            what = f"waits on a barrier of block {block.index}: a thread waits on those of its own block only"
            raise thread.fault(faults.NotABarrier, what)
        done = thread.mbarrier_wait(place, parity, suspend)
        if done:
            thread.acquire(block.barriers.live[place].released_far)
        return done

    def commit_products(self, thread, address, mask, group=1):
        """``tcgen05.commit`` on the barrier at the same place of every block of ``mask``."""
        blocks, (_, place) = self._named_by(thread, mask), self._home(thread, address)
        commit_to(thread, [
            block.barriers.find(thread, place) if block is thread.block
            else self._barrier(thread, block, place, "commits products on") for block in blocks
        ], group)  # fmt: skip

    # --- copies ---------------------------------------------------------------------------------------
    def tensor_load(self, thread, dst, address, coords, bar, mask, offsets=(), pair=False):
        """A box of a tensor map into the same place of every block of ``mask``, or of the block of ``dst`` if
        that is None, each with its own barrier; ``pair``: with that of one block of its pair. ``offsets``: of a
        load in im2col mode."""
        home, dst = self._home(thread, dst)
        blocks = [home] if mask is None else self._named_by(thread, mask)
        box = thread.block.copy_engine.box(thread, dst, address, coords, offsets)
        self.multicast(thread, blocks, dst, bar, box, pair)

    def bulk_load(self, thread, dst, src, size, bar, mask):
        """The same of bytes of global memory."""
        blocks, (_, dst) = self._named_by(thread, mask), self._home(thread, dst)
        self.multicast(thread, blocks, dst, bar, thread.block.copy_engine.bulk_box(thread, dst, src, size))

    def _named_by(self, thread, mask):
        """The blocks of a multicast's mask; other blocks may go first."""
        thread.pause()
        ranks = [rank for rank in range(32) if mask >> rank & 1]
        if not ranks or ranks[-1] >= len(self.blocks):
            what = f"multicasts with mask {mask & WORD:#x} in a cluster of {len(self.blocks)}"
            raise thread.fault(faults.NotInCluster, what)
        return [self.blocks[rank] for rank in ranks]

    def multicast(self, thread, blocks, dst, bar, box, pair=False):
        engine, (home, bar) = thread.block.copy_engine, self._home(thread, bar)
        signalled = [self.blocks[b.rank & ~1 | home.rank & 1] if pair else b for b in blocks]
        barriers = [self._barrier_of_copy(thread, block, bar) for block in signalled]
        barrier = barriers[signalled.index(thread.block) if thread.block in signalled else 0]
        epoch = barrier.component, barrier.phase + 1, barrier.block
        if box.map is not None:
            engine.maps.on_copy(thread, box.map, *epoch)
        for region, src, count in box.sources:
            region.on_copy_read(thread, src, count, *epoch)
            engine.check_global_proxy(thread, region, src, count, box.what)
        when = engine.take_turn(thread, box.size)
        for block, barrier in zip(blocks, barriers, strict=True):
            engine.check_proxy(thread, dst, box.room, box.what, block)
            self._copy_into(thread, block, barrier, dst, box, when)

    def bulk_copy(self, thread, dst, src, size, bar):
        """Bytes of the caller's shared memory into that of another block, with a barrier there."""
        fetch, *where, when = self._sends(thread, "bulk copy between blocks", dst, src, size, bar)
        self._copy_into(thread, *where, Box("bulk copy between blocks", size, size, [], fetch), when)

    def bulk_reduce(self, thread, dst, src, size, bar, op, kind):
        """The same bytes combined with those there, element by element."""
        what = f"bulk reduction by {op} between blocks"
        fetch, *where, when = self._sends(thread, what, dst, src, size, bar)
        self._reduce_into(thread, *where, what, size, (fetch, op, kind), when)

    def _sends(self, thread, what, dst, src, size, bar):
        """(what fetches the bytes, the block they go to, the barrier and address there, start and landing)"""
        (block, dst, bar), src = self._one_block(thread, what, dst, bar), src & WORD
        own, engine = thread.block, thread.block.copy_engine
        engine.check_bulk_shared(thread, dst, src, size)
        barrier = self._barrier_of_copy(thread, block, bar)
        engine.check_proxy(thread, src, size, what)
        own.shared.on_copy_read(thread, src, size, barrier.component, barrier.phase + 1, block)
        self.sent[own].append((thread, thread.site(), what, barrier, barrier.phase + 1))
        engine.check_proxy(thread, dst, size, what, block)
        return lambda: own.shared.data[src : src + size], block, barrier, dst, engine.take_turn(thread, size)

    def _one_block(self, thread, what, dst, bar):
        """(the block, the address, the barrier's address), both in one block's memory; others may go first."""
        thread.pause()
        (block, dst), (home, bar) = self._home(thread, dst), self._home(thread, bar)
        if home is not block:
            told = f"a {what} into block {block.index} with a barrier of block {home.index}, not of that block"
            fault = thread.fault(faults.NotABarrier, told)
            rank = (home if block is thread.block else block).rank
            fault.rule = "The barrier that a copy signals lies in the block that it goes to (PTX 9.7.9.25.4.1)."
            fault.cure = f"Map dst and bar to the same rank: mapa_shared_cluster(dst, {rank}) and "
            fault.cure += f"mapa_shared_cluster(bar, {rank}); an address that is not mapped is the block's own."
            raise fault
        return block, dst, bar

    def store_async(self, thread, dst, words, bar):
        """``st.async``: 32-bit words to a shared::cluster address, with a barrier of the same block."""
        where, when = self._signals(thread, "st.async", dst, 4 * len(words), bar)
        for word in words:
            thread.check_defined(word, lambda: where[0].shared.name_of(where[2]))
        data = _little(words)
        self._copy_into(thread, *where, Box("st.async", len(data), len(data), [], lambda: data), when, True)

    def reduce_async(self, thread, dst, words, bar, op, kind):
        """``red.async``: one element there combined with one of ``words``."""
        what, data = f"red.async by {op}", _little(words)
        where, when = self._signals(thread, what, dst, len(data), bar)
        if where[0] is thread.block:
            fault = thread.fault(faults.NotInCluster, f"a {what} into the block's own shared memory")
            fault.rule = "red.async goes to the shared memory of another block of the cluster (PTX 9.7.13.7)."
            fault.cure = "Use an atomic of shared memory, and arrive on the barrier."
            raise fault
        self._reduce_into(thread, *where, what, len(data), (lambda: data, op, kind), when, True)

    def _signals(self, thread, what, dst, size, bar):
        """((block, barrier, address there), (start, landing)) of a generic operation that a barrier counts."""
        if len(self.blocks) == 1:
            rule = "st.async and red.async are for clusters of several blocks (PTX 9.7.9.12, 9.7.13.7)."
            cure = "Launch clusters of several blocks; in one block, store and then arrive."
            raise thread.fault(faults.NotInCluster, f"a {what} in a cluster of one block", rule=rule, cure=cure)
        block, dst, bar = self._one_block(thread, what, dst, bar)
        if dst % size:
            name = block.shared.name_of(dst)
            told = f"a {what} of {size} bytes to {name}, not a multiple of {size}"
            raise thread.fault(faults.Misaligned, told, name)
        if block is thread.block:
            barrier = block.barriers.find(thread, bar)
            barrier.issuers.add(thread.tid)
        else:
            barrier = self._barrier(thread, block, bar, "signals")
        thread.time += COST.shared_access
        return (block, barrier, dst), (thread.time, thread.time + COST.cluster_latency)

    def _copy_into(self, thread, block, barrier, dst, box, when, generic=False):
        """What ``box`` brings goes to ``block``."""
        kind = Copy if barrier.block is block else PeerCopy
        copy = kind(thread, box.what, dst, box.size, barrier.phase, barrier, generic)
        if kind is PeerCopy:
            copy.place = self.map(thread, dst, block.rank)

        def deliver():
            block.shared.data[dst : dst + box.room] = bytes(box.fetch())

        self._send(thread, block, copy, [(copy, dst, box.room)], deliver, when)
        if not copy.landed:
            block.shared.poison(dst, box.room)

    def _reduce_into(self, thread, block, barrier, dst, what, size, change, when, generic=False):
        """What ``fetch()`` gives is combined with what is there; ``change``: (fetch, operation, type)."""
        shared, (fetch, op, kind) = block.shared, change
        let_come(thread, shared, dst, lambda: UNWRITTEN in shared.written[dst : dst + size])
        if UNWRITTEN in shared.written[dst : dst + size]:
            raise thread.explain.bad_access(shared, thread, UNWRITTEN, dst, size)
        copy = Copy(thread, what, dst, size, barrier.phase, barrier, generic)
        for lo, hi, _ in stretches(shared.written[dst : dst + size]):
            copy.pieces.append(AsyncReduction(copy, (dst + lo, hi - lo)))

        def deliver():
            place = slice(dst, dst + size)
            shared.data[place] = combine(op, kind, bytes(shared.data[place]), bytes(fetch()))

        self._send(thread, block, copy, [(part, *part.extent) for part in copy.pieces], deliver, when)

    def _send(self, thread, block, copy, records, deliver, when):
        """``copy`` goes to ``block``, where ``deliver`` writes. ``records``: (record, address, size) of what it
        leaves there; ``when``: its start and landing."""
        facts, barrier, (start, landing) = None, copy.barrier, when
        if barrier.block is not thread.block:
            home = barrier.block
            known, copy.known = shared_clocks(thread.foreign, home), np.zeros(home.capacity, np.int32)
            if known is not None:
                copy.known[: known.shape[1]] = known[0]
            # Who sees the copy knows what phases its issuer had waited for; other things a copy does not order.
            facts = thread.clocks.copy()
            facts[:, : thread.block.size] = 0
        try:
            for record, address, size in records:
                block.shared.on_write(thread, address, size, record)
        except faults.SimFault as fault:
            if block is not thread.block:
                fault.add(f"the destination is in block {block.index}")
            raise
        thread.block.record("issue", thread, start, start, barrier, size=copy.size, dst=copy.address)
        self._changed(thread, block)

        def land():
            deliver()
            more = {"size": copy.size, "dst": copy.address, "site": copy.site}
            block.record("flight", thread, start, landing, barrier, **more)
            if facts is not None:
                barrier.gathered_foreign = merged(barrier.gathered_foreign, {thread.block: facts})
            barrier.deliver(copy, landing)

        barrier.block.launch_copy(copy, land)

    def _check_sent(self, block):
        """``block`` has ended: the copies out of its memory must be known to be complete."""
        for thread, site, what, barrier, phase in self.sent[block]:
            home = barrier.block
            done = (
                t.seen[barrier.component] >= phase if home is block
                else t.knows_shared(home, barrier.component, phase) for t in block.threads
            )  # fmt: skip
            if not any(done):
                raise thread.explain.sends_after_its_end(block, thread, site, what, barrier)

    def _barrier_of_copy(self, thread, block, address):
        """The barrier that a copy signals in ``block``."""
        if block is thread.block:
            return block.barriers.for_copy(thread, address)
        barrier = self._barrier(thread, block, address, "issues a copy that signals")
        owner, clock, site = barrier.init_epoch
        if not barrier.fenced_before(thread) and not covers_shared(thread.foreign, block, owner, clock, row=1):
            what = f"issues a copy that signals {barrier.name} of block {block.index}, initialised at "
            what += f"{thread.at(site)} with no fence after it"
            fault = thread.fault(faults.MissingInitFence, what, barrier)
            if not block.execution.waived.excuses(fault, thread):
                raise fault
        return barrier


def _little(words):
    """The bytes of 32-bit words."""
    return b"".join((int(word) & WORD).to_bytes(4, "little") for word in words)
