"""Who waits for whom: what is known of waiting threads, and a drawing of it in text.

A :class:`Wait` says of some threads where they wait, on what, and which threads could end it. The
threads of one wait are a *group*, named A, B, C.. in the drawing. Whatever stopped the threads may
build them: this module knows neither engine.
"""

import itertools
import re
import textwrap
from dataclasses import dataclass

CUT = " .."  # where a source line is too long
WIDTH, PARTS, GROUPS = 96, 8, 26  # of a line; ranges in one line; groups that are drawn


@dataclass(frozen=True)
class Wait:
    """Threads of a block that wait alike."""

    threads: tuple[int, ...]  # in order, at least one
    where: str  # file:line, with the file's full path
    source: str  # that source line, stripped
    kind: str  # mbarrier, flag, syncthreads, bar.sync, syncwarp, shfl, .., spin
    on: str  # what they wait on, by its Python name: ``full[0]``, ``syncthreads (barrier 0)``
    state: str = ""  # of what they wait on, in words
    missing: str = ""  # what would end the wait, in words
    by: tuple[int, ...] = ()  # the threads that could end it, as far as is known
    why: str = ""  # how that is known: "arrived here before"; without any, why nobody is known
    root: bool = False  # whether the cause is here for sure, whatever the threads of ``by`` wait for
    certain: bool = False  # whether that holds whatever else has such a cause, too
    # How deep in branches and loops its line stands: an operation for many in a branch of a few is more likely
    # the cause than one that all come to.
    depth: int = 0
    cure: str = ""  # what would mend it, in words, where it is known to be the cause


def ranges(numbers, noun="thread"):
    """``threads 0-31, 40`` for sorted numbers."""
    runs = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    parts = [(run[0][1], run[-1][1]) for run in (list(pairs) for _, pairs in runs)]
    words = [str(a) if a == b else f"{a}-{b}" for a, b in parts[:PARTS]]
    more = sum(b - a + 1 for a, b in parts[PARTS:])
    text = ", ".join(words) + (f" and {more} more" if more else "")
    return f"{noun}{'s' * (len(numbers) != 1)} {text}"


def have(numbers):
    """The verb for so many."""
    return "has" if len(numbers) == 1 else "have"


def _letter(i):
    """A to Z, then A1 to Z1 and so on."""
    return chr(ord("A") + i % 26) + (str(i // 26) if i >= 26 else "")


def draw(waits, exited=()):
    """Who waits for whom, as text: a paragraph for each wait, then the circles that they close."""
    group_of = {t: i for i, wait in enumerate(waits) for t in wait.threads}
    exited, lines = set(exited), []
    for i, wait in enumerate(waits[:GROUPS]):
        warps = ranges(sorted({t // 32 for t in wait.threads}), "warp")
        lines += _row(f"{_letter(i):<3}", f"{ranges(wait.threads)} ({warps})")
        code, *words = re.split(r"   (?=\(.*\)$)", wait.source, maxsplit=1)  # where it is inlined is kept
        place, about = f"{wait.where.rpartition('/')[2]}  ", "".join(f"   {more}" for more in words)
        room = WIDTH - len(f"   at    {place}{about}")
        lines.append(f"   at    {place}{textwrap.shorten(code, max(room, len(CUT)), placeholder=CUT)}{about}")
        lines += _row("   waits ", f"on {wait.on}" + (f": {wait.state}" if wait.state else ""))
        if wait.missing:
            lines += _row("         ", wait.missing)
        for arrow in _arrows(i, wait, group_of, exited):
            lines += _row("   -> ", arrow)
    if len(waits) > GROUPS:
        lines.append(f"and {len(waits) - GROUPS} groups more")
    for circle in circles(waits):
        names = [_letter(i) for i in circle]
        lines += _row("circle: ", " -> ".join([*names, names[0]]))
    if exited:
        lines.append(f"{ranges(sorted(exited))} {have(exited)} exited")
    return "\n".join(lines)


def _row(head, text):
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def _arrows(i, wait, group_of, exited):
    """What stands behind the arrows of group ``i``: who could end its wait, and where they are."""
    if not wait.by:
        yield f"nobody is known who could: {wait.why}" if wait.why else "nobody is left who could"
        return
    others = [t for t in wait.by if group_of.get(t, i) != i]
    inside = [t for t in wait.by if group_of.get(t) == i]
    gone = [t for t in wait.by if t in exited]
    rest = [t for t in wait.by if t not in group_of and t not in exited]
    why = f": {wait.why}" if wait.why else ""
    if others:
        names = [_letter(j) for j in sorted({group_of[t] for t in others})]
        names = names[:PARTS] + [".."] * (len(names) > PARTS)
        yield f"{', '.join(names)} ({ranges(others)}){why}"
    if inside:
        yield f"{_letter(i)} itself ({ranges(inside)}){why}"
    if gone:
        why_gone = f" ({wait.why})" if wait.why else ""
        yield f"{ranges(gone)} could{why_gone}, but {have(gone)} exited"
    if rest:
        yield f"{ranges(rest)}{why}; not known to wait"


def _edges(waits):
    """For each wait the set of waits whose threads could end it."""
    group_of = {t: i for i, wait in enumerate(waits) for t in wait.threads}
    return [{group_of[t] for t in wait.by if t in group_of} for wait in waits]


def _circle_from(edges, start):
    """The shortest way from ``start`` back to it, as a list of waits; None without one."""
    ways, seen = [[start]], set()
    for way in ways:  # grows
        for i in sorted(edges[way[-1]]):
            if i == start:
                return way
            if i not in seen:
                seen.add(i)
                ways.append([*way, i])
    return None


def circles(waits):
    """Circles of waits of which each could be ended by the next only; no two share a wait."""
    result, covered, edges = [], set(), _edges(waits)
    for start in range(len(waits)):
        circle = _circle_from(edges, start)
        if circle and len(circle) > 1 and not covered.intersection(circle):
            result.append(circle)
            covered.update(circle)
    return result


def blame(waits):
    """The wait to report: one that no other wait holds up, else one of a circle. Of several in a circle one of
    which it is known how to mend it, then the deepest; then the one with the lowest thread."""
    edges = _edges(waits)
    roots = [w for i, w in enumerate(waits) if w.root or not edges[i] - {i}]
    if roots:
        return min(roots, key=lambda wait: (not wait.certain, not wait.cure, wait.threads[0]))
    roots = [w for i, w in enumerate(waits) if _circle_from(edges, i)]
    return min(roots, key=lambda wait: (not wait.cure, -wait.depth, wait.threads[0]))
