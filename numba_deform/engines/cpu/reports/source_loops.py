"""The loops around a place in a kernel's source: what a thread's variables say of the round that it is in.
Threads ask when they tell whether a poll is in vain."""

import ast
import dis
import functools
import itertools
import linecache
from typing import NamedTuple

from .call_sites import line_of, operation_after

COUNTED = ("range", "static_range")  # what gives another number each time
LOOPS = ast.For, ast.While


class Loops(NamedTuple):
    """What is known of the loops around a place.

    hidden  a thread may be in another round of one although all its variables are the same. A ``for`` keeps a
            count of its own, which only its variable tells: if it goes through a range, and nothing else sets
            the variable
    back    it can come back with nothing changed: all that counts shows, and there is a ``while`` around the
            place which does not count
    """

    hidden: bool
    back: bool

    @classmethod
    def around(cls, sites, atomic=False):
        """Those around ``sites``: (code, offset) in each function that a thread is in, the innermost first;
        ``atomic``: what it does there is an atomic. Where a variable takes the old value, that is not seen as a
        poll: what computes with it tries again with another. Without source, anything can be."""
        found = [loops_at(site) for site in sites]
        if None in found:
            return cls(False, True)
        loops = [loop for each in found for loop in each]
        hidden = not all(map(_shows, loops))
        back = bool(loops) and isinstance(loops[0], ast.While) and not hidden
        back = back and not _counts(loops[0], unread(sites[0][0]))
        is_kept = atomic and any(operation_after(site).startswith("STORE") for site in sites)
        return cls(hidden, back and not is_kept)


def step_of(code, offset):
    """What stands at an offset of a function: the same for the two copies that Python makes of the condition of
    a ``while``, one for the first round and one for the others."""
    loops = loops_at((code, offset))
    if not loops or not isinstance(loops[0], ast.While):
        return offset
    if any(_function_of(loop) == "static_range" for loop in loops):  # each round is a copy of its own
        return offset
    test = loops[0].test
    first, last = (test.lineno, test.col_offset), (test.end_lineno, test.end_col_offset)
    if not hasattr(code, "co_positions"):
        return _step_by_lines(code, offset, first[0], last[0])
    at = list(code.co_positions())[offset // 2]
    return at if None not in at and first <= (at[0], at[2]) and (at[1], at[3]) <= last else offset


def _step_by_lines(code, offset, first, last):
    """The same with Python 3.10, which knows lines alone: how far it is from where its copy begins."""
    before = ((start, line) for start, line in dis.findlinestarts(code) if start <= offset)
    copy = list(itertools.takewhile(lambda pair: first <= pair[1] <= last, reversed(list(before))))
    return (first, offset - copy[-1][0]) if copy else offset


def loops_at(site):
    """The loops of its function that a site is in, the innermost first; None where there is no source."""
    tree = tree_of(site[0].co_filename)
    return None if tree is None else _loops_around(tree, line_of(site))


@functools.lru_cache(1024)
def may_have_returned(code, site):
    """Whether a thread of the kernel ``code`` that has ended may have done so before it came to a call: whether
    a return stands above it, or in a loop around it; anywhere, where the call is in another function."""
    if not (node := _function(code)):
        return True
    last, place = node.end_lineno, site[0]
    if place.co_filename == code.co_filename and node.lineno <= line_of(site) <= last:
        last = max([line_of(site), *(loop.end_lineno for loop in _loops_around(node, line_of(site)))])
    return any(_ends(n) and n.lineno <= last for n in ast.walk(node))


@functools.lru_cache(1024)
def unread(code):
    """The variables of a function that it only adds to, such as a count of looks that nothing reads."""
    nodes = list(ast.walk(_function(code) or ast.Pass()))
    of_loops, added = ({getattr(n.target, "id", None) for n in nodes if isinstance(n, kind)}
                       for kind in (ast.For, ast.AugAssign))  # fmt: skip
    read = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return frozenset(added - of_loops - read)


def _function(code):
    """The tree of a function, None where there is no source."""
    named = (node for node in functions_in(tree_of(code.co_filename)) if node.name == code.co_name)
    heads = ((node, min(n.lineno for n in (node, *node.decorator_list))) for node in named)
    return next((node for node, first in heads if first == code.co_firstlineno), None)


@functools.lru_cache(64)  # each store that is waived asks
def functions_in(tree):
    """The trees of all functions in ``tree``, which may be None."""
    return [node for node in ast.walk(tree or ast.Pass()) if isinstance(node, ast.FunctionDef)]


def _ends(node):
    called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    return isinstance(node, ast.Return) or called.endswith("exit")


def tree_of(file):
    """The tree of a file; None where it holds no Python."""
    return _parsed("".join(linecache.getlines(file)))


@functools.lru_cache(64)
def _parsed(text):
    try:
        return ast.parse(text) if text else None
    except SyntaxError:  # such as a cell of a notebook that has a line for the shell
        return None


def enclosing(node, line):
    """The statements below ``node`` that hold a line and have others in them, the outermost first."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt) and child.lineno <= line <= child.end_lineno:
            yield from [child] * hasattr(child, "body")
            yield from enclosing(child, line)


def arm(node, line):
    """The list of statements of an ``if`` or a loop that a line is in; its head counts to the first."""
    return node.orelse if node.orelse and line >= node.orelse[0].lineno else node.body


def _loops_around(node, line):
    """The loops below ``node`` that a line is in, the innermost first, without those around its function."""
    loops = []
    for each in enclosing(node, line):
        if isinstance(each, ast.FunctionDef):
            loops = []
        elif isinstance(each, LOOPS) and arm(each, line) is each.body:
            loops.insert(0, each)
    return loops


def _counts(loop, unread):
    """Whether each round of the loop adds to something that is not ``unread``."""
    added = (each.target for each in loop.body if isinstance(each, ast.AugAssign))
    return any(getattr(target, "id", None) not in unread for target in added)


def _shows(loop):
    """True if the thread's variables identify its iteration of the loop."""
    if isinstance(loop, ast.While):
        return True
    if _function_of(loop) not in COUNTED:
        return False
    names = (node for statement in loop.body for node in ast.walk(statement) if isinstance(node, ast.Name))
    target = getattr(loop.target, "id", None)
    return target is not None and not any(n.id == target and not isinstance(n.ctx, ast.Load) for n in names)


def _function_of(loop):
    """The name of the function that gives what a ``for`` goes through."""
    function = getattr(getattr(loop, "iter", None), "func", None)
    return getattr(function, "id", getattr(function, "attr", None))
