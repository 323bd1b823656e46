"""What is measured. A case sets up, warms up, and returns seconds per operation, one number a repeat, and figures."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import archive

from .frames import GAMES, frames

REPEATS = 7


@dataclass
class Result:
    """Seconds per operation of each repeat; bytes that an operation had to move; other figures by name."""

    seconds: list[float]
    moved: int = 0
    figures: dict[str, Any] = field(default_factory=dict)


def repeat(operation: Callable[[], object], times: int) -> list[float]:
    """Time `operation`, `times` calls a repeat, after one repeat of warm-up."""
    result = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        for _ in range(times):
            operation()
        result.append((time.perf_counter() - start) / times)
    return result[1:]


def schema(shape: tuple[int, ...], dtype: str, envs: int | None = None) -> archive.Schema:
    """Return a schema with observations of one shape."""
    fields = {"observation": archive.Field(dtype, shape), "action": archive.Field("int64")}
    return archive.Schema(fields, num_envs=envs, autoreset="NextStep" if envs else None)


def step_frames(folder: Path, size: int) -> Result:
    """step() of one 84x84 frame with compression, a commit every 2,000 steps."""
    images = frames(10_000)
    run = archive.create(folder / "run.h5", schema((84, 84), "uint8"), commit_every=None, memory="32 MiB")
    return stepped(run, lambda t: images[t % len(images)])


def step_vector(folder: Path, size: int) -> Result:
    """step() of a 4-float observation, a commit every 2,000 steps."""
    rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    run = archive.create(folder / "run.h5", schema((4,), "float32"), commit_every=None)
    return stepped(run, lambda t: rows[t % 1000])


def stepped(run: archive.Run, observe: Callable[[int], Any]) -> Result:
    """Time 2,000 steps and a commit a repeat, once the cache is full: memory that is new costs more than a step."""
    clock = iter(range(1 << 40))
    run.reset(observe(0))
    for _ in range(6000):
        run.step(0, observe(next(clock)), 1.0, False, False)

    def steps() -> None:
        for _ in range(2000):
            t = next(clock)
            run.step(t % 4, observe(t), 1.0, False, False)
        run.commit()

    return Result([s / 2000 for s in repeat(steps, 1)])


def step_envs(folder: Path, size: int) -> Result:
    """step() of `size` (8) environments with 84x84 frames, per row."""
    envs = size or 8
    images = frames(10_000)
    memory = "64 MiB" if envs <= 64 else "512 MiB"
    run = archive.create(folder / "run.h5", schema((84, 84), "uint8", envs), commit_every=None, memory=memory)
    start = np.arange(envs) * (len(images) // envs)
    return envs_stepped(run, envs, lambda t: images[(start + t) % len(images)])


def envs_stepped(run: archive.Run, envs: int, observe: Callable[[int], Any]) -> Result:
    """Time steps of about 1,600 rows and a commit a repeat; seconds per row."""
    run.reset(observe(0))
    action, reward, no = np.zeros(envs, np.int64), np.ones(envs), np.zeros(envs, np.bool_)
    clock, count = iter(range(1, 1 << 40)), max(1600 // envs, 20)

    def steps() -> None:
        for _ in range(count):
            run.step(action, observe(next(clock)), reward, no, no)
        run.commit()

    for _ in range(12_000 // count // envs):
        steps()  # until the cache is full: memory that is new costs more than a step

    return Result([s / count / envs for s in repeat(steps, 1)])


def commit(folder: Path, size: int) -> Result:
    """commit() after `size` (1,000) new rows of 84x84."""
    images = frames(10_000)
    run = archive.create(folder / "run.h5", schema((84, 84), "uint8"), commit_every=None)
    run.reset(images[0])
    return Result(list(timed_after_steps(run, images, size or 1000, run.commit)))


def checkpoint(folder: Path, size: int) -> Result:
    """checkpoint() of a prioritised replay of `size` (100,000) transitions after 1,000 new steps."""
    run = archive.create(folder / "run.h5", schema((4,), "float32"), commit_every=None)
    count = size or 100_000
    extend(run, np.zeros((count, 4), np.float32))
    run.end_episode()
    replay = run.replay(capacity=count, sampler=archive.Prioritized(), batch_size=32)
    run.reset(np.zeros(4, np.float32))
    rows = np.zeros((1000, 4), np.float32)
    return Result(
        list(timed_after_steps(run, rows, 1000, lambda: run.checkpoint(replay=replay.state_dict()))),
        figures={"file_bytes": (folder / "run.h5").stat().st_size},
    )


def timed_after_steps(run: archive.Run, rows: Any, count: int, operation: Callable[[], object]) -> Iterator[float]:
    """Yield the seconds of `operation` after `count` steps each time."""
    for k in range(REPEATS + 1):
        for t in range(count):
            run.step(t % 4, rows[t % len(rows)], 1.0, False, False)
        start = time.perf_counter()
        operation()
        if k:
            yield time.perf_counter() - start


def extend(run: archive.Run, observations: Any, env: int = 0) -> None:
    """Append observations as one episode that goes on."""
    count = len(observations)
    run.extend({"observation": observations, "action": np.arange(count) % 4, "reward": np.ones(count)}, env=env)


def filled(folder: Path, size: int, steps: int = 10_000) -> archive.Run:
    """Return a run of real frames in episodes of `steps`, open for reading."""
    with archive.create(folder / "run.h5", schema((84, 84), "uint8"), commit_every=None) as run:
        for low in range(0, size, steps):
            extend(run, frames(10_000)[low % 10_000 :][: min(steps, size - low)])
            run.end_episode()
    return archive.open(folder / "run.h5", memory="2 GiB")


def stacked_batch(folder: Path, size: int) -> Result:
    """sample() of `size` (32) 4-stacks of 84x84 and their next ones, cache warm."""
    return sampled(folder, size or 32, archive.Uniform())


def prioritised_loop(folder: Path, size: int) -> Result:
    """sample() and update_priorities() of `size` (32) prioritised 4-stacks, n_step 3."""
    return sampled(folder, size or 32, archive.Prioritized(), n_step=3)


def sampled(folder: Path, batch: int, sampler: Any, n_step: int = 1) -> Result:
    """Time batches of a warm replay."""
    replay = filled(folder, 20_000).replay(batch_size=batch, stack=4, sampler=sampler, n_step=n_step)
    for _ in range(2000 * 32 // batch):
        replay.sample()

    def one() -> None:
        drawn = replay.sample()
        if isinstance(sampler, archive.Prioritized):
            replay.update_priorities(drawn.index, np.abs(drawn.reward))

    return Result(repeat(one, 100), moved=batch * 8 * 84 * 84)


def first_batch(folder: Path, size: int) -> Result:
    """Process start to the first batch of 32 4-stacks from a file of `size` (100,000) frames."""
    filled(folder, size or 100_000).close()
    program = f"""
