"""Memory of batches: reused when nobody looks at it any more, and never before."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archive
from archive.buffers import LARGEST, MOST, SMALLEST, Buffers


def address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.fixture
def replay(path: Path) -> archive.Replay:
    """Return a replay of frames whose batches are worth keeping."""
    schema = archive.Schema({"observation": archive.Field("uint8", (64, 64)), "action": archive.Field("int64")})
    run = archive.create(path, schema, commit_every=None)
    frames = np.random.default_rng(0).integers(0, 255, (300, 64, 64), dtype=np.uint8)
    run.extend({"observation": frames, "action": np.arange(300), "reward": np.zeros(300)})
    return run.replay(batch_size=16, stack=4)


def test_no_byte_of_a_batch_that_is_held_changes(replay: archive.Replay) -> None:
    """Whatever part of a batch is held, by whatever means."""
    held: list[tuple[Any, bytes]] = []
    for number in range(60):
        observation = replay.sample().observation
        views = (
            observation,
            observation[3, 1:, ::2],
            observation.reshape(-1).view("u8"),
            memoryview(observation),
            observation.T,
        )
        view = views[number % len(views)]
        held.append((view, np.asarray(view).tobytes()))
    for _ in range(200):
        replay.sample()
    assert all(np.asarray(view).tobytes() == bytes_ for view, bytes_ in held)


def test_batches_held_by_torch(replay: archive.Replay, torch: Any) -> None:
    held = [(t, t.clone()) for t in (torch.from_numpy(replay.sample().observation)[2:] for _ in range(20))]
    held += [(t, t.clone()) for t in (torch.from_dlpack(replay.sample().observation) for _ in range(20))]
    gc.collect()
    for _ in range(100):
        replay.sample()
    assert all(torch.equal(tensor, copy) for tensor, copy in held)


def test_memory_of_a_batch_that_is_gone_is_used_again(replay: archive.Replay) -> None:
    found = set()
    for _ in range(50):
        batch = replay.sample()
        found |= {address(batch.observation), address(batch.next_observation)}
        del batch
    assert len(found) == 2
    kept = replay.sample()
    assert address(replay.sample().observation) not in {address(kept.observation), address(kept.next_observation)}


def test_reads_belong_to_the_reader(replay: archive.Replay) -> None:
    """Slices and episodes come from the same memory."""
    column = replay._rows.columns["observation"]
    first = column.rows(0, 0, 50)
    copy = first.copy()
    for start in range(1, 100):
        column.rows(0, start, start + 50)
    assert np.array_equal(first, copy)


BYTES = np.dtype(np.uint8)


def test_buffers_are_bounded() -> None:
    """Small ones and large ones are not kept, and never more than MOST bytes of the others."""
    buffers = Buffers()
    for size in (0, 1, SMALLEST - 1, LARGEST + 1):
        assert buffers.take((size,), BYTES).nbytes == size
    assert buffers.kept == []
    held = [buffers.take((LARGEST,), BYTES) for _ in range(10)]
    assert len({address(array) for array in held}) == 10
    assert sum(array.nbytes for array in buffers.kept) <= MOST
    last = address(held[-1])
    del held
    assert address(buffers.take((LARGEST,), BYTES)) == address(buffers.kept[0])
    assert last == address(buffers.kept[-1])
