"""A kernel as text in Python: one or a few statements an instruction, each on a line of its own, with the line
of the source that it comes from. Blocks that one place alone leads to stand where that place is; the others are
cases of a loop over ``pc``; a case that comes back to itself is a loop of its own."""

import re

from .demangling import unmangled
from .effects import IGNORED, by_intrinsic
from .effects import ROWS as EFFECTS
from .instructions import by_row, kinds_of
from .loaded_registers import LoadWatch
from .lowering.accesses import words_of
from .lowering.tensor_cores import of_leader
from .parser import SIZES, BadPtx, registers_in, sources_of, targets_of
from .unused_loads import UnusedLoads
from .values import ADDRESS, FLOATS, WORKSPACE, Values, bits_of, mask_of, python_name
from .warpgroup_registers import RegisterWatch, is_product, registers_of_product

DEEPEST = 40  # blocks inside each other, before one becomes a case
FEW = 8  # cases that are tried one after the other
ENDS = ("bra", "ret", "exit")
ARITHMETIC = ("add", "sub", "mul", "fma", "mad", "div", "min", "max")


class Translator(Values):
    """Of one function; ``program`` has what all functions of a kernel share."""

    def __init__(self, program, function):
        super().__init__(function, program.names)
        self.program = program
        self.buffers = {}  # .param variables of calls, and those of the function's own: name -> Python name
        if function.is_entry:
            self.params = {v.name: (program.params[v.name], v) for v in function.params}
        else:
            self.buffers = {v.name: self.name_for(v.name) for v in (*function.params, *function.results)}
        self.buffers |= {v.name: self.name_for(v.name) for v in function.variables if v.space == "param"}
        self.addresses = program.addresses_of(function)
        program.registers |= {self.registers[r]: kind for r, kind in self.classes.items()}
        self.uses = {}  # register -> the instructions that read it
        for i in function.instructions:
            for register in dict.fromkeys((*sources_of(i), *(i.guard[:1] if i.guard else ()))):
                self.uses.setdefault(register, []).append(i)

        self.parts, self.watches = self.blocks(), []
        self.unused = UnusedLoads(function, self.parts, self.uses).guards if program.is_tritons else {}
        for watch, name in ((RegisterWatch, "held"), (LoadWatch, "pending")):
            if any(map(watch.owned, function.instructions)):
                made = watch(self.parts, self.targets, self.name_for(name))
                self.watches += [made] if made.is_needed else []

    def decides(self, register):
        """Whether what a thread does depends on a register, or on what is computed from it, as on a flag; what
        floats come to is none."""
        seen, found = set(), [register]
        while found:
            seen.add(one := found.pop())
            for i in self.uses.get(one, ()):
                if i.guard and i.guard[0] == one or i.root == "st" and "param" in i.parts:  # or in a call
                    return True
                if i.root not in ARITHMETIC or not {*FLOATS} & {*i.parts}:
                    found += {*targets_of(i)} - seen
        return False

    # --- parameters and calls ---------------------------------------------------------------------
    def parameter(self, text, kind, count):
        """What ``ld.param`` reads."""
        m = ADDRESS.match(text.strip("[] "))
        each = SIZES[kind]
        if m[1] in self.buffers:
            return f"load('local', {int(m[2] or 0)}, {each}, {count}, {self.buffers[m[1]]})"
        if m[1] in self.registers:
            return f"load('global', {self.address(text, '')}, {each}, {count}, local)"
        if m[1] not in self.params:
            raise BadPtx(f"the parameter {m[1]}")
        name, variable = self.params[m[1]]
        if variable.array:
            place = f"({name} + {int(m[2])} & {mask_of('u64'):#x})" if m[2] else name
            return f"load('global', {place}, {each}, {count}, local)"
        if count > 1 or int(m[2] or 0) + each > SIZES[variable.type]:
            raise BadPtx(f"{text}, more than a number")
        if m[2]:
            return f"({self.converted(name, 'u64', 'u64')} >> {8 * int(m[2])} & {(1 << 8 * each) - 1:#x})"
        own = variable.type if variable.type in FLOATS else f"b{8 * SIZES[variable.type]}"
        if each < 4:  # a launch hands over 32 bits of it
            return f"({name} & {(1 << 8 * each) - 1:#x})"
        return self.converted(name, own, f"b{8 * each}")

    def buffer(self, name):
        if name not in self.buffers:
            raise BadPtx(f"{name}, which is no parameter of a call")
        return self.buffers[name]

    # --- statements ---------------------------------------------------------------------------------
    def statements(self, i):
        """The Python statements of an instruction that is no jump, as texts."""
        try:
            if i.root in IGNORED and "tensormap" not in i.parts:
                return ["pass"]
            made = of_leader(self, i) or by_intrinsic(self, i) or by_row(self, i)
            if made is None and i.root in EFFECTS:
                made = EFFECTS[i.root](self, i)
        except BadPtx as wrong:
            if wrong.is_placed:  # in a function that it calls
                raise
            raise self.refused(i, f"{wrong} is not known to the engine ({i.opcode})") from None
        except (ValueError, IndexError, KeyError, TypeError, AttributeError, StopIteration):
            made = None
        if made is None:
            text = f"{i.opcode} {', '.join(i.operands)}".strip()
            raise self.refused(i, f"{text} is not known to the engine")
        return made

    def refused(self, i, what):
        """The BadPtx of an instruction, which names the line of the source where that is known."""
        file, line, words = self.program.place(i)
        placed = f"{file}:{line}: {what}{words} (line {i.line} of the PTX)"
        wrong = BadPtx(placed if i.frames else f"{file}: line {i.line}: {what}")
        wrong.is_placed = True
        return wrong

    def guard(self, i):
        """The condition of an instruction's guard, as Python."""
        register, negated = i.guard
        if register not in self.registers:
            raise self.refused(i, f"the guard {register} is no register")
        return f"{'not ' * negated}{self.value(register, 'pred')}"

    def write(self, depth, text, i):
        self.program.lines.append((" " * depth + text, self.program.place(i)))

    def write_all(self, depth, i):
        made = self.statements(i)
        if guards := self.unused.get(id(i)):
            made = self.where_used(i, guards, made)
        for watch in self.watches:
            made = watch.around(i, made)
        if i.guard:
            self.write(depth, f"if {self.guard(i)}:", i)
            depth += 1
        for text in made:
            self.write(depth, text, i)

    def where_used(self, i, guards, made):
        """A load for who uses its value; the others look at its place."""
        used = " or ".join(f"{'not ' * negated}{self.value(register, 'pred')}" for register, negated in guards)
        kind, names = kinds_of(i)[-1], words_of(i.operands[0])
        nothing = [self.set(name, f"b{bits_of(kind)}", "0", exact=True) for name in names if name != "_"]
        nothing.append(f"look({self.address(i.operands[1], 'global')}, {SIZES[kind] * len(names)})")
        return [f"if {used}:", *(f" {text}" for text in made), "else:", *(f" {text}" for text in nothing)]

    # --- blocks -------------------------------------------------------------------------------------
    def blocks(self):
        """[(instructions, the jump at the end or None, block it goes to, block that follows)]; -1: the end."""
        blocks, labels = [[]], {}
        for i in self.function.body:
            if isinstance(i, str):
                if blocks[-1]:
                    blocks.append([])
                labels[i] = len(blocks) - 1
            else:
                blocks[-1].append(i)
                if i.root in ENDS:
                    blocks.append([])
        made = []
        for n, block in enumerate(blocks):
            last = block[-1] if block and block[-1].root in ENDS else None
            to = -1
            if last and last.root == "bra":
                if (label := ", ".join(last.operands)) not in labels:
                    raise self.refused(last, f"{f'bra {label}'.strip()}: there is no such label")
                to = labels[label]
            following = (n + 1 if n + 1 < len(blocks) else -1) if not last or last.guard else None
            made.append((block[: -1 if last else None], last, to, following))
        return made

    def targets(self, n):
        _, last, to, following = self.parts[n]
        return [t for t in ((to if last else None), following) if t is not None and t >= 0]

    def body(self, depth):
        """Write the function's statements."""
        sources = [0] * len(self.parts)
        sources[0] = 1
        for n in range(len(self.parts)):
            for target in self.targets(n):
                sources[target] += 1
        self.heads = self.loop_heads()
        cases = [n for n, count in enumerate(sources) if n == 0 or count > 1 or n in self.heads and count]
        self.numbers = {n: k for k, n in enumerate(cases)}
        first = next(iter(self.function.instructions), None)
        if len(cases) == 1 and 0 not in self.heads:
            self.head, self.inside = 0, None
            self.block(0, depth, 0)
            return
        self.write(depth, "pc = 0", first)
        self.write(depth, "while True:", first)
        before, written = self.program.lines, []
        while len(written) < len(cases):  # too deep a block becomes one more case
            self.program.lines = []
            self.case(cases, len(written), depth + 1)
            written.append(self.program.lines)
            cases += [n for n in self.numbers if n not in cases]
        self.program.lines = before
        self.choice(0, written, depth + 1)

    def choice(self, first, cases, depth, more=0):
        """Write the cases from number ``first`` on: of many, ``pc`` is looked for in halves. ``depth`` is where
        these begin, ``more`` how far they are moved for that."""
        lines, half = self.program.lines, len(cases) // 2
        if len(cases) <= FEW:
            lines += [(" " * more + text, place) for case in cases for text, place in case]
            return
        halves = (f"if pc < {first + half}:", 0, cases[:half]), ("else:", half, cases[half:])
        for words, start, part in halves:
            lines.append((" " * (depth + more) + words, part[0][0][1]))
            self.choice(first + start, part, depth, more + 1)

    def case(self, cases, k, depth):
        n = cases[k]
        first = next((i for i in self.parts[n][0]), self.parts[n][1])
        self.write(depth, f"if pc == {k}:", first)
        self.head = n
        self.inside = n in self.heads and self.comes_back(n)
        if self.inside:
            self.write(depth + 1, "while True:", first)
        self.block(n, depth + 1 + self.inside, 0)

    def loop_heads(self):
        """Blocks that a depth-first search comes back to while it is inside."""
        found, state, stack = set(), {}, [(0, 0)]
        while stack:
            n, k = stack.pop()
            state[n] = 1
            targets = self.targets(n)
            if k == len(targets):
                state[n] = 2
                continue
            stack.append((n, k + 1))
            if state.get(targets[k]) == 1:
                found.add(targets[k])
            elif targets[k] not in state:
                stack.append((targets[k], 0))
        return found

    def comes_back(self, head):
        """Whether some jump back stands in the head's own case."""
        seen, stack = set(), [head]
        while stack:
            for t in self.targets(stack.pop()):
                if t == head:
                    return True
                if t not in self.numbers and t not in seen:
                    seen.add(t)
                    stack.append(t)
        return False

    def block(self, n, depth, deep):
        while True:
            instructions, last, to, following = self.parts[n]
            for i in instructions:
                self.write_all(depth, i)
            end = last or (instructions[-1] if instructions else None)
            if last and last.guard:
                self.write(depth, f"if {self.guard(last)}:", last)
                if self.stands_here(to, deep + 1):
                    self.block(to, depth + 1, deep + 1)
                else:
                    self.jump(to, depth + 1, last)
                to = following
            elif not last:
                to = following
            if not self.stands_here(to, deep):
                self.jump(to, depth, end)
                return
            n = to

    def stands_here(self, n, deep):
        """Whether a block is written where the jump to it is."""
        if n < 0 or n in self.numbers:
            return False
        if deep > DEEPEST:
            self.numbers[n] = len(self.numbers)
            return False
        return True

    def jump(self, n, depth, i):
        if n < 0:
            results = [self.buffers[v.name] for v in self.function.results]
            self.write(depth, f"return {', '.join(results)}".strip(), i)
        elif n == self.head and self.inside:
            self.write(depth, "continue", i)
        else:
            self.write(depth, f"pc = {self.numbers[n]}", i)
            self.write(depth, "break" if self.inside else "continue", i)

    def start(self, depth):
        """Write what a function begins with: room for parameters of calls, registers read before written."""
        first = next(iter(self.function.instructions), None)
        for watch in self.watches:
            self.write(depth, f"{watch.name} = {watch.holder}", first)
        if any(i.root in ("addc", "subc", "madc") or "cc" in i.parts[1:] for i in self.function.instructions):
            self.write(depth, f"{self.carry()} = 0", first)
        own = [v for v in self.function.variables if v.space == "param"] + self.function.results
        for v in own:
            self.write(depth, f"{self.buffers[v.name]} = bytearray({v.size})", first)
        sums = {r for i in self.function.instructions if is_product(i) for r in registers_of_product(i)[0]}
        for register in self.unset():
            zero = "float32(0)" if self.classes[register] == "f32" else "0"
            value = zero if register in sums else self._undefined(register)
            self.write(depth, f"{self.registers[register]} = {value}", first)

    def unset(self):
        """Registers that may be read before they are set: those that are live where the function begins."""
        reads, sets = [], []
        for instructions, last, *_ in self.parts:
            read, given = set(), set()
            for i in (*instructions, *([last] if last else ())):
                own = sources_of(i) + (registers_of_product(i)[0] if is_product(i) else [])
                read |= {*own, *(i.guard[:1] if i.guard else ())} - given
                given |= set() if i.guard else {*targets_of(i)}
            reads.append(read)
            sets.append(given)
        live, before = reads, None
        while live != before:
            before, live = live, list(live)
            for n in reversed(range(len(live))):
                live[n] = live[n].union(*(live[t] - sets[n] for t in self.targets(n)))
        return [r for r in self.registers if r in live[0]]

    def _undefined(self, register):
        """What a register holds that nothing has set, and where that would be."""
        maker = next((i for i in self.function.instructions if register in targets_of(i)), None)
        file, line, _ = self.program.place(maker) if maker else ("", 0, "")
        why = f"this thread has not passed {file.rpartition('/')[2]}:{line}, which sets it"
        return f"unset({f'{register} has no value: ' + (why if maker else 'nothing sets it')!r})"


