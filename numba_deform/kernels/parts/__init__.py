"""Device functions that several kernels share: lanes, rows, sampling, sums, staged tiles."""
