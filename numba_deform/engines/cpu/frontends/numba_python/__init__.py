"""Kernels in Python, typed by Numba: interpreted, or as machine code."""
