"""A Sphinx extension: links to files that are no pages, and the address of the first page.

Where the repository's name on its host is known (GITHUB_REPOSITORY, as in a workflow there), such a link leads
to the host. Elsewhere it leads to a page of the site: the text of the file, or what is in the folder."""

import hashlib
import os
import re
from html import escape
from pathlib import Path
from posixpath import normpath

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import RegexLexer
from pygments.lexers import TextLexer, guess_lexer_for_filename
from pygments.token import Comment, Keyword, Name, Number, Text
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.errors import ConfigError
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).resolve().parents[2]
URL = os.environ.get("GITHUB_REPOSITORY", "")
NAMED = re.fullmatch(r"((?:https://github\.com/)?([\w.-]+/[\w.-]+?)(?:\.git)?/?)?", URL)
if not NAMED:
    raise ConfigError(f"repository={URL} is neither https://github.com/OWNER/NAME nor OWNER/NAME")
NAME = NAMED[2] or ""  # owner/name
COMMIT = os.environ.get("GITHUB_SHA", "HEAD")
SOLUTIONS = os.environ.get("NUMBA_DEFORM_SOLUTIONS", "1") != "0"  # whether the site shows them
HIDDEN = ("__pycache__", ".ipynb_checkpoints") + ("solutions",) * (not SOLUTIONS)


def digest(*folders):
    """A text that is another one after a change of any file in these folders."""
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.*")):
            if path.is_file() and not set(HIDDEN) & set(path.parts):
                found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


class Builder(StandaloneHTMLBuilder):
    """HTML whose first page is index.html, though its source has another name."""

    def get_output_path(self, page_name):
        return super().get_output_path("index" if page_name == self.config.root_doc else page_name)

    def get_target_uri(self, docname, typ=None):
        return super().get_target_uri("index" if docname == self.config.root_doc else docname, typ)


class FileLinks(SphinxTransform):
    """Replaces what MyST makes of a link to a file or folder that is no page."""

    default_priority = 1  # before Sphinx collects downloads

    def apply(self):
        for kind in (addnodes.download_reference, addnodes.pending_xref):
            for node in list(self.document.findall(kind)):
                path = self._path(node)
                if path is not None:
                    uri = self._uri(path)
                    node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=False))

    def _path(self, node):
        """The file's or folder's path in the repository, or None for any other link."""
        if node.get("reftype") != "myst":
            return None
        target = node["reftarget"].partition("#")[0]
        if node.get("refdomain") != "doc":
            target = normpath(f"{self.env.docname}/../{target}")
        elif target not in self.env.found_docs:
            target += ".py"  # Sphinx takes it for a page, as it does lessons
        path = ROOT / target
        return path if target not in self.env.found_docs and path.exists() else None

    def _uri(self, path):
        place = path.relative_to(ROOT).as_posix()
        if NAME:
            return f"https://github.com/{NAME}/{'tree' if path.is_dir() else 'blob'}/{COMMIT}/{place}"
        self.env.metadata[self.env.docname].setdefault("files", set()).add(place)
        up = "../" * self.env.docname.count("/")
        return f"{up}{page_of(place)}.html"


def page_of(place):
    """The name of the page that shows a file or a folder of the repository."""
    return f"source/{place}"


def shown(folder):
    """The entries of a folder."""
    return [path for path in sorted(folder.iterdir()) if path.name not in HIDDEN]


def write(app, error):
    """Sphinx's event build-finished: a page for every file and folder that is linked to, and for all that is in
    these folders. They are plain, and written again only if the file is newer."""
    if error or app.builder.name != "html":
        return
    left, made = {place for data in app.env.metadata.values() for place in data.get("files", ())}, set()
    while left - made:
        place = min(left - made)
        made.add(place)
        path, page = ROOT / place, Path(app.outdir) / f"{page_of(place)}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        if set(HIDDEN) & set(Path(place).parts):
            page.write_text("<!doctype html><title>Solutions</title>The solutions are not part of this site.")
        elif path.is_dir():
            left |= {entry.relative_to(ROOT).as_posix() for entry in shown(path)}
            page.write_text(folder_page(path, place))
        elif not page.exists() or page.stat().st_mtime < path.stat().st_mtime:
            style = HtmlFormatter(full=True, title=place, encoding="utf-8")
            page.write_bytes(highlight(path.read_text(), _lexer(path), style))


def folder_page(path, place):
    """HTML: links to the pages of what is in it."""
    items = [f'<li><a href="{escape(f"{path.name}/{entry.name}")}.html">{escape(entry.name)}</a></li>'
             for entry in shown(path)]  # fmt: skip
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return f"{head}<title>{escape(place)}</title><h2>{escape(place)}</h2><ul>{''.join(items)}</ul>"


def _lexer(path):
    """Of a text in the repository; without colours where it is of no known kind, or a long list of numbers."""
    if path.suffix == ".ptx":
        return Ptx()
    try:
        return TextLexer() if path.suffix == ".json" else guess_lexer_for_filename(path.name, "")
    except ClassNotFound:
        return TextLexer()


class Ptx(RegexLexer):
    """PTX in colours; Pygments has no lexer of its own for it."""

    name, aliases = "PTX", ["ptx"]
    tokens = {
        "root": [
            (r"//.*", Comment),
            (r"\.(visible|func|param|reg|pred|align|version|target|address_size|[bfsu]\d+)\b", Keyword.Type),
            (r"[a-z]\w*(\.\w+(::\w+)*)+", Keyword),
            (r"%\w+(\.\w+)*", Name.Builtin),
            (r"\b\d\w*", Number),
            (r"\w+|\W", Text),
        ]
    }


def setup(app):
    # What pages are made of beside their own text: after a change of it all are read again.
    made_of = f"{NAME}@{COMMIT} {digest('numba_deform', 'ptx', 'bench', 'notebooks/site')}"
    app.add_config_value("repository_digest", made_of, "env")
    app.add_builder(Builder, override=True)
    app.add_transform(FileLinks)
    app.add_lexer("ptx", Ptx)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
