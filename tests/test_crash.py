"""Deaths, full disks, power cuts and damage: whatever happens to a writer or its file, what was committed is there."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import h5py
import numpy as np
import pytest
from faults import (
    METADATA,
    Diary,
    Disk,
    Log,
    Player,
    byte_tear,
    checkpoint_differences,
    differences,
    failing,
    failing_sync,
    page_tear,
    row_differences,
)
from kill_child import PHASES, Orders

import archive
import archive.chunks
import archive.episodes
import archive.slots
import archive.store
from archive.header import Header
from archive.snapshot import read_record, recover

ENVS = pytest.mark.parametrize("envs", [0, 3], ids=["one environment", "three environments"])


@pytest.fixture
def need_h5dump():
    """Skip without h5dump, except in CI, where it must be there."""
    if shutil.which("h5dump") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("h5dump is not installed")


def shrink(patch):
    """Make the file's pieces small, so that a short run fills several and every write of it can be tried.

    The system keeps what a dead process wrote, so nothing need be synced except where power goes.
    """
    patch.setattr(archive.episodes, "CHUNK", 4)
    patch.setattr(archive.store, "EPISODE_CHUNK", 4)
    patch.setattr(archive.slots, "SLOT_CHUNK", 1 << 14)
    patch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def small(monkeypatch):
    """Shrink the file in this test."""
    shrink(monkeypatch)


def everywhere(function, folder, cases, *arguments):
    """Call function(folder, cases, *arguments) on every core with its share of the cases; return the results."""
    parts = min(os.cpu_count() or 1, 4)
    with ProcessPoolExecutor(parts, mp_context=multiprocessing.get_context("spawn")) as pool:
        calls = []
        for part in range(parts):
            (folder / str(part)).mkdir()
            calls.append(pool.submit(function, folder / str(part), cases[part::parts], *arguments))
        return [call.result() for call in calls]


# --- a short run, and every way in which its writer can die


def story(player, path):
    """Do to a run whatever can be done to one."""
    player.create(path)
    player.steps(11)
    player.checkpoint()
    player.steps(3)
    player.step("terminated")
    player.hide(0)
    player.steps(5)
    player.commit()
    player.hide(1)
    player.end_episode()
    player.steps(3)
    player.checkpoint()
    player.step("truncated")
    player.steps(5)
    player.checkpoint(size=40_000)
    player.steps(4)
    player.rewind()
    player.steps(3)
    player.close()
    player.reopen(path)
    player.hide(0, hidden=False)
    player.commit()
    player.steps(9)
    player.commit()
    player.close()


def encode_in_background(patch, envs):
    """Have every chunk but a field's first encoded by another thread, in runs of several environments."""
    patch.setattr(archive.chunks, "SLOW", -1.0 if envs else 1e9)


def recorded(monkeypatch, folder, envs, story=story):
    """Play a story once; return its log and, for each commit, the diary that it made last."""
    log, states = Log(), []

    def before(diary):
        states.append(diary.copy())
        log.add("doing", data=len(states) - 1)

    def after():
        log.add("done", data=len(states) - 1)

    with monkeypatch.context() as patch:
        log.install(patch)
        encode_in_background(patch, envs)
        story(Player(Diary(envs), before=before, after=after), folder / "run.h5")
    return log, states


@dataclass
class Death:
    """A death at an event: `keep` bytes of a write are on the disk. It may leave one of `states`; if it fell inside
    applying a journal, `redone` is what redoing the journal must make of the file."""

    disk: Disk
    event: tuple
    keep: int
    states: list[int]
    redone: bytes | None = None

    @property
    def image(self):
        """The bytes of the file; ask before the next death."""
        return bytes(self.disk.torn(self.event, self.keep) if self.keep else self.disk.data)


