"""For programs that numba-cuda's tests start: they too run with the stand-in for the driver."""

import harness

harness.install()
