"""The loader: one ``.func`` in ``ptx/`` becomes one Python name, usable on three engines.

``@intrinsic(signature)`` binds a Python definition to the PTX function of the same name. The object
it makes

* compiles **inline**: the function's body turns into inline assembly, with no call in SASS;
* compiles **linked** through ``name.linked``: a real call, whose file is then handed to the linker.
  It is there to be compared: a call costs a pipeline about 2x;
* **runs in Python**: calling it executes the definition's body, the model of the CPU engine.
"""

import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from greenlet import getcurrent
from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.cuda.extending import intrinsic as _numba_intrinsic

from . import sections

_NumbaIntrinsic = type(_numba_intrinsic(lambda typingctx, x: (x(x), None)))

u32, i32, u64, f32, void = types.uint32, types.int32, types.uint64, types.float32, types.void
u32x2, u32x4 = types.UniTuple(u32, 2), types.UniTuple(u32, 4)
f32x2 = types.UniTuple(f32, 2)
f32_registers = types.Array(f32, 1, "C")  # a local array that an instruction reads and writes in its registers

WORDS = {u32: "u32", i32: "i32", u64: "u64", f32: "f32", f32_registers: "local f32 x {}", void: ""}
Model = TypeVar("Model", bound=Callable)
DYNAMIC = "numba_deform_dynamic"  # the symbol of dynamic shared memory
SHARED_SPACE = 3  # the address space of shared memory, to LLVM
# Numba type -> (LLVM type, inline-assembly constraint, PTX parameter type)
_LOWERED = {
    u32: (ir.IntType(32), "r", ".b32"),
    i32: (ir.IntType(32), "r", ".b32"),
    u64: (ir.IntType(64), "l", ".b64"),
    f32: (ir.FloatType(), "f", ".b32"),
    f32_registers: (ir.FloatType(), "f", ".b8"),
}


class PtxError(ValueError):
    """A ``.ptx`` file or a definition breaks a rule of the loader; the text says which and where."""


class OutsideKernel(RuntimeError):
    """An intrinsic that needs a GPU thread was called from ordinary Python."""


def cpu():
    """The CPU engine's thread that is running now; what the models of intrinsics talk to."""
    thread = getcurrent()
    if not hasattr(thread, "block"):  # some other greenlet, the main one most of the time
        raise OutsideKernel(
            f"{inspect.stack()[1].function} needs a thread of a kernel: launch the kernel on a GPU, "
            "or run it with numba_deform.engines.cpu.simulate"
        )
    return thread