def deaths(log, tears):
    """Yield every Death of a log: before each write, and with as much of the write as each of `tears` says."""
    disk, named, done, doing = Disk(), False, -1, -1
    place, redone = (
        -1,
        None,
    )  # writes since the seal began; 0: journal, 1 and 2: record, then held blocks, then the mark
    for number, event in enumerate(log.events):
        kind, offset, data = event
        choice = random.Random(number)
        if kind == "doing":
            doing = data
        elif kind == "done":
            done = data
        elif kind == "seal" and data:
            place, redone = 0, played_until_sealed(disk, log.events[number:])
        elif kind == "sealed":
            place = -1
        elif kind == "name":
            named = True
        elif kind in ("write", "cut") and named:
            states = sorted({max(done, 0), doing})
            yield Death(disk, event, 0, states, redone if place > 3 else None)
            for tear in tears if kind == "write" else ():
                keep = tear(offset, data, choice)
                if keep:
                    yield Death(disk, event, keep, states, redone if place >= 3 else None)
        place += kind == "write" and place >= 0
        disk.play(event)
    yield Death(disk, ("end", 0, None), 0, [doing])


def played_until_sealed(disk, events):
    """Return the bytes of a disk after the commit that begins here."""
    later = Disk(disk.data)
    for event in events:
        if event[0] == "sealed":
            break
        later.play(event)
    return bytes(later.data)


def put(path, image):
    """Make a file's bytes `image`, in place: much faster than a new file for each of thousands."""
    with open(path, "r+b" if path.exists() else "w+b") as file:
        file.write(image)
        file.truncate()


def opens_plainly(path):
    """Tell whether plain h5py opens a file and reads everything in it."""
    try:
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, item: item[()] if isinstance(item, h5py.Dataset) else None)
    except (OSError, RuntimeError, KeyError):
        return False
    return True


def found_state(run, states, since=0):
    """Return the diary that agrees with a run, rows from `since` on; fail with the differences if none does."""
    wrong = []
    for diary in states:
        wrong = differences(run, diary, since)
        if not wrong:
            return diary
    raise AssertionError("; ".join(wrong))


def expect_clean(path):
    """What a death leaves is no damage."""
    found = archive.verify(path)
    assert found.clean, found.findings


def go_on(path, states, verified=True):
    """Open a file to append, compare, append, close, compare again, verify."""
    run = archive.open(path, "a", commit_every=None)
    player = Player(found_state(run, states).copy(), run, life=99)
    player.steps(2)
    player.step("truncated")
    player.steps(8)
    player.checkpoint()
    player.steps(1)
    run.close()
    with archive.open(path) as run:
        assert differences(run, player.diary) == []
    assert opens_plainly(path)
    if verified:
        expect_clean(path)


def recovered(path):
    """Return the bytes of a file after its journal has been redone."""
    fd = os.open(path, os.O_RDWR)
    try:
        recover(fd, Header.read(fd, str(path)), str(path))
    finally:
        os.close(fd)
    return path.read_bytes()


def examine_deaths(folder, numbers, log, states):
    """Examine the deaths of these numbers; return how many files plain h5py could not open."""
    path, unreadable = folder / "dead.h5", 0
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        for number, death in enumerate(deaths(log, [page_tear, byte_tear])):
            if number in numbers:
                put(path, death.image)
                unreadable += not examine(path, death, [states[k] for k in death.states], number)
    return unreadable


def examine(path, death, allowed, number):
    """Compare the file that a death left, go on with it; return whether plain h5py could open it before."""
    plain = opens_plainly(path)
    assert plain or death.redone is not None, f"h5py cannot open death {number}"
    if death.redone is None or number % 10 == 0:
        with archive.open(path) as run:
            found_state(run, allowed)
    if number % 10 == 0:
        expect_clean(path)
    if death.redone is None:
        go_on(path, allowed, verified=number % 10 == 5)
    else:
        assert recovered(path) == death.redone  # what it holds then is examined at the next death
    return plain


def endure_deaths(monkeypatch, folder, envs, every):
    """Examine every so many deaths of a story; return how many there are in all."""
    log, states = recorded(monkeypatch, folder, envs)
    count = sum(1 for _ in deaths(log, [page_tear, byte_tear]))
    unreadable = everywhere(examine_deaths, folder, range(0, count, every), log, states)
    print(f"{count} deaths, each {every}th tried; {sum(unreadable)} of those left a file that h5py cannot open")
    return count


