"""Exercises: a hole in a cell, and a check that says in words what is wrong.

An exercise is a cell with ``...`` where something is to be written. The cell after it calls the check:

    @exercise("Which of the two numbers does the barrier count?")
    def bytes_to_expect(answer):
        if answer == 12:
            raise Wrong("12 is what lies inside; the barrier counts the whole box.")
        require(answer == 16, f"{answer} is not it")
        return "the part outside is delivered as zeros, and counted."

Calling it gives a :class:`Verdict` and never raises; ``bytes_to_expect.verdict`` is the last one. A hole that
is left is found before the function runs: ``...`` itself, within a tuple, list or dict, or in the source of a
function or kernel and of the device functions that it calls.
"""

import ast
import contextlib
import functools
import inspect
import linecache
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass

import numpy as np
from numba.cuda.dispatcher import CUDADispatcher

from ...compiler import Kernel
from ...engines.cpu import SimFault
from . import display

TITLES = {"hole": "Still open", "wrong": "Not yet", "right": "Right"}


class Wrong(Exception):
    """Raised by a check: the sentence to tell the reader."""


def require(condition, sentence):
    """Raise :class:`Wrong` with ``sentence`` unless ``condition`` holds."""
    if not condition:
        raise Wrong(sentence)


def refuse(given, *cases):
    """Raise :class:`Wrong` with ``given`` and the sentence of the first of ``cases``, (holds, sentence), that
    holds; the last of them always does."""
    raise Wrong(given + first_of(*cases))


def first_of(*cases):
    """The sentence of the first of ``cases``, (holds, sentence), that holds; "" where none does."""
    return next((sentence for holds, sentence in cases if holds), "")


# --- answers, however they are written ------------------------------------------------------------
def plain(value):
    """``value`` with lists and arrays as tuples, and whole numbers of any type as ints."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    whole = isinstance(value, np.integer) or isinstance(value, (float, np.floating)) and value.is_integer()
    return int(value) if whole else value


def value_of(answer, *args):
    """What the reader's function returns, as :func:`plain`; Wrong where it returns nothing."""
    got = answer(*args)
    require(got is not None, f"{_name_of(answer)} returns None: is a `return` missing?")
    return plain(got)


def _name_of(answer):
    name = getattr(answer, "__name__", "")
    return f"`{name}`" if name.isidentifier() else "It"


def number(answer, what="number. Write a whole one", name=""):
    """``answer`` as an int; Wrong if it is no whole number: it is not a ``what``. ``name`` is the answer's."""
    got = plain(answer)
    whole = isinstance(got, int) and not isinstance(got, bool)
    require(whole, f"{name and name + ' = '}{answer!r} is not a {what}.")
    return got


def choice(answer, names):
    """That one of ``names`` whose letters and digits, in any case, ``answer`` has; else ``answer``."""

    def bare(text):
        return "".join(filter(str.isalnum, str(text))).lower()

    return next((name for name in names if bare(name) == bare(answer)), answer)


@dataclass(frozen=True)
class Verdict:
    """What a check says: ``kind`` is "hole", "wrong" or "right"; ``message`` is a sentence or two.

    It shows itself in a notebook and is printed elsewhere.
    """

    exercise: str
    kind: str
    message: str

    def __post_init__(self):
        if not display.shows_values():
            print(self)

    @property
    def passed(self):
        return self.kind == "right"

    def __repr__(self):
        return display.plain(f"{TITLES[self.kind]} ({self.exercise})", self.message)

    def _repr_html_(self):
        return display.card(self.kind, f"{TITLES[self.kind]} · {self.exercise}", self.message)


