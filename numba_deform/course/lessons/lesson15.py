"""Lesson 15, debugging CUDA C++: ``cuda/ring.cu`` with a fault in it, as PTX, and the checks.

The PTX of the faults is stored (tests/ptx/stored.py writes it); that of a reader's line is made by NVRTC."""

import linecache
import re
import tempfile
from pathlib import Path

import numpy as np

from ...engines import faults
from ...engines.cpu import simulate
from ...engines.cpu.frontends.ptx.compilers.cuda_kernels import compiled
from ...engines.cpu.frontends.ptx.kernels import from_ptx
from ...engines.tensormap import TensorMap, TensorMapArray
from .exercise import Wrong, exercise, fault_message, first_of, number, refuse, require

FOLDER, FILE = Path(__file__).parent / "cuda", "ring.cu"
ARRIVES, INIT = "arrive(&empty[stage]);", "init(&empty[s], LANES);"
ONE = (INIT, "init(&empty[s], 1);")
CHANGES = {
    "right": (), "bytes": (ONE, ("sizeof tile[0]", "sizeof tile")), "count": (ONE,),
    "elected": (ONE, (ARRIVES, f"if (threadIdx.x == 0) {ARRIVES}")),
}  # fmt: skip
LANDINGS, SCHEDULES = ("late", "random", "earliest"), 3
TILES, ROWS, LANES = 10, 8, 32
HANGS = faults.MissingArrivals, faults.Deadlock


# --- the ring -------------------------------------------------------------------------------------
def source(name="right"):
    """The text of ``ring.cu``, with the fault of that name."""
    text = (FOLDER / FILE).read_text()
    for old, new in CHANGES[name]:
        text = text.replace(old, new)
    return text


def line_of(words):
    """The number of the line of ``ring.cu`` that has these words, the last where several have."""
    return max(i for i, line in enumerate(source().splitlines(), 1) if words in line)


def listing(name):
    """The lines of the kernel with that fault, each with its number."""
    first, lines = line_of("__global__"), source(name).splitlines()
    return "\n".join(f"{i:3}  {line}" for i, line in enumerate(lines[first - 1 :], first))


def ptx(name):
    """The stored PTX of :func:`source`. Reports show the lines of that text from now on."""
    _show_lines_of(source(name))
    return (FOLDER / f"ring_{name}.ptx").read_text()


def _show_lines_of(text):
    linecache.cache[FILE] = len(text), None, text.splitlines(True), FILE


def loop_around(text, instruction):
    """The lines of the last loop of PTX with this ``instruction``, from its label to its branch."""
    lines = text.splitlines()
    inside = max(i for i, line in enumerate(lines) if instruction in line)
    first = max(i for i in range(inside) if lines[i].endswith(":"))
    last = next(i for i in range(inside, len(lines)) if "bra" in lines[i])
    return "\n".join(lines[first : last + 1]).expandtabs(4)


def arguments(seed=0):
    """(data, out, the launch's arguments) of a run."""
    data = np.random.default_rng(seed).random((ROWS * TILES, LANES), np.float32)
    out, box = np.full_like(data, np.nan), TensorMap.of(data, (LANES, ROWS))
    return data, out, [TensorMapArray([box]), out, TILES]


# --- checks ---------------------------------------------------------------------------------------
@exercise("A `.loc` holds for what stands below it: file, line, column, and where the function was inlined.")
def came_from(line, called):
    """The lines of the consumers' try_wait: its own, and that of the kernel's call."""
    line, called = (number(n, "line of ring.cu") for n in (line, called))
    asks, repeats, waits = line_of("try_wait"), line_of("while (!is_over"), line_of("wait(&full")
    if line != asks:
        refuse(
            f"line = {line}. ",
            (line == waits, "That is the kernel's line, which calls. The instruction stands in a function."),
            (line == repeats, "That line only repeats the question. Which `.loc` is nearest, above it?"),
            (line == line_of("return over"), "That `.loc` belongs to what comes below it. Look above."),
            (True, "A `.loc` has file, line, column, in this order. The nearest one above counts."),
        )
    if called != waits:
        refuse(
            f"The line is right, and called = {called} is not. ",
            (called == line_of("wait(&empty"), "That is the producer's wait. This one waits on `full`."),
            (called == repeats, "That is a call inside of `wait`. Which `.loc` is of that line? Where was it "
             "inlined?"),
            (True, "The call is at the outer end of the chain of `inlined_at`: file, line, column."),
        )
    return f"Line {asks} asks, in `is_over`. `wait` asks again and again, and line {waits} calls `wait`."


@exercise("How many bytes does one copy bring? C++ can say it by a `sizeof`.")
def announced(text):
    """text: what stands in place of ``sizeof tile`` in the ring with the fault "bytes"."""
    text = str(text).strip()
    require(text, "An empty text is no expression of C++.")
    require(text.split() != ["sizeof", "tile"], "That is what stands there, and it hangs.")
    box = 4 * ROWS * LANES

    def explain(fault):
        told = re.search(r"announces (\d+) bytes|(\d+) bytes are announced", f"{fault.what}; {fault.cure}")
        told = int(told[1] or told[2]) if told else 0
        return {
            0: "", ROWS * LANES: "That counts numbers. The barrier counts bytes, and a float has four.",
            4 * LANES: f"One row of a tile has {4 * LANES} bytes. A copy brings the whole box, of 8 rows.",
            3 * box: "These are still the bytes of all stages.",
        }.get(told, f"{told} bytes are announced, and one copy brings {box}.")  # fmt: skip

    fault = _fault_of(source("bytes").replace("sizeof tile)", f"{text})"))
    if fault and not isinstance(fault, faults.TooManyArrivals):  # which is the next section's
        raise Wrong(fault_message(fault, explain(fault)))
    return f"`tile` is the whole ring. A copy fills one stage of it, {box} bytes, and all of them come."


