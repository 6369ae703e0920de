"""Stand-ins for ``bench.measure`` that a worker's child process can import."""

import os
import time


def hang():
    """Never returns; ends only when the parent is gone, or kills it."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def by_stages(task):
    """Two stages are fine; one crashes the process, three hang it, four raise, five refuse."""
    stages = dict(task["entry"].parameters)["stages"]
    if stages == 1:
        os._exit(7)
    if stages == 3:
        hang()
    if stages == 4:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal\n memory access")
    if stages == 5:
        raise ValueError("refused")
    return {"error": 1e-4, "median_ms": 1.0, "min_ms": 0.9, "max_ms": 1.2, "pid": os.getpid()}


def identity(task):
    return {"task": task, "pid": os.getpid()}


# ms of candidates for tune: near samples, and samples everywhere
CANDIDATES = {
    "direct": (0.235, 0.30),
    "direct lanes=4": (0.230, 0.40),
    "tma-fastest": (0.5, 0.5),
    "window": (0.161, 9.0),
    "window cell=12x16": (0.155, 10.0),
    "window cell=16x12": (0.150, 8.0),
}


def by_candidates(task):
    """By CANDIDATES; the fastest window is wrong, and only near samples lie in their windows."""
    label, near = task["entry"].label, task["workload"].pattern == "local"
    if label == "window cell=16x12":
        return {"config": {}, "error": 0.5, "error_text": "wrong result: error 0.5, allowed 0.001"}
    ms = CANDIDATES[label][0 if near else 1]
    result = {"config": {}, "error": 1e-4, "median_ms": ms, "min_ms": ms, "max_ms": ms, "runs": 1}
    if label.startswith("window"):
        result["outside"] = 0.0003 if near else 0.4
    return result


def by_shape(task):
    """Times that grow with the spread, the queries and the number of the variant's letters."""
    workload, stages = task["workload"], dict(task["entry"].parameters).get("stages", 2)
    ms = len(task["entry"].variant) * (1 + (workload.sigma or 0) ** 2) * workload.num_query / 1e5
    ms *= 1 + 1 / (10 * stages)
    return {
        "config": {}, "error": 1e-4, "median_ms": ms, "min_ms": 0.9 * ms, "max_ms": 1.3 * ms, "runs": 9,
    }  # fmt: skip


def of_a_gpu(task):
    """Which GPU the process sees, as a time."""
    stages = dict(task["entry"].parameters)["stages"]
    if stages == 1:
        os._exit(7)
    if stages == 3:
        raise ValueError("three")
    return {"median_ms": float(os.environ["CUDA_VISIBLE_DEVICES"])}
