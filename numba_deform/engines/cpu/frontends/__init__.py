"""A kernel's source becomes operations of the machine: a room for each language, above what both have:
``rounding``, ``math_functions``, ``threads``. ``program`` is the door,
``arguments`` what a launch hands over."""