@exercise("The report names the line that arrives. Which line says how many may?")
def counted(line, text):
    """The mended ring "count": its line ``line`` is replaced by ``text``."""

    def explain(fault):
        return first_of(
            (line == line_of("init(&full"), "That is the count of `full`, where the producer arrives alone."),
            (isinstance(fault, faults.ReadAfterRelease), "Now one lane arrives, before the others are done: "
             f"see the next section. Keep line {line_of(ARRIVES)}, and mend the count."),
            (line != line_of(INIT), f"Line {line} was right. Keep it, and mend the count."),
            (isinstance(fault, faults.LiveBarrierInit), "Now `full` is initialised twice."),
            (isinstance(fault, faults.TooManyArrivals), "More threads arrive than the barrier counts. How many "
             "consumers come to the arrival?"),
            (isinstance(fault, HANGS), "Fewer threads arrive than the barrier counts. Only the consumers do."),
        )  # fmt: skip

    runs = _judge(_replaced("count", line, text), explain)
    if line != line_of(INIT):
        return f"Another way, which the next section is about. {runs} runs are clean, with a count of 1."
    return f"{LANES} threads arrive in each phase. What was blamed was right. {runs} runs are clean."


@exercise("Lane 0 speaks for its warp. What must the warp have done before?")
def elected(line, text):
    """The mended ring "elected": its line ``line`` is replaced by ``text``."""
    meets, unread = "__syncwarp" in str(text), (faults.ReadAfterRelease, faults.RefillRace)
    require("cuda." not in str(text), "The `cuda.` is Python's. In C++ it is `__syncwarp()`.")

    def explain(fault):
        return first_of(
            (isinstance(fault, faults.DivergentBarrier), "The producer is in another branch and never comes to "
             "that barrier. Only the consumers' warp has to meet."),
            (isinstance(fault, faults.TooManyArrivals), "`full` is the producer's: readers arrive on `empty`."
             if "for which it waits" in fault.what else
             "Now more lanes arrive than the barrier counts. Lane 0 arrives alone: when may it?"),
            (re.search(r"if.*__syncwarp", text) and isinstance(fault, HANGS), "Only lane 0 comes to that "
             "`__syncwarp()`. It belongs before the `if`, where all lanes pass."),
            (isinstance(fault, HANGS), "The producer waits for arrivals that do not come. Keep the count of 1, "
             "and let one lane of the consumers arrive on `empty`."),
            (not isinstance(fault, unread), ""),
            (meets, "The lanes meet too late or too early: between their last read and the arrival is right."),
            ("fence" in text, "A fence orders what one thread does. It does not wait for other lanes."),
            ("_sync(" in text, "A shuffle or a vote orders no memory. `__syncwarp()` does."),
            ("wait(" in text, "That waits for the tile to come. Lane 0 has to know that all have read it."),
            (True, "The lane that arrives does not know that the others have read. Let them meet first."),
        )  # fmt: skip

    runs = _judge(_replaced("elected", line, text), explain)
    return f"All lanes have read, they meet, and then one of them speaks for all. {runs} runs are clean."


def _replaced(name, line, text):
    """The source with that fault and with ``text`` as its line number ``line``; Wrong for no such line."""
    lines, line = source(name).splitlines(), number(line, "line of ring.cu")
    require(1 <= line <= len(lines), f"ring.cu has lines 1 to {len(lines)}, and no line {line}.")
    require(isinstance(text, str), f"{text!r} is no text: write the line of C++ in quotes.")
    require(text.split() != lines[line - 1].split(), f"Line {line} reads so already: that changes nothing.")
    require(line > line_of("__global__"), f"Line {line} is in a function that is right. Look at the kernel.")
    lines[line - 1] = text
    return "\n".join(lines) + "\n"


def _judge(text, explain):
    """How many runs of this source are right; Wrong for one that is not, with ``explain`` of its fault."""
    if fault := _fault_of(text):
        raise Wrong(fault_message(fault, explain(fault)))
    return SCHEDULES * len(LANDINGS)


def _fault_of(text):
    """The first fault of this source, or None; Wrong for one that does not compile, or gives wrong numbers."""
    kernel = from_ptx(_compiled(text), ["map", "out", "tiles"])["ring"]
    for landing in LANDINGS:
        data, out, args = arguments()
        try:
            simulate(kernel, 1, 2 * LANES, args, landing=landing, schedules=SCHEDULES)
        except faults.SimFault as fault:
            return fault
        require(np.array_equal(out, 2 * data), "No rule is broken, but the numbers are not doubled any more.")


def _compiled(text):
    """The PTX of a source: stored, or by NVRTC."""
    for name in CHANGES:
        if source(name) == text:
            return ptx(name)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / FILE
        file.write_text(text)
        try:
            made = compiled(file, compiler="nvrtc")
        except FileNotFoundError as error:
            raise Wrong(f"This line was not compiled beforehand, and here is no compiler: {error}.") from None
        except ValueError as error:
            raise Wrong(str(error).replace(f"{folder}/", "")) from None
        _show_lines_of(text)
        return made.replace(f"{folder}/", "")
