"""A kernel's Python code as a program of the engine: typed, its names bound. ``PreparedLaunch`` asks for it."""

import inspect
import linecache
import re
import warnings

from .....compiler.inference import NotInferred, Refused, identity, infer
from .....compiler.outline import Outline
from .....compiler.rewrite import rebind
from .... import faults
from ....suggestions import closest
from ...explain.debugger import breakpoint_function
from ...reports.call_sites import KERNEL, is_library
from .cuda_module import printed, zipped
from .name_binding import NameBinding
from .typed_code import typed


def typed_form(function, given, key):
    """(the kernel with the types that Numba infers (``typed_code``), None where its source is not to be had;
    the Outline under which it is kept on disk). ``key`` is what this process tells it from others by."""
    form, outline = FORMS.get(key, (None, None))
    # What stands around the function that it was made for may have changed since.
    if form and (form.function is function or identity(form.function) == key[0]):
        return form, outline
    outline = Outline(function, given)
    form = outline.load("typed")
    if form is None:
        form = _inferred_form(function, given)
        outline.store("typed", form)
    if len(FORMS) >= KEPT:
        FORMS.clear()
    FORMS[key] = form, outline
    return form, outline


FORMS, KEPT = {}, 1024


def _inferred_form(function, given):
    try:
        return typed(infer(function, given))
    except NotInferred:
        return None
    except Refused as refused:
        code = refused.function.__code__
        line = refused.line or code.co_firstlineno
        source = linecache.getline(code.co_filename, line).strip()
        fault = faults.NotCompiled(refused.words, where=f"{code.co_filename}:{line}", source=source)
        if any(array in refused.words for array in ("shared.array", "local.array")):
            fault.rule = "The shape of cuda.shared.array and cuda.local.array is a constant: numbers, or "
            fault.rule += "names from outside the kernel that Numba sees as such; no argument and no sum."
            fault.cure = "Write a constant; or cuda.shared.array(0, dtype), with shared_bytes= at the launch."
        elif found := re.search(r"Unknown attribute '(?:stage|barrier|parity)' of type (\w+)", refused.words):
            fault.rule = f"A ring's functions take a state, what start() and advance() return: no {found[1]}."
        elif found := re.match(r".* has no attribute '(\w+)'(?:;|$)|NameError: name '(\w+)' is", refused.words):
            _about_a_name(fault, refused.function, *found.groups())
        raise fault from None


def _about_a_name(fault, function, attribute, name):
    """Say what was perhaps meant, where a kernel's line has an attribute, or else a name, that is nowhere."""
    fault.rule = "A kernel's names are those that its module, the function around it and Python have when it "
    fault.rule += "is compiled, and what stands behind a dot is an attribute of one of them."
    outside = inspect.getclosurevars(function)
    known = outside.builtins | outside.globals | outside.nonlocals | function.__globals__
    packages = {a: m for a, m in known.items() if inspect.ismodule(m) and m.__name__.startswith("numba")}
    words = [*known, *(f"{alias}.{word}" for alias, module in packages.items() for word in dir(module))]
    fault.cure = f"Define or import {name} before the kernel is run{closest(name, words)}"
    path = attribute and re.search(rf"(\w+(?:\.\w+)*)\.{attribute}\b", fault.source)
    if path:
        first, *more = path[1].split(".")
        owner = known.get(first)
        for part in more:
            owner = getattr(owner, part, None)
        fault.cure = f"Write what {path[1]} has{closest(attribute, dir(owner))}"
    fault.cure += "" if fault.cure.endswith("?") else "."


def all_forms(form):
    """A kernel's typed form, and those of all functions that it calls."""
    forms = [form] * (form is not None)
    for each in forms:  # which grows
        forms += (called for called in each.calls.values() if called not in forms)
    return forms


def lacking(form):
    """Warn about functions whose source cannot be read; return the warning's text, or ""."""
    lacks = dict.fromkeys(each.lack for each in all_forms(form) if each.lack)
    if not lacks:
        return ""
    text = f"{'; '.join(lacks)}. It runs with Python's numbers, which do not wrap or round as a GPU's do. Write"
    text += " it as a def into a file that stays as it is, or its text into linecache.cache under that name"
    warnings.warn(text, stacklevel=5)
    return text


def entry_of(function, form, fake, held):
    """The kernel with modules, number types, intrinsics and the like replaced by the engine's; ``form`` is its
    typed form, if it has one, ``held`` what stands for values by their id."""
    names, made = NameBinding(fake, held), {}

    def extra(rebuilt):
        own = {} if is_library(rebuilt, function) else {KERNEL: True}
        return {"print": printed, "zip": zipped, "breakpoint": breakpoint_function()} | own

    def device_function(dispatcher, rebuilt):
        return rebuilt

    def build(form):
        if form not in made:
            new = {**form.names, **{name: build(called) for name, called in form.calls.items()}}
            made[form] = rebind(
                form.function, names.replace, device_function, lambda f: {**extra(f), **new},
                lambda f: form.code if f is form.function else f.__code__, names.module,
            )  # fmt: skip
        return made[form]

    if form:
        return build(form)
    return rebind(function, names.replace, device_function, extra, module=names.module)