class Program:
    """An entry with the functions that it calls, as the text of one Python function. ``lines``: (text, place in
    the source); ``known``: names that the text may use."""

    def __init__(self, module, entry, known, place, parameters=(), language="ptx"):
        self.module, self.entry, self.known, self.place = module, entry, known, place
        # Triton computes ahead, and leaves what comes of it unused where its program would not come there.
        self.language, self.is_tritons = language, language in ("triton", "gluon")
        self.lines, self.names = [], {*known, "pc", "local", "cuda", "float32"}
        self.params = {}
        if parameters and len(parameters) != len(entry.params):
            raise BadPtx(f"line {entry.line}: {entry.name} has {len(entry.params)} parameters, and "
                         f"{len(parameters)} names: {', '.join(parameters)}")  # fmt: skip
        for n, v in enumerate(entry.params):
            wanted = v.name.removeprefix(f"{entry.name}_") if v.name != entry.name else f"param_{n}"
            wanted = parameters[n] if parameters else wanted
            self.params[v.name] = self._name(wanted)
        self.memory = {}  # module's variables in global memory -> Python name
        self.shared = {}  # variables in shared memory -> Python name
        self.locals, self.local_bytes = {}, 0
        self.functions, self.written = {}, []
        self.registers = {}  # Python name -> PTX type

    def _name(self, wanted):
        return python_name(wanted, self.names)

    def addresses_of(self, function):
        """{variable that a function names: (expression of its address, its space)}"""
        words = {w for i in function.instructions for o in i.operands for w in re.findall(r"[\w$%]+", o)}
        found = {}
        for v in (*self.module.variables, WORKSPACE, *function.variables):
            if v.name not in words or v.space == "param":
                continue
            key = (function.name, v.name) if v in function.variables else v.name
            if v.space == "shared":
                name = self.shared.setdefault(key, (self._name(unmangled(v.name)), v))[0]
                found[v.name] = f"{name}_at", "shared"
            elif v.space == "local":
                if key not in self.locals:
                    self.locals[key] = self.local_bytes = -(-self.local_bytes // v.align) * v.align
                    self.local_bytes += v.size
                found[v.name] = str(self.locals[key]), "local"
            else:
                wanted = "grid_workspace" if v is WORKSPACE else unmangled(v.name)
                name = self.memory.setdefault(key, (self._name(wanted), v))[0]
                found[v.name] = f"{name}.address", "global"
        return found

    def function(self, name):
        """The Python name of a ``.func``, which is translated when it is first called."""
        if name not in self.functions:
            function = self.module.functions.get(name)
            if function is None:
                raise BadPtx(f"a call of {name}, which the text does not hold,")
            self.functions[name] = None
            before, self.lines = self.lines, []
            translator = Translator(self, function)
            own = ", ".join(translator.buffers[v.name] for v in function.params)
            self.functions[name] = self._name(unmangled(name))
            self.lines.append((f" def {self.functions[name]}({own}):", self.place(function.instructions[0])))
            translator.start(2)
            translator.body(2)
            self.written += self.lines
            self.lines = before
        if self.functions[name] is None:
            raise BadPtx(f"a call of {name} in itself")
        return self.functions[name]

    def placed(self):
        """(Python name, variable, its address on a GPU) of each in shared memory. ptxas puts one static
        variable behind the other, from 1024 on; dynamic ones, which have no size, come behind all of them."""
        end = 1024
        for python, v in self.shared.values():
            end += -end % max(v.align, 1) if v.size else 0
            yield python, v, end
            end += v.size

    def text(self, name):
        """[(line of the Python function, its place in the source)]"""
        entry = self.entry
        if not entry.instructions:
            raise BadPtx(f"line {entry.line}: {entry.name} is empty: there is not even a ret")
        translator, first = Translator(self, entry), self.place(entry.instructions[0])
        translator.start(1)
        translator.body(1)
        before = [(f"def {name}({', '.join(self.params.values())}):", first),
                  (f" local = bytearray({self.local_bytes})", first)]  # fmt: skip
        for python, v, address in self.placed():
            # As on a GPU, but of all except the first 128 at most: guards between them take their part.
            as_there = min(address & -address, 1024 if address == 1024 else 128) if v.size else 1
            at = next((i for i in entry.instructions if v.name in registers_in(" ".join(i.operands))), None)
            place = self.place(at) if at else first
            before.append((f" {python} = cuda.shared_array({v.size}, uint8, {max(v.align, as_there)})", place))
            before.append((f" {python}_at = shared_address({python})", place))
        for v in entry.params:
            if v.array and v.size >= 128 and v.align >= 64:
                before.append((f" maps_are_there({self.params[v.name]}, {v.size})", first))
        return [*before, *self.written, *self.lines]


def kinds_of_parameters(entry):
    """PTX types of what a launch hands over: u64 for what is an address."""
    return ["u64" if v.array or SIZES[v.type] == 8 and v.type != "f64" else v.type for v in entry.params]
