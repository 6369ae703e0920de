"""This operator in place of a library's own: ``with numba_deform.torch.patch("transformers"): ...``."""

import importlib
import importlib.util
import inspect
import sys
import warnings
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import FunctionType, ModuleType

import torch

from ..attention.checks import OperatorError
from . import contracts


@dataclass(frozen=True)
class Library:
    """What a library calls its operator.

    package    its modules are this one and those in it, and in PACKAGE_modules, where transformers puts remote
               code; "" for code that is no package, where all are looked at
    names      the function or class of each name, wherever a module defines it -> what takes its place
    extension  a compiled module, and what takes the place of the functions in it
    stand_in   whether the extension may be missing: the patch provides one then"""

    package: str
    names: dict
    extension: str = ""
    functions: dict = field(default_factory=dict)
    stand_in: bool = False


RETURNING = {"ms_deform_attn_forward": contracts.with_starts, "ms_deform_attn_backward": contracts.backward}
FILLING = {"ms_deform_attn_forward": contracts.with_starts, "ms_deform_attn_backward": contracts.backward_into}
FUNCTION = {"MultiScaleDeformableAttnFunction": contracts.Function,
            "multi_scale_deformable_attn_pytorch": contracts.without_starts}  # fmt: skip
BEVFORMER = {**FUNCTION, "MultiScaleDeformableAttnFunction_fp16": contracts.Function,
             "MultiScaleDeformableAttnFunction_fp32": contracts.FunctionInFloat32}  # fmt: skip
ORIGINAL = Library("", {
    "MSDeformAttnFunction": contracts.Function, "ms_deform_attn_core_pytorch": contracts.deformable_core,
}, "MultiScaleDeformableAttention", RETURNING, stand_in=True)  # fmt: skip
CORE_FUNCTIONS = Library("", {"deformable_attention_core_func": contracts.without_starts,
                              "deformable_attention_core_func_v2": contracts.with_points})  # fmt: skip
LIBRARIES = {
    "transformers": Library("transformers", {
        "MultiScaleDeformableAttention": contracts.MultiScaleDeformableAttention,
        "multi_scale_deformable_attention": contracts.without_starts,
        "multi_scale_deformable_attention_v2": contracts.with_points,
    }),
    "mmcv": Library("mmcv", FUNCTION, "mmcv._ext", FILLING),
    "bevformer": Library("", BEVFORMER, "mmcv._ext", FILLING),
    "deformable-detr": ORIGINAL,
    "mask2former": ORIGINAL,
    "detrex": Library("detrex", FUNCTION),
    "groundingdino": Library("groundingdino", FUNCTION),
    "ultralytics": Library("ultralytics", FUNCTION),
    "rfdetr": Library("rfdetr", {"ms_deform_attn_core_pytorch": contracts.deformable_core}),
    "rt-detr": CORE_FUNCTIONS,
    "d-fine": CORE_FUNCTIONS,
    "deim": CORE_FUNCTIONS,
}  # fmt: skip


def patch(library):
    """A :class:`Patch`: from now on the library's models call this operator, on a GPU or the CPU.

    library  one of ``LIBRARIES``. "deformable-detr" is also for code that took over its folder ``ops``;
             "rt-detr", "d-fine" and "deim" are for the authors' own code, "transformers" for its versions of it

    Gradients of gradients, torch.func and vmap go through it as through a model's own code, exactly, by
    PyTorch's own operations, with their time and memory. The autograd functions of compiled extensions are as
    they were: torch.func refuses them. torch.onnx.export(dynamo=True) gets GridSample in the operator's place,
    or TensorRT's plugin (``numba_deform.torch.tensorrt_plugin``); TorchScript's exporter and torch.jit.script
    are refused; for ExecuTorch, which has no such operator, see ``numba_deform.torch.decompositions``.

    It holds for the whole process, for modules imported already and for those loaded later, by name, by
    path or as remote code, and for models that exist already. What ``torch.compile`` has compiled, of whatever
    model, is compiled again. At the end everything is as it was:

        with numba_deform.torch.patch("transformers") as p:
            model(**inputs)
        print(p)  # what it replaced; a patch that ends and has replaced nothing warns

    or ``p = patch("transformers")`` and later ``p.undo()``. Patches may be nested, repeated, and undone in any
    order. Raises OperatorError for a name that is not known, ImportError for a library that is not there."""
    return Patch(library)


