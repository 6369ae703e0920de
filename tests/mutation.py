"""Does the default ``pytest`` notice a changed line? Two groups of mutants, each run against it in a copy.

    python tests/mutation.py                    both groups, and the table in mutation.json
    python tests/mutation.py -j 2 engine        one group (kernels or engine), two at a time
    python tests/mutation.py engine TEXT ...    those with a TEXT in their names; the table keeps the others
    python tests/mutation.py --quick            the likely tests only; what they do not notice stays open
    python tests/mutation.py --again            those that survived, and those that the table does not have
    python tests/mutation.py --draw             draws the engine's mutants anew (mutants_engine.json)

*kernels* is a tenth of the mutants that ``sim/mutants.json`` says the CPU engine notices. *engine* are 60
of ``engines/`` and ``compiler/``: a dropped statement, a changed condition, a constant that is one off;
``engines/gpu`` and the driver's encoding of maps are left out, since nothing but a GPU runs them. An entry
of mutants_engine.json that has a reason under "equivalent" is not run, and one more is drawn for it.

A mutant is found by file, function and text, so that it outlives changes elsewhere in the file. The files of
tests that are most likely to notice it run first (``LIKELY``, before all the test that noticed it last time),
then all others of the default selection, up to the first test that fails.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST, TABLE = ROOT / "tests" / "mutants_engine.json", ROOT / "tests" / "mutation.json"
SEED, DRAWN = 14, 60
GONE = "gone: --draw takes another"
LIMIT = 3600  # seconds for the tests of one mutant; one test has 300
FIRST = "NUMBA_DEFORM_TESTS_FIRST"
# A part of a mutated file's path, and the files of tests that come first.
LIKELY = {
    "kernels/window": "sim/test_window",
    "kernels/backward": "sim/test_planted_in_backward sim/test_gradients",
    "kernels/": "sim/test_variants sim/test_operator",
    "device/pipeline": "sim/test_variants sim/test_operator",
    "compiler/cache": "unit/test_cache",
    "compiler/outline": "sim/test_outline unit/test_cache",
    "compiler/sass": "compile/test_ceilings_sass compile/test_bugs_sass",
    "compiler/rewrite": "sim/test_rewrite sim/test_guarded sim/test_timeline compile/test_bugs_sass",
    "compiler/": "unit/test_cache sim/test_guarded compile/test_bugs_sass sim/test_engine",
    "engines/tensormap": "unit/test_tensormap sim/test_copies",
    "cpu/schedules/": "sim/test_explore",
    "async_units/copy_engine": "sim/test_copies sim/test_reports sim/test_bugs",
    "async_units/barriers": "sim/test_barriers sim/test_reports sim/test_bugs",
    "async_units/mbarrier": "sim/test_barriers sim/test_reports sim/test_bugs",
    "memory/global_memory": "sim/test_memory sim/test_engine sim/test_reports sim/test_barriers",
    "memory/arrays": "sim/test_memory sim/test_warp sim/test_engine sim/test_reports",
    "memory/scalars": "sim/test_memory sim/test_warp sim/test_engine",
    "memory/shadow_memory": "sim/test_memory sim/test_random_programs sim/test_reports sim/test_bugs",
    "cpu/explain/": "corpus/test_kept_reports sim/test_memory sim/test_copies sim/test_reports sim/test_bugs",
    "memory/access_records": "sim/test_memory sim/test_copies sim/test_random_programs sim/test_bugs",
    "machine/thread": "sim/test_warp sim/test_engine sim/test_barriers sim/test_pipeline",
    "cpu/machine/": "sim/test_barriers sim/test_warp sim/test_engine sim/test_copies sim/test_pipeline",
    "engines/waiting": "sim/test_barriers sim/test_reports sim/test_guarded",
    "engines/faults": "sim/test_reports sim/test_barriers",
    "engines/": "sim/test_engine sim/test_reports sim/test_barriers sim/test_memory",
}


# --- changing a text ------------------------------------------------------------------------------
def replaced(source, node, text):
    """The source with ``text`` in the place of a node."""
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    whole = source.encode()
    return (whole[:begin] + text.encode() + whole[end:]).decode()


def functions(tree, prefix=""):
    """(qualified name, node) of all functions, the outer before the inner."""
    for node in ast.iter_child_nodes(tree):
        name = getattr(node, "name", None)
        here = f"{prefix}{name}" if isinstance(name, str) else prefix.rstrip(".")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield here, node
        inner = f"{here}." if here else ""
        yield from functions(node, inner)


# --- the engine's mutants -------------------------------------------------------------------------
SWAPPED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip


def changes(function):
    """(kind, node, the text that takes its place) for what a function's own lines can suffer."""
    for node in own_nodes(function):
        if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Await)):
            yield "dropped", node, "pass"
        elif isinstance(node, ast.AugAssign):
            yield "dropped", node, "pass"
        elif isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
            yield "dropped", node, "pass"
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield "condition", node.test, f"not ({ast.unparse(node.test)})"
        elif isinstance(node, ast.BoolOp):
            for i in range(len(node.values)):
                rest = [f"({ast.unparse(v)})" for k, v in enumerate(node.values) if k != i]
                word = " and " if isinstance(node.op, ast.And) else " or "
                yield "condition", node, f"({word.join(rest)})"
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            if type(node.ops[0]) in (ast.Lt, ast.LtE, ast.Gt, ast.GtE):
                left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
                yield "condition", node, f"({left} {SWAPPED[type(node.ops[0])]} {right})"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            for other in (node.value + 1, node.value - 1):
                yield "constant", node, f"({other})" if other < 0 else str(other)


