"""``from_triton``: a kernel that Triton or Gluon has compiled, with its arguments as a launch of Triton's takes
them. Tried with Triton 3.9, whose ``CompiledKernel`` says what the PTX wants: the types of the arguments, and
in its metadata threads, shared memory, scratch memory and how the boxes of tensor descriptors are laid out."""

import math
import re
import types as python

import ml_dtypes
import numpy as np

from .....launches import Launch
from .....tensormap import SWIZZLES, TensorMap, TensorMapArray
from ....memory.scalars import bounds_of
from ..kernels import from_ptx

FLOATS = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16, "fp32": np.float32, "fp64": np.float64,
          "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2}  # fmt: skip
INTEGER = re.compile(r"([iu])(\d+)")
SCRATCH_ALIGNMENT = 128
# Inside these LLVM counts on from the line of the source, one for each line of the assembly.
ASSEMBLY = re.compile(r"// begin inline asm.*?// end inline asm", re.S)
# As ``tensormap.replace`` counts the element types: the driver has another order.
ELEMENTS = tuple("uint8 uint16 uint32 int32 uint64 int64 float16 float32 float32_ftz float64 bfloat16".split())


def from_triton(compiled):
    """A kernel of Triton or Gluon for the CPU engine: ``nd.simulate(nd.from_triton(compiled)[grid](x, y, n))``.

    ``compiled`` is what ``triton.compile(ASTSource(..), target=GPUTarget("cuda", 90, 32))`` returns, which
    needs no GPU, or a launch ``kernel[grid](..)``. ``[grid](..)`` takes the arguments as Triton does, with or
    without the constexprs: NumPy arrays, PyTorch tensors on the CPU, numbers, tensor descriptors of either; it
    returns a :class:`launches.Launch`. A fault names the line of the Triton program. Raises ValueError as
    ``from_ptx`` does, and for arguments that do not fit."""
    return TritonKernel(compiled.asm["ptx"], compiled.metadata, compiled.src)


class TritonKernel:
    """``kernel`` is its PTX for the engine; ``names`` those of the arguments that are no constants."""

    def __init__(self, ptx, metadata, source):
        self.metadata, types = metadata, dict(source.signature)
        constants = {place[0] for place in getattr(source, "constants", {}) if len(place) == 1}
        self.all_names = tuple(types)
        self.types = {name: kind for n, (name, kind) in enumerate(types.items())
                      if kind != "constexpr" and n not in constants}  # fmt: skip
        self.boxes = list(metadata.tensordesc_meta or ())
        names = [*(name for name, _ in self._words()), "global_scratch", "profile_scratch"]
        ptx = _from_this_file(ptx, source)
        ptx = ASSEMBLY.sub(lambda m: re.sub(r"\.loc\b[^\n]*", "", m[0]), ptx)
        is_gluon = "Gluon" in f"{type(source)} {type(getattr(source, 'fn', None))}"
        language = "gluon" if is_gluon else "triton"
        self.kernel = from_ptx(ptx, names, language, f"PTX of {metadata.name}")[metadata.name]
        self.kernel.shared_bytes = metadata.shared
        self.cluster = metadata.num_ctas

    def __repr__(self):
        return f"<{self.kernel.name}({', '.join(self.types)}) from Triton>"

    def __getitem__(self, grid):
        grid = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)

        def launch(*args, **named):
            blocks = grid[0] * self.cluster, *grid[1:]
            return Launch(self.kernel, blocks, self.arguments(blocks, self._bound(args, named)),
                          cluster=self.cluster if self.cluster > 1 else None)  # fmt: skip

        return launch

    def _bound(self, args, named):
        """The values of the arguments that are no constants, in order."""
        names = self.all_names if len(args) + len(named) > len(self.types) else tuple(self.types)
        given = dict(zip(names, args, strict=False)) | named
        lacking, more = [n for n in self.types if n not in given], [n for n in given if n not in self.all_names]
        if lacking or more or len(args) > len(names):
            raise ValueError(f"{self.kernel.name} takes {', '.join(self.types)}; "
                             f"{len(args) + len(named)} arguments were given")  # fmt: skip
        return [given[name] for name in self.types]

    def _words(self):
        """(name, Triton's type or None) of each parameter of the PTX that comes of an argument."""
        for name, kind in self.types.items():
            if isinstance(kind, tuple):
                yield from ((f"{name}_{i}", part) for i, part in enumerate(kind) if part != "constexpr")
            elif kind.startswith("tensordesc"):
                rank = kind[: kind.index("]")].count(",") + 1
                yield name, kind
                more = [] if self.boxes else [f"{what}_{i}" for what in ("size", "step") for i in range(rank)]
                more += [] if self.boxes else ["is_nan", "is_tf32"]
                more += [f"{what}_{i}" for what in ("shape", "stride") for i in range(rank)]
                yield from ((f"{name}_{what}", None) for what in more)
            else:
                yield name, kind

    def arguments(self, grid, values):
        """What the engine hands the PTX for these values."""
        boxes, given = iter(self.boxes), []
        for (name, kind), value in zip(self.types.items(), values, strict=True):
            if isinstance(kind, tuple):
                pairs = [(k, v) for k, v in zip(kind, value, strict=True) if k != "constexpr"]
                given += [word(f"{name}[{i}]", k, v) for i, (k, v) in enumerate(pairs)]
            elif kind.startswith("tensordesc"):
                given += descriptor(name, value, next(boxes) if self.boxes else None)
            else:
                given.append(word(name, kind, value))
        sizes = self.metadata.global_scratch_size, self.metadata.profile_scratch_size
        return [*given, *(scratch(size * math.prod(grid)) for size in sizes)]


