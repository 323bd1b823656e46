"""Faults for the file object of a writer, and the diary that says what a run must still hold after them.

A log of all writes stands for every death at once: the file as a death at the n-th write leaves it is what the first
n writes make of an empty one, with as much of the n-th as reached the disk.
"""

from __future__ import annotations

import copy
import errno
import functools
import os
import random
import signal
from dataclasses import dataclass, field

import numpy as np

import archive
import archive.store
from archive._file import JournaledFile

PAGE = 4096
ENDED, OPEN = 0, 1

# --- what reaches the disk, and what does not


@dataclass
class Log:
    """Everything that was done to a file, in order: (kind, offset, data).

    Kinds: "write", "sync", "cut" (data: the new length), "name" (the file appears under its own name), "apply" and
    "applied" (what HDF5 overwrote goes in place between the two), "note" (data: whatever the test wants to remember).
    """

    events: list[tuple[str, int, object]] = field(default_factory=list)

    def add(self, kind, offset=0, data=None):
        self.events.append((kind, offset, data))

    def install(self, monkeypatch):
        """Have every writer of this process write down what it does; one run at a time."""
        log = self

        class Recording(RecordingFile):
            pass

        Recording.log = self
        monkeypatch.setattr(archive.store, "JournaledFile", Recording)
        cut, rename, pwrite = os.ftruncate, os.rename, os.pwrite

        def logged_cut(fd, size):
            # the lock file is emptied too, but only ever to length 0
            cut(fd, size)
            if size:
                log.add("cut", 0, size)

        def logged_rename(old, new):
            rename(old, new)
            log.add("name")

        def logged_pwrite(fd, data, offset):
            log.add("write", offset, bytes(data))
            return pwrite(fd, data, offset)

        monkeypatch.setattr(os, "ftruncate", logged_cut)
        monkeypatch.setattr(os, "rename", logged_rename)
        monkeypatch.setattr(os, "pwrite", logged_pwrite)


class RecordingFile(JournaledFile):
    """Does what a JournaledFile does and writes it down."""

    log = None

    def put(self, offset, data):
        self.log.add("write", offset, bytes(data))
        return JournaledFile.put(self, offset, data)

    def sync(self):
        self.log.add("sync")
        return JournaledFile.sync(self)

    def seal(self, journal, journal_offset, record, record_offsets, *rest):
        self.log.add("seal", 0, bool(self.held_blocks))
        failed = JournaledFile.seal(self, journal, journal_offset, record, record_offsets, *rest)
        self.log.add("sealed")
        return failed


class Disk:
    """The bytes of a file while a log is played back."""

    def __init__(self, data=b""):
        self.data = bytearray(data)

    def write(self, offset, data):
        if offset + len(data) > len(self.data):
            self.data.extend(bytes(offset + len(data) - len(self.data)))
        self.data[offset : offset + len(data)] = data

    def cut(self, size):
        del self.data[size:]

    def play(self, event):
        kind, offset, data = event
        if kind == "write":
            self.write(offset, data)
        elif kind == "cut":
            self.cut(data)

    def torn(self, event, keep):
        """Return the bytes of the disk with only the first `keep` bytes of a write on it."""
        copy_ = Disk(self.data)
        copy_.write(event[1], event[2][:keep])
        return copy_.data


def page_tear(offset, data, choice):
    """Return how many bytes of a write reach the disk if it tears at a page; None if it lies within one page."""
    first = PAGE - offset % PAGE
    edges = range(first, len(data), PAGE)
    return choice.choice(edges) if edges else None


def byte_tear(offset, data, choice):
    """Return how many bytes of a write reach the disk if it tears anywhere; None if it is too short to tear."""
    return choice.randrange(1, len(data)) if len(data) > 1 else None


class FailingFile(JournaledFile):
    """Fails at write number `fail_at` (from 1) with `error`, after `part` of its bytes.

    A full disk stays full: with ENOSPC every later write fails as well.
    """

    fail_at, error, part, count = 0, errno.EIO, 0.0, 0

    def put(self, offset, data):
        kind = type(self)
        kind.count += 1
        if kind.count == kind.fail_at:
            keep = int(len(data) * kind.part)
            if keep:
                JournaledFile.put(self, offset, bytes(data)[:keep])
            return kind.error
        if kind.error == errno.ENOSPC and kind.count > kind.fail_at:
            return kind.error
        return JournaledFile.put(self, offset, data)


