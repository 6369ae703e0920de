"""How verdicts and faults show themselves: as HTML in a notebook, as text elsewhere."""

import html
import re
import sys
import textwrap

from ...measure.timeline import BLUE, GREEN, ORANGE, VERMILION

COLOURS = {"right": GREEN, "wrong": VERMILION, "hole": ORANGE, "fault": BLUE}
CODE = re.compile(r"`([^`\n]+)`")
EMPHASIS = re.compile(r"(?<![\w*])\*(\w+)\*(?![\w*])")
WHOLE_WORDS = {"break_long_words": False, "break_on_hyphens": False}  # to textwrap: a name stays one
PLACE = re.compile(r"[^\s()]*\.py:(\d+)")


def in_notebook():
    """Whether this process is a Jupyter kernel."""
    return hasattr(_shell(), "kernel")


def shows_values():
    """Whether a cell's last value is shown by itself; elsewhere, verdicts and faults print themselves."""
    return _shell() is not None


def _shell():
    """The running IPython, or None; never imports it."""
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython else None


def card(kind, title, body, pre=False):
    """HTML: a box with a coloured edge, a bold ``title`` that says the same in words, and the ``body``.

    The text is escaped. In a body that is not preformatted (``pre``), backticks mark code, and asterisks an
    emphasised *word*.
    """
    # JupyterLab breaks lines of <pre> within words; here only a word that is longer than a line
    style = "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;margin:0.3em 0 0 0"
    style += ";font-family:monospace" if pre else ""
    tag, text = "pre" if pre else "div", html.escape(body)
    if not pre:
        text = EMPHASIS.sub(r"<em>\1</em>", CODE.sub(r"<code>\1</code>", text))
    return (
        f'<div data-kind="{kind}" style="border:1px solid #999;border-left:0.5em solid '
        f'{COLOURS[kind]};padding:0.5em 0.8em;margin:0.5em 0;max-width:60em">'
        f'<b>{html.escape(title)}</b><{tag} style="{style}">{text}</{tag}></div>'
    )


def plain(title, body, width=100):
    """What :func:`card` shows, as text."""
    indent = {"initial_indent": "  ", "subsequent_indent": "  "}
    lines = (textwrap.fill(line, width, **indent, **WHOLE_WORDS) for line in body.splitlines())
    return "\n".join([title, *lines])


def shorten(text):
    """``text`` with ``file.py:12`` for each ``/long/path/file.py:12``, and ``In [3]:12`` where it is a cell."""
    return PLACE.sub(lambda at: f"{_place(at[0].rpartition(':')[0])}:{at[1]}", text)


def _place(file):
    name = file.rpartition("/")[2]
    cells = getattr(getattr(_shell(), "compile", None), "_filename_map", {})
    for cell, number in cells.items():  # cells' files: the file's name -> the cell's number
        if cell.rpartition("/")[2] == name:
            return f"In [{number}]"
    return name


class InCells:
    """What ``shown`` shows, with ``In [3]`` for the file of a cell."""

    def __init__(self, shown):
        self.shown = shown

    def __repr__(self):
        return shorten(repr(self.shown))

    def _repr_html_(self):
        return shorten(self.shown._repr_html_())


class Shown:
    """The report of ``fault``, an exception that a lesson is about, or None where there was none."""

    def __init__(self, fault):
        self.fault = fault
        if not shows_values():
            print(self)

    @property
    def title(self):
        if self.fault is None:
            return "Nothing was reported"
        return type(self.fault).__name__

    @property
    def text(self):
        if self.fault is None:
            return "No rule was broken in this run."
        return shorten(str(self.fault)).removeprefix(f"{self.title}: ")

    def __repr__(self):
        return f"{self.title}: {self.text}"

    def _repr_html_(self):
        return card("fault", self.title, self.text, pre=self.fault is not None)
