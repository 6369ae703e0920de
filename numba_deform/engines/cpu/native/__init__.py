"""Kernels of the CPU engine as machine code, with the interpreter's verdicts.

A kernel is typed by Numba's own inference; ``body`` writes LLVM's code for these types, function by function,
and ``maker`` makes a coroutine of it. Each thread of a block is a greenlet (``threads``) that resumes its
coroutine. Numbers, local arrays and packed halves are computed in place. A plain read or write first asks
``checks``, which know the most frequent cases, on records that are numbers in arrays (``shadow``, ``memory``).
For all else the coroutine gives way with a *request*: Python calls the interpreter's model of the function, and
that may park the greenlet as ever. So the order of threads, virtual time and all rules are the interpreter's.

Machine code never has the last word on a fault. Where it comes to an error, or to anything that it leaves open,
the schedule starts over and is interpreted.
"""