@dataclass(frozen=True)
class PtxFunction:
    """One ``.func``: parameter and result types, and its statements."""

    name: str
    file: Path
    parameters: tuple[tuple[str, str], ...]  # (type, name)
    result: tuple[str, str, int] | None  # (type, name, number of 32-bit words)
    statements: tuple[str, ...]
    linked_only: bool = False  # it uses a variable of its file
    words: tuple[int, ...] = ()  # of each parameter that is an array; else 1

    @property
    def registers(self):
        """The parameter that is an array, which comes back as the result, or None."""
        return next((name for kind, name in self.parameters if kind == ".b8" and self.result), None)

    def inline_text(self):
        """The body as LLVM inline assembly.

        ``ld.param`` and ``st.param`` become moves from and to the operands ``$k``; ptxas removes
        them. The braces give the registers declared inside a scope of their own. Elements of ``registers``
        become operands themselves, without moves: an asynchronous instruction has them to itself."""
        words = self.result[2] if self.result else 0
        first = 2 * words if self.registers else words  # behind the results, and the registers that they are
        given = [(name, i) for (_, name), count in zip(self.parameters, self.words, strict=True)
                 if name != self.registers for i in range(count)]  # fmt: skip
        operand = {f"{name}+{4 * i}" if i else name: f"${first + n}" for n, (name, i) in enumerate(given)}
        statements, lines = self._in_place() if self.registers else self.statements, []
        for statement in statements:
            if statement == "ret":
                continue
            load = re.fullmatch(r"ld\.param(\.\w+)\s+(\w+),\s*\[(\w+(?:\+\d+)?)\]", statement)
            store = re.fullmatch(r"st\.param(\.\w+)\s+\[(\w+)(?:\+(\d+))?\],\s*(\w+)", statement)
            if load:
                kind, register, name = load.groups()
                lines.append(f"mov{kind} {register}, {operand[name]};")
            elif store:
                kind, _, offset, register = store.groups()
                lines.append(f"mov{kind} ${int(offset or 0) // 4}, {register};")
            elif ".param" in statement and not statement.startswith(".reg"):
                raise PtxError(
                    f"{self.file.name}: {self.name}: `{statement}` cannot be inlined; write "
                    "ld.param.TYPE register, [name]; or st.param.TYPE [name+offset], register;"
                )
            else:
                lines.append(statement + ";")
        return "{ " + " ".join(lines) + " }"

    def _in_place(self):
        """The statements without those that load and store elements of ``registers``, whose names are their
        operands' instead. Raises PtxError where an element does not leave in the register it came in."""
        loads, stores = {}, {}
        for statement in self.statements:
            load = re.fullmatch(rf"ld\.param\.\w+ (\w+), \[{self.registers}(?:\+(\d+))?\]", statement)
            store = re.fullmatch(rf"st\.param\.\w+ \[{self.result[1]}(?:\+(\d+))?\], (\w+)", statement)
            if load:
                loads[statement] = load[1], int(load[2] or 0) // 4
            elif store:
                stores[statement] = store[2], int(store[1] or 0) // 4
        names = dict(loads.values())
        if sorted(names.items()) != sorted(stores.values()) or len(names) != self.result[2]:
            raise PtxError(
                f"{self.file.name}: {self.name}: each element of {self.registers} is loaded to a register, "
                f"and stored to {self.result[1]} from the same one"
            )
        rest = [s for s in self.statements if s not in loads and s not in stores]
        return [re.sub(r"\b\w+\b", lambda m: f"${names[m[0]]}" if m[0] in names else m[0], s) for s in rest]


