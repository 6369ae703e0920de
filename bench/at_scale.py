"""Right programs on a GPU at sizes that fill it, again and again: is every element of every launch right?

    python bench/at_scale.py --out bench/results/at_scale.json
    python bench/at_scale.py --out ..  --launches 1000 --minutes 10
    python bench/at_scale.py --out ..  --only product "attention by=mma"     # those whose names begin so
    python bench/at_scale.py --list                                          # names and sizes; no GPU

scaled.py has the programs. Child processes run them, and one that hangs, or loses its context, is replaced by
another that goes on with the next program. Several make their data, compile, and ask the CPU engine about a
small size, side by side; one at a time has the GPU. There all stays in its memory: what a launch writes is put
back, it runs, and kernels count the elements that are not as expected. Where results are not exact, an element
may be off by what its program allows, and, unless that leaves the order of additions open, must not change from
launch to launch. Needs a Hopper GPU. The exit status is 1 if the GPU calls a program wrong, and names are
printed. JSON is written after each.
"""

import argparse
import functools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import scaled
from grown import SMS, NotGrown
from numba import cuda, types

import numba_deform as nd
from numba_deform.device.limits import HOPPER
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.gpu.device import DeviceArray, GpuMissing, driver_call, find_gpu, require
from numba_deform.engines.gpu.in_place import OnGpu
from numba_deform.engines.gpu.launch import ArrayArgument, launch, resident_blocks
from numba_deform.measure import record

ROOT = Path(__file__).resolve().parents[1]
BATCH, THREADS, ACROSS, DOWN = 25, 256, 16 * SMS, 4096  # launches; of the kernels that compare
PREPARE, LIMIT = 300, 60  # seconds until a program is ready; on the GPU beyond its share
LARGE = 6  # how many times longer than a small program a pipeline, a product or a variant may take
LENT = 3  # how many times its part of the time left a program may take: most need a tenth of theirs
GUESS = 4  # programs of a lesson, before it has been played
NUMBERS = {"f2": types.float32, "f4": types.float32, "f8": types.float64, "i8": types.float64}
NUMBA = {"f2": types.float16, "f4": types.float32, "f8": types.float64, "i8": types.int64}
BITS = {1: types.uint8, 2: types.uint16, 4: types.uint32, 8: types.uint64}


# --- counting -------------------------------------------------------------------------------------
@functools.cache
def count_far(kind):
    """The kernel that counts the numbers of a type that are further than ``limit`` from what they should be."""
    number, own, right = NUMBERS[kind], NUMBA[kind], NUMBERS[kind]

    @nd.kernel(threads=THREADS)
    def count_far(
        got: own[:, :], want: right[:, :], limit: nd.float64, counts: nd.uint32[:], place: nd.i32
    ):  # fmt: skip
        found = nd.uint32(0)
        for row in range(cuda.blockIdx.y, got.shape[0], cuda.gridDim.y):
            for i in range(cuda.grid(1), got.shape[1], cuda.gridsize(1)):
                a, b = number(got[row, i]), want[row, i]
                if not (a == b or abs(a - b) <= number(limit) or (a != a and b != b)):
                    found += nd.uint32(1)
        if found:
            cuda.atomic.add(counts, place, found)

    return count_far


@functools.cache
def count_other(size):
    """The kernel that counts the elements of ``size`` bytes whose bits are others than they should be."""
    bits = BITS[size]

    @nd.kernel(threads=THREADS)
    def count_other(got: bits[:, :], want: bits[:, :], counts: nd.uint32[:], place: nd.i32):
        found = nd.uint32(0)
        for row in range(cuda.blockIdx.y, got.shape[0], cuda.gridDim.y):
            for i in range(cuda.grid(1), got.shape[1], cuda.gridsize(1)):
                if got[row, i] != want[row, i]:
                    found += nd.uint32(1)
        if found:
            cuda.atomic.add(counts, place, found)

    return count_other


