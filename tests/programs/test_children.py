"""Programs that start others: their launches are judged and counted, however they are started and end."""

import json
import os

import numpy as np
import pytest

import numba_deform as nd
from numba_deform.cli import main

pytest.importorskip("numba_cuda", reason="programs are numba-cuda's")
PROGRAM = """
import multiprocessing, os, subprocess, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
from numba import cuda

@cuda.jit
def kernel(out, shift):
    out[cuda.threadIdx.x + shift] = 1

def run(shift):
    kernel[1, 32](cuda.to_device(np.zeros(32)), shift)
    return shift

if __name__ == "__main__":
    run(0)
    if sys.argv[1:] == ["alone"]:
        if not os.fork():  # a child of a child
            run(1)
            os._exit(0)
        os.wait()
        os._exit(4)
    for way in WAYS:
        context = multiprocessing.get_context(way)
        with ProcessPoolExecutor(1, context) as pool:
            print(list(pool.map(run, (0, 1))))
    print(subprocess.run([sys.executable, __file__, "alone"]).returncode)
"""


@pytest.mark.parametrize(
    "ways, launches", [(("fork",), 5), pytest.param(("fork", "spawn"), 7, marks=pytest.mark.full)]
)
def test_children(tmp_path, capfd, ways, launches):
    """One launch here, two in each pool, two in a Python that ends at once; the same fault in all of them."""
    if not hasattr(os, "fork"):
        pytest.skip("this system does not fork")
    file, found = tmp_path / "program.py", tmp_path / "found.json"
    file.write_text(PROGRAM.replace("WAYS", repr(ways)))
    before = dict(os.environ)
    assert main(["check", f"json={found}", str(file)]) == 1
    assert dict(os.environ) == before
    said = capfd.readouterr()
    assert said.out == "[0, 1]\n" * len(ways) + "4\n"
    seen = json.loads(found.read_text())
    assert seen["launches"] == launches and seen["kernels"] == 1
    (fault,) = seen["faults"]
    assert fault["fault"] == "OutOfRange" and fault["count"] == len(ways) + 1
    assert fault["where"].endswith("program.py:9") and "met in" in said.err


def test_nothing_is_counted_twice():
    """What a child inherits is not its own."""
    from numba import cuda

    @cuda.jit
    def kernel(out):
        out[cuda.threadIdx.x] = 1

    with nd.check() as session:
        kernel[1, 4](cuda.to_device(np.zeros(4)))
        pid = os.fork()
        if not pid:
            kernel[1, 4](cuda.to_device(np.zeros(4)))
            os._exit(0)
        os.waitpid(pid, 0)
    assert session.launches == 2 and session.blocks == 2