def failing(fail_at, error, part=0.0):
    """Return a new class of files that fail at write `fail_at`."""
    return type("Failing", (FailingFile,), {"fail_at": fail_at, "error": error, "part": part, "count": 0})


class FailingSyncFile(JournaledFile):
    """Fails at sync number `fail_at` (from 1)."""

    fail_at, count = 0, 0

    def sync(self):
        type(self).count += 1
        return errno.EIO if self.count == self.fail_at else JournaledFile.sync(self)


def failing_sync(fail_at):
    """Return a new class of files that fail at sync `fail_at`."""
    return type("FailingSync", (FailingSyncFile,), {"fail_at": fail_at, "count": 0})


class DyingFile(JournaledFile):
    """Kills its own process at write number `die_at` (from 1), after as much of it as `tear` says.

    tear: "none" (nothing of it), "page" (up to a page boundary), "byte" (up to any byte).
    """

    die_at, tear, choice, count = 0, "none", random.Random(0), 0

    def put(self, offset, data):
        kind = type(self)
        kind.count += 1
        if kind.count == kind.die_at:
            keep = page_tear(offset, data, kind.choice) if kind.tear == "page" else None
            keep = byte_tear(offset, data, kind.choice) if kind.tear == "byte" else keep
            if keep:
                JournaledFile.put(self, offset, bytes(data)[:keep])
            os.kill(os.getpid(), signal.SIGKILL)
        return JournaledFile.put(self, offset, data)


# --- rows whose content is known


VECTOR = 2250  # float32: 9,000 bytes a row, so that chunks of 8 rows fill often
FIELDS = {
    "observation/vector": ("<f4", (VECTOR,)),
    "observation/pixels": ("|u1", (6, 6)),
    "action": ("<i8", ()),
    "reward": ("<f4", ()),
    "log_prob": ("<f8", ()),
}
FLAGS = ("terminated", "truncated", "is_first", "is_last")
METADATA = {"note": "a text of some length, so that damage may well hit it " * 8}
EPISODE_FIELDS = ("env", "start", "length", "return", "terminated", "truncated", "final", "seed", "hidden")


def schema(envs):
    """Return the schema of the rows below; `envs` 0: a run without an axis of environments."""
    steps = {k: archive.Field(dtype, shape) for k, (dtype, shape) in FIELDS.items()}
    return archive.Schema(steps=steps, num_envs=envs or None, autoreset="NextStep" if envs else None)


def scramble(env, row, life, count):
    """Return `count` numbers (uint32) that look random and depend on all arguments."""
    seed = (env * 0x9E3779B1 + row * 0x85EBCA77 + life * 0xC2B2AE3D) & 0xFFFFFFFF
    x = np.arange(count, dtype=np.uint32) * np.uint32(0x27D4EB2F) + np.uint32(seed)
    x ^= x >> np.uint32(15)
    x *= np.uint32(0x2C1B3C6D)
    return x ^ (x >> np.uint32(12))


@functools.lru_cache(maxsize=50_000)
def value(name, env, row, life):
    """Return what a row holds in a field; `life` is the process that wrote it, so that stale rows are noticed."""
    dtype, shape = FIELDS[name]
    if name == "observation/vector":
        return scramble(env, row, life, VECTOR).view("<f4")  # any bits at all, NaNs among them
    if name == "observation/pixels":
        return scramble(env, row, life, 9).view("|u1").reshape(shape)
    number = scramble(env, row, life, 1)[0]
    if name == "log_prob":
        return np.array(np.nan if number % 5 == 0 else -float(number) / 7, dtype)
    return np.array(int(number) % 17 - 8 if name == "reward" else int(number) * 1_000_003 + row, dtype)


@dataclass
class Line:
    """One row: by which life its observation and the rest were written (-1: not yet), and its flags."""

    seen: int
    first: bool
    done: int = -1
    terminated: bool = False
    truncated: bool = False


