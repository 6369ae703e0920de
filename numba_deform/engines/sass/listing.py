"""A kernel's machine code: each instruction with its operands, the lines it comes from, and the assembler's
schedule.

``nvdisasm -gi -c -hex`` prints all of it. The upper half of each 128-bit instruction holds what the assembler
tells the scheduler (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018):
how many cycles to stall, which of six scoreboards the instruction sets, and which it waits for."""

import contextlib
import functools
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...compiler.build import ARCHITECTURE, Kernel, assembled
from ...compiler.outline import cached
from ...compiler.sass import disassembled, run_tool, tool, usage_of

OPTIONS = "-gi", "-hex"  # of nvdisasm: with lines, and the upper halves of instructions
NO_SCOREBOARD = 7
FILE = re.compile(r'\s*//## File "(?P<file>[^"]+)", line (?P<line>\d+)(?P<inlined> inlined at)?')
LABEL = re.compile(r"([.\w$]+):")
CODE = re.compile(r"\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<guard>!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*"
                  r"(?P<operands>.*?)\s*(?:\(\*.*\*\)\s*)?;\s*/\* 0x\w+ \*/")  # a remark: that it spills
HIGH = re.compile(r"/\* (0x\w+) \*/")
TARGET = re.compile(r"`\(([.\w$]+)\)")
ADDRESS = re.compile(r"32@(lo|hi)\(\(.* \+ (\.L_x_\d+)@srel\)\)")  # of a place to return to; here its number
RENAMED = {".reuse": "", "Rpc.LO": "R256", "Rpc.HI": "R257"}


@dataclass(eq=False)
class Instruction:
    """One instruction.

    number     its place in the listing
    guard      the predicate that it runs under, such as ``!P0``; "" for none
    opcode     with its modifiers: ``LDG.E.128.CONSTANT``
    operands   texts
    frames     (file, line) of the innermost function, then those of who calls it, to the kernel itself
    stall      cycles before the warp's next instruction
    sets       the scoreboards for: result is there, operands are read; NO_SCOREBOARD: none
    waits      numbers of the scoreboards that it waits for
    target     the number of the instruction that it names by a label, -1 for none
    """

    number: int
    guard: str
    opcode: str
    operands: tuple
    frames: tuple
    stall: int = 0
    sets: tuple = (NO_SCOREBOARD, NO_SCOREBOARD)
    waits: tuple = ()
    target: int = -1
    stem: str = field(init=False)
    words: frozenset = field(init=False)

    def __post_init__(self):
        self.stem, *words = self.opcode.split(".")
        self.words = frozenset(words)

    @property
    def line(self):
        """(file, line) of the innermost function outside of ``device/``: a primitive counts for its caller."""
        own = [frame for frame in self.frames if Path(frame[0]).parts[-3:-1] != ("numba_deform", "device")]
        return (own or self.frames or [("?", 0)])[0]

    def __str__(self):
        guard = f"@{self.guard} " if self.guard else ""
        return f"{guard}{self.opcode} {', '.join(self.operands)}".strip()

    def told(self):
        """Itself and its place, for errors."""
        file, line = self.line
        return f"{self} (instruction {self.number}, {Path(file).name}:{line})"


@dataclass(eq=False)
class Listing:
    """The instructions of one kernel, which begins at number ``entry``; ``registers`` of a thread, ``shared``
    and ``local`` bytes of static shared memory and of each thread's stack, as ``cuobjdump`` says, ``constants``
    {bank: bytes} beside parameters, ``variables`` of the module: ({section: bytes}, {name: (section, place in
    it)})."""

    code: list
    entry: int
    registers: int
    shared: int
    local: int
    constants: dict
    variables: tuple

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.code)

    def __len__(self):
        return len(self.code)


def listing(kernel, architecture=ARCHITECTURE):
    """The :class:`Listing` of a ``compiler.Kernel``, which is compiled with lines, from disk if it is there; or
    of a kernel of PTX.

    Raises what ``inspect_kernel`` raises, NotBuilt for PTX that the assembler refuses."""
    if not isinstance(kernel, Kernel):
        tool("nvdisasm"), tool("cuobjdump")
        cubin = kernel.cubin or _cubin(kernel.text, architecture)
        return read(*disassembled(cubin, *OPTIONS), kernel.entry.name)
    lined = kernel.with_lines()
    return read(*cached("lines", lined, architecture, functools.partial(_disassembled, lined, architecture)))


