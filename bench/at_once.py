"""What a process takes that runs what another has run before, with two checkouts of this package in turn.

    python bench/at_once.py --before ../before --out bench/results/at_once.json

``command`` is the wall clock of ``numba-deform run variant=window engine=cpu workload=quick num_query=64``,
with Python's start and all imports; ``check`` and ``corpus`` are of whole processes, too. ``first`` is the
first ``simulate`` of the pipeline copy of ``course/pipelines`` in a process, after the imports, and
``machine_code`` the same as machine code; ``attention`` and ``attention_code`` of 512 queries, ``changed_line``
of a kernel of which a line is new each time. Each runs once before anything is timed, which is ``empty``, with
nothing on disk. In seconds: the median, the smallest and the largest of the rounds, and the processor's time,
which other programs disturb less. What is kept goes to a temporary directory in place of the user's.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = "run variant=window engine=cpu workload=quick num_query=64".split()
FIRST = """
import time
import numba_deform as nd
from numba_deform.course.pipelines.{name} import {name}
launch = {name}({arguments})
nd.simulate
clocks = time.perf_counter, time.process_time
started = [clock() for clock in clocks]
nd.simulate(launch, compiled={compiled})
print(*(clock() - start for clock, start in zip(clocks, started)))
"""
CHANGED = """
import importlib.util, time
import numpy as np
import numba_deform as nd
spec = importlib.util.spec_from_file_location("kernel", "{file}")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
data, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
nd.simulate
clocks = time.perf_counter, time.process_time
started = [clock() for clock in clocks]
nd.simulate(module.kernel, 1, 64, [data, out])
print(*(clock() - start for clock, start in zip(clocks, started)))
"""
KERNEL = """
from numba import cuda
import numba_deform as nd


def kernel(data, out):
    tile = cuda.shared.array(64, nd.float32, alignment=128)
    full = nd.shared_address(cuda.shared.array(1, nd.uint64))
    i = cuda.threadIdx.x
    if i == 0:
        nd.mbarrier_init(full, 1)
        nd.fence_mbarrier_init()
        nd.mbarrier_arrive_expect_tx(full, 256)
        nd.cp_async_bulk_load(nd.shared_address(tile), nd.global_address(data), 256, full)
    cuda.syncthreads()
    nd.mbarrier_wait(full, 0)
    out[i] = {factor} * tile[i]
"""
PROGRAM = """
import numpy as np
data = cuda.to_device(np.arange(64, dtype=np.float32))
out = cuda.device_array(64, np.float32)
cuda.jit(kernel)[1, 64](data, out)
assert (out.copy_to_host() == 2 * np.arange(64)).all()
"""


def command(where, *words):
    """(seconds, the processor's seconds) of a whole process."""
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", *(words or ("numba_deform", *WORDS))]
    subprocess.run(words, **where, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime


def told(where, program):
    """The two numbers that a program prints."""
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, **where, check=True, capture_output=True, text=True)
    return tuple(map(float, ended.stdout.split()))


def first(where, compiled=None, name="copy", arguments=""):
    """Likewise, of the first ``simulate`` alone."""
    return told(where, FIRST.format(compiled=compiled, name=name, arguments=arguments))


def machine_code(where):
    """Likewise, as machine code."""
    return first(where, True)


def attention(where):
    """Likewise, of 512 queries of 64 numbers, interpreted."""
    return first(where, False, "attention", "blocks=8, steps=8")


def attention_code(where):
    """Likewise, as machine code."""
    return first(where, True, "attention", "blocks=8, steps=8")


def changed_line(where):
    """Likewise, of a kernel in a file of which one line is another each time."""
    global factor
    factor += 1
    file = Path(where["cwd"]) / f"{Path(where['env']['PYTHONPATH']).name}.py"
    file.write_text(KERNEL.format(factor=factor))
    return told(where, CHANGED.format(file=file))


def check(where):
    """(seconds, the processor's seconds) of ``numba-deform check`` for a program that launches this kernel."""
    file = Path(where["cwd"]) / "program.py"
    file.write_text(KERNEL.format(factor=2) + PROGRAM)
    return command(where, "numba_deform", "check", str(file))


def corpus(where):
    """Likewise, of the corpus' default tests."""
    words = "pytest -q -n 0 tests/corpus/test_corpus.py".split()
    return command(where | {"cwd": where["env"]["PYTHONPATH"]}, *words)


factor = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", required=True, help="the other checkout's folder")
    parser.add_argument("--what", default="command,first,machine_code", help="rows; others in the file stay")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    after, names, out = Path(__file__).resolve().parents[1], given.what.split(","), Path(given.out)
    rows = json.loads(out.read_text())["rows"] if out.exists() else []
    rows = [row for row in rows if row["what"] not in names]
    sys.path.insert(0, str(after))
    from numba_deform.measure import record

    for measure in map(globals().get, names):
        with tempfile.TemporaryDirectory() as folder:
            usual = {name: value for name, value in os.environ.items() if name != "NUMBA_DEFORM_CACHE"}
            roots, sides = (Path(given.before).resolve(), after), []
            for i, root in enumerate(roots):
                environment = {**usual, "PYTHONPATH": str(root), "XDG_CACHE_HOME": f"{folder}/{i}"}
                sides.append({"env": environment, "cwd": folder})
            empty = [measure(where) for where in sides]
            times = [[measure(where) for where in sides] for _ in range(given.rounds)]
        for side, empty_one, own in zip(("before", "after"), empty, zip(*times, strict=True), strict=True):
            seconds, processor = zip(*own, strict=True)
            row = {"what": measure.__name__, "checkout": side, "empty": empty_one[0]}
            row |= {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
            row |= {"processor": statistics.median(processor), "rounds": given.rounds}
            rows.append(row)
            print(*(f"{v:.3f}" if isinstance(v, float) else v for v in row.values()), flush=True)
    record.write(given.out, None, rows, cores=os.cpu_count())


if __name__ == "__main__":
    main()
