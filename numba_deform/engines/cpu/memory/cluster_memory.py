"""Shared memory that other blocks of a cluster reach (PTX ISA 5.1.7).

A shared::cluster address is a block's own shared address, with its rank, counted from 1, in the bits from
``RANK`` on; without one it means the caller's own block. ``machine.cluster`` finds the block that an address
means.
"""

from ...faults import UninitialisedRead
from .access_records import BLOCK, CLOCK, OWNER, UNWRITTEN, PeerCopy, copy_of
from .shared_memory import SharedMemory

RANK = 24  # the first bit of a rank in an address
LATE, MANY = 5, 5000  # turns that others get to do what they should have done before: idle ones, and in all


def let_come(thread, memory, address, late):
    """Give other blocks time to do what they may not have done yet, so that a fault can name it."""
    idle, blocks = 0, thread.block.cluster.blocks
    for turn in range(MANY):
        if idle == LATE or not late():
            return
        before = sum(block.progress for block in blocks)
        # To blocks that are ready to run, not only to its own threads; in turn with its block's own copies.
        thread.block.gives_way = turn % 2 == 0
        thread.spin("flag", memory, address)
        moves = before != sum(block.progress for block in blocks) or any(block.copies for block in blocks)
        idle = 0 if moves else idle + 1


class ClusterShared(SharedMemory):
    """The shared memory of a block that others reach. A copy into it is complete by a barrier of this block,
    whoever has issued it."""

    def array(self, thread, site, *kind):
        if site not in self.arrays:  # in all blocks at once, so that it lies at the same place of each
            for block in self.block.cluster.blocks:
                block.shared.arrays[site] = block.shared._make(thread, *kind)
        return super().array(thread, site, *kind)

    def on_read(self, thread, address, size):
        if copy := self._copy_from(thread, address, size):
            raise thread.explain.bad_access(self, thread, copy, address, size)
        super().on_read(thread, address, size)

    def on_write(self, thread, address, size, record):
        if copy := self._copy_from(thread, address, size):
            raise thread.explain.bad_access(self, thread, copy, address, size, record)
        super().on_write(thread, address, size, record)

    def _copy_from(self, thread, address, size):
        """A copy from the block of ``thread``, another one, that it does not know to be complete. Its epoch is
        one of this block, which the quick checks would look up among those of the thread's."""
        if thread.block is self.block:
            return None
        late = (w for w in self.writes(address, address + size) if copy_of(w) and not self.sees(thread, w))
        return next((w for w in late if not w.atomic), None)

    def _check_read(self, thread, records, address, size):
        let_come(thread, self, address, lambda: UNWRITTEN in self.written[address : address + size])
        try:
            super()._check_read(thread, self.written[address : address + size], address, size)
        except UninitialisedRead as fault:
            others = (b.shared for b in self.block.cluster.blocks if b is not self.block)
            written = [w for other in others for w in other.writes(address, address + size) if w.site]
            if written:
                what = f"block {written[0].block.index} was written at {thread.at(written[0].site)}"
                fault.add(f"the same place of {what}")
                fault.cure += " Without mapa_shared_cluster an address is that of the block that uses it."
            raise

    def before_write(self, thread, address, size, record):
        if record.atomic:
            self.check_scope(thread, address, size, record.wide, writes=True)

    def on_acquire(self, thread, address, size, wide, *more):
        self.check_scope(thread, address, size, wide)
        super().on_acquire(thread, address, size, wide, *more)

    def sees(self, thread, w):
        if isinstance(w, PeerCopy):
            return w.landed and thread.knows_shared(w.barrier.block, w.barrier.component, w.phase + 1)
        block = self.block if copy_of(w) else w.block
        if block is thread.block or block is None:
            return super().sees(thread, w)
        return thread.knows_shared(block, w.owner, w.clock)

    def _saw_reader(self, thread, r):
        if r[BLOCK] is thread.block:
            return super()._saw_reader(thread, r)
        return thread.knows_shared(r[BLOCK], r[OWNER], r[CLOCK])

    def name_of(self, address, element=False):
        rank = (address >> RANK) - 1
        if rank >= 0:
            return f"shared::cluster address {address & (1 << RANK) - 1:#x} of rank {rank}"
        return super().name_of(address, element)
