"""The corpus of right and wrong programs: what the CPU engine, a GPU and other tools say of each.

    python bench/corpus.py --out bench/results/corpus.json
    python bench/corpus.py --engine              # the engine's column alone, in the same file, of new ones too
    python bench/corpus.py --table               # the tables of bench/CORPUS.md from the results
    python bench/corpus.py --rules               # those of bench/ENGINE.md
    python bench/corpus.py --waivers             # and of what can be waived
    python bench/corpus.py --folders whole instructions waived --out bench/results/corpus_pipelines.json
    python bench/corpus.py --only NAME .. --out ..   # the others' rows stay as they are

On the GPU a program runs as its entry says (``hardware`` in tests/corpus/base.py): plainly, or in the guarded
form whose waits end. Child processes go through the list and print a line before and after each program; one
that hangs, or loses its CUDA context, is replaced by another that goes on with the next program. Under
compute-sanitizer the same children run; what it prints between two such lines is about that program. Numba's
simulator runs those that use nothing but ``numba.cuda``.
"""

import argparse
import functools
import inspect
import json
import os
import pickle
import queue
import re
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "corpus"))
RESULTS = ROOT / "bench" / "results" / "corpus.json"
PIPELINES = RESULTS.with_name("corpus_pipelines.json")
CORPUS, OTHERS = ("right", "wrong"), ("whole", "instructions", "waived")
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
START, LIMIT, CHUNKS = 120, 30, 4  # seconds until the first line; for one program; lists that run side by side
# The same program's source in a process of Numba's simulator, which cannot import this package.
SIMULATOR = """
import math, pickle, sys
import numpy as np, numba
from numba import cuda
for name, source, scope, function, grid, block, args in pickle.load(open(sys.argv[1], "rb")):
    print("begin", name, flush=True)
    try:
        names = {**vars(numba), "numba": numba, "np": np, "cuda": cuda, "math": math, **scope}
        exec(source, names)
        cuda.jit(names[function])[grid, block](*args)
        with open(sys.argv[1] + "." + name, "wb") as file:
            pickle.dump(args, file)
        print("end", name, "ran", flush=True)
    except BaseException as error:
        print("end", name, type(error).__name__, str(error).replace(chr(10), " ")[:200], flush=True)
"""


@functools.cache
def programs(folders=CORPUS):
    from base import load

    return load(*folders)


# --- the CPU engine -------------------------------------------------------------------------------
def on_engine(program):
    """What the engine says: a fault's name with the line, or what became of the numbers."""
    from numba_deform.engines.cpu import SimFault

    try:
        args = program.run()
        if program.faults:
            program.search()
    except SimFault as fault:
        return type(fault).__name__ + ("" if program.blames(fault) else " at another line or of another kind")
    except Exception as error:
        return type(error).__name__
    wrong = program.wrong(args)
    return f"{wrong} elements wrong" if wrong else "silent"


# --- the GPU: the child's side ----------------------------------------------------------------------
def serve(names, ask):
    """``ask(name)`` in words, one name after another; a line before and one after each go to stdout."""
    for name in names:
        print("begin", name, flush=True)
        try:
            print("end", name, ask(name), flush=True)
        except Exception as error:
            text = " ".join(f"error: {type(error).__name__} {error}".replace(f"{ROOT}/", "").split())
            text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
            broken = re.search(r"CUDA_ERROR_\w+|cudaError\w+", text)
            print("end", name, broken[0] if broken else text[:300], flush=True)
            os._exit(1)  # the context may be lost


def ask_gpu(name):
    """What becomes of a program on the GPU, run as its entry asks for."""
    from numba_deform.engines.cpu import SimFault

    program = programs(CORPUS + OTHERS)[name]
    args = program.args()
    try:
        on_gpu(program, args)
    except SimFault as fault:
        return f"stopped: {type(fault).__name__}"
    wrong = program.wrong(args)
    return "ran" if not program.expect else f"{wrong} elements wrong" if wrong else "right"


