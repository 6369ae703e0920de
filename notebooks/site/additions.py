"""A Sphinx extension: what the site adds to pages of the repository, before they are read.

To the first page a ring that turns, cards, what to try and the table of contents, to the page of faults the
story and the report of each, to the page of names those that it leaves out. The intrinsics get a page for each
family, with the documentation and the PTX of each. Docstrings with columns become lists."""

import importlib
import inspect
import json
import re
import sys
import textwrap
from pathlib import Path

import numba_deform as nd
from numba_deform.course.bugs import BUGS
from numba_deform.engines import faults
from numba_deform.engines.cpu import SimFault, simulate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "bench"))
intrinsics = importlib.import_module("intrinsics")  # bench/intrinsics.py
# What the first screen says before anything else, and the ring that turns on it (ring.js).
WHAT = """\
**TMA** is a copy engine beside the threads of a GPU: one thread asks for a box of numbers and goes on, and the
box arrives in shared memory by itself. An **mbarrier** is a counter there that knows when: threads and bytes
arrive, and whoever needs the box waits until all of them have.

Here a producer asks for tiles, three ahead, and a consumer adds them up. **Drop one line:**
"""
DROPPED = {  # line -> (the planted fault that lacks it, what that does)
    "acquire": ("no_empty_wait", "Without acquire the producer fills a stage that is still in use."),
    "wait": ("no_full_wait", "Without wait the consumer reads what has not arrived yet."),
    "fence": ("no_refill_fence", "Without the fence the next tile overtakes words that are still being read."),
}
RING = """\
```{raw} html
<div class="ring" id="ring">The ring needs JavaScript.</div>
<script id="ring-reports" type="application/json">REPORTS</script>
```"""
MINUTE = "**In one minute**, in a checkout of the repository. No GPU is needed:"
TRY = """\
    numba-deform bugs parity_two_behind           # a pipeline that is wrong, and the report that says why
    numba-deform new my.py                        # a pipeline in 40 lines; says how to run and draw it"""


def first_page(text):
    """After the title what TMA and mbarrier are, the ring, cards, what to try; at the end the contents."""
    title, about, install, rest = text.split("\n\n", 3)
    if not install.startswith("    pip install"):
        raise ValueError("README.md: a title, what it is, how to install it")
    told = {line: {"what": what, "report": short_report(BUGS[name])} for line, (name, what) in DROPPED.items()}
    ring = RING.replace("REPORTS", json.dumps(told).replace("</", "<\\/"))
    button, _, cards = (HERE / "cards.md").read_text().partition("\n\n")
    head = title, WHAT, ring, button, about, cards, MINUTE, f"{install}\n{TRY}"
    return "\n\n".join([*head, rest, (HERE / "contents.md").read_text()])


def short_report(bug):
    """What running it prints, without what leads on: references, waivers, how to run it again."""
    lines = report(bug).splitlines()
    return "\n".join(line for line in lines if not re.match(r"  (by|see|waive|seed|replay|note)\b", line))


PAGES = HERE / "intrinsics"  # of each family; made here, and not kept


def intrinsics_page(text):
    """In place of each family's table a link to its page."""
    head, *sections = text.split("\n## ")
    parts = [head, "```{toctree}\n:hidden:\n:glob:\n\n/notebooks/site/intrinsics/*\n```\n"]
    for section in sections:
        name, table = section.partition("\n")[0], section.index("| intrinsic |")
        link = f"[{section.count(chr(10) + '| `')} intrinsics](/notebooks/site/intrinsics/{name}.md)"
        parts.append(f"## {name}\n{section[len(name) : table]}{link}\n")
    return "\n".join(parts)


def write_intrinsics():
    """A page for each family: its table of bench/INTRINSICS.md, whose names are links, and the documentation of
    its intrinsics. A page that is the same already is left as it is, and so is not read again."""
    sections = (ROOT / "bench" / "INTRINSICS.md").read_text().split("\n## ")[1:]
    texts = {section.partition("\n")[0]: section for section in sections}
    families = {module.__name__.rpartition(".")[2]: family for module, family in intrinsics.families().items()}
    if list(texts) != list(families):
        raise ValueError("the families have changed: python bench/intrinsics.py > bench/INTRINSICS.md")
    PAGES.mkdir(exist_ok=True)
    for old in set(PAGES.glob("*.md")) - {PAGES / f"{name}.md" for name in texts}:
        old.unlink()
    for name, family in families.items():
        text = texts[name]
        for one in family:
            sign = intrinsics.signature(one)
            text = text.replace(f"| `{sign}` |", f"| {{py:func}}`{one.__name__} <{qualified(one)}>` |")
        before, head, rows = text.partition("| intrinsic |")
        entries = "\n".join(map(entry, family))
        text = f"# {before}:::{{div}} intrinsics\n{head}{rows}\n:::\n\n````{{eval-rst}}\n{entries}\n````\n"
        page = PAGES / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def qualified(one):
    return f"numba_deform.{one.__name__}"


