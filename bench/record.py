"""What every result file carries: machine, versions, commit, and the figures of one run."""

import importlib.metadata
import json
import platform
import statistics
import subprocess
from datetime import datetime, timezone
from pathlib import Path

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
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit():
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


def spread(times):
    """Median, smallest and largest of a list of milliseconds."""
    return {
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "max_ms": max(times),
        "runs": len(times),
    }


def write(path, gpu, rows, **more):
    """One JSON file: machine and versions once, then ``rows``."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": {"gpu": gpu.describe(), "driver": gpu.driver},
        "versions": versions(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **more,
        "rows": rows,
    }
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path
