"""python -m benchmarks: every case in a fresh process; medians, peak memory, ratio to memcpy."""

from __future__ import annotations

import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from .cases import CASES
from .modes import MODE_CASES

ALL = CASES | MODE_CASES


def run_case(name: str, size: int) -> dict[str, Any]:
    """Run one case in this process and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        result = ALL[name](Path(folder), size)
    figures: dict[str, Any] = {"case": name, "size": size, "seconds": result.seconds, "figures": result.figures}
    figures["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if result.moved:
        figures["memcpy_seconds"] = memcpy(result.moved)
    return figures


def memcpy(size: int) -> float:
    """Return the median seconds to copy `size` bytes that are in no cache into a warm buffer."""
    source, target, seconds = np.ones((64, size), np.uint8), np.empty(size, np.uint8), []
    for row in source:
        start = time.perf_counter()
        target[:] = row
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def cells(found: dict[str, Any]) -> list[str]:
    """Return a case's figures as the table shows them."""
    seconds = found["seconds"]
    times = [f"{s * 1e6:,.1f} us" for s in (min(seconds), statistics.median(seconds), max(seconds))]
    ratio = f"{statistics.median(seconds) / found['memcpy_seconds']:.1f}" if "memcpy_seconds" in found else ""
    more = ", ".join(f"{k} {v:,.6g}" for k, v in found["figures"].items())
    return [*times, ratio, f"{found['peak_rss'] / 1e6:.0f} MB", more]


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice(sorted(ALL)), help="Only these cases.")
@click.option("--size", default=0, help="Size of a case, 0 for its own.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write all figures to a file.")
@click.option("--here", is_flag=True, hidden=True)
def main(names: tuple[str, ...], size: int, target: Path | None, here: bool) -> None:
    """Measure; trust ratios more than seconds on a shared machine."""
    if here:
        click.echo(json.dumps(run_case(names[0], size)))
        return
    table = Table("case", "min", "median", "max", "x memcpy", "peak RSS", "figures")
    results = []
    for name in names or ALL:
        command = [sys.executable, "-m", "benchmarks", "--here", "--case", name, "--size", str(size)]
        found = json.loads(subprocess.check_output(command).splitlines()[-1])
        results.append(found)
        table.add_row(name, *cells(found))
    console = Console(width=150)
    console.print(table)
    machine = platform.processor() or platform.machine()
    console.print(f"{machine}, Python {platform.python_version()}, numpy {np.__version__}")
    if target is not None:
        target.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
