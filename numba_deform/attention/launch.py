"""The last step of a call on a GPU: its kernels launched, one or two, with the words between them."""

import contextlib
import functools
import threading

import numpy as np

from ..engines.gpu.device import DeviceArray, is_capturing, stream_handle
from ..kernels.direct import GATE_WORDS

PER_THREAD_STREAM = 2  # its handle, as the driver has it
GATES = 8192  # of a block of them
GATE_BYTES = 4 * GATE_WORDS

_OF_GRAPHS = {}  # id of a DeviceArray -> it: what launches read that were captured


def launch_all(bounds, addresses, stream):
    """Launch the :class:`Bound` s of a call; ``addresses`` of value, locations, weights and out, ``stream`` of
    cuda.core. What a captured launch reads stays for good."""
    handle = stream_handle(stream)
    capturing = is_capturing(handle)
    needs_gate = len(bounds) > 1
    with gates(bounds[0].gpu).gate(handle, capturing) if needs_gate else contextlib.nullcontext() as gate:
        for bound in bounds:
            extra = {"gate": gate} if needs_gate else {}
            if capturing:
                arguments = bound.arguments(addresses, extra=extra)
                _OF_GRAPHS.update((id(a), a) for a in arguments if isinstance(a, DeviceArray))
            bound.launch(addresses, stream, extra)


class Gates:
    """*Gates*, words of a GPU's memory by which the first launch of a call tells the second whether to run
    (kernels/direct.py).

    Calls of one stream come one after the other and share a gate; every captured call has one of its own for
    good, since graphs may run at the same time."""

    def __init__(self, gpu):
        self._gpu, self._blocks, self._free, self._of_stream = gpu, [], [], {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def gate(self, stream, capturing):
        """The address of a gate for one call on the stream of that handle. Inside, no other call is launched:
        two threads may share a stream."""
        # The handle of the per-thread default stream is another stream in each thread.
        key = (stream, threading.get_ident() if stream == PER_THREAD_STREAM else 0)
        with self._lock:
            if capturing:
                yield self._new_gate()
            else:
                if key not in self._of_stream:
                    self._of_stream[key] = self._new_gate()
                yield self._of_stream[key]

    def _new_gate(self):
        if not self._free:
            self._blocks.append(DeviceArray.of(self._gpu, np.zeros((GATES, GATE_WORDS), np.uint32)))
            start = self._blocks[-1].address
            self._free += range(start, start + GATES * GATE_BYTES, GATE_BYTES)
        return self._free.pop()


gates = functools.cache(Gates)
