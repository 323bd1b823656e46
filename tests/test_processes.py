"""Several processes and threads at one run: workers of data loaders, environments, a writer beside a reader.

What the values of a row must be follows from its number, so whoever reads one knows whether it is right.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archive

Array = np.ndarray[Any, Any]
FRAME, EPISODE, BUDGET = (40, 40), 50, "8 MiB"  # 16 MB of frames in 10,000 rows
pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded")  # Python 3.12 on, at a fork
METHODS = [m for m in ("fork", "spawn") if m in multiprocessing.get_all_start_methods()]


def frames_of(row: Array) -> Array:
    """Return the frames of rows, each other than all others in every pixel."""
    pixel = np.arange(np.prod(FRAME), dtype=np.uint64).reshape(FRAME)
    mixed = np.asarray(row, np.uint64)[..., None, None] * np.uint64(0x9E3779B97F4A7C15) + pixel * np.uint64(0x5851F42D)
    return np.asarray(mixed >> np.uint64(29), np.uint8)


def append(run: archive.Run, first: int, count: int) -> None:
    """Append transitions; the last of each episode terminates."""
    row = np.arange(first, first + count)
    ended = row % EPISODE == EPISODE - 1
    run.extend({"observation": frames_of(row), "action": row, "reward": row / 8, "terminated": ended})


def create(path: Path) -> archive.Run:
    fields = {"observation": archive.Field("uint8", FRAME), "action": archive.Field("int64")}
    return archive.create(path, archive.Schema(fields), commit_every=None, memory=BUDGET)


def check_batch(batch: archive.Batch) -> None:
    """Compare a batch of transitions with what its ids say."""
    np.testing.assert_array_equal(batch.action, batch.index)
    np.testing.assert_array_equal(batch.reward, (batch.index / 8).astype(np.float32))
    np.testing.assert_array_equal(batch.observation, frames_of(batch.index))
    ended = batch.index % EPISODE == EPISODE - 1
    np.testing.assert_array_equal(batch.terminated, ended)
    np.testing.assert_array_equal(batch.next_observation[~ended], frames_of(batch.index[~ended] + 1))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes") / "run.h5"
    with create(path) as run:
        for first in range(0, 10_000, 1000):
            append(run, first, 1000)
    return path


# --- data loaders


class Transitions:
    """A map-style data set, as torch's DataLoader wants one: transition k of a run."""

    def __init__(self, run: archive.Run) -> None:
        self.run, self.replay = run, run.replay(batch_size=1)

    def __getstate__(self) -> archive.Run:
        return self.run

    def __setstate__(self, run: archive.Run) -> None:
        self.__init__(run)  # type: ignore[misc]

    def __len__(self) -> int:
        return self.run.num_steps

    def __getitem__(self, k: int) -> str:
        return digest_of(self.replay.gather([k]))


