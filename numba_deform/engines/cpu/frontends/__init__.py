"""A kernel's source becomes operations of the machine: a room for each language."""