def on_gpu(program, args):
    """Run ``program`` on the GPU, and bring ``args`` back; raises what the launch raises."""
    from numba_deform.compiler import Kernel
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.engines.gpu.guard import launch_guarded
    from numba_deform.engines.gpu.in_place import launch_in_place
    from numba_deform.engines.gpu.launch import launch
    from numba_deform.engines.tensormap import TensorMapArray

    guarded = bool(program.hardware == "guarded" and program.faults)
    simple = all(isinstance(a, (np.ndarray, np.number, int, float, TensorMapArray)) for a in args)
    if guarded:  # that form is for one dimension
        simple &= isinstance(program.block, int) and isinstance(program.grid, int)
    if not simple and not isinstance(program.kernel, Kernel):
        return by_numba(program.function, program, args)
    run, options = (launch_guarded, {}) if guarded else (launch, {"cluster": program.cluster})
    launch_in_place(find_gpu(), program.typed(), program.grid, args, program.shared_bytes, run, **options)


def by_numba(function, program, args):
    """A launch by Numba's own dispatcher, for arguments that only that knows."""
    from numba import cuda

    from numba_deform.engines.cpu.memory.scalars import start_of

    wholes = {}  # arrays that own memory, on the GPU, by id

    def to_gpu(array):
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        whole = wholes.setdefault(id(owner), cuda.to_device(owner))
        start = whole.__cuda_array_interface__["data"][0] + start_of(array) - start_of(owner)
        if array.dtype.fields:
            return whole
        layout = {"shape": array.shape, "strides": array.strides, "typestr": array.dtype.str, "version": 3}
        layout["data"] = start, False
        return cuda.as_cuda_array(SimpleNamespace(__cuda_array_interface__=layout, whole=whole))

    moved = [to_gpu(a) if isinstance(a, np.ndarray) else a for a in args]
    cuda.jit(function)[program.grid, program.block, 0, program.shared_bytes](*moved)
    cuda.synchronize()
    for arg, there in zip(args, moved, strict=True):
        if isinstance(arg, np.ndarray) and arg.flags.writeable and arg.flags.c_contiguous:
            arg[...] = there.copy_to_host()


# --- the parent's side ----------------------------------------------------------------------------
def outcomes(command, names, environment=None):
    """{name: (last word of the child, what else was printed meanwhile)}; a new child after each loss."""
    seen, left = {}, list(names)
    while left:
        process = subprocess.Popen(
            [*command, *left], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        lines = queue.Queue()
        threading.Thread(target=_read, args=(process, lines), daemon=True).start()
        current, said, limit = None, [], START
        while True:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                _kill(process)
                line = None
                seen[current or left[0]] = (f"no end within {limit} s", said)
            if line is None:
                break
            word, _, rest = line.partition(" ")
            name, _, text = rest.partition(" ")
            if word == "begin":
                current, said, limit = name.strip(), [], LIMIT
            elif word == "end":
                seen[name] = (text.strip(), said)
            elif word == "=========" or word.startswith("Traceback"):
                said.append(rest.strip())
        process.wait()
        if current and current not in seen:
            seen[current] = (f"the process died with {process.returncode}", said)
        if current is None and left[0] not in seen:
            seen[left[0]] = ("the child did not start", said)
        left = [name for name in left if name not in seen]
    return seen


def _read(process, lines):
    for line in process.stdout:
        lines.put(line.rstrip("\n"))
    lines.put(None)


def _kill(process):
    os.killpg(process.pid, signal.SIGKILL)


def told(said):
    """The first thing that compute-sanitizer reports, in a few words; "-" for nothing."""
    lines = [line for line in said if line and not re.match(r"COMPUTE-SANITIZER|.*SUMMARY|Target", line)]
    return re.split(" between | at |, ", lines[0])[0][:80] if lines else "-"


def simulated(chosen, folder):
    """{name: what Numba's simulator makes of it}."""
    tasks, results = [], {}
    for name, program in chosen.items():
        function, scope = program.function, {}
        for key in (*function.__code__.co_names, *function.__code__.co_freevars):
            value = function.__globals__.get(key)
            if isinstance(value, (int, float, np.number, tuple, np.ndarray, np.dtype)):
                scope[key] = value
            elif value is not None and not getattr(value, "__module__", "numba.").startswith("numba."):
                results[name] = "cannot run it"
        args = program.args()
        if not all(isinstance(a, (np.ndarray, int, float, np.number, tuple)) for a in args):
            results[name] = "cannot run it"
        if name not in results:
            source = inspect.getsource(function)
            source = source[re.search(r"^def ", source, re.M).start() :]
            tasks.append((name, source, scope, function.__name__, program.grid, program.block, args))
    for task in tasks:
        path = folder / f"{task[0]}.task"
        path.write_bytes(pickle.dumps([task]))
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}

    def one(task):
        name, path = task[0], folder / f"{task[0]}.task"
        command = [sys.executable, "-c", SIMULATOR, str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=environment)
        except subprocess.TimeoutExpired:
            return name, f"no end within {LIMIT} s"
        said = re.search(rf"^end {name} (.*)", done.stdout, re.M)
        if not said or said[1] != "ran":
            return name, re.sub(r"(c?t?a?id=\[.*?\],? ?)+:? ?", "", said[1])[:80] if said else "died"
        with open(f"{path}.{name}", "rb") as file:
            wrong = chosen[name].wrong(pickle.load(file))
        return name, f"{wrong} elements wrong" if wrong else "right" if chosen[name].expect else "ran"

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return results | dict(pool.map(one, tasks))