@functools.cache
def ptx_directory():
    """Where the ``.ptx`` files are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for directory in (package / "ptx", package.parent / "ptx"):
        if (directory / "mbarrier.ptx").exists():
            return directory
    raise PtxError(f"no ptx/ directory beside or inside {package}: the installation is incomplete")


@functools.cache
def read_ptx(path):
    """All functions of one file, by name."""
    text = re.sub(r"//[^\n]*", "", Path(path).read_text())
    variables = re.findall(r"\.visible\s+\.global\b.*?(\w+)(?:\[\w*\])?\s*;", text)
    functions = {}
    for match in re.finditer(
        r"\.visible\s+\.func\s*(?:\(([^)]*)\))?\s*(\w+)\s*\(([^)]*)\)\s*\{(.*?)\n\}", text, re.S
    ):
        returned, name, declared, body = match.groups()
        result = None
        if returned:
            array = re.fullmatch(r"\.param\s+\.align\s+4\s+\.b8\s+(\w+)\[(\d+)\]", returned.strip())
            if array:
                result = (".b32", array[1], int(array[2]) // 4)
            else:
                _, kind, result_name = returned.split()
                result = (kind, result_name, 1)
        found = re.findall(r"\.param\s+(?:\.align\s+4\s+)?(\.\w+)\s+(\w+)(?:\[(\d+)\])?", declared)
        parameters, words = tuple((k, n) for k, n, _ in found), tuple(int(b or 4) // 4 for *_, b in found)
        statements = tuple(" ".join(s.split()) for s in body.split(";") if s.strip())
        for statement in statements:
            if statement.startswith(".reg") and re.search(r"%[a-z]+\d+\b", statement):
                raise PtxError(
                    f"{Path(path).name}: {name}: `{statement}` would hide a register that the "
                    "compiler made; give local registers names of their own"
                )
        linked_only = any(re.search(rf"\b{v}\b", s) for v in variables for s in statements)
        given = name, Path(path), parameters, result, statements, linked_only, words
        functions[name] = PtxFunction(*given)
    return functions


def _named(module, name):
    return getattr(importlib.import_module(module), name)


class Intrinsic(_NumbaIntrinsic):
    """A PTX function as Numba and Python see it; made by :func:`intrinsic`."""

    pure, meets, polls = False, "", ""  # as ``intrinsic`` has them

    def __init__(self, name, defn, *, model, ptx=None, linked_form=False):
        super().__init__(name, defn)
        functools.update_wrapper(self, model)
        self.__doc__ = "\n".join([inspect.getdoc(model), "", *sections.looked_up(model.__doc__)])
        self.model, self.ptx, self.is_linked = model, ptx, linked_form

    def __call__(self, *args):
        return self.model(*args)

    def __repr__(self):
        return f"<intrinsic {self.words}>"

    def __reduce__(self):
        """In another process it is the one of that name."""
        return _named, (self.__module__, self.__name__)

    @functools.cached_property
    def words(self):
        """Its name, parameters and result as a reader writes them."""
        names = inspect.signature(self.model).parameters
        if self.ptx is None:  # those made in Python: shared_address and the like
            return f"{self.__name__}({', '.join(names)})"
        result, size = self.signature.return_type, self.ptx.result[2] if self.ptx.registers else 0
        kind = _in_words(result)
        pairs = zip(names, self.signature.args, strict=True)
        parameters = ", ".join(f"{name}: {_in_words(kind).format(size)}" for name, kind in pairs)
        return f"{self.__name__}({parameters})" + (f" -> {kind}" if kind else "")

    @functools.cached_property
    def linked(self):
        """The same function as a real call. A kernel that uses it must be linked with the file."""
        if self.is_linked:
            return self
        return _make(self.model, self.signature, self.ptx, True, self.pure, self.meets, self.polls)


def _in_words(kind):
    """A type of registers as a reader writes it."""
    return f"{WORDS[kind.dtype]} x {kind.count}" if isinstance(kind, types.UniTuple) else WORDS[kind]


def _operands(kind, linked_form):
    """(LLVM types, constraints) of a parameter: inlined, each number of a tuple is an operand."""
    if not isinstance(kind, types.UniTuple):
        return [_LOWERED[kind][0]], [_LOWERED[kind][1]]
    (each,), constraint = _operands(kind.dtype, linked_form)
    return [ir.ArrayType(each, kind.count)] if linked_form else [each] * kind.count, constraint * kind.count


def _make(model, signature, ptx, linked_form, pure, meets, polls):
    results = signature.return_type
    operands = [_operands(t, linked_form) for t in signature.args]
    lowered, constraints = ([each for part in parts for each in part] for parts in (
        [lowered for lowered, _ in operands], [constraints for _, constraints in operands]))  # fmt: skip
    count = ptx.result[2] if ptx.registers else getattr(results, "count", 0)  # of several results, else 0
    result = f32_registers if ptx.registers else getattr(results, "dtype", results)
    returned, constraint, _ = _LOWERED.get(result, (ir.VoidType(), "", ""))
    outputs = ["=" + constraint] * (count or result != void)
    if count:
        returned = ir.ArrayType(returned, count) if linked_form else ir.LiteralStructType([returned] * count)
    if ptx.registers:
        place = signature.args.index(f32_registers)
        if linked_form:
            lowered[place] = returned
        else:  # the same registers as the results, before all other operands
            lowered = [*returned.elements, *lowered[:place], *lowered[place + 1 :]]
            constraints = [*map(str, range(count)), *constraints[:place], *constraints[place + 1 :]]
    function_type = ir.FunctionType(returned, lowered)
    constraints = outputs + constraints + ([] if pure else ["~{memory}"])

    def codegen(context, builder, arguments, values):
        from numba.cuda import cgutils  # of numba-cuda alone; the CPU engine does without

        if not linked_form:
            values = [part for kind, value in zip(signature.args, values, strict=True)
                      for part in (cgutils.unpack_tuple(builder, value, kind.count)
                                   if isinstance(kind, types.UniTuple) else [value])]  # fmt: skip
        if linked_form:
            callee = cgutils.get_or_insert_function(builder.module, function_type, ptx.name)
        else:
            callee = ir.InlineAsm(function_type, ptx.inline_text(), ",".join(constraints), side_effect=not pure)
        if ptx.registers:
            data = context.make_array(arguments.args[place])(context, builder, values[place]).data
            elements = [builder.gep(data, [ir.Constant(ir.IntType(32), i)]) for i in range(count)]
            parts = [builder.load(element) for element in elements]
            others = [*values[:place], *values[place + 1 :]]
            if linked_form:
                whole = cgutils.pack_array(builder, parts)
                value = builder.call(callee, [*values[:place], whole, *values[place + 1 :]])
            else:
                value = builder.call(callee, parts + others)
            for i, element in enumerate(elements):
                builder.store(builder.extract_value(value, i), element)
            return context.get_dummy_value()
        value = builder.call(callee, values)
        if results == void:
            return context.get_dummy_value()
        if isinstance(results, types.UniTuple):
            parts = [builder.extract_value(value, i) for i in range(results.count)]
            return cgutils.pack_array(builder, parts)
        return value

    # Numba reads the number of arguments off the definition's own signature.
    names = ", ".join(name for _, name in ptx.parameters)
    scope = {"signature": signature, "codegen": codegen}
    # It has the intrinsic's name, because Numba says it of a call with too few arguments.
    exec(f"def {ptx.name}(typingctx, {names}):\n    return signature, codegen\n", scope)
    made = Intrinsic(ptx.name, scope[ptx.name], model=model, ptx=ptx, linked_form=linked_form)
    made.signature, made.pure, made.meets, made.polls = signature, pure, meets, polls
    made._register()
    return made


def intrinsic(signature, pure=False, meets="", polls="") -> Callable[[Model], Model]:
    """Decorator: bind a definition to the PTX function of its name in ``ptx/<module>.ptx``.

    ``signature`` is a Numba signature; ``pure=True`` says that the result depends on the operands alone,
    so that the compiler may move, merge or drop it. ``meets``: what threads do there together, in a word that
    the engine's machine code has for it; ``polls``: what a loop waits for that calls it, "mbarrier" or "flag".
    Raises :class:`PtxError` when the file has no such function or its parameters have other names or sizes.
    A type checker sees the definition itself."""

    def bind(model):
        module = model.__module__.rpartition(".")[2]
        path = ptx_directory() / f"{module}.ptx"
        ptx = read_ptx(path).get(model.__name__)
        if ptx is None:
            raise PtxError(f"{path.name} has no .func {model.__name__}")
        expected = [
            (".b8" if isinstance(t, types.UniTuple) else _LOWERED[t][2], n)
            for t, n in zip(signature.args, inspect.signature(model).parameters, strict=True)
        ]
        sizes = [getattr(t, "count", n) for t, n in zip(signature.args, ptx.words, strict=False)]
        if list(ptx.parameters) != expected or tuple(sizes) != ptx.words:
            raise PtxError(f"{path.name}: {ptx.name} takes {list(ptx.parameters)}, its definition {expected}")
        results = signature.return_type
        count = getattr(results, "count", 1 if results != void else 0)
        if count != (ptx.result[2] if ptx.result and not ptx.registers else 0):
            raise PtxError(f"{path.name}: {ptx.name} and its definition return different sizes")
        return _make(model, signature, ptx, ptx.linked_only, pure, meets, polls)

    return bind


def tabled(module, name, parameters, kinds, text, act, result=void):
    """The intrinsic of that name, for a table of many that differ in little: ``text`` is its documentation, and
    ``act(thread, ..)`` its model. ``kinds``: the parameters' types; ``result``: that of what it returns."""
    signature = inspect.Signature(
        [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in parameters]
    )

    def model(*args, **named):
        return act(cpu(), *signature.bind(*args, **named).args)

    model.__signature__, model.__module__, model.__name__, model.__qualname__ = signature, module, name, name
    model.__code__ = model.__code__.replace(co_name=name)  # which ``cpu`` tells
    text = " ".join(text.split()).replace("PTX ISA ", "PTX\0ISA\0")
    model.__doc__ = textwrap.fill(text, 106).replace("\0", " ")
    return intrinsic(result(*kinds))(model)