class Diary:
    """What a run must hold, in plain Python: rows of each environment, episodes, the newest checkpoint."""

    def __init__(self, envs):
        self.axis, self.envs = bool(envs), envs or 1
        self.lines = [[] for _ in range(self.envs)]
        self.states = [ENDED] * self.envs
        self.episodes = []  # one list of EPISODE_FIELDS each
        self.checkpoint = None  # (id, values, position)

    def copy(self):
        return copy.deepcopy(self)

    def summary(self):
        """Return the numbers by which two states of one run differ."""
        steps = sum(e[2] for e in self.episodes)
        return [len(x) for x in self.lines], steps, len(self.episodes), self.checkpoint and self.checkpoint[0]

    # --- what happens to it

    def begin(self, env, life):
        self.lines[env].append(Line(life, True))
        self.episodes.append([env, len(self.lines[env]) - 1, 0, 0.0, False, False, True, -1, False])
        self.states[env] = OPEN

    def current(self, env):
        """Return the latest episode of an environment, None before its first."""
        mine = [e for e in self.episodes if e[0] == env]
        return mine[-1] if mine else None

    def advance(self, env, life, terminated, truncated):
        head, episode = self.lines[env][-1], self.current(env)
        head.done, head.terminated, head.truncated = life, terminated, truncated
        episode[2] += 1
        episode[3] += float(value("reward", env, len(self.lines[env]) - 1, life))
        episode[4], episode[5] = terminated, truncated
        self.lines[env].append(Line(life, False))
        if terminated or truncated:
            self.states[env] = ENDED

    def end(self):
        for env in range(self.envs):
            if self.states[env] == OPEN and self.current(env)[2]:
                self.lines[env][-2].truncated = self.current(env)[5] = True
            self.states[env] = ENDED

    def position(self):
        current = [list(self.current(e) or ()) for e in range(self.envs)]
        return [len(x) for x in self.lines], list(self.states), len(self.episodes), current

    def rewind(self):
        _, states, count, current = self.checkpoint[2]
        del self.episodes[count:]
        for env, state in enumerate(states):
            if state == OPEN:
                episode = self.current(env)
                episode[2:6] = [*current[env][2:4], False, False]
        self.states = [ENDED] * self.envs

    # --- what it says

    def column(self, name, env, since=0):
        """Return a field of one environment, from row `since` on."""
        lines = self.lines[env][since:]
        if name in FLAGS:
            flags = {"is_first": [x.first for x in lines], "is_last": [x.done < 0 for x in lines]}
            return np.array(flags[name] if name in flags else [getattr(x, name) for x in lines], np.bool_)
        dtype, shape = FIELDS[name]
        result = np.zeros((len(lines), *shape), dtype)
        for row, line in enumerate(lines):
            life = line.seen if name.startswith("observation") else line.done
            if life >= 0:
                result[row] = value(name, env, since + row, life)
        return result

    def episode_column(self, name):
        return np.array([e[EPISODE_FIELDS.index(name)] for e in self.episodes])


def same(found, expected):
    """Tell whether two arrays are the same bit for bit."""
    return found.dtype == expected.dtype and found.shape == expected.shape and found.tobytes() == expected.tobytes()


def differences(run, diary, since=0):
    """Return what a run holds otherwise than its diary says, rows from `since` on; empty if all is well."""
    return row_differences(run, diary, since) or checkpoint_differences(run.last_checkpoint, diary.checkpoint)


def row_differences(run, diary, since=0):
    """Return how rows and episodes of a run differ from its diary, rows from `since` on."""
    wrong = []
    lengths = [len(x) for x in diary.lines]
    if run.lengths.tolist() != lengths:
        return [f"lengths {run.lengths.tolist()}, expected {lengths}"]
    for name in (*FIELDS, *FLAGS):
        column = run[name][since:]
        for env in range(diary.envs):
            found = column[: max(lengths[env] - since, 0), env] if diary.axis else column
            expected = diary.column(name, env, since)
            if not same(np.ascontiguousarray(found), expected):
                rows = [since + t for t in range(len(expected)) if not same(found[t], expected[t])]
                wrong.append(f"{name}, environment {env}: rows {rows} of {lengths[env]}")
    for name in EPISODE_FIELDS:
        found, expected = run.episodes[name], diary.episode_column(name)
        if not np.array_equal(found, expected):
            wrong.append(f"episodes/{name}: {found.tolist()}, expected {expected.tolist()}")
    return wrong


