"""A kernel of PTX as machine code: its Python text, read as LLVM in the coroutine that all front ends have."""
