"""wmma: fragments of matrices, loaded, multiplied and stored by a warp. PTX leaves open which lane holds which
element. Here a fragment is that of one or two products of mma.sync side by side, with which it shares the
arithmetic: ptxas makes the same of it for sm_90a, with the same registers, and some programs know."""

import functools
import re

import numpy as np

from ....async_units import warp_mma
from ..parser import SIZES, BadPtx
from ..values import FLOATS, mask_of
from .accesses import words_of

# Shape -> the types of A and B that have it. Those of 4 bits and of one are refused.
SHAPES = {
    **dict.fromkeys(("m16n16k16", "m32n8k16", "m8n32k16"), ("f16", "bf16", "s8", "u8")),
    "m16n16k8": ("tf32",), "m8n8k4": ("f64",),
}  # fmt: skip
SUMS = {"f16": {"f32", "f16"}, "bf16": {"f32"}, "tf32": {"f32"}, "s8": {"s32"}, "u8": {"s32"}, "f64": {"f64"}}
MOVED = re.compile(r"wmma\.(load\.[abc]|store\.d)\.sync\.aligned\.(row|col)\.(m\d+n\d+k\d+)"
                   r"(?:\.(global|shared)(?:::cta)?)?\.(\w+)$")  # fmt: skip
MULTIPLIED = re.compile(r"wmma\.mma\.sync\.aligned\.(?:row|col)\.(?:row|col)\.(m\d+n\d+k\d+)"
                        r"\.([\w.]+?)(\.satfinite)?$")  # fmt: skip


