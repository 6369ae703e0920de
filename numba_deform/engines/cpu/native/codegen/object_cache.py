"""LLVM's code on disk, in the directory of ``compiler/cache.py``: another process need not wait for it.

A file's name is a SHA-256 over the text of the module and over what LLVM makes code for. Functions of other
modules stand in that text by their names, and nothing by the address that it has in this process.
"""

import base64
import contextlib
import hashlib
import json

import llvmlite
import llvmlite.binding as llvm

from .....compiler import cache


class ObjectCache:
    """The object code of a module, None in ``code`` while there is none."""

    def __init__(self, text, machine, *more):
        place = cache.directory()
        parts = text, machine.triple, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(),
        parts += llvmlite.__version__, str(llvm.llvm_version_info), *map(str, more)
        self.path = place and place / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()}.json"
        self.code = self.path and self._read()

    def _read(self):
        """What ``keep`` wrote, or None if it is not there or not whole."""
        try:
            stored = json.loads(self.path.read_text())
            code = base64.b64decode(stored["object"])
        except (OSError, ValueError, KeyError):
            return None
        return code if hashlib.sha256(code).hexdigest() == stored.get("sha256") else None

    def serve(self, engine):
        """Have an engine take its code from here, or leave it here."""
        if self.path:
            engine.set_object_cache(lambda module, code: self._keep(code), lambda module: self.code)

    def _keep(self, code):
        encoded, digest = base64.b64encode(code).decode(), hashlib.sha256(code).hexdigest()
        with contextlib.suppress(OSError):  # it is enough that this process has it
            cache.save(self.path, {"object": encoded, "sha256": digest})