@ENVS
@pytest.mark.usefixtures("small")
def test_death_at_every_write(tmp_path, monkeypatch, envs):
    """Nothing of the n-th write, up to a page, up to a byte: opens, holds every committed row, goes on.

    A write that can tear gives three deaths, so that each of these is tried about once.
    """
    assert endure_deaths(monkeypatch, tmp_path, envs, 3) > 500


@pytest.mark.slow
@ENVS
@pytest.mark.usefixtures("small")
def test_every_death_at_every_write(tmp_path, monkeypatch, envs):
    """Every write in each of the ways."""
    assert endure_deaths(monkeypatch, tmp_path, envs, 1) > 500


@ENVS
@pytest.mark.usefixtures("small")
def test_death_while_redoing_a_journal(tmp_path, monkeypatch, envs):
    """Opening a killed file may be killed as well, at any of its writes."""
    log, states = recorded(monkeypatch, tmp_path, envs)
    path, again = tmp_path / "dead.h5", Log()
    half = (death for death in deaths(log, []) if death.redone is not None)
    for death in islice(half, 20, None, 60):
        image = death.image
        put(path, image)
        again.events.clear()
        with monkeypatch.context() as patch:
            again.install(patch)
            assert recovered(path) == death.redone
        disk = Disk(image)
        for number, event in enumerate(again.events):
            for keep in (0, byte_tear(event[1], event[2], random.Random(number))):
                put(path, disk.torn(event, keep))
                assert recovered(path) == death.redone
            disk.play(event)
        assert disk.data == death.redone
        go_on(path, [states[k] for k in death.states])
    assert again.events  # some journal was redone


# --- full and failing disks


def write_numbers(log, inside):
    """Return the numbers of writes to try: all outside the applying of journals, and every `inside`-th inside."""
    numbers, count, place = [], 0, -1
    for kind, _, data in log.events:
        place = 0 if kind == "seal" and data else -1 if kind == "sealed" else place
        if kind == "write":
            count += 1
            place += place >= 0
            if place <= 4 or count % inside == 0:
                numbers.append(count)
    return numbers


def expect_refusals(run, player):
    """A broken or closed run refuses everything that writes."""
    action, observation = player.batch("action", [0] * player.diary.envs), player.observe([0] * player.diary.envs)
    for verb in (
        lambda: run.reset(observation),
        lambda: run.step(action, observation, action, action, action),
        lambda: run.extend({}),
        run.end_episode,
        run.commit,
        lambda: run.commit(sync=True),
        run.checkpoint,
        lambda: run.rewind(None),
        lambda: run.last_checkpoint,
    ):
        with pytest.raises(archive.StateError):
            verb()


def fail_once(patch, path, envs, file):
    """Play the story on a failing file, see that it fails well, and go on with what it left."""
    states, done = [], [-1]
    player = Player(
        Diary(envs),
        before=lambda diary: states.append(diary.copy()),
        after=lambda: done.append(len(states) - 1),
    )
    with patch.context() as inner:
        inner.setattr(archive.store, "JournaledFile", file)
        encode_in_background(inner, envs)
        with pytest.raises((archive.ArchiveError, OSError)) as caught:
            story(player, path)
    assert caught.value.errno == file.error or isinstance(caught.value, archive.DamagedError)
    if player.run is not None:
        expect_refusals(player.run, player)
        player.run.close()
        expect_refusals(player.run, player)
    left = sorted(p.name for p in path.parent.iterdir())
    assert left == ([path.name] if done[-1] >= 0 else [])
    if left:
        with archive.open(path, "a") as run:
            found_state(run, states[done[-1] :])
        path.unlink()
    return isinstance(caught.value, archive.WriteError)


