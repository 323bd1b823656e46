"""The command line: rl-archive, or python -m archive. Exit status 0: good, 1: failed or damaged, 2: wrong usage."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

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


def main() -> None:
    """Run the command line; an error of this package is one plain line."""
    try:
        commands()
    except (archive.ArchiveError, OSError) as error:
        click.echo(f"rl-archive: {printable(str(error))}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
