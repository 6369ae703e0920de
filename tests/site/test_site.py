"""The site: it is built without a warning, no link is dead, and its pages look right, on a phone too."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import additions
import lab
import pages
import progress
import pytest

from numba_deform import cli
from numba_deform.cli import site
from numba_deform.engines import faults

ROOT = Path(__file__).resolve().parents[2]
LOOKED_AT = (
    "index", "notebooks/README", "notebooks/01_boxes", "notebooks/04_stages", "notebooks/06_debugging",
    "notebooks/08_half_a_variant", "notebooks/10_adding", "notebooks/11_tensor_cores", "notebooks/12_clusters",
    "notebooks/13_flash_attention", "notebooks/14_profiling", "notebooks/15_cuda", "notebooks/a_model",
    "notebooks/site/playground", "notebooks/site/card", "notebooks/site/glossary",
    "notebooks/zh/README", "notebooks/zh/02_barrier", "notebooks/zh/glossary",
    "notebooks/site/pipelines", "notebooks/site/api", "notebooks/site/measured",
    "bench/INTRINSICS", "notebooks/site/intrinsics/tma", "bench/FAULTS", "bench/TABLE",
    "bench/SIDE_BY_SIDE", "CONTRIBUTING",
)  # fmt: skip
SMALLEST, CONTRAST = 11.5, 3  # pixels; of letters against what is behind them (WCAG 2 asks 3 of large ones)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The site, built as a reader builds it, by the first of the test processes that wants it."""
    pytest.importorskip("myst_nb", reason="no MyST-NB: pip install -e '.[site]'")
    fcntl = pytest.importorskip("fcntl", reason="file locks of Windows are others")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with open(base / "site.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "site" / "built").exists():
            build(base / "site")
            (base / "site" / "built").touch()
    return base / "site"


def build(folder):
    words = [sys.executable, "-m", "numba_deform", "site", "open=0", f"out={folder}"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")}
    done = subprocess.run(words, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def driver(folder):
    pytest.importorskip("selenium", reason="no selenium: pip install -e '.[test]'")
    with lab.browser() as driver:
        yield driver


def open_page(driver, folder, name):
    driver.get((folder / f"{name}.html").as_uri())
    lab.until(lambda: driver.execute_script(pages.LOADED), f"{name} is loaded")


@pytest.mark.full
def test_no_link_is_dead(folder):
    found = pages.read(folder)
    count, dead = pages.links(found)
    assert dead == []
    assert count > 1000


@pytest.mark.full
def test_all_is_there(folder):
    """Every lesson with its outputs and its notebook, every intrinsic, pipeline, and fault with its report."""
    import nbformat
    import quiz

    from numba_deform.course.bugs import BUGS

    first = (folder / "index.html").read_text()
    for page in sorted(ROOT.glob("bench/*.md")):
        assert f'href="bench/{page.stem}.html"' in first, f"{page.name} has no place in the navigation"

    for lesson in (ROOT / "notebooks").glob("[0-9]*.py"):
        text = (folder / "notebooks" / f"{lesson.stem}.html").read_text()
        assert text.count("Still open") == lesson.read_text().count('# %% exercise="'), lesson.name
        assert text.count('<details class="solution">') == text.count("Still open"), lesson.name
        short = [name for name in quiz.QUESTIONS if f'# %% exercise="{name}"' in lesson.read_text()]
        assert text.count('class="quiz"') == len(short), lesson.name
        assert 'class="frames-picture"' in text
        notebook = nbformat.read(folder / "notebooks" / f"{lesson.stem}.ipynb", as_version=4)
        nbformat.validate(notebook)
        assert notebook.cells[0].source.startswith("%pip install")
    for path in (ROOT / "notebooks" / "zh").glob("*.md"):  # with the English page's outputs, and a link to it
        text = (folder / "notebooks" / "zh" / f"{path.stem}.html").read_text()
        assert 'lang="zh-CN"' in text and ">English</a>" in text, path.name
        if path.stem[0].isdigit():
            other = (folder / "notebooks" / f"{path.stem}.html").read_text()
            assert f'<a href="zh/{path.stem}.html">中文</a>' in other, path.name
            assert text.count("Still open") == other.count("Still open") and 'class="frames-picture"' in text
    text = (folder / "notebooks" / "site" / "intrinsics" / "mbarrier.html").read_text()
    assert 'id="numba_deform.mbarrier_init"' in text and "mbarrier.init.shared::cta.b64" in text
    text = (folder / "notebooks" / "site" / "api.html").read_text()
    for name in ("simulate", "Ring", "WarpRing", "pipeline", "Launch", "timeline", "profile", "variant", "Rows",
                 "prepare", "shared_at"):  # fmt: skip
        assert f'id="numba_deform.{name}"' in text
    text = (folder / "notebooks" / "site" / "pipelines.html").read_text()
    pictures = text.count('src="../../_images/') + text.count('<div id="timeline-')
    outputs = re.sub("<[^>]+>", "", text)
    assert pictures == 4 and "right: 8 copies by TMA" in outputs and "complete: every order" in outputs
    for file in (ROOT / "numba_deform" / "course" / "pipelines").glob("[a-z]*.py"):
        names = re.findall(r"@nd.pipeline\ndef (\w+\()", file.read_text())
        assert names and all(f"def {name}" in outputs for name in names), f"{file.name} is not shown"
    text = (folder / "bench" / "FAULTS.html").read_text()
    for bug in BUGS.values():
        assert all(kind.__name__ in text for kind in bug.faults) and bug.title.split("'")[0] in text


@pytest.mark.full
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_looks_right(driver, folder, name, width, dark, tmp_path):
    pages.size(driver, width, 900, dark)
    open_page(driver, folder, name)
    shots = Path(os.environ.get("SITE_SHOTS", tmp_path))
    shot = shots / f"{name.replace('/', '-')}-{width}-{'dark' if dark else 'light'}.png"
    driver.save_screenshot(str(shot))
    assert not driver.execute_script(pages.WIDER), "the page is wider than the screen"
    for place, wide, alt in driver.execute_script(pages.PICTURES):
        assert wide > 0, f"{place} is missing"
        assert alt, f"{place} has no text for those who do not see it"
    assert driver.execute_script(pages.TEXT, SMALLEST, CONTRAST) == {}


# Steps every slider of a page through all its frames, and back; for each slider: its frames, those that were
# shown, how many pictures differ, how often one was too wide or too small, how often its words were another's,
# and the filter on it.
STEP = """
return [...document.querySelectorAll('.frames')].map(box => {
    const data = JSON.parse(box.querySelector('script').textContent);
    const sliders = [...box.querySelectorAll('input')], shown = new Set(), pictures = new Set();
    let wider = 0, unlike = 0;
    const look = () => {
        const picture = box.querySelector('.frames-picture'), svg = picture.querySelector('svg');
        shown.add(Number(box.dataset.frame));
        pictures.add(svg.outerHTML);
        wider += document.documentElement.scrollWidth > innerWidth || svg.getBoundingClientRect().width < 200;
        unlike += picture.getAttribute('aria-label') !== data.alts[box.dataset.frame];
    };
    const turn = depth => {
        if (depth === sliders.length) return look();
        const [back, on] = sliders[depth].closest('div').querySelectorAll('button');
        while (Number(sliders[depth].value) > 0) back.click();
        turn(depth + 1);
        while (Number(sliders[depth].value) < Number(sliders[depth].max)) { on.click(); turn(depth + 1); }
    };
    turn(0);
    const filter = getComputedStyle(box.querySelector('svg')).filter;
    return [data.frames.length, shown.size, pictures.size, wider, unlike, filter];
});
"""


@pytest.mark.full
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_slider_moves(driver, folder, width, dark):
    pages.size(driver, width, 900, dark)
    for lesson in sorted((ROOT / "notebooks").glob("[0-9]*.py")):
        if count := lesson.read_text().count("lessons.slider("):
            open_page(driver, folder, f"notebooks/{lesson.stem}")
            stepped = driver.execute_script(STEP)
            assert len(stepped) == count, lesson.name
            for frames, shown, pictures, wider, unlike, style in stepped:
                assert frames == shown > 1 and pictures > frames / 2 and not wider and not unlike, lesson.name
                assert ("invert" in style) == dark, lesson.name


# [whether the question and most of its picture are on the screen, letters a line of each long paragraph]
FIRST_SCREEN = """
const opening = document.querySelector('article figure.opening'), box = opening?.getBoundingClientRect();
const lines = [...document.querySelectorAll('article section > p')].filter(p => p.textContent.length > 300).map(
    p => p.textContent.length / Math.round(p.offsetHeight / parseFloat(getComputedStyle(p).lineHeight)));
const svg = opening?.querySelector('.frames-picture svg');
const asks = opening?.querySelector('figcaption').textContent.endsWith('?');
return [Boolean(asks && svg.getBoundingClientRect().width > 200
    && box.top + Math.min(box.height, 300) < innerHeight), lines];
"""


@pytest.mark.full
def test_a_lesson_begins_with_a_question(driver, folder):
    """And its picture, at once; what is to be read has lines of a good length."""
    for lesson in sorted((ROOT / "notebooks").glob("[0-9]*.py")):
        for width in (1280, 390):
            pages.size(driver, width, 900, False)
            open_page(driver, folder, f"notebooks/{lesson.stem}")
            begins, letters = driver.execute_script(FIRST_SCREEN)
            assert begins, lesson.name
            if width == 1280:
                assert max(letters) < 86 and 64 < sum(letters) / len(letters) <= 80, lesson.name


def test_the_first_pages_ring_needs_no_other_file():
    """Its reports stand in the page, and its script loads nothing: it turns once that script is there."""
    text = additions.first_page((ROOT / "README.md").read_text())
    ring = text[text.index('<div class="ring"') : text.index("</script>")]
    reports = json.loads(ring.partition('type="application/json">')[2])
    assert set(reports) == set(additions.DROPPED) and all(each["report"] for each in reports.values())
    assert text.index(ring) < text.index("Deformable DETR")  # and before any model's name
    script = (ROOT / "notebooks" / "site" / "ring.js").read_text()
    assert not re.search(r"\b(fetch|import|XMLHttpRequest|Worker|src|href|url)\b", script)


@pytest.mark.full
def test_the_ring_on_the_first_page(driver, folder):
    """It turns; without a line it stops, with what the engine says of the planted fault; put back, it turns."""
    open_page(driver, folder, "index")
    files = """return [...document.querySelectorAll('script[src], link[rel=stylesheet], img')].map(
        one => one.src || one.href);"""
    assert all(file.startswith(folder.as_uri()) for file in driver.execute_script(files))
    code = """const ring = document.getElementById('ring').ring, seen = new Set();
        ring.run(false);
        if (arguments[0]) document.querySelector(`#ring [data-drop=${arguments[0]}]`).click();
        ring.run(false);
        for (let i = 0; i < 1000 && !ring.fault; i++) {
            ring.step(50);
            ring.stages.forEach(stage => seen.add(stage.state));
        }
        return [ring.taken, seen.size, ring.fault, document.querySelector('.ring-report').textContent];"""
    taken, states, fault, report = driver.execute_script(code, "")
    assert taken > 30 and states == 4 and (fault, report) == ("", "")
    kinds = {"acquire": faults.RefillRace, "wait": faults.InFlightRead, "fence": faults.MissingRefillFence}
    for line, kind in kinds.items():
        _, _, fault, report = driver.execute_script(code, line)
        assert fault == line and f"{kind.__name__}: " in report and kind.rule in report
    taken, _, fault, report = driver.execute_script(code, line)  # put back
    assert taken > 30 and (fault, report) == ("", "")


def play(driver, game, *keys):
    """Click the buttons of a game; (what it has said last, its fault)."""
    click = "document.querySelector(`#play-${arguments[0]} [data-do=${arguments[1]}]`).click()"
    for key in keys:
        driver.execute_script(click, game, key)
    said = "return ['.play-said li:last-child', '.play-fault'].map("
    said += "what => document.querySelector(`#play-${arguments[0]} ${what}`)?.textContent ?? '')"
    return driver.execute_script(said, game)


def choose(driver, game, name, value):
    code = "const box = document.querySelector(`#play-${arguments[0]} [data-choice=${arguments[1]}]`);"
    code += "box.value = arguments[2]; box.dispatchEvent(new Event('change'));"
    driver.execute_script(code, game, name, value)


@pytest.mark.full
def test_one_barrier_is_played(driver, folder):
    """What the page tells a reader to try."""
    pages.size(driver, 390, 900, False)
    open_page(driver, folder, "notebooks/site/playground")
    choose(driver, "barrier", "arrivals", 1)
    assert play(driver, "barrier", "both-0") == ["thread 0: expects 128 bytes and arrives", ""]
    assert play(driver, "barrier", "complete") == ["phase 0 is over; phase 1, pending 1 of 1, tx-count 0", ""]
    assert "goes on: phase 0 is over" in play(driver, "barrier", "wait0-1")[0]
    assert "phase 1 is not over" in play(driver, "barrier", "wait1-1")[0]
    _, fault = play(driver, "barrier", "arrive-0")
    assert fault.startswith("UnobservedPhase: thread 0 arrives on bar in phase 1 without having waited")
    assert faults.UnobservedPhase.rule in fault and faults.UnobservedPhase.cure in fault
    play(driver, "barrier", "again", "arrive-0", "wait0-1", "arrive-1", "wait1-0", "arrive-0")
    assert play(driver, "barrier", "wait0-2")[1].startswith("MissedPhase: thread 2 waits on bar for phase 0")


@pytest.mark.full
def test_a_ring_is_played(driver, folder):
    """A ring that wraps, twice; a wrong parity; a refill too early."""
    open_page(driver, folder, "notebooks/site/playground")
    round_ = ["acquire", "issue", "land", "wait-1", "read-1", "release-1", "wait-2", "read-2", "release-2"]
    for tile in range(6):
        said, fault = play(driver, "ring", *round_)
        assert said == f"consumer 2: is done with tile {tile}, and arrives on empty[{tile % 2}]" and not fault
    said, fault = play(driver, "ring", "again", "acquire", "issue", "acquire", "issue", "acquire")
    assert "empty[0], parity 0: it is not free yet" in said and not fault
    assert play(driver, "ring", "issue")[1].startswith("TooManyArrivals")
    assert "parity 1, and goes on" in play(driver, "ring", "again", "acquire", "issue", "other-1")[0]
    assert play(driver, "ring", "read-1")[1].startswith("FreshBarrierPassed: consumer 1 reads stage 0")
    choose(driver, "ring", "stages", 1)
    play(driver, "ring", "acquire", "issue", "land", "wait-1", "read-1", "wait-2", "read-2")
    _, fault = play(driver, "ring", "release-1", "release-1", "acquire", "issue")
    assert fault.startswith("RefillRace: producer asks for tile 1 into stage 0")


@pytest.mark.full
def test_a_phone_reaches_every_page(driver, folder):
    from selenium.webdriver.common.by import By

    pages.size(driver, 390, 844, False)
    open_page(driver, folder, "bench/FAULTS")
    link = driver.find_element(By.CSS_SELECTOR, ".sidebar-tree a[href$='01_boxes.html']")
    inside = "const box = arguments[0].getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth"
    assert not driver.execute_script(inside, link)
    driver.find_element(By.CSS_SELECTOR, ".mobile-header label[for=__navigation]").click()
    lab.until(lambda: driver.execute_script(inside, link), "the menu comes in")
    link.click()
    lab.until(lambda: driver.current_url.endswith("01_boxes.html"), "its link leads to lesson 1")


@pytest.mark.full
def test_one_click_where_the_repository_is_known():
    """The buttons lead to it, and the notebook's first cell installs from it."""
    pytest.importorskip("sphinx", reason="no Sphinx: pip install -e '.[site]'")
    code = "import lessons; print(lessons.buttons('01_boxes', '')); print(lessons.install_cell().source)"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GITHUB_REPOSITORY": "some/name", "GITHUB_SHA": "c0ffee"}
    folder = ROOT / "notebooks" / "site"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for place in (
        "https://colab.research.google.com/github/some/name/blob/gh-pages/notebooks/01_boxes.ipynb",
        "https://codespaces.new/some/name", 'href="01_boxes.ipynb" download',
        "git+https://github.com/some/name@c0ffee",
    ):  # fmt: skip
        assert place in done.stdout


@pytest.mark.full
@pytest.mark.parametrize("shown", [True, False])
def test_solutions_may_be_withheld(shown, tmp_path):
    """In a lesson's page, in what answers there, in the notebooks beside it, and in their folder."""
    pytest.importorskip("sphinx", reason="no Sphinx: pip install -e '.[site]'")
    code = """import lessons, repository, pathlib, types, sys
folder = pathlib.Path(sys.argv[1])
print(lessons.add_answers("01_boxes", pathlib.Path("../01_boxes.py").read_text()))
app = types.SimpleNamespace(builder=types.SimpleNamespace(name="html"), outdir=folder)
app.env = types.SimpleNamespace(metadata={"a page": {"files": {"notebooks/solutions"}}})
lessons.write(app, None)
repository.write(app, None)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_DEFORM_SOLUTIONS": str(int(shown))}
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT / "notebooks" / "site", env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    texts = [done.stdout, *(path.read_text() for path in tmp_path.glob("notebooks/0*.ipynb"))]
    assert len(texts) == 10 and all(("A solution of" in text) == shown for text in texts)
    assert ('class="quiz"' in done.stdout) == shown
    assert (tmp_path / "source/notebooks/solutions/01_boxes.py.html").exists() == shown
    assert ("not part of this site" in (tmp_path / "source/notebooks/solutions.html").read_text()) != shown


# --- where the site cannot be built, too ----------------------------------------------------------
def test_dead_links_are_found(tmp_path):
    (tmp_path / "one.html").write_text('<p id="here"><a href="two.html#there">x</a><a href="#here">y</a>')
    (tmp_path / "two.html").write_text('<p id="other"><img src="no.png"><a href="https://example.org">z</a>')
    count, dead = pages.links(pages.read(tmp_path))
    assert count == 3 and dead == ["one.html: two.html#there", "two.html: no.png"]


def test_what_is_missing_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(site, "NEEDED", ("json", "no_such_package"))
    assert cli.main(["site", "open=0"]) == 2
    assert f"site needs no_such_package: pip install -e '{ROOT}[site]'" in capsys.readouterr().err
    monkeypatch.setattr(site, "SOURCES", tmp_path)
    assert cli.main(["site"]) == 2
    assert "from a checkout of the repository" in capsys.readouterr().err


def test_pages_whose_cells_run_are_dealt_out():
    """Sphinx gives a process ten pages at a time, in their order: each gets some of those that take long."""
    pages_ = [*(f"bench/{i:02}" for i in range(15)), *(f"notebooks/{i:02}" for i in range(20))]
    names = list(pages_)
    progress.Progress().deal(None, None, names)
    assert sorted(names) == pages_
    portions = [names[first : first + 10] for first in range(0, 35, 10)]
    assert all(4 <= sum(name.startswith("notebooks") for name in portion) <= 6 for portion in portions[:3])


def test_what_warned_is_read_again(monkeypatch, tmp_path):
    monkeypatch.setattr(site, "NEEDED", ())
    monkeypatch.setattr(site, "READ", tmp_path / "read")
    monkeypatch.setattr(subprocess, "run", lambda words: subprocess.CompletedProcess(words, status))
    for status in (0, 1):
        site.READ.mkdir(exist_ok=True)
        assert cli.main(["site", "open=0", f"out={tmp_path}"]) == status
        assert site.READ.exists() == (status == 0)


def test_the_card_and_the_glossary_name_what_is_there():
    """Faults of the engine; words in order, each with lessons that use it."""
    card, glossary = ((ROOT / "notebooks" / "site" / f"{name}.md").read_text() for name in ("card", "glossary"))
    named = [name for row in re.findall(r"^\|.*\| ([A-Z][\w, ]+) \|$", card, re.M) for name in row.split(", ")]
    assert len(named) > 15 and [name for name in named if not hasattr(faults, name)] == []
    rows = re.findall(r"^\| ([^|]+) \|[^|]+\| (.*\.py\).*) \|$", glossary, re.M)
    words = [word for word, _ in rows]
    assert len(rows) > 30 and words == sorted(words, key=str.lower)
    for word, places in rows:
        for number, file in re.findall(r"\[(\d+)\]\(\.\./(\w+\.py)\)", places):
            text = (ROOT / "notebooks" / file).read_text().lower()
            assert file.startswith(f"{int(number):02}_"), file
            assert re.split(",| count", word.lower())[0] in text, (word, file)


def test_the_container_opens_lesson_1(tmp_path, monkeypatch):
    """Its commands are ours, and what they write is what it opens."""
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    monkeypatch.chdir(tmp_path)
    for command in container["postCreateCommand"].split(" && "):
        program, *words = command.split()
        assert program == "numba-deform" and cli.main(words) == 0
    (opened,) = container["customizations"]["codespaces"]["openFiles"]
    assert (tmp_path / opened).is_file()
    assert f"/{opened.partition('/')[0]}/" in (ROOT / ".gitignore").read_text().splitlines()


def test_the_workflow_calls_what_there_is():
    """With keys that the command has, on the branch at which Colab looks; nothing names a repository."""
    text = (ROOT / ".github" / "workflows" / "site.yml").read_text()
    (line,) = [line for line in text.splitlines() if "numba-deform site" in line]
    known = {key.name for key in cli.COMMANDS["site"].keys}
    assert {word.partition("=")[0] for word in line.split("numba-deform site ")[1].split()} <= known
    branch = 'BRANCH = "gh-pages"' in (ROOT / "notebooks" / "site" / "lessons.py").read_text()
    assert branch and text.count("gh-pages") >= 3
    assert set(re.findall(r"github\.com/(\S+?)[/\"]", text)) == {"$GITHUB_REPOSITORY"}
