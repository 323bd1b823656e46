"""Files: their size, and how long it takes from the start of a process to the first batch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import archive

from ..frames import RECORDED, SOURCES, frames
from ..measure import Contest
from ..rivals import MODULES, Rivals
from ..steps import Steps, small, steps_of
from .case import Case
from .memory import peaks


def first_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Start a process and draw the first 32 4-stacks from a file of `size` frames."""
    once = np.array(frames(10_000))
    return opened(rivals, folder, steps_of(np.tile(once, (max(1, size // len(once)), 1, 1)), 500), "dump")


def first_small_batch(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Start a process and draw the first 32 transitions from a file of `size` rows of 4 floats."""
    return opened(rivals, folder, small(size))


def opened(rivals: Rivals, folder: Path, steps: Steps, *offers: str) -> Contest:
    """Time processes that read what everybody saved, and ones that only import; take the memory of each."""
    programs = {"import numpy": "import numpy", "import archive": "import archive"}
    for offer in ("save", *offers):
        for name, save in rivals.offers(offer).items():
            save(folder / name, steps)
            module = f"benchmarks.rivals.{MODULES[name]}"
            programs[name] = f"from {module} import first_batch; first_batch({str(folder / name)!r})"
    contestants = {name: partial(run_program, program) for name, program in programs.items()}
    return Contest(contestants, repeats=5, figures={"peak memory": peaks(programs)})


def run_program(program: str) -> None:
    """Run a program in a process of its own."""
    subprocess.run([sys.executable, "-c", program], check=True)


def file_size(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Bytes a frame of everybody's file of `size` frames, by where the frames come from."""
    figures = {}
    for label, source in SOURCES.items():
        steps = steps_of(np.array(frames(size, source)), 500)
        savers = rivals.offers("save")
        figures[label] = {name: written(save, folder / f"{name}-{label}", steps) for name, save in savers.items()}
    return Contest({}, figures=figures)


def written(save: Callable[..., object], path: Path, steps: Steps) -> float:
    """Return the bytes a row of what a contestant writes; take the file away."""
    save(path, steps)
    parts = list(path.iterdir()) if path.is_dir() else [path]
    size = sum(part.stat().st_size for part in parts)
    for part in parts:
        os.remove(part)
    return size / len(steps.observation)


def file_overhead(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Bytes of a closed, uncompressed file of `size` environments beside its rows': 200,000 of 4 floats in all."""
    fields = {"observation": archive.Field("float32", (4,)), "action": archive.Field("int64")}
    rows, path = 200_000 // size, folder / "run.h5"
    values = {"observation": np.ones((rows, 4), np.float32), "action": np.ones(rows, int), "reward": np.ones(rows)}
    with archive.create(path, archive.Schema(fields, num_envs=size), compression="none", commit_every=None) as run:
        for env in range(size):
            run.extend(values, env=env)
    raw = rows * size * (4 * 4 + 8 + 4 + 4)
    return Contest({}, figures={"file": {"archive": path.stat().st_size, "rows alone": raw}})


FILES = {
    "first-batch": Case(first_batch, (100_000,), kept=False),
    "first-small-batch": Case(first_small_batch, (1_000_000, 10_000_000), (1_000_000,), kept=False),
    "file-size": Case(file_size, (RECORDED,)),
    "file-overhead": Case(file_overhead, (1, 8)),
}
