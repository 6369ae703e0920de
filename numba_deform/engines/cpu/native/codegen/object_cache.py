"""LLVM's code on disk, in the directory of ``compiler/cache.py``: another process need not wait for it.

Its key is made of the text of the module and of what LLVM makes code for. Functions of other modules stand in
that text by their names, and nothing by the address that it has in this process.
"""

import functools

import llvmlite
import llvmlite.binding as llvm

from .....compiler import cache


@functools.cache
def machine_words():
    """What LLVM makes code for, and which LLVM it is."""
    return (llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(),
            llvmlite.__version__, str(llvm.llvm_version_info))  # fmt: skip


def object_key(text, level):
    """The key of a module's code."""
    return cache.digest(text, str(level), *machine_words())


class ObjectCache:
    """The object code under a key, None in ``code`` while there is none."""

    def __init__(self, key):
        self.key, self.code = key, cache.load("object", key)

    def serve(self, engine):
        """Have an engine take its code from here, or leave it here."""
        if cache.directory():
            engine.set_object_cache(lambda module, code: cache.store("object", self.key, code),
                                    lambda module: self.code)  # fmt: skip