def about(program):
    """The columns of a row that nobody has to be asked for."""
    return {
        "program": program.name, "kind": "wrong" if program.faults else "right", "topic": program.topic,
        "source": program.source, "faults": [f.__name__ for f in program.faults],
        "hardware": program.hardware,
    }  # fmt: skip


def measure(options):
    """The rows of the result file."""
    import tempfile

    everything = programs(tuple(options.folders))
    chosen = {n: p for n, p in everything.items() if not options.only or n in options.only}
    rows = {name: about(program) for name, program in chosen.items()}
    child = [sys.executable, str(Path(__file__).resolve()), "--serve"]
    runnable = [n for n, p in chosen.items() if not p.faults or p.hardware != "no"]
    jobs = {}
    with ThreadPoolExecutor(CHUNKS * (1 + len(options.tools)) + 2) as pool, \
            tempfile.TemporaryDirectory() as folder:  # fmt: skip
        for tool in ("gpu", *options.tools):
            command = child if tool == "gpu" else ["compute-sanitizer", "--tool", tool, *child]
            jobs[tool] = [pool.submit(outcomes, command, runnable[i::CHUNKS]) for i in range(CHUNKS)]
        simulator = pool.submit(simulated, chosen, Path(folder))
        for name, program in chosen.items():
            rows[name]["engine"] = on_engine(program)
        for name, text in simulator.result().items():
            rows[name]["numba_simulator"] = text
        for tool, parts in jobs.items():
            for part in parts:
                for name, (text, said) in part.result().items():
                    rows[name][tool] = text if tool == "gpu" else told(said)
    return list(rows.values())


def rules_table():
    """Markdown: every rule, its source, and what the engine and the GPU say of programs that ask about it."""
    from rules import RULES

    from numba_deform.device import sections

    seen = {row["program"]: row for row in results()}
    lines = []
    for topic, rules in RULES.items():
        heads = "| rule | source | program | engine | H200 |"
        lines += [f"\n### {topic.capitalize()}\n", heads, "|---" * 5 + "|"]
        for rule in rules:
            for i, name in enumerate(rule.programs):
                row = seen[name]
                head = (rule.says, sections.with_titles(rule.source)) if i == 0 else ("", "")
                cells = *head, f"{row['kind']}: `{name}`", row["engine"], row.get("gpu", "not asked")
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def results(file=RESULTS):
    return json.loads(file.read_text())["rows"]


