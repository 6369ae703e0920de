"""Reads PTX text: functions, variables, instructions, each with its line and the source's lines (``.loc``)."""

import functools
import math
import re
from dataclasses import dataclass, field

WORD = re.compile(r"[%$_.A-Za-z][\w$%.]*(?:::[\w.]+)*")
TYPES = "pred b8 u8 s8 b16 u16 s16 f16 bf16 f16x2 bf16x2 b32 u32 s32 f32 tf32 b64 u64 s64 f64 b128".split()
SIZES = {t: int(re.sub(r"\D", "", t.replace("x2", "")) or 8) // 8 * (2 if "x2" in t else 1) for t in TYPES}
SIZES |= {"u16x2": 4, "s16x2": 4, "f32x2": 8, "e4m3x2": 2, "e5m2x2": 2, "e2m3x2": 2, "e3m2x2": 2, "ue8m0x2": 2,
          "e2m1x2": 1}  # fmt: skip
SPACES = ("shared", "global", "const", "local", "param")
MOST_REGISTERS = 1 << 20  # in one declaration
NEWEST = 121  # of Blackwell's instructions some are known (bench/PTX.md); a later target may mean other things


class BadPtx(ValueError):
    """PTX that cannot be read, or holds what the engine does not know; the text names the line. ``is_placed``:
    and its file."""

    is_placed = False


@dataclass
class Variable:
    """``space`` is one of SPACES, ``size`` in bytes, 0 of an open array; ``initial``: text behind ``=``."""

    name: str
    space: str
    type: str
    align: int
    size: int
    array: bool
    initial: str = ""


@dataclass(eq=False)
class Instruction:
    """``guard``: (register, whether it is negated), or None. ``frames``: (file, line) of the source, the
    innermost first, each inlined into the next."""

    opcode: str
    operands: list
    guard: tuple
    line: int
    frames: tuple = ()

    @functools.cached_property
    def parts(self):
        return self.opcode.split(".")

    @functools.cached_property
    def root(self):
        return self.opcode.partition(".")[0]


@dataclass
class Function:
    """An entry, or a ``.func``. ``body``: instructions, and labels as texts. ``registers``: name -> type."""

    name: str
    params: list
    results: list
    is_entry: bool
    line: int
    threads: int = 0  # of a block, where .maxntid or .reqntid says so
    cluster: tuple | None = None  # its shape in blocks, where .reqnctapercluster says so
    body: list = field(default_factory=list)
    registers: dict = field(default_factory=dict)
    variables: list = field(default_factory=list)

    @property
    def instructions(self):
        return [i for i in self.body if not isinstance(i, str)]


@dataclass
class Module:
    functions: dict
    variables: list


HEAD = re.compile(
    r"\.(?P<kind>entry|func)\s*(?P<results>\([^)]*\))?\s*(?P<name>[\w$]+)\s*(?:\((?P<params>[^)]*)\))?"
    r"(?P<more>[^{;]*)(?P<end>[{;])"
    r"|(?P<variable>\.(?:shared|global|const)\b[^;]*);"
)  # fmt: skip
COMMENT = re.compile(r'"[^"\n]*"|//[^\n]*|/\*.*?\*/', re.S)  # or a name of a file, which may hold //
TARGET = re.compile(r"\.target\s+(sm_(\d+)\w*)")


def read(text):
    """The :class:`Module` of a text. Raises BadPtx for what is no PTX, for another target, and where it ends
    in the middle."""
    plain = COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text)
    target = TARGET.search(plain)
    if target is None:
        raise BadPtx("line 1: this is no PTX: there is no .target")
    line = plain.count("\n", 0, target.start()) + 1
    if int(target[2]) > NEWEST:
        raise BadPtx(f"line {line}: .target {target[1]}: the engine knows up to sm_{NEWEST}a; compile for that")
    if size := re.search(r"\.address_size\s+32", plain):
        raise BadPtx(f"line {_line(plain, size.start())}: .address_size 32: a Hopper GPU has 64")
    files = {int(n): name for n, name in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', plain)}
    plain = re.sub(r"\.section\b.*?\n\s*\}", lambda m: "\n" * m[0].count("\n"), plain, flags=re.S)
    module, at = Module({}, []), 0
    while m := HEAD.search(plain, at):
        at = m.end()
        if m["variable"]:
            module.variables += variables(m["variable"], _line(plain, m.start()))
        elif m["end"] == "{":
            function = _function(m, _line(plain, m.start("kind")))
            end = _closing(plain, at)
            _Body(function, files, plain[at:end], _line(plain, at)).read()
            module.functions[function.name] = function
            at = end + 1
    if rest := re.search(r"\.(entry|func)\b", plain[at:]):
        raise BadPtx(f"line {_line(plain, at + rest.start())}: the text ends inside .{rest[1]}")
    return module


def _line(text, at):
    return text.count("\n", 0, at) + 1


def _function(m, line):
    def declared(text):
        return [v for part in (text or "").strip("() \n").split(",") for v in variables(part, line)]

    def numbers(directive):
        found = re.search(directive + r"\s+([\d,\s]+)", m["more"])
        return tuple(map(int, re.findall(r"\d+", found[1]))) if found else ()

    threads, cluster = numbers(r"\.(?:max|req)ntid"), numbers(r"\.reqnctapercluster")
    cluster = (*cluster, 1, 1)[:3] if cluster else None
    return Function(m["name"], declared(m["params"]), declared(m["results"]), m["kind"] == "entry", line,
                    math.prod(threads) if threads else 0, cluster)  # fmt: skip


def _closing(text, at):
    """Where the brace that is open at ``at`` closes."""
    depth = 1
    for m in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if m[0] == "{" else -1
        if not depth:
            return m.start()
    raise BadPtx(f"line {_line(text, at)}: the brace here is never closed: the text is not whole")


def variables(text, line):
    """What ``.shared .align 8 .b8 a[24]`` and the like declare."""
    text, _, initial = text.partition("=")
    space = next((s for s in SPACES if f".{s}" in text), "param")
    align = re.search(r"\.align\s+(\d+)", text)
    kind = next((w[1:] for w in re.findall(r"\.\w+", text) if w[1:] in TYPES), "b32")
    text = re.sub(r"\.ptr(?:\s*\.(?:global|shared|const|local))?(?:\s*\.align\s+\d+)?", "", text)
    names = re.sub(r"\.align\s+\d+|\.[A-Za-z]\w*", "", text)
    found = []
    for name in filter(str.strip, names.split(",")):
        m = re.fullmatch(r"\s*([\w$%]+)\s*((?:\[\s*\d*\s*\]\s*)*)", name)
        if m is None:
            raise BadPtx(f"line {line}: {name.strip()!r} is no variable")
        size = SIZES[kind] * (4 if ".v4" in text else 2 if ".v2" in text else 1)
        align_to = int(align[1]) if align else size
        for n in re.findall(r"\[\s*(\d*)\s*\]", m[2]):
            size *= int(n or 0)
        found.append(Variable(m[1], space, kind, align_to, size, bool(m[2]), initial.strip()))
    return found


CHOICE = "%brx"  # whether a brx.idx goes where the next jump leads
BLANK = re.compile(r"\s*")
TOKEN = re.compile(r"\s*(?:(\{)|(\})|(\.loc\b[^\n]*)|([\w$]+)\s*:(?!:)|([^;{}]*(?:\{[^{};]*\}[^;{}]*)*);)")
LOC = re.compile(r"\.loc\s+(\d+\s+\d+\s+\d+)(?:.*inlined_at\s+(\d+\s+\d+\s+\d+))?")
STATEMENT = re.compile(r"(?:@(!?)\s*([\w$%]+)\s+)?([\w.:]+)\s*(.*)")


class _Body:
    """Reads one function's statements. Names that inner braces declare get a number of their own."""

    def __init__(self, function, files, text, line):
        self.function, self.files, self.text, self.first = function, files, text, line
        self.scopes, self.blocks, self.frames, self.chains = [{}], 0, (), {}
        self.tables = {}  # label -> those of its .branchtargets

    def read(self):
        at, line, text = 0, self.first, self.text.rstrip()
        while at < len(text):
            m = TOKEN.match(text, at)
            start = BLANK.match(text, at).end()
            line += text.count("\n", at, start)
            if not m:
                raise BadPtx(f"line {line}: {text[start:].partition(chr(10))[0]!r} is no statement")
            at = m.end()
            if m[1]:
                self.open(at)
            elif m[2]:
                self.scopes.pop()
            elif m[3]:
                self.frames = self.chain(m[3], line)
            elif m[4]:
                self.function.body.append(self.known(m[4]))
            elif m[5].strip():
                self.statement(" ".join(m[5].split()), line)
            line += text.count("\n", start, at)
        if self.function.body and isinstance(self.function.body[-1], str):  # a label before the end
            self.function.body.append(Instruction("ret", [], None, line, self.frames))
        self.function.body = [one for each in self.function.body for one in self.branches(each)]

    def open(self, at):
        """An inner brace: its labels have to be known before the jumps to them."""
        self.blocks += 1
        labels = re.findall(r"(?<![\w$:])([\w$]+)\s*:(?!:)", self.text[at : _closing(self.text, at)])
        self.scopes.append({name: f"{name}_{self.blocks}" for name in labels})

    def chain(self, text, line):
        """The frames of a ``.loc``: its own, and those of the place that it is inlined at."""
        m = LOC.match(" ".join(text.split()))
        if m is None:
            raise BadPtx(f"line {line}: {text.strip()!r} is no .loc")
        file, number, _ = map(int, m[1].split())
        outer = ()
        if m[2]:
            place = tuple(map(int, m[2].split()))
            outer = self.chains.get(place) or ((self.files.get(place[0], "?"), place[1]),)
        frames = (self.files.get(file, "?"), number), *outer
        self.chains[tuple(map(int, m[1].split()))] = frames
        return frames if number else self.frames

    def branches(self, i):
        """A brx.idx as comparisons and jumps, the last for all other numbers, which PTX leaves open."""
        if isinstance(i, str) or i.root != "brx" or i.operands[1] not in self.tables or i.guard:
            return [i]
        made, (*labels, last) = [], self.tables[i.operands[1]]
        self.function.registers[CHOICE] = "pred"
        for n, label in enumerate(labels):
            made.append(Instruction("setp.eq.u32", [CHOICE, i.operands[0], str(n)], None, i.line, i.frames))
            made.append(Instruction("bra", [label], (CHOICE, False), i.line, i.frames))
        return [*made, Instruction("bra", [last], None, i.line, i.frames)]

    def known(self, name):
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), name)

    def statement(self, text, line):
        function = self.function
        if text.startswith(".reg"):
            kind, _, names = text.removeprefix(".reg").strip().partition(" ")
            for name in names.split(","):
                m = re.fullmatch(r"\s*([\w$%]+)\s*(?:<(\d+)>)?\s*", name)
                if m is None or kind[1:] not in TYPES or int(m[2] or 0) > MOST_REGISTERS:
                    raise BadPtx(f"line {line}: {text!r} declares no register")
                for i in range(int(m[2])) if m[2] else [""]:
                    own = f"{m[1]}{i}" if len(self.scopes) == 1 else f"{m[1]}{i}_{self.blocks}"
                    self.scopes[-1][f"{m[1]}{i}"] = own
                    function.registers[own] = kind[1:]
        elif text.startswith(tuple(f".{space}" for space in SPACES)):
            for v in variables(text, line):
                if len(self.scopes) > 1:
                    self.scopes[-1][v.name] = f"{v.name}_{self.blocks}"
                v.name = self.known(v.name)
                function.variables.append(v)
        elif text.startswith(".branchtargets"):
            labels = (self.known(name.strip()) for name in text.partition(" ")[2].split(","))
            self.tables[function.body.pop()] = list(labels)
        elif text.startswith((".callprototype", ".calltargets")):
            function.body.pop()  # its label
        elif not text.startswith(".pragma"):
            m = STATEMENT.fullmatch(text)
            if m is None or text.startswith("."):
                raise BadPtx(f"line {line}: {text!r} is no instruction that the engine knows")
            guard = (self.known(m[2]), bool(m[1])) if m[2] else None
            operands = [WORD.sub(lambda w: self.known(w[0]), o) for o in split(m[4])]
            function.body.append(Instruction(m[3], operands, guard, line, self.frames))


def split(text):
    """Operands at the outermost commas."""
    parts, depth, last = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in "[{(") - (c in "]})")
        if c == "," and not depth:
            parts.append(text[last:i].strip())
            last = i + 1
    return [*parts, text[last:].strip()] if text.strip() else []


def atoms(operands):
    """What operands name, one by one: ``[%rd1, {%r1, %r2}]`` is three, ``[%r1+8]`` one."""
    return [a.strip() for o in operands for a in re.split(r"[\[\]{}(),|]", o) if a.strip()]


def registers_in(text):
    """The words of a text that may be registers."""
    return re.findall(r"[%\w$]+", text)


def targets_of(i):
    """The names that an instruction may set: those of its first operand."""
    if not i.operands or "[" in i.operands[0] or i.root in ("bar", "barrier", "bra", "call", "cp", "nanosleep"):
        return []
    if i.root == "tcgen05" and i.parts[1] != "ld":
        return []
    return registers_in(i.operands[0])


def sources_of(i):
    """The names in the operands that it reads."""
    return registers_in(" ".join(i.operands[1:] if targets_of(i) else i.operands))
