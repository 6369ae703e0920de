"""What the engine says of each launch of a program, in a process of its own, as rows for a result file."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np

import numba_deform as nd
from numba_deform.engines.faults import SimFault

from . import host

HERE = Path(__file__).parent


@dataclass
class Case:
    """One program: ``source`` with ``mends``, (pattern, replacement) of its text, or (file below ``tree``,
    pattern, replacement) of a file that it includes; each has to match once. ``blocks``: those that run of each
    launch; ``launches``: how many of each kernel's are judged."""

    name: str
    source: str
    options: list = field(default_factory=list)
    words: list = field(default_factory=list)
    folder: str = "."
    tree: str = ""
    mends: list = field(default_factory=list)
    blocks: list | None = None
    waive: list = field(default_factory=list)
    landings: list = field(default_factory=lambda: ["late", "random"])
    launches: int = 1
    faults: list = field(default_factory=list)  # (name, pattern, replacement, which match) of the PTX's text
    keep: int | None = None  # the parameter whose memory is written to NAME.npy after the launch


def toolkit():
    """The folder of nvcc's toolkit; FileNotFoundError without one."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) / "cu13" for p in (spec.submodule_search_locations if spec else ())]
    if found := next((f for f in folders if (f / "bin" / "nvcc").exists() and (f / "include").is_dir()), None):
        return found
    if not shutil.which("nvcc"):
        raise FileNotFoundError("nvcc is in no wheel (nvidia-cuda-nvcc and its like) and not in PATH")
    asked = ["nvcc", "-dryrun", "-E", "-x", "cu", os.devnull]  # the one in PATH may be a link, or a script
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stderr
    return Path(re.search(r"TOP=(.*)", said)[1]).resolve()


def substituted(text, pattern, replacement, name):
    """The text with what a pattern matches replaced; ValueError where it does not match once."""
    text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise ValueError(f"{name}: {pattern!r} matches {count} times")
    return text


def told(launched, case):
    """A row on one launch."""
    options = dict(launched.options)
    if not (options.get("cluster") or launched.kernel.cluster) and case.blocks:
        count = options["grid"][0] * options["grid"][1] * options["grid"][2]
        options["only"] = [b for b in case.blocks if b < count]
    found = {"kernel": launched.name, "grid": options["grid"], "block": options["block"], "verdict": "silent"}
    found |= {"instructions": len(launched.kernel.entry.instructions)}
    found |= {"opcodes": len(Counter(i.opcode for i in launched.kernel.entry.instructions))}
    started = time.perf_counter()
    try:
        for seed, landing in enumerate(case.landings):
            how = dict(seed=seed, landing=landing, waive=tuple(case.waive), timeout=240)
            report = nd.simulate(launched.kernel, **options, **how)
            found["waived"] = {name: count for name, (count, _) in report.waived.items()}
    except SimFault as fault:
        file, _, line = fault.where.rpartition(":")
        found |= {"verdict": type(fault).__name__, "file": Path(file).name, "line": int(line or 0)}
        found |= {"says": str(fault).splitlines()[0].partition(": ")[2]}
        found |= {"source": " ".join(fault.source.split())}
    return found | {"seconds": round(time.perf_counter() - started, 1)}


def with_fault(launched, text, kernel_of, case, name, pattern, replacement, which):
    """The row of a launch with one fault in the PTX ``text`` of its kernel, which ``kernel_of(text, name)``
    makes a kernel of."""
    entry = launched.kernel.entry.name
    start = text.index(f"{entry}(", text.index(".entry"))
    matches = list(re.finditer(pattern, text[start:], re.MULTILINE))
    if not -len(matches) <= which < len(matches):
        return {"fault": name, "verdict": f"the PTX has {len(matches)} of them"}
    m = matches[which]
    text = text[: start + m.start()] + m.expand(replacement) + text[start + m.end() :]
    return {"fault": name} | told(replace(launched, kernel=kernel_of(text, entry)), case)


def run_here(case, folder):
    """Compile and run one case in this process; returns its row."""
    root, source = toolkit(), Path(case.source)
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    include = [f"-I{root / 'include'}", f"-I{root / 'include' / 'cccl'}", f"-I{source.parent}"]
    row = {"name": case.name, "launches": []}
    own = Path(folder) / case.name
    shutil.rmtree(own, ignore_errors=True)
    for *file, pattern, replacement in case.mends:
        original = Path(case.tree) / file[0] if file else source
        changed = own / file[0] if file else own / source.name
        text = (changed if changed.exists() else original).read_text(errors="replace")
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_text(substituted(text, pattern, replacement, case.name))
        include += [f"-I{original.parent}"] if file else []
        source = source if file else changed
    if case.tree:  # what has been changed is found first
        changes = [o.replace(case.tree, str(own), 1) for o in case.options if o.startswith(f"-I{case.tree}")]
        include = [*changes, *case.options, *include]
    else:
        include = [*case.options, *include]
    try:
        started = time.perf_counter()
        library, texts = host.compiled(folder, case.name, source, include)
        row["compile_seconds"] = round(time.perf_counter() - started, 1)
    except ValueError as error:
        said = next((line for line in str(error).splitlines() if "error" in line), str(error))
        return row | {"compile_error": said.rpartition("/")[2]}
    seen = Counter()

    def judge(launched):
        entry = launched.kernel.entry.name

        def kernel_of(text, name):
            return program.with_memory(nd.from_ptx(text)[name], launched.options["args"])

        seen[launched.name] += 1
        if seen[launched.name] <= case.launches:
            started = time.perf_counter()
            text = next(text for text in texts if re.search(rf"\.entry\s+{re.escape(entry)}\(", text))
            nd.from_ptx(text)[entry]
            translated = round(time.perf_counter() - started, 1)
            # the faults first: the program goes on with right results
            row["faults"] = [with_fault(launched, text, kernel_of, case, *fault) for fault in case.faults]
            row["launches"].append(told(launched, case) | {"translate_seconds": translated})
            if case.keep is not None:
                kept = launched.memory[int(launched.options["args"][case.keep])]
                np.save(Path(folder) / f"{case.name}.npy", kept)

    program = host.Program(library, texts, source, judge)
    try:
        row["status"] = program.main(*case.words, cwd=case.folder)
    except ValueError as error:
        row["refused"] = str(error).rpartition(": line")[2].strip()
    row["maps_refused"] = dict(program.session.maps_refused.most_common(3))
    return row


def record_of(path, names):
    """The rows of an earlier run that stay when only some programs, ``names``, are run."""
    return json.loads(Path(path).read_text())["rows"] if names and Path(path).exists() else []


def run(case, folder, judge="judge"):
    """The same in a process of its own: programs call ``exit``. ``error``: where it ended without a row;
    ``judge``: the module that runs it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    out = Path(folder) / f"{case.name}.json"
    out.unlink(missing_ok=True)
    words = [sys.executable, "-m", f"{__package__}.{judge}", json.dumps(asdict(case)), str(folder), str(out)]
    paths = os.pathsep.join([str(HERE.parent), str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(words, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
                           errors="replace")  # fmt: skip
    if not out.exists():
        return {"name": case.name, "error": (ended.stderr or ended.stdout).strip().splitlines()[-1:]}
    return json.loads(out.read_text())


def main(run_here):
    """What such a process does."""
    row = run_here(Case(**json.loads(sys.argv[1])), sys.argv[2])
    Path(sys.argv[3]).write_text(json.dumps(row))


if __name__ == "__main__":
    main(run_here)
