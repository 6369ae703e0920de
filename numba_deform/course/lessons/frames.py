"""The pictures of a slider, drawn beforehand for a page: ``notebooks/site/frames.js`` steps them."""

import html
import itertools
import json

from ...measure.svg import svg

MOST = 64  # frames of one slider: more make a page slow to draw and to load


class Frames:
    """The pictures ``function(name=value)`` for all combinations of ``values``, {name: [value]}.

    ``start``, {name: value}, is the one shown first. As HTML it is that one as SVG, and all of them as numbers
    of lines that they share. ValueError for more than ``MOST`` frames, or a start that is none of the values.
    """

    def __init__(self, function, start, values):
        self.names, self.values = list(values), list(values.values())
        for name, options in values.items():
            if start[name] not in options:
                raise ValueError(f"{name}={start[name]!r} to begin with is none of the page's {options}")
        combined = list(itertools.product(*self.values))
        if len(combined) > MOST:
            raise ValueError(f"{len(combined)} frames of {self.names}, and a page has {MOST}: name them, page=")
        self.first = combined.index(tuple(start[name] for name in self.names))
        self.pictures = [function(**dict(zip(self.names, each, strict=True))) for each in combined]

    def __repr__(self):
        return repr(self.pictures[self.first])

    def _repr_html_(self):
        drawn, lines = [svg(picture.figure) for picture in self.pictures], {}
        frames = [[lines.setdefault(line, len(lines)) for line in each.splitlines()] for each in drawn]
        values, alts = [list(map(str, options)) for options in self.values], [p.alt for p in self.pictures]
        data = {"names": self.names, "values": values, "first": self.first, "lines": list(lines),
                "frames": frames, "alts": alts}  # fmt: skip
        picture = framed(drawn[self.first], data["alts"][self.first])
        text = json.dumps(data).replace("</", "<\\/")
        return f'<div class="frames">{picture}<script type="application/json">{text}</script></div>'


def framed(drawn, alt):
    """A picture as HTML of a page, and in words what it shows."""
    return f'<div class="frames-picture" role="img" aria-label="{html.escape(alt, quote=True)}">{drawn}</div>'
