"""Registers of a tcgen05.ld that no tcgen05.wait::ld has followed yet (PTX ISA 9.7.16): to move one is no
access, to compute with it is. Where every path has a wait before, nothing more is done; elsewhere the translated
function calls what stands here under "while it runs"."""

from .....device.ptx import cpu
from .... import faults
from .operations import kernel_function
from .parser import targets_of
from .warpgroup_registers import RegisterWatch


def is_load(i):
    return i.root == "tcgen05" and i.parts[1] == "ld"


def is_wait(i):
    return i.root == "tcgen05" and i.parts[1] == "wait::ld"


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
            self.registers -= self.registers if not i.guard else set()
        elif i.root == "mov":
            pending = not self.registers.isdisjoint(reads)
            self.registers -= set(writes if not i.guard else ())
            self.registers.update(writes if pending else ())
        else:
            return not self.registers.isdisjoint([*reads, *writes])
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
        if not reads and not writes:
            return made
        if i.root == "mov":
            return [*made, f"loads_moved({self.name}, {writes}, {reads})"]
        return [f"loads_used({self.name}, {(*reads, *writes)})", *made]


# --- while it runs ------------------------------------------------------------------------------------
@kernel_function
def loads_begun(pending, registers):
    pending.update(dict.fromkeys(registers, cpu().site()))


@kernel_function
def loads_moved(pending, targets, sources):
    sites = [pending[r] for r in sources if r in pending]
    for register in targets:
        pending.pop(register, None)
        pending.update({register: site for site in sites})


@kernel_function
def loads_used(pending, registers):
    for register in registers:
        if register in pending:
            thread = cpu()
            what = f"touches {register}, which the tcgen05.ld at {thread.at(pending[register])} has not filled yet"
            fault = thread.fault(faults.TensorInFlight, what)
            fault.cure = "Call tcgen05.wait::ld behind the load, before its registers are used."
            raise fault
