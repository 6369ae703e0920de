"""Schedules of one launch in the workers of an executor, which may be on other machines.

A worker gets the launch as bytes: functions by value, and the arrays in memory of its own, where those that
overlap here overlap again. Only the totals of a clean end come back; whatever else it met is run once more
here, as for processes that are forked (``processes``).
"""

import ctypes
import functools
import io
import pickle
import threading
from dataclasses import fields

import cloudpickle
import numpy as np

from ...gpu.in_place import owner_of
from ...tensormap import TensorMap, TensorMapArray
from ..frontends import threads
from ..memory.scalars import bounds_of, start_of

PIECES = 64  # as many futures at most: a launch is sent once with each
ONE_AT_A_TIME = threading.Condition()  # held by whoever runs: where workers are threads, or this one
ALIGNED = 1024  # an array begins at the same address as here, modulo this many bytes


def check_executor(executor):
    """Refuse what is none."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ValueError(f"executor={executor!r} must be a concurrent.futures.Executor")


def to_run(executor, launch, numbers, report, landing):
    """The schedules of ``numbers`` that the caller has to run itself, in order, as ``processes.to_run``: the
    last one, and those of which a worker did not see a clean end."""
    rest = numbers[:-1]
    sent = packed(launch) if rest else None
    size = -(-len(rest) // PIECES) or 1
    pieces = [rest[i : i + size] for i in range(0, len(rest), size)]
    futures = [executor.submit(run_piece, sent, piece, landing, type(report)) for piece in pieces]
    try:
        for piece, future in zip(pieces, futures, strict=True):
            for number, totals in zip(piece, result_of(future), strict=True):
                if totals is None:
                    with ONE_AT_A_TIME:
                        yield number
                else:
                    report.add(totals)
        with ONE_AT_A_TIME:
            yield numbers[-1]
    finally:
        for future in futures:
            future.cancel()


def result_of(future):
    """What a worker returns. One that is a thread here can run meanwhile, whatever the caller holds."""
    with ONE_AT_A_TIME:
        future.add_done_callback(_ended)
        ONE_AT_A_TIME.wait_for(future.done)
    return future.result()


def _ended(future):
    with ONE_AT_A_TIME:
        ONE_AT_A_TIME.notify_all()


def run_piece(sent, numbers, landing, new_report):
    """In a worker: what each schedule adds to the report; None if it is to be run where others can see it."""
    with ONE_AT_A_TIME:
        launch = launch_of(sent)
        return [clean(totals_of, number, launch, landing, new_report) for number in numbers]


def totals_of(number, launch, landing, new_report):
    """What a schedule adds to the report."""
    totals = new_report()
    launch.run(number, landing, False, totals)
    return totals


def clean(run, *args):
    """In a worker: what ``run`` returns; None if it ends otherwise, or has something to print."""
    prints, threads.PRINTS = threads.PRINTS, False
    try:
        return run(*args)
    except (Exception, threads.Prints):
        return None
    finally:
        threads.PRINTS = prints


@functools.lru_cache(1)  # the next piece is of the same launch
def launch_of(sent):
    """In a worker: the launch that is sent as these bytes."""
    from .prepared_launch import PreparedLaunch

    call, only = pickle.loads(sent)
    launch = PreparedLaunch(*call)
    launch.only = only
    return launch


class NotSent(ValueError):
    """A worker could not have the launch."""


def packed(launch):
    """The bytes of a launch; NotSent where a worker could not have them."""
    return dumped((launch.call, launch.only))


def dumped(things):
    """Arguments of a launch as bytes."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(things)
    except NotSent:
        raise
    except Exception as error:
        raise NotSent(f"executor=: this launch cannot be sent to another process: {error}") from error
    return file.getvalue()


class _Pickler(cloudpickle.Pickler):
    """Arrays and tensor maps hold addresses, which are others in another process."""

    def __init__(self, file):
        super().__init__(file)
        self.owners = {}  # the memory that is sent -> the array that it is sent with

    def reducer_override(self, thing):
        if isinstance(thing, np.ndarray) and not thing.dtype.hasobject:
            return self._array(thing)
        if isinstance(thing, TensorMap):
            if thing.array is None:
                raise NotSent(f"executor=: {thing!r} has an address of this process: map an array")
            return _map, (type(thing), {f.name: getattr(thing, f.name) for f in fields(thing)})
        if isinstance(thing, TensorMapArray):
            return TensorMapArray, (thing.maps,)
        return super().reducer_override(thing)

    def _array(self, array):
        """An array as a view of the one whose memory it is; that one as its bytes."""
        owner = owner_of(array)
        looks = array.shape, array.dtype, array.strides, array.flags.writeable
        start = start_of(array)
        if owner is not array:
            return _view, (owner, start - start_of(owner), *looks)
        first, last = bounds_of(array)
        for (begin, stop), sent in self.owners.items():
            if begin <= first and last <= stop and first < last:
                return _view, (sent, start - start_of(sent), *looks)
            if first < stop and begin < last:
                raise NotSent("executor=: two arrays share memory that is no array's: make them views of one")
        self.owners[first, last] = array
        return _owner, (ctypes.string_at(first, last - first), first % ALIGNED, start - first, *looks)


def _owner(held, place, *looks):
    """An array in new memory that begins at ``place`` modulo ALIGNED, with what it held."""
    memory = np.empty(len(held) + ALIGNED, np.uint8)
    first = (place - start_of(memory)) % ALIGNED
    memory[first : first + len(held)] = np.frombuffer(held, np.uint8)
    return _view(memory[first:], *looks)


def _view(owner, offset, shape, dtype, strides, writeable):
    """An array whose first element lies ``offset`` bytes behind that of ``owner``."""
    memory = owner_of(owner)
    array = np.ndarray(shape, dtype, memory, start_of(owner) + offset - start_of(memory), strides)
    array.flags.writeable = writeable
    return array


def _map(kind, values):
    made = object.__new__(kind)
    vars(made).update(values, address=start_of(values["array"]))
    return made
