"""Tensor cores of the CPU engine: what a warp does together in ``device/matrix.py``.

Methods of ``Thread``. Each lane of the warp calls one and waits for the others; when the last one has come, it
acts for all. A lane reads or writes the elements that its own registers hold, so races are judged lane by lane.
"""

import numpy as np

from ... import faults
from ..memory.access_faults import bad_read
from ..memory.access_records import UNWRITTEN
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
_SUMS = (_G + 8 * (_REGISTER >> 1))[..., 0], (2 * _T + (_REGISTER & 1))[..., 0]


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
                _write_half(lane, address, int(words[matrix]) >> 16 * half, words[matrix])
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
    if UNWRITTEN in shared.written[address - shared.base :][:size]:
        raise bad_read(shared, lane, UNWRITTEN, address, size)
    return lane.load("shared", address, size, 1)


def _write_half(lane, address, bits, word):
    shared = lane.block.shared
    if lane.shuffled:
        lane.check_defined(word, shared.name_of(address))
    shared.on_write(lane, address, 2, lane.write_record())
    offset = address - shared.base
    shared.bytes[offset : offset + 2] = (bits & 0xFFFF).to_bytes(2, "little")
    lane.block.progress += 1
    lane.time += COST.shared_access


def _exchange(thread, what, row, count, verb, act, words=()):
    """What ``act(lane, rows, its words)`` returns for this lane; all lanes act when the last has come."""
    lanes = thread.block.threads[32 * thread.warp :]
    if thread.lane < 8 * count:
        shared, row = thread._locate("shared", row, 16, verb)
        if verb == "reads" and UNWRITTEN in shared.written[row - shared.base :][:16]:
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
    """This lane's part of A B + C: four float32."""
    multiply = {"f16": _product_16, "bf16": _product_bf16, "tf32": _product_tf32}[kind]
    part = converged(thread, f"mma.{kind}", (a, b, c), multiply)[thread.lane]
    thread.time += COST.mma
    return part


def numbers_f16(words):
    """The fp16 numbers in an array of words or halves of them."""
    return words.view(np.float16)


def numbers_bf16(words):
    """The bf16 numbers, as float32."""
    return (words.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _product_16(given):
    return _product(given, numbers_f16, _A16, _B16, 16)


def _product_bf16(given):
    return _product(given, numbers_bf16, _A16, _B16, 16)


def _product_tf32(given):
    return _product(given, lambda words: (words & np.uint32(0xFFFFE000)).view(np.float32), _A32, _B32, 8)


def _product(given, numbers, a_places, b_places, depth):
    """A tuple of four float32 for each lane. Products are exact in float32, and summed there with k going up,
    C last."""
    operands = [given[lane] for lane in range(32)]
    a, b, c = np.zeros((16, depth), np.float32), np.zeros((depth, 8), np.float32), np.zeros((16, 8), np.float32)
    with np.errstate(all="ignore"):
        a[a_places] = _fragments([part[0] for part in operands], numbers, a_places)
        b[b_places] = _fragments([part[1] for part in operands], numbers, b_places)
        c[_SUMS] = np.array([part[2] for part in operands], np.float32)
        total = np.add.reduce(a[:, :, None] * b, axis=1) + c
    return [tuple(lane) for lane in total[_SUMS]]


def _fragments(words, numbers, places):
    """The elements in all lanes' words, in the order of ``places``."""
    words = np.array([[int(word) & WORD for word in lane] for lane in words], np.uint32)
    return numbers(words).reshape(np.broadcast_shapes(*(place.shape for place in places)))
