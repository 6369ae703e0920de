"""The search over a small kernel's schedules in the workers of an executor.

After one schedule it is known of points on its path that another actor has to be tried there. The schedules
that begin so, a subtree, are searched in a worker, which gets the path to it and who is asleep there. After
``PIECE`` runs it hands back what is left of its path, whose points have subtrees in turn. What a subtree finds
is to be tried above it is noted after all that a search in one piece would have found before, and so the
schedules are those of such a search. A subtree with a fault, or with anything else that is not clean, is
searched once more here.
"""

from dataclasses import replace

from ..memory.scalars import bounds_of
from .executors import ONE_AT_A_TIME, clean, launch_of, packed, result_of
from .search import Search, orders, run_once

PIECE = 64


def outcomes_by(executor, launch, result):
    """As ``explore.outcomes``, but yields only of those schedules that are run here."""
    sent = packed(launch)
    for number in range(launch.clusters):
        result.complete = False
        if result.schedules < result.limit:
            search = Search(number, result.by_thread)
            yield from _outcomes(executor, sent, launch, result, search)
            result.complete = not search.path and not result.left_out


def _outcomes(executor, sent, launch, result, search):
    with ONE_AT_A_TIME:
        ran, fault = run_once(launch, result, search)
    if ran:
        yield str(search), fault
    nothing = replace(result, schedules=0, repeated=0, waived={}, contents=set(), left_out=set())
    jobs = {}  # depth of a point -> the subtree of the actor that is next there
    try:
        while search.path:
            for depth in range(len(search.path)) if result.schedules < result.limit else ():
                if depth not in jobs and (root := search.subtree(depth)):
                    given = sent, nothing, search.block, [moved(node, launch, _named) for node in root]
                    jobs[depth] = executor.submit(search_subtree, *given)
            depth = len(search.path) - 1
            if not (root := search.subtree(depth)):
                search.path.pop()
                continue
            if depth not in jobs:
                return  # the limit has been reached
            answer = result_of(jobs.pop(depth))
            if answer and result.schedules + answer[0].schedules < result.limit:
                found, path, wanted = answer
                result.add(found)
                path = [moved(node, launch, _placed) for node in path]
            else:
                again = Search(search.block, result.by_thread, root=root)
                with ONE_AT_A_TIME:
                    yield from orders(launch, result, again)
                if again.left:
                    return
                path, wanted = again.path[depth:], again.wanted
            search.adopt(path, wanted)
    finally:
        for job in jobs.values():
            job.cancel()


def search_subtree(sent, found, block, root):
    """In a worker: (what was tried, the path from the root's last node on, what is wanted above it); None if it
    is to be done where others can see it."""
    with ONE_AT_A_TIME:
        launch = launch_of(sent)
        with launch.watched():
            return clean(_search, launch, replace(found, contents=set(), left_out=set()), block, root)


def _search(launch, found, block, root):
    search = Search(block, found.by_thread, root=[moved(node, launch, _placed) for node in root])
    while search.left and found.schedules + found.repeated < PIECE:
        if search.steps:
            search.next()
        if search.left:
            _, fault = run_once(launch, found, search)
            if fault:
                raise fault
    path = [moved(node, launch, _named) for node in search.path[len(root) - 1 :]]
    return found, path, list(search.wanted)


def moved(node, launch, change):
    """A node with ``change(word, arrays)`` for each word of global memory that has been touched."""
    arrays = [bounds_of(array) for array, _ in launch.saved]

    def touch(one):
        is_global = one.thing[0] == "word" and one.thing[2] is None
        return one._replace(thing=("word", change(one.thing[1], arrays), None)) if is_global else one

    def touches(some):
        return some and {touch(one) for one in some}

    asleep = {actor: touches(some) for actor, some in node.asleep.items()}
    return node.like(asleep=asleep, touches=touches(node.touches))


def _named(word, arrays):
    """The word of an array, by the array's number, which is another address in another process."""
    for number, (first, last) in enumerate(arrays):
        if first // 4 <= word < -(-last // 4):
            return number, word - first // 4
    return word


def _placed(word, arrays):
    return arrays[word[0]][0] // 4 + word[1] if isinstance(word, tuple) else word
