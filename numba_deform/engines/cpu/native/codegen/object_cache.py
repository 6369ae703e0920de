"""LLVM's code on disk, in the directory of ``compiler/cache.py``: another process need not wait for it.

Its key is made of the text of the module and of what LLVM makes code for. Functions of other modules stand in
that text by their names, and nothing by the address that it has in this process.
"""

import llvmlite
import llvmlite.binding as llvm

from .....compiler import cache


class ObjectCache:
    """The object code of a module, None in ``code`` while there is none."""

    def __init__(self, text, machine, *more):
        parts = text, machine.triple, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(),
        parts += llvmlite.__version__, str(llvm.llvm_version_info), *map(str, more)
        self.key = cache.directory() and cache.digest(*parts)
        self.code = cache.load("object", self.key)

    def serve(self, engine):
        """Have an engine take its code from here, or leave it here."""
        if self.key:
            engine.set_object_cache(self._keep, lambda module: self.code)

    def _keep(self, module, code):
        cache.store("object", self.key, code)
