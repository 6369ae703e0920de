"""CuPy's kernels: ``RawKernel`` and ``RawModule`` of code, ``ElementwiseKernel`` and ``ReductionKernel`` of
expressions, of which this file makes the code that they mean. ``include/cupy`` has the headers for it."""

import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from ..engines.cpu.frontends.ptx.kernels import from_ptx
from .callers import NEWLINE, located
from .cupy_runtime import C_TYPES, HERE, OWN_FILE, UNASKED, Array, Pointer, Refused, current_stream

THREADS = 128  # of a block
HEADERS = "complex", "float16"  # of include/cupy, which code has where it names them
SCALAR = bool, int, float, complex, np.generic


class Function:
    """A kernel of a module. ``names``: the name_expressions by which it may be asked for."""

    def __init__(self, module, name, cooperative=False, names=()):
        if name not in module.names and name not in names:
            there = [own if own == short else f'{short} without extern "C"'
                     for own, (_, short, _) in module.names.items() if own == short or not names]  # fmt: skip
            raise RuntimeError(f"there is no kernel {name!r}, but {', '.join((*there, *names)) or 'none'}: a "
                               'kernel has its name by extern "C", or by name_expressions=')  # fmt: skip
        self.module, self.kernel, self.cooperative = module, (kernel := module[name]), cooperative
        self.max_dynamic_shared_size_bytes = UNASKED - kernel.static_bytes
        self.max_threads_per_block, self.shared_size_bytes = kernel.threads or 1024, kernel.static_bytes

    def __call__(self, grid, block, args, *, shared_mem=0, stream=None):
        stream = getattr(stream or current_stream(), "ptr", stream)
        runtime, most = HERE[-1].of(self.module), self.max_dynamic_shared_size_bytes
        runtime.start(self.kernel, grid, block, args, shared_mem, most, stream, self.cooperative)


class RawModule:
    """``cupy.RawModule``. ``file``: the name of its text, where that does not stand in the program."""

    def __init__(self, code=None, *, path=None, options=(), backend="nvrtc", translate_cucomplex=False,
                 enable_cooperative_groups=False, name_expressions=None, jitify=False, file="code"):
        if (code is None) == (path is None):
            raise TypeError("RawModule is given code= or path=, one of them")
        for name, value, kind in (("code", code or "", str), ("options", options, tuple)):
            if not isinstance(value, kind):
                raise TypeError(f"{name}={value!r} is no {kind.__name__}")
        if jitify:
            raise Refused("jitify=True is not supported by check")
        self.cooperative, self.names = enable_cooperative_groups, tuple(name_expressions or ())
        if path is not None:
            if Path(path).suffix != ".ptx":
                raise Refused(f"RawModule(path={str(path)!r}): check loads .ptx, as CuPy does; .cubin is not "
                              "supported, and CUDA C++ is given as code=open(path).read()")  # fmt: skip
            self.module = from_ptx(path, language="cupy")
            self.module.declared = {}
            return
        wanted = (f"template __global__ decltype({name}) {name};" for name in self.names)
        text, compiler = NEWLINE.join((located(code), *wanted)), None if backend == "nvcc" else "nvrtc"
        # translate_cucomplex is for a compiler without cuComplex.h, which is there.
        self.module = HERE[-1].compiled(text, file, options, compiler)

    def compile(self, log_stream=None):
        """It is compiled."""

    def get_function(self, name):
        return Function(self.module, name, self.cooperative, self.names)

    def get_global(self, name):
        return Pointer(HERE[-1].of(self.module).variable(name))


class RawKernel(Function):
    """``cupy.RawKernel``."""

    compile = RawModule.compile

    def __init__(self, code, name, options=(), backend="nvrtc", **more):
        made = RawModule(code, options=options, backend=backend, file=name, **more)
        super().__init__(made.module, name, made.cooperative)


# --- of expressions -----------------------------------------------------------------------------------
class Parameter(NamedTuple):
    """One of a kernel of expressions. ``kind``: a letter, which stands for a type, or the name of a dtype."""

    raw: bool
    kind: str
    name: str