def fail_everywhere(folder, numbers, envs, error, part):
    """Play the story with a failure at each of these writes; return how many raised WriteError."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        return sum(fail_once(patch, folder / "run.h5", envs, failing(n, error, part)) for n in numbers)


FULL, FAILING = (errno.ENOSPC, 0.5), (errno.EIO, 0.0)


@pytest.mark.parametrize(("envs", "how", "every"), [(0, FULL, 2), (3, FAILING, 5)], ids=["full", "failing"])
@pytest.mark.usefixtures("small")
def test_failing_writes(tmp_path, monkeypatch, envs, how, every):
    """Full or failing at the n-th write: an error says so, all else is refused, reopening gives the last commit."""
    log, _ = recorded(monkeypatch, tmp_path, envs)
    numbers = write_numbers(log, inside=20)[::every]
    raised = everywhere(fail_everywhere, tmp_path, numbers, envs, *how)
    print(f"{len(numbers)} failures, {sum(raised)} of them raised WriteError")
    assert sum(raised) == len(numbers) > 60


@pytest.mark.slow
@ENVS
@pytest.mark.parametrize("how", [FULL, FAILING], ids=["full", "failing"])
@pytest.mark.usefixtures("small")
def test_all_failing_writes(tmp_path, monkeypatch, envs, how):
    """The same at every single write."""
    log, _ = recorded(monkeypatch, tmp_path, envs)
    numbers = write_numbers(log, inside=1)
    assert sum(everywhere(fail_everywhere, tmp_path, numbers, envs, *how)) == len(numbers) > 300


def commit_often(player, times):
    """Append and commit."""
    for _ in range(times):
        player.steps(5)
        player.commit(sync=True)


@pytest.mark.parametrize("fail_at", range(1, 13))
def test_failing_sync(tmp_path, monkeypatch, fail_at):
    """A sync that fails breaks the run as a write does."""
    path = tmp_path / "run.h5"
    states, file = [], failing_sync(fail_at)
    player = Player(Diary(0), before=lambda diary: states.append(diary.copy()))
    player.create(path)
    player.run.close()
    with monkeypatch.context() as patch:
        patch.setattr(archive.store, "JournaledFile", file)
        player.reopen(path)
        with pytest.raises(archive.WriteError) as caught:
            commit_often(player, fail_at)
    assert caught.value.errno == errno.EIO
    expect_refusals(player.run, player)
    player.run.close()
    go_on(path, states[-2:])


# --- kills


class Child:
    """A recording process, waiting for its orders; leaving the context ends it."""

    def __init__(self, errors):
        script = Path(__file__).with_name("kill_child.py")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        self.process = subprocess.Popen([sys.executable, str(script)], **pipes)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()

    def record_until_killed(self, orders, choice):
        """Kill it at a random moment; return the states that may be found: made last, and perhaps the one under way."""
        pickle.dump(orders, self.process.stdin)
        self.process.stdin.flush()
        phase, left = choice.choice(PHASES), choice.randint(1, 4)
        states = [orders.diary]
        for kind, *data in self.messages():
            if kind == "doing":
                states = [states[0], *data]
            elif kind == "done":
                states = states[-1:]
            elif data == [phase]:
                left -= 1
                if not left and not orders.die_at:
                    time.sleep(10 ** choice.uniform(-5, -2))
                    self.process.kill()
        assert self.process.wait(60) == -signal.SIGKILL, "the child ended by itself"
        return states

    def messages(self):
        """Yield its messages until it is gone."""
        while True:
            try:
                yield pickle.load(self.process.stdout)
            except (EOFError, pickle.UnpicklingError):
                return


def half_applied(path):
    """Tell whether the newest record's journal has not been marked as applied."""
    with open(path, "rb") as file:
        record, applied = read_record(file.fileno(), Header.read(file.fileno(), str(path)), str(path))
    return record.sequence != applied


def h5dump_opens(path):
    """Tell whether stock h5dump opens a file and prints what is in it."""
    return subprocess.run(["h5dump", "-H", str(path)], capture_output=True).returncode == 0