def own_nodes(function):
    """The nodes of a function that are not in a function inside it, an f-string or an annotation."""
    waiting = list(function.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.JoinedStr)):
            continue
        yield node
        waiting.extend(ast.iter_child_nodes(node))


def candidates():
    """{name: entry} of all mutants of ``engines/`` and ``compiler/``, in the order of files and lines."""
    package, found = ROOT / "numba_deform", {}
    files = [*package.glob("engines/**/*.py"), *package.glob("compiler/**/*.py")]
    for file in sorted(files):
        path = file.relative_to(ROOT).as_posix()
        if "/gpu/" in path or path.endswith("tensormap/encoding.py"):
            continue
        source = file.read_text()
        for function, node in functions(ast.parse(source)):
            for kind, part, text in changes(node):
                entry = {"file": path, "function": function, "kind": kind}
                entry |= difference(source, replaced(source, part, text), node, part)
                name = f"{path}:{function}:{entry['original']} -> {entry['mutated']}"
                if entry["nth"]:
                    name += f" #{entry['nth']}"
                found.setdefault(name, entry)
    return found


def difference(before, after, function, part):
    """What tells the change: the lines that it touches, without indentation, and which of equal ones."""
    old, new = before.splitlines(), after.splitlines()
    first, last = part.lineno - 1, part.end_lineno
    original = [line.strip() for line in old[first:last]]
    mutated = [line.strip() for line in new[first : last + len(new) - len(old)]]
    equal = occurrences([x.strip() for x in old], function, original)
    return {
        "original": "\n".join(original), "mutated": "\n".join(mutated), "nth": equal.index(first),
    }  # fmt: skip


def occurrences(stripped, function, original):
    """Numbers of the lines in a function at which the lines ``original`` start."""
    lines = range(function.lineno - 1, function.end_lineno)
    return [i for i in lines if stripped[i : i + len(original)] == original]


