"""From a place in a run to the line in the source, and to the loops around it."""
