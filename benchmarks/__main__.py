"""python -m benchmarks: every case in a fresh process, its contestants in turn, ratios of what they take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from . import machine, results
from .cases import CASES
from .rivals import MODULES, Rivals


def play(name: str, size: int, rivals: Rivals) -> dict[str, Any]:
    """Run one case in this process and return what it found."""
    machine.pin(CASES[name].cores)
    with tempfile.TemporaryDirectory() as folder:
        contest = CASES[name].contest(rivals, Path(folder), size)
        seconds = contest.play()
    found = {"case": name, "title": CASES[name].title, "size": size, "seconds": seconds}
    return found | {"figures": contest.figures, "skipped": rivals.skipped, "peak_rss": machine.peak_rss()}


def played(name: str, size: int, rivals: tuple[str, ...]) -> dict[str, Any]:
    """Run one case in a fresh process."""
    command = [sys.executable, "-m", "benchmarks", "--here", "--case", name, "--size", str(size)]
    command += [word for rival in rivals for word in ("--rival", rival)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | CASES[name].environment
    )  # libraries talk a lot when they are imported
    if done.returncode:
        raise click.ClickException(f"{name} {size}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Only these cases.")
@click.option("--size", type=int, help="One size instead of a case's own.")
@click.option("--rival", "rivals", multiple=True, type=click.Choice(list(MODULES)), help="Only these beside ours.")
@click.option("--json", "target", type=click.Path(path_type=Path), help="Write everything to a file.")
@click.option("--results", "page", type=click.Path(path_type=Path), help="Write the ratios to a file, in Markdown.")
@click.option("--short", is_flag=True, help="Only the sizes of the short set.")
@click.option("--here", is_flag=True, hidden=True)
def main(
    names: tuple[str, ...],
    size: int | None,
    rivals: tuple[str, ...],
    target: Path | None,
    page: Path | None,
    short: bool,
    here: bool,
) -> None:
    """Measure; trust ratios more than seconds on a shared machine."""
    if here:
        click.echo(json.dumps(play(names[0], size or 0, Rivals(rivals))))
        return
    if rivals:
        rivals = tuple(dict.fromkeys(("archive", *rivals)))
    console, found, start = Console(width=150), [], time.perf_counter()
    for name in names or CASES:
        for chosen in (size,) if size is not None else CASES[name].chosen(short):
            found.append(played(name, chosen, rivals))
            console.print(results.table(found[-1]))
    console.print(f"{machine.describe()}; {time.perf_counter() - start:.0f} s")
    for line in results.skipped(found):
        console.print(line)
    if target is not None:
        target.write_text(json.dumps(found, indent=1))
    if page is not None:
        page.write_text(results.markdown(found))


if __name__ == "__main__":
    main()
