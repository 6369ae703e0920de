"""A timeline in a page: the wheel with Ctrl zooms at the pointer, a drag moves, a double click shows all."""

import lab
import pytest

import numba_deform as nd
from numba_deform.course.pipelines.copy import copy

WHEEL = """
const [by, x, y, ctrl] = arguments, box = document.querySelector("[role=img]");
const area = box.querySelector("svg").getBoundingClientRect();
const where = {clientX: area.left + x * area.width, clientY: area.top + y * area.height, bubbles: true};
box.dispatchEvent(new WheelEvent("wheel", {...where, deltaY: by, ctrlKey: ctrl, cancelable: true}));
"""
VIEW = "return document.querySelector('svg').getAttribute('viewBox').split(' ').map(Number)"


@pytest.mark.full
def test_a_timeline_zooms(tmp_path):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><body>{nd.timeline(copy(), engine='cpu')._repr_html_()}</body>")
    with lab.browser() as driver:
        driver.get(page.as_uri())
        whole = driver.execute_script(VIEW)
        driver.execute_script(WHEEL, -347, 0.5, 0.5, False)  # the page scrolls
        assert driver.execute_script(VIEW) == whole
        driver.execute_script(WHEEL, -347, 0.5, 0.5, True)
        x, y, width, height = driver.execute_script(VIEW)
        assert [width, height] == pytest.approx([whole[2] / 2, whole[3] / 2], rel=0.01)
        assert x == pytest.approx(whole[2] / 4, rel=0.05)  # about the middle
        picture = driver.find_element(By.CSS_SELECTOR, "[role=img]")
        ActionChains(driver).drag_and_drop_by_offset(picture, 60, 0).perform()
        moved = driver.execute_script(VIEW)
        assert moved[0] < x and moved[2] == pytest.approx(width)
        ActionChains(driver).double_click(picture).perform()
        assert driver.execute_script(VIEW) == whole
