"""Where loads by tensor maps come from and go to: boxes that leave their array are refused, and what is odd and
breaks no rule is kept for the report of a wrong result."""

from ... import faults


class LoadPlaces:
    """The loads of one schedule: how many, and which were odd, by map and line."""

    def __init__(self, layout):
        self.layout = layout
        self.counts = {}  # (map, its dims, line) -> [loads, those outside, where the first of these lies]
        self.swizzles = {}  # (map, its swizzle, the array it fills, that one's) -> line of the first load
        self.told, self.seen = {}, set()  # (map's address, site, dims) -> (name, line, count); places looked at

    def add(self, thread, tensor, address, coords, dst, room):
        """``thread`` loads the box at ``coords`` of a map, ``room`` bytes to the shared address ``dst``."""
        key = address, thread.site(), tensor.dims
        known = self.told.get(key)
        if known is None:
            name, line = thread.block.globals.name_of(address).partition("[")[0], thread.at(key[1])
            count = self.counts.setdefault((name, tensor.dims, line), [0, 0, None])
            known = self.told[key] = name, line, count
        name, line, count = known
        count[0] += 1
        if any(c >= n or c + b <= 0 for c, n, b in zip(coords, tensor.dims, tensor.box, strict=True)):
            count[1:] = count[1] + 1, count[2] or coords
        if (id(tensor), dst) in self.seen:
            return
        place = self.layout and self.layout.part_at(dst, thread.block.shared.dynamic_start)
        if not place or not hasattr(place[1], "box_bytes"):  # a barrier says so itself
            return
        self.seen.add((id(tensor), dst))
        offset, part, array = place
        if (more := offset + room - part.bytes) > 0:
            what = f"loads a box of {room} bytes by {name} to {part.name_of(array, offset)}, of which {more} "
            fault = thread.fault(faults.OutOfRange, f"{what}lie behind the end of {array}", array)
            fault.cure = f"Make the boxes of {array} as large as that of the map: {room} bytes, and not "
            fault.cure += f"{part.box_bytes}; or give the map the array's box: nd.TensorMap.of(data, array)."
            raise fault
        if (kind := getattr(part, "swizzle", None)) and kind != tensor.swizzle:
            self.swizzles.setdefault((name, tensor.swizzle, array, kind), line)

    def remarks(self):
        """Sentences on what breaks no rule, and may be why a result is wrong."""
        said = [
            f"{count[1]} of {count[0]} loads by {name} at {line} lie outside its tensor altogether, and bring "
            f"zeros alone: the first at {count[2]}, where dims are {dims} (innermost first)"
            for (name, dims, line), count in self.counts.items() if count[1]
        ]  # fmt: skip
        return said + [
            f"{name} has swizzle={own!r}, and {array}, which it fills at {line}, swizzle={kind!r}: "
            "nd.TensorMap.of(data, array) takes the array's"
            for (name, own, array, kind), line in self.swizzles.items()
        ]
