"""The CPU engine: runs a kernel's own Python code, thread by thread, and knows the rules.

    from numba_deform.engines.cpu import simulate
    report = simulate(kernel, grid=2, block=256, args=(value, out, 100), schedules=20)

``simulate`` runs schedules by chance, ``explore`` all that a small kernel has. A broken rule ends the
run with a subclass of ``SimFault`` that says what happened and where.

Eight rooms; each imports from itself and from those before it (``tests/unit/test_house.py``):

- ``memory``        bytes, their access records, vector clocks, and the verdict on an access
- ``reports``       from a place in a run to the source line, and what stands around it
- ``async_units``   mbarriers, the copy engine, tensor maps, reductions, tensor cores
- ``machine``       threads, warps, blocks, clusters, and who runs next
- ``explain``       what is wrong, in words, with its cause and its cure; the rooms before it are handed it
- ``native``        all that as machine code; it knows no language
- ``frontends``     a kernel's source becomes calls of the machine: Python, typed by Numba; PTX
- ``schedules``     one execution, many by chance, or all that there are

**A store, from the kernel's line to the report.** ``st_shared_b32(address, x)`` in a kernel is an
``Intrinsic``. ``frontends.numba_python.name_binding.NameBinding.replace`` has put its model in the place of
the name; the model (``device/memory.py``) calls ``store`` of the greenlet that runs
(``machine.thread_memory.ThreadMemory.store``). That finds the memory behind the address, and asks it:
``memory.shadow_memory.ShadowMemory.on_write`` looks at the records of the last accesses to these bytes. Each
says which thread made it, and when by that thread's clock. If the storing thread's vector clock has come that
far, the earlier access happened before; the store leaves a record of its own (``memory.access_records.Write``,
with the call site) and changes the bytes. If not, ``explain.accesses`` says in words what is wrong, which the
thread has as ``explain``; ``explain.race_causes`` looks for why, and for what would mend it;
``machine.thread_life.ThreadLife.fault_at`` adds thread, block and line (``reports.call_sites.place``), and the
``SimFault`` leaves the run through ``machine.scheduler.Scheduler.run``.

**A try_wait.** ``mbarrier_try_wait_parity(bar, parity)`` comes to
``machine.thread_barriers.ThreadBarriers.mbarrier_wait`` in the same way. If the phase is complete, the
thread's clock takes over all that the barrier has gathered (``async_units.mbarrier.MBarrier``: arrivals, and
copies by ``async_units.copy_engine``), which is what orders later accesses. If it is not, the thread
``park``s: it notes what it waits for and switches to the greenlet that ``machine.scheduler.Scheduler.next``
names. The arrival or the bytes that complete the phase make it ready again. When nobody is ready and no copy
is in flight, ``machine.progress.Progress`` draws who waits for whom, and blames the one at the root.

**The same as machine code.** ``frontends.numba_python.native_calls`` writes the store as a call of
``native.runtime.access_checks``, which knows the frequent cases, and the wait as a *request*, which
``native.runtime.mbarrier_fast_path`` answers or ``native.state.requests.RequestHandler`` hands to the models
above. Where it comes to anything but a clean end, ``schedules.prepared_launch.PreparedLaunch.run`` starts the
schedule over, interpreted: so a verdict has one author.
"""

from ..faults import SimFault
from .schedules.explore import Exploration, explore
from .schedules.simulate import Report, simulate

__all__ = ["Exploration", "Report", "SimFault", "explore", "simulate"]
