"""What stands between two places of a kernel's source: barriers, branches and loops."""

import ast
import re
from typing import NamedTuple

from ..reports.call_sites import describe_site, indentation, line_in_file, line_of, origin
from ..reports.source_loops import LOOPS, arm, enclosing, functions_in, tree_of

BLOCK = ("syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or")
OTHERS = ("syncwarp", "bar_sync", "bar_arrive", "mbarrier_wait", "mbarrier_try_wait", "mbarrier_test_wait")
HOLDERS = ast.If, *LOOPS
NUMBERS = ("grid", "gridsize", "threadIdx", "blockIdx")  # of ``cuda``, that tell threads from each other


class Order(NamedTuple):
    """Two places in one function, in the order of its lines. All numbers are lines, None where there is no such
    thing.

    whole   a barrier between them that all who come to both come to, or that they came to last
    branch  one that stands in a branch or loop which does not hold both, and may not be for all or each round
    unclear whether something else stands between them that may order them
    loop    the innermost loop around both; 0 if no Python tells where it is
    rounds  as ``whole``, of a barrier in that loop before the one place or behind the other
    aside   as ``branch``, of a barrier there
    narrow  where the threads are of two blocks: a barrier of one block there, or between the two
    grid    whether the function asks for ``cuda.cg.this_grid()``
    """

    first: int
    second: int
    whole: int | None = None
    branch: int | None = None
    unclear: bool = False
    loop: int | None = None
    rounds: int | None = None
    aside: int | None = None
    narrow: int | None = None
    grid: bool = False


def order_of(one, other, near, met=()):
    """The Order of two sites; None without source, where they are in two functions, or in two arms of a branch.
    ``near``: their threads are of one block, so that its barriers order them; else only those of the grid.
    ``met``: the calls by which both threads came to a barrier of their block last."""
    function = _function_at(one) if one and other and one[0] is other[0] else None
    if function is None:
        return _order_of_lines(one, other, *met[:1])
    first, second = sorted((line_of(one), line_of(other)))
    around = [list(enclosing(function, line)) for line in (first, second)]
    both = [node for node in around[0] if node in around[1]]
    if any(isinstance(n, ast.If) and arm(n, first) is not arm(n, second) for n in both):
        return None
    loops = [node for node in both if isinstance(node, LOOPS)]
    loop, unclear, grid = loops[-1] if loops else None, False, False
    found = {}  # of those fields
    last = next((line_of(call) for call in met if loop and call[0] is one[0]), 0)
    changing = {*_named(loop or ast.Pass())}
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        name, line = getattr(call.func, "attr", getattr(call.func, "id", "")), call.lineno
        grid |= name == "this_grid"
        between = first < line < second
        unclear |= between and name.startswith(OTHERS)
        inside = loop and loop.lineno <= line <= loop.end_lineno
        if name not in ("sync", *BLOCK) or not (between or inside):
            continue
        if name in BLOCK and not near:
            found["narrow"] = line if between else found.get("narrow", line)
            continue
        branches = [n for n in enclosing(function, line) if isinstance(n, HOLDERS) and n not in both]
        asked = [getattr(n, "test", None) or n.iter for n in branches if n not in around[1]]
        names = {n.id for each in asked for n in ast.walk(each) if isinstance(n, ast.Name)}
        if not branches or line == last:
            found["whole" if between else "rounds"] = line
        if branches and (line != last or names & changing):
            found["branch" if between else "aside"] = line
    return Order(first, second, **found, unclear=unclear, loop=loop and loop.lineno, grid=grid)


def _order_of_lines(*sites):
    """The Order where no Python tells it: of two places and, on a line between theirs, the barrier to which
    both threads came last, so that they have been there more than once; else None."""
    numbers = [line_in_file(site, sites[0]) for site in sites if len(sites) == 3]
    if not numbers or None in numbers or numbers[2] != sorted(numbers)[1] or numbers[2] in numbers[:2]:
        return None
    return Order(*sorted(numbers[:2]), whole=numbers[2], loop=0)


def depth_of(sites):
    """How deep in branches and loops a thread stands that is in these calls, the innermost first. A branch
    counts twice: it is more often what keeps threads away. Without Python's source, the indentation."""
    functions = [_function_at(site) for site in sites]
    if None in functions:
        return indentation(sites[0])
    around = (n for f, site in zip(functions, sites, strict=True) for n in enclosing(f, line_of(site)))
    return sum(2 if isinstance(node, ast.If) else isinstance(node, LOOPS) for node in around)


def has_left(site, calls, fresh=None):
    """Whether a thread in these calls is past the loops around ``site``, a place in one of their functions. If
    ``fresh`` is given, also past a place of the kernel itself that is in no loop, and, where no Python tells of
    loops, past one that is fresh: no thread has been there before."""
    now = next((call for call in calls if site and call[0] is site[0]), None)
    function = _function_at(site) if now else None
    if function is None:
        line = line_in_file(now, site) if fresh and now else None
        return line is not None and line > line_in_file(site, site)
    line, here, around = line_of(now), line_of(site), list(enclosing(function, line_of(site)))
    loop = next((node for node in around if isinstance(node, LOOPS)), None)
    if loop or fresh is None or now is not calls[-1]:
        return loop is not None and line > loop.end_lineno
    arms = (n for n in around if isinstance(n, ast.If) and n.lineno <= line <= n.end_lineno)
    return line > here or any(arm(n, line) is not arm(n, here) for n in arms)