def parameters(text):
    """Those that a text such as ``"T x, raw float32 y"`` declares."""
    found = []
    for one in text.split(",") if text.strip() else ():
        words = re.fullmatch(r"\s*(raw\s+)?(\w+)\s+(\w+)\s*", one)
        if not words or words[3] == "i" or words[3].startswith("_"):
            raise ValueError(f"{one.strip()!r} declares no parameter: it is a type, or a letter for one, and a "
                             "name, which is not i and begins with no _; raw may stand before")  # fmt: skip
        kind = words[2] if len(words[2]) == 1 else np.dtype(words[2]).name
        if len(kind) > 1 and kind not in C_TYPES:
            raise Refused(f"{one.strip()!r}: {kind} is not supported by check")
        found.append(Parameter(bool(words[1]), kind, words[3]))
    return found


class KernelOfExpressions:
    """What ElementwiseKernel and ReductionKernel have in common."""

    def __init__(self, in_params, out_params, name, preamble, options, *expressions):
        if not name.isidentifier():
            raise ValueError(f"{name!r} is no name of a kernel")
        self.inputs, self.outputs, self.name = parameters(in_params), parameters(out_params), name
        self.__name__, self.options, self.params = name, tuple(options), [*self.inputs, *self.outputs]
        self.nin, self.nout, self.nargs = len(self.inputs), len(self.outputs), len(self.params)
        self.expressions = preamble, *expressions
        self.located = {text: located(text) for text in self.expressions if text}

    def kinds(self, args):
        """{letter: type} that arguments tell, of outputs first; TypeError for what does not fit."""
        if len(args) not in (self.nin, self.nargs):
            counts = f"{self.nin} arguments, or {self.nargs} with its outputs"
            raise TypeError(f"{self.name} takes {counts}, and not {len(args)}")
        pairs, kinds = list(zip(self.params, args, strict=False)), {}
        for parameter, value in (*pairs[self.nin :], *pairs[: self.nin]):
            what, kind = f"{self.name}: {parameter.name} is ", parameter.kind
            if isinstance(value, Array):
                of = value.dtype.name
                kind = kinds.setdefault(kind, of) if len(kind) == 1 else kind
                if kind != of:
                    raise TypeError(f"{what}an array of {of}, and has to be of {kind}")
                if kind not in C_TYPES:
                    raise Refused(f"{what}an array of {of}, which is not supported by check")
            elif parameter in self.outputs or not isinstance(value, SCALAR):
                what += f"a {type(value).__module__}.{type(value).__name__}; a kernel takes CuPy's arrays, "
                raise TypeError(f"{what}which cupy.asarray makes, and for inputs scalars")
        for parameter in self.params:
            if len(parameter.kind) == 1 and parameter.kind not in kinds:
                raise TypeError(f"{self.name}: no array tells the type {parameter.kind} of {parameter.name}")
        return kinds

    def spread(self, values):
        """The numbers of those that are indexed for the program."""
        pairs = enumerate(zip(self.params, values, strict=False))
        return [n for n, (parameter, value) in pairs if isinstance(value, Array) and not parameter.raw]

    def results(self, given, shape, kinds, is_sized=False):
        """The outputs: those that are given, of that shape, or new ones."""
        for parameter, value in zip(self.outputs, given, strict=False):
            if not parameter.raw and value.shape != shape:
                raise ValueError(f"{self.name}: {parameter.name} has shape {value.shape}, the result {shape}")
        if not given and not is_sized and any(parameter.raw for parameter in self.outputs):
            raise ValueError(f"{self.name}: nothing tells the size of a raw output: give the array")
        return given or [Array(shape, kinds.get(p.kind, p.kind)) for p in self.outputs]

    def elements(self, values, which, index):
        """C++ that gives elements their names."""
        names = (self.params[n].name for n in self.spread(values) if self.params[n] in which)
        return "".join(f"auto &{name} = _raw_{name}[{index}.get()]; " for name in names)

    def launch(self, values, indices, kinds, parts, grid, block, stream):
        """Compile the kernel for values of its parameters, and launch it. ``indices``: {name: shape};
        ``parts``: what stands before each of the expressions, and behind the last."""
        declared, args = [], []
        for parameter, value in zip(self.params, values, strict=True):
            kind = kinds.get(parameter.kind, parameter.kind)
            own, name = C_TYPES[kind], parameter.name
            if isinstance(value, Array):
                own = f"CArray<{own}, {value.ndim}, {str(value.flags.c_contiguous).lower()}>"
                name = name if parameter.raw else f"_raw_{name}"
                value = _structure(value.ctypes.data, value.size, value.shape, value.strides)
            else:
                value = np.dtype(kind).type(value)
            declared.append(f"{'const ' * (parameter in self.inputs)}{own} {name}")
            args.append(value)
        for name, shape in indices.items():
            declared.append(f"CIndexer<{len(shape)}> {name}")
            args.append(_structure(math.prod(shape), shape, (0,) * len(shape)))
        entry = f'extern "C" __global__ void {self.name}({", ".join(declared)}) {{ '
        parts, expressions = ("", entry + parts[0], *parts[1:]), (*self.expressions, "")
        texts = list(zip(parts, expressions, strict=True))
        code = "".join(f"typedef {C_TYPES[kind]} {letter};\n" for letter, kind in sorted(kinds.items()))
        headers = ("carray", *(name for name in HEADERS if name in f"{declared}{texts}{code}"))
        code, before = "".join(f"#include <cupy/{name}.cuh>\n" for name in headers) + code, ""
        for ours, theirs in texts:
            before += ours
            if theirs:  # of which faults name the lines
                text = self.located[theirs]
                if not text.startswith("#line"):
                    text = f'#line {code.count(NEWLINE) + 4} "{OWN_FILE}"\n{text}'
                code, before = f"{code}{text.partition(NEWLINE)[0]}\n{before}\n{text}\n", ""
        code += before
        module = HERE[-1].compiled(code, self.name, self.options, "nvrtc")
        module.parameters[self.name] = (*(p.name for p in self.params), *indices)
        Function(module, self.name)(grid, block, args, stream=stream)


