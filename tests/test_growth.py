"""What must not grow: a file by its commits and checkpoints, and what an episode costs by how many there are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archive

MIB = 1 << 20
Array = np.ndarray[Any, Any]


def record(path: Path, rows: int, shape: tuple[int, ...], beside: Callable[[archive.Run, int], None]) -> int:
    """Record steps in episodes of 500, call `beside` after each, and return the size of the file."""
    schema = archive.Schema({"observation": archive.Field("uint8", shape), "action": archive.Field("int64")})
    rng = np.random.default_rng(0)
    with archive.create(path, schema, commit_every=None) as run:
        frame = np.zeros(shape, np.uint8)
        run.reset(frame)
        for k in range(rows):
            frame.flat[rng.integers(0, frame.size, 8)] = rng.integers(0, 256, 8)
            run.step(k % 4, frame, float(rng.normal()), k % 500 == 499, False)
            if k % 500 == 499:
                run.reset(frame)
            beside(run, k)
    return path.stat().st_size


def check_commits(path: Path, rows: int, shape: tuple[int, ...]) -> None:
    """A commit after every row, beside none: the file is at most 1 % larger, and so is one that was killed."""
    killed: list[int] = []

    def commit(run: archive.Run, k: int) -> None:
        run.commit()
        if k == rows - 1:
            killed.append(path.stat().st_size)

    alone = record(path.with_name("alone.h5"), rows, shape, lambda run, k: None)
    assert record(path, rows, shape, commit) <= 1.01 * alone
    assert killed[0] <= 1.01 * alone + 64 * 1024  # the newest journal stands behind the rows


@pytest.mark.parametrize("shape", [(16,), (84, 84)])
def test_commits_leave_nothing_behind(path: Path, shape: tuple[int, ...]) -> None:
    check_commits(path, 1100, shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(16,), (84, 84)])
def test_100_000_commits_leave_nothing_behind(path: Path, shape: tuple[int, ...]) -> None:
    check_commits(path, 100_000, shape)


def check_checkpoints(path: Path, count: int, largest: int, keep: int) -> None:
    """Checkpoints of changing size, the largest at any time: they take `keep` of the largest, in whole MiB."""
    rng = np.random.default_rng(0)
    blob, sizes = rng.bytes(largest), rng.integers(0, largest, count)
    sizes[count // 2] = largest

    def checkpoint(run: archive.Run, k: int) -> None:
        run.checkpoint(keep=keep, step=k, agent=blob[: sizes[k]])

    alone = record(path.with_name("alone.h5"), count, (84, 84), lambda run, k: None)
    found = record(path, count, (84, 84), checkpoint)
    slot = -(-(largest + 1000) // (MIB - 8)) * MIB
    assert found <= 1.01 * (alone + keep * slot)
    with archive.open(path) as run:
        kept = run.checkpoints()
        assert [c["step"] for c in kept] == list(range(count - 1, count - 1 - keep, -1))
        assert [c["agent"] for c in kept] == [blob[: sizes[c["step"]]] for c in kept]


@pytest.mark.parametrize("keep", [2, 4])
def test_checkpoints_take_the_space_of_those_kept(path: Path, keep: int) -> None:
    check_checkpoints(path, 120, 2_200_000, keep)


@pytest.mark.slow
def test_10_000_checkpoints_take_the_space_of_those_kept(path: Path) -> None:
    check_checkpoints(path, 10_000, 5_000_000, 2)


def check_short_episodes(path: Path, count: int) -> None:
    """Episodes of one step: the table is right, each batch has what its ids say, and an episode stays cheap."""
    schema = archive.Schema({"observation": archive.Field("int64"), "action": archive.Field("int64")})
    with archive.create(path, schema) as run:
        for first in range(0, count, 1000):
            row = np.arange(2 * first, 2 * first + 2000)
            last = row % 2 == 1
            rows = {"observation": 3 * row, "action": row, "reward": row / 8, "terminated": ~last, "is_last": last}
            run.extend(rows)
    assert path.stat().st_size < 1.2 * MIB + 100 * count
    with archive.open(path) as run:
        np.testing.assert_array_equal(run.episodes["start"], 2 * np.arange(count))
        np.testing.assert_array_equal(run.episodes["return"], (2 * np.arange(count)) / 8)
        assert run.episodes["terminated"].all()
        for sampler in (archive.Uniform(), archive.Prioritized(), archive.Epoch()):
            drawn: list[Array] = []
            replay = run.replay(sampler=sampler, batch_size=100, n_step=3)
            for _ in range(20):
                batch = replay.sample()
                drawn.append(batch.index)
                assert (batch.index % 2 == 0).all()
                np.testing.assert_array_equal(batch.observation, 3 * batch.index)
                np.testing.assert_array_equal(batch.next_observation, 3 * batch.index + 3)
                np.testing.assert_array_equal(batch.reward, (batch.index / 8).astype(np.float32))
                assert batch.terminated.all()
                assert not batch.discount.any()
            assert len(np.unique(drawn)) > 0.9 * min(2000, count)
        with pytest.raises(archive.NotEnoughData):
            run.replay(sequence_length=3, batch_size=1).sample()


def test_many_episodes_of_one_step(path: Path) -> None:
    check_short_episodes(path, 20_000)


@pytest.mark.slow
def test_a_million_episodes_of_one_step(path: Path) -> None:
    check_short_episodes(path, 1_000_000)
