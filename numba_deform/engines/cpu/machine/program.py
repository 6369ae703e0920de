"""What schedules run: a kernel for the types of its arguments, in whatever language it is written."""


class Program:
    """A kernel for ``kinds``, Numba's types of its arguments. ``key`` is what this process tells it from others
    by, ``outline`` what all processes do."""

    is_confined = True  # whether it reaches nothing of this process but its arguments
    has_breakpoints = False  # whether it calls ``breakpoint``, which is for the interpreter

    def lacking(self):
        """Which of its functions run with Python's numbers, and why; warns of them. "" if there is none."""
        return ""

    def entry(self, execution, held):
        """The Python function of a thread, whose names stand for what they are in one execution; ``held``:
        what stands for arrays that its names hold, by their id."""

    def coroutine(self, module):
        """Its thread in LLVM."""

    def models(self, execution):
        """The functions that answer what machine code asks for."""
