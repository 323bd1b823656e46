"""Forks: a new run that stands where another one stood at a checkpoint, to the last byte of its rows and draws."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import reader
from test_replay import equal_batches, same

import archive

FRAME = (20, 20)
SAMPLERS = [
    archive.Uniform(),
    archive.Epoch(),
    archive.Prioritized(beta=archive.Linear(0.4, 1.0, steps=50)),
]


def schema(envs: int | None = None, codec: str | None = None) -> archive.Schema:
    fields = {
        "observation": archive.Field("uint8", FRAME, compression=codec),
        "action": archive.Field("int64"),
        "extra": archive.Field(">f8", (3,)),
    }
    columns = {"task": archive.Text(20)}
    return archive.Schema(fields, episodes=columns, num_envs=envs, autoreset="NextStep" if envs else None)


def play(run: archive.Run, first: int, count: int) -> None:
    """Take steps numbered from `first` on, whose values depend on the number alone."""
    for t in range(first, first + count):
        rng = np.random.default_rng(t)
        lead = () if run.schema.num_envs is None else (run.num_envs,)
        frame = rng.integers(0, 40, (*lead, *FRAME), np.uint8)
        ended = run.schema.autoreset is None and run.num_episodes and run.episodes["terminated"][-1]
        if ended or not run.num_episodes:
            run.reset(frame, task=f"task {t}")
        flag = rng.random(lead) < 0.03
        values = (rng.integers(0, 5, lead), rng.integers(0, 40, (*lead, *FRAME), np.uint8), rng.normal(size=lead))
        run.step(*values, flag, np.zeros(lead, bool), extra=rng.normal(size=(*lead, 3)))


def learn(replays: list[archive.Replay], batches: int) -> list[archive.Batch]:
    """Draw batches as a learner does."""
    found = []
    for _ in range(batches):
        for replay in replays:
            found.append(replay.sample())
            if isinstance(replay.sampler, archive.Prioritized):
                replay.update_priorities(found[-1].index, np.abs(found[-1].reward))
    return found


def record(run: archive.Run, numbers: range) -> None:
    """Record 400 steps before each checkpoint of these numbers."""
    last = run.last_checkpoint
    replays = (
        resumed(run)
        if last
        else [
            run.replay(batch_size=16, sampler=sampler, seed=k, n_step=2, prefetch=k)
            for k, sampler in enumerate(SAMPLERS)
        ]
    )
    for number in numbers:
        play(run, 400 * number, 400)
        learn(replays, 5)
        states = [replay.state_dict() for replay in replays]
        run.checkpoint(
            keep=3, step=np.int64(400 * number), replays=states, deep={"again": (states[0],)}, blob=bytes(number)
        )


def resumed(run: archive.Run) -> list[archive.Replay]:
    """Return the replays of the newest checkpoint."""
    last = run.last_checkpoint
    assert last is not None
    return [run.replay(state=state) for state in last["replays"]]


def equal_rows(a: archive.Run, b: archive.Run) -> None:
    assert a.lengths.tolist() == b.lengths.tolist()
    assert same(dict(a.episodes), dict(b.episodes))
    for name in a.schema.steps:
        assert same(a[name][:], b[name][:]), name


@pytest.mark.parametrize(
    ("envs", "codec", "left"),
    [(None, None, "closed"), (None, "zstd", "killed"), (None, "lz4", "open"), (3, None, "open"), (3, "none", "closed")],
)
def test_a_fork_is_the_run_that_stopped_there(path: Path, envs: int | None, codec: str | None, left: str) -> None:
    """Beside a copy of the file as it was when the checkpoint had been made, both going on alike."""
    stopped, forked = path.with_name("stopped.h5"), path.with_name("fork.h5")
    run = archive.create(path, schema(envs, codec), commit_every=None, metadata={"who": "a test"})
    record(run, range(1, 4))
    shutil.copy(path, stopped)
    record(run, range(4, 5))
    play(run, 9000, 100)
    run.end_episode(truncated=True)  # late: on a row that the checkpoint has
    {"closed": run.close, "killed": run._file.abandon, "open": run.commit}[left]()
    archive.fork(path, forked, at=3)
    run.close()
    with archive.open(forked, "a", commit_every=None) as fork, archive.open(stopped, "a", commit_every=None) as twin:
        assert (fork.last_checkpoint.id, dict(fork.metadata)) == (3, {"who": "a test"})
        replays = resumed(fork), resumed(twin)
        for first in (20_000, 30_000):
            equal_rows(fork, twin)
            for a, b in zip(learn(replays[0], 10), learn(replays[1], 10), strict=True):
                equal_batches(a, b)
            play(fork, first, 100)
            play(twin, first, 100)
    with archive.open(forked) as fork, archive.open(stopped) as twin:
        equal_rows(fork, twin)


def test_a_fork_draws_what_a_run_rewound_draws(path: Path) -> None:
    forked = path.with_name("fork.h5")
    with archive.create(path, schema(), commit_every=None) as run:
        record(run, range(1, 5))
        archive.fork(path, forked, at=2)
        (back,) = [c for c in run.checkpoints() if c.id == 2]
        run.rewind(back)
        with archive.open(forked, "a", commit_every=None) as fork:
            rows = run.num_rows - fork.num_rows  # what the fork does not have
            both, first = (resumed(run), resumed(fork)), fork.num_rows
            for each in (run, fork):
                each.reset(np.zeros(FRAME, np.uint8))
                play(each, 7000, 300)
            for a, b in zip(learn(both[0], 30), learn(both[1], 30), strict=True):
                a.index[a.index >= first] -= rows
                equal_batches(a, b)


@pytest.mark.parametrize("at", ["last", 3, "3", "step=1200", "blob_name=x"])
def test_which_checkpoint(path: Path, at: int | str) -> None:
    with archive.create(path, schema()) as run:
        record(run, range(1, 5))
        run.rewind(run.checkpoints()[1])
        run.checkpoint(blob_name="x")
    out = path.with_name("fork.h5")
    archive.fork(path, out, at)
    with archive.open(out) as fork:
        assert (fork.last_checkpoint.id, fork.num_steps) == ({"last": 5, "blob_name=x": 5}.get(str(at), 3), 1200)


@pytest.mark.parametrize("at", [1, 4, 99, "step=400", "step=", "replays=1", "newest", "", -1])
def test_a_checkpoint_that_is_not_kept(path: Path, at: int | str) -> None:
    with archive.create(path, schema()) as run:
        record(run, range(1, 5))
        run.rewind(run.checkpoints()[1])
    out = path.with_name("fork.h5")
    with pytest.raises(archive.StateError, match=r"no checkpoint .* it has 2, 3$"):
        archive.fork(path, out, at)
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.h5"]


def test_a_run_without_checkpoints_is_not_forked(path: Path) -> None:
    archive.create(path, schema()).close()
    with pytest.raises(archive.StateError, match="it has none"):
        archive.fork(path, path.with_name("fork.h5"))


def test_nothing_is_overwritten(path: Path) -> None:
    with archive.create(path, schema()) as run:
        record(run, range(1, 2))
    before = path.read_bytes()
    other = path.with_name("other")
    other.write_bytes(b"mine")
    for out in (path, other):
        with pytest.raises(archive.ExistingRunError):
            archive.fork(path, out)
    assert (path.read_bytes(), other.read_bytes()) == (before, b"mine")
    with pytest.raises(archive.MissingRunError, match="no such folder"):
        archive.fork(path, path.parent / "missing" / "fork.h5")
    with pytest.raises(archive.MissingRunError, match="no such file"):
        archive.fork(path.parent / "missing.h5", path.with_name("fork.h5"))
    assert sorted(p.name for p in path.parent.iterdir()) == ["other", "run.h5"]


def test_chunks_are_copied_as_they_are_encoded(path: Path) -> None:
    """Streams are the same bytes; trailers name the new run; stock HDF5 and the reader of the document read it."""
    out = path.with_name("fork.h5")
    with archive.create(path, schema()) as run:
        record(run, range(1, 5))
    archive.fork(path, out, at=2)
    old, new = reader.File(path), reader.File(out)
    assert new.block["run_id"] != old.block["run_id"]
    assert new.block["rows"] == old.block["rows"]
    with h5py.File(path) as before, h5py.File(out) as after:
        provenance = json.loads(after["meta/provenance_json"][0])
        assert provenance["forked_from"] == [{"run_id": old.block["run_id"], "checkpoint": 2}]
        for name in old.block["schema"]["steps"]:
            source, copy = before[f"steps/{name}"], after[f"steps/{name}"]
            rows = min(len(copy) - 2, 800) // source.chunks[0] * source.chunks[0]
            for first in range(0, rows, source.chunks[0]):
                a, b = (d.id.read_direct_chunk((first, *(0,) * (d.ndim - 1)))[1] for d in (source, copy))
                assert a[:-52] == b[:-52]
                assert b[-48:-40] == bytes.fromhex(new.block["run_id"])
            known = copy[:] if name == "observation" else copy[:-1]  # the last row waits for its action
            np.testing.assert_array_equal(source[: len(known)], known, name)


def test_a_fork_of_a_fork(path: Path) -> None:
    with archive.create(path, schema()) as run:
        record(run, range(1, 3))
    archive.fork(path, path.with_name("b.h5"))
    archive.fork(path.with_name("b.h5"), path.with_name("c.h5"))
    with archive.open(path.with_name("b.h5"), "a") as b:
        record(b, range(3, 4))
    archive.fork(path.with_name("b.h5"), path.with_name("d.h5"))
    with archive.open(path, "a") as a, archive.open(path.with_name("c.h5"), "a") as c:
        ids = [run._header.run_id for run in (a, c)]
        with archive.open(path.with_name("b.h5")) as b:
            ids.insert(1, b._header.run_id)
        assert c._texts["provenance"]["forked_from"] == [{"run_id": n, "checkpoint": 2} for n in ids[:2]]
        for x, y in zip(learn(resumed(a), 5), learn(resumed(c), 5), strict=True):
            equal_batches(x, y)
        assert run_ids(c.last_checkpoint) == {ids[2]}
    with archive.open(path.with_name("d.h5"), "a") as d, archive.open(path.with_name("b.h5"), "a") as b:
        assert d.last_checkpoint.id == 3
        for x, y in zip(learn(resumed(d), 5), learn(resumed(b), 5), strict=True):
            equal_batches(x, y)


def run_ids(value: Any) -> set[str]:
    """Return the runs that the states in a checkpoint name."""
    if isinstance(value, Mapping):
        named = {value["run_id"]} if "run_id" in value else set()
        return named.union(*map(run_ids, value.values()))
    return set().union(*map(run_ids, value)) if isinstance(value, (list, tuple)) else set()


def test_a_damaged_chunk_is_not_copied(path: Path) -> None:
    out = path.with_name("fork.h5")
    with archive.create(path, schema()) as run:
        record(run, range(1, 3))
        column = run._rows.columns["observation"]
        at = int(column.offset[2] + column.size[2] // 2)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(archive.DamagedError, match="'observation', environment 0, rows from 512"):
        archive.fork(path, out)
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.h5"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_fork_that_is_broken_off_leaves_nothing(path: Path, error: type[BaseException]) -> None:
    def progress(done: int, total: int) -> None:
        assert 0 < done <= total
        if done == 2:
            raise error

    with archive.create(path, schema()) as run:
        record(run, range(1, 3))
    with pytest.raises(error):
        archive.fork(path, path.with_name("fork.h5"), progress=progress)
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.h5"]


def test_a_synced_run_has_synced_forks(path: Path) -> None:
    """Once synced, always synced: no commit of the fork may undo another in a power cut."""
    for sync in (False, True):
        out = path.with_name(f"{sync}.h5")
        with archive.create(path.with_name(f"run{sync}.h5"), schema()) as run:
            record(run, range(1, 2))
            run.commit(sync=sync)
            archive.fork(run.path, out)
        with archive.open(out) as fork:
            assert fork._file.record.synced == sync


KILLED = """
import os, signal, sys
import archive
def progress(done, total):
    if done == int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
