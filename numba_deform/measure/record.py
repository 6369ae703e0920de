"""What every result file carries: machine, versions, commit, date, and the figures of one run."""

import contextlib
import importlib.metadata
import platform
import statistics
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from ..compiler.cache import save

PACKAGES = ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "numpy", "torch",
            "nvidia-nvjitlink")  # fmt: skip


def versions():
    """``{package: version}`` of what is installed, and of Python."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def commit():
    """The checkout's commit, with ``-dirty`` if files were changed; None outside one."""
    try:
        text = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True,
                              text=True, check=True, cwd=Path(__file__).parent).stdout.strip()  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return text or None


def now():
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def spread(times):
    """Median, smallest and largest of a list of milliseconds."""
    median = statistics.median(times)
    return {"median_ms": median, "min_ms": min(times), "max_ms": max(times), "runs": len(times)}


def document(gpu, rows, **more):
    """Machine and versions once, then ``more``, then ``rows``; ``gpu`` is None on the CPU engine."""
    machine = {"gpu": gpu.describe(), "driver": gpu.driver} if gpu else {"gpu": None}
    origin = {"machine": machine, "versions": versions(), "commit": commit(), "date": now()}
    return {**origin, **more, "rows": rows}


def write(path, gpu, rows, **more):
    """One JSON file with a :func:`document`."""
    return save(path, document(gpu, rows, **more))
