"""The names of ``nd`` are imported when they are asked for: also those that only a kernel asks for."""

import subprocess
import sys

PROGRAM = """
import sys

import numpy as np
import numba_deform as nd


@nd.function
def prefetch(address):
    nd.cp_async_bulk_prefetch(address, 16)


@nd.kernel(threads=32)
def kernel(out: nd.u64):
    nd.red_add_gpu_global_f32(out, nd.float32(1))
    prefetch(out)


def plain(out):
    nd.cp_async_wait_all()


assert not {"red_add_gpu_global_f32", "cp_async_bulk_prefetch", "cp_async_wait_all"} & vars(nd).keys()
out = np.zeros(4, np.float32)
nd.simulate(kernel, 1, args=(out,))
nd.simulate(plain, 1, 32, args=(out,))
assert out[0] == 32
"""


def test_a_kernel_finds_what_nothing_has_asked_for_before():
    """Numba knows no intrinsic that comes while it looks at the kernel."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
