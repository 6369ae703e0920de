"""A *site* is (code object, bytecode offset) of a call: cheap to take. It becomes file and line here, when a
report is written."""

import dis
import functools
import linecache
import re

KERNEL = "__numba_deform_kernel__"  # in the globals of rebuilt kernel code
# Modules of functions that kernels call.
LIBRARY = ("numba_deform.device.", "numba_deform.kernels.warp_product", "numba.cuda.")
# {file of code that was written for a kernel: for each of its lines (file, line, words about it) of the source}
ORIGINS = {}
TEMPORARY, ARRAY, INDEX = "__value", "__array", "__index"  # names that typed code gives to parts of a statement


def is_library(function, kernel):
    """Whether a function is a helper of this package's or of Numba's that ``kernel`` calls: a fault in it names
    the kernel's own line. A kernel may live there itself, as that of ``cuda.reduce`` does."""
    module = function.__module__ or ""
    return module != kernel.__module__ and module.startswith(LIBRARY)


@functools.lru_cache(4096)
def operation_after(site):
    """The name of the bytecode behind the call there, which takes what it returns."""
    code, offset = site
    return next((i.opname for i in dis.get_instructions(code) if i.offset > offset), "")


def result_used(site):
    """Whether the kernel does something with what the call there returns."""
    return operation_after(site) != "POP_TOP"


@functools.lru_cache(4096)
def line_of(site):
    """The line of a call site in the file of its code."""
    code, offset = site
    line = code.co_firstlineno
    for start, _, number in code.co_lines():
        if start > offset:
            break
        line = number or line
    return line


def origin(site):
    """(file, line, words about it) of the source of a call site."""
    file, line = site[0].co_filename, line_of(site)
    return ORIGINS[file][line - 1] if file in ORIGINS else (file, line, "")


def line_in_file(site, other):
    """The line of the source of a call site, if that of ``other`` is in the same file, and neither has been
    inlined from another function; else None."""
    (file, line, words), (own, _, more) = (origin(each) for each in (site, other))
    return line if file == own and "inlined at" not in words + more else None


def frames_of(error):
    """(frame, offset in its code) of all that an exception came through, the outermost first."""
    found, entry = [], error.__traceback__
    while entry is not None:
        found.append((entry.tb_frame, entry.tb_lasti))
        entry = entry.tb_next
    return found


def raised_at(error):
    """The call site in the kernel that an exception came through last; None without one."""
    sites = [(frame.f_code, at) for frame, at in frames_of(error) if KERNEL in frame.f_globals]
    return sites[-1] if sites else None


def describe_site(site):
    """``file:line`` of a call site, and where it is inlined."""
    if site is None:
        return "?"
    file, line, words = origin(site)
    inlined = re.search(r"inlined at [^;)]*", words)
    return f"{file.rpartition('/')[2]}:{line}" + (f" ({inlined[0]})" if inlined else "")


def place(site):
    """(``file:line`` with the full path, that source line) of a call site; (None, None) of None."""
    if site is None:
        return None, None
    file, line, words = origin(site)
    return f"{file}:{line}", f"{linecache.getline(file, line).strip()}{words}"


def indentation(site):
    """How far the line of a call site is indented."""
    line = linecache.getline(*origin(site)[:2])
    return len(line) - len(line.lstrip())


def same_line(a, b):
    """Whether two call sites stand on one source line."""
    return a == b or describe_site(a) == describe_site(b)
