"""``numba-deform cache``: what is kept on disk, so that nothing is compiled twice."""

from ..compiler import cache as kept
from .commands import RIGHT
from .output import say

KINDS = {"gpu": "GPU code", "listing": "disassembly", "typed": "typed code", "native": "CPU code",
         "object": "CPU objects"}  # fmt: skip


def cache(options):
    """Where it is and how much, or its removal."""
    place = kept.directory()
    if place is None:
        say("cache", f"off, by {kept.VARIABLE}")
        return RIGHT
    say("directory", f"{place} ({kept.VARIABLE} names another, or is off)")
    if options.get("action") == "clear":
        say("removed", _count(kept.clear(place)))
        return RIGHT
    found = kept.files(place)
    for kind, label in KINDS.items():
        if sizes := [size for _, size, path in found if path.suffix == f".{kind}"]:
            say(label, f"{_count(len(sizes))}, {_size(sum(sizes))}")
    say("in all", f"{_count(len(found))}, {_size(sum(one[1] for one in found))} of at most {_size(kept.LIMIT)}")
    return RIGHT


def _count(files):
    return f"{files:,} file{'s' * (files != 1)}"


def _size(size):
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size / 2**10:,.0f} KiB"
