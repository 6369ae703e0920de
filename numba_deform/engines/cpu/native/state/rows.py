"""Rows of words, which ``layout`` names, as attributes of the objects whose state they are."""

from operator import attrgetter

import numpy as np

from ..runtime import layout


def word_of(number):
    """The property of a number that is a word of the row."""
    return property(lambda self: self.words[number], lambda self, it: self.words.__setitem__(number, it))


def time_of(number):
    """That of a time."""
    return property(lambda self: self.doubles[number], lambda self, it: self.doubles.__setitem__(number, it))


def fill(words, **fields):
    """Set fields of a row; what is an array is known by its address."""
    for name, value in fields.items():
        words[getattr(layout, name.upper())] = value.ctypes.data if isinstance(value, np.ndarray) else value


def kept(name, told):
    """The property of what stands under ``name``; ``told(value)``: what its row's fields are set to."""

    def put(self, value):
        setattr(self, name, value)
        fill(self.words, **told(value))

    return property(attrgetter(name), put)
