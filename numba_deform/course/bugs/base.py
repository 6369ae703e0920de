"""What every planted fault consists of: its description and the arguments of its kernel."""

import ast
import functools
import inspect
import operator
import textwrap
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Launch:
    """The arguments of one launch of a planted fault's kernel.

    args          in order: NumPy arrays, TensorMapArray, numbers; an array is passed as its address
    out           the one of these arrays that the kernel writes, or the array behind a tensor map
    expected      what the right twin leaves in ``out``
    tolerance     largest difference allowed, relative to the largest expected value; 0: exact
    shared_bytes  dynamic shared memory
    """

    args: tuple
    out: np.ndarray
    expected: np.ndarray
    tolerance: float = 0.0
    grid: int = 1
    shared_bytes: int = 0

    def wrong(self, out=None):
        """How many elements of ``out`` (default: this launch's own) are not as expected."""
        got = np.asarray(self.out if out is None else out, np.float64)
        expected = np.asarray(self.expected, np.float64)
        limit = self.tolerance * np.abs(expected).max()
        return int(np.count_nonzero(~(np.abs(got - expected) <= limit)))


@dataclass(frozen=True, eq=False)
class Bug:
    """One planted fault: a module of this package, whose docstring is its title and its story.

    ``met`` says where it was met. ``faults`` maps each fault that the CPU engine may report to the
    source lines that it may name; it is empty where no rule is broken and only the numbers are wrong.
    ``hangs`` says whether the kernel may hang on a GPU.
    """

    name: str
    module: object

    @property
    def title(self):
        return inspect.getdoc(self.module).partition("\n")[0].rstrip(".")

    @property
    def story(self):
        """The paragraphs of the docstring after its first line."""
        return inspect.getdoc(self.module).partition("\n")[2].strip()

    met = property(operator.attrgetter("module.MET"))
    cure = property(operator.attrgetter("module.CURE"))
    file = property(operator.attrgetter("module.__file__"))

    @property
    def faults(self):
        """``{fault class: (source line, ..)}``."""
        faults = self.module.FAULTS
        return {kind: (at,) if isinstance(at, str) else at for kind, at in faults.items()}

    @property
    def hangs(self):
        return getattr(self.module, "HANGS", False)

    def kernel(self, bug=True):
        """The ``compiler.Kernel`` with the fault, or its right twin; each is built once."""
        return _build(self.module, bool(bug))

    def arguments(self, seed=0):
        """A fresh :class:`Launch` on random data."""
        return self.module.arguments(seed)

    def reports(self, fault):
        """Whether ``fault`` is one that is expected, at a line that is expected."""
        code = (fault.source or "").partition("#")[0].strip()
        return code in self.faults.get(type(fault), ())

    def lines(self):
        """((first line number, wrong text), (first line number, right text)) of the choice.

        A text is "" where the fault is a line too many or a line too few.
        """
        source = inspect.getsource(self.module)
        (choice,) = (n for n in ast.walk(ast.parse(source)) if _chooses(n))
        first, second = _text(source, choice.body), _text(source, choice.orelse)
        return (second, first) if isinstance(choice.test, ast.UnaryOp) else (first, second)


@functools.cache
def _build(module, bug):
    return module.build(bug)


def _chooses(node):
    """Whether an AST node is ``if BUG`` or ``if not BUG``."""
    if not isinstance(node, ast.If):
        return False
    test = node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test
    return isinstance(test, ast.Name) and test.id == "BUG"


def _text(source, statements):
    if not statements:
        return 0, ""
    first, last = statements[0].lineno, statements[-1].end_lineno
    return first, textwrap.dedent("\n".join(source.splitlines()[first - 1 : last]))


def random_words(*shape, seed=0):
    """Random uint32 numbers below 2^16, so that sums of them are exact."""
    return np.random.default_rng(seed).integers(1, 1 << 16, shape, dtype=np.uint32)


def poison(*shape, dtype=np.uint32):
    """An output that nothing has written: every bit set, NaN for floats."""
    out = np.empty(shape, dtype)
    out.view(np.uint8).fill(0xFF)
    return out


def sums_of_tiles(items, lanes):
    """``arguments`` of a kernel(data, out): data of so many tiles; out is their sum, a number for each lane."""

    def arguments(seed):
        data, out = random_words(items, lanes, seed=seed), poison(lanes)
        return Launch((data, out), out, data.sum(axis=0))

    return arguments
