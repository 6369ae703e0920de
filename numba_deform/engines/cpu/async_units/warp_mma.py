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
from ..memory.access_faults import bad_read, outside
from ..memory.access_records import OUTSIDE, UNWRITTEN
from ..memory.scalars import WORD
from .cycle_costs import COST

RESULT = "result"  # what the lanes of one call share, beside what each has brought

# Where in a matrix the elements of each lane's registers lie: arrays (lane, register, half of a word).
_LANE, _REGISTER, _HALF = np.ogrid[:32, :4, :2]
_G, _T = _LANE // 4, _LANE % 4
_PAIR = 2 * _T + _HALF
_A16 = _G + 8 * (_REGISTER & 1), _PAIR + 8 * (_REGISTER >> 1)  # (row, column)
_B16 = (_PAIR + 8 * _REGISTER)[:, :2], _G
_A32 = (_G + 8 * (_REGISTER & 1))[..., 0], (_T + 4 * (_REGISTER >> 1))[..., 0]
_B32 = (_T + 4 * _REGISTER)[:, :2, 0], _G[..., 0]
_FOUR = 4 * _T + np.arange(4)  # elements of 8 bits
_A8 = _G + 8 * (_REGISTER & 1), _FOUR + 16 * (_REGISTER >> 1)
_B8 = (_FOUR + 16 * _REGISTER)[:, :2], _G
SUMS = (_G + 8 * (_REGISTER >> 1))[..., 0], (2 * _T + (_REGISTER & 1))[..., 0]


def load_matrices(thread, row, count, transposed=False):
    """The words of ``count`` 8x8 matrices that this lane holds, a tuple."""

    def read(lane, rows):
        if transposed:
            halves = [_read(lane, address, 2) for _, _, address in _elements(lane, rows)]
            return tuple(low | high << 16 for low, high in zip(halves[::2], halves[1::2], strict=True))
        return tuple(_read(lane, address, 4) for address in _words(lane, rows))

    return _exchange(thread, f"ldmatrix.x{count}", row, count, "reads", lambda lane, rows, _: read(lane, rows))


def store_matrices(thread, row, words, transposed=False):
    """Writes what ``load_matrices`` reads."""

    def write(lane, rows, words):
        if transposed:
            for matrix, half, address in _elements(lane, rows):
                _write_half(lane, address, words[matrix], half)
        else:
            for word, address in zip(words, _words(lane, rows), strict=True):
                lane.store("shared", address, (word,))

    _exchange(thread, f"stmatrix.x{len(words)}", row, len(words), "writes", write, words)


def _words(lane, rows):
    """The addresses of the words that a lane holds, of matrices that are not transposed."""
    return [rows[i] + 4 * (lane.lane % 4) for i in range(lane.lane // 4, len(rows), 8)]


def _elements(lane, rows):
    """The (matrix, half of the lane's word, address) of the elements that a lane holds, of transposed ones."""
    column, first = 2 * (lane.lane // 4), 2 * (lane.lane % 4)
    return [(m, half, rows[8 * m + first + half] + column) for m in range(len(rows) // 8) for half in (0, 1)]


def _read(lane, address, size):
    shared = lane.block.shared
    offset = address - shared.base
    if UNWRITTEN in shared.written[offset : offset + size]:
        raise bad_read(shared, lane, UNWRITTEN, address, size)
    return lane.load("shared", address, size, 1)


def _write_half(lane, address, word, half):
    shared = lane.block.shared
    lane.check_defined(word, shared.name_of(address))
    shared.on_write(lane, address, 2, lane.write_record())
    offset = address - shared.base
    shared.bytes[offset : offset + 2] = (int(word) >> 16 * half & 0xFFFF).to_bytes(2, "little")
    lane.block.progress += 1
    lane.time += COST.shared_access


def _exchange(thread, what, row, count, verb, act, words=()):
    """What ``act(lane, rows, its words)`` returns for this lane; all lanes act when the last has come."""
    lanes = thread.block.threads[32 * thread.warp :]
    if thread.lane < 8 * count:
        shared, row = thread._locate("shared", row, 16, verb)  # of the lane that gives it, whoever reads it
        held = shared.written[row - shared.base : row - shared.base + 16]
        if len(held) < 16 or OUTSIDE in held:
            name = shared.name_of(row)
            raise outside(shared, thread, f"{verb} 16 bytes at {name}", row, 16, name)
        if verb == "reads" and UNWRITTEN in held:
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
    fault = thread.fault(faults.WarpDivergence, what)
    fault.rule = "ldmatrix, stmatrix, mma and wgmma are .sync.aligned: all 32 lanes of the warp execute the "
    fault.rule += "same one (PTX 9.7.14, 9.7.15)."
    return fault


def multiply_matrices(thread, kind, a, b, c):
    """This lane's part of A B + C: four float32, or four integers where A and B are of integers."""
    multiply = functools.partial(product, FORMS[kind])
    part = converged(thread, f"mma.{kind}", (a, b, c), multiply)[thread.lane]
    thread.time += COST.mma
    return part


def numbers_f16(words):
    """The fp16 numbers in an array of words or halves of them."""
    return words.view(np.float16)


def numbers_bf16(words):
    """The bf16 numbers, as float32."""
    return (words.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _numbers_tf32(words):
    return (words & np.uint32(0xFFFFE000)).view(np.float32)


class Form(NamedTuple):
    """What one type of ``mma`` multiplies: how words become the numbers of A and of B, where these lie, and
    the type of the sums, which are exact in int64."""

    a: object
    b: object
    a_places: tuple
    b_places: tuple
    sums: type = np.float32


FORMS = {
    "f16": Form(numbers_f16, numbers_f16, _A16, _B16), "bf16": Form(numbers_bf16, numbers_bf16, _A16, _B16),
    "tf32": Form(_numbers_tf32, _numbers_tf32, _A32, _B32),
}  # fmt: skip
for _bytes, _sums in (
    ({"s8": np.int8, "u8": np.uint8}, np.int64),
    ({"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}, np.float32),
):
    for _a, _b in itertools.product(_bytes, repeat=2):
        _views = [operator.methodcaller("view", _bytes[each]) for each in (_a, _b)]
        FORMS[_a if _a == _b else f"{_a}_{_b}"] = Form(*_views, _A8, _B8, _sums)


def product(form, given):
    """The four sums of each lane. Products of floats are exact in float32, and summed there with k going up, C
    last; sums of integers wrap."""
    operands = [given[lane] for lane in range(32)]
    depth = form.a_places[1].max() + 1
    a, b, c = (np.zeros(shape, form.sums) for shape in ((16, depth), (depth, 8), (16, 8)))
    with np.errstate(all="ignore"):
        a[form.a_places] = _fragments([part[0] for part in operands], form.a, form.a_places)
        b[form.b_places] = _fragments([part[1] for part in operands], form.b, form.b_places)
        c[SUMS] = np.array([part[2] for part in operands], form.sums)
        total = np.add.reduce(a[:, :, None] * b, axis=1) + c
    if form.sums is np.int64:
        return total[SUMS].astype(np.int32).tolist()
    return [tuple(lane) for lane in total[SUMS]]


def _fragments(words, numbers, places):
    """The elements in all lanes' words, in the order of ``places``."""
    words = np.array([[int(word) & WORD for word in lane] for lane in words], np.uint32)
    return numbers(words).reshape(np.broadcast_shapes(*(place.shape for place in places)))