def summary(rows):
    """In words: how many programs there are, and who finds what."""
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in ("right", "wrong")}
    right, wrong = kinds["right"], kinds["wrong"]
    ran = [row for row in wrong if "gpu" in row]
    silent = sum(row["gpu"] in ("ran", "right") for row in ran)

    def reports(rows):
        found = {tool: sum(row.get(tool, "-") != "-" for row in rows) for tool in TOOLS}
        one = sum(any(row.get(tool, "-") != "-" for tool in TOOLS) for row in rows)
        return one, ", ".join(f"{tool} {n}" for tool, n in found.items() if n)

    (of_wrong, wrong_by), (of_right, right_by) = reports(ran), reports(right)
    named = sum(row["engine"] in row["faults"] for row in wrong)
    started = sum(row.get("numba_simulator", "cannot run it") != "cannot run it" for row in wrong)
    quiet = sum(row["engine"] == "silent" for row in right)
    as_expected = sum(row.get("gpu") == "right" for row in right)
    return (
        f"The engine names {named} of {len(wrong)} wrong programs, each by the right rule and line, and is "
        f"silent about {quiet} of {len(right)} right ones. An H200 gives the right result for {as_expected} "
        f"right ones. {len(ran)} of the wrong ones were run on it, in the guarded form where they may hang: "
        f"{silent} of them ended without a word. compute-sanitizer reports something for {of_wrong} of these "
        f"{len(ran)} ({wrong_by}), and for {of_right} of the right ones ({right_by}). Of the wrong programs "
        f"Numba's simulator can start {started}."
    )


def table():
    """Markdown: what each says of each program."""
    rows, others = results(), results(PIPELINES)
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in CORPUS}
    titled = {f"The {kind} programs": each for kind, each in kinds.items()}
    titles = "Whole pipelines", "Single instructions", "Programs that break a rule which can be waived"
    for title, folder in zip(titles, OTHERS, strict=True):
        names = programs((folder,))
        titled[title] = [row for row in others if row["program"] in names]
    heads = ("program", "CPU engine", "H200", *TOOLS, "Numba's simulator", "met in")
    lines = textwrap.wrap(summary(rows), 140)
    for title, each in titled.items():
        lines += [f"\n## {title}\n", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        lines += map(cells_of, each)
    return "\n".join(lines)


def cells_of(row):
    """A row of the table."""
    other = f" (an {row['machine'].split()[1]})" if "machine" in row and "gpu" in row else ""
    cells = [row["program"], row["engine"], row.get("gpu", "not run") + other]
    cells += [row.get(tool, "not run") for tool in TOOLS]
    cells += [row.get("numba_simulator", "cannot run it"), row["source"]]
    return f"| {' | '.join(str(cell).replace('|', '/').replace('](', '] (') for cell in cells)} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--tools", nargs="*", default=TOOLS)
    parser.add_argument("--only", nargs="*", help="ask about these programs alone")
    parser.add_argument("--folders", nargs="*", default=CORPUS, help="of tests/corpus")
    parser.add_argument("--engine", action="store_true", help="ask the engine again, and nobody else")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    parser.add_argument("--waivers", action="store_true", help="print the table of what can be waived")
    parser.add_argument("--rules", action="store_true", help="print the table of the rules from the results")
    parser.add_argument("--serve", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        return serve(options.serve, ask_gpu)
    if options.waivers:
        from numba_deform.engines import waivers

        return print(waivers.table())
    if options.table or options.rules:
        return print(table() if options.table else rules_table())
    from numba_deform.compiler.cache import save
    from numba_deform.engines.gpu.device import find_gpu
    from numba_deform.measure import record

    file = RESULTS if tuple(options.folders) == CORPUS else PIPELINES
    if options.engine:
        document = json.loads(file.read_text())
        known = {row["program"]: row for row in document["rows"]}
        for name, program in programs(tuple(options.folders)).items():
            if not options.only or name in options.only:
                known[name] = known.get(name, {}) | about(program) | {"engine": on_engine(program)}
        document["rows"] = [known[name] for name in programs(tuple(options.folders)) if name in known]
        return save(file, document)
    rows = measure(options)
    for row in rows:
        print(row, flush=True)
    document = record.document(find_gpu(), rows)
    if options.only:  # the others stay as they are; these say where they have run
        where = {"machine": find_gpu().name, "commit": document["commit"], "date": document["date"]}
        document, rows = json.loads(file.read_text()), [row | where for row in rows]
        known = {row["program"]: row for row in [*document["rows"], *rows]}
        document["rows"] = [known[name] for name in programs(tuple(options.folders)) if name in known]
    if options.out:
        save(options.out, document)


if __name__ == "__main__":
    main()
