"""What ``cuda`` stands for in a kernel that Numba compiles for the CPU: ``unchecked`` puts it in its place.

A core has a *context*, a row of words with the place of the thread that runs. It is found by
``pthread_getspecific``: one of the system's threads runs many of the kernel's, and each sees its own place.
"""

import ctypes
import functools
import platform
import types as python

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import cuda, njit, types
from numba.core import cgutils
from numba.core.datamodel.models import OpaqueModel
from numba.core.extending import intrinsic, overload_attribute, register_model, typeof_impl
from numba.core.imputils import lower_constant
from numba.np.arrayobj import make_array, populate_array

THREAD, BLOCK, BLOCK_DIM, GRID_DIM = 0, 3, 6, 9  # three words each
SHARED, DYNAMIC, ARGUMENTS, FAILED, OWN, HOST, ENDED = 12, 13, 15, 16, 17, 18, 19
CONTEXT_WORDS = 20
I64, I32, POINTER = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()
SWITCH = "numba_deform_switch_stacks"
# (where the stack pointer of the one that stops is kept, that of the one that goes on)
X86 = """
.globl {name}
{name}:
push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
mov %rsp, (%rdi)
mov %rsi, %rsp
pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
ret
"""
REGISTERS = 6  # that it keeps on a stack


@functools.cache
def key():
    """The key of this process under which a thread's context is kept."""
    number = ctypes.c_uint()
    if ctypes.CDLL(None).pthread_key_create(ctypes.byref(number), None):
        raise OSError("no key is left for pthread_key_create")
    return number.value


@functools.cache
def can_switch():
    """Whether there is a switch of stacks for this machine; after this, Numba finds it."""
    if platform.machine() not in ("x86_64", "AMD64") or platform.system() == "Windows":
        return False
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    name = "_" * (platform.system() == "Darwin") + SWITCH
    lines = X86.format(name=name).strip().replace("; ", "\n").splitlines()
    text = "".join(f'module asm "{line}"\n' for line in lines) + f"declare void @{SWITCH}(ptr, i64)\n"
    text += f"define i64 @address() {{ ret i64 ptrtoint (ptr @{SWITCH} to i64) }}\n"
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    address = ctypes.CFUNCTYPE(ctypes.c_int64)(engine.get_function_address("address"))()
    llvm.add_symbol(SWITCH, address)
    _kept.append(engine)
    return True


_kept = []


