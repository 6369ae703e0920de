"""Printing, estimates, and exit statuses."""

import sys
from contextlib import contextmanager

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from ..measure.parameters import show
from .commands import RIGHT, WRONG


def console(width=None):
    """A rich Console on stdout, ``width`` characters wide or as wide as the terminal, 120 without one.

    Made anew each time, because ``sys.stdout`` may have been replaced."""
    if not width and not sys.stdout.isatty():
        width = 120
    return Console(highlight=False, markup=False, width=width)  # what stands in [ ] is text


def say(label, value):
    """One line: ``label`` in a column of 14 characters, then ``value``."""
    line = Text.assemble((f"{label:<14}", "bold"), str(value))
    console().print(line, soft_wrap=True)


def verdict(passed):
    """Print the last line, PASS or FAIL; returns the exit status."""
    console().print(Text("PASS", "bold green") if passed else Text("FAIL", "bold red"))
    return RIGHT if passed else WRONG


def in_words(parameters):
    """A mapping as ``name=value`` words."""
    return " ".join(f"{name}={show(value)}" for name, value in parameters.items())


def duration(seconds):
    """Seconds as a person says them."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.0f} h"


def _bar(*columns):
    """A progress bar on a terminal, and nothing elsewhere."""
    out = console()
    return progress.Progress(*columns, console=out, disable=not out.is_terminal, transient=True)


@contextmanager
def counting(seconds_each):
    """Gives ``advance(done, total, label)``, which moves a bar and says first how long it takes, with
    ``seconds_each`` for one; all of it on a terminal only."""
    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn(),
               progress.TimeRemainingColumn(), progress.TextColumn("{task.description}"))  # fmt: skip
    with _bar(*columns) as bar:
        task = bar.add_task("", total=None)

        def advance(done, total, label):
            if bar.tasks[0].total is None and not bar.disable and total > done:
                bar.console.print(f"{total - done} to do, about {duration((total - done) * seconds_each)}")
            bar.update(task, completed=done, total=total, description=escape(label), refresh=True)

        yield advance


class _Elapsed(progress.BarColumn):
    """A bar of the time that has passed: what runs tells nothing in between. Once it is full it swings."""

    def render(self, task):
        task.completed = task.elapsed or 0
        if task.total and task.completed > task.total:
            task.total = None
        return super().render(task)


@contextmanager
def lasting(seconds):
    """A bar that is full after ``seconds``, an estimate, and swings without one; on a terminal only. Gives
    ``tell(text)``, which writes beside it how far it is."""
    columns = _Elapsed(), progress.TimeElapsedColumn(), progress.TextColumn("{task.description}")
    with _bar(*columns) as bar:
        task = bar.add_task(f"of about {duration(seconds)}" if seconds else "", total=seconds)
        yield lambda text: bar.update(task, description=escape(text))
