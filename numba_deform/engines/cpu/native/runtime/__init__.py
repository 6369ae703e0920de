"""What machine code calls: compiled once, for all kernels."""