def mutate(place, entry):
    """Change the copy at ``place``; the changed file, or None if the lines are nowhere any more.

    They are looked for in their file first, then in all others, since functions move.
    """
    package = place / "numba_deform"
    files = [place / entry["file"], *package.glob("engines/**/*.py"), *package.glob("compiler/**/*.py")]
    original = entry["original"].split("\n")
    for path in filter(Path.exists, files):
        source = path.read_text()
        lines = source.splitlines()
        for name, function in functions(ast.parse(source)):
            found = occurrences([line.strip() for line in lines], function, original)
            if name == entry["function"] and len(found) > entry["nth"]:
                first = found[entry["nth"]]
                indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
                mutated = [indent + line for line in entry["mutated"].split("\n")]
                lines[first : first + len(original)] = mutated
                path.write_text("\n".join(lines) + "\n")
                compile(path.read_text(), str(path), "exec")
                return path.relative_to(place).as_posix()
    return None


def digest(name):
    """What the random order of mutants goes by."""
    return hashlib.sha256(f"{SEED} {name}".encode()).digest()


def draw():
    """Write mutants_engine.json: as many of each kind, by the seed.

    What is drawn already and still there stays, and what is known as equivalent stays so.
    """
    known = engine_mutants() if LIST.exists() else {}
    equivalent = {name: entry["equivalent"] for name, entry in known.items() if "equivalent" in entry}
    found, drawn = candidates(), {}
    kinds = ("dropped", "condition", "constant")
    for kind in kinds:
        names = [name for name, entry in found.items() if entry["kind"] == kind]
        names.sort(key=lambda name: (name not in known, digest(name)))
        real = 0
        for name in names:
            if real == DRAWN // len(kinds):
                break
            drawn[name] = found[name]
            if name in equivalent:
                drawn[name]["equivalent"] = equivalent[name]
            else:
                real += 1
    LIST.write_text(json.dumps(list(drawn.values()), indent=1) + "\n")
    print(f"{len(drawn)} of {len(found)} mutants, {len(drawn) - DRAWN} of them equivalent")


def engine_mutants():
    """{name: entry} of mutants_engine.json."""
    named = {}
    for entry in json.loads(LIST.read_text()):
        name = f"{entry['file']}:{entry['function']}:{entry['original']} -> {entry['mutated']}"
        named[name + (f" #{entry['nth']}" if entry["nth"] else "")] = entry
    return named


# --- the kernels' mutants -------------------------------------------------------------------------
def kernel_mutants():
    """{name: mutants.Mutant}: a tenth of those that are noticed; what is drawn stays drawn."""
    sys.path.insert(0, str(ROOT / "tests" / "sim"))
    import mutants

    names = set(mutants.killed()) & set(mutants.all_mutants())
    known = json.loads(TABLE.read_text()).get("kernels", {}).get("mutants", {}) if TABLE.exists() else {}
    order = sorted(names, key=lambda name: (name not in known, digest(name)))
    return {name: mutants.all_mutants()[name] for name in sorted(order[: round(len(names) / 10)])}


# --- running --------------------------------------------------------------------------------------
def copy_to(place):
    unwanted = shutil.ignore_patterns("__pycache__", ".*_cache", ".git", ".cache", "*.egg-info")
    shutil.copytree(ROOT, place, ignore=unwanted, symlinks=True)


