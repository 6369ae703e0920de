"""The Chinese pages: every English text is translated and none has changed since, and the code is the same."""

import html
import re
import sys
from types import SimpleNamespace

import nbformat
import pytest

pytest.importorskip("myst_nb", reason="no MyST-NB: pip install -e '.[site]'")

from jupyter_cache import get_cache
from markdown_it import MarkdownIt
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig

from numba_deform.course.lessons.copying import LINK, copy_lessons, lessons_folder

# tests/notebooks has a module lessons, too: of the two each is there for its own tests
theirs = sys.modules.pop("lessons", None)
sys.path.insert(0, str(lessons_folder() / "site"))
import chinese  # noqa: E402
import jupytext  # noqa: E402
import lessons  # noqa: E402

del sys.path[0], sys.modules["lessons"]
sys.modules |= {"lessons": theirs} if theirs else {}

NAMES = chinese.names()
LESSONS = [name for name in NAMES if name[0].isdigit()]
CODE = re.compile(r"`[^`]+`")


def pairs(name):
    """[(an English text, its translation)]; code that is translated for its comments, too."""
    texts = chinese.english(name) + ([] if name in LESSONS else chinese.paragraphs(name))
    known = chinese.translations(name)
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
    return {re.sub(r".*/|\.(py|md)(#.*)?$", "", place) for _, place in LINK.findall(text)}


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


def test_a_lesson_is_read_in_one_language_at_a_time(tmp_path):
    """So that its cells run once, in whichever comes first."""
    fcntl = pytest.importorskip("fcntl")
    app, now = SimpleNamespace(doctreedir=tmp_path), fcntl.LOCK_EX | fcntl.LOCK_NB
    chinese.take_turn(app, "notebooks/02_barrier", None)
    with open(tmp_path / "02_barrier.lock") as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, now)
        chinese.end_turn()
        fcntl.flock(other, now)
    chinese.take_turn(app, "notebooks/zh/02_barrier", None)
    chinese.take_turn(app, "notebooks/zh/glossary", None)  # it has no cells, and what was held is given back
    assert chinese.turn == [] and not (tmp_path / "glossary.lock").exists()


def test_words_around_the_texts_are_there():
    """What the pages say beside their texts is replaced, as long as it is said."""
    package = chinese.ROOT / "numba_deform" / "course" / "lessons"
    places = [lessons.__file__, lessons.run_here.__file__, package / "copying.py"]
    said = "".join(open(place).read() for place in places)
    assert [word for word in chinese.WORDS if word not in said] == []
    page = '<a href="x">Open in Colab</a> <summary>A solution of here</summary>'
    ours = '<a href="x">在 Colab 中打开</a> <summary>参考解答：here</summary>'
    assert chinese.in_chinese(page, "README") == ours
    question = chinese.english("02_barrier")[0]
    assert chinese.in_chinese(f"<p>{question}</p>", "02_barrier") == (
        f"<p>{chinese.translations('02_barrier')[chinese.key(question)]}</p>"
    )


def test_a_text_that_waits_is_said(monkeypatch):
    """The page is built all the same, and leads to the English one."""
    known = chinese.translations("glossary")
    monkeypatch.setattr(chinese, "translations", lambda name: dict(list(known.items())[:-1]))
    assert chinese.page("glossary").endswith(chinese.WAITS.format("notebooks/site/glossary.md"))
    page = chinese.lesson("02_barrier")
    assert page.count(chinese.WAITS.format("notebooks/02_barrier.py")) > 30 and "\n# 2 · One barrier\n" in page


def test_the_notebooks(tmp_path, monkeypatch):
    """To work in: the cells of the English ones, texts in Chinese, links to what is there. Colab opens them."""
    copy_lessons(tmp_path)
    copy_lessons(tmp_path / "zh", language="zh")
    assert sorted(path.stem for path in (tmp_path / "zh").iterdir()) == LESSONS
    assert "](02_barrier.ipynb)" in (tmp_path / "zh" / "01_boxes.ipynb").read_text()
    with pytest.raises(ValueError, match="no lessons in language=fr"):
        copy_lessons(tmp_path / "fr", language="fr")
    for name in LESSONS:
        english, ours = (nbformat.read(place / f"{name}.ipynb", 4) for place in (tmp_path, tmp_path / "zh"))
        for before, after in zip(english.cells, ours.cells, strict=True):
            if before.cell_type == "code":
                assert before.source == after.source and before.metadata == after.metadata
            elif "<details" not in before.source:
                assert re.search("[\u4e00-\u9fff]", after.source), before.source
                for _, place in LINK.findall(re.sub(r"`[^`]*`", "", after.source)):
                    assert "://" in place or (tmp_path / "zh" / place).is_file(), place
    monkeypatch.setattr(lessons, "NAME", "some/name")
    monkeypatch.setattr(lessons.run_here, "FOLDER", "here")
    page, name = chinese.lesson("02_barrier"), "02_barrier.ipynb"
    for place in f"/notebooks/zh/{name}", f"/lessons/zh/{name}", '"../../in_browser/pyodide/"':
        assert place in page
    assert "language=zh" in (chinese.ROOT / ".binder" / "postBuild").read_text()