def checkpoint_differences(found, expected):
    """Return how a checkpoint differs from its diary."""
    if found is None or expected is None:
        return [] if found is expected else [f"checkpoint {found}, expected {expected}"]
    number, values, (rows, states, episodes, _) = expected
    wrong = [] if found.id == number else [f"checkpoint {found.id}, expected {number}"]
    position = [found.position["rows"].tolist(), found.position["states"].tolist(), found.position["episodes"]]
    if position != [rows, states, episodes]:
        wrong.append(f"checkpoint stands at {position}, expected {[rows, states, episodes]}")
    if set(found) != set(values) or any(not equal(found[k], values[k]) for k in values):
        wrong.append(f"checkpoint {found.id}: values differ")
    return wrong


def equal(found, expected):
    return same(found, expected) if isinstance(expected, np.ndarray) else found == expected


class Player:
    """Does the same to a run and to its diary; without a run to the diary alone.

    `before(state)` is called with what a commit is about to make last, `after()` when it has returned.
    """

    def __init__(self, diary, run=None, life=0, before=lambda state: None, after=lambda: None):
        self.diary, self.run, self.life, self.before, self.after = diary, run, life, before, after

    def batch(self, name, rows):
        """Return a field's values at these rows, one of each environment."""
        values = [value(name, env, row, self.life) for env, row in enumerate(rows)]
        return np.stack(values) if self.diary.axis else values[0]

    def observe(self, rows):
        return {k: self.batch(f"observation/{k}", rows) for k in ("vector", "pixels")}

    def lengths(self):
        return [len(x) for x in self.diary.lines]

    def reset(self):
        if self.run is not None:
            self.run.reset(self.observe(self.lengths()))
        for env in range(self.diary.envs):
            self.diary.begin(env, self.life)

    def step(self, end=""):
        """Step; the episodes going on end if `end` says so ("terminated", "truncated"), in environment 0 or in all."""
        diary, rows = self.diary, self.lengths()
        if not all(rows) or (not diary.axis and diary.states[0] == ENDED):
            self.reset()
            rows = self.lengths()
        ends = np.array([bool(end) and (env + rows[0]) % 2 == 0 for env in range(diary.envs)])
        ends[0] |= bool(end)
        ends &= np.array(diary.states) == OPEN
        if self.run is not None:
            head = [n - 1 for n in rows]
            flags = [ends & (end == name) for name in ("terminated", "truncated")]
            flags = flags if diary.axis else [bool(f[0]) for f in flags]
            done = [self.batch(k, head) for k in ("action", "reward", "log_prob")]
            self.run.step(done[0], self.observe(rows), done[1], *flags, log_prob=done[2])
        for env in range(diary.envs):
            if diary.states[env] == ENDED:
                diary.begin(env, self.life)
            else:
                flags = [bool(ends[env]) and end == name for name in ("terminated", "truncated")]
                diary.advance(env, self.life, *flags)

    def steps(self, count):
        for _ in range(count):
            self.step()

    def end_episode(self):
        if self.run is not None:
            self.run.end_episode()
        self.diary.end()

    def hide(self, number, hidden=True):
        if self.run is not None:
            self.run.annotate(number, hidden=hidden)
        self.diary.episodes[number][EPISODE_FIELDS.index("hidden")] = hidden

    def commit(self, sync=False):
        self.before(self.diary)
        if self.run is not None:
            self.run.commit(sync=sync)
        self.after()

    def checkpoint(self, size=1000, sync=False):
        number = self.diary.checkpoint[0] + 1 if self.diary.checkpoint else 1
        values = {"number": number, "blob": scramble(number, size, self.life, size).tobytes(), "text": "ä\n"}
        values["table"] = scramble(number, 1, self.life, 12).reshape(3, 4)
        self.diary.checkpoint = (number, values, self.diary.position())
        self.before(self.diary)
        if self.run is not None:
            self.run.checkpoint(**values, sync=sync)
        self.after()

    def rewind(self):
        self.diary.rewind()
        self.before(self.diary)
        if self.run is not None:
            self.run.rewind(self.run.last_checkpoint)
        self.after()

    def close(self):
        self.before(self.diary)
        if self.run is not None:
            self.run.close()
        self.after()

    def create(self, path):
        self.before(self.diary)
        kind = schema(self.diary.envs if self.diary.axis else 0)
        self.run = archive.create(path, kind, commit_every=None, metadata=METADATA)
        self.after()

    def reopen(self, path):
        self.before(self.diary)
        self.run = archive.open(path, "a", commit_every=None)
        self.after()