def outcome(group, name, mutant, before, cache, quick=False):
    """The id of the test that notices a mutant, "survived", "endless", or GONE."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        place = Path(directory) / "copy"
        copy_to(place)
        if group == "kernels":
            file = mutant.module.replace(".", "/") + ".py"
            (place / file).write_text(mutant.text(replaced))
        elif mutant:
            file = mutate(place, mutant)
            if file is None:
                return GONE
        else:
            file = ""
        likely = next((words for part, words in LIKELY.items() if part in file), "").split()
        likely = [f"tests/{word}.py" for word in likely if (place / f"tests/{word}.py").exists()]
        if before and (before_file := before.partition("::")[0]) not in likely and "/" in before_file:
            likely.insert(0, before_file)
        others = sorted(path.relative_to(place).as_posix() for path in place.glob("tests/*/test_*.py"))
        others = [path for path in others if path not in likely]
        first = [f"={before}", *kernel_words(file)]
        for files in filter(None, (likely, others)):
            if (way := run_tests(place, files, first, cache)) != "survived" or quick:
                return None if way == "survived" else way
        return way


def kernel_words(file):
    """The ids of the grid of the kernel in a file come first."""
    stem = Path(file).stem
    names = {"warp_specialized": "(roles|warp)"}
    return [rf"test_variants.*\[{names.get(stem, stem)}"] if "/kernels/" in file else []


def run_tests(place, files, first, cache):
    environment = os.environ | {
        "PYTHONPATH": f"{place}{os.pathsep}{place / 'tests'}", "NUMBA_DEFORM_CACHE": str(cache),
        FIRST: json.dumps(first), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "pytest", "-p", "mutation", "-p", "no:xdist", "-p", "no:cacheprovider",
        "-o", "addopts=", "-m", "not full", "-q", "-x", "-rfE", "--tb=no", "--timeout", "300", *files,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=place, env=environment, text=True, timeout=LIMIT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "endless"
    if done.returncode in (0, 5):  # 5: nothing was selected
        return "survived"
    found = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.M)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    return found[1] if found else f"exit status {done.returncode}: {last}"


def pytest_collection_modifyitems(items):
    """As a plugin of the tests that run: the most likely tests first, in the order of the words."""
    first = json.loads(os.environ.get(FIRST, "[]"))

    def rank(item):
        for i, word in enumerate(first):
            if f"={item.nodeid}" == word or word[0] != "=" and re.search(word, item.nodeid):
                return i
        return len(first)

    items.sort(key=rank)


def run(groups, jobs, words, again, check, quick):
    """Run what is asked for and write the table after each."""
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    with tempfile.TemporaryDirectory(prefix="mutation-cache-") as cache, ThreadPoolExecutor(jobs) as pool:
        if check and (failed := outcome("engine", "none", None, "", cache)) != "survived":
            sys.exit(f"the tests fail without a mutant: {failed}")
        futures = {}
        for group, mutants in groups.items():
            rows = {name: table.get(group, {}).get("mutants", {}).get(name) for name in mutants}
            table[group] = {"mutants": rows}
            for name, mutant in mutants.items():
                if group == "engine" and "equivalent" in mutant:
                    rows[name] = "equivalent: " + mutant["equivalent"]
                elif again and rows[name] not in (None, GONE, "survived"):
                    continue
                elif not words or any(word in name for word in words):
                    task = group, name, mutant, rows[name], cache, quick
                    futures[pool.submit(outcome, *task)] = group, name
        for future in as_completed(futures):
            group, name = futures[future]
            table[group]["mutants"][name] = future.result()
            print(f"{future.result()}   <-   {name}".replace("\n", " / "), flush=True)
            save(table)
    save(table)
    for group in groups:
        print(f"{group}: {table[group]['noticed']} of {table[group]['run']} noticed")


def save(table):
    for rows in table.values():
        ways = [w for w in rows["mutants"].values() if w and w != GONE and not w.startswith("equivalent")]
        rows["run"], rows["noticed"] = len(ways), sum(way != "survived" for way in ways)
    TABLE.write_text(json.dumps(table, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="mutants at a time")
    parser.add_argument("--draw", action="store_true", help="draw the engine's mutants anew")
    parser.add_argument("--again", action="store_true", help="only survivors and new ones")
    parser.add_argument("--quick", action="store_true", help="the likely tests only")
    parser.add_argument("--no-check", action="store_true", help="do not run the tests unchanged first")
    parser.add_argument("words", nargs="*", help="a group, and texts of the mutants' names")
    given = parser.parse_args()
    if given.draw:
        return draw()
    groups = {"kernels": kernel_mutants, "engine": engine_mutants}
    asked = [word for word in given.words if word in groups] or list(groups)
    words = [word for word in given.words if word not in groups]
    chosen = {group: groups[group]() for group in asked}
    run(chosen, given.jobs, words, given.again, not (given.no_check or given.quick), given.quick)


if __name__ == "__main__":
    main()