# What a type checker sees of those of rank 1 to 5: so many numbers as operands, of rank 1 as the name says.
_2 = Callable[[int, int], None]
_3 = Callable[[int, int, int], None]
_4 = Callable[[int, int, int, int], None]
_5 = Callable[[int, int, int, int, int], None]
_6 = Callable[[int, int, int, int, int, int], None]
_7 = Callable[[int, int, int, int, int, int, int], None]
_8 = Callable[[int, int, int, int, int, int, int, int], None]
_9 = Callable[[int, int, int, int, int, int, int, int, int], None]
From2 = tuple[_2, _3, _4, _5, _6]
From3 = tuple[_3, _4, _5, _6, _7]
From4 = tuple[_4, _5, _6, _7, _8]
From5 = tuple[_5, _6, _7, _8, _9]


def five(of_rank) -> tuple[Any, Any, Any, Any, Any]:
    """Those of rank 1 to 5, as ``of_rank(rank)`` returns them."""
    one, two, three, four, five = map(of_rank, range(1, 6))
    return one, two, three, four, five


def address_intrinsic(space, result):
    """Decorator for the two intrinsics that take an array: ``cvta.to.<space>.u64`` of its first element."""

    def address(typingctx, array):
        def codegen(context, builder, signature, values):
            data = context.make_array(signature.args[0])(context, builder, values[0]).data
            generic = builder.ptrtoint(data, ir.IntType(64))
            to64 = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
            convert = ir.InlineAsm(to64, f"cvta.to.{space}.u64 $0, $1;", "=l,l")
            value = builder.call(convert, [generic])
            return builder.trunc(value, ir.IntType(32)) if result == u32 else value

        return result(array), codegen

    return lambda model: _of_python(model, address)


