"""Functions and numbers by name, which kernels call and use as attributes."""

import types


class Namespace(types.ModuleType):
    """Functions and numbers by name, for kernels.

    Numba takes the attributes of a module for what they are at the moment when it compiles, so that
    ``ring.wait(state)`` in a kernel is a call of that very function."""

    def __init__(self, name, **members):
        super().__init__(name)
        vars(self).update(members)

    def __getattr__(self, name):
        has = ", ".join(sorted(member for member in vars(self) if member[:1] != "_"))
        raise AttributeError(f"{self.__name__!r} has no attribute {name!r}; it has {has}")

    def __reduce__(self):
        """In another process it is made again from its members."""
        members = {name: value for name, value in vars(self).items() if name[:2] != "__"}
        return _made, (self.__name__, members)

    def map(self, change):
        """Another one, with ``change(member)`` in place of each function and Namespace in it."""
        members = {name: change(value) for name, value in vars(self).items() if name[:1] != "_"}
        return Namespace(self.__name__, **members)


def _made(name, members):
    return Namespace(name, **members)