archive.fork(sys.argv[1], sys.argv[2], progress=progress)
"""


def test_a_fork_that_is_killed_leaves_nothing_under_its_name(path: Path) -> None:
    out = path.with_name("fork.h5")
    with archive.create(path, schema()) as run:
        record(run, range(1, 3))
    before = path.read_bytes()
    for done in (1, 3):
        child = subprocess.run([sys.executable, "-c", KILLED, path, out, str(done)], check=False)
        assert child.returncode == -signal.SIGKILL
        assert not out.exists()
    archive.fork(path, out)  # what the others left is no obstacle
    assert sorted(p.name for p in path.parent.iterdir()) == ["fork.h5", "run.h5"]
    with archive.open(out) as fork, archive.open(path) as run:
        equal_rows(fork, run)
    assert path.read_bytes() == before


KILLED_RENAMED = """
import os, signal, sys
import archive
rename = os.rename
def then_die(*names):
    rename(*names)
    os.kill(os.getpid(), signal.SIGKILL)
os.rename = then_die
archive.fork(sys.argv[1], sys.argv[2])
"""


def test_a_fork_that_is_killed_when_it_has_its_name_is_whole(path: Path) -> None:
    out = path.with_name("fork.h5")
    with archive.create(path, schema(3)) as run:
        record(run, range(1, 3))
    child = subprocess.run([sys.executable, "-c", KILLED_RENAMED, path, out], check=False)
    assert child.returncode == -signal.SIGKILL
    with archive.open(out) as fork, archive.open(path) as run:
        equal_rows(fork, run)
    with archive.open(out, "a", commit_every=None) as fork, archive.open(path, "a", commit_every=None) as run:
        for a, b in zip(learn(resumed(fork), 5), learn(resumed(run), 5), strict=True):
            equal_batches(a, b)


def test_the_command_line(path: Path) -> None:
    out = path.with_name("fork.h5")
    with archive.create(path, schema()) as run:
        record(run, range(1, 4))
    command = [sys.executable, "-m", "archive", "fork", str(path), str(out), "--at", "step=800"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "800 steps" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stderr.count("Traceback")) == (1, 0)
    assert "exists already" in again.stderr
    told = subprocess.run([*command[:3], "info", str(out)], capture_output=True, text=True, check=True).stdout
    assert "step=800" in told
    assert "checkpoint 2 of run" in " ".join(told.split())
