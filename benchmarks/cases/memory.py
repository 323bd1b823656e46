"""The most memory that each contestant takes, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..measure import Contest
from ..rivals import OFFERS, Rivals
from .batches import stacked_batch
from .case import Case
from .trees import prioritised_loop

ALONE = """
from pathlib import Path
from benchmarks.cases.{module} import {function}
from benchmarks.rivals import Rivals
contest = {function}(Rivals(({name!r},)), Path({folder!r}), {size})
for run in contest.contestants.values():
    run()
"""


def peaks(programs: Mapping[str, str]) -> dict[str, float]:
    """Return the most bytes that each program has in memory."""
    report = "\nfrom benchmarks.machine import peak_rss\nprint(peak_rss())"
    commands = {name: [sys.executable, "-c", program + report] for name, program in programs.items()}
    return {name: float(subprocess.check_output(command).splitlines()[-1]) for name, command in commands.items()}


def alone(module: str, function: str, offer: str, rivals: Rivals, folder: Path, size: int) -> Contest:
    """Run everybody's part of a case once, nothing timed; what the interpreter and imports take is included."""
    rivals.offers(offer)
    names = [name for name in OFFERS[offer] if name in rivals.names and name not in rivals.skipped]
    words = {"module": module, "function": function, "size": size}
    programs = {name: ALONE.format(**words, name=name, folder=str(folder)) for name in names}
    return Contest({}, figures={"peak memory": peaks(programs)})


MEMORY = {
    "memory-stacked-batch": Case(partial(alone, "batches", stacked_batch.__name__, "stacked"), (32,), kept=False),
    "memory-prioritised-loop": Case(
        partial(alone, "trees", prioritised_loop.__name__, "prioritised"), (32,), kept=False
    ),
}
