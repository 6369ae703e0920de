"""What PTX has and this package has no intrinsic for, as functions that translated kernels call: bytes, generic
addresses, atomics by name, arithmetic. Memory, its order and its races are the thread's (``machine``).

A generic address is that of global memory, or one in the window of shared or of local memory. Local memory is a
thread's own ``bytearray``, which the kernel hands over."""

import functools
import math
import struct

import numpy as np
from greenlet import getcurrent as cpu  # kernels run in the engine alone

from .....device.float32 import exp2, log2
from .... import faults
from ...async_units.wgmma import Factors
from ...machine.thread import Thread
from ...memory.scalars import Undefined, UndefinedUse, passing_on
from ..math_functions import brev, clz, popc
from ..rounding import fma, rounded
from ..threads import source_of

WORD = 0xFFFFFFFF
_word, _of_word = struct.Struct("<I").pack, struct.Struct("<I").unpack
_float, _of_float, _ONE = struct.Struct("<f").pack, struct.Struct("<f").unpack, np.float32(1)
SHARED, LOCAL = 1 << 56, 1 << 57  # where the windows begin
FUNCTIONS = {"brev": brev, "clz": clz, "popc": popc, "fma": passing_on(fma), "fma32": passing_on(fma),
             "min": min, "lower": passing_on(min), "higher": passing_on(max), "Factors": Factors,
             "unset": functools.partial(Undefined, kind="register")}  # fmt: skip
INTEGERS = {}  # those that are arithmetic of integers, by name


def kernel_function(function):
    """Decorator: translated kernels call it by its name."""
    FUNCTIONS[function.__name__] = function
    return function


def number(function):
    """Decorator: the same for a function of numbers; an undefined one makes an undefined result."""
    FUNCTIONS[function.__name__] = passing_on(function)
    return function


def integers(function):
    """Decorator: the same for one of integers, of which machine code is made as well (``native.inlined``)."""
    INTEGERS[function.__name__] = function
    return number(function)


@kernel_function
def dynamic_bytes():
    return cpu().block.shared.dynamic_bytes


@kernel_function
def block_threads():
    return cpu().block.size


@kernel_function
def maps_are_there(address, size):
    """Tensor maps in a parameter, alone or in a structure, need no fence: nobody has written them."""
    thread = cpu()
    for place in range(address, address + size - 127, 64):
        if size == 128 or thread.block.copy_engine.maps.is_map(thread, place):
            thread.fence_map(place)


integers(source_of)


# --- what threads do together ---------------------------------------------------------------------
@kernel_function
def shuffle(mode, value, b, c, mask):
    """(the value of ``shfl.sync``, its predicate)"""
    source, inside = source_of(mode, cpu().lane, b, c)
    return cpu().shuffle(mask, value, source, f"shfl.{mode}"), inside


@kernel_function
def elected(mask):
    """(the lane that ``elect.sync`` elects, whether that is this one)"""
    thread = cpu()
    lane = min(thread.collective("elect", mask, None))
    return lane, lane == thread.lane


for _name, _method in {
    "warpgroup_fence": "fence_registers", "warpgroup_commit": "commit_products",
    "warpgroup_wait": "wait_products", "warpgroup_product": "multiply_registers",
    "warp_product": "multiply_fragments", "replace_map": "replace_map", "publish_map": "publish_map",
    "cache_policy": "create_policy",
    **{name: name for name in vars(Thread) if name.startswith("tcgen05_")},
}.items():  # fmt: skip
    FUNCTIONS[_name] = lambda *args, method=_method: getattr(cpu(), method)(*args)


@kernel_function
def trap(why):
    raise cpu().fault(faults.KernelError, why)


# --- arithmetic -----------------------------------------------------------------------------------
@kernel_function
def f32_of(bits):
    try:
        x = _of_float(_word(bits))[0]
    except UndefinedUse:
        return bits
    return _ONE * x if x == x else np.uint32(bits).view(np.float32)  # a float64 might change a NaN's bits


@kernel_function
def u32_of(x):
    try:
        return _of_word(_float(x))[0] if x == x else int(x.view(np.uint32))  # all bits of a NaN
    except UndefinedUse:
        return x