def exercise(hint, faults=""):
    """Decorator of a check ``name(*answers)``; see above.

    ``hint`` is told while there is a hole. The function raises Wrong with a sentence, or returns one that says
    why the answer is right. Whatever else it raises counts as wrong: a fault of an engine is told with its
    rule and line, and ``faults`` says what it has to do with this exercise: a sentence, a function of the fault
    that gives one, or ``{fault class: either}``; another exception is told in its own words.
    """

    def wrap(function):
        name = function.__name__

        @functools.wraps(function)
        def check(*answers, **named):
            check.verdict = judged(*answers, **named)
            return check.verdict

        def judged(*answers, **named):
            for label, answer in [*((None, a) for a in answers), *named.items()]:
                if hole := find_hole(answer, label):
                    return Verdict(name, "hole", f"{hole} {hint}")
            if uncalled := next(filter(None, map(_uncalled, [*answers, *named.values()])), None):
                return Verdict(name, "wrong", uncalled)
            try:
                return Verdict(name, "right", function(*answers, **named))
            except Wrong as wrong:
                return Verdict(name, "wrong", str(wrong))
            except SimFault as fault:
                return Verdict(name, "wrong", undecorated(fault) or fault_message(fault, faults))
            except Exception as error:
                return Verdict(name, "wrong", undecorated(error) or error_message(error))

        return check

    return wrap


MEANT = {
    "'Namespace'": "A barrier with a name is no address. Its operations stand behind a dot, and so does its "
    "address: `.at()`.",
    "'ArrayView'": "An array is no address. `.at(0)`, behind its name in shared memory, is its address.",
    "'function'": "A function stands there where a number is needed. Call it.",
    "'NoneType'": "A function that returns nothing gives None.",
    r"attribute '(?!stage|barrier|parity)\w+' of type u?int": "A number has no operations behind a dot. An "
    "address is a number: the instructions take it, as in nd.mbarrier_arrive(address).",
    "attribute .* of type device function": "A function stands before the dot. Rings wait by ring.wait(state).",
    "etitem.*PipelineState": "A state is no index. Which stage it is, `.stage` tells.",
    r"getitem\(u?int": "A number has no elements. Was it given an array's name?",
}  # what stands in the error of a kernel's own code, as a regular expression, and what that means


@contextlib.contextmanager
def explained(faults):
    """A fault of those within of which ``faults``, as for :func:`exercise`, have something to say is Wrong."""
    try:
        yield
    except SimFault as fault:
        if not any(_own_sentences(fault, faults)):
            raise
        raise Wrong(fault_message(fault, faults)) from None


def _own_sentences(fault, faults):
    texts = faults.items() if isinstance(faults, dict) else [(SimFault, faults)]
    return [text(fault) if callable(text) else text for kind, text in texts if isinstance(fault, kind)]


def fault_message(fault, faults=""):
    """A fault in the words of a verdict: the exercise's own sentence, then what, line and rule."""
    told = [text for pattern, text in MEANT.items() if re.search(pattern, fault.what, re.S)]
    sentence = next(filter(None, [*_own_sentences(fault, faults), *told]), "")
    lines = [sentence, f"The engine stops it: {type(fault).__name__}: {fault.what}"]
    if fault.where:
        lines.append(f"Line: {fault.where}  {fault.source or ''}")
    if fault.rule:
        lines.append(f"Rule: {fault.rule}")
    return display.shorten("\n".join(lines).strip())


def undecorated(error):
    """A sentence about what is no kernel, or function for one, for want of a decorator or `return`; or None."""
    asked = getattr(error, "obj", None)  # of an AttributeError: what lacks it
    if re.match("'NoneType' .* '(shared_bytes|threads|py_func|with_marks)'", str(error)):
        return "There is no kernel but None: does the function that builds it end without a `return`?"
    if "gives 0 bytes of dynamic" in str(error):
        return "The kernel has no shared memory: its decorator lacks the layout, @nd.kernel(.., shared=..)."
    if isinstance(asked, CUDADispatcher):
        return f"`{asked.__name__}` is a function for kernels to call: a kernel has `@nd.kernel(...)` above it."
    if inspect.isfunction(asked):
        return (f"`{asked.__name__}` is a plain Python function. Is the line above its `def` lost? A kernel "
                "has `@nd.kernel(...)` there, and a function that kernels call `@nd.function`.")  # fmt: skip
    if untyped := re.search(r"name '(\w+)': Cannot determine Numba type of <class 'function'>", str(error)):
        return f"`{untyped[1]}` is a plain Python function: one that kernels call has `@nd.function` above it."
    return None