def _from_this_file(ptx, source):
    """The text with the file that the kernel is in: Triton's cache may have it from where that was before."""
    code = getattr(getattr(getattr(source, "fn", None), "fn", None), "__code__", None)
    if code is None:
        return ptx
    name = re.escape(re.split(r"[/\\]", code.co_filename)[-1])
    return re.sub(rf'(\.file\s+\d+\s+")[^"]*/{name}"', lambda m: f'{m[1]}{code.co_filename}"', ptx)


def word(name, kind, value):
    """One argument of Triton's type ``kind`` for the engine: an array, or the bits of a number."""
    if kind.startswith("*"):
        if value is None or isinstance(value, int):
            return value or 0
        return memory(name, value, kind[1:])
    if kind in FLOATS:
        if kind in ("fp32", "fp64"):
            return FLOATS[kind](value)
        return int(FLOATS[kind](value).view(f"u{np.dtype(FLOATS[kind]).itemsize}"))
    m = INTEGER.fullmatch(kind)
    if m is None:
        raise ValueError(f"argument {name} is of Triton's type {kind}, which is not known here")
    if int(value) != value:
        raise ValueError(f"argument {name}={value!r} must be a whole number: the kernel's is {kind}")
    return int(value) & (1 << max(int(m[2]), 8)) - 1


def memory(name, value, kind):
    """The array from where a tensor begins to the end of its memory, which the kernel may reach."""
    m = INTEGER.fullmatch(kind)
    if m:
        bits = max(int(m[2]), 8)
        dtype = np.dtype(f"{'u' if m[1] == 'u' else 'i'}{bits // 8}")
    else:
        dtype = np.dtype(FLOATS.get(kind, np.uint8))
    if isinstance(value, np.ndarray):
        first, stop = value.ctypes.data, bounds_of(value)[1]
        return value if value.flags.c_contiguous else _from(first, stop - first, dtype, value)
    if not hasattr(value, "data_ptr"):
        raise ValueError(f"argument {name} is a {type(value).__name__}; a pointer takes an array or a tensor")
    if value.device.type != "cpu":
        raise ValueError(f"argument {name} is a tensor on {value.device}; the engine takes those on the CPU")
    stored = value.untyped_storage()
    return _from(value.data_ptr(), stored.data_ptr() + stored.nbytes() - value.data_ptr(), dtype, value)


def _from(address, size, dtype, owner):
    """``size`` bytes at an address, which ``owner`` keeps alive."""
    if size < dtype.itemsize:
        return np.empty(0, dtype)
    shown = {"shape": (size // dtype.itemsize * dtype.itemsize,), "data": (address, False), "typestr": "|u1",
             "version": 3}  # fmt: skip
    return np.asarray(python.SimpleNamespace(__array_interface__=shown, owner=owner)).view(dtype)


def descriptor(name, value, box):
    """What a tensor descriptor becomes: a map, then its shape and strides; without ``box``, Triton's metadata
    of the map, its parts: the kernel does without TMA then."""
    if not all(hasattr(value, part) for part in ("base", "shape", "strides", "block_shape")):
        given = type(value).__name__
        raise ValueError(f"argument {name} is a {given}, and the kernel takes a TensorDescriptor")
    shape, strides = list(map(int, value.shape)), list(map(int, value.strides))
    if box is None:
        array = memory(name, value.base, "u8")
        flags = [int(value.padding == "nan"), int(getattr(value, "round_f32_to_tf32", False))]
        return [array, *shape, *strides, *flags, *shape, *strides]
    if box.get("is_im2col") or box["fp4_padded"]:
        raise ValueError(f"argument {name} is a descriptor for im2col or fp4, which is not known here")
    return [TensorMapArray([_map(name, value, box)]), *shape, *strides]


def _map(name, value, box):
    shape, strides = value.shape[::-1], value.strides[::-1]
    element, size = ELEMENTS[box["elem_type"]], box["elem_size"]
    if getattr(value, "round_f32_to_tf32", False):
        element = "tfloat32"
    return TensorMap(
        memory(name, value.base, "u8"), element, shape, [size * int(step) for step in strides[1:]],
        box["block_size"][::-1], swizzle=tuple(SWIZZLES)[box["swizzle"]], l2_promotion="128B",
        fill="nan" if value.padding == "nan" else "zero",
    )  # fmt: skip


def scratch(size):
    """Memory that a kernel asks for besides its arguments; 0, no address, where it asks for none."""
    if not size:
        return 0
    room = np.zeros(size + SCRATCH_ALIGNMENT, np.uint8)
    skip = -room.ctypes.data % SCRATCH_ALIGNMENT
    return room[skip : skip + size]
