"""Mode "r": never writes, reads killed files and files that are being written, indexes like numpy."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from faults import (
    FIELDS,
    FLAGS,
    Diary,
    Player,
    byte_tear,
    checkpoint_differences,
    differences,
    page_tear,
    row_differences,
    schema,
)
from kill_child import Orders
from test_crash import deaths, recorded

import archive

ENVS = pytest.mark.parametrize("envs", [0, 3], ids=["one environment", "three environments"])


def traces(folder):
    """Return name, bytes and time of the last change of every file in a folder."""
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ino) for p in folder.iterdir()}


def read_everything(path, diary):
    """Use a run in every way that a reader can."""
    with archive.open(path) as run:
        assert differences(run, diary) == []
        for number in range(run.num_episodes):
            assert len(run.episode(number)["reward"]) == diary.episodes[number][2]
        if run.num_steps:
            replay = run.replay(batch_size=8, sampler=archive.Prioritized())
            replay.update_priorities(replay.sample().index, np.ones(8))
            replay.state_dict()
        run.refresh()
        assert repr(run)
        assert run.metadata
        assert differences(run, diary) == []


def played(path, envs):
    """Return a player whose run has closed and open chunks, several episodes and a checkpoint."""
    player = Player(Diary(envs))
    player.create(path)
    player.steps(20)
    player.step("terminated")
    player.steps(6)
    player.checkpoint()
    player.step("truncated")
    player.steps(9)
    return player


# --- never writes


@ENVS
def test_reading_a_closed_file_changes_nothing(tmp_path, envs):
    player = played(tmp_path / "run.h5", envs)
    player.close()
    before = traces(tmp_path)
    assert list(before) == ["run.h5"]
    read_everything(tmp_path / "run.h5", player.diary)
    assert traces(tmp_path) == before


@ENVS
def test_reading_a_file_that_must_not_be_written(tmp_path, envs):
    """A file and folder without permission to write; a process that may do anything can at least see the same bytes."""
    player = played(tmp_path / "run.h5", envs)
    player.close()
    (tmp_path / "run.h5").chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        before = traces(tmp_path)
        read_everything(tmp_path / "run.h5", player.diary)
        assert traces(tmp_path) == before
    finally:
        tmp_path.chmod(0o755)


@ENVS
def test_reading_beside_a_writer_changes_nothing(tmp_path, envs):
    player = played(tmp_path / "run.h5", envs)
    player.commit()
    committed = player.diary.copy()
    player.steps(2)
    before = traces(tmp_path)
    read_everything(tmp_path / "run.h5", committed)
    assert traces(tmp_path) == before
    player.commit()
    read_everything(tmp_path / "run.h5", player.diary)
    player.close()


@ENVS
def test_reading_killed_files_changes_nothing(tmp_path, monkeypatch, envs):
    """Files as deaths leave them, also in the middle of applying a journal."""
    log, states = recorded(monkeypatch, tmp_path, envs)
    (tmp_path / "run.h5").unlink()
    path, halves, wholes = tmp_path / "killed.h5", 0, 0
    for death in deaths(log, [page_tear, byte_tear]):
        half = death.redone is not None
        halves, wholes = halves + half, wholes + (not half)
        if halves % 140 != 1 if half else wholes % 12:
            continue
        path.write_bytes(death.image)
        before = traces(tmp_path)
        with archive.open(path) as run:
            fitting = [k for k in death.states if not differences(run, states[k])]
            assert fitting, [differences(run, states[k]) for k in death.states]
        read_everything(path, states[fitting[-1]])
        assert traces(tmp_path) == before
    assert min(halves // 140, wholes // 12) > 10


# --- a live file


class Writer:
    """A recording process and what it has announced: `states` it began to commit, how many of them are done."""

    def __init__(self, path, envs, life, errors):
        script = Path(__file__).with_name("kill_child.py")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        self.process = subprocess.Popen([sys.executable, str(script)], **pipes)
        self.states, self.done = [], 0
        pickle.dump(Orders(path, Diary(envs), life, sizes=[100, 5000]), self.process.stdin)
        self.process.stdin.flush()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self):
        while True:
            try:
                kind, *data = pickle.load(self.process.stdout)
            except (EOFError, pickle.UnpicklingError):
                return
            if kind == "doing":
                self.states.append(data[0])
            elif kind == "done":
                self.done = len(self.states)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.listener.join()
        self.process.communicate()


def follow(path, writer, polls, moves):
    """Poll a live run so many times and until it has moved so often.

    Every poll must show a state that was committed, none older than one already seen or done before the poll.
    """
    while not path.exists():
        assert writer.process.poll() is None
        time.sleep(0.001)
    seen = moved = count = 0
    with archive.open(path) as run:
        while count < polls or moved < moves:
            assert writer.process.poll() is None
            first = max(seen, writer.done - 1, 0)
            run.refresh()
            found = shown_state(run, writer, first)
            moved += found > seen
            seen, count = found, count + 1


def shown_state(run, writer, first):
    """Return which of the states from `first` on a run shows, once the announcement of it has arrived."""
    wrong = []
    for _ in range(1000):
        states = writer.states[first:]
        for number, state in enumerate(states, first):
            if same_numbers(run, state):
                wrong = row_differences(run, state)
                if not wrong:
                    check_live_checkpoint(run, writer, number)
                    return number
        if wrong:
            break
        time.sleep(0.001)
    pytest.fail(str(wrong or ([s.summary() for s in states], run.lengths, run.num_steps, run.num_episodes)))


def check_live_checkpoint(run, writer, number):
    """The newest checkpoint is that of the state shown; or a newer one, if that has been written over already."""
    found = run.last_checkpoint
    for _ in range(1000):
        states = writer.states[number:]
        if any(not checkpoint_differences(found, state.checkpoint) for state in states):
            return
        time.sleep(0.001)
    pytest.fail(str(checkpoint_differences(found, states[0].checkpoint)))


def same_numbers(run, state):
    lengths, steps, episodes, _ = state.summary()
    return (run.lengths.tolist(), run.num_steps, run.num_episodes) == (lengths, steps, episodes)


@ENVS
def test_live_reader(tmp_path, envs):
    """Three writers, each polled while it appends, commits, checkpoints, rewinds, closes, reopens."""
    with open(tmp_path / "errors", "w") as errors:
        for life in range(3):
            path = tmp_path / f"{life}.h5"
            with Writer(path, envs, life, errors) as writer:
                follow(path, writer, polls=100, moves=30)
    assert (tmp_path / "errors").read_text() == ""


@ENVS
def test_new_readers_of_a_live_file(tmp_path, envs):
    """Opening instead of refreshing."""
    path, seen = tmp_path / "run.h5", 0
    with open(tmp_path / "errors", "w") as errors, Writer(path, envs, 7, errors) as writer:
        while not path.exists():
            assert writer.process.poll() is None
            time.sleep(0.001)
        for _ in range(60):
            first = max(seen, writer.done - 1, 0)
            with archive.open(path) as run:
                seen = shown_state(run, writer, first)
    assert seen > 0
    assert (tmp_path / "errors").read_text() == ""


def test_refresh_of_a_writer_does_nothing(tmp_path):
    player = played(tmp_path / "run.h5", 0)
    player.run.refresh()
    assert differences(player.run, player.diary) == []
    player.close()


# --- indexing


ROW_KEYS = [
    0,
    -1,
    np.int64(9),
    slice(None),
    slice(3, 12),
    slice(-5, None),
    slice(None, None, 3),
    slice(20, 2, -1),
    slice(None, None, -4),
    slice(7, 7),
    slice(0, 10**9),
    [0, 9, 9, 2],
    [],
    np.array([-1, 0, 17]),
    np.array([[1, 2], [30, 4]]),
    Ellipsis,
]


def expected_column(diary, name):
    """Return a field as numpy has it: rows first, environments of fewer rows filled with zeros."""
    columns = [diary.column(name, env) for env in range(diary.envs)]
    if not diary.axis:
        return columns[0]
    result = np.zeros((max(map(len, columns)), diary.envs, *columns[0].shape[1:]), columns[0].dtype)
    for env, column in enumerate(columns):
        result[: len(column), env] = column
    return result


def check_indexing(run, diary):
    """Compare every way of indexing with numpy's."""
    for name in (*FIELDS, *FLAGS):
        lazy, full = run[name], expected_column(diary, name)
        assert (lazy.shape, lazy.dtype, len(lazy)) == (full.shape, full.dtype, len(full))
        assert np.asarray(lazy).tobytes() == full.tobytes()
        mask = np.arange(len(full)) % 3 == 1
        for key in (*ROW_KEYS, mask, mask.tolist()):
            expect_same(lazy[key], full[key], name, key)
        inner = (1,) * (full.ndim - 1)
        expect_same(lazy[(5, *inner)], full[(5, *inner)], name, (5, *inner))
        if full.ndim > 1:
            for key in (
                (slice(2, 9), 1),
                (4, slice(None)),
                (..., 0),
                (slice(None), slice(None, None, -1)),
                (3, ..., 0),
            ):
                expect_same(lazy[key], full[key], name, key)
            expect_same(lazy[[1, 2], 0], full[[1, 2], 0], name, "list and int")
        for row in (len(full), -len(full) - 1, [0, len(full)]):
            with pytest.raises(IndexError):
                lazy[row]
        with pytest.raises(IndexError):
            lazy[(0,) * (full.ndim + 1)]
        with pytest.raises((IndexError, TypeError)):
            lazy["a"]
        with pytest.raises((IndexError, TypeError)):
            lazy[0.5]
    assert [r.tobytes() for r in run["action"]] == [r.tobytes() for r in expected_column(diary, "action")]
    assert run["reward"][3:6].astype("f8").sum() == expected_column(diary, "reward")[3:6].astype("f8").sum()


