"""Names as they are in the source, of those that a C++ compiler has made: for reports, and for who asks for a
kernel by its name."""

import functools
import re

import itanium_demangler

LONGEST = 60  # characters of template arguments; of more their beginning
LOCAL = re.compile(r"(?<=E)(\d+)(?=[A-Za-z_])")  # in _ZZ4ringE4tile


@functools.cache
def unmangled(name):
    """The last part of a name: ``tile`` of ``_ZZ4ringE4tile``, ``add`` of ``_ZN3mod3addEv``, ``ring`` of
    ``_Z4ringIiEvPf``. What is not mangled stays."""
    return _parts(name)[0]


@functools.cache
def with_arguments(name):
    """The same with template arguments: ``ring<int>`` of ``_Z4ringIiEvPf``; long ones are cut short, and
    namespaces left out."""
    last, arguments = _parts(name)
    if arguments is None:
        return last
    text = ", ".join(re.sub(r"\(\w[\w ]*\)(?=-?\d)|(?:\w+::)+", "", str(a)) for a in arguments.value)
    return f"{last}<{text if len(text) <= LONGEST else text[:LONGEST] + '..'}>"


def is_spelled(mangled, name):
    """Whether somebody may call a function so: with or without namespaces, template arguments, spaces."""
    try:
        whole = str(itanium_demangler.parse(mangled))
    except NotImplementedError:
        return False
    whole, name = (re.sub(r"\((?:bool|\w[\w ]*)\)(?=-?\d)|\s+", "", text) for text in (whole, name))
    return bool(re.search(rf"(?:^|void|::){re.escape(name)}(?:[(<]|$)", whole))


def _parts(name):
    """(the last part of a name, the node of its template arguments or None)"""
    if not name.startswith("_Z"):
        return name, None
    for m in LOCAL.finditer(name):
        length = int(m[1])
        if name.startswith("_ZZ") and len(name[m.end() :].partition("_")[0]) <= length and (
                re.fullmatch(r"(_+\d+)?", name[m.end() + length :])):  # fmt: skip
            return name[m.end() : m.end() + length], None
    try:
        node = itanium_demangler.parse(name)
    except NotImplementedError:
        node = None
    if node is None:
        return name, None
    arguments = None
    while node.kind != "name":
        if node.kind == "qual_name":
            *_, last = parts = node.value
            arguments = last if last.kind == "tpl_args" else None
            node = parts[-2] if arguments else last
        elif node.kind == "func":
            node = node.name
        elif hasattr(node.value, "kind"):  # an ABI tag around a name
            node = node.value
        else:
            return name, None
    return node.value, arguments