def _structure(*numbers):
    """The bytes of a structure of 64-bit numbers; a tuple of none has one place there."""
    each = [n for one in numbers for n in ((one or (0,)) if isinstance(one, tuple) else (one,))]
    return np.array(each, np.int64).view(f"V{8 * len(each)}")


def _flat(arrays, shape):
    """Arrays of a shape, and it, in one dimension where all lie one element behind the other."""
    if len(shape) > 1 and all(array.flags.c_contiguous for array in arrays):
        return [array.reshape(-1) for array in arrays], (math.prod(shape),)
    return arrays, shape


class ElementwiseKernel(KernelOfExpressions):
    """``cupy.ElementwiseKernel``."""

    def __init__(self, in_params, out_params, operation, name="kernel", reduce_dims=True, preamble="",
                 no_return=False, return_tuple=False, *, loop_prep="", after_loop="", options=(), doc=""):
        super().__init__(in_params, out_params, name, preamble, options, loop_prep, operation, after_loop)
        self.reduce_dims, self.no_return, self.return_tuple = reduce_dims, no_return, return_tuple

    def __call__(self, *args, size=None, stream=None, block_size=THREADS):
        kinds, spread = self.kinds(args), self.spread(args)
        if bool(spread) == (size is not None):
            raise ValueError(f"{self.name}: size= is given where all arrays are raw, and only there")
        shape = np.broadcast_shapes(*(args[n].shape for n in spread)) if spread else (size,)
        outputs = self.results(args[self.nin :], shape, kinds, not spread)
        values = [*args[: self.nin], *outputs]
        arrays, loop = [np.broadcast_to(values[n], shape, subok=True) for n in self.spread(values)], shape
        if self.reduce_dims:
            arrays, loop = _flat(arrays, shape)
        for n, array in zip(self.spread(values), arrays, strict=True):
            values[n] = array
        if count := math.prod(shape):
            elements = self.elements(values, self.params, "_ind")
            parts = "", f"; CUPY_FOR(i, _ind.size()) {{ _ind.set(i); {elements}", ";}", ";}"
            grid = (-(-count // block_size),)
            self.launch(values, {"_ind": loop}, kinds, parts, grid, (block_size,), stream)
        whole = tuple(outputs) if self.return_tuple or self.nout != 1 else outputs[0]
        return None if self.no_return else whole


class ReductionKernel(KernelOfExpressions):
    """``cupy.ReductionKernel``."""

    def __init__(self, in_params, out_params, map_expr, reduce_expr, post_map_expr, identity,
                 name="reduce_kernel", reduce_type=None, reduce_dims=True, preamble="", options=()):
        self.identity = "" if identity is None else str(identity)
        super().__init__(in_params, out_params, name, preamble, options,
                         reduce_expr, self.identity, map_expr, post_map_expr)  # fmt: skip
        self.reduce_type = reduce_type or C_TYPES.get(self.outputs[0].kind, self.outputs[0].kind)

    def __call__(self, *args, out=None, axis=None, keepdims=False, stream=None):
        if out is not None:
            if self.nout != 1 or len(args) != self.nin:
                raise ValueError(f"{self.name}: out= is given where the one output is no other argument")
            args = (*args, out)
        kinds, spread = self.kinds(args), self.spread(args[: self.nin])
        if not spread:
            raise ValueError(f"{self.name}: there is no array to reduce that is not raw")
        shape = np.broadcast_shapes(*(args[n].shape for n in spread))
        axes = normalize_axis_tuple(range(len(shape)) if axis is None else axis, len(shape))
        if any(p.raw for p in self.inputs) and axes != tuple(range(len(axes))):
            raise NotImplementedError(f"{self.name}: with a raw input axis= is the first ones, as (0, 1)")
        if 0 in shape and not self.identity:
            raise ValueError(f"{self.name}: an array without elements is reduced, and there is no identity")
        order = (*axes, *(a for a in range(len(shape)) if a not in axes))
        kept, whole = tuple(shape[a] for a in order[len(axes) :]), tuple(shape[a] for a in order)
        of_result = tuple(1 if a in axes else n for a, n in enumerate(shape)) if keepdims else kept
        outputs = self.results(args[self.nin :], of_result, kinds)
        if count := math.prod(kept):
            inputs = [np.broadcast_to(args[n], shape, subok=True).transpose(order) for n in spread]
            inputs, whole = _flat(inputs, whole)
            values = [*args[: self.nin], *(value.reshape(kept) if keepdims else value for value in outputs)]
            for n, array in zip(spread, inputs, strict=True):
                values[n] = array
            rows = 1 << (max(1, min(THREADS, math.prod(whole) // count)) - 1).bit_length()
            columns = min(THREADS // rows, count)
            self.launch(values, {"_in_ind": whole, "_out_ind": kept}, kinds, self.parts(values, rows * columns),
                        (-(-count // columns),), (columns, rows), stream)  # fmt: skip
        return outputs[0] if self.nout == 1 else tuple(outputs)

    def parts(self, values, threads):
        """What stands around the expressions: arguments of ``reduced`` in carray.cuh."""
        return (
            f"typedef {self.reduce_type} _type_reduce; reduced<_type_reduce, {threads}>(_in_ind, _out_ind, "
            "[&](_type_reduce a, _type_reduce b) -> _type_reduce { return (",
            "); }, _type_reduce(",
            "), [&](ptrdiff_t _i, ptrdiff_t _j, ptrdiff_t _J) { "
            f"{self.elements(values, self.inputs, '_in_ind')}return static_cast<_type_reduce>(",
            f"); }}, [&](_type_reduce a, ptrdiff_t _i) {{ {self.elements(values, self.outputs, '_out_ind')}(",
            "); }); }",
        )
