"""Forms of instructions that are no row of the table in ``instructions``: each makes Python statements."""
