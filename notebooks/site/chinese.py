"""A Sphinx extension: Chinese pages beside English ones, with a link from each to the other.

A file of notebooks/zh holds texts alone, each behind ``<!-- KEY -->``: the key of the English text that it
translates. Code is the English page's, so it is the same, and its cells run once. Of an English text whose key
stands nowhere a page says that it waits to be translated. What is missing, and what is left over:
``python notebooks/site/chinese.py``, and a test."""

import re
from importlib.util import find_spec
from pathlib import Path

import additions
import jupytext
import lessons

from numba_deform.course.lessons.copying import key, translations

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks" / "zh"
CODE = ("    ", "```", "::::{")  # how a paragraph begins that needs no translation
REST = "\n\n## Use the operator"  # from here on the first page is English alone
FOOT = "怎样使用算子、它有多快、在哪里可以运行，请看[英文首页](/README.md#use-the-operator)。"
WAITS = "*这一段的译文还没有跟上英文，请看[英文页面](/{})。*"
HEADING = re.compile(r"(#+ .*\n)?")
WORDS = {  # what pages and notebooks say around their texts
    "Download the notebook": "下载 notebook", "Open in Colab": "在 Colab 中打开",
    "Open in Binder": "在 Binder 中打开", "Run in this page": "在本页运行",
    "Open in Codespaces": "在 Codespaces 中打开", "Show the imports": "显示 import",
    "What the check says before you begin": "动手之前，检查会说什么", "A solution of ": "参考解答：",
    "Some sliders have fewer values here than in the notebook.": "网页上有些滑块的取值比 notebook 里少。",
}  # fmt: skip


def original(name):
    """The document whose translation the page is."""
    return {"README": "README", "glossary": "notebooks/site/glossary"}.get(name, f"notebooks/{name}")


def paragraphs(name):
    """The English parts of a page that is no lesson. A fence is one, whatever is in it."""
    text, parts = (ROOT / f"{original(name)}.md").read_text(), []
    if name == "README":
        text = additions.first_page(text).partition(REST)[0]
    for part in text.split("\n\n"):
        if parts and parts[-1].count("```") % 2:
            parts[-1] += f"\n\n{part}"
        elif part.strip():
            parts.append(part.strip("\n"))
    return parts


def notebook(name):
    return jupytext.read(ROOT / "notebooks" / f"{name}.py", fmt="py:percent")


def english(name):
    """All English texts that are to be translated, in their order."""
    if not name[0].isdigit():
        told = [what for _, what in additions.DROPPED.values()] if name == "README" else []
        return told + [part for part in paragraphs(name) if not part.startswith(CODE)]
    cells = [cell.source for cell in notebook(name).cells if cell.cell_type == "markdown"]
    return [lessons.OPENINGS[name.partition("_")[2]], *cells]


def waiting(text, file):
    """What stands in place of an English text that is not translated: its heading, and a link to it."""
    return HEADING.match(f"{text}\n")[0] + "\n" + WAITS.format(file)


def lesson(name):
    """The Chinese page's source."""
    page, known = notebook(name), translations(name)
    for cell in page.cells:
        if cell.cell_type == "markdown":
            cell.source = known.get(key(cell.source)) or waiting(cell.source, f"notebooks/{name}.py")
    source = [jupytext.writes(page, fmt="py:percent")]
    lessons.add_buttons(None, f"notebooks/{name}", source)
    for place in f"/notebooks/{name}", f"/lessons/{name}":  # what Colab and Binder open
        source[0] = source[0].replace(f"{place}.ipynb", f"{place.replace(name, 'zh')}/{name}.ipynb")
    text = source[0].replace('data-pyodide="../', 'data-pyodide="../../')
    return jupytext.writes(lessons.read(text), fmt="md:myst")


def page(name):
    """Likewise, of a page that is no lesson."""
    known, parts = translations(name), []
    for part in paragraphs(name):
        waits = part if part.startswith(CODE) else waiting(part, f"{original(name)}.md")
        parts.append(known.get(key(part), waits))
    text = "\n\n".join([*parts, FOOT] if name == "README" else parts)
    for _, what in additions.DROPPED.values():
        text = text.replace(what, known.get(key(what), what))
    return text


def names():
    return [path.stem for path in sorted(FOLDER.glob("*.md"))]


turn = []  # the file whose lock this process holds


def take_turn(app, docname, source):
    """Sphinx's event source-read: a lesson is read in one language at a time, so that the other finds outputs.

    Without fcntl Sphinx has one process alone, which reads one page after another anyhow."""
    end_turn()
    name = docname.rpartition("/")[2]
    if name in names() and name[0].isdigit() and find_spec("fcntl"):
        import fcntl

        turn.append(open(Path(app.doctreedir) / f"{name}.lock", "w"))
        fcntl.flock(turn[0], fcntl.LOCK_EX)


def end_turn(*event):
    """Its event doctree-read: the cells have run."""
    while turn:
        turn.pop().close()


def add(app, docname, source):
    """Its event source-read, after the others."""
    folder, _, name = docname.rpartition("/")
    if folder == "notebooks/zh":
        app.env.note_dependency(str(app.env.doc2path(original(name))))
        text = lesson(name) if name[0].isdigit() else page(name)
        source[0] = with_link(text, app, docname, original(name), "English")
    elif name in names() and docname == original(name):
        source[0] = with_link(source[0], app, docname, f"notebooks/zh/{name}", "中文")


def with_link(text, app, docname, to, word):
    """The page's text with a link to the other one, below its title."""
    place = app.builder.get_relative_uri(docname, to)
    link, row = f'<a href="{place}">{word}</a>', '<div class="open-lesson">'
    if row in text:
        return text.replace(row, f"{row}{link} ", 1)
    title, _, rest = text.partition("\n")
    return f"{title}\n\n{row}{link}</div>\n{rest}"


def in_chinese(html, name):
    """With the words around a page's texts, and the question above its first picture."""
    for word, ours in WORDS.items():
        html = html.replace(f">{word}", f">{ours}")
    if name[0].isdigit():
        question = english(name)[0]
        html = html.replace(question, translations(name).get(key(question), question))
    return html


def show(app, docname, template, context, doctree):
    """Its event html-page-context."""
    folder, _, name = docname.rpartition("/")
    if folder == "notebooks/zh":
        context["language"], context["body"] = "zh-CN", in_chinese(context["body"], name)


def check(name):
    """(English texts without a translation, keys of translations without an English text) of a page."""
    wanted, known = english(name), translations(name)
    used = set(map(key, wanted)) | (set() if name[0].isdigit() else set(map(key, paragraphs(name))))
    return [text for text in wanted if key(text) not in known], [one for one in known if one not in used]


def setup(app):
    app.connect("source-read", take_turn)
    app.connect("source-read", add, priority=900)
    app.connect("doctree-read", end_turn)
    app.connect("html-page-context", show)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    for name in names():
        missing, left = check(name)
        for text in missing:
            print(f"{name}.md lacks:\n<!-- {key(text)} -->\n{text}\n")
        for one in left:
            print(f"{name}.md: no English text has the key {one} any more: {translations(name)[one][:60]}\n")