def endure_kills(folder, envs, count, choice, most_rows):
    """Kill `count` recording processes one after the other, each going on with what the one before it left.

    A file of more than `most_rows` rows gives way to a new one.
    """
    path, diary = folder / "run.h5", Diary(envs)
    files, applying, unreadable = 1, 0, 0
    with ExitStack() as stack, open(folder / "errors", "w") as errors:
        waiting = stack.enter_context(Child(errors))
        for life in range(1, count + 1):
            child, waiting = waiting, stack.enter_context(Child(errors))  # one starts while the other one works
            die_at = choice.randint(1, 900) if choice.random() < 0.4 else 0
            tear = choice.choice(["none", "page", "byte"])
            orders = Orders(path, diary, life, die_at, tear, sync=files % 4 == 0)
            states = child.record_until_killed(orders, choice)
            if not path.exists():
                assert not any(diary.lines)  # killed before the file had its name
                continue
            half = half_applied(path)
            readable = opens_plainly(path) and h5dump_opens(path)
            assert readable or half
            applying, unreadable = applying + half, unreadable + (not readable)
            since = 0 if life % 30 == 0 else max(min(map(len, diary.lines)) - 100, 0)  # all of it now and then
            with archive.open(path) as run:
                diary = found_state(run, states, since).copy()
            if life % 10 == 0:
                expect_clean(path)
            if len(diary.lines[0]) > most_rows:
                path.unlink()
                diary, files = Diary(envs), files + 1
    print(f"{count} kills, {files} files, {applying} inside applying, {unreadable} not opened by plain readers")


@ENVS
def test_kills(tmp_path, need_h5dump, envs):
    """Twenty SIGKILLs at random moments: no committed row is lost or changed, the next process goes on."""
    endure_kills(tmp_path, envs, 20, random.Random(envs), 300)


@pytest.mark.slow
@ENVS
def test_many_kills(tmp_path, need_h5dump, envs):
    """The same 600 times on one file, and 300 times on one of three environments."""
    endure_kills(tmp_path, envs, 300 if envs else 600, random.Random(100 + envs), 1 << 30)


# --- power cuts


def synced_story(player, path):
    """Commit with sync=True and without: after the first synced commit, none may undo what is committed."""
    player.create(path)
    for k in range(4):
        player.steps(7)
        player.commit(sync=True)
        player.step("terminated" if k % 2 else "truncated")
        player.steps(3)
        player.checkpoint(size=9000 * k, sync=k % 2 == 0)
        player.steps(2)
        player.commit()
    player.rewind()
    player.close()
    player.reopen(path)
    player.steps(5)
    player.commit()
    player.close()


