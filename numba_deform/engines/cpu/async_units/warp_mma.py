"""Tensor cores of the CPU engine: what a warp does together in ``device/matrix.py``.

Methods of ``Thread``. Each lane of the warp calls one and waits for the others; when the last one has come, it
acts for all. A lane reads or writes the elements that its own registers hold, so races are judged lane by lane.
"""

import functools
import itertools
import operator
from typing import NamedTuple

import ml_dtypes
import numpy as np

from ... import faults
from ..memory.access_records import OUTSIDE, UNWRITTEN
from ..memory.cycle_costs import COST
from ..memory.scalars import WORD, Undefined

RESULT = "result"  # what the lanes of one call share, beside what each has brought

_LANE = np.arange(32)
_G, _T = _LANE // 4, _LANE % 4


def places_of(bits, rows, depth):
    """Where in A (rows, depth), in B (depth, 8) and in the sums (rows, 8) the elements of each lane's registers
    lie: pairs (row, column) of arrays (lane, register, element of a word), the sums' of (lane, register).
    ``bits``: of an element of A and B (PTX ISA 9.7.14)."""
    each = max(1, 32 // bits)
    halves, steps = rows // 8, depth // (4 * each)

    def along(register, part):
        return each * _T[:, None, None] + 4 * each * register + part

    register, part = np.ogrid[: halves * steps, :each]
    a = _G[:, None, None] + 8 * (register % halves) + 0 * part, along(register // halves, part)
    register, part = np.ogrid[:steps, :each]
    b = along(register, part), _G[:, None, None] + 0 * (register + part)
    register = np.arange(rows // 4)
    return a, b, (_G[:, None] + 8 * (register // 2), 2 * _T[:, None] + register % 2)


def load_matrices(thread, row, count, transposed=False):
    """The words of ``count`` 8x8 matrices that this lane holds, a tuple."""

    def read(lane, rows):
        if transposed:
            halves = [read_element(lane, address, 2) for _, _, address in _elements(lane, rows)]
            return tuple(low | high << 16 for low, high in zip(halves[::2], halves[1::2], strict=True))
        return tuple(read_element(lane, address, 4) for address in _words(lane, rows))

    return _exchange(thread, f"ldmatrix.x{count}", row, count, "reads", lambda lane, rows, _: read(lane, rows))


def store_matrices(thread, row, words, transposed=False):
    """Writes what ``load_matrices`` reads."""

    def write(lane, rows, words):
        if transposed:
            for matrix, half, address in _elements(lane, rows):
                write_element(lane, address, 2, words[matrix], half)
        else:
            for word, address in zip(words, _words(lane, rows), strict=True):
                write_element(lane, address, 4, word)

    _exchange(thread, f"stmatrix.x{len(words)}", row, len(words), "writes", write, words)


def _words(lane, rows):
    """The addresses of the words that a lane holds, of matrices that are not transposed."""
    return [rows[i] + 4 * (lane.lane % 4) for i in range(lane.lane // 4, len(rows), 8)]


def _elements(lane, rows):
    """The (matrix, half of the lane's word, address) of the elements that a lane holds, of transposed ones."""
    column, first = 2 * (lane.lane // 4), 2 * (lane.lane % 4)
    return [(m, half, rows[8 * m + first + half] + column) for m in range(len(rows) // 8) for half in (0, 1)]


def read_element(lane, address, size):
    """The bytes at a shared address, as a number."""
    shared = lane.block.shared
    offset = address - shared.base
    if shared.has(UNWRITTEN, offset, offset + size):
        raise lane.explain.bad_access(shared, lane, UNWRITTEN, address, size)
    return lane.load("shared", address, size, 1)


def write_element(lane, address, size, word, half=0):
    """Writes a word, or 2 bytes of it, to a shared address."""
    if size == 4:
        return lane.store("shared", address, (word,))
    shared = lane.block.shared
    shared.on_write(lane, address, 2, lane.write_record())
    offset = address - shared.base
    if type(word) is Undefined:
        shared.store_undefined(address, 2, word)
    else:
        shared.bytes[offset : offset + 2] = (int(word) >> 16 * half & 0xFFFF).to_bytes(2, "little")
    lane.block.progress += 1
    lane.time += COST.shared_access


def _exchange(thread, what, row, count, verb, act, words=()):
    """What ``act(lane, rows, its words)`` returns for this lane; all lanes act when the last has come."""
    lanes = thread.block.threads[32 * thread.warp :]
    if thread.lane < 8 * count:
        shared, row = thread._locate("shared", row, 16, verb)  # of the lane that gives it, whoever reads it
        span = row - shared.base, row - shared.base + 16
        if span[1] > len(shared.written) or shared.has(OUTSIDE, *span):
            name = shared.name_of(row)
            raise thread.explain.outside(shared, thread, f"{verb} 16 bytes at {name}", row, 16, name)
        if verb == "reads" and shared.has(UNWRITTEN, *span):
            thread.spin()  # let the late writer come, so that the fault can name it

    def together(brought):
        rows = [brought[lane][0] for lane in range(8 * count)]
        return [act(lanes[lane], rows, brought[lane][1]) for lane in range(32)]

    return converged(thread, what, (row, words), together)[thread.lane]


def converged(thread, what, brought, result):
    """``result({lane: what it has brought})``, computed once for the warp, when all lanes have come."""
    site = thread.here()
    lanes = thread.collective(what, WORD, (site, brought))
    if RESULT not in lanes:
        given = {lane: operand for lane, (_, operand) in lanes.items()}
        others = [lane for lane, (place, _) in lanes.items() if place != site]
        if len(given) < 32 or others:
            raise _apart(thread, what, given, others)
        lanes[RESULT] = result(given)
    return lanes[RESULT]


def _apart(thread, what, given, others):
    """The fault of lanes that do not execute one and the same instruction."""
    if others:
        at = thread.at(thread.block.threads[32 * thread.warp + others[0]].site())
        what = f"{what} here, while lane {others[0]} calls another one, at {at}"
    else:
        gone = next(lane for lane in range(32) if lane not in given)
        what = f"{what} by {len(given)} lanes: lane {gone} has exited or does not exist"
    rule = "ldmatrix, stmatrix, mma, wmma, wgmma and most of tcgen05 are .sync.aligned: all 32 lanes of the "
    rule += "warp execute the same one (PTX 9.7.14 to 9.7.16)."
    return thread.fault(faults.WarpDivergence, what, rule=rule)


def multiply_matrices(thread, kind, a, b, c):
    """This lane's part of A B + C: four float32, or four integers where A and B are of integers."""
    return _multiply(thread, f"mma.{kind}", FORMS[kind], a, b, c)


def multiply_fragments(thread, rows, depth, types, a, b, c, limit):
    """The same of any shape and types, PTX types of the sums, of A, of B and of C: what the lane's registers
    hold, floats or words. ``limit``: sums of integers stay at the largest and smallest."""
    what = f"mma.m{rows}n8k{depth}.{'.'.join(types)}"
    total = _multiply(thread, what, form_of(rows, depth, types, limit), a, b, _sums_of(types[3], c))
    return _registers_of(types[0], total)


def _multiply(thread, what, form, a, b, c):
    multiply = functools.partial(product, form)
    part = converged(thread, what, (a, b, c), multiply)[thread.lane]
    thread.time += COST.mma
    return part


def _sums_of(kind, registers):
    """The numbers that registers of C hold."""
    if kind == "f16":
        words = np.array([int(word) & WORD for word in registers], np.uint32)
        return tuple(words.view(np.float16).astype(np.float32))
    if kind == "s32":
        return tuple(np.array([int(word) & WORD for word in registers], np.uint32).view(np.int32).tolist())
    return registers


def _registers_of(kind, numbers):
    if kind == "f16":
        with np.errstate(over="ignore"):
            return tuple(np.array(numbers, np.float32).astype(np.float16).view(np.uint32).tolist())
    return tuple(int(x) & WORD for x in numbers) if kind == "s32" else tuple(numbers)


def numbers_f16(words):
    """The fp16 numbers in an array of words or halves of them."""
    return words.view(np.float16)


def numbers_bf16(words):
    """The bf16 numbers, as float32."""
    return (words.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def numbers_tf32(words):
    """The floats of which the upper 10 bits of the fraction count."""
    return (words.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def _numbers_u4(words):
    return (words[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.uint8)


class Form(NamedTuple):
    """What one type of ``mma`` multiplies: how words become the numbers of A and of B, where these and the sums
    lie, the type of the sums, which are exact in int64, and whether those of integers have a limit."""

    a: object
    b: object
    places: tuple
    sums: type = np.float32
    limit: bool = False


# PTX type -> (bits, how words become its numbers, the type of the sums, depths of a product)
TYPES = {
    "f16": (16, numbers_f16, np.float32, (8, 16)), "bf16": (16, numbers_bf16, np.float32, (8, 16)),
    "tf32": (32, numbers_tf32, np.float32, (4, 8)),
    "s4": (4, lambda words: (_numbers_u4(words) ^ 8).astype(np.int8) - np.int8(8), np.int64, (32, 64)),
    "u4": (4, _numbers_u4, np.int64, (32, 64)), "f64": (64, np.asarray, np.float64, (4, 8, 16)),
}  # fmt: skip
for _name, _type, _sums, _depths in (
    ("s8", np.int8, np.int64, (16, 32)), ("u8", np.uint8, np.int64, (16, 32)),
    ("e4m3", ml_dtypes.float8_e4m3fn, np.float32, (16, 32)),
    ("e5m2", ml_dtypes.float8_e5m2, np.float32, (16, 32)),
):  # fmt: skip
    TYPES[_name] = 8, operator.methodcaller("view", _type), _sums, _depths
SUMS = {"f32": np.float32, "f16": np.float32, "s32": np.int64, "f64": np.float64}
ALIKE = ({"s8", "u8"}, {"s4", "u4"}, {"e4m3", "e5m2"})  # types that A and B may have


def has_form(rows, depth, types):
    """Whether there is a product of these types, of the sums, of A, of B and of C, on Hopper: (rows, depth) by
    (depth, 8)."""
    d, a, b, c = types
    if a not in TYPES or d != c or SUMS.get(d) is not TYPES[a][2] or a != b and {a, b} not in ALIKE:
        return False
    of_eight = rows == 8 and (depth == {"s8": 16, "u8": 16, "s4": 32, "u4": 32, "f64": 4}.get(a))
    halved = d == "f16" and a not in ("f16", "e4m3", "e5m2")
    return not halved and (of_eight or rows == 16 and depth in TYPES[a][3])


@functools.cache
def form_of(rows, depth, types, limit=False):
    _, a, b, _ = types
    return Form(TYPES[a][1], TYPES[b][1], places_of(TYPES[a][0], rows, depth), TYPES[a][2], limit)


FORMS = {  # those of the intrinsics
    "f16": form_of(16, 16, ("f32", "f16", "f16", "f32")),
    "bf16": form_of(16, 16, ("f32", "bf16", "bf16", "f32")),
    "tf32": form_of(16, 8, ("f32", "tf32", "tf32", "f32")),
}  # fmt: skip
for _pair in (("s8", "u8"), ("e4m3", "e5m2")):
    for _a, _b in itertools.product(_pair, repeat=2):
        FORMS[_a if _a == _b else f"{_a}_{_b}"] = form_of(16, 32, ("", _a, _b, ""))


def product(form, given):
    """The sums of each lane. Products of floats are exact in float32, and summed there with k going up, C last;
    sums of integers wrap."""
    words = [[given[lane][part] for lane in range(32)] for part in range(3)]
    for part, numbers in enumerate((form.a, form.b)):
        if numbers is not np.asarray:  # a float64 is no word
            words[part] = [[int(word) & WORD for word in lane] for lane in words[part]]
            words[part] = np.array(words[part], np.uint32)
    total = _multiplied(form, *words[:2], np.array(words[2], form.sums))
    return total.tolist() if form.sums is np.int64 else [tuple(lane) for lane in total]


def multiply_words(kind, words):
    """The same of an array of words (lane, those of A, of B and of C), as one of words. ``kind``: of ``FORMS``,
    or what ``form_of`` takes; no doubles."""
    form = form_of(*kind) if isinstance(kind, tuple) else FORMS[kind]
    sums = kind[2][0] if isinstance(kind, tuple) else "f32" if form.sums is np.float32 else "s32"
    ends = np.cumsum([place[0].shape[1] for place in form.places[:2]])
    a, b, c = (np.ascontiguousarray(part) for part in np.split(words, ends, axis=1))
    if sums == "f16":
        c = c.view(np.float16).astype(np.float32)
    else:
        c = c.view(np.float32 if sums == "f32" else np.int32)
    total = _multiplied(form, a, b, c)
    if sums == "f16":
        with np.errstate(over="ignore"):
            total = total.astype(np.float16)
    return np.ascontiguousarray(total).view(np.uint32)


def _multiplied(form, a_words, b_words, sums):
    """The sums of each lane, from arrays (lane, word) and (lane, number)."""
    a_places, b_places, c_places = form.places
    rows, depth = c_places[0].max() + 1, a_places[1].max() + 1
    a, b, c = (np.zeros(shape, form.sums) for shape in ((rows, depth), (depth, 8), (rows, 8)))
    with np.errstate(all="ignore"):
        a[a_places] = _fragments(a_words, form.a, a_places)
        b[b_places] = _fragments(b_words, form.b, b_places)
        c[c_places] = sums
        total = np.add.reduce(a[:, :, None] * b, axis=1) + c
    if form.sums is np.int64:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1) if form.limit else total
        return total[c_places].astype(np.int32)
    return total[c_places]


def _fragments(words, numbers, places):
    """The elements in all lanes' words, in the order of ``places``."""
    return np.asarray(numbers(words)).reshape(np.broadcast_shapes(*(place.shape for place in places)))