def _of_python(model, definition):
    """The Intrinsic of a definition that is no text in ``ptx/``."""
    made = Intrinsic(model.__name__, definition, model=model)
    made._register()
    return made


def array_intrinsic(model):
    """Decorator for the intrinsic that makes an array of a shared address, a shape and a type of elements."""

    def array(typingctx, address, shape, dtype):
        one = isinstance(shape, types.Integer)
        if not one and not isinstance(shape, types.BaseTuple):
            raise TypingError(f"the shape of a shared array is a whole number or a tuple of them, not {shape}")
        kind = types.Array(dtype.dtype, 1 if one else len(shape), "C")

        def codegen(context, builder, signature, values):
            from numba.cuda import cgutils

            element = context.get_data_type(kind.dtype)
            lengths = [values[1]] if one else cgutils.unpack_tuple(builder, values[1])
            itemsize = step = ir.Constant(ir.IntType(64), context.get_abi_sizeof(element))
            strides = []
            for length in reversed(lengths):
                strides.insert(0, step)
                step = builder.mul(step, length)
            pointer = builder.inttoptr(values[0], element.as_pointer(SHARED_SPACE))
            pointer = builder.addrspacecast(pointer, element.as_pointer())
            made = context.make_array(kind)(context, builder)
            parts = {"data": pointer, "shape": lengths, "strides": strides, "itemsize": itemsize}
            context.populate_array(made, **parts, meminfo=None)
            return made._getvalue()

        return kind(u32, types.intp if one else shape, dtype), codegen

    return _of_python(model, array)


def dynamic_intrinsic(model):
    """Decorator for the intrinsic that gives the shared address at which the dynamic part begins, rounded up.

    Whoever asks gets that of one symbol, in one piece of text without effects: so the compiler sees that all
    these addresses are the same, and keeps the first."""

    def start(typingctx, alignment):
        def codegen(context, builder, signature, values):
            from numba.cuda import cgutils

            symbol = builder.module.globals.get(DYNAMIC)
            if symbol is None:
                kind = ir.ArrayType(ir.IntType(8), 0)
                symbol = cgutils.add_global_variable(builder.module, kind, DYNAMIC, SHARED_SPACE)
                symbol.linkage, symbol.align = "external", 16
            address = builder.trunc(builder.ptrtoint(symbol, ir.IntType(64)), ir.IntType(32))
            word = ir.IntType(32)
            text = "{ .reg .b32 a, b; sub.u32 b, $2, 1; add.u32 a, $1, b; not.b32 b, b; and.b32 $0, a, b; }"
            up = ir.InlineAsm(ir.FunctionType(word, [word, word]), text, "=r,r,r")
            return builder.call(up, [address, values[0]], attrs=("nounwind", "readnone"))

        return u32(u32), codegen

    return _of_python(model, start)