def expect_same(found, expected, name, key):
    assert isinstance(found, (np.ndarray, np.generic)), (name, key)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape), (name, key)
    assert found.tobytes() == expected.tobytes(), (name, key)


def uneven(path, envs):
    """Return a player whose environments have different numbers of rows."""
    player = played(path, envs)
    if envs:
        for _ in range(3):  # environment 0 alone gets final rows
            mask = np.array([True] + [False] * (envs - 1))
            rows = player.lengths()
            player.run.reset(player.observe(rows), mask=mask)
            player.diary.begin(0, 0)
    return player


@ENVS
def test_indexing(tmp_path, envs):
    """While writing, in a live reader, after a close, after reopening, with little memory."""
    path = tmp_path / "run.h5"
    player = uneven(path, envs)
    check_indexing(player.run, player.diary)
    player.commit()
    with archive.open(path) as run:
        check_indexing(run, player.diary)
        player.steps(3)
        player.commit()
        run.refresh()
        check_indexing(run, player.diary)
    player.close()
    with archive.open(path, memory="64 MB") as run:
        check_indexing(run, player.diary)
    with archive.open(path, "a") as run:
        check_indexing(run, player.diary)


def test_what_was_read_belongs_to_the_reader(tmp_path):
    """Writing into an array changes neither the run nor what is read next."""
    path = tmp_path / "run.h5"
    player = played(path, 0)
    for run in (player.run, None):
        with run or archive.open(path) as run:
            for name in (*FIELDS, *FLAGS):
                array = run[name][:]
                array[...] = 0
            for values in run.episodes.values():
                values[...] = 0
            run.lengths[...] = 0
            run.episode(0)["reward"][...] = 0
            assert differences(run, player.diary) == []


