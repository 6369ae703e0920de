"""What the statements of a function have in common, in whatever language it is written."""

from ..runtime import layout
from ..runtime.llvm_types import I32
from . import matrices, warpgroups
from .float_functions import in_place

PLACES = {"threadIdx": ("thread", layout.THREAD_X), "blockIdx": ("block", layout.BLOCK_X),
          "blockDim": ("block", layout.BLOCK_DIM_X), "gridDim": ("block", layout.GRID_DIM_X)}  # fmt: skip


class Builtins(dict):
    """{function or its name: how a call of it is written}"""

    def note(self, *functions):
        """Decorator: so are calls of these functions."""

        def note(write):
            self.update(dict.fromkeys(functions, write))
            return write

        return note


class FunctionBody:
    """The statements of one function. ``maker`` (a ``Writer``) has the ``builder`` and all that a kernel's
    functions share; ``site()`` is the number of the call site of what is written now."""

    def bail_out_if(self, condition):
        """Have the kernel interpreted, from its start, where the condition holds."""
        self.maker.bail_out_if(condition)

    def ask(self, function, given, result, joint=0, apart=""):
        """What Python, or what the threads do together, comes to: see ``Coroutine.request``."""
        return self.maker.request(function, given, result, self.site(), joint, apart)

    def place_of(self, name, axis, kind=I32):
        """``threadIdx.x`` and its like."""
        row, word = PLACES[name]
        return self.maker.word(row, word + "xyz".index(axis), kind)

    def lane(self):
        return self.builder.and_(self.maker.word("thread", layout.TID, I32), I32(31))

    def intrinsic(self, name, given, result, model, joint):
        """The value of a call of one of ``device/``, with pairs (value, its type). Python has its
        ``model``; ``joint``: what threads do together by it."""
        if name.startswith("wgmma_"):
            return warpgroups.intrinsic(self, name, given)
        if name in matrices.MATRICES or name in matrices.PRODUCTS:
            return matrices.intrinsic(self, name, given, result)
        if write := in_place(name):
            return write(self, *[value for value, _ in given])
        return self.ask(model, given, result, joint, None)