import archive
run = archive.open({str(folder / "run.h5")!r})
run.replay(batch_size=32, stack=4).sample()
"""
    return Result(repeat(lambda: subprocess.run([sys.executable, "-c", program], check=True), 1))


def file_size(folder: Path, size: int) -> Result:
    """File of `size` (100,000) real frames, half Breakout, half Pong, written by extend()."""
    half = (size or 100_000) // 2
    seconds, figures = [], {}
    for game in GAMES:
        path = folder / f"{game.split('/')[-1]}.h5"
        images = np.array(frames(half, game))
        with archive.create(path, schema((84, 84), "uint8"), commit_every=None) as run:
            start = time.perf_counter()
            extend(run, images)
            seconds.append((time.perf_counter() - start) / half)
        figures[game] = path.stat().st_size
    figures["file_bytes"], figures["raw_bytes"] = sum(figures.values()), 2 * half * 84 * 84
    return Result(seconds, figures=figures)


def step_small_envs(folder: Path, size: int) -> Result:
    """step() of `size` (8) environments with 4 floats, per row."""
    envs = size or 8
    run = archive.create(folder / "run.h5", schema((4,), "float32", envs), commit_every=None, memory="2 GiB")
    rows = np.random.default_rng(0).normal(size=(100, envs, 4)).astype(np.float32)
    return envs_stepped(run, envs, lambda t: rows[t % 100])


def file_overhead(folder: Path, size: int) -> Result:
    """Bytes of a closed, uncompressed file of `size` (1) environments beside its rows': 200,000 of 4 floats in all."""
    envs = size or 1
    fields = {"observation": archive.Field("float32", (4,)), "action": archive.Field("int64")}
    count, path = 200_000 // envs, folder / "run.h5"
    run = archive.create(path, archive.Schema(fields, num_envs=envs), compression="none", commit_every=None)
    start = time.perf_counter()
    for env in range(envs):
        values = {
            "observation": np.ones((count, 4), np.float32),
            "action": np.ones(count, int),
            "reward": np.ones(count),
        }
        run.extend(values, env=env)
    run.close()
    raw = count * envs * (4 * 4 + 8 + 4 + 4)
    more = path.stat().st_size - raw
    figures = {"overhead_bytes": more, "overhead_bytes_per_row": more / (count * envs)}
    return Result([time.perf_counter() - start], figures=figures)


CASES: dict[str, Callable[[Path, int], Result]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        step_frames,
        step_vector,
        step_envs,
        step_small_envs,
        commit,
        checkpoint,
        stacked_batch,
        prioritised_loop,
        first_batch,
        file_size,
        file_overhead,
    )
}
