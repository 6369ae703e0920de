"""LLVM's text to machine code, with the functions of ``runtime`` compiled once; every kernel's code calls
them."""

import ctypes
import functools
import operator

import llvmlite.binding as llvm
from llvmlite import ir

from .....compiler import cache
from ..runtime import access_checks, collectives, scheduler
from ..runtime.word_functions import Words
from .object_cache import ObjectCache, machine_words, object_key


# --- compiling ------------------------------------------------------------------------------------
def _target():
    """LLVM for this machine; an engine takes it over."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.Target.from_default_triple()
    features = llvm.get_host_cpu_features().flatten()
    return triple.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=1)


def machine_code(text, others=(), level=1, key=None):
    """LLVM's engine with the functions of a module, which calls ``others``, {name: address}. It is kept under a
    key, that of the text if no other is given."""
    machine, module, kept = _target(), llvm.parse_assembly(text), ObjectCache(key or object_key(text, level))
    module.verify()
    if kept.code is None:
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=level))
        passes.getModulePassManager().run(module, passes)
    return _engine(machine, module, kept, others)


def kept_code(key, others=()):
    """The same from disk; None if it is not there."""
    kept = ObjectCache(key)
    if kept.code is None:
        return None
    declared = "".join(f"declare void @{name}()\n" for name in others)
    return _engine(_target(), llvm.parse_assembly(declared), kept, others)


def _engine(machine, module, kept, others):
    module.data_layout = str(machine.target_data)
    engine = llvm.create_mcjit_compiler(module, machine)
    kept.serve(engine)
    for function in module.functions:  # without those that nothing calls any more
        if address := dict(others).get(function.name):
            engine.add_global_mapping(function, address)
    engine.finalize_object()
    return engine


@functools.cache
def check_functions():
    """{name: (address, number of parameters)} of the functions of ``access_checks``."""
    functions = access_checks.find, access_checks.read, access_checks.write, access_checks.overwrite
    functions += scheduler.run, collectives.without, collectives.wake
    key = cache.digest("runtime", *cache.sources(("device", "compiler", "engines")), *machine_words())
    engine = kept_code(key) or machine_code(_text_of(functions), level=2, key=key)
    _engines.append(engine)
    counts = {each.__name__: each.__code__.co_argcount for each in functions}
    return {name: (engine.get_function_address(name), count) for name, count in counts.items()}


def _text_of(functions):
    """A module with these functions."""
    words = Words(ir.Module("checks"))
    for function in functions:
        words.function(function)
    for made in words.functions.values():
        made.linkage = "" if made.name in map(operator.attrgetter("__name__"), functions) else "internal"
    return str(words.module)


@functools.cache
def callable_check(name):
    """One of them as a function of Python."""
    address, count = check_functions()[name]
    return ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(address)


_engines = []