class Patch:
    """This operator stands in for a library's own, until ``undo()`` or the end of a ``with``.

    places    the names of what is replaced now
    replaced  of all that it has replaced"""

    def __init__(self, library):
        if library not in LIBRARIES:
            raise OperatorError(f"library={library}: it must be one of {', '.join(LIBRARIES)}")
        self.name, self.library = library, LIBRARIES[library]
        self.places, self.replaced, self._put, self._depth = [], [], [], 0
        self._apply()

    def __repr__(self):
        names = ", ".join(dict.fromkeys(self.replaced)) or "nothing"
        return f"<patch of {self.name}, which {'replaces' if self in _patches else 'has replaced'} {names}>"

    def __enter__(self):
        if self not in _patches:
            self._apply()
        self._depth += 1
        return self

    def __exit__(self, *error):
        self._depth -= 1
        if not self._depth:
            self.undo()

    def undo(self):
        """Everything as it was before; nothing if that is so already."""
        if self in _patches:
            _patches.remove(self)
            if not self.replaced:
                names = ", ".join(self.library.names)
                told = f"patch({self.name!r}) has replaced nothing: none of its modules defines {names}"
                warnings.warn(told, stacklevel=2)
        while self._put:
            _take_back(self._put.pop())
        if self.places:
            _forget_compiled()
        self.places.clear()
        extension = sys.modules.get(self.library.extension)
        if extension in _stand_ins.values() and (id(extension), "ms_deform_attn_forward") not in _replaced:
            del sys.modules[self.library.extension]

    def _apply(self):
        package = self.library.package
        if package and not (sys.modules.get(package) or importlib.util.find_spec(package)):
            raise ImportError(f"patch({self.name!r}): the package {package} is not installed")
        try:
            self._replace_extension()
            _patches.append(self)
            self._put.append(_put(SourceFileLoader, "exec_module", _watched(SourceFileLoader.exec_module)))
            for module in list(sys.modules.values()):
                self.look_at(module)
            if self.places:
                _forget_compiled()
        except BaseException:
            self.undo()
            raise

    def look_at(self, module):
        """Replace what the module defines, if it is the library's."""
        name, package = getattr(module, "__name__", ""), self.library.package
        of_package = not package or name.partition(".")[0] in (package, f"{package}_modules")
        if not isinstance(module, ModuleType) or not of_package:
            return
        for wanted, contract in self.library.names.items():
            found = vars(module).get(wanted)
            if getattr(found, "__module__", None) != name:
                continue  # it is only imported there
            if isinstance(found, FunctionType):
                found = inspect.unwrap(found)
                self._replace(found, f"{name}.{wanted}", __code__=_calling(contract, found))
            else:
                methods = {key: inspect.getattr_static(contract, key, None) for key in ("forward", "backward")}
                self._replace(found, f"{name}.{wanted}", **{k: v for k, v in methods.items() if v})

    def _replace_extension(self):
        name, functions = self.library.extension, self.library.functions
        if not name:
            return
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            if not self.library.stand_in:
                told = f"patch({self.name!r}) needs {name}, which cannot be imported: {error}"
                raise ImportError(told) from error
            sys.modules[name] = module = _stand_ins.setdefault(name, ModuleType(name))
            module.__spec__ = ModuleSpec(name, None)
        self._replace(module, name, **functions)

    def _replace(self, holder, place, **attributes):
        self.places.append(place)
        self.replaced.append(place)
        for name, new in attributes.items():
            self._put.append(_put(holder, name, new))


# --- what is replaced now, by whoever ---------------------------------------------------------------
_NOTHING = object()
_patches = []  # those that are on
_stand_ins = {}  # modules for extensions that are not there: the same ones again, since others keep them
_replaced = {}  # (id of an object, an attribute's name) -> [the object, what was there, how many put it there]


def _put(holder, name, new):
    """The key in ``_replaced`` of an attribute that has a new value from now on."""
    key = id(holder), name
    if key not in _replaced:
        is_function = isinstance(holder, FunctionType)  # its code is not in vars()
        old = getattr(holder, name) if is_function else vars(holder).get(name, _NOTHING)
        _replaced[key] = [holder, old, 0]
        setattr(holder, name, new)
    _replaced[key][2] += 1
    return key


def _take_back(key):
    entry = _replaced[key]
    entry[2] -= 1
    if entry[2]:
        return
    holder, old, _ = _replaced.pop(key)
    if old is _NOTHING:
        delattr(holder, key[1])
    else:
        setattr(holder, key[1], old)


def _calling(contract, function):
    """Code with the parameters of a function, which calls the contract: whoever holds the function, in a model
    or under another name, calls the contract then. ``torch.compile`` relies on parameters that never change."""
    names = ", ".join(inspect.signature(function).parameters)
    body = f"from {contract.__module__} import {contract.__name__}; return {contract.__name__}({names})"
    space = {}
    exec(f"def {function.__name__}({names}): {body}", space)
    return space[function.__name__].__code__


def _forget_compiled():
    """Have ``torch.compile`` look again at what it has compiled: it does not see that a method is another."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def _watched(run):
    """``exec_module`` of modules written in Python, however they are loaded, which has patches look at them."""

    def exec_module(loader, module):
        run(loader, module)
        for each in list(_patches):
            each.look_at(module)

    return exec_module


# --- transformers' use_kernels ----------------------------------------------------------------------
@dataclass(frozen=True)
class Repository:
    """What the package ``kernels`` loads a layer from: here nothing is downloaded."""

    def load(self):
        return contracts.MultiScaleDeformableAttention


def kernel_mapping():
    """A mapping for ``kernels.use_kernel_mapping``: this operator is the kernel of transformers' layer
    "MultiScaleDeformableAttention", in training and inference, compiled or not:

        with kernels.use_kernel_mapping(numba_deform.torch.kernel_mapping()):
            kernels.kernelize(model, mode=kernels.Mode.TRAINING)

    transformers marks its layers for this if it finds a version of ``kernels`` that it can use. Its own
    ``use_kernels=True`` downloads another kernel for this layer."""
    return {"MultiScaleDeformableAttention": {"cuda": Repository(), "cpu": Repository()}}
