"""Pipelines of one's own, which need not have to do with attention: functions that make a launch.

    @pipeline
    def copy(stages=3, rows=32):
        \"\"\"A copy through a ring.\"\"\"
        ...
        return Launch(kernel, grid=1, args=[maps, out], expected={"out": data})

    copy(stages=4)      the Launch, made once
"""

import functools
import inspect
from collections.abc import Callable
from numbers import Integral, Real
from typing import Generic, ParamSpec

from ..engines.launches import Launch
from ..engines.suggestions import closest
from .problem import ConfigError

P = ParamSpec("P")
PIPELINES: dict = {}
"""Those of this process, by name."""
KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text",
         tuple: "a tuple of whole numbers"}  # fmt: skip


class Pipeline(Generic[P]):
    """A function whose keyword parameters are the parameters of a pipeline; made by :func:`pipeline`.

    Called with some of them it returns the Launch, which is built once for the same values and kept.

    name      the function's
    summary   the first line of its docstring
    defaults  {parameter: default}
    """

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function, self.name = function, function.__name__
        self.summary = (inspect.getdoc(function) or "").partition("\n")[0]
        parameters = inspect.signature(function).parameters.values()
        self.defaults = {parameter.name: _default(self.name, parameter) for parameter in parameters}
        self._kept = {}

    def __repr__(self):
        return f"pipeline {self.name}, which is called for its launch: {self.words()}"

    def words(self, **parameters):
        """The call in words: ``copy(stages=3, rows=32)``."""
        values = {**self.defaults, **parameters}
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in values.items())})"

    def __call__(self, *args: P.args, **parameters: P.kwargs) -> Launch:
        """The :class:`Launch` with these parameters; ConfigError for one that it has not, or of another type
        than its default. What the function raises goes on."""
        if args:
            raise TypeError(f"{self.name}: {args[0]!r} has no name; a pipeline's parameters are given by name")
        values = self.checked(parameters)
        key = tuple(values.items())
        if key not in self._kept:
            launch = self.function(**values)
            if not isinstance(launch, Launch):
                what = f"returned a {type(launch).__name__}; it must return nd.Launch(kernel, grid=.., args=..)"
                raise ConfigError("pipeline", self.name, what)
            launch.origin = self, {name: values[name] for name in parameters}
            self._kept[key] = launch
        return self._kept[key]

    def checked(self, parameters):
        """{parameter: value} of all, in order."""
        for name in parameters:
            if name not in self.defaults:
                has = f"has the parameters {', '.join(self.defaults)}" if self.defaults else "has no parameters"
                raise ConfigError(name, parameters[name], f"{self.name} {has}{closest(name, self.defaults)}")
        given = {name: _like(name, self.defaults[name], value) for name, value in parameters.items()}
        return {**self.defaults, **given}


def pipeline(function: Callable[P, Launch]) -> Pipeline[P]:
    """Decorator: a function that returns a ``Launch`` becomes a :class:`Pipeline`, by its own name.

    Each of its parameters has a default, a number, a text, True or False, or a tuple of whole numbers, whose
    type its values then have. ``numba-deform COMMAND load=my.py`` knows the pipelines of a file, and their
    parameters as keys. Raises ConfigError, which names the parameter."""
    made = Pipeline(function)
    PIPELINES[made.name] = made
    return made


def _default(name, parameter):
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ConfigError(parameter.name, f"*{parameter.name}", f"pipeline {name} has keyword parameters only")
    if parameter.default is parameter.empty:
        raise ConfigError(parameter.name, "", f"every parameter of pipeline {name} needs a default")
    if type(parameter.default) not in KINDS:
        rule = f"a default of pipeline {name} is {', '.join(KINDS.values())}"
        raise ConfigError(parameter.name, repr(parameter.default), rule)
    return parameter.default


def _like(name, default, value):
    """``value`` as the type of ``default``; ConfigError where it is of another."""
    kind = type(default)
    if kind is bool:
        right = isinstance(value, bool)
    elif kind in (int, float):
        right = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
    elif kind is tuple:
        right = isinstance(value, (tuple, list)) and len(value) == len(default)
    else:
        right = isinstance(value, kind)
    if not right:
        raise ConfigError(name, repr(value), f"must be {KINDS[kind]}, such as the default {default!r}")
    return kind(value)
