"""Appending, and what makes it safe."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import archive

from ..frames import SOURCES, frames
from ..measure import Contest, Contestant, Prepared
from ..rivals import Rivals, ours
from ..steps import Steps, atari, small, steps_of
from .case import Case


def step_frames(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Append a step of one 84x84 frame; ours compresses and commits, the others keep it in memory."""
    return stepping(rivals, folder, atari(), 1)


def step_vector(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Append a step of 4 floats; ours commits."""
    return stepping(rivals, folder, small(10_000), 1)


def step_envs(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Append a step of `size` environments with 84x84 frames; ours compresses and commits."""
    return stepping(rivals, folder, atari(), size)


def step_small_envs(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Append a step of `size` environments with 4 floats; ours commits."""
    return stepping(rivals, folder, small(100_000), size)


def stepping(rivals: Rivals, folder: Path, steps: Steps, envs: int) -> Contest:
    """Time steps of everybody who takes so many environments, in blocks long enough for a commit of ours."""
    found = rivals.offer("stepper", folder, steps, envs)
    rows = max(4000 // envs, 40)
    contestants = {name: block(step, rows) for name, step in found.items()}
    for run in contestants.values():
        for _ in range(
            20_000 // rows // envs + 1
        ):  # until memories are full: memory that is new costs more than a step
            run()
    return Contest(contestants, moved=rows * envs * steps.observation[0].nbytes, per=rows * envs)


def block(step: Callable[[int], object], rows: int) -> Callable[[], object]:
    """Return a function that makes so many steps."""
    clock = count()

    def run() -> None:
        for _ in range(rows):
            step(next(clock))

    return run


def extend(source: str, rivals: Rivals, folder: Path, size: int) -> Contest:
    """Write `size` frames to a closed file."""
    steps, names = steps_of(np.array(frames(size, source)), 500), count()
    contestants = {name: saving(save, folder, name, steps, names) for name, save in rivals.offers("save").items()}
    return Contest(contestants, moved=steps.observation.nbytes, per=len(steps.observation), repeats=5)


def saving(save: Callable[..., object], folder: Path, name: str, steps: Steps, names: Iterator[int]) -> Contestant:
    """Return a function that writes one file more."""
    return lambda: save(folder / f"{name}-{next(names)}", steps)


def commit(rivals: Rivals, folder: Path, size: int) -> Contest:
    """commit() after `size` new rows of 84x84; beside it the same rows written to a plain file."""
    steps = atari()
    run = ours.new_run(folder / "run.h5", steps)
    run.reset(steps.observation[0])
    plain = (folder / "plain").open("wb", buffering=0)
    return Contest(
        {
            "archive": Prepared(partial(step_on, run, steps.streams(1), size), run.commit),
            "file": lambda: plain.write(steps.observation[:size].data),
        },
        moved=size * 84 * 84,
    )


def step_on(run: archive.Run, seen: list[Any], rows: int) -> None:
    """Make so many steps."""
    for t in range(rows):
        run.step(t % 4, seen[t % len(seen)], 1.0, False, False)


def checkpoint(rivals: Rivals, folder: Path, size: int) -> Contest:
    """Make a replay of `size` small transitions safe after 1,000 new steps; the others save everything they hold."""
    steps = small(size)
    contestants: dict[str, Contestant] = {}
    for name, loop in rivals.offer("prioritised", folder, steps).items():
        if hasattr(loop, "save"):
            contestants[name] = partial(loop.save, str(folder / name))
    run = ours.new_run(folder / "growing.h5", steps)
    ours.extend(run, steps)
    replay = run.replay(capacity=size, sampler=archive.Prioritized(), batch_size=32)
    run.reset(steps.observation[0])
    make = partial(step_on, run, steps.streams(1)[:1000], 1000)
    contestants["archive"] = Prepared(make, lambda: run.checkpoint(replay=replay.state_dict()))
    contestants["pickle"] = partial(dump, folder / "pickle", steps, np.ones(2 * size))
    return Contest(contestants, repeats=5)


def dump(path: Path, steps: Steps, tree: Any) -> None:
    """Pickle a memory and its sum tree."""
    with path.open("wb") as file:
        pickle.dump((steps.observation, steps.action, steps.reward, tree), file, protocol=5)


def close(rivals: Rivals, folder: Path, size: int) -> Contest:
    """close() after `size` steps of 84x84; beside it the same rows written to a plain file and closed."""
    steps, names, held = atari(), count(), []

    def record() -> None:
        held.append(ours.new_run(folder / f"{next(names)}.h5", steps))
        held[-1].reset(steps.observation[0])
        step_on(held[-1], steps.streams(1), size)

    frames_of = steps.observation[:size].data
    plain = lambda: (folder / "plain").write_bytes(frames_of)  # noqa: E731
    return Contest({"archive": Prepared(record, lambda: held.pop().close()), "file": plain}, moved=size * 84 * 84)


WRITING = {
    "step-frames": Case(step_frames),
    "step-vector": Case(step_vector),
    "step-envs": Case(step_envs, (8, 256)),
    "step-small-envs": Case(step_small_envs, (8, 256)),
    **{f"extend-{name}": Case(partial(extend, source), (10_000,)) for name, source in SOURCES.items()},
    "commit": Case(commit, (1000,)),
    "checkpoint": Case(checkpoint, (1_000_000,)),
    "close": Case(close, (1000,)),
}
