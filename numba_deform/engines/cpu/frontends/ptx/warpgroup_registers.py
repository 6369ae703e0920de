"""Whose the registers of warpgroups' products are (PTX ISA 9.7.15.7).

Registers of PTX are virtual, so the rule is about the values that flow through them: one that is moved is still
the same value, and neither a move nor a constant is an access. ENGINE.md says why.

A function is looked at before it runs. Where on every path a fence stands behind the last access, and a wait
before the next one, nothing more is done. Elsewhere the translated function calls what stands here under "while
it runs", so that only what a thread has really done is a fault."""

from .....device.ptx import cpu
from ...async_units.wgmma import check_over, no_fence
from .operations import kernel_function
from .parser import registers_in, sources_of, targets_of

MOST = 8  # groups that are counted: a wait leaves no more open


def is_product(i):
    return i.root == "wgmma" and i.parts[1] == "mma_async"


def registers_of_product(i):
    """(those of the sums, those of A) of a wgmma.mma_async."""
    a = i.operands[1] if i.operands[1].startswith("{") else ""
    return registers_in(i.operands[0]), registers_in(a)


class Flow:
    """What may be true of registers at a place of a function. ``sums``, ``fragments``: {register: groups that
    have been committed since the product that it is an accumulator of, or A of}; ``read``, ``written``: those
    that have been accessed since the last fence."""

    def __init__(self, sums=(), fragments=(), read=(), written=()):
        self.sums, self.fragments = dict(sums), dict(fragments)
        self.read, self.written = set(read), set(written)

    def copy(self):
        return Flow(self.sums, self.fragments, self.read, self.written)

    def join(self, other):
        """Take in what another path brings; whether that is more."""
        before = self.size()
        for mine, theirs in ((self.sums, other.sums), (self.fragments, other.fragments)):
            for register, groups in theirs.items():
                mine[register] = min(groups, mine.get(register, groups))
        self.read |= other.read
        self.written |= other.written
        return self.size() != before

    def size(self):
        ages = sum(MOST + 1 - age for each in (self.sums, self.fragments) for age in each.values())
        return ages, len(self.sums), len(self.fragments), len(self.read), len(self.written)

    def pass_over(self, i, reads, writes):
        """Take the effect of an instruction; whether it may break the rule."""
        if i.root == "wgmma":
            return self.warpgroup(i)
        if i.root == "mov":
            self.move(reads, writes, bool(i.guard))
            return False
        wrong = any(r in self.sums for r in reads)
        wrong |= any(r in self.sums or r in self.fragments for r in writes)
        self.read.update(reads)
        self.written.update(writes)
        return wrong

    def warpgroup(self, i):
        kind = i.parts[1]
        if i.guard and not is_product(i):
            return False  # it may not be executed
        if kind == "fence":
            self.read, self.written = set(), set()
        elif kind == "commit_group":
            for each in (self.sums, self.fragments):
                each.update({register: min(groups + 1, MOST) for register, groups in each.items()})
        elif kind == "wait_group":
            open_ = int(i.operands[0], 0)
            self.sums = {r: groups for r, groups in self.sums.items() if groups <= open_}
            self.fragments = {r: groups for r, groups in self.fragments.items() if groups <= open_}
        elif is_product(i):
            sums, a = registers_of_product(i)
            wrong = any(r in self.read or r in self.written for r in sums)
            wrong |= any(r in self.written or r in self.sums for r in a)
            self.sums.update(dict.fromkeys(sums, 0))
            self.fragments.update(dict.fromkeys(a, 0))
            return wrong
        return False

    def move(self, reads, writes, may_not):
        """``may_not``: the move has a guard."""
        ages = [self.sums[r] for r in reads if r in self.sums]
        written = any(r in self.written for r in reads)
        for register in writes:
            if not may_not:
                self.sums.pop(register, None)
                self.fragments.pop(register, None)
                self.read.discard(register)
                self.written.discard(register)
            if ages:
                self.sums[register] = min([*ages, self.sums.get(register, MOST)])
            if written:
                self.written.add(register)


