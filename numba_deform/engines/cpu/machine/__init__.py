"""Threads, warps, blocks and clusters, and who runs next."""