def _cubin(text, architecture):
    """Of PTX. What nvJitLink makes of it might be linked with other code, and setmaxnreg has no effect there:
    such text is ptxas' work, where there is one on PATH that takes it. Else a profile says so."""
    if "setmaxnreg" in text and (ptxas := shutil.which("ptxas")):
        with tempfile.TemporaryDirectory() as directory, contextlib.suppress(RuntimeError):
            file, cubin = Path(directory) / "kernel.ptx", Path(directory) / "kernel.cubin"
            file.write_text(text)
            run_tool(ptxas, "-arch", architecture, "-lineinfo", file, "-o", cubin)
            return cubin.read_bytes()
    return assembled(text, architecture)


def _disassembled(kernel, architecture):
    tool("nvdisasm"), tool("cuobjdump")  # before compiling takes its time
    compiled = kernel.compile(architecture)
    return *disassembled(compiled.cubin, *OPTIONS), compiled.entry


def read(text, usage, entry):
    """The :class:`Listing` of these texts; of several functions the kernel ``entry``, which may call others."""
    found = usage_of(entry, usage)
    code, labels = _instructions(text)
    sizes = found["REG"], found["SHARED"], found["STACK"] + found["LOCAL"]
    data, places = _data(text)
    own = {name: x for name, x in data.items() if name.count(".") < 3 or name.endswith(f".{entry}")}
    variables = {name: x for name, x in data.items() if name.startswith(".nv.global")}
    return Listing(code, labels[entry], *sizes, own, (variables, places))


def _instructions(text):
    code, labels, frames, names, fresh = [], {}, (), [], True
    lines = iter(text.splitlines())
    for line in lines:
        if m := FILE.match(line):
            place = m["file"], int(m["line"])
            frames, fresh = ((place,) if fresh or not frames else (*frames, place)), False
        elif m := LABEL.match(line):
            names.append(m[1])
        elif m := CODE.match(line):
            control = int(HIGH.search(next(lines))[1], 16) >> 41
            labels |= dict.fromkeys(names, len(code))
            names, fresh = [], True
            code.append(Instruction(
                len(code), m["guard"] or "", m["opcode"], split(m["operands"]), frames, control & 15,
                (control >> 5 & 7, control >> 8 & 7),
                tuple(k for k in range(6) if control >> 11 + k & 1)))  # fmt: skip
    for one in code:
        named = [m[1] for operand in one.operands if (m := TARGET.search(operand))]
        one.target = labels.get(named[-1], -1) if named else -1
        places = (ADDRESS.sub(lambda m: hex(labels[m[2]] if m[1] == "lo" else 0), x) for x in one.operands)
        one.operands = tuple(places)
    return code, labels


def split(text):
    """The operands between commas outside of brackets."""
    for old, new in RENAMED.items():
        text = text.replace(old, new)
    parts = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\((?:[^()]|\([^)]*\))*\)|[^,\[\]{}()])+", text)
    return tuple(part.strip() for part in parts if part.strip())


def _data(text):
    """{section: bytes} of what the module holds beside code, constants and variables, and {variable: (section,
    place in it)}."""
    found, places, section, size = {}, {}, None, {"byte": 1, "short": 2, "word": 4, "dword": 8}
    for line in text.splitlines():
        if m := re.match(r"\s*\.section\s+(\.nv\.(?:constant\d+|global)[\w.$]*)", line):
            name, section = m[1], found.setdefault(m[1], bytearray())
        elif line.lstrip().startswith(".section"):
            section = None
        elif section is not None and (m := LABEL.match(line)):
            places[m[1]] = name, len(section)
        elif section is not None and (m := re.match(r"\s*\.align\s+(\d+)", line)):
            section += bytes(-len(section) % int(m[1]))
        elif section is not None and (
            m := re.match(r"\s*(?:/\*\w+\*/)?\s*\.(byte|short|word|dword)\s+(.*)", line)
        ):
            for number in re.findall(r"0x[0-9a-f]+", m[2]):
                section += int(number, 16).to_bytes(size[m[1]], "little")
        elif section is not None and (m := re.match(r"\s*(?:/\*\w+\*/)?\s*\.zero\s+(\d+)", line)):
            section += bytes(int(m[1]))
    return {name: bytes(data) for name, data in found.items()}, places