def test_readers_in_threads(tmp_path):
    """Eight threads on one reader."""
    path = tmp_path / "run.h5"
    player = played(path, 0)
    player.close()
    failures = []

    def read():
        try:
            for _ in range(5):
                assert differences(run, player.diary) == []
                run.refresh()
        except BaseException as error:
            failures.append(error)

    with archive.open(path, memory="64 MB") as run:
        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_closed_reader(tmp_path):
    path = tmp_path / "run.h5"
    played(path, 0).close()
    run = archive.open(path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    run.close()
    run.close()
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) == before - 1
    with pytest.raises(archive.StateError, match="closed"):
        run.refresh()
    with pytest.raises(archive.StateError, match="closed"):
        run["observation/vector"][0]


def test_run_of_no_rows(tmp_path):
    """Closed and read before anything was recorded."""
    for envs in (0, 3):
        path = tmp_path / f"{envs}.h5"
        archive.create(path, schema(envs)).close()
        with archive.open(path) as run:
            assert (run.num_rows, run.num_steps, run.num_episodes) == (0, 0, 0)
            for name in (*FIELDS, *FLAGS):
                assert run[name][:].shape == run[name].shape
                assert len(run[name]) == 0
                with pytest.raises(IndexError):
                    run[name][0]
            assert run.last_checkpoint is None


# --- pickles


def rows_seen(run):
    """Return what a process sees of a run that it was handed."""
    with run:
        return run.num_rows, run["action"][:].tolist()


def test_a_run_is_pickled_as_where_it_is(tmp_path):
    """Another process, and this one, see what was committed; a run that took its place is refused."""
    path = tmp_path / "run.h5"
    with archive.create(path, schema(0), commit_every=None) as run:
        player = Player(Diary(0), run)
        player.reset()
        player.steps(20)
        run.commit()
        player.steps(5)
        data = pickle.dumps(run)
        assert len(data) < 300
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            assert pool.submit(rows_seen, run).result() == (21, [*run["action"][:20].tolist(), 0])
        with pickle.loads(data) as copy:
            assert copy.num_rows == 21
            assert copy._rows.memory == run._rows.memory
            with pytest.raises(archive.StateError, match="reading"):
                copy.commit()
    path.unlink()
    with pytest.raises(archive.MissingRunError):
        pickle.loads(data)
    archive.create(path, schema(0)).close()
    with pytest.raises(archive.StateError, match="was pickled"):
        pickle.loads(data)


def test_readers_that_are_dropped_close_their_file(tmp_path):
    """Nobody has to close what a worker unpickles."""
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("needs /proc")
    path = tmp_path / "run.h5"
    archive.create(path, schema(0)).close()
    archive.open(path)
    before = len(list(folder.iterdir()))
    for _ in range(20):
        archive.open(path)
    assert len(list(folder.iterdir())) == before
    run = archive.open(path)
    run.close()
    run.close()
    assert len(list(folder.iterdir())) == before
    path.write_bytes(path.read_bytes()[:3000])
    for _ in range(5):
        with pytest.raises(archive.ArchiveError):
            archive.open(path)
    assert len(list(folder.iterdir())) == before
