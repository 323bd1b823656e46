"""Mixes beside the replays that they are made of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import archive

ROWS = 60


def fill(path: Path, offset: float, rows: int = ROWS, **fields: Any) -> archive.Run:
    """Return a run whose observations start at `offset`."""
    steps = {"observation": archive.Field("float32"), "action": archive.Field("int64"), **fields}
    run = archive.create(path, archive.Schema(steps), commit_every=None)
    if rows:
        run.extend({"observation": offset + np.arange(rows), "action": np.arange(rows), "reward": np.ones(rows)})
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[list[archive.Run]]:
    made = [fill(tmp_path / f"{k}.h5", 1000.0 * k) for k in range(3)]
    yield made
    for run in made:
        run.close()


def same(a: Any, b: Any) -> None:
    """Compare batches bit for bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        np.testing.assert_array_equal(a[name], b[name])


SAMPLERS = [archive.Uniform(), archive.Prioritized(), archive.Epoch()]


def replays(runs: list[archive.Run], **options: Any) -> list[archive.Replay]:
    return [run.replay(sampler=s, seed=k, **options) for k, (run, s) in enumerate(zip(runs, SAMPLERS, strict=True))]


@pytest.mark.parametrize(
    "options", [{}, {"n_step": 3}, {"sequence_length": 4}, {"sequence_length": 4, "time_major": True}]
)
def test_a_batch_is_the_replays_batches_behind_one_another(runs: list[archive.Run], options: dict[str, Any]) -> None:
    mixed, twins = archive.mix(replays(runs, **options), weights=[2, 1, 1], batch_size=8), replays(runs, **options)
    for _ in range(5):
        batch = mixed.sample().asdict()
        parts = [twin.sample(n).asdict() for twin, n in zip(twins, (4, 2, 2), strict=True)]
        assert batch.pop("source").tolist() == [0] * 4 + [1] * 2 + [2] * 2
        for k, part in enumerate(parts):
            part["index"] = part["index"] | k << 48
        axis = {name: int("time_major" in options and name not in ("index", "weight")) for name in batch}
        same(batch, {name: np.concatenate([part[name] for part in parts], axis[name]) for name in parts[0]})


def test_priorities_reach_the_replay_they_are_for(runs: list[archive.Run]) -> None:
    made, twin = replays(runs), runs[1].replay(sampler=SAMPLERS[1], seed=1)
    mixed = archive.mix(made, batch_size=30)
    for _ in range(5):
        batch = mixed.sample()
        own = twin.sample(10)
        mixed.update_priorities(batch.index, batch.index % 97 + 1)
        twin.update_priorities(own.index, (own.index | 1 << 48) % 97 + 1)
    same(made[1].sample(10).asdict(), twin.sample(10).asdict())


@pytest.mark.parametrize(
    ("index", "priority", "error"),
    [
        ([5, 1 << 48 | 5], [1.0, -1.0], archive.PriorityError),
        ([5, 1 << 48 | 5], [1.0, np.nan], archive.PriorityError),
        ([5, 1 << 48 | 5000], [1.0, 1.0], archive.IndexRangeError),
        ([5, 2 << 48 | 5], [1.0, 1.0], archive.IndexRangeError),
        ([5, -1], [1.0, 1.0], archive.IndexRangeError),
        ([5, 6], [1.0], archive.FieldError),
    ],
)
def test_refused_priorities_change_nothing(
    runs: list[archive.Run], index: list[int], priority: list[float], error: type[Exception]
) -> None:
    made = [run.replay(sampler=archive.Prioritized(), seed=k) for k, run in enumerate(runs[:2])]
    mixed = archive.mix(made, batch_size=8)
    mixed.sample()
    before = [replay.state_dict()["priorities"]["leaves"] for replay in made]
    with pytest.raises(error):
        mixed.update_priorities(np.array(index), np.array(priority))
    for replay, leaves in zip(made, before, strict=True):
        np.testing.assert_array_equal(replay.state_dict()["priorities"]["leaves"], leaves)