def digest_of(batch: archive.Batch) -> str:
    """Return a digest of all that a batch holds."""
    parts = [batch[name].tobytes() for name in sorted(batch.asdict())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def read_share(worker: int, data: Transitions, count: int, results: Any) -> None:
    """Send digests of every fourth of the first `count` transitions, and of batches that the worker draws itself."""
    items = [(k, data[k]) for k in range(worker, count, 4)]
    replay = data.run.replay(batch_size=16, seed=worker)
    results.put((worker, items, [digest_of(replay.sample()) for _ in range(20)]))


@pytest.mark.parametrize("method", METHODS)
def test_four_workers_read_what_one_process_reads(recorded: Path, method: str) -> None:
    context = multiprocessing.get_context(method)
    with archive.open(recorded, memory=BUDGET) as run:
        data, used = Transitions(run), run.replay(batch_size=16, prefetch=2)
        for _ in range(5):
            check_batch(used.sample())  # the cache is warm and the loader runs when children come
        results = context.Queue()
        workers = [context.Process(target=read_share, args=(k, data, 800, results)) for k in range(4)]
        for worker in workers:
            worker.start()
        told = [results.get(timeout=120) for _ in workers]
        for worker in workers:
            worker.join()
        assert dict(item for _, items, _ in told for item in items) == {k: data[k] for k in range(800)}
        for number, _, drawn in told:
            replay = run.replay(batch_size=16, seed=number)
            assert drawn == [digest_of(replay.sample()) for _ in range(20)]
        check_batch(used.sample())


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than there are cores
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_data_loader_of_torch(recorded: Path, torch: Any, method: str) -> None:
    with archive.open(recorded, memory=BUDGET) as run:
        data = Transitions(run)
        options = {"num_workers": 4, "multiprocessing_context": method, "batch_size": 64, "collate_fn": list}
        loader = torch.utils.data.DataLoader(data, sampler=range(0, 1500, 3), **options)
        assert [digest for batch in loader for digest in batch] == [data[k] for k in range(0, 1500, 3)]


# --- threads


@pytest.mark.parametrize("sampler", [archive.Uniform(), archive.Prioritized()])
def test_threads_sample_while_rows_arrive(path: Path, sampler: Any) -> None:
    """Four threads share the replay of a run that a fifth appends to: no batch is given out twice, all are right."""
    with create(path) as run:
        append(run, 0, 1000)
        replay, found, failures = run.replay(sampler=sampler, batch_size=16, n_step=1), [], []

        def work() -> None:
            try:
                for _ in range(50):
                    batch = replay.sample()
                    check_batch(batch)
                    found.append(batch.index.tobytes())
                    if isinstance(sampler, archive.Prioritized):
                        replay.update_priorities(batch.index, batch.reward)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for first in range(1000, 3000, 50):
            append(run, first, 50)
            run.commit()
        for thread in threads:
            thread.join()
        assert failures == []
        assert (len(set(found)), replay.state_dict()["batches"]) == (200, 200)


# --- a live reader


def write_on(path: Path, committed: Any, stop: Any) -> None:
    """Append and commit pieces of any size, now and then close and reopen, and tell how much is committed."""
    choice, rows = random.Random(0), 0
    run = create(path)
    while not stop.is_set():
        count = choice.choice([1, 1, 3, 17, 200])
        append(run, rows, count)
        rows += count
        kind = choice.random()
        if kind < 0.02:
            run.close()
            run = archive.open(path, "a", commit_every=None, memory=BUDGET)
        elif kind < 0.05:
            run.checkpoint(rows=rows, blob=bytes(choice.randrange(100_000)))
        else:
            run.commit(sync=kind < 0.06)
        committed.value = rows
        if rows > 100_000:
            time.sleep(0.002)
    run.close()


def check_reader(run: archive.Run, least: int, seen: int, choice: random.Random) -> int:
    """Check that a reader has all rows that had been committed before it looked, and that they are right."""
    rows = run.num_rows
    assert rows >= max(least, seen), f"{rows} rows, but {least} had been committed and {seen} were seen before"
    assert (run.num_steps, int(run.episodes["length"].sum())) == (rows, rows)
    for low in {max(rows - 30, 0), choice.randrange(max(rows, 1))}:
        row = np.arange(low, min(low + 30, rows))
        np.testing.assert_array_equal(run["action"][low : low + 30], row)
        np.testing.assert_array_equal(run["observation"][low : low + 30], frames_of(row))
    if rows > 100:
        check_batch(run.replay(batch_size=8, seed=rows).sample())
    return rows


def follow(path: Path, polls: int) -> None:
    """Poll a run that another process writes, now and then by opening it anew."""
    context, choice = multiprocessing.get_context("spawn"), random.Random(1)
    committed, stop = context.Value("q", 0), context.Event()
    writer = context.Process(target=write_on, args=(path, committed, stop))
    writer.start()
    try:
        while not committed.value:
            assert writer.is_alive()
            time.sleep(0.01)
        run, seen, moved = archive.open(path, memory=BUDGET), 0, 0
        for poll in range(polls):
            assert writer.is_alive()
            least = committed.value
            if poll % 50 == 49:
                run.close()
                run = archive.open(path, memory=BUDGET)
            else:
                run.refresh()
            before, seen = seen, check_reader(run, least, seen, choice)
            moved += seen > before
        run.close()
        assert moved > polls / 20
    finally:
        stop.set()
        writer.join()
    assert writer.exitcode == 0
    with archive.open(path, memory=BUDGET) as run:
        assert check_reader(run, committed.value, seen, choice) == committed.value


def test_a_reader_beside_a_writer(path: Path) -> None:
    follow(path, 200)


@pytest.mark.slow
def test_a_reader_beside_a_writer_for_long(path: Path) -> None:
    follow(path, 10_000)


# --- environments in processes


def test_environments_in_processes_hold_no_file_of_the_run(path: Path) -> None:
    """Children of AsyncVectorEnv, forked while the run is written: they have neither its lock nor its file open."""
    gymnasium = pytest.importorskip("gymnasium")

    class Spy(gymnasium.Env):  # type: ignore[misc, name-defined]
        observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return np.zeros(3, np.float32), {}

        def step(self, action: Any) -> Any:
            return np.ones(3, np.float32), 1.0, False, False, {}

        def files(self) -> list[str]:
            folder = Path("/proc/self/fd")
            return [os.readlink(f) for f in folder.iterdir() if f.is_symlink() and f.exists()]

    run = create(path)
    append(run, 0, 100)
    other = path.with_name("async.h5")
    envs = gymnasium.vector.AsyncVectorEnv([Spy] * 3, context="fork")
    try:
        recording = archive.create(other, envs)
        recording.reset(*envs.reset(seed=0))
        for _ in range(10):
            recording.step(np.zeros(3, int), *envs.step(np.zeros(3, int)))
        for files in envs.call("files"):
            assert files
            assert [f for f in files if "run.h5" in f or "async.h5" in f] == []
        recording.close()
        run.commit()
        run.close()
        for name, rows in ((other, 33), (path, 100)):  # the children are still there
            with archive.open(name, "a") as again:
                assert again.num_rows == rows
    finally:
        envs.close()
