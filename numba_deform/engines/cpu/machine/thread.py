"""A CUDA thread of the CPU engine. Its methods without an underscore are the engine's side of the intrinsics in
``numba_deform/device``; here stand those that keep no state in the thread."""

import operator
from typing import NamedTuple

import numpy as np

from ....device.limits import MAX_COUNT
from ... import faults
from ..async_units import tcgen05, warp_mma, wgmma
from ..async_units.mbarrier import phase_of
from ..async_units.reductions import combine
from ..async_units.tensor_memory import tensor_memory_of
from ..memory.scalars import WORD
from .thread_barriers import ThreadBarriers

ADDS = "adds to"  # in reports
# Cache policies by priority, as ptxas makes them for sm_90; bits 52 to 55 hold the fraction.
POLICIES = {"evict_first": 0x12 << 56, "evict_last": 0x14 << 56, "evict_normal": 0x16 << 56,
            "evict_unchanged": 0x10 << 56}  # fmt: skip


class OldToken(NamedTuple):
    """A wait by the token of a phase that was over before the thread's last arrival, in phase ``last``."""

    barrier: object
    phase: int
    last: int
    site: object
    clock: int


def _bytes_of(word):
    return (int(word) & WORD).to_bytes(4, "little")


def engine_does(name):
    """The method of Thread that asks the block's CopyEngine, or its ``maps``, for a method."""
    method = operator.attrgetter(name)
    return lambda self, *args: method(self.block.copy_engine)(self, *args)


def tensor_memory_does(name):
    """The same of its TensorMemory."""
    return lambda self, *args: getattr(tensor_memory_of(self.block), name)(self, *args)


class Thread(ThreadBarriers):
    """One thread with all its instructions; those of the asynchronous units are functions of these."""

    cp_async, cp_async_arrive = engine_does("cp_async"), engine_does("cp_async_arrive")
    tensor_load, tensor_store = engine_does("tensor_load"), engine_does("tensor_store")
    bulk_load, bulk_store = engine_does("bulk_load"), engine_does("bulk_store")
    bulk_prefetch, tensor_prefetch = engine_does("bulk_prefetch"), engine_does("tensor_prefetch")
    commit_group, wait_group = engine_does("commit_group"), engine_does("wait_group")
    find_map, fence_map = engine_does("maps.find"), engine_does("maps.fence")
    replace_map, publish_map = engine_does("maps.replace"), engine_does("maps.publish")
    load_matrices, store_matrices = warp_mma.load_matrices, warp_mma.store_matrices
    multiply_matrices, multiply_fragments = warp_mma.multiply_matrices, warp_mma.multiply_fragments
    matrix_descriptor, warpgroup_fence = wgmma.matrix_descriptor, wgmma.warpgroup_fence
    commit_products, wait_products = wgmma.commit_products, wgmma.wait_products
    multiply_in_warpgroup, multiply_registers = wgmma.multiply, wgmma.multiply_registers
    fence_registers = wgmma.fence_registers
    tcgen05_alloc, tcgen05_dealloc = tensor_memory_does("allocate"), tensor_memory_does("free")
    tcgen05_relinquish, tcgen05_wait = tensor_memory_does("relinquish"), tensor_memory_does("wait")
    tcgen05_ld, tcgen05_st = tensor_memory_does("load"), tensor_memory_does("store")
    tcgen05_mma, tcgen05_cp, tcgen05_commit = tcgen05.multiply, tcgen05.copy, tcgen05.commit

    def mbarrier_arrive_state(self, address, count, expected=None, complete=True):
        barrier = self.block.barriers.find(self, address)
        token = barrier.token()
        if expected is not None:
            barrier.expect(self, expected)
        self.mbarrier_arrive(address, count, complete)
        return token

    @staticmethod
    def mbarrier_pending_count(token):
        return int(token) & MAX_COUNT

    def mbarrier_wait_state(self, address, token, suspend):
        phase, barrier = phase_of(int(token)), self.block.barriers.find(self, address)
        done = self.mbarrier_wait(address, phase & 1, suspend, int(token))
        if done:
            last = barrier.last_arrival(self)
            if last is not None and last > phase:
                self.old_token = OldToken(barrier, phase, last, self.site(), self.clock)
            elif self.old_token and self.old_token.barrier is barrier:
                self.old_token = None
        return done

    def atomic_add(self, address, kind, values, space="global"):
        """Additions to neighbouring words in memory, each atomic by itself; returns the old values.
        ``kind``: of the numbers, f32, or f16 and bf16 of which a word has two."""
        self._locate(space, address, 4 * len(values), ADDS)  # the vector's alignment is that of all of it
        old, wide = [], space == "global"  # in shared memory of scope cta, where subnormals stay
        for i, value in enumerate(values):
            added = np.float32(value).tobytes() if kind == "f32" else _bytes_of(value)

            def change(word, added=added):
                return int.from_bytes(combine("add", kind, _bytes_of(word), added, flush=wide), "little")

            old.append(self.atomic_word(space, int(address) + 4 * i, change, wide=wide))
        return tuple(word if kind != "f32" else np.uint32(word).view(np.float32) for word in old)

    def atomic_add_u64(self, address, value):
        """An addition to a 64-bit word in global memory, modulo 2^64: to both halves, with nothing between."""
        self._locate("global", address, 8, ADDS)
        value, address = int(value) % 2**64, int(address)
        low = self.atomic_word("global", address, lambda old: old + (value & WORD))
        carry = low + (value & WORD) >> 32
        self.atomic_word("global", address + 4, lambda old: old + (value >> 32) + carry)

    def create_policy(self, priority, fraction):
        """A cache policy, which has no effect here."""
        if not 0 < fraction <= 1:
            raise self.fault(faults.BadCachePolicy, f"makes a cache policy for {fraction} of the lines")
        return POLICIES[priority] | int(np.float32(fraction) * np.float32(15.99)) << 52

    def check_policy(self, policy):
        """Refuse a number that no ``createpolicy`` returns."""
        if int(policy) & ~(0xF << 52) not in POLICIES.values():
            raise self.fault(faults.BadCachePolicy, f"gives {int(policy):#x} for a cache policy")
