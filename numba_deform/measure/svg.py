"""A matplotlib figure as SVG to stand in a page, and to look into."""

import hashlib
import io
import re

# The wheel with Ctrl zooms at the pointer, as two fingers do; a drag moves, a double click shows all again.
ZOOM = """(box => {
  const svg = box.querySelector("svg"), whole = svg.getAttribute("viewBox"), view = svg.viewBox.baseVal;
  let from = null;
  const at = event => new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  box.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const point = at(event), by = Math.exp(event.deltaY / 500);
    view.x = point.x + (view.x - point.x) * by;
    view.y = point.y + (view.y - point.y) * by;
    view.width *= by;
    view.height *= by;
  }, {passive: false});
  box.addEventListener("pointerdown", event => { from = at(event); box.setPointerCapture(event.pointerId); });
  box.addEventListener("pointermove", event => {
    if (!from) return;
    const point = at(event);
    view.x += from.x - point.x;
    view.y += from.y - point.y;
  });
  box.addEventListener("pointerup", () => { from = null; });
  box.addEventListener("dblclick", () => { svg.setAttribute("viewBox", whole); });
})"""


def zoomed(figure, alt):
    """HTML of the figure as SVG that zooms; ``alt`` says what it shows."""
    drawn = svg(figure)
    name = f"timeline-{hashlib.sha256(drawn.encode()).hexdigest()[:12]}"
    drawn = drawn.replace("<svg", '<svg style="max-width: 100%; height: auto; background: white"', 1)
    return (f'<div id="{name}" role="img" aria-label="{alt}" style="overflow: hidden; cursor: grab" '
            f'title="Ctrl and wheel: zoom; drag: move; double click: all">{drawn}</div>'
            f'<script>{ZOOM}(document.getElementById("{name}"))</script>')  # fmt: skip


def svg(figure):
    """A matplotlib figure as SVG to stand in a page: its words stay words, and equal parts are equal text."""
    from matplotlib import rc_context, rcParams

    if engine := figure.get_layout_engine():
        engine.execute(figure)
    shown = figure.get_tightbbox().padded(rcParams["savefig.pad_inches"])
    figure.set_layout_engine(None)  # laid out and measured, it is drawn once, not three times
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "frames"}):
        figure.savefig(file, format="svg", bbox_inches=shown, metadata={"Date": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.S)
    text = re.sub(r' id="[A-Za-z]\w*_\d+"', "", text)  # numbers of parts: nothing refers to them
    text = re.sub(r"\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), text)
    return re.sub(r"\s*\n(?=[LCQz])", " ", text)  # a path is one line