class Fragment:
    """Of a product's matrix ``role``, "a", "b" or "c": where its elements lie. ``words``: (row, column) of the
    elements of each of lane 0's registers, of the first product of mma.sync, then of the next; ``by_group`` and
    ``by_lane`` are added in each group of 4 lanes, and in each lane of it. These are rows and columns of
    mma.sync's matrix, ``transposed`` or not; the elements of a register follow in a row of it, or a column.
    ``count``: registers, which hold ``words`` twice or 4 times, for f16."""

    def __init__(self, shape, role, kind):
        m, n, k = map(int, re.findall(r"\d+", shape))
        self.shape, self.size = {"a": (m, k), "b": (k, n), "c": (m, n)}[role], SIZES[kind]
        self.transposed = m < n
        rows, columns = (n, m) if self.transposed else (m, n)
        self.height, part = min(rows, 16), {"a": self.transposed, "b": not self.transposed, "c": 2}[role]
        places = np.broadcast_arrays(*warp_mma.places_of(8 * self.size, self.height, k)[part])
        lanes = np.stack([p.reshape(32, -1, max(1, 4 // self.size)) for p in places], -1)
        self.by_group, self.by_lane = ((lanes[lane] - lanes[0])[0, 0].tolist() for lane in (4, 1))
        down = range(0, rows, self.height) if part != 1 else [0]
        right = range(0, columns, 8) if part != 0 else [0]
        self.words = [word for r in down for c in right for word in (lanes[0] + [r, c]).tolist()]
        self.pieces, self.each, self.in_rows = len(down) * len(right), lanes.shape[1], part != 1
        self.count = 8 if kind == "f16" and role != "c" else len(self.words)

    def piece(self, n, registers):
        """Those of a fragment's registers that the n-th product of mma.sync takes."""
        first = self.each * (n if self.pieces > 1 else 0)
        return registers[first : first + self.each]


fragment = functools.cache(Fragment)


def do_wmma(values, i):
    return (_multiply if i.parts[1] == "mma" else _move)(values, i)


def _move(values, i):
    """A load or a store: what all lanes do together is judged first, then each accesses its own elements."""
    what, layout, shape, space, kind = MOVED.match(i.opcode).groups("")
    role, is_load, kinds = what[-1].replace("d", "c"), what[0] == "l", SHAPES.get(shape, ())
    if kind not in (kinds if role != "c" else {s for k in kinds for s in SUMS[k]}):
        raise BadPtx(i.opcode)
    (first, second, *stride), held = i.operands, fragment(shape, role, kind)
    place, names = (second, words_of(first)) if is_load else (first, words_of(second))
    if len(names) != held.count:
        raise BadPtx(f"{i.opcode} with {len(names)} registers")
    start, step, word = values.temporary(), values.temporary(), f"b{8 * max(4, held.size)}"
    pitch = values.value(stride[0], "u32") if stride else held.shape[layout == "row"]
    mask = f"{mask_of('u32' if space == 'shared' else 'u64'):#x}"

    def offset(element):
        row, column = element if (layout == "row") != held.transposed else element[::-1]
        return f"{row} * {step} + {column * held.size}"

    def first_of(lane):
        in_group = f"({lane} & 3) * ({offset(held.by_lane)})"
        return f"{start} + ({lane} >> 2) * ({offset(held.by_group)}) + {in_group} & {mask}"

    made = [
        f"{start} = {values.address(place, space)}", f"{step} = {pitch} * {held.size}",
        f"wmma_tile('wmma.{what}', {space!r}, {start}, {step}, {held.count * SIZES[word]})",
    ]  # fmt: skip
    if role != "c":  # Lanes may hold other elements: who stores one as D's needs a barrier before it is A's.
        other = first_of("(cuda.laneid ^ 1)")
        made.append(f"{values.temporary()} = load({space!r}, {other}, {held.size}, 1, local)")
    made.append(f"{start} = {first_of('cuda.laneid')}")
    if held.in_rows == ((layout == "row") != held.transposed):  # a register's elements follow in memory as well
        parts, size = [elements[:1] for elements in held.words], SIZES[word]
    else:
        parts, size = held.words, held.size
    bits = 8 * size
    for name, elements in zip(names, parts, strict=False):
        places = [f"{space!r}, ({start} + {offset(element)} & {mask}), {size}" for element in elements]
        if is_load:
            pieces = (f"load({at}, 1, local) << {bits * n}" for n, at in enumerate(places))
            made.append(values.set(name, word, " | ".join(pieces).replace(" << 0", ""), exact=True))
        else:
            whole, ones = values.value(name, word), (1 << bits) - 1
            pieces = [f" >> {bits * n} & {ones:#x}" for n in range(len(places))] if places[1:] else [""]
            made += [f"store({at}, local, {whole}{piece})" for at, piece in zip(places, pieces, strict=True)]
    more = zip(names[len(parts) :], names, strict=False) if is_load else ()
    return made + [values.set(name, word, values.value(of, word), exact=True) for name, of in more]


def _multiply(values, i):
    """Products of mma.sync, side by side or one above the other."""
    shape, words, limit = MULTIPLIED.match(i.opcode).groups()
    kinds = [kind for kind in words.split(".") if kind != "rn" or "f64" not in words]
    d, a, b, c = kinds if len(kinds) != 2 else (kinds[0], "f16", "f16", kinds[1])
    if a != b or a not in SHAPES.get(shape, ()) or {c, d} - SUMS[a] or limit and d != "s32":
        raise BadPtx(i.opcode)
    of_d, of_a, of_b, of_c = (fragment(shape, *pair) for pair in (("c", d), ("a", a), ("b", b), ("c", c)))
    targets, left, right, sums = map(words_of, i.operands)
    if [of_d.count, of_a.count, of_b.count, of_c.count] != [len(x) for x in (targets, left, right, sums)]:
        raise BadPtx(f"{i.opcode} of these registers")
    left, right = ([values.value(r, "f64" if a == "f64" else "b32") for r in names] for names in (left, right))
    sums = [values.value(r, c if c in FLOATS else "b32") for r in sums]
    kind = c if c == d else "f32"  # of the sums: halves are added as float32, and float32 becomes halves
    if kind != c:
        sums = [f"cvt_f32_f16_{half}({word})" for word in sums for half in ("lo", "hi")]
    held, made = fragment(shape, "c", kind), []
    results = [values.temporary() for _ in held.words]
    for n in range(held.pieces):
        factors = [of_a.piece(n, left), of_b.piece(n, right)]
        parts = [*(factors[::-1] if held.transposed else factors), held.piece(n, sums)]
        given = ", ".join(f"({', '.join(part)},)" for part in parts)
        form = f"{held.height}, {of_a.shape[1]}, {(kind, a, b, kind)}"
        made.append(f"{', '.join(held.piece(n, results))}, = warp_product({form}, {given}, {bool(limit)})")
    if kind != d:
        pairs = zip(results[::2], results[1::2], strict=True)
        results = [f"cvt_rn_f16x2_f32({low}, {high})" for low, high in pairs]
    taken = zip(targets, results, strict=True)
    return made + [values.set(target, d if d in FLOATS else "b32", result, True) for target, result in taken]
