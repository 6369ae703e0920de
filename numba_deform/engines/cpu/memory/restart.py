"""How a schedule is given up to start over: thrown by memory, machine code and ``explore``, caught by
``schedules.prepared_launch``."""


class Restart(BaseException):
    """The schedule starts over, with something known from the start: one more array in
    ``PreparedLaunch.traces`` needs records, or of more looks ``looks`` says whether they are in vain."""


class Bailout(Restart):
    """The schedule starts over, interpreted: machine code has met what only the interpreter can judge."""
