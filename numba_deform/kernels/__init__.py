"""The kernels, one file per system. Reading order: probe, tile_copy, lanes, sampling, direct, tma."""