# --- words of the context -----------------------------------------------------------------------------
def _context(builder):
    """Address of the context of the thread that runs."""
    kind = ir.FunctionType(POINTER, [I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "pthread_getspecific")
    return builder.bitcast(builder.call(function, [ir.Constant(I32, key())]), I64.as_pointer())


def _slot(builder, word):
    return builder.gep(_context(builder), [ir.Constant(I64, word)])


@intrinsic
def bind(typing, address):
    """``bind(address)``: the context of this thread of the system's."""

    def write(context, builder, signature, values):
        kind = ir.FunctionType(I32, [I32, POINTER])
        function = cgutils.get_or_insert_function(builder.module, kind, "pthread_setspecific")
        builder.call(function, [ir.Constant(I32, key()), builder.inttoptr(values[0], POINTER)])
        return context.get_dummy_value()

    return types.none(types.int64), write


def _reader(words, kind, combine):
    @intrinsic
    def read(typing):
        def write(context, builder, signature, values):
            made = combine(builder, [builder.load(_slot(builder, word)) for word in words])
            return context.cast(builder, made, types.int64, kind)

        return kind(), write

    return njit(lambda: read())


PLACES = {
    (first, i): _reader([first + i], types.int32, lambda builder, read: read[0])
    for first in (THREAD, BLOCK, BLOCK_DIM, GRID_DIM) for i in range(3)
}  # fmt: skip


def _index(builder, read):
    return builder.add(read[0], builder.mul(read[1], read[2]))


ALONG = [_reader([THREAD + i, BLOCK + i, BLOCK_DIM + i], types.int64, _index) for i in range(3)]
SIZES = [_reader([BLOCK_DIM + i, GRID_DIM + i], types.int64, lambda b, read: b.mul(*read)) for i in range(3)]


class Place:
    """``cuda.threadIdx`` and its like; ``first`` is its first word."""

    def __init__(self, first):
        self.first = first


class PlaceType(types.Type):
    def __init__(self, first):
        self.first = first
        super().__init__(f"Place({first})")


register_model(PlaceType)(OpaqueModel)
typeof_impl.register(Place)(lambda value, context: PlaceType(value.first))
lower_constant(PlaceType)(lambda context, builder, kind, value: context.get_dummy_value())


def _attribute(i, name):
    @overload_attribute(PlaceType, name)
    def read(place):
        function = PLACES[place.first, i]
        return lambda place: function()


for _i, _name in enumerate("xyz"):
    _attribute(_i, _name)


def _dimensions(functions):
    """``cuda.grid`` or ``cuda.gridsize``."""
    x, y, z = functions

    @intrinsic(prefer_literal=True)
    def along(typing, ndim):
        n = ndim.literal_value
        result = types.int64 if n == 1 else types.UniTuple(types.int64, n)

        def write(context, builder, signature, values):
            got = [context.compile_internal(builder, f.py_func, types.int64(), ()) for f in functions[:n]]
            return got[0] if n == 1 else context.make_tuple(builder, result, got)

        return result(ndim), write

    return along


# --- arrays -------------------------------------------------------------------------------------------
def _array_type(shape, dtype):
    """(the type of an array, its shape) of literal types; None for what is no constant."""
    sizes = [part.literal_value for part in (shape if isinstance(shape, types.BaseTuple) else [shape])]
    item = dtype.dtype if isinstance(dtype, types.DType) else dtype.instance_type
    return types.Array(item, len(sizes), "C"), sizes


def _view(context, builder, kind, sizes, address):
    """The array of these sizes at an address."""
    array, item = make_array(kind)(context, builder), context.get_data_type(kind.dtype)
    strides = [ir.Constant(I64, context.get_abi_sizeof(item))]
    wide = [n if isinstance(n, ir.Value) else ir.Constant(I64, n) for n in sizes]
    for n in reversed(wide[1:]):
        strides.insert(0, builder.mul(n, strides[0]))
    populate_array(array, builder.bitcast(address, item.as_pointer()), wide, strides, strides[-1], None)
    return array._getvalue()


def _bytes(context, kind, sizes):
    return int(np.prod(sizes, dtype=int)) * context.get_abi_sizeof(context.get_data_type(kind.dtype))


# --- atomics ------------------------------------------------------------------------------------------
INTEGERS = {"add": "add", "sub": "sub", "exch": "xchg", "and_": "and", "or_": "or", "xor": "xor",
            "inc": "uinc_wrap", "dec": "udec_wrap"}  # fmt: skip
FLOATS = {"add": "fadd", "sub": "fsub", "exch": "xchg", "max": "fmax", "min": "fmin"}


def _operation(name, kind):
    if isinstance(kind, types.Float):
        return FLOATS[name]
    if name in ("max", "min"):
        return name if kind.signed else f"u{name}"
    return INTEGERS[name]


def _pointer(context, builder, kind, index, array, value):
    """Address of an element, whose index was checked before."""
    kinds = index.types if isinstance(index, types.BaseTuple) else [index]
    values = cgutils.unpack_tuple(builder, value) if isinstance(index, types.BaseTuple) else [value]
    wide = [context.cast(builder, v, k, types.intp) for v, k in zip(values, kinds, strict=True)]
    array = make_array(kind)(context, builder, array)
    return cgutils.get_item_pointer(context, builder, kind, array, wide, wraparound=True)


def _atomic(name):
    @intrinsic
    def change(typing, array, index, value):
        operation = _operation(name, array.dtype)

        def write(context, builder, signature, values):
            pointer = _pointer(context, builder, array, index, values[0], values[1])
            new = context.cast(builder, values[2], value, array.dtype)
            return builder.atomic_rmw(operation, pointer, new, "seq_cst")

        return array.dtype(array, index, value), write

    @njit(boundscheck=True)
    def atomic(array, index, value):
        array[index]  # is it inside?
        return change(array, index, value)

    return atomic


@intrinsic
def _swap(typing, array, index, old, value):
    if not isinstance(array.dtype, types.Integer):
        return None

    def write(context, builder, signature, values):
        pointer = _pointer(context, builder, array, index, values[0], values[1])
        given = [context.cast(builder, values[i], k, array.dtype) for i, k in ((2, old), (3, value))]
        return builder.extract_value(builder.cmpxchg(pointer, *given, "seq_cst"), 0)

    return array.dtype(array, index, old, value), write


@njit(boundscheck=True)
def _cas(array, index, old, value):
    array[index]
    return _swap(array, index, old, value)


@njit(boundscheck=True)
def _compare_and_swap(array, old, value):
    return _cas(array, 0, old, value)


ATOMICS = {name: _atomic(name) for name in (*INTEGERS, "max", "min")}
ATOMICS |= {"cas": _cas, "compare_and_swap": _compare_and_swap}


@intrinsic
def _fence(typing):
    def write(context, builder, signature, values):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), write


