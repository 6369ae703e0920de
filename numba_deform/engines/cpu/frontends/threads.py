"""What a thread asks of its block and its warp, in whatever language it is written: where it is, barriers,
votes, shuffles, fences, shared arrays. The rules are the thread's (``machine``)."""

import dis
import functools
import sys
import types
from operator import attrgetter

from greenlet import getcurrent

from ..memory.scalars import dtype_of, passing_on

PRINTS = True  # not in a process whose output nobody is going to see


class Prints(BaseException):
    """The kernel has something to print, and this process must not."""


@functools.cache
def inside(model):
    """An intrinsic's model for where it is certain that a thread of the engine runs it."""
    if "cpu" not in model.__code__.co_names:  # it is one of numbers alone
        return passing_on(model)
    scope = model.__globals__ | {"cpu": getcurrent}
    return types.FunctionType(model.__code__, scope, model.__name__, model.__defaults__, model.__closure__)


class Index:
    """``blockDim`` and its like: three numbers by their names alone, as Numba has them."""

    __slots__ = ("x", "y", "z")

    def __init__(self, x, y, z):
        self.x, self.y, self.z = x, y, z

    def __repr__(self):
        return f"({self.x}, {self.y}, {self.z})"


class Place(Index):
    """``threadIdx`` or ``blockIdx``: of the thread that asks, whose ``number`` runs over ``shape``, x first."""

    __slots__ = ("number", "shape")

    def __init__(self, number, shape):
        self.number, self.shape = attrgetter(number), shape

    x = property(lambda self: self.number(getcurrent()) % self.shape.x)
    y = property(lambda self: self.number(getcurrent()) // self.shape.x % self.shape.y)
    z = property(lambda self: self.number(getcurrent()) // (self.shape.x * self.shape.y))


@functools.lru_cache(4096)
def _assigned_name(code, offset):
    """The variable that takes the result of the call at ``offset``."""
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset and instruction.opname.startswith("STORE"):
            name = instruction.argval
            return name[0] if isinstance(name, tuple) else str(name)  # 3.13 stores two at once
    return "shared array"


def _voted(join):
    """``syncthreads`` with a vote: what ``join`` makes of all of them."""

    def vote(self, predicate):
        thread = getcurrent()
        return int(join(thread.block.syncthreads(thread, bool(predicate))))

    return vote


def source_of(mode, lane, b, c):
    """(the lane that ``lane`` has the value of, whether it lies in its segment; else it is ``lane`` itself)"""
    b, segment = b & 31, c >> 8 & 31
    first = lane & segment
    source = first | b & ~segment if mode == "idx" else lane ^ b if mode == "bfly" else lane + (
        b if mode == "down" else -b)  # fmt: skip
    last = first | c & 31 & ~segment
    inside = source >= last if mode == "up" else source <= last
    return source if inside else lane, inside


def _shuffled(mode, last):
    """A shuffle of a whole warp."""

    def shuffle(self, mask, value, b):
        thread = getcurrent()
        return thread.shuffle(mask, value, source_of(mode, thread.lane, int(b), last)[0], f"shfl.{mode}")

    return shuffle


class Threads:
    """The threads of one launch: what is asked is asked of the one that runs."""

    def __init__(self, launch):
        self.gridDim, self.blockDim = Index(*launch.grid_shape), Index(*launch.block_shape)
        self.threadIdx, self.blockIdx = Place("tid", self.blockDim), Place("block.index", self.gridDim)
        self._sites = {}

    @property
    def laneid(self):
        return getcurrent().lane

    def shared_array(self, shape, dtype, alignment=None, name=None):
        thread = getcurrent()
        frame = sys._getframe(1)
        # The same code may stand in several functions of one factory; their globals tell them apart.
        key = (id(frame.f_code), frame.f_lasti, id(frame.f_globals))
        if (made := thread.block.shared.views.get(key)) is not None:
            return made
        if key not in self._sites:
            self._sites[key] = name or _assigned_name(frame.f_code, frame.f_lasti)
        shape = tuple(int(n) for n in shape) if isinstance(shape, tuple) else (int(shape),)
        return thread.block.shared.array(thread, key, self._sites[key], shape, dtype_of(dtype), alignment)

    def syncthreads(self):
        thread = getcurrent()
        thread.block.syncthreads(thread)

    syncthreads_count, syncthreads_and, syncthreads_or = map(_voted, (sum, all, any))

    def syncwarp(self, mask=0xFFFFFFFF):
        getcurrent().collective("syncwarp", mask, None)

    def threadfence(self):
        """``membar.gl``, which is ``fence.sc.gpu`` (PTX ISA 9.7.13.4)."""
        getcurrent().fence_acq_rel(sc=True)

    threadfence_system = threadfence

    def threadfence_block(self):
        getcurrent().fence_acq_rel(wide=False)

    def nanosleep(self, nanoseconds):
        getcurrent().poll()

    shfl_sync, shfl_xor_sync = _shuffled("idx", 31), _shuffled("bfly", 31)
    shfl_up_sync, shfl_down_sync = _shuffled("up", 0), _shuffled("down", 31)

    @staticmethod
    def _votes(mask, predicate, kind):
        return getcurrent().collective(kind, mask, bool(predicate))

    def ballot_sync(self, mask, predicate):
        return _lanes(lane for lane, vote in self._votes(mask, predicate, "vote.ballot").items() if vote)

    def any_sync(self, mask, predicate):
        return int(any(self._votes(mask, predicate, "vote.any").values()))

    def all_sync(self, mask, predicate):
        return int(all(self._votes(mask, predicate, "vote.all").values()))

    def eq_sync(self, mask, predicate):
        return int(len(set(self._votes(mask, predicate, "vote.uni").values())) == 1)

    def match_any_sync(self, mask, value):
        values = getcurrent().collective("match.any", mask, value)
        return _lanes(lane for lane, other in values.items() if other == value)

    def match_all_sync(self, mask, value):
        values = getcurrent().collective("match.all", mask, value)
        same = len(set(values.values())) == 1
        return _lanes(values) if same else 0, same

    def activemask(self):
        return getcurrent().active_mask()


def _lanes(lanes):
    """The mask of some lanes, an int32 as Numba says of votes and matches."""
    mask = sum(1 << lane for lane in lanes)
    return mask - (1 << 32) if mask >> 31 else mask