class RegisterWatch:
    """Of one function. ``parts``: its blocks, ``targets(n)``: those that follow block n; ``name``: that of the
    variable for what is held while it runs. ``flow``: what may be true at a place."""

    flow, holder = Flow, "Held()"

    def __init__(self, parts, targets, name):
        self.parts, self.targets, self.name = parts, targets, name
        self.instructions = [i for part in parts for i in part[0]]
        self.followed = self._followed()
        self.is_needed = self._may_break()

    @staticmethod
    def owned(i):
        """The lists of registers that an instruction keeps when it has been executed."""
        return registers_of_product(i) if is_product(i) else ()

    def _followed(self):
        """The registers that such ones flow from and to, by moves."""
        found, size = {r for i in self.instructions for part in self.owned(i) for r in part}, 0
        moves = [{*targets_of(i), *sources_of(i)} for i in self.instructions if i.root == "mov"]
        while size != len(found):
            size = len(found)
            for registers in moves:
                if not found.isdisjoint(registers):
                    found |= registers
        return found

    def accesses(self, i):
        """(the registers that an instruction reads, those that it writes), of those that are followed"""
        return [[r for r in names if r in self.followed] for names in (sources_of(i), targets_of(i))]

    def _may_break(self):
        """Whether some path of the function may break the rule."""
        entry, todo, wrong = {0: self.flow()}, [0], False
        while todo:
            n = todo.pop()
            flow = entry[n].copy()
            for i in self.parts[n][0]:
                wrong |= flow.pass_over(i, *self.accesses(i))
            for t in self.targets(n):
                if t not in entry:
                    entry[t] = flow.copy()
                    todo.append(t)
                elif entry[t].join(flow):
                    todo.append(t)
        return wrong

    def around(self, i, made):
        """The statements of an instruction with those that keep track of its registers."""
        if i.root == "wgmma":
            if i.parts[1] == "fence":
                return [*made, f"registers_fenced({self.name})"]
            if is_product(i):
                sums, a = map(tuple, registers_of_product(i))
                before = f"registers_multiplied({self.name}, {'.'.join(i.parts[4:])!r}, {sums}, {a})"
                return [before, *made, f"registers_taken({self.name}, {sums}, {a})"]
            return made
        reads, writes = map(tuple, self.accesses(i))
        if not reads and not writes:
            return made
        if i.root == "mov":
            return [*made, f"registers_moved({self.name}, {writes}, {reads})"]
        return [f"registers_used({self.name}, {reads}, {writes})", *made]


# --- while it runs ------------------------------------------------------------------------------------
@kernel_function
class Held:
    """The same of one thread in one call of a function, as it is. ``sums``, ``fragments``: {register: its
    product}."""

    def __init__(self):
        self.sums, self.fragments, self.read, self.written = {}, {}, set(), set()


@kernel_function
def registers_fenced(held):
    held.read, held.written = set(), set()


@kernel_function
def registers_moved(held, targets, sources):
    products = [held.sums[r] for r in sources if r in held.sums]
    written = not held.written.isdisjoint(sources)
    for register in targets:
        for each in (held.sums, held.fragments):
            each.pop(register, None)
        for each in (held.read, held.written):
            each.discard(register)
        if products:
            held.sums[register] = max(products, key=lambda product: product.phase)
        if written:
            held.written.add(register)


@kernel_function
def registers_used(held, reads, writes):
    """An instruction that is no move reads and writes these."""
    for register in (*reads, *writes):
        if register in held.sums:
            check_over(cpu(), held.sums[register], f"{register}, an accumulator")
    for register in writes:
        if register in held.fragments:
            check_over(cpu(), held.fragments[register], f"{register}, a part of A")
        held.sums.pop(register, None)
        held.fragments.pop(register, None)
    held.read.update(reads)
    held.written.update(writes)


@kernel_function
def registers_multiplied(held, what, sums, a):
    """Before a product: its sums have not been accessed since the last fence, nor has its A been written."""
    thread = cpu()
    for register in sums:
        if register in held.read or register in held.written:
            verb = "written" if register in held.written else "read"
            raise no_fence(thread, what, f"has {verb} {register}, an accumulator, since its last wgmma.fence")
    for register in a:
        if register in held.written:
            raise no_fence(thread, what, f"has written {register}, a part of A, since its last wgmma.fence")
        if register in held.sums:
            check_over(thread, held.sums[register], f"{register}, an accumulator")


@kernel_function
def registers_taken(held, sums, a):
    """Behind it: they are the product's."""
    thread = cpu()
    product = thread.block.warpgroups[thread.tid // 128].last
    held.sums.update(dict.fromkeys(sums, product))
    held.fragments.update(dict.fromkeys(a, product))