def _give_way(builder, ended):
    """Another thread of the block goes on."""
    builder.store(ir.Constant(I64, ended), _slot(builder, ENDED))
    kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64])
    function = cgutils.get_or_insert_function(builder.module, kind, SWITCH)
    builder.call(function, [_slot(builder, OWN), builder.load(_slot(builder, HOST))])


class StandIn:
    """The module, of one kernel: where its shared arrays lie is counted."""

    def __init__(self):
        self.shared_bytes = self.local_bytes = 0
        self.has_barriers = False
        self.names = {
            "threadIdx": Place(THREAD), "blockIdx": Place(BLOCK), "blockDim": Place(BLOCK_DIM),
            "gridDim": Place(GRID_DIM), "grid": _dimensions(ALONG), "gridsize": _dimensions(SIZES),
            "warpsize": 32, "threadfence": _fence, "threadfence_block": _fence, "threadfence_system": _fence,
            "syncthreads": self._syncthreads(),
        }  # fmt: skip
        self.parts = {
            "atomic": ATOMICS, "shared": {"array": self._shared()}, "local": {"array": self._local()},
            "const": {"array_like": njit(lambda array: array)},
        }  # fmt: skip
        self.module = self._module("cuda", self.names)
        for name, part in self.parts.items():
            setattr(self.module, name, self._module(name, part))
        for name, value in vars(cuda).items():
            if isinstance(value, types.Type) or name in types.__all__:
                self.module.__dict__.setdefault(name, value)

    @staticmethod
    def _module(name, names):
        module = python.ModuleType(name)
        vars(module).update(names)
        return module

    def named(self, path):
        """What stands for a name of ``numba.cuda``."""
        return functools.reduce(lambda value, name: getattr(value, name, None), path, self.module)

    def _syncthreads(self):
        @intrinsic
        def syncthreads(typing):
            def write(context, builder, signature, values):
                if not can_switch():
                    raise NotImplementedError(f"no switch of stacks is known for {platform.machine()}")
                self.has_barriers = True
                _give_way(builder, 0)
                return context.get_dummy_value()

            return types.none(), write

        return syncthreads

    def _shared(self):
        @intrinsic(prefer_literal=True)
        def array(typing, shape, dtype):
            kind, sizes = _array_type(shape, dtype)

            def write(context, builder, signature, values):
                if sizes == [0]:
                    item = ir.Constant(I64, _bytes(context, kind, [1]))
                    count = builder.udiv(builder.load(_slot(builder, DYNAMIC)), item)
                    base, offset, found = DYNAMIC + 1, 0, [count]
                else:
                    base, offset, found = SHARED, self.shared_bytes, sizes
                    self.shared_bytes += -(-_bytes(context, kind, sizes) // 16) * 16
                address = builder.add(builder.load(_slot(builder, base)), ir.Constant(I64, offset))
                return _view(context, builder, kind, found, builder.inttoptr(address, POINTER))

            return kind(shape, dtype), write

        return array

    def _local(self):
        @intrinsic(prefer_literal=True)
        def array(typing, shape, dtype):
            kind, sizes = _array_type(shape, dtype)

            def write(context, builder, signature, values):
                size = _bytes(context, kind, sizes)
                self.local_bytes += size
                room = cgutils.alloca_once(builder, ir.ArrayType(ir.IntType(64), size // 8 + 1))
                return _view(context, builder, kind, sizes, room)

            return kind(shape, dtype), write

        return array


NAMES = {id(getattr(cuda, name)): (name,) for name in StandIn().names if name != "warpsize"}
NAMES |= {id(getattr(getattr(cuda, part), name)): (part, name)
          for part, names in StandIn().parts.items() for name in names}  # fmt: skip
NAMES |= {id(getattr(cuda, part)): (part,) for part in StandIn().parts}


# --- the blocks of one core -----------------------------------------------------------------------------
def context_functions(code, has_barriers):
    """``run(words, stacks, first, stop, args)`` of a compiled kernel: the lowest block that has failed,
    else -1."""

    def call(context, builder, values):
        """The kernel, once; notes whether it has failed."""
        function = context.declare_function(builder.module, code.fndesc)
        status, _ = context.call_conv.call_function(builder, function, types.none, code.fndesc.argtypes, values)
        with builder.if_then(status.is_error):
            builder.store(ir.Constant(I64, 1), _slot(builder, FAILED))

    @intrinsic
    def thread(typing, args):
        def write(context, builder, signature, values):
            call(context, builder, cgutils.unpack_tuple(builder, values[0]))
            context.add_linking_libs((code.library,))
            return context.get_dummy_value()

        return types.none(args), write

    @intrinsic
    def entry(typing, args):
        """The address of a function that runs a thread on its stack; notes where the arguments are."""

        def write(context, builder, signature, values):
            given = cgutils.unpack_tuple(builder, values[0])
            packed = cgutils.alloca_once_value(builder, cgutils.pack_struct(builder, given))
            builder.store(builder.ptrtoint(packed, I64), _slot(builder, ARGUMENTS))
            function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), []), "begin")
            function.linkage = "internal"
            inner = ir.IRBuilder(function.append_basic_block())
            kept = inner.inttoptr(inner.load(_slot(inner, ARGUMENTS)), packed.type)
            call(context, inner, cgutils.unpack_tuple(inner, inner.load(kept)))
            _give_way(inner, 1)
            inner.unreachable()
            context.add_linking_libs((code.library,))
            return builder.ptrtoint(function, I64)

        return types.int64(args), write

    @intrinsic
    def go_on(typing, stack):
        def write(context, builder, signature, values):
            kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64])
            function = cgutils.get_or_insert_function(builder.module, kind, SWITCH)
            builder.call(function, [_slot(builder, HOST), values[0]])
            return context.get_dummy_value()

        return types.none(types.int64), write

    @njit
    def place(words, first, number, shape):
        x, y = words[shape], words[shape + 1]
        words[first], words[first + 1], words[first + 2] = number % x, number // x % y, number // (x * y)

    @njit
    def in_turn(words, stacks, threads, args):
        for t in range(threads):
            place(words, THREAD, t, BLOCK_DIM)
            thread(args)

    @njit
    def by_stacks(words, stacks, threads, args):
        begin, size, pointers = entry(args), stacks.shape[1], np.empty(threads, np.int64)
        for t in range(threads):
            top = (stacks.ctypes.data + (t + 1) * size) // 16 * 16 - 16
            pointers[t] = top - 8 * (REGISTERS)
            row = stacks[t].view(np.int64)
            row[(top - stacks.ctypes.data - t * size) // 8] = begin
        live = threads
        while live:
            for t in range(threads):
                if pointers[t]:
                    place(words, THREAD, t, BLOCK_DIM)
                    go_on(pointers[t])
                    ended = words[ENDED]
                    pointers[t] = 0 if ended else words[OWN]
                    live -= ended

    block = by_stacks if has_barriers else in_turn

    @njit(nogil=True)
    def run(words, stacks, first, stop, args):
        bind(words.ctypes.data)
        threads, lowest = words[BLOCK_DIM] * words[BLOCK_DIM + 1] * words[BLOCK_DIM + 2], -1
        for number in range(first, stop):
            place(words, BLOCK, number, GRID_DIM)
            words[FAILED] = 0
            block(words, stacks, threads, args)
            if words[FAILED] and lowest < 0:
                lowest = number
        return lowest

    return run
