""""Did you mean ..?" for mistyped names."""

import difflib


def closest(word, known):
    """A question for the end of an error: the one of ``known`` that was perhaps meant; else nothing."""
    close = difflib.get_close_matches(str(word), known, 1)
    return f"; did you mean {close[0]}?" if close else ""
