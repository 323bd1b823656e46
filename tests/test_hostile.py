"""Files from a stranger: each is refused in plain words, quickly, in little memory, and nothing else is opened."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import strangers
from everything import REFUSED

import archive
from archive import payload

SECONDS, MEGABYTES = 1.0, 200
ANSWERS = 40  # seconds in which the child must answer


class Examiner:
    """A process that reads files, each in a fork of its own."""

    def __init__(self):
        script = Path(__file__).with_name("hostile_child.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def examine(self, path):
        """Return what was found, which other files Python opened, and what it cost."""
        where = path.with_name("answer.json")
        self.process.stdin.write(json.dumps([str(path), str(where)]) + "\n")
        self.process.stdin.flush()
        cost = json.loads(self.process.stdout.readline())
        assert cost["status"] == 0, f"the interpreter ended with {cost['status']}"
        return json.loads(where.read_text()), cost

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()


class Watch:
    """The system's word on which files of a folder were opened, by whomever; says nothing where it cannot."""

    def __init__(self, folder):
        self.fd = -1
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            self.fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            assert libc.inotify_add_watch(self.fd, os.fsencode(folder), 0x21) >= 0  # IN_ACCESS, IN_OPEN

    def opened(self):
        """Return the names of the files that were opened since the last call."""
        names, data = set(), b""
        try:
            while self.fd >= 0:
                data += os.read(self.fd, 1 << 16)
        except BlockingIOError:
            pass
        while data:
            length = struct.unpack_from("iIII", data)[3]
            names.add(data[16 : 16 + length].rstrip(b"\0").decode())
            data = data[16 + length :]
        return names - {""}

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)


@pytest.fixture(scope="module")
def examiner():
    made = Examiner()
    yield made
    made.close()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return the folder of good runs, one for each codec."""
    folder = tmp_path_factory.mktemp("good")
    for codec in ("gzip", "zstd", "lz4", "none"):
        strangers.record_good(folder / f"{codec}.h5", compression=codec)
    strangers.record_good(folder / "small.h5", checkpoints=False)
    return folder


@pytest.fixture
def watch(tmp_path):
    made = Watch(tmp_path)
    yield made
    made.close()


def ask(examiner, watch, path):
    """Have a file examined; see that it cost little and that nothing else was opened. Return what was found."""
    watch.opened()
    answer, cost = examiner.examine(path)
    allowed = {path.name, "answer.json", f"{path.name}.lock"}
    assert watch.opened() <= allowed
    seen = {entry.removeprefix("open ") for entry in answer["seen"]}
    system = {str(path.parent / name) for name in allowed} | {"/proc/sys/kernel/random/boot_id", str(path.parent)}
    assert seen <= system
    assert cost["seconds"] < SECONDS
    assert cost["megabytes"] < MEGABYTES
    return answer["found"]


def refusals(found):
    """Return why something was refused; nothing may have gone wrong otherwise."""
    for name, how in found.items():
        assert not how.startswith("raised"), f"{name}: {how}"
    return {name: how.removeprefix(REFUSED) for name, how in found.items() if how.startswith(REFUSED)}


def expect(examiner, watch, path, message, before):
    """A file is refused with a message that names it and has no control characters, or reads as the good one."""
    found = ask(examiner, watch, path)
    refused = refusals(found)
    if message is None:
        changed = {"metadata", "info"}  # some change these
        assert refused == {}
        assert {k: v for k, v in found.items() if k not in changed} == {
            k: before[k] for k in before if k not in changed
        }
    else:
        assert refused
    for why in refused.values():
        assert re.search(message, why), why
        assert why.isprintable(), why
        assert len(why) < 1000
        assert path.name in why
    assert "open" not in refused or "append" in refused


@pytest.mark.parametrize("name", strangers.CASES)
def test_stranger(tmp_path, good, examiner, watch, name):
    """Refused at opening, or when what is wrong is read, whether to read or to append."""
    make, message = strangers.CASES[name]
    path, other = tmp_path / "run.h5", tmp_path / "other.h5"
    base = "small.h5" if name in strangers.SCHEMAS else "gzip.h5"
    before = reading(examiner, good / base)
    shutil.copy(good / base, path)
    other.write_bytes(b"secret" * 100_000)
    make(path, str(other))
    expect(examiner, watch, path, message, before)


def reading(examiner, path, kept={}):  # noqa: B006 - a good file is read once
    """Return what is found in a good file."""
    if path not in kept:
        copy = path.with_suffix(".copy")
        shutil.copy(path, copy)
        kept[path] = examiner.examine(copy)[0]["found"]
        assert refusals(kept[path]) == {}
    return kept[path]


@pytest.mark.parametrize("name", strangers.BOMBS)
def test_bomb(tmp_path, good, examiner, watch, name):
    """A chunk whose stream becomes more or less than a chunk is refused when it is read; the others are there."""
    codec, make, message = strangers.BOMBS[name]
    path = tmp_path / "run.h5"
    shutil.copy(good / f"{codec}.h5", path)
    make(path, "")
    found = ask(examiner, watch, path)
    refused = refusals(found)
    assert "field reward" in refused
    assert "field action" not in refused
    assert all(re.search(message, why) for why in refused.values())


def test_good_files(good, examiner):
    """What this file takes for good is."""
    for path in sorted(good.glob("*.h5")):
        assert len(reading(examiner, path)) > 25


CONTROLS = "\x1b[2J\x1b]0;title\x07\r\n\b[bold]\ud800\u202e"


def test_control_characters(tmp_path):
    """What `rl-archive info` prints of a strange file cannot drive a terminal."""
    path = tmp_path / "run.h5"
    with archive.create(path, archive.Schema(strangers.SCHEMA), metadata={"by": "us"}) as run:
        run.checkpoint(**{"a": 1})
    strangers.edit(path, strangers.text(json.dumps({CONTROLS: CONTROLS, "deep": [CONTROLS]}).encode()))
    strangers.checkpoint(path, strangers.manifest({"dict": {CONTROLS: 1}}))
    for options in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "archive", "info", str(path), *options],
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(archive.__file__).parents[1]), "PYTHONIOENCODING": "utf-8"},
        )
        assert done.returncode == 0, done.stderr
        text = done.stdout.decode()
        assert "us" in text or "title" in text
        assert all(c.isprintable() or c == "\n" for c in text)


def test_control_characters_of_an_error(tmp_path):
    """Neither can an error's line."""
    path = tmp_path / "run.h5"
    strangers.record_good(path, checkpoints=False)
    strangers.schema(path, lambda v: v.update(format_version=CONTROLS))
    done = subprocess.run([sys.executable, "-m", "archive", "info", str(path)], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"\x1b" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_checkpoint_of_a_manifest_that_is_too_long(monkeypatch):
    """What could not be read back is not written."""
    monkeypatch.setattr(payload, "MOST_MANIFEST", 1000)
    with pytest.raises(archive.FieldTypeError, match="give long lists as arrays"):
        payload.pack({"x": list(range(1000))})


def test_metadata_that_is_too_long(tmp_path):
    """Nor metadata."""
    path = tmp_path / "run.h5"
    with pytest.raises(archive.ArchiveError, match=r"metadata.*at most"):
        archive.create(path, archive.Schema(strangers.SCHEMA), metadata={"x": "y" * (5 << 20)})
    assert list(tmp_path.iterdir()) == []
    archive.create(path, archive.Schema(strangers.SCHEMA)).close()
    with pytest.raises(archive.ArchiveError, match=r"metadata.*nested"):
        archive.open(path, "a", metadata={"x": json.loads("[" * 200 + "]" * 200)})
