"""Kernels of the CPU engine as machine code, with the interpreter's verdicts. It knows no language.

A front end writes LLVM's code with what ``codegen`` has, for one coroutine of which each thread of a block has
one. Numbers, local arrays and packed halves are computed in place. A plain read or write first asks
``runtime.access_checks``, which know the most frequent cases, on records that are numbers in arrays
(``state.record_table``, ``state.memory``). For all else the coroutine gives way with a *request*.
``runtime.scheduler`` resumes one coroutine after the other. What threads do together (``runtime.collectives``:
shuffles, votes, syncwarp, syncthreads), and most of what they do at mbarriers (``mbarrier_fast_path``), is done
there. All these functions are compiled by ``runtime.word_functions``. With any other request a greenlet calls
the interpreter's model of the function, and that may park it as ever (``state.requests``). So the order of
threads, virtual time and all rules are the interpreter's.

Machine code never has the last word on a fault. Where it comes to an error, or to anything that it leaves open,
the schedule starts over and is interpreted.
"""
