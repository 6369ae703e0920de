"""The programs of ptx_programs.py on a GPU, as they are: does it leave in memory what the CPU engine leaves?

    python bench/ptx_programs_on_gpu.py build --mirrors FOLDER --work FOLDER     # no GPU; by nvcc
    python bench/ptx_programs_on_gpu.py run --work FOLDER                        # on a GPU
    python bench/ptx_programs_on_gpu.py compare --work FOLDER --out bench/results/ptx_programs_on_gpu.json

Each allocation of a program is compared, as it is when it is freed or when the program ends: bit for bit, and
as numbers of the type that it holds. ``run`` launches every kernel as often as the program does, by the real
CUDA runtime; the engine runs each launch as well. Steps may be made on machines of their own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import originals
from cuda_programs import host, judge
from ptx_programs import PROGRAMS, case_of

from numba_deform.compiler.cache import save
from numba_deform.measure import record

HERE = Path(__file__).parent
LIMIT = 60
TYPES = {"ring": np.float32}  # of what is computed; else float16, or bfloat16 by its bits
BFLOAT = ("ThunderKittens", "DeepGEMM")
MAPS = ("deform_attn_tma-cu", 7)  # this allocation holds tensor maps, which the driver encodes in its own way
# What programs link with of the driver; the real functions are found where there is one.
DRIVER = "int cuTensorMapEncodeTiled(void) { return 999; } int cuGetErrorString(void) { return 999; }\n"


def built(case, work):
    """Compile a program with the real CUDA runtime: ``work/bin/NAME``."""
    out, folder = work / "bin" / case.name, work / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    source = Path(case.source)
    for *file, pattern, replacement in case.mends:
        assert not file
        text = judge.substituted(source.read_text(errors="replace"), pattern, replacement, case.name)
        source = folder / Path(case.source).name
        source.write_text(text)
    stub = folder / "libcuda.so"
    (folder / "driver.c").write_text(DRIVER)
    stubbed = ["cc", "-shared", "-Wl,-soname,libcuda.so.1", str(folder / "driver.c"), "-o", str(stub)]
    subprocess.run(stubbed, check=True)
    words = ["nvcc", "-gencode", "arch=compute_90a,code=sm_90a", "-w", *case.options]
    words += ["-include", str(HERE / "cuda_programs" / "recorded.h"), f"-I{Path(case.source).parent}"]
    words += [str(source), f"-L{folder}", "-lcuda", "-Xcompiler", "-static-libstdc++", "-o", str(out)]
    done = subprocess.run(words, capture_output=True, text=True)
    stub.unlink()
    return done.stderr if done.returncode else ""


def on_engine(case, work):
    """What the engine leaves in memory, of each launch of the program: files of ``work/engine/NAME``."""
    import numba_deform as nd

    folder = work / "engine" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root = judge.toolkit()
    include = [*case.options, f"-I{root / 'include'}", f"-I{root / 'include' / 'cccl'}",
               f"-I{Path(case.source).parent}"]  # fmt: skip
    source = Path(case.source)
    if case.mends:
        source = work / "bin" / source.name
    library, texts = host.compiled(work / "built", case.name, source, include)
    launches = []

    def run(launched):
        launches.append(launched.name)
        nd.simulate(launched.kernel, waive=tuple(case.waive), timeout=240, **launched.options)

    class Kept(host.Program):
        numbers, count = {}, 0

        def cuMemAlloc(self, size):
            self.count += 1
            start = super().cuMemAlloc(size)
            self.numbers[int(start)] = self.count
            return start

        def cuMemFree(self, start):
            self.keep(start)
            super().cuMemFree(start)

        def keep(self, start):
            if start in self.content:
                self.content[start].tofile(folder / str(self.numbers[start]))

    program = Kept(library, texts, source, run)
    status = program.main(*case.words, cwd=case.folder)
    for start in program.numbers:
        program.keep(start)
    (folder / "launches.json").write_text(json.dumps({"launches": launches, "status": status}))


def build(args, cases):
    for case in cases:
        if said := built(case, args.work):
            print(case.name, "does not compile:", *said.splitlines()[:3], sep="\n   ")
            continue
        words = [sys.executable, __file__, "engine", case.name]
        words += ["--work", str(args.work), "--mirrors", str(args.mirrors)]
        ended = subprocess.run(words, capture_output=True, text=True)  # programs call ``exit``
        print(case.name, "built", *ended.stderr.strip().splitlines()[-1:], flush=True)


def run(args):
    """Run what was built: files of ``work/gpu/NAME``, and ``said.json`` beside them."""
    from numba_deform.engines.gpu.device import find_gpu

    originals.data(args.work)
    where = {key: value for key, value in record.document(find_gpu(), []).items() if key != "rows"}
    (args.work / "gpu").mkdir(exist_ok=True)
    (args.work / "gpu" / "machine.json").write_text(json.dumps(where))
    for program in sorted(f for f in (args.work / "bin").iterdir() if os.access(f, os.X_OK) and not f.suffix):
        if args.names and program.name not in args.names:
            continue
        folder = args.work / "gpu" / program.name
        folder.mkdir(parents=True, exist_ok=True)
        words = originals_words(program.name)
        started = time.perf_counter()
        try:
            done = subprocess.run([str(program), *words], cwd=args.work, capture_output=True, text=True,
                                  timeout=LIMIT, env=os.environ | {"RECORDED": str(folder)})  # fmt: skip
            said = {"status": done.returncode}
            said |= {"said": (done.stdout + done.stderr)[-1500:]} if done.returncode else {}
        except subprocess.TimeoutExpired:
            said = {"status": f"no end within {LIMIT} s"}
        said["seconds"] = round(time.perf_counter() - started, 2)
        (folder / "said.json").write_text(json.dumps(said))
        print(program.name, said, flush=True)


def originals_words(name):
    return [f"{key}={value}" for key, value in originals.KEYS.items()] if name.startswith("deform") else []


def compare(args):
    rows, where = [], json.loads((args.work / "gpu" / "machine.json").read_text())
    for folder in sorted(f for f in (args.work / "gpu").iterdir() if f.is_dir()):
        said = json.loads((folder / "said.json").read_text())
        row = {"program": folder.name, **said, "allocations": []}
        engine = args.work / "engine" / folder.name
        row |= json.loads((engine / "launches.json").read_text()) if (engine / "launches.json").exists() else {}
        row["status"] = said["status"]
        for file in sorted((f for f in folder.iterdir() if f.name.isdigit()), key=lambda f: int(f.name)):
            there, here = (np.fromfile(f / file.name, np.uint8) for f in (folder, engine))
            if (folder.name, int(file.name)) == MAPS:
                row["allocations"].append({"bytes": len(there), "holds": "tensor maps"})
                continue
            part = {"bytes": len(there), "equal": len(there) == len(here) and bool((there == here).all())}
            if not part["equal"] and len(there) == len(here):
                a, b = (numbers(x, folder.name) for x in (there, here))
                part |= {"different_bytes": int((there != here).sum()),
                         "largest_difference": float(np.nanmax(np.abs(a - b))),
                         "largest_number": float(np.nanmax(np.abs(b)))}  # fmt: skip
            row["allocations"].append(part)
        rows.append(row)
        print(folder.name, row["status"], row["allocations"])
    save(args.out, {**where, "rows": rows})


def numbers(content, name):
    """Bytes of an allocation as float64."""
    if name.startswith(BFLOAT):
        return (content.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return content.view(TYPES.get(name, np.float16)).astype(np.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("build", "run", "compare", "engine"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--mirrors", type=Path, default=Path("mirrors"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.work = args.work.resolve()
    if args.step in ("build", "engine"):
        os.environ["PATH"] = f"{judge.toolkit() / 'bin'}{os.pathsep}{os.environ['PATH']}"
        originals.data(args.work)
        cases = [case_of(program, args.work, args.mirrors.resolve()) for program in PROGRAMS]
        cases = [case for case in cases if not args.names or case.name in args.names]
        return build(args, cases) if args.step == "build" else [on_engine(case, args.work) for case in cases]
    (run if args.step == "run" else compare)(args)


if __name__ == "__main__":
    main()
