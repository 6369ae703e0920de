"""What the statements of translated kernels call beside ``operations``."""