def entry(one):
    """The documentation of one intrinsic, as reStructuredText."""
    sign = intrinsics.signature(one).replace(" x ", "x").replace("local ", "")  # as a Python annotation
    body = inspect.getdoc(one.model)
    if one.ptx:
        body += f"\n\n.. dropdown:: ptx/{one.ptx.file.name}\n\n   .. code-block:: ptx\n\n"
        body += textwrap.indent(ptx_text(one.ptx), 6 * " ")
    return f".. py:function:: {sign}\n   :module: numba_deform\n\n{textwrap.indent(body, 3 * ' ')}\n"


def ptx_text(function):
    """The function as it stands in its file."""
    return re.search(
        rf"^\.visible \.func (\([^)]*\) )?{function.name}\s*\(.*?^\}}", function.file.read_text(), re.S | re.M
    )[0]


def faults_page(text):
    """A section for each fault at the end, with what the CPU engine says of it now."""
    for name in BUGS:
        text = text.replace(f"\n| {name} |", f"\n| [{name}](#{name}) |")
    sections = [f"### {bug.name}\n\n{fault_section(bug)}" for bug in BUGS.values()]
    head = "Notes 1 to 5, where some were met, are those that the project [began with](ORIGINS.md)."
    return "\n".join([text, "## Each fault, and its report", "", head, "", *sections])


def fault_section(bug):
    (_, wrong), (_, right) = bug.lines()
    file = Path(bug.file).relative_to(ROOT)
    lines = [f"- {line}" for line in wrong.splitlines()] + [f"+ {line}" for line in right.splitlines()]
    return "\n".join([
        f"**{bug.title}.** Met in {bug.met}. [`{file.name}`](../{file})", "",
        bug.story.replace("::\n", ":\n"), "",
        "```diff", *lines, "```", "",
        "```text", report(bug), "```", "",
        f"*Cure.* {bug.cure}", "",
    ])  # fmt: skip


def report(bug):
    """What running it prints."""
    kernel, launch = bug.kernel(), bug.arguments()
    try:
        simulate(kernel, launch.grid, kernel.threads, launch.args, launch.shared_bytes)
    except SimFault as fault:
        return str(fault).replace(f"{Path(bug.file).parent}/", "")
    return f"No rule is broken: {launch.wrong()} of {launch.out.size} elements are wrong."


def api_page(text):
    """At its end the functions and classes of ``nd`` that stand neither there nor among the intrinsics."""
    elsewhere = {one.__name__ for family in intrinsics.families().values() for one in family}
    names = [name for name in nd.__all__ if name not in elsewhere and not re.search(rf":: {name}\b", text)]
    others = "\n".join(filter(None, (other(name, getattr(nd, name)) for name in names)))
    return f"{text}\n## More names\n\n````{{eval-rst}}\n.. currentmodule:: numba_deform\n{others}\n````\n"


def other(name, thing):
    """The documentation of a public name, as reStructuredText; None for numbers, types and tables."""
    python = getattr(thing, "py_func", getattr(thing, "model", thing))  # of a device function, of an intrinsic
    if inspect.isclass(python):
        return f".. autoclass:: {name}\n"
    if not inspect.isfunction(python):
        return None
    lines = inspect.getdoc(python).splitlines()
    in_columns(None, "function", name, thing, None, lines)
    body = textwrap.indent("\n".join(lines), 3 * " ")
    return f".. py:function:: {name}{inspect.signature(python)}\n\n{body}\n"


def playground_page(text):
    """With rule and cure of the faults that its games can raise."""
    code = (HERE / "barrier.js").read_text() + (HERE / "playground.js").read_text()
    kinds = {name: getattr(faults, name, None) for name in sorted(re.findall(r'"([A-Z]\w+)"', code))}
    rules = {name: {"rule": kind.rule, "cure": kind.cure} for name, kind in kinds.items() if kind}
    return text.replace("RULES", json.dumps(rules).replace("</", "<\\/"))


ADDITIONS = {"README": first_page, "bench/INTRINSICS": intrinsics_page, "bench/FAULTS": faults_page,
             "notebooks/site/api": api_page, "notebooks/site/playground": playground_page}  # fmt: skip


def add(app, docname, source):
    """Sphinx's event source-read."""
    if docname in ADDITIONS:
        source[0] = ADDITIONS[docname](source[0])


def in_columns(app, what, name, thing, options, lines):
    """Sphinx's event autodoc-process-docstring: paragraphs of names and, in a second column, what they are
    become definitions."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(map(_definitions, paragraphs)).splitlines()


def _definitions(paragraph):
    if not re.match(r"\S+(?: \S+)*(?: {2,}|\n {8,})\S", paragraph):
        return paragraph
    named = []  # [name, lines of text]
    for line in paragraph.splitlines():
        name = re.match(r"(\S+(?: \S+)*)(?: {2,}|$)", line)
        if name:
            named.append((name[1], []))
        named[-1][1].append(line[name.end() :] if name else line.strip())
    return "\n".join(_definition(name, list(filter(None, text)) or [".."]) for name, text in named)


def _definition(name, text):
    return "\n".join([f"``{name}``", *(f"    {line}" for line in text)])


def setup(app):
    app.connect("source-read", add)
    app.connect("autodoc-process-docstring", in_columns)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
