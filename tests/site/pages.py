"""Pages of the built site: what they link to, and how they look in a browser."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids of a page, and its links and pictures as (attribute, address)."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif name in ("href", "src") and value is not None:
                self.targets.append(value)


def read(folder):
    """{path: Page} of all pages in a folder."""
    return {path: Page(path) for path in sorted(Path(folder).resolve().rglob("*.html"))}


def links(pages):
    """(how many links there are within the site, those that lead nowhere as "page: target")."""
    count, dead = 0, []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            count += 1
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            if not file.is_file() or (place and file in pages and place not in pages[file].ids):
                dead.append(f"{path.name}: {target}")
    return count, dead


# The text elements whose letters are small, or hardly differ from what is behind them.
TEXT = """
const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
const light = rgb => rgb.slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = node => {
    for (; node; node = node.parentElement) {
        const rgb = parse(getComputedStyle(node).backgroundColor);
        if (rgb.length === 3 || rgb[3] > 0.5) return rgb;
    }
    return [255, 255, 255];
};
const bad = {};
for (const node of document.querySelectorAll('article *, .sidebar-drawer *')) {
    const words = [...node.childNodes].filter(n => n.nodeType === 3).map(n => n.data).join('').trim();
    if (!words || !node.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const style = getComputedStyle(node), size = parseFloat(style.fontSize);
    const [a, b] = [light(parse(style.color)), light(behind(node))].sort((x, y) => y - x);
    const contrast = (a + 0.05) / (b + 0.05);
    if (node.closest('.headerlink, .sd-stretched-link, svg')) continue;
    if (size < arguments[0] || contrast < arguments[1])
        bad[`${node.tagName} ${node.className}`] =
            `${words.slice(0, 40)}: ${size} px, contrast ${contrast.toFixed(1)}`;
}
return bad;
"""
WIDER = """
return document.documentElement.scrollWidth > innerWidth || document.body.scrollWidth > innerWidth;
"""
PICTURES = "return [...document.images].map(image => [image.src.slice(0, 200), image.naturalWidth, image.alt]);"
LOADED = "return document.readyState === 'complete' && [...document.images].every(image => image.complete);"


def size(driver, width, height, dark):
    """Show what follows as a screen of that size does, in the light or the dark."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
