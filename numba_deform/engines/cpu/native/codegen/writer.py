"""Builds one LLVM function: its blocks, slots and rows. The base of ``Coroutine`` and of device functions."""

from llvmlite import ir

from ..runtime.llvm_types import I64, POINTER


class Writer:
    """Builds one LLVM ``function`` of ``module``. Its variables are allocated in the block ``entry``."""

    def begin(self, module, name, result, kinds, *blocks):
        """Make the function with empty blocks; the last of them comes after ``entry``."""
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, kinds), name)
        made = [self.function.append_basic_block(block) for block in ("entry", *blocks)]
        self.entry, self.builder = made[0], ir.IRBuilder(made[0])
        return made[1:]

    def slot(self, kind, count=1):
        """Memory for a variable, or for the elements of an array."""
        with self.builder.goto_block(self.entry):
            return self.builder.alloca(kind, count)

    def declared(self, name, result, kinds):
        """A function that LLVM knows."""
        if name not in self.module.globals:
            ir.Function(self.module, ir.FunctionType(result, kinds), name)
        return self.module.globals[name]

    def word(self, row, number, kind):
        """A word of the thread's or the block's row, as an integer of type ``kind``."""
        value = self.builder.load(self._word(row, number), typ=I64)
        return value if kind == I64 else self.builder.trunc(value, kind)

    def _word(self, row, number):
        return self.builder.gep(self.rows[row][0], [ir.Constant(I64, number)], source_etype=I64)

    def take_rows(self):
        """The thread's and the block's row, whose addresses are the function's first parameters."""
        pairs = zip(("thread", "block"), self.function.args, strict=False)
        self.rows = {name: (self.builder.inttoptr(row, POINTER), row) for name, row in pairs}

    def bail_out_if(self, condition):
        following = self.function.append_basic_block("stays")
        self.builder.cbranch(condition, self.leaving, following)
        self.builder.position_at_end(following)
