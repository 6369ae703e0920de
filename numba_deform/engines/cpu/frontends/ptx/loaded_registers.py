"""Registers that a tcgen05.ld fills (PTX ISA 9.7.16.6): who computes with one has its value without
tcgen05.wait::ld, and when all lanes have, nothing reads the cells; a move is no use. Where every path has a
wait before the first use, nothing more is done; elsewhere the translated function calls what stands here under
"while it runs"."""

from .....device.ptx import cpu
from ...async_units.tensor_memory import tensor_memory_of
from .operations import kernel_function
from .parser import targets_of
from .warpgroup_registers import RegisterWatch


def is_load(i):
    return i.root == "tcgen05" and i.parts[1] == "ld"


def is_wait(i):
    return i.root == "tcgen05" and i.parts[1] == "wait::ld" and not i.guard


class Pending:
    """The registers that may be pending at a place of a function."""

    def __init__(self, registers=()):
        self.registers = set(registers)

    def copy(self):
        return Pending(self.registers)

    def join(self, other):
        before = len(self.registers)
        self.registers |= other.registers
        return len(self.registers) != before

    def pass_over(self, i, reads, writes):
        if is_load(i):
            self.registers.update(targets_of(i))
        elif is_wait(i):
            self.registers.clear()
        elif i.root == "mov":
            pending = not self.registers.isdisjoint(reads)
            self.registers -= set(() if i.guard else writes)
            self.registers.update(writes if pending else ())
        else:
            return not self.registers.isdisjoint(reads)
        return False


class LoadWatch(RegisterWatch):
    """Of one function, as its base."""

    flow, holder = Pending, "dict()"

    @staticmethod
    def owned(i):
        return [targets_of(i)] if is_load(i) else []

    def around(self, i, made):
        if is_load(i):
            return [*made, f"loads_begun({self.name}, {tuple(targets_of(i))})"]
        if is_wait(i):
            return [*made, f"{self.name}.clear()"]
        reads, writes = map(tuple, self.accesses(i))
        if i.root == "mov" and (reads or writes):
            return [*made, f"loads_moved({self.name}, {writes}, {reads})"]
        return [f"loads_used({self.name}, {reads})", *made] if reads else made


# --- while it runs ------------------------------------------------------------------------------------
@kernel_function
def loads_begun(pending, registers):
    thread = cpu()
    pending.update(dict.fromkeys(registers, tensor_memory_of(thread.block).pipe("ld", thread.warp).number - 1))


@kernel_function
def loads_moved(pending, targets, sources):
    numbers = [pending[r] for r in sources if r in pending]
    for register in targets:
        pending.pop(register, None)
        pending.update(dict.fromkeys([register], max(numbers)) if numbers else ())


@kernel_function
def loads_used(pending, registers):
    thread = cpu()
    for register in registers:
        if register in pending:
            used = tensor_memory_of(thread.block).pipe("ld", thread.warp).used.setdefault(pending[register], {})
            used.setdefault(thread.tid, thread.clock)
