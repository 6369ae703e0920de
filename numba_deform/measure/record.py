"""What every result file carries: machine, versions, commit, date, and the figures of one run."""

import importlib.metadata
import platform
import statistics
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from ..compiler.cache import save

PACKAGES = (
    "numba",
    "numba-cuda",
    "cuda-core",
    "cuda-bindings",
    "numpy",
    "torch",
    "nvidia-nvjitlink",
)


def versions():
    """``{package: version}`` of what is installed, and of Python."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit():
    """The checkout's commit, with ``-dirty`` if files were changed; None outside one."""
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return text or None


def now():
    """The time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def spread(times):
    """Median, smallest and largest of a list of milliseconds."""
    return {
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "max_ms": max(times),
        "runs": len(times),
    }


def document(gpu, rows, **more):
    """Machine and versions once, then ``more``, then ``rows``; ``gpu`` is None on the CPU engine."""
    machine = {"gpu": gpu.describe(), "driver": gpu.driver} if gpu else {"gpu": None}
    return {
        "machine": machine,
        "versions": versions(),
        "commit": commit(),
        "date": now(),
        **more,
        "rows": rows,
    }


def write(path, gpu, rows, **more):
    """One JSON file with a :func:`document`."""
    return save(path, document(gpu, rows, **more))