def error_message(error):
    """An exception in its own words; from the reader's code, with the line and the numbers it was given."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, NameError) and error.name in sys.stdlib_module_names:
        text += f". Write `import {error.name}` above."
    walk = traceback.walk_tb(error.__traceback__)
    frames = [(frame, number) for frame, number in walk if frame.f_globals.get("__name__") == "__main__"]
    if not frames:
        return text
    frame, number = frames[-1]
    code = frame.f_code
    given = {name: frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]}
    given = ", ".join(f"{name}={value}" for name, value in given.items() if isinstance(value, (int, float)))
    source = linecache.getline(code.co_filename, number).strip()
    line = f"Line: {code.co_filename}:{number}  {source}"
    return display.shorten("\n".join([text, line] + [f"Called with {given}."] * bool(given)))


# --- holes ----------------------------------------------------------------------------------------
def find_hole(answer, label=None):
    """A sentence about the first hole in ``answer``, or None; ``label`` is the answer's name."""
    if answer is ...:
        return f"`{label}` is still a hole." if label else "There is still a hole: write what `...` stands for."
    if isinstance(answer, (tuple, list)):
        return next(filter(None, (find_hole(part, label) for part in answer)), None)
    if isinstance(answer, dict):
        return next(filter(None, (find_hole(part, f"[{key!r}]") for key, part in answer.items())), None)
    return next(filter(None, map(_hole_in_source, _functions(answer))), None)


def _functions(answer):
    """The reader's Python functions in ``answer``: itself, and the device functions that it calls."""
    functions, ahead = [], [answer]
    while ahead:
        value = ahead.pop()
        if isinstance(value, (Kernel, CUDADispatcher)):
            value = value.py_func
        if inspect.isfunction(value) and value not in functions and not _ours(value):
            functions.append(value)
            scope = inspect.getclosurevars(value)
            names = (*scope.nonlocals.values(), *scope.globals.values())
            ahead += [v for v in names if isinstance(v, (Kernel, CUDADispatcher))]
    return functions


def _ours(function):
    return (function.__module__ or "").startswith("numba_deform.")


def _source(function):
    """(lines, number of the first, syntax tree) of a function; OSError or SyntaxError where there is none."""
    lines, first = inspect.getsourcelines(function)
    return lines, first, ast.parse(textwrap.dedent("".join(lines)))


def _uncalled(answer):
    """A sentence about a line of the reader's that is the name of a function and no call, or None."""
    for function in [] if isinstance(answer, (tuple, list, dict)) else _functions(answer):
        try:
            _, first, tree = _source(function)
        except (OSError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Name, ast.Attribute)):
                line = f"Line {first + node.lineno - 1}: `{ast.unparse(node)}`"
                return f"{line} is named there, and not called. Brackets are missing."


def under_if(kernel, start, *tests):
    """Whether, in the source of a reader's kernel, all calls and assignments whose text begins with ``start``
    stand in an ``if`` that tests one of the names ``tests``; False where there are none."""
    tree = _source(kernel.py_func)[2]
    branches = [
        branch for branch in ast.walk(tree) if isinstance(branch, ast.If)
        and {getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(branch.test)} & set(tests)
    ]  # fmt: skip
    inside = {id(node) for branch in branches for part in branch.body for node in ast.walk(part)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.Assign))]
    found = [id(node) in inside for node in nodes if ast.unparse(node).startswith(start)]
    return bool(found) and all(found)


def _hole_in_source(function):
    try:
        lines, first, tree = _source(function)
    except (OSError, SyntaxError):  # typed at a prompt, or a lambda in the middle of a line
        return f"`{function.__name__}` still has a hole." if ... in function.__code__.co_consts else None
    slices = [n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript)]
    meant = {id(part) for s in slices for part in ast.walk(s)}  # NumPy's a[..., 0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value is ... and id(node) not in meant:
            number = node.lineno
            code = lines[number - 1].partition("#")[0].strip()
            return f"Line {first + number - 1} still has a hole: `{code}`."
    return None
