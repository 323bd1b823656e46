"""One writer: the lock beside a run is refused to others, taken over from the dead, and gone after a close."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from faults import Diary, Player, differences, schema

import archive
from archive.lock import boot_id

WRITER = """
import sys, archive, leave_child
recorder = leave_child.Recorder(leave_child.Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""

OPENER = """
import sys, archive
try:
    archive.open(sys.argv[1], "a").close()
except archive.LockedError as error:
    print(error)
"""

RACER = """
import sys, archive, leave_child
for _ in range(15):
    while True:
        try:
            recorder = leave_child.Recorder(leave_child.Path(sys.argv[1]))
            break
        except archive.LockedError:
            pass
    recorder.append(2)
    recorder.run.close()
"""

FORKER = """
import os, sys, archive
run = archive.open(sys.argv[1], "a")
told, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(told, 1)
    archive.open(sys.argv[1], "a").close()
    os._exit(5)
run.close()
os.write(tell, b"x")
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture
def path(tmp_path):
    """Return the path of a closed run of 12 rows."""
    path = tmp_path / "run.h5"
    player = Player(Diary(0), archive.create(path, schema(0)))
    player.steps(11)
    player.run.close()
    assert os.listdir(tmp_path) == [path.name]
    return path


def lock_of(path):
    return path.with_name(path.name + ".lock")


def python(code, path, **environment):
    """Start a Python process that runs `code` with the run's path as its argument."""
    command = [sys.executable, "-c", code, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=Path(__file__).parent, env={**os.environ, **environment}, **pipes)


def result(process):
    """Return what a process printed; it must have ended well."""
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output


def test_second_writer_in_this_process(path):
    with archive.open(path, "a") as run:
        for attempt in (lambda: archive.open(path, "a"), lambda: archive.create(path, schema(0))):
            with pytest.raises(archive.LockedError, match=r"run\.h5.*this process"):
                attempt()
        Player(Diary(0), run).reset()
        assert run.num_rows == 13
    assert issubclass(archive.LockedError, BlockingIOError)


@pytest.mark.parametrize("locking", ["TRUE", "FALSE"])
def test_second_writer_in_another_process(path, locking):
    """HDF5's own locks do not matter."""
    with archive.open(path, "a") as run:
        before = path.read_bytes()
        message = result(python(OPENER, path, HDF5_USE_FILE_LOCKING=locking))
        assert f"process {os.getpid()} on {socket.gethostname()}" in message
        assert "run.h5" in message
        assert path.read_bytes() == before
        run.commit()
    assert result(python(OPENER, path, HDF5_USE_FILE_LOCKING=locking)) == ""


def test_writer_in_another_process_refuses_this_one(path):
    with python(WRITER, path) as writer:
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(archive.LockedError, match=f"process {writer.pid} "):
            archive.open(path, "a")
        with archive.open(path) as reader:
            assert reader.num_rows == 12
        result(writer)
    archive.open(path, "a").close()
    assert not lock_of(path).exists()


def test_lock_of_a_dead_process_is_taken_over(path):
    with python(WRITER, path) as writer:
        assert writer.stdout.readline() == "open\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert json.loads(lock_of(path).read_text())["pid"] == writer.pid
    with archive.open(path, "a") as run:
        assert json.loads(lock_of(path).read_text())["pid"] == os.getpid()
        assert run.num_rows == 12
    assert not lock_of(path).exists()


@pytest.mark.parametrize("text", ["", "no JSON", "[1]", '{"pid": 1, "boot": "another"}'])
def test_lock_file_that_nobody_holds(path, text):
    lock_of(path).write_text(text)
    archive.open(path, "a").close()
    assert not lock_of(path).exists()


def test_lock_of_another_host(path):
    """Whether its process lives cannot be seen from here: refused, with what to do about it."""
    text = json.dumps({"pid": 77, "host": "elsewhere", "boot": "x"})
    lock_of(path).write_text(text)
    before = path.read_bytes()
    for attempt in (lambda: archive.open(path, "a"), lambda: archive.create(path, schema(0))):
        with pytest.raises(archive.LockedError, match=r"77.*elsewhere.*delete .*run\.h5\.lock"):
            attempt()
    assert lock_of(path).read_text() == text
    assert path.read_bytes() == before
    with archive.open(path) as reader:
        assert reader.num_rows == 12
    lock_of(path).unlink()
    archive.open(path, "a").close()


@pytest.mark.skipif(not boot_id(), reason="the system tells no boot id")
def test_lock_of_this_machine_under_another_name(path):
    """A container that was killed had a host name of its own: the system's lock has gone with its process."""
    lock_of(path).write_text(json.dumps({"pid": 77, "host": "elsewhere", "boot": boot_id()}))
    with archive.open(path, "a") as run:
        assert json.loads(lock_of(path).read_text())["host"] == socket.gethostname()
        assert run.num_rows == 12
    assert not lock_of(path).exists()


def test_lock_is_gone_after_a_refused_opening(tmp_path, path):
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(archive.ArchiveError):
        archive.open(path, "a")
    with pytest.raises(archive.ExistingRunError):
        archive.create(path, schema(0))
    assert os.listdir(tmp_path) == [path.name]


def test_reading_takes_no_lock(tmp_path, path):
    with archive.open(path) as one, archive.open(path) as two:
        assert one.num_rows == two.num_rows == 12
        assert os.listdir(tmp_path) == [path.name]
        archive.open(path, "a").close()


def test_forked_child_may_write_after_its_parent_closed(path):
    """The child inherited the descriptor of the lock, but not the lock."""
    with python(FORKER, path) as process:
        process.communicate(timeout=120)
    assert process.returncode == 5
    assert not lock_of(path).exists()


def test_taking_turns(path):
    """Four processes open, append two rows and close, again and again: never two at a time, nothing lost."""
    racers = [python(RACER, path) for _ in range(4)]
    for racer in racers:
        result(racer)
    player = Player(Diary(0))
    player.reset()
    player.steps(11 + 4 * 15 * 2)
    with archive.open(path) as run:
        assert differences(run, player.diary) == []
    assert not lock_of(path).exists()


@pytest.mark.skipif(signal.getsignal(signal.SIGINT) == signal.SIG_IGN, reason="a job in the background ignores Ctrl-C")
def test_a_handler_of_ctrl_c_may_call_the_one_before_it(tmp_path):
    """Also when it stands between two of our openings; afterwards everything is as it was."""
    calls = []

    def chain():
        before = signal.getsignal(signal.SIGINT)
        signal.signal(signal.SIGINT, lambda *given: (calls.append(1), before(*given)))

    present = signal.getsignal(signal.SIGINT)
    try:
        runs = []
        for name in "abc":
            runs.append(archive.create(tmp_path / f"{name}.h5", schema(0)))
            chain()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert 1 <= len(calls) <= 4
            calls.clear()
        for run in runs:
            run.close()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, present)
    run = archive.create(tmp_path / "d.h5", schema(0))
    run.close()
    assert signal.getsignal(signal.SIGINT) is present
