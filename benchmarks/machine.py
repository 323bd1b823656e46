"""The machine: one core of it for the whole measurement, its name, the memory a process has taken."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import numpy as np


def pin(cores: int) -> None:
    """Stay on so many cores, the last ones of those allowed, where the system lets a process choose."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])


def describe() -> str:
    """Return one line: processor, system, Python, numpy."""
    return f"{processor()}, {platform.system()}, Python {platform.python_version()}, numpy {np.__version__}"


def versions(names: Iterable[str]) -> str:
    """Return the distributions of these names that are installed, with their versions."""
    installed = {found.metadata["Name"].replace("_", "-"): found.version for found in metadata.distributions()}
    return ", ".join(f"{name} {installed[name]}" for name in names if name in installed)


def processor() -> str:
    """Return the processor's name."""
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text().splitlines() if listing.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_rss() -> int:
    """Return the most bytes that this process has had in memory."""
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage says on Linux includes the process that started this one
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if platform.system() == "Darwin" else 1024)
