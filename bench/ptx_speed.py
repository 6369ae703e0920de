"""PTX instructions a second: a ring of TMA stages from nvcc, and one written by hand, interpreted, as machine
code, and in the first front end that there was, in turn.

    python bench/ptx_speed.py --out bench/results/ptx_speed.json [--prototype FOLDER --engine CHECKOUT]

``FOLDER`` has that first front end, whose ``front.load(file)`` gives kernels with ``simulate``; ``CHECKOUT`` is
this repository before its engine was put into rooms, which that needs. Time is that of the process, as other
programs may run beside it: of the launches of several turns the median and the best; the wall's stands beside
it. An instruction that a thread steps over under its guard counts; an unconditional jump does not.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import numba_deform as nd
from numba_deform.engines.cpu.frontends.ptx import kernels, translation
from numba_deform.measure import record

KERNELS = Path(__file__).parents[1] / "tests" / "ptx" / "kernels"
TURN = 2.0  # seconds that a form has for its launches, until the next form has its turn
JUMPS = ("def ", "if pc ", "else:", "while True", "pc = 0")


class Counting(translation.Translator):
    """Writes ``ticks[0] += 1`` before each instruction's first statement."""

    last = None

    def write(self, depth, text, i):
        if i is not self.last and not text.startswith(JUMPS):
            super().write(depth, "ticks[0] += 1", i)
            self.last = i
        super().write(depth, text, i)


def count(make, launch):
    """How many instructions a launch executes; ``make()`` makes the kernel."""
    plain, ticks = translation.Translator, [0]
    translation.Translator, kernels.names()["ticks"] = Counting, ticks
    try:
        nd.simulate(make(), *launch(), compiled=False)
    finally:
        translation.Translator = plain
        del kernels.names()["ticks"]
    return ticks[0]


def ring_in_cuda(tiles):
    """(grid, block, arguments)"""
    data = np.random.default_rng(0).random((8 * tiles, 32), np.float32)
    return 1, 64, [nd.TensorMapArray([nd.TensorMap.of(data, (32, 8))]), np.zeros_like(data), tiles]


def ring_by_hand(tiles):
    data = np.random.default_rng(0).random(32 * tiles, np.float32)
    return 1, 64, [data, np.zeros_like(data)]


def timed(kernel, launch, compiled):
    """(seconds of the process, seconds of the wall, whether it ran as machine code)"""
    grid, block, args = launch()
    own, wall = time.process_time(), time.perf_counter()
    report = nd.simulate(kernel, grid, block, args, compiled=compiled)
    return time.process_time() - own, time.perf_counter() - wall, report.compiled


def row(name, text, launch, others, turns):
    """The figures of one kernel. ``others``: name of a form -> a function that runs it as ``timed`` does."""
    make = lambda: nd.from_ptx(text)["ring"]  # noqa: E731
    instructions, started = count(make, launch), time.process_time()
    kernel = make()
    result = {"kernel": name, "instructions": instructions, "lines": len(kernel.entry.instructions),
              "translate_s": round(time.process_time() - started, 3)}  # fmt: skip
    forms = {"interpreted": lambda: timed(kernel, launch, False),
             "machine_code": lambda: timed(kernel, launch, True)} | others  # fmt: skip
    first = {form: run() for form, run in forms.items()}  # makes what is then kept
    spent = {form: [] for form in forms}
    for _ in range(turns):
        for form, run in forms.items():
            ends = time.perf_counter() + TURN
            while time.perf_counter() < ends:
                seconds, wall, compiled = run()
                assert compiled == ("machine_code" in form), f"{form} of {name} ran otherwise"
                spent[form].append((seconds, wall))
    for form, pairs in spent.items():
        seconds, wall = (statistics.median(column) for column in zip(*pairs, strict=True))
        best = min(pairs)[0]
        result[form] = {"first_s": round(first[form][0], 3), "s": round(seconds, 4), "wall_s": round(wall, 4),
                        "best_s": round(best, 4), "instructions_a_second": round(instructions / seconds),
                        "at_best": round(instructions / best)}  # fmt: skip
    ratio = result["interpreted"]["best_s"] / result["machine_code"]["best_s"]
    return result | {"machine_code_is_faster_by": round(ratio, 1)}


# What a process of the prototype's own engine does: for each line (0 or 1: whether as machine code) a launch.
SERVER = """
import sys, time
import numpy as np
sys.path.insert(0, sys.argv[1])
import front
import numba_deform as nd

kernel, tiles = front.load(sys.argv[2])["ring"], int(sys.argv[3])
for line in sys.stdin:
    data = np.random.default_rng(0).random((8 * tiles, 32), np.float32)
    args = [nd.TensorMapArray([nd.TensorMap.of(data, (32, 8))]), np.zeros_like(data), tiles]
    own, wall = time.process_time(), time.perf_counter()
    report = kernel.simulate(1, 64, args, compiled=bool(int(line)))
    assert np.array_equal(args[1], 2 * data)
    print(time.process_time() - own, time.perf_counter() - wall, int(report.compiled), flush=True)
"""


class Prototype:
    """The prototype in a process of its own, over the engine that it was made for."""

    def __init__(self, folder, engine, ptx, tiles):
        command = [sys.executable, "-c", SERVER, folder.resolve(), ptx, str(tiles)]
        environment = os.environ | {"PYTHONPATH": str(engine.resolve())}
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        cwd=ptx.parent, text=True)  # fmt: skip

    def run(self, compiled):
        self.process.stdin.write(f"{int(compiled)}\n")
        self.process.stdin.flush()
        own, wall, how = self.process.stdout.readline().split()
        return float(own), float(wall), how == "1"

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--prototype", type=Path)
    parser.add_argument("--engine", type=Path)
    parser.add_argument("--tiles", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    tiles, turns = options.tiles, options.turns
    os.environ["NUMBA_DEFORM_CACHE"] = "off"  # so that the first launch makes machine code
    by_hand = (KERNELS / "ring_by_hand.ptx").read_text()
    assert by_hand.count("last, i, 4;") == 2
    by_hand = by_hand.replace("last, i, 4;", f"last, i, {tiles};")
    rows = [row("ring_by_hand.ptx", by_hand, lambda: ring_by_hand(tiles), {}, turns)]
    if nvcc := shutil.which("nvcc"):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            ptx, others = Path(folder) / "ring.ptx", {}
            command = [nvcc, "-ptx", "-arch=sm_90a", "-lineinfo", KERNELS / "ring.cu", "-o", ptx]
            subprocess.run(command, check=True)
            if options.prototype:
                old = Prototype(options.prototype, options.engine, ptx, tiles)
                stack.callback(old.close)
                others = {"prototype_interpreted": lambda: old.run(False),
                          "prototype_machine_code": lambda: old.run(True)}  # fmt: skip
            rows.append(row("ring.cu", ptx.read_text(), lambda: ring_in_cuda(tiles), others, turns))
    for each in rows:
        print(each, flush=True)
    record.write(options.out, None, rows, tiles=tiles, load_average=os.getloadavg())


if __name__ == "__main__":
    main()