def passed_by(site):
    """The line of an ``if`` by which a round of the innermost loop around ``site`` may pass it by: it holds it,
    or ends the round before it, and what it tests changes in the loop. None if there is none."""
    function, line = _function_at(site), line_of(site)
    around = list(enclosing(function, line)) if function else []
    first = max((n for n, node in enumerate(around) if isinstance(node, LOOPS)), default=len(around))
    arms = [arm(node, line) if isinstance(node, ast.If) else node.body for node in around[first:]]
    before = (n for arm in arms for n in arm if n.lineno < line and isinstance(n, ast.If))
    tests = [*around[first + 1 :], *(n for n in before if isinstance(n.body[-1], ast.Continue))]
    names = [(n.lineno, set(_named(n.test, ast.Load))) for n in tests if isinstance(n, ast.If)]
    return max((number for number, used in names if used & set(_named(around[first]))), default=None)


def calls_besides(sites, made, number):
    """Whether a function that is called at one of ``sites``, or was at one of ``made``, has a call of the named
    barrier ``number`` that is none of these; True without source."""
    functions = [_function_at(site) for site in (*sites, *made)]
    if None in functions:
        return True
    lines, named = {line_of(site) for site in made}, re.compile(rf"\bbar_(sync|arrive)\(({number}\b|\D)")
    calls = (n for f in functions for n in ast.walk(f) if isinstance(n, ast.Call) and n.lineno not in lines)
    return any(named.match(ast.unparse(call).rpartition(".")[2]) for call in calls)


def takes_turns(site):
    """Whether the function at ``site`` gives its threads every n-th use of a Ring."""
    function = _function_at(site)
    return bool(function and re.search(r"\.start\([^)]|\.advance\([^),]+,", ast.unparse(function)))


def wrong_divisor(site, names):
    """The cure in words of a wait at ``site`` whose barrier is number n % stages of a ring, and whose parity
    n // m & 1 with another m; "" for others. ``names``: {global or outer name of the kernel: value}."""
    function, line = _function_at(site), line_of(site)
    calls = (n for n in ast.walk(function or ast.Pass()) if isinstance(n, ast.Call) and n.lineno == line)
    for call in (c for c in calls if "wait" in ast.unparse(c.func) and len(c.args) > 1):
        place, parity = (_written_out(function, arg) for arg in call.args[:2])
        stages = {ast.unparse(n.left): n.right for n in ast.walk(place) if _is(n, ast.Mod)}
        rounds = [(n.left, n.right) for n in ast.walk(parity) if _is(n, ast.FloorDiv)]
        bare = [(n.left, ast.Constant(1)) for n in ast.walk(parity) if _is(n, ast.BitAnd) and not rounds]
        for use, divisor in rounds or bare:
            use = ast.unparse(use)
            texts = [ast.unparse(node) for node in (stages.get(use, divisor), divisor)]
            try:
                right, wrong = (eval(text, {**names}) for text in texts)
            except NameError:
                continue
            if right != wrong:
                by, at = f"{use} // {texts[0]} & 1", describe_site(site)
                return (f"Take the parity of the wait at {at} from {by}: the stage is {use} % {texts[0]}, so "
                        f"that its parity changes after {right} uses, and not after {wrong}.")  # fmt: skip
    return ""


def _is(node, operator):
    return isinstance(node, ast.BinOp) and isinstance(node.op, operator)


def _written_out(function, node):
    """``node``, and what the variables in it have been assigned."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    values = [a.value for a in ast.walk(function) if isinstance(a, ast.Assign) and names & {*_named(a)}]
    return ast.Tuple([node, *values])


def index_without_block(site, index):
    """(line, text) of the assignment by which ``index``, the text of an index at a site, is made of
    ``cuda.threadIdx`` and of nothing that differs from block to block; None where that is not sure."""
    function = _function_at(site)
    if function is None:
        return None
    # Of each variable its assignments as (line, value); None for what sets it in another way.
    assigned = {argument.arg: [None] for argument in function.args.args}
    for node in (n for n in ast.walk(function) if isinstance(n, (ast.Assign, ast.AugAssign, ast.For))):
        plain = isinstance(node, ast.Assign)
        for target in node.targets if plain else [node.target]:
            pairs = [(target, node.value if plain else None)]
            if plain and isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
            for name, value in ((name, value) for part, value in pairs for name in _named(part)):
                assigned.setdefault(name, []).append(value and (node.lineno, value))
    found, todo = None, [(line_of(site), ast.parse(index, mode="eval").body)]
    while todo:
        line, node = todo.pop()
        text = ast.unparse(node)
        if "threadIdx" in text:
            found = line, text
        sets = [assigned.pop(name, []) for name in _named(node, ast.Load)]
        if any(len(each) > 1 or None in each for each in sets):
            return None
        todo += [assignment for each in sets for assignment in each]
        told = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} & {*NUMBERS}
        if told - {"threadIdx"} or any(isinstance(n, (ast.Call, ast.Subscript)) for n in ast.walk(node)):
            return None
    return found


def _named(node, use=ast.Store):
    """The variables that an assignment or a statement sets, or that an expression uses."""
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, use)]


def _function_at(site):
    """The innermost function of the source that a site's line is in."""
    if origin(site)[:2] != (site[0].co_filename, line_of(site)):
        return None  # the source is no Python
    line = line_of(site)
    held = [n for n in functions_in(tree_of(site[0].co_filename)) if n.lineno <= line <= n.end_lineno]
    return max(held, key=lambda node: node.lineno, default=None)
