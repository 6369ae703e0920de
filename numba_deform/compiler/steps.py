"""Which calls of a kernel are steps of a pipeline, which timelines mark."""

import ast

from ..device import marks
from ..device.namespace import Namespace

# The marks before and after a step of the pipeline, by the name of the function that is called.
STEPS = {"acquire": (marks.ACQUIRE, marks.ISSUE), "issue": (marks.ISSUE, marks.COMMIT),
         "wait": (marks.WAIT, marks.COMPUTE), "release": (marks.RELEASE, None)}  # fmt: skip
STATEMENTS = ast.Expr, ast.Assign  # those in which a step is taken


def calls_in(node):
    return [n for n in ast.walk(node) if isinstance(n, ast.Call)]


def owner_of(source, call):
    """The Namespace whose function a call runs, or None."""
    owner = source.value(call.func.value) if isinstance(call.func, ast.Attribute) else None
    return owner if isinstance(owner, Namespace) else None


def ring_of(source, call):
    """The ring of a ``Shared`` layout whose function a call runs, or None."""
    owner = owner_of(source, call)
    return owner if hasattr(owner, "number") else None


def is_expect(source, call):
    """Whether a call is ``ring.expect(state, n)`` of a ring without ``acquire``: issuing begins with it."""
    ring = ring_of(source, call)
    expects = ring and call.func.attr == "expect" and len(call.args) == 2
    return bool(expects and not hasattr(ring, "acquire"))


def ends_of_issue(source, expects):
    """The statements by which a producer goes on to the next stage, in the blocks of code where it acquires
    one, or ``expects(call)`` bytes in one that need not be acquired: there all copies into it are issued."""
    found = set()
    for node in ast.walk(source.tree):
        for block in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            block = block if isinstance(block, list) else []
            calls = {statement: calls_in(statement) for statement in block if isinstance(statement, STATEMENTS)}
            steps = [(call, step_of(source, call)) for of in calls.values() for call in of]
            if any(step and step[0] == "acquire" or expects(call) for call, step in steps):
                found |= {statement for statement, of in calls.items() if any(map(advanced, of))}
    return found


def advanced(call):
    """The state that a call ``ring.advance(state)`` goes on from, or None."""
    is_advance = isinstance(call.func, ast.Attribute) and call.func.attr == "advance" and call.args
    return call.args[0] if is_advance else None


def step_of(source, call):
    """(the name of the step that a call takes, its state), or None: ``wait(ring, state)`` or
    ``ring.wait(state)``. What waits for something else than a ring is none, as a barrier without one."""
    if given_back := given_back_by_hand(source, call):
        return "release", given_back[1]
    if owner_of(source, call) and not ring_of(source, call):
        return None
    of_ring = isinstance(call.func, ast.Attribute) and len(call.args) == 1
    name, place = getattr(call.func, "attr" if of_ring else "id", None), 0 if of_ring else 1
    return (name, call.args[place]) if name in STEPS and len(call.args) > place else None


def given_back_by_hand(source, call):
    """(the ring, its state) where a call gives a stage back without ``release``: it is ``ring.arrive(state)``,
    or an arrival, here or in the cluster, on ``ring.empty(state)``; else None."""
    name, ring = getattr(call.func, "attr", getattr(call.func, "id", "")), ring_of(source, call)
    if ring is not None and name == "arrive" and call.args:
        return ring, call.args[0]
    for inner in calls_in(call) if name.startswith("mbarrier_arrive") else ():
        ring = ring_of(source, inner)
        if ring is not None and inner.func.attr == "empty" and inner.args:
            return ring, inner.args[0]
    return None
