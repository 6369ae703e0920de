"""Values as text: the one parser of ``key=value``, of ``tma:stages=3`` and of a sweep's lists, and its inverse.

A parameter has the kind of an example, which is its default or a preset's own value."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """A kind of values: ``accepts`` says which in words, ``convert`` makes one of a text.

    A text is wrong where ``convert`` raises ValueError or makes what is not ``right``."""

    accepts: str
    convert: Callable[[str], object]
    right: Callable[[object], bool] = lambda value: value is not None
    names: tuple[str, ...] = ()  # all that there are, of a closed set

    def parse(self, text):
        """The value of a text; raises ValueError."""
        value = self.convert(text)
        if not self.right(value):
            raise ValueError(f"{text!r} is not {self.accepts}")
        return value


def one_of(*names):
    """The kind of a name among ``names``."""
    return Kind(f"one of {', '.join(names)}", str, names.__contains__, names)


def whole_numbers(accepts, separator, count=None):
    """The kind of ``2x2x32`` or ``-1,99``: a tuple of ``count`` whole numbers, or of any number of them."""
    return Kind(accepts, lambda text: tuple(int(part) for part in text.split(separator)),
                lambda numbers: count in (None, len(numbers)))  # fmt: skip


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
COUNT = Kind("a whole number of at least 1", int, lambda number: number >= 1)
WHOLE = Kind("a whole number of at least 0", int, lambda number: number >= 0)
INTEGER, REAL = Kind("a whole number", int), Kind("a number", float)
FLAG = Kind("1 or 0", lambda text: _FLAGS.get(text.lower()), names=("1", "0"))
TEXT = Kind("a text", str, bool)


def kind_of(example):
    """The kind of the values like ``example``."""
    if isinstance(example, tuple):
        return whole_numbers(f"{len(example)} sizes such as {show(example)}", "x", len(example))
    return {bool: FLAG, int: INTEGER, float: REAL}.get(type(example), TEXT)


def parse_like(name, example, text):
    """The value of a text, of the kind of ``example``; raises ConfigError with the parameter's name."""
    try:
        return kind_of(example).parse(text)
    except ValueError:
        from ..kernels.problem import ConfigError  # not above: the command line's help needs no NumPy

        raise ConfigError(name, text, f"must be written like {show(example)}") from None


def show(value):
    """A value as it is written: the inverse of parsing."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple):
        return ("," if value and isinstance(value[0], tuple) else "x").join(map(show, value))
    return str(value)
