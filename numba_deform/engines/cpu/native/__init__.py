"""Kernels of the CPU engine as machine code, with the interpreter's verdicts.

A kernel is typed by Numba's own inference; ``body`` writes LLVM's code for these types, function by function
(``calls``), and ``maker`` makes a coroutine of it, of which each thread of a block has one. Numbers, local
arrays and packed halves are computed in place. A plain read or write first asks ``checks``, which know the most
frequent cases, on records that are numbers in arrays (``shadow``, ``memory``). For all else the coroutine gives
way with a *request*. ``turns`` resumes one coroutine after the other. What threads do together (shuffles,
votes, syncwarp and syncthreads: ``together``), and most of what they do at mbarriers (``waits``), is done
there. All these functions are compiled by ``words``. With any other request a greenlet calls the interpreter's
model of the function, and that may park it as ever (``threads``). So the order of threads, virtual time and all
rules are the interpreter's.

Machine code never has the last word on a fault. Where it comes to an error, or to anything that it leaves open,
the schedule starts over and is interpreted.
"""
