"""JupyterLab as a reader has it: a server on this machine, a browser without a window, a lesson that is run."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import pytest

BROWSERS, DRIVERS = ("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)
PATIENCE = 300  # seconds; for what hangs


def program(*names):
    """The path of the first of ``names`` that is installed; skips the test without one."""
    found = next(filter(None, map(shutil.which, names)), None)
    if not found:
        pytest.skip(f"no {names[0]}: apt-get install chromium chromium-driver fonts-dejavu")
    return found


def until(condition, what):
    """The first true value of ``condition()``; fails with ``what`` if it never comes."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"not in {PATIENCE} s: {what}")


def _answers(address):
    try:
        return urllib.request.urlopen(address)
    except OSError:
        return None


@contextmanager
def server(folder, home):
    """The address of a JupyterLab that shows ``folder``, with no settings but those in ``home``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {"IPYTHONDIR": str(home / "ipython"), "NUMBA_DEFORM_ENGINE": "cpu"}
    words = ["--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"]
    words += [f"--ServerApp.root_dir={folder}", "--IdentityProvider.token="]
    words += ["--LabApp.expose_app_in_browser=True"]
    address = f"http://127.0.0.1:{port}"
    with open(home / "log.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words], env={**os.environ, **places}, stdout=log, stderr=log
        )
        try:
            until(lambda: process.poll() is not None or _answers(f"{address}/api"), "JupyterLab answers")
            assert process.poll() is None, (home / "log.txt").read_text()
            yield address
        finally:
            process.terminate()
            process.wait()


@contextmanager
def browser(width=1280, height=1000):
    """A selenium driver of a browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program(*BROWSERS)
    for word in ("headless=new", "no-sandbox", "disable-dev-shm-usage", f"window-size={width},{height}"):
        options.add_argument(f"--{word}")
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(program(*DRIVERS)))
    driver.set_script_timeout(PATIENCE)
    try:
        yield driver
    finally:
        driver.quit()


# What a cell with sliders shows: how many handles, and what is below them.
STATE = """
const cell = jupyterapp.shell.currentWidget.content.widgets[arguments[0]].node;
const shown = cell.querySelector('.widget-interact .widget-output');
return [cell.querySelectorAll('.noUi-handle').length, shown ? shown.innerHTML : ''];
"""
# What a reader cannot read in a cell: values of sliders that are cut off, and reports broken within words.
SPOILT = """
const cell = jupyterapp.shell.currentWidget.content.widgets[arguments[0]].node;
const cut = [...cell.querySelectorAll('.widget-readout')].filter(it => it.scrollWidth > it.clientWidth);
const broken = [...cell.querySelectorAll('[data-kind] pre')].filter(
    it => getComputedStyle(it).wordBreak !== 'normal');
return [...cut, ...broken].map(it => it.textContent);
"""
SHOW = """
const done = arguments[1], notebook = jupyterapp.shell.currentWidget.content;
notebook.scrollToItem(arguments[0], 'start').then(() => done(true), () => done(false));
"""
CELLS = """
return jupyterapp.shell.currentWidget.content.widgets.map(cell => cell.model.sharedModel.source);
"""
READY = """
const panel = window.jupyterapp?.shell.currentWidget;
return panel?.context?.path === arguments[0] && panel.content.widgets.length > 1
    && panel.sessionContext.session?.kernel?.status === 'idle';
"""
RUN = """
const done = arguments[0];
jupyterapp.commands.execute('notebook:run-all-cells').then(done, error => done(String(error)));
"""


class Lesson:
    """A notebook in a browser, run from top to bottom."""

    def __init__(self, driver, address, name):
        self.driver = driver
        driver.get(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb")  # alone, whatever was open before
        until(lambda: driver.execute_script(READY, f"{name}.ipynb"), f"{name} is open and its kernel idle")
        assert driver.execute_async_script(RUN) is True, f"{name} does not run to its end"

    def cells_with(self, words):
        """The numbers of the cells in whose text ``words`` stand."""
        return [i for i, source in enumerate(self.driver.execute_script(CELLS)) if words in source]

    def spoilt(self, cell):
        """The texts in a cell that are cut off or broken within words."""
        assert self.driver.execute_async_script(SHOW, cell)
        return self.driver.execute_script(SPOILT, cell)

    def handles(self, cell):
        """Scroll to the sliders of a cell, as JupyterLab draws only what is seen; their handles."""
        from selenium.webdriver.common.by import By

        assert self.driver.execute_async_script(SHOW, cell)
        count = until(lambda: self.driver.execute_script(STATE, cell)[0], f"cell {cell} has a slider")
        node = "return jupyterapp.shell.currentWidget.content.widgets[arguments[0]].node"
        found = self.driver.execute_script(node, cell).find_elements(By.CSS_SELECTOR, ".noUi-handle")
        assert len(found) == count
        return found

    def shown(self, cell, other_than="", what="shows a picture"):
        """What stands below the sliders of a cell, as HTML with a picture in it; waits until it is another."""

        def new():
            html = self.driver.execute_script(STATE, cell)[1]
            return html if "<img" in html and html != other_than else None

        return until(new, f"cell {cell} {what}")
