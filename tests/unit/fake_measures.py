"""Stand-ins for ``bench.measure`` that a worker's child process can import."""

import os
import time


def by_stages(task):
    """Two stages are fine; one crashes the process, three hang it, four raise, five refuse."""
    stages = dict(task["entry"].parameters)["stages"]
    if stages == 1:
        os._exit(7)
    if stages == 3:
        time.sleep(60)
    if stages == 4:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal\n memory access")
    if stages == 5:
        raise ValueError("refused")
    return {"error": 1e-4, "median_ms": 1.0, "min_ms": 0.9, "max_ms": 1.2, "pid": os.getpid()}


def identity(task):
    return {"task": task, "pid": os.getpid()}
