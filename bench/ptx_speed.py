"""PTX instructions a second: a ring of TMA stages from nvcc, and one written by hand, interpreted, as machine code
and by another front end, one after the other in turn.

    python bench/ptx_speed.py --out bench/results/ptx_speed.json [--prototype FOLDER]

``FOLDER`` has a front end with ``front.compiled(file, nvcc)`` and ``front.load(file)``, whose kernels have
``simulate``. Time is that of the process, as other programs may run beside it; wall time stands beside it. What
is compiled and translated once is counted apart. An instruction that a thread steps over under its guard counts;
an unconditional jump does not.
"""

import argparse
import shutil
import statistics
import sys
import time
from pathlib import Path

import numpy as np

import numba_deform as nd
from numba_deform.engines.cpu.frontends.ptx import kernels, translation
from numba_deform.measure import record

KERNELS = Path(__file__).parents[1] / "tests" / "ptx" / "kernels"
JUMPS = ("def ", "if pc ==", "while True", "pc = 0")


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


def timed(run):
    """(seconds of the process, seconds of the wall, whether it ran as machine code)"""
    own, wall = time.process_time(), time.perf_counter()
    report = run()
    return time.process_time() - own, time.perf_counter() - wall, report.compiled


def row(name, make, launch, others, turns):
    """The figures of one kernel. ``others``: name of a form -> function of arguments and ``compiled``."""
    instructions = count(make, launch)
    started = time.process_time()
    kernel = make()
    result = {"kernel": name, "instructions": instructions, "lines": len(kernel.entry.instructions),
              "translate_s": round(time.process_time() - started, 3)}  # fmt: skip

    def own(compiled):
        grid, block, args = launch()
        return nd.simulate(kernel, grid, block, args, compiled=compiled)

    forms = {"interpreted": lambda: own(False), "machine_code": lambda: own(True)} | others
    spent = {form: [] for form in forms}
    for form, run in forms.items():  # the first launch makes what is then kept
        result[f"{form}_first_s"] = round(timed(run)[0], 3)
    for _ in range(turns):
        for form, run in forms.items():
            seconds, wall, compiled = timed(run)
            assert compiled == ("machine_code" in form), f"{form} of {name} ran otherwise"
            spent[form].append((seconds, wall))
    for form, pairs in spent.items():
        seconds, wall = (statistics.median(column) for column in zip(*pairs, strict=True))
        result[form] = {"s": round(seconds, 4), "wall_s": round(wall, 4),
                        "instructions_a_second": round(instructions / seconds)}  # fmt: skip
    ratio = result["interpreted"]["s"] / result["machine_code"]["s"]
    return result | {"machine_code_is_faster_by": round(ratio, 1)}


def prototype(folder, file, name, launch):
    """{form: a function} of another front end."""
    if folder is None:
        return {}
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    import front

    made = front.compiled(file, shutil.which("nvcc")) if file.suffix == ".cu" else front.load(file)
    return {f"prototype_{form}": lambda c=compiled: made[name].simulate(*launch(), compiled=c)
            for form, compiled in (("interpreted", False), ("machine_code", True))}  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--prototype", type=Path)
    parser.add_argument("--tiles", type=int, default=400)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    cuda, by_hand = KERNELS / "ring.cu", KERNELS / "ring_by_hand.ptx"
    text, tiles = by_hand.read_text().replace("last, i, 4", f"last, i, {options.tiles}"), options.tiles
    assert "last, i, 4" not in text.replace(f"last, i, {tiles}", "")
    rows = []
    if shutil.which("nvcc"):
        launch = lambda: ring_in_cuda(tiles)  # noqa: E731
        others = prototype(options.prototype, cuda, "ring", launch)
        rows.append(row("ring.cu", lambda: nd.from_cuda(cuda)["ring"], launch, others, options.turns))
    launch = lambda: ring_by_hand(tiles)  # noqa: E731
    rows.append(row("ring_by_hand.ptx", lambda: nd.from_ptx(text)["ring"], launch, {}, options.turns))
    for each in rows:
        print(each, flush=True)
    record.write(options.out, None, rows)


if __name__ == "__main__":
    main()
