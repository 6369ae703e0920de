"""Where loads come from and go to: boxes that leave their array are refused, and what is odd and breaks no rule
is kept for the reports of what comes of it."""

from dataclasses import dataclass

from ... import faults
from ..reports.call_sites import describe_site


@dataclass
class LoadStatistics:
    """The loads by one map at one line."""

    name: str
    line: str
    tensor: object
    furthest: tuple  # the greatest coordinates
    count: int = 0
    outside: int = 0
    first: tuple = None  # of those that lie outside
    close: int = 0  # less than half a box behind the one before
    step: tuple = None  # (dimension, distance) of the last of these

    def add(self, coords, before):
        """Count a load at ``coords``; the one before of that thread was at ``before``."""
        dims, box = self.tensor.dims, self.tensor.box
        self.count += 1
        if any(c >= n or c + b <= 0 for c, n, b in zip(coords, dims, box, strict=True)):
            self.outside, self.first = self.outside + 1, self.first or coords
        self.furthest = tuple(map(max, self.furthest, coords))
        steps = [(i, c - b) for i, (c, b) in enumerate(zip(coords, before, strict=True)) if c != b]
        if len(steps) == 1 and 2 * abs(steps[0][1]) < box[steps[0][0]]:
            self.close, self.step = self.close + 1, steps[0]

    def fits(self, other):
        """Whether the tensor of ``other``, by a map with the same box, holds all these loads."""
        dims, box = other.tensor.dims, other.tensor.box
        return self.tensor.box == box and all(a < b for a, b in zip(self.furthest, dims, strict=True))


class LoadChecks:
    """The loads of one schedule: how many, and which were odd, by map and line."""

    def __init__(self, execution):
        self.execution, self.layout = execution, execution.layout
        self.tallies, self.known = {}, {}  # LoadStatistics by map, dims and line; by address, site and dims
        self.seen, self.last = set(), {}  # places looked at; the last coordinates of a thread at a site
        # (map, its swizzle, the array that it fills) -> (its tensor, the array's part, line of the first load)
        self.fills = {}
        # site of bulk loads -> ({barrier: (phase, source) of the last}, [in one phase, whether from one place])
        self.bulk = {}

    def add(self, thread, tensor, address, coords, dst, room):
        """``thread`` loads the box at ``coords`` of a map, ``room`` bytes to the shared address ``dst``."""
        key = address, thread.site(), tensor.dims
        if (tally := self.known.get(key)) is None:
            name, line = self._name(address), thread.at(key[1])
            new = LoadStatistics(name, line, tensor, coords)
            tally = self.tallies.setdefault((name, tensor.dims, line), new)
            self.known[key] = tally
        loads = thread.block.index, thread.tid, key  # no tuple of a thread: the collector loses sight of it
        tally.add(coords, self.last.get(loads, coords))
        self.last[loads] = coords
        if (id(tensor), dst) in self.seen:
            return
        place = self.layout and self.layout.part_at(dst, thread.block.shared.dynamic_start)
        if not place or not hasattr(place[1], "box_bytes"):  # a barrier says so itself
            return
        self.seen.add((id(tensor), dst))
        offset, part, array = place
        self.fills.setdefault((tally.name, tensor.swizzle, array), (tensor, part, tally.line))
        if (more := offset + room - part.bytes) > 0:
            what = f"loads a box of {room} bytes by {tally.name} to {part.name_of(array, offset)}, of which "
            fault = thread.fault(faults.OutOfRange, f"{what}{more} lie behind the end of {array}", array)
            fault.cure = f"{self.exchanged()}Make the boxes of {array} as large as that of the map: {room} "
            fault.cure += f"bytes, and not {part.box_bytes}; or give the map the array's box: "
            fault.cure += "nd.TensorMap.of(data, array)."
            raise fault

    def _name(self, address):
        return self.execution.globals.name_of(address).partition("[")[0]

    def add_bulk(self, thread, barrier, src):
        """``thread`` loads bytes from the global address ``src``, with no map, for the phase of ``barrier``."""
        last, found = self.bulk.setdefault(thread.site(), ({}, [0, True]))
        phase, before = last.get(barrier, (-1, None))
        last[barrier] = barrier.phase, src
        if phase == barrier.phase:
            found[:] = found[0] + 1, found[1] and src == before

    def exchanged(self):
        """A question, where a map's boxes are those of another array than it fills, and another map has that
        one's; else ""."""
        fills = [(name, array, _sides(tensor.box), _sides(part.box), line)
                 for (name, _, array), (tensor, part, line) in self.fills.items()]  # fmt: skip
        by_box, right = {}, {name for name, _, box, own, _ in fills if box == own}
        for address, tensor in self.execution.tensor_maps.items():
            by_box.setdefault(_sides(tensor.box), {})[self._name(address)] = None
        parts = self.layout.parts() if self.layout else ()
        arrays = {_sides(part.box) for part in parts if hasattr(part, "box")}
        for name, array, box, own, line in fills:
            others = [other for other in by_box.get(own, ()) if other not in right]
            if box != own and box in arrays and others:
                mine, theirs = (" x ".join(map(str, sides)) for sides in (box, own))
                said = f"{name} brings boxes of {mine} elements at {line}, and {array}, which they go to, has "
                return said + f"boxes of {theirs}, as {' and '.join(others)} has: are the two maps exchanged? "
        return ""

    def remarks(self):
        """Sentences on what breaks no rule, and may be why a result is wrong."""
        said = [self.exchanged().strip()]
        for tally in self.tallies.values():
            loads = f"of {tally.count} loads by {tally.name} at {tally.line}"
            if tally.outside:
                said.append(
                    f"{tally.outside} {loads} lie outside its tensor altogether, and bring zeros alone: the "
                    f"first at {tally.first}, where dims are {tally.tensor.dims} (innermost first)"
                    f"{self._other(tally)}"
                )
            if 2 * tally.close > tally.count:
                axis, step = tally.step
                said.append(
                    f"{tally.close} {loads} begin {abs(step)} away from the one before along dimension {axis}, "
                    f"where its box has {tally.tensor.box[axis]}: coordinates count elements"
                )
        for site, (last, (again, alike)) in self.bulk.items():
            if again and alike:
                place = self.execution.globals.name_of([src for _, src in last.values()][-1], True)
                said.append(
                    f"all bulk loads of a phase at {describe_site(site)} bring the same bytes, at last those "
                    f"from {place} on"
                )
        return [*(text for text in dict.fromkeys(said) if text), *self.swizzled()]

    def swizzled(self):
        """The same of maps with another swizzle than the array that they fill. By hand that may be right."""
        return [
            f"{name} has swizzle={own!r}, and {array}, which it fills at {line}, swizzle={part.swizzle!r}: "
            "nd.TensorMap.of(data, array) takes the array's"
            for (name, own, array), (_, part, line) in self.fills.items() if part.swizzle != own
        ]

    def _other(self, tally):
        """What to say where another map's tensor holds the loads of ``tally``, and this one those."""
        for other in self.tallies.values():
            if tally.fits(other) and other.fits(tally):
                return f". That of {other.name} holds them, and this one its loads: are the two exchanged?"
        return ""


def _sides(box):
    """A box as an array's shape has it, without sides of 1."""
    return tuple(int(n) for n in reversed(box) if n != 1)
