"""The Chinese pages: every English text is translated and none has changed since, and the code is the same."""

import html
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("myst_nb", reason="no MyST-NB: pip install -e '.[site]'")

import chinese
import jupytext
import lessons
import nbformat
from jupyter_cache import get_cache
from markdown_it import MarkdownIt
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig

from numba_deform.course.lessons.copying import copy_lessons

NAMES = chinese.names()
LESSONS = [name for name in NAMES if name[0].isdigit()]
CODE = re.compile(r"`[^`]+`")


def pairs(name):
    """[(an English text, its translation)]; code that is translated for its comments, too."""
    texts = chinese.english(name) + ([] if name in LESSONS else chinese.paragraphs(name))
    known = chinese.texts(name)
    return [(text, known[chinese.key(text)]) for text in texts if chinese.key(text) in known]


def test_what_is_translated():
    lessons_ = {"01_boxes", "02_barrier", "04_stages", "05_roles", "06_debugging"}
    assert lessons_ | {"README", "glossary"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_missing_or_stale(name):
    missing, left = chinese.check(name)
    told = "python notebooks/site/chinese.py shows what to translate"
    assert missing == [], f"English that notebooks/zh/{name}.md has not: {told}"
    assert left == [], f"translations of English that has changed: {told}"


def test_a_change_of_the_english_is_found(monkeypatch):
    before = chinese.english("glossary")
    changed = [*before[:-1], before[-1].replace("tile", "piece")]
    assert changed != before
    monkeypatch.setattr(chinese, "english", lambda name: changed)
    assert chinese.check("glossary")[0] == changed[-1:]
    assert chinese.key("a  [b](c)\nd") == chinese.key("a b d") != chinese.key("a b e")


@pytest.mark.parametrize("name", NAMES)
def test_code_and_links_are_those_of_the_english(name):
    for english, ours in pairs(name):
        if not english.startswith(chinese.CODE):
            assert spans(english) == spans(ours), english
            assert targets(ours) >= targets(english), english
            assert len(re.findall(r"^#+ ", english, re.M)) == len(re.findall(r"^#+ ", ours, re.M)), english


def spans(text):
    """What stands between backquotes; a line break in it is a space."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return {" ".join(code.split()) for code in CODE.findall(prose)}


def targets(text):
    return {re.sub(r".*/|\.(py|md)(#.*)?$", "", place) for _, place in chinese.LINK.findall(text)}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_bold_is_bold(name):
    """Next to Chinese punctuation Markdown takes asterisks for asterisks."""
    for _, ours in pairs(name):
        page = MarkdownIt().enable("table").render(ours)
        plain = re.sub(r"<(code|pre)[ >].*?</\1>", "", page, flags=re.S)
        assert "*" not in html.unescape(plain), ours
        broken = re.findall(r"[\u4e00-\u9fff，。；：]\n[\u4e00-\u9fff]", ours)
        assert not broken, "a line break within a paragraph would be shown as a space"


@pytest.mark.parametrize("name", LESSONS)
def test_the_code_is_the_same(name):
    """To the letter, so that its cells run once for both pages."""
    source, cache = [(chinese.ROOT / "notebooks" / f"{name}.py").read_text()], get_cache("unused")
    lessons.add_buttons(None, f"notebooks/{name}", source)
    config = MdParserConfig()
    ours = read_myst_markdown_notebook(chinese.lesson(name), config=config, add_source_map=True, path=name)
    english = lessons.read(source[0])
    hashes = [cache.create_hashed_notebook(page)[1] for page in (english, ours)]
    assert hashes[0] == hashes[1]
    kinds = [[cell.cell_type for cell in page.cells] for page in (english, ours)]
    assert kinds[0] == kinds[1]
    plain = jupytext.read(chinese.ROOT / "notebooks" / f"{name}.py", fmt="py:percent")
    assert [c.source.strip() for c in plain.cells if c.cell_type == "code"] == [
        c.source for c in ours.cells if c.cell_type == "code"
    ]


def test_words_around_the_texts_are_there():
    """What the pages say beside their texts is replaced, as long as it is said."""
    places = [lessons.__file__, chinese.ROOT / "numba_deform" / "course" / "lessons" / "copying.py"]
    said = "".join(open(place).read() for place in places)
    assert [word for word in chinese.WORDS if word not in said] == []
    page = '<a href="x">Open in Colab</a> <summary>A solution of here</summary>'
    ours = '<a href="x">在 Colab 中打开</a> <summary>参考解答：here</summary>'
    assert chinese.in_chinese(page, "README") == ours
    question = chinese.english("02_barrier")[0]
    assert chinese.in_chinese(f"<p>{question}</p>", "02_barrier") == (
        f"<p>{chinese.texts('02_barrier')[chinese.key(question)]}</p>"
    )


def test_a_text_that_waits_is_said(monkeypatch):
    """The page is built all the same, and leads to the English one."""
    known = chinese.texts("glossary")
    monkeypatch.setattr(chinese, "texts", lambda name: dict(list(known.items())[:-1]))
    assert chinese.page("glossary").endswith(chinese.WAITS.format("notebooks/site/glossary.md"))
    page = chinese.lesson("02_barrier")
    assert page.count(chinese.WAITS.format("notebooks/02_barrier.py")) > 30 and "\n# 2 · One barrier\n" in page


def test_the_notebooks(tmp_path, monkeypatch):
    """To work in: the cells of the English ones, texts in Chinese, links to what is there. Colab opens them."""
    copy_lessons(tmp_path / "notebooks")
    chinese.write(SimpleNamespace(builder=SimpleNamespace(name="html"), outdir=tmp_path), None)
    folder = tmp_path / "notebooks"
    assert sorted(path.stem for path in (folder / "zh").iterdir()) == LESSONS
    for name in LESSONS:
        english, ours = (nbformat.read(place / f"{name}.ipynb", 4) for place in (folder, folder / "zh"))
        for before, after in zip(english.cells, ours.cells, strict=True):
            if before.cell_type == "code":
                assert before.source == after.source and before.metadata == after.metadata
            else:
                assert re.search("[\u4e00-\u9fff]", after.source), before.source
                prose = re.sub(r"`[^`]*`|<details.*", "", after.source, flags=re.S)
                for _, place in chinese.LINK.findall(prose):
                    assert "://" in place or (folder / "zh" / place).is_file(), place
    monkeypatch.setattr(lessons, "NAME", "some/name")
    assert "/notebooks/zh/02_barrier.ipynb" in chinese.lesson("02_barrier")