class Counted:
    """An output on the GPU. ``count(place)`` adds its wrong elements to ``wrong[place]``, and those that differ
    from what ``keep()`` has kept to ``changed[place]``."""

    def __init__(self, gpu, memory, output, wrong, changed):
        self.gpu, self.output = gpu, output
        self.wrong, self.changed = (ArrayArgument(c.address, c.shape, (4,), 4) for c in (wrong, changed))
        array, expected = output.array, output.expected
        many = expected.shape != array.shape
        first, self.rows = (array[0], len(array)) if many else (array, 1)
        if not first.flags.c_contiguous:
            raise NotGrown("an output's elements are not next to each other")
        self.size, step = first.size, array.itemsize
        self.line = array.strides[0] if many else array.nbytes
        self.shape = self.rows, self.size
        self.got = ArrayArgument(memory.address_of(array), self.shape, (self.line, step), step)
        self.grid = min(-(-self.size // THREADS), ACROSS), min(self.rows, DOWN)
        kind = array.dtype.kind + str(step)
        self.kind = kind if kind in ("f2", "f4", "f8") or output.allowed else None
        if self.kind:
            number = NUMBERS[self.kind]
            right = expected.astype(str(number))
        else:
            right = np.ascontiguousarray(expected.astype(array.dtype)).view(f"u{step}")
            number = BITS[step]
        right = DeviceArray.of(gpu, right)
        self.want = ArrayArgument(right.address, self.shape, (0, number.bitwidth // 8), number.bitwidth // 8)
        self.kept, self._memory = None, [right]

    def keep(self):
        """Keep what is there, for outputs whose bits are to stay the same."""
        if not (self.kind and self.output.allowed and self.output.steady):
            return
        kept = DeviceArray(self.gpu, (self.rows * self.line,), np.uint8)
        self._memory.append(kept)
        driver_call("cuMemcpyDtoD", kept.address, self.got.address, (self.rows - 1) * self.line + self.used)
        self.kept = self.got._replace(address=kept.address)

    @property
    def used(self):
        """Bytes of a row."""
        return self.size * self.output.array.itemsize

    def kernels(self):
        """Those that ``count`` launches."""
        own = [count_far(self.kind) if self.kind else count_other(self.output.array.itemsize)]
        return own + [count_other(self.output.array.itemsize)] * bool(self.kept)

    def count(self, place):
        limit = [self.output.allowed] if self.kind else []
        kernels = self.kernels()
        launch(self.gpu, kernels[0], self.grid, [self.got, self.want, *limit, self.wrong, place])
        if self.kept:
            launch(self.gpu, kernels[1], self.grid, [self.got, self.kept, self.changed, place])


# --- a program on the GPU -------------------------------------------------------------------------
class Repeated:
    """A ``grown.Work`` in the memory of a GPU, ready to be launched again and again."""

    def __init__(self, gpu, work):
        self.gpu, self.work = gpu, work
        self.there = OnGpu(gpu, work.kernel, work.args)
        self.wrong, self.changed = (DeviceArray(gpu, (BATCH,), np.uint32) for _ in range(2))
        memory = self.there.memory
        self.outputs = [Counted(gpu, memory, output, self.wrong, self.changed) for output in work.outputs]
        self.restored, self.others = [], []

    def launch(self):
        work = self.work
        launch(self.gpu, work.kernel, work.grid, self.there.args, work.shared_bytes, cluster=work.cluster)

    def first(self):
        """Launch once, to see what has to be put back, and keep what must not change."""
        self.gpu.device.sync()
        self.launch()
        self.gpu.device.sync()
        for host, copy, *_ in self.there.memory.copies.values():
            if np.array_equal(copy.to_numpy(), host):
                self.others.append((host, copy))
            else:
                self.restored.append((copy, DeviceArray.of(self.gpu, host)))
        for output in self.outputs:
            output.keep()

    def batch(self, count):
        """(wrong, changed) elements of each of ``count`` launches."""
        stream = int(self.gpu.device.default_stream.handle)
        for array in (self.wrong, self.changed):
            array.fill(0)
        for place in range(count):
            for copy, before in self.restored:
                driver_call("cuMemcpyDtoDAsync", copy.address, before.address, copy.nbytes, stream)
            self.launch()
            for output in self.outputs:
                output.count(place)
        return [array.to_numpy()[:count].tolist() for array in (self.wrong, self.changed)]

    def row(self, launches, seconds):
        """What the GPU says: of so many launches, or as many as there is time for."""
        start, found = time.perf_counter(), {"wrong": [], "changed": []}
        self.first()
        done = found["wrong"]
        while len(done) < launches and (not done or time.perf_counter() - start < seconds):
            counts = self.batch(min(BATCH if done else 1, launches - len(done)))
            for name, more in zip(found, counts, strict=True):
                found[name] += more
        row = {"launches": len(done), "seconds": round(time.perf_counter() - start, 3)}
        row["elements"] = sum(output.size * output.rows for output in self.outputs)
        for name, each in found.items():
            row |= {f"{name}_launches": sum(map(bool, each)), f"{name}_worst": max(each)}
        row["inputs_written"] = sum(not np.array_equal(copy.to_numpy(), host) for host, copy in self.others)
        return row


def size_of(program, work, resident):
    """The part of a row that tells the size."""
    return {
        "name": program.name, "parameters": program.parameters, "grid": work.grid,
        "threads": work.kernel.threads, "cluster": work.cluster, "blocks": work.blocks, "resident": resident,
        "waves": round(work.blocks / resident * work.rounds, 1), "copies": work.copies,
        "laps": work.laps and round(work.laps, 1),
    }  # fmt: skip


def verdict_of(program):
    """What the CPU engine says of a small size."""
    try:
        program.judge()
    except SimFault as fault:
        return type(fault).__name__
    return "silent"


def is_wrong(row):
    """Whether the GPU's and the engine's words are not that all is right; not so of what was left out."""
    told = any(row.get(key) for key in ("error", "wrong_launches", "changed_launches", "inputs_written"))
    return told or row.get("engine", "silent") != "silent"


# --- processes ------------------------------------------------------------------------------------
def asked_for(name, only):
    """Whether a program's name begins with one of ``only``."""
    return name.startswith(tuple(only))


def serve(chunk, only, skip, launches):
    """The child: make one program after another ready, say so, and wait for ``SECONDS`` on stdin before each is
    launched. The first ``skip`` have been dealt with."""
    gpu = find_gpu()
    try:
        programs = scaled.table()[chunk]()
    except NotGrown as error:
        return print("end", json.dumps({"name": chunk, "left_out": str(error)}), flush=True)
    for program in [program for program in programs if asked_for(program.name, only)][skip:]:
        row = {"name": program.name}
        print("begin", json.dumps(row), flush=True)
        try:
            work = program.make(functools.partial(resident_blocks, gpu))
            row = size_of(program, work, resident_blocks(gpu, work.kernel, work.shared_bytes))
            row["engine"] = verdict_of(program)
            repeated = Repeated(gpu, work)
            print("ready", json.dumps(row), flush=True)
            row |= repeated.row(launches, float(input()))
        except NotGrown as error:
            row["left_out"] = str(error)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".replace(f"{ROOT}/", "").split())
            print("end", json.dumps(row | {"error": text[:500]}), flush=True)
            os._exit(1)  # the context may be lost
        print("end", json.dumps(row), flush=True)
        work = repeated = None  # gives its memory back
    os._exit(0)


class Child:
    """A process that runs a chunk of the table, and what it says: (word, row), "lost" when it has ended."""

    def __init__(self, chunk, only, skip, launches):
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", chunk, "--only", *only]
        command += ["--skip", str(skip), "--launches", str(launches)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        self._lines = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            word, _, text = line.partition(" ")
            if word in ("begin", "ready", "end"):
                self._lines.put((word, json.loads(text)))
        self._lines.put(("lost", {"error": f"the process died with {self.process.wait()}"}))

    def next(self, limit):
        """Its next word; "lost" when it says nothing for so many seconds, too."""
        try:
            return self._lines.get(timeout=limit)
        except queue.Empty:
            return "lost", {"error": f"no end within {limit:.0f} s: stopped"}

    def go(self, seconds):
        """The GPU is its for so long."""
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def ask(chunk, launches, seconds, only=("",), lock=None):
    """Yields the rows of a chunk's programs, run by a process of its own, and by another after each loss.

    ``seconds()`` is asked when a program's turn has come, for which ``lock`` is held."""
    done, lock = 0, lock or threading.Lock()
    while True:
        child, row, finished = Child(chunk, only, done, launches), None, False
        try:
            while True:
                word, told = child.next(PREPARE)
                if word == "ready":
                    with lock:
                        share = seconds()
                        child.go(share)
                        row = told
                        word, told = child.next(share + LIMIT)
                if word == "begin":
                    row = told
                    continue
                finished = word == "lost" and row is None and child.process.poll() == 0
                if finished:
                    return
                yield {"name": chunk} | (row or {}) | told
                done += 1
                if word == "lost" or "error" in told:
                    if row is None:
                        return  # what it cannot even begin, no other process can
                    break
                row = None
        finally:
            child.stop()


def weight(chunk):
    """How much time one of its programs may take, in that of a small one."""
    return 1 if "/" in chunk or chunk == "bugs" else LARGE


def run_all(gpu, chunks, options):
    """Rows of the programs of these chunks, written to the file of ``options`` after each."""
    end, rows, lock = time.monotonic() + 60 * options.minutes, [], threading.Lock()
    waiting = sum(weight(c) * (GUESS if c.startswith("lessons") else len(scaled.table()[c]())) for c in chunks)

    def share(own):
        nonlocal waiting
        waiting = max(waiting - own, 0)
        return max(0.5, (end - time.monotonic()) * min(LENT * own / (waiting + own), 1))

    def run(chunk):
        for row in ask(chunk, options.launches, lambda: share(weight(chunk)), options.only, lock):
            with writing:
                rows.append(row)
                print("WRONG" if is_wrong(row) else "right", json.dumps(row), flush=True)
                settings = {"launches": options.launches, "minutes": options.minutes}
                record.write(options.out, gpu, sorted(rows, key=lambda row: row["name"]), settings=settings)

    writing = threading.Lock()
    with ThreadPoolExecutor(max(2, min(8, (os.cpu_count() or 2) // 2))) as pool:
        list(pool.map(run, chunks))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("at_scale.json"))
    parser.add_argument("--launches", type=int, default=1000, help="of each program, if there is time")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", nargs="+", default=[""], help="programs whose names begin with one of these")
    parser.add_argument("--list", action="store_true", help="print names and sizes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.only, options.skip, options.launches)
    chunks = [c for c in scaled.table() if any(c.startswith(o) or o.startswith(f"{c}/") for o in options.only)]
    if options.list:
        return [print(row) for chunk in chunks for row in sizes(chunk, options.only)]
    try:
        gpu = find_gpu()
        require(gpu, HOPPER, "at_scale")
    except GpuMissing as error:
        sys.exit(f"nothing was run: {error}")
    rows = run_all(gpu, chunks, options)
    if wrong := [row["name"] for row in rows if is_wrong(row)]:
        sys.exit(f"{len(wrong)} of {len(rows)} are wrong: {'; '.join(sorted(wrong))}")


def sizes(chunk, only):
    """Rows of sizes alone."""
    for program in scaled.table()[chunk]():
        if asked_for(program.name, only):
            try:
                work = program.make(scaled.most_resident)
                yield size_of(program, work, scaled.most_resident(work.kernel, work.shared_bytes))
            except NotGrown as error:
                yield {"name": program.name, "left_out": str(error)}


if __name__ == "__main__":
    main()
