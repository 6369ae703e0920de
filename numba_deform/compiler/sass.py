"""What a kernel became: PTX, machine code (SASS), registers, spills. Needs no GPU and no driver."""

import functools
import importlib.metadata
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ..device.limits import RESERVED_SHARED
from ..device.packages import require_cuda
from . import Kernel
from .build import ARCHITECTURE
from .outline import cached


class ToolMissing(RuntimeError):
    """A tool of NVIDIA's is not installed; the text says how to get it."""


@dataclass(frozen=True, eq=False)
class Inspection:
    """One compiled kernel; what is counted belongs to the kernel itself, not to functions it calls.

    ptx, sass      texts of the whole module, with the kernel's Python name for its mangled one
    registers      of a thread
    stack          bytes of a thread, for what did not fit in registers or is indexed by a variable
    shared         bytes of static shared memory of a block
    functions      instructions by opcode stem (``UTMALDG`` for ``UTMALDG.3D``), for each function
                   of the module; the linked form has one for each PTX function
    """

    kernel: Kernel
    architecture: str
    ptx: str
    sass: str
    registers: int
    stack: int
    shared: int
    functions: dict[str, dict[str, int]]

    @property
    def instructions(self):
        """Instructions of the kernel by opcode stem."""
        return self.functions[self.kernel.name]

    @property
    def spill_loads(self):
        """Loads from local memory (LDL)."""
        return self.instructions.get("LDL", 0)

    @property
    def spill_stores(self):
        """Stores to local memory (STL)."""
        return self.instructions.get("STL", 0)


def inspect_kernel(kernel, architecture=ARCHITECTURE):
    """Compile ``kernel`` for ``architecture``, such as ``sm_90a``, and take the cubin apart.

    Raises CudaMissing without the compiler's packages, ToolMissing without cuobjdump and nvdisasm,
    ValueError for something that is no architecture, and what the compiler raises for one that
    cannot run the kernel."""
    found = cached("listing", kernel, architecture, functools.partial(_take_apart, kernel, architecture))
    return Inspection(kernel, architecture, *found)


def _take_apart(kernel, architecture):
    """The fields of an Inspection after the first two."""
    require_cuda("taking a kernel apart")
    tool("cuobjdump"), tool("nvdisasm")  # before compiling takes its time
    compiled = kernel.compile(architecture)
    text, listed = disassembled(compiled.cubin, "-c")
    sass, usage = text.replace(compiled.entry, kernel.name), usage_of(compiled.entry, listed)
    shared = usage["SHARED"]
    if shared and int(architecture[3:].rstrip("a")) >= 90:
        shared -= RESERVED_SHARED  # cuobjdump counts it in from Hopper on
    ptx = compiled.ptx.replace(compiled.entry, kernel.name)
    return ptx, sass, usage["REG"], usage["STACK"], shared, count_instructions(sass)


def disassembled(cubin, *options):
    """(the text of nvdisasm with these ``options``, that of cuobjdump on resources) of a cubin."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "kernel.cubin"
        file.write_bytes(cubin)
        return run_tool(tool("nvdisasm"), *options, file), run_tool(tool("cuobjdump"), "-res-usage", file)


def usage_of(entry, listed):
    """{name: number} of a kernel; the linked form lists every function, in no particular order."""
    line = re.search(rf"Function {re.escape(entry)}:\s*\n(.*)", listed)[1]
    return {name: int(number) for name, number in re.findall(r"(\w+):(\d+)", line)}


def count_instructions(sass):
    """``{function: {opcode stem: count}}`` of a disassembly by ``nvdisasm -c``."""
    functions, counts = {}, Counter()
    for line in sass.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([\w$.]+)", line):
            counts = functions.setdefault(section[1], Counter())
        # /*0110*/   @!P0 BRA `(.L_x_2) ;    with the predicate only where there is one
        elif opcode := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line):
            counts[opcode[1]] += opcode[1] != "NOP"  # NOPs only fill up the last cache line
    return {name: dict((+counts).most_common()) for name, counts in functions.items()}


def tool(name):
    """The tool's path: from its Python package, which knows where pip put it, else from PATH."""
    try:
        files = importlib.metadata.files(f"nvidia-cuda-{name}") or []
        found = [f.locate() for f in files if f.stem == name and f.suffix in ("", ".exe")]
    except importlib.metadata.PackageNotFoundError:
        found = []
    path = next((str(f) for f in found if Path(f).is_file()), None) or shutil.which(name)
    if path is None:
        raise ToolMissing(f"taking a kernel apart needs {name}: pip install 'numba_deform[inspect]' brings it")
    return path


def run_tool(tool, *arguments):
    done = subprocess.run([tool, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(tool).name} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
