"""Right programs on a GPU at sizes that fill it, again and again: is every element of every launch right?

    python bench/at_scale.py --out bench/results/at_scale.json
    python bench/at_scale.py --out ..  --launches 1000 --minutes 10
    python bench/at_scale.py --out ..  --only product "attention by=mma"     # those whose names begin so
    python bench/at_scale.py --list                                          # names and sizes; no GPU

scaled.py has the programs. Each has a process of its own, so that one that hangs, or loses its context, ends
alone. Several make their data, compile, and ask the CPU engine about a small size, side by side; one at a time
has the GPU. There all stays in its memory: what a launch writes is put back, it runs, and kernels count the
elements that are not as expected. Of results that are not exact, each element may be off by what its program
allows, and, unless it leaves the order of additions open, must not change from launch to launch. Needs a Hopper
GPU. The exit status is 1 if the GPU calls a program wrong, and names are printed. JSON is written after each.
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
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
import scaled
from numba import cuda, types

import numba_deform as nd
from numba_deform.device.limits import HOPPER
from numba_deform.engines.cpu import SimFault
from numba_deform.engines.gpu.device import DeviceArray, GpuMissing, driver_call, find_gpu, require
from numba_deform.engines.gpu.in_place import OnGpu
from numba_deform.engines.gpu.launch import ArrayArgument, launch, resident_blocks
from numba_deform.measure import record

ROOT = Path(__file__).resolve().parents[1]
BATCH, THREADS, ACROSS, DOWN = 25, 256, 16 * scaled.SMS, 4096  # launches; of the kernels that compare
PREPARE, LIMIT = 300, 60  # seconds until a program is ready; on the GPU beyond its share
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
            raise ValueError("an output's elements are not next to each other")
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
def repeat(gpu, work, launches, seconds):
    """The part of a row that a GPU tells: launches of a ``scaled.Work`` until there are enough, or no time."""
    there = OnGpu(gpu, work.kernel, work.args)
    run = functools.partial(
        launch, gpu, work.kernel, work.grid, there.args, work.shared_bytes, cluster=work.cluster
    )
    wrong, changed = (DeviceArray(gpu, (BATCH,), np.uint32) for _ in range(2))
    outputs = [Counted(gpu, there.memory, output, wrong, changed) for output in work.outputs]
    gpu.device.sync()
    run()
    gpu.device.sync()
    restored, others = [], []
    for host, copy, *_ in there.memory.copies.values():
        if np.array_equal(copy.to_numpy(), host):
            others.append((host, copy))
        else:
            restored.append((copy, DeviceArray.of(gpu, host)))
    for output in outputs:
        output.keep()
    stream, counts = int(gpu.device.default_stream.handle), [[], []]
    start = time.perf_counter()
    while len(counts[0]) < launches and (not counts[0] or time.perf_counter() - start < seconds):
        batch = min(BATCH if counts[0] else 1, launches - len(counts[0]))
        for array in (wrong, changed):
            array.fill(0)
        for place in range(batch):
            for copy, before in restored:
                driver_call("cuMemcpyDtoDAsync", copy.address, before.address, copy.nbytes, stream)
            run()
            for output in outputs:
                output.count(place)
        for found, array in zip(counts, (wrong, changed), strict=True):
            found += array.to_numpy()[:batch].tolist()
    spent = time.perf_counter() - start
    row = {"launches": len(counts[0]), "seconds": round(spent, 3)}
    row["elements"] = [output.size * output.rows for output in outputs]
    for name, found in zip(("wrong", "changed"), counts, strict=True):
        row |= {f"{name}_launches": sum(map(bool, found)), f"{name}_worst": max(found)}
    row["inputs_written"] = sum(not np.array_equal(copy.to_numpy(), host) for host, copy in others)
    return row


def size_of(entry, work, resident):
    """The part of a row that tells the size."""
    return {
        "name": entry.name, "group": entry.group, "parameters": entry.parameters, "grid": work.grid,
        "threads": work.kernel.threads, "cluster": work.cluster, "blocks": work.blocks, "resident": resident,
        "waves": round(work.blocks / resident * work.rounds, 1), "copies": work.copies,
        "laps": work.laps and round(work.laps, 1),
    }  # fmt: skip


def verdict_of(entry):
    """What the CPU engine says of a small size."""
    try:
        entry.judge()
    except SimFault as fault:
        return type(fault).__name__
    return "silent"


def is_wrong(row):
    """Whether the GPU's and the engine's words are not that all is right."""
    told = any(row.get(key) for key in ("error", "wrong_launches", "changed_launches", "inputs_written"))
    return told or row["engine"] != "silent"


# --- processes ------------------------------------------------------------------------------------
def serve(name, launches):
    """The child: make a program ready, say so, and wait for ``SECONDS`` on stdin before the GPU is used."""
    try:
        gpu, entry = find_gpu(), scaled.table()[name]
        work = entry.make(functools.partial(resident_blocks, gpu))
        row = size_of(entry, work, resident_blocks(gpu, work.kernel, work.shared_bytes))
        row["engine"] = verdict_of(entry)
        print("ready", json.dumps(row), flush=True)
        row |= repeat(gpu, work, launches, float(input()))
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".replace(f"{ROOT}/", "").split())
        print("end", json.dumps({"error": text[:500]}), flush=True)
        os._exit(1)  # the context may be lost
    print("end", json.dumps(row), flush=True)
    os._exit(0)


def ask(name, launches, seconds, lock=None):
    """The row of one program, run by a process of its own. ``seconds()`` is asked when its turn has come, which
    ``lock`` is held for."""
    entry = scaled.table()[name]
    row = {"name": name, "group": entry.group, "parameters": entry.parameters, "engine": "not asked"}
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", name, "--launches", str(launches)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    lines = queue.Queue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    try:
        word, told = lines.get(timeout=PREPARE)
        row |= told
        if word == "ready":
            with lock or threading.Lock():
                share = seconds()
                process.stdin.write(f"{share}\n")
                process.stdin.flush()
                row |= lines.get(timeout=share + LIMIT)[1]
    except queue.Empty:
        row["error"] = "no end in time: stopped"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return row


def _read(process, lines):
    for line in process.stdout:
        word, _, text = line.partition(" ")
        if word in ("ready", "end"):
            lines.put((word, json.loads(text)))
    lines.put(("end", {"error": f"the process died with {process.wait()}"}))


def run_all(gpu, names, out, launches, minutes):
    """Rows of all these programs, written to ``out`` after each."""
    end, rows, lock, waiting = time.monotonic() + 60 * minutes, {}, threading.Lock(), len(names)

    def share():
        nonlocal waiting
        waiting -= 1
        return max(1.0, (end - time.monotonic()) / (waiting + 1))

    with ThreadPoolExecutor(max(2, min(8, (os.cpu_count() or 2) // 2))) as pool:
        for ended in as_completed([pool.submit(ask, name, launches, share, lock) for name in names]):
            row = ended.result()
            rows[row["name"]] = row
            print("WRONG" if is_wrong(row) else "right", json.dumps(row), flush=True)
            done = [rows[name] for name in names if name in rows]
            record.write(out, gpu, done, settings={"launches": launches, "minutes": minutes})
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--launches", type=int, default=1000, help="of each program, if there is time")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--only", nargs="+", default=[""], help="programs whose names begin with one of these")
    parser.add_argument("--list", action="store_true", help="print names and sizes")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.launches)
    names = [name for name in scaled.table() if name.startswith(tuple(options.only))]
    if options.list:
        for name in names:
            work = scaled.table()[name].make(scaled.most_resident)
            print(size_of(scaled.table()[name], work, scaled.most_resident(work.kernel, work.shared_bytes)))
        return
    try:
        gpu = find_gpu()
        require(gpu, HOPPER, "at_scale")
    except GpuMissing as error:
        sys.exit(f"nothing was run: {error}")
    rows = run_all(gpu, names, options.out or os.devnull, options.launches, options.minutes)
    if wrong := [row["name"] for row in rows if is_wrong(row)]:
        sys.exit(f"{len(wrong)} of {len(rows)} are wrong: {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
