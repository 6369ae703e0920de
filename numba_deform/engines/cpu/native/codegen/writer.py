"""Builds one LLVM function: its blocks, slots and rows. The base of ``Coroutine`` and of device functions."""

from llvmlite import ir

from ..runtime.llvm_types import I1, I8, I64, POINTER
from .ir_values import NotLowered

LARGE = 6000  # basic blocks: with many more LLVM takes longer than the interpreter


class Writer:
    """Builds one LLVM ``function`` of ``module``. Its variables are allocated in the block ``entry``."""

    def begin(self, module, name, result, kinds, *blocks):
        """Make the function, whose first parameters are the addresses of the thread's and the block's row, with
        empty blocks; the last of them comes after ``entry``, and is where code is written first."""
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, [I64, I64, *kinds]), name)
        self.entry, *made = self.blocks("entry", *blocks)
        self.builder = ir.IRBuilder(self.entry)
        pairs = zip(("thread", "block"), self.function.args, strict=False)
        self.rows = {name: (self.builder.inttoptr(row, POINTER), row) for name, row in pairs}
        self.builder.branch(made[-1])
        self.builder.position_at_end(made[-1])
        return made[:-1]

    def blocks(self, *names):
        """New basic blocks."""
        if len(self.function.basic_blocks) > LARGE:
            raise NotLowered("a kernel so large that LLVM would take longer than the interpreter")
        return [self.function.append_basic_block(name) for name in names]

    def slot(self, kind, count=1):
        """Memory for a variable, or for the elements of an array."""
        with self.builder.goto_block(self.entry):
            return self.builder.alloca(kind, count)

    def declared(self, name, result, kinds):
        """A function that LLVM knows."""
        if name not in self.module.globals:
            ir.Function(self.module, ir.FunctionType(result, kinds), name)
        return self.module.globals[name]

    def fill(self, place, byte, size, volatile=False):
        """Set all bytes of a piece of memory."""
        function = self.declared("llvm.memset.p0.i64", ir.VoidType(), [POINTER, I8, I64, I1])
        self.builder.call(function, [place, I8(byte), I64(size), I1(volatile)])

    def word(self, row, number, kind):
        """A word of the thread's or the block's row, as an integer of type ``kind``."""
        value = self.builder.load(self._word(row, number), typ=I64)
        return value if kind == I64 else self.builder.trunc(value, kind)

    def _word(self, row, number):
        return self.builder.gep(self.rows[row][0], [ir.Constant(I64, number)], source_etype=I64)

    def bail_out_if(self, condition):
        following, = self.blocks("stays")
        self.builder.cbranch(condition, self.leaving, following)
        self.builder.position_at_end(following)
