"""Right programs of the corpus (``tests/corpus``), each so often side by side (``grown.py``) that they fill all
SMs three times: kernels as ``other_kernels.py`` has them. What each leaves is what its author says."""

import functools

import numpy as np
from scaled import corpus, most_resident

import numba_deform as nd

NAMES = (
    "double_buffering", "two_buffers_of_stores", "refill_behind_syncthreads", "load_compute_store",
    "random_numbers", "matrices_with_ragged_borders", "hashes_of_64_bits", "a_histogram_in_two_levels",
    "sort_until_nothing_moves", "stencil_with_halo", "a_tree_of_warps", "swizzled_stages_at_128_bytes",
    "one_sum_for_the_block_by_two_levels", "transpose_with_padding",
)  # fmt: skip


@functools.cache
def programs():
    """{name: its ``scaled.Program``}"""
    return {program.name.rpartition("/")[2]: program for topic in corpus().values() for program in topic}


def side_by_side(name, copies=None):
    """The Launch of a program whose outputs are arrays that it is handed; ``copies``: else all SMs' fill."""
    work, right = programs()[name].make(most_resident, copies), {}
    arrays = {arg.__array_interface__["data"][0]: (parameter, arg)
              for parameter, arg in zip(work.kernel.parameters, work.args, strict=True)
              if isinstance(arg, np.ndarray)}  # fmt: skip
    for output in work.outputs:
        parameter, arg = arrays[output.array.__array_interface__["data"][0]]
        right[parameter] = arg, np.broadcast_to(output.expected, arg.shape)
    before = {parameter: arg.copy() for parameter, (arg, _) in right.items()}
    return nd.Launch(work.kernel, work.grid, work.args, {parameter: x for parameter, (_, x) in right.items()},
                     initial=before, tolerance=1e-6)  # fmt: skip


KERNELS = {name: functools.partial(side_by_side, name) for name in NAMES}
CASES, SMALL = [(name, ()) for name in NAMES], {name: (2,) for name in NAMES}
