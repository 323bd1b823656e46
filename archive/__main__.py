"""The command line: rl-archive, or python -m archive. Exit status 0: good, 1: failed or damaged, 2: wrong usage."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

import archive

from .info import printable, show, summary


@click.group()
@click.version_option(archive.__version__, prog_name="rl-archive")
def commands() -> None:
    """Training runs in one HDF5 file each."""


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def info(file: Path, as_json: bool) -> None:
    """Tell what is in FILE: schema, rows, episodes, returns, sizes, checkpoints, complete or not."""
    with archive.open(file, memory="64 MiB") as run:
        values = summary(run)
    if as_json:
        click.echo(json.dumps(values, indent=1))
    else:
        show(values, Console())


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--at", default="last", show_default=True, help="A checkpoint's number, last, or step=5000.")
def fork(file: Path, out: Path, at: str) -> None:
    """Make OUT a new run that goes on from a checkpoint of FILE (see info)."""
    with bar("copying chunks") as progress:
        archive.fork(file, out, at, progress=progress)
    with archive.open(out) as run:
        click.echo(f"{out}: {run.num_steps:,} steps, {run.num_episodes:,} episodes, as at the checkpoint")


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Read everything but the chunks of rows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def verify(file: Path, quick: bool, as_json: bool) -> None:
    """Check every checksum and every invariant of FILE; one line for each thing that is wrong."""
    with bar("verifying") as progress:
        found = archive.verify(file, quick=quick, progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        for line in (*found.findings, *(f"harmless: {note}" for note in found.notes)):
            click.echo(printable(str(line)))
        speed = f", {found.decoded / 1e9 / found.seconds:.1f} GB/s decoded" if found.decoded else ""
        rest = f"commit {found.commit}, {found.rows:,} rows, {found.chunks:,} chunks{speed}"
        click.echo(f"{'good' if found.clean else f'damaged in {len(found.findings)} places'}: {rest}")
    sys.exit(0 if found.clean else 1)


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Do it without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def repair(file: Path, yes: bool, as_json: bool) -> None:
    """Put right what is damaged of FILE's superblock, commits, journal and tail; what it writes over is kept."""
    found = archive.repair(file, dry_run=True)
    if not as_json:
        for step in found.steps:
            click.echo(printable(step))
    if found.steps and (yes or (not as_json and sys.stdin.isatty() and click.confirm("Do it?"))):
        with bar("verifying") as progress:
            found = archive.repair(file, progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
    else:
        for line in found.left if found.done or not found.steps else ():
            click.echo(f"left: {printable(str(line))}")
        click.echo(verdict(found))
    sys.exit(0 if not found.left else 1)


def verdict(found: archive.Repair) -> str:
    """Return what a repair came to, in one line."""
    if found.done:
        return f"repaired; what was there before is in {printable(found.copy)}"
    if not found.steps and not found.left:
        return "good: there is nothing to repair"
    return "nothing was changed" + ("; --yes does it" if found.steps else ": there is nothing that repair can do")


@commands.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
def salvage(file: Path, out: Path, as_json: bool) -> None:
    """Rebuild a run as OUT from the bytes of FILE, whose HDF5 metadata may be gone."""
    with bar("salvaging") as progress:
        found = archive.salvage(file, out, progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        return
    for line in (*found.missing, *found.notes):
        click.echo(printable(str(line)))
    click.echo(
        f"{out}: {sum(found.rows):,} rows from {found.chunks:,} chunks, {found.rows_lost:,} of them incomplete; "
        f"{found.episodes:,} episodes, {found.hidden:,} without their beginning and hidden; "
        f"{len(found.checkpoints)} checkpoints"
    )


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar while a command runs, on a terminal only."""
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as shown:
        task = shown.add_task(what)
        yield lambda done, total: shown.update(task, completed=done, total=total)


def main() -> None:
    """Run the command line; an error of this package is one plain line."""
    try:
        commands()
    except (archive.ArchiveError, OSError) as error:
        click.echo(f"rl-archive: {printable(str(error))}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
