"""Planted faults: kernels that differ from a right twin in the line at fault, for learning and as tests.

    from numba_deform.course.bugs import BUGS
    bug = BUGS["parity_inverted"]
    launch = bug.arguments()
    simulate(bug.kernel(), launch.grid, bug.kernel().threads, launch.args)  # raises the fault

``BUGS`` holds a :class:`base.Bug` for each file, in teaching order. ``numba-deform bugs`` lists them.

Notes 1 to 5, where many of them were met, are the reports on CUDA C++ kernels for this operator that
the project began with (bench/ORIGINS.md): 1 and 2 on pipelines of several stages, 3 on producer and
consumer warps, 4 on tiles and tensor maps, 5 a guide to TMA on Hopper.

Each file is to be read alone, so the pipelines around the faults are repeated on purpose.
"""

import importlib

from .base import Bug, Launch

__all__ = ["BUGS", "Bug", "Launch"]

NAMES = (
    # phases and parities
    "no_full_wait", "parity_never_flips", "parity_inverted", "parity_two_behind",
    # bytes and arrivals
    "expect_too_many", "expect_too_few", "count_too_high", "count_too_low",
    # refilling a stage
    "no_empty_wait", "release_too_early", "no_warp_sync", "no_refill_fence",
    # a barrier's life
    "init_again", "init_in_loop", "arrive_drop_reset", "no_init_sync", "no_init_fence",
    "index_past_array", "misaligned_barrier", "misaligned_tile",
    # the copy engine's view of memory, and its end
    "no_proxy_fence", "exit_in_flight",
    # threads that do not come
    "tail_skips_barrier", "divergent_syncthreads", "named_barrier_count", "named_barrier_one_lane",
    # flags
    "flag_without_release", "flag_never_set",
    # wrong without any rule broken, or broken elsewhere than it shows
    "metadata_unwritten", "map_dims_order", "fp16_coordinates",
)  # fmt: skip

BUGS = {name: Bug(name, importlib.import_module(f"{__name__}.{name}")) for name in NAMES}