def power_cut(log, end, choice):
    """Return the bytes of the disk if the power goes before event `end`.

    All that was written before the last completed sync is there. Of what came later the disk has, unit by unit, the
    state of a random moment: as much as the system happened to have written back.
    """
    synced = max(k for k in range(end) if log.events[k][0] == "sync")
    disk = Disk()
    for event in log.events[:synced]:
        disk.play(event)
    unit, kept = choice.choice([512, 4096]), choice.choice([0.1, 0.5, 0.9])
    later = {}
    for kind, offset, data in log.events[synced:end]:
        if kind == "cut" and choice.random() < kept:
            disk.cut(data)
            later = {number: pieces for number, pieces in later.items() if number * unit < data}
        elif kind == "write":
            for number in range(offset // unit, (offset + len(data) - 1) // unit + 1):
                low, high = max(offset, number * unit), min(offset + len(data), (number + 1) * unit)
                later.setdefault(number, []).append((low, data[low - offset : high - offset]))
    for pieces in later.values():
        present = len(pieces) if choice.random() < kept else choice.randrange(len(pieces))
        for piece in pieces[:present]:
            disk.write(*piece)
    return bytes(disk.data)


def endure_cuts(monkeypatch, folder, envs, count, choice):
    """Cut the power at random moments after the first synced commit."""
    log, states = recorded(monkeypatch, folder, envs, synced_story)
    kinds = [kind for kind, _, _ in log.events]
    path = folder / "cut.h5"
    for _ in range(count):
        end = choice.randrange(kinds.index("done", kinds.index("sync")) + 1, len(kinds))
        done = max(data for kind, _, data in log.events[:end] if kind == "done")
        doing = max(data for kind, _, data in log.events[:end] if kind == "doing")
        put(path, power_cut(log, end, choice))
        with archive.open(path) as run:
            found_state(run, states[done : doing + 1])
        go_on(path, states[done : doing + 1])


@ENVS
@pytest.mark.usefixtures("small")
def test_power_cuts(tmp_path, monkeypatch, envs):
    """Thirty power cuts after the first commit with sync=True: all that was committed is there."""
    endure_cuts(monkeypatch, tmp_path, envs, 30, random.Random(envs))


@pytest.mark.slow
@ENVS
@pytest.mark.usefixtures("small")
def test_many_power_cuts(tmp_path, monkeypatch, envs):
    """The same 500 times."""
    endure_cuts(monkeypatch, tmp_path, envs, 500, random.Random(100 + envs))


# --- damage


def verdict(path, states):
    """Say how a damaged file reads and is appended to: "right", "refused" ... or what is wrong.

    Runs in a process of its own.
    """
    return f"{reading(path, states)}, {appending(path, states)}"


def reading(path, states):
    try:
        with archive.open(path) as run:
            wrong = row_differences(run, states[-1]) + damaged_checkpoint(run, states)
            if dict(run.metadata) != METADATA:
                wrong.append(f"metadata {dict(run.metadata)}")
    except archive.ArchiveError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(wrong) or "right"


def appending(path, states):
    try:
        with archive.open(path, "a", commit_every=None) as run:
            player = Player(states[-1].copy(), run, life=99)
            player.steps(12)
            player.commit()
        with archive.open(path) as run:
            wrong = row_differences(run, player.diary)
    except archive.ArchiveError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "; ".join(wrong) or "right"


GOOD = {f"{read}, {write}" for read in ("right", "refused") for write in ("right", "refused")}


def damaged_checkpoint(run, states):
    """Return how the checkpoint found differs from all that were ever made: falling back to an older one is right."""
    found = run.last_checkpoint
    wrong = [checkpoint_differences(found, s.checkpoint) for s in states if s.checkpoint]
    return [] if [] in wrong else wrong[-1]


def damaged(data, choice, count):
    """Yield (what was done, bytes) of a file that lost its end or had one bit flipped where there is anything."""
    used = np.flatnonzero(np.frombuffer(data, np.uint8))
    blocks = np.unique(used // 512)
    for _ in range(count // 5):
        size = choice.randrange(len(data))
        yield f"cut to {size} of {len(data)} bytes", data[:size]
    for _ in range(count):
        at, bit = int(choice.choice(blocks)) * 512 + choice.randrange(512), choice.randrange(8)
        if at < len(data):
            yield f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def endure_damage(monkeypatch, folder, envs, count, choice):
    """Damage a closed file again and again; every read is right or refused, and the interpreter lives."""
    _, states = recorded(monkeypatch, folder, envs)
    data, verdicts = (folder / "run.h5").read_bytes(), Counter()
    path = folder / "damaged.h5"
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for what, image in damaged(data, choice, count):
            put(path, image)
            try:
                found = pool.submit(verdict, path, states).result()
            except BrokenProcessPool:
                pytest.fail(f"{what}: the interpreter crashed")
            verdicts[found if found in GOOD else f"{what}: {found}"] += 1
    print(verdicts)
    assert set(verdicts) <= GOOD
    assert {"right, right", "refused, refused"} <= set(verdicts)


@ENVS
def test_damage(tmp_path, monkeypatch, envs):
    """A hundred flipped bits and twenty cuts: reading and appending are right or refused."""
    endure_damage(monkeypatch, tmp_path, envs, 100, random.Random(envs))


@pytest.mark.slow
@ENVS
def test_more_damage(tmp_path, monkeypatch, envs):
    """Three thousand flipped bits."""
    endure_damage(monkeypatch, tmp_path, envs, 3000, random.Random(100 + envs))
