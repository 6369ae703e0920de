"""A Sphinx extension: how far the pages are, a line for each that takes long, and work for all processes.

Sphinx hands its processes ten pages at a time, in the order of their names: those whose cells run, which take
long, would all be one's. Here each gets some."""

import multiprocessing
import os
import sys
import time

PORTION = 10  # pages, at most
SLOW = 1  # seconds of a page that is told


class Progress:
    """What is known of the pages of one build; ``done`` counts those of all processes."""

    def __init__(self):
        self.total, self.done, self.started = 0, multiprocessing.Value("i"), {}

    def deal(self, app, env, names):
        """Sphinx's event env-before-read-docs."""
        self.total, self.done.value = len(names), 0
        portions = -(-len(names) // PORTION)
        names[:] = [name for first in range(portions) for name in sorted(names)[first::portions]]

    def start(self, app, name, source):
        """Its event source-read."""
        self.started[name] = time.monotonic(), busy()

    def tell(self, app, doctree):
        """Its event doctree-read: the cells have run."""
        with self.done.get_lock():
            self.done.value += 1
            done = self.done.value
        name = app.env.docname
        began, before = self.started.pop(name)
        seconds, own = time.monotonic() - began, busy() - before
        if seconds >= SLOW:
            text = f"{done:>3} of {self.total} pages  {name}, {seconds:.0f} s, of a processor {own:.0f} s"
            print(text, file=sys.stderr, flush=True)


def busy():
    """Seconds of a processor that this process took, and those that it started, once they have ended."""
    return sum(os.times()[:4])


def setup(app):
    progress = Progress()
    app.connect("env-before-read-docs", progress.deal)
    app.connect("source-read", progress.start)
    app.connect("doctree-read", progress.tell)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