def test_resumed(runs: list[archive.Run]) -> None:
    mixed = archive.mix(replays(runs, prefetch=2), batch_size=12)
    for _ in range(3):
        mixed.sample()
    runs[0].checkpoint(replay=mixed.state_dict())
    expected = [mixed.sample().asdict() for _ in range(10)]
    again = archive.mix(replays(runs, prefetch=2), batch_size=12)
    again.load_state_dict(runs[0].last_checkpoint["replay"])
    for batch in expected:
        same(again.sample().asdict(), batch)


def test_a_state_that_is_refused_changes_nothing(runs: list[archive.Run]) -> None:
    mixed, twin = (archive.mix(replays(runs), batch_size=12) for _ in range(2))
    mixed.sample()
    twin.sample()
    states = mixed.state_dict()["mix"]
    for state in ({"mix": states[:2]}, {"mix": [states[0], states[1], states[1]]}, {}, None):
        with pytest.raises(archive.StateError):
            mixed.load_state_dict(state)  # type: ignore[arg-type]
    same(mixed.sample().asdict(), twin.sample().asdict())


def test_nothing_is_drawn_while_a_replay_is_empty(runs: list[archive.Run], tmp_path: Path) -> None:
    with fill(tmp_path / "new.h5", 0.0, rows=0) as fresh:
        replay, twin = (runs[0].replay(seed=3) for _ in range(2))
        mixed = archive.mix([replay, fresh.replay()], batch_size=4)
        for _ in range(3):
            with pytest.raises(archive.NotEnoughData, match="replay 1 of a mix"):
                mixed.sample()
        same(replay.sample(4).asdict(), twin.sample(4).asdict())
        none_of_it = archive.mix([replay, fresh.replay()], weights=[1, 0], batch_size=4)
        assert none_of_it.sample()["source"].tolist() == [0] * 4


def test_replays_whose_batches_differ(runs: list[archive.Run], tmp_path: Path) -> None:
    """Refused by name, and nothing counts as drawn."""
    twin = runs[0].replay(seed=3)
    with fill(tmp_path / "other.h5", 0.0, rows=0, depth=archive.Field("float32", (2,))) as other:
        steps = {"observation": np.arange(9.0), "action": np.arange(9), "reward": np.ones(9)}
        other.extend({**steps, "depth": np.zeros((9, 2))})
        for options, message in (({}, "depth"), ({"cast": {"observation": "float64"}}, "depth")):
            replay = runs[0].replay(seed=3)
            with pytest.raises(archive.FieldError, match=message):
                archive.mix([replay, other.replay(**options)], batch_size=4).sample()
    replay = runs[0].replay(seed=3)
    mixed = archive.mix([replay, runs[1].replay(cast={"observation": "float64"})], batch_size=8)
    with pytest.raises(archive.FieldError, match="'observation' is float32"):
        mixed.sample()
    same(replay.sample(4).asdict(), twin.sample(4).asdict())


def test_wrong_arguments(runs: list[archive.Run]) -> None:
    replay = runs[0].replay()
    for arguments in ([], [runs[0]], [replay, replay]):
        with pytest.raises((archive.FieldError, archive.FieldTypeError), match="mix"):
            archive.mix(arguments)  # type: ignore[arg-type]
    for weights in ([1.0, 1.0], [-1.0], [np.nan], [0.0]):
        with pytest.raises(archive.FieldError, match="weights"):
            archive.mix([replay], weights)
    for size in (None, 0, 1.5):
        with pytest.raises(archive.FieldError, match="batch_size"):
            archive.mix([replay]).sample(size)  # type: ignore[arg-type]
    with pytest.raises(archive.StateError, match="Prioritized"):
        archive.mix([replay]).update_priorities([0], [1.0])


def test_threads_share_a_mix(runs: list[archive.Run]) -> None:
    """Batch k is made of batch k of every replay, and given out once."""
    mixed, twin = (archive.mix(replays(runs), batch_size=6) for _ in range(2))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.extend(mixed.sample() for _ in range(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(twin.sample().index.tolist() for _ in range(120))
    assert sorted(batch.index.tolist() for batch in found) == expected


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8).filter(any), st.integers(1, 600))
def test_counts_are_the_shares_rounded(weights: list[float], size: int) -> None:
    counts = archive.Mix((), weights, None).counts(size)
    assert sum(counts) == size
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - weight / sum(weights) * size) < 1 + 1e-6
        assert weight or not count