@number
def f64_of(bits):
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


@number
def u64_of(x):
    return struct.unpack("<Q", struct.pack("<d", x))[0]


@integers
def quotient(x, y):
    """Toward zero; all bits set where ``y`` is 0, which PTX leaves open."""
    q = abs(x) // max(abs(y), 1)
    return (-q if (x < 0) != (y < 0) else q) if y else -1


@integers
def remainder(x, y):
    rest = abs(x) % max(abs(y), 1)
    return (-rest if x < 0 else rest) if y else x


@number
def least(x, y):
    """Of a number and a NaN the number; -0 is less than 0."""
    if x != x or y != y:
        return y if x != x else x
    return min(x, y) if x != y else x if math.copysign(1, x) < 0 else y


@number
def greatest(x, y):
    if x != x or y != y:
        return y if x != x else x
    return max(x, y) if x != y else y if math.copysign(1, x) < 0 else x


@number
def divided(x, y):
    """A quotient of floats of one type, rounded once."""
    return type(x)(np.float64(x) / np.float64(y))


@number
def flushed(x):
    """A float32 without subnormals."""
    return x if abs(x) >= np.finfo(np.float32).tiny or x != x else np.copysign(np.float32(0), x)


@number
def saturated(x):
    """A float32 from +0 to 1; NaN and -0 are +0, as those of FMUL.SAT are."""
    return np.float32(min(max(0, x), 1)) if x == x else np.float32(0)


for _name, _function in {
    "ex2": exp2, "lg2": log2, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
    "rcp": lambda x: np.float64(1) / x, "rsqrt": lambda x: 1 / np.sqrt(x), "rni": np.rint, "rzi": np.trunc,
    "rmi": np.floor, "rpi": np.ceil,
}.items():  # fmt: skip
    FUNCTIONS[_name] = passing_on(lambda x, f=_function: type(x)(f(np.float64(x))))


@number
def whole(x, mode, low, high):
    """A float as an integer from ``low`` to ``high``, to which larger ones are clamped; NaN is 0."""
    if x != x:
        return 0
    if math.isinf(x):
        return low if x < 0 else high
    rounded = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}[mode](float(x))
    return min(max(rounded, low), high)


@number
def nearest(x, to):
    """An integer as a float."""
    return to(rounded(x, "f32" if to is np.float32 else "f64"))


@kernel_function
def selected(a, b, choice):
    try:
        return a if choice else b
    except UndefinedUse:
        return choice


@integers
def clamped(x, low, high):
    return min(max(x, low), high)


@integers
def prmt(a, b, select):
    content, out = a | b << 32, 0
    for i in range(4):
        n = select >> 4 * i & 15
        byte = content >> 8 * (n & 7) & 255
        out |= (byte if n < 8 else 255 * (byte >> 7)) << 8 * i
    return out


@integers
def lop3(a, b, c, table):
    out = 0
    for i in range(8):
        if table >> i & 1:
            out |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return out & WORD


@integers
def place(n, bits):
    """The place or length of a field: its lowest byte, as PTX ISA says; in 64 bits all of it, since ptxas makes
    shifts of these instructions. At most ``bits``, as more makes no difference."""
    return min(n & 255 if bits == 32 else n, bits)


@integers
def bfe(x, at, count, bits, signed):
    """``x``: as bits. Above the last bit stands the field's sign."""
    at, count, ones = place(at, bits), place(count, bits), (1 << bits) - 1
    inside = min(count, bits - at)
    field = x >> at & (1 << inside) - 1
    sign = x >> max(min(at + count, bits) - 1, 0) & 1 if signed and count else 0
    return field | (ones >> inside << inside if sign else 0)


@integers
def bfi(a, b, at, count, bits):
    at, count = place(at, bits), place(count, bits)
    mask = (1 << count) - 1 << at & (1 << bits) - 1
    return (a << at & mask) | (b & ~mask)


@integers
def bfind(x, bits, shift):
    """The highest bit that differs from the sign, or the shift that brings it to the top; all ones if none."""
    left = clz(~x if x < 0 else x, bits)
    return -1 if left == bits else left if shift else bits - 1 - left
