"""The two file objects by themselves: beside byte strings, and where the system fails them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from archive._file import JournaledFile, ReadView, superblock_check
from archive.snapshot import entries
from archive.superblock import superblock

FAR = 1 << 16  # records, mark and journal of these tests are behind all other bytes
SPAN = 5000  # ten blocks
OFFSETS, SIZES = st.integers(0, SPAN), st.integers(1, 1500)


def patch(target: bytearray, offset: int, data: bytes) -> None:
    """Write into a byte string, which grows as a file does."""
    target.extend(bytes(max(0, offset + len(data) - len(target))))
    target[offset : offset + len(data)] = data


class Journaled(RuleBasedStateMachine):
    """A JournaledFile beside what its user sees (`seen`) and what survives a kill at this moment (`safe`)."""

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory()
        self.path = Path(self.place.name, "bytes")
        self.file = JournaledFile(os.open(self.path, os.O_RDWR | os.O_CREAT))
        self.seen, self.safe, self.held, self.base = bytearray(), bytearray(), set[int](), 0

    @initialize(data=st.binary(max_size=SPAN))
    def begin(self, data: bytes) -> None:
        """Create the file, commit it and protect it."""
        self.file.write(data)
        self.seen, self.safe, self.base = bytearray(data), bytearray(data), len(data)
        self.file.begin(len(data))

    @rule(offset=OFFSETS, size=SIZES, byte=st.integers(1, 255))
    def write(self, offset: int, size: int, byte: int) -> None:
        """Overwrite, append, or both in one; a hole is zeros."""
        data = bytes([byte]) * size
        assert self.file.seek(offset) == offset
        assert self.file.write(data) == size
        assert self.file.tell() == offset + size
        assert (self.file.last_offset, self.file.last_size) == (offset, size)
        patch(self.seen, offset, data)
        self.hold(offset, size)

    def hold(self, offset: int, size: int) -> None:
        """Note which committed blocks wait."""
        stop = min(offset + size, self.base)
        self.held |= set(range(offset // 512, -(-stop // 512))) if offset < stop else set()

    @rule(offset=OFFSETS, size=SIZES, byte=st.integers(1, 255))
    def write_at(self, offset: int, size: int, byte: int) -> None:
        """Write in place, or wait where the place is held."""
        offset = min(offset, self.base)
        data = bytes([byte]) * min(size, self.base - offset)
        touched = set(range(offset // 512, -(-(offset + len(data)) // 512)))
        self.file.write_at(offset, data)
        patch(self.seen, offset, data)
        if data and self.held & touched:
            self.held |= touched
        else:
            patch(self.safe, offset, data)

    @rule(offset=OFFSETS, size=SIZES)
    def reserve(self, offset: int, size: int) -> None:
        """Committed bytes that are taken anew read as zeros."""
        self.file.reserve(offset, size)
        patch(self.seen, offset, bytes(max(0, min(size, self.base - offset))))
        self.hold(offset, size)

    @rule(offset=OFFSETS, size=SIZES)
    def read(self, offset: int, size: int) -> None:
        """Read what was written, zeros behind the end."""
        expected = bytes(self.seen[offset : offset + size]).ljust(size, b"\0")
        self.file.seek(offset)
        assert self.file.read(size) == expected == self.file.read_at(offset, size)
        assert self.file.tell() == offset + size

    @rule(sync=st.booleans())
    def seal(self, sync: bool) -> None:
        """Commit; before that, a reader finds the same bytes under the journal."""
        journal = self.file.journal()
        assert self.read_view(self.base, journal) == self.seen[: self.base]
        self.file.truncate(len(self.seen))
        offsets = (FAR, FAR + 512)
        assert self.file.seal(journal, 2 * FAR, b"record", offsets, b"mark", FAR + 1024, sync) == 0
        self.safe, self.base, self.held = bytearray(self.seen), len(self.seen), set()
        assert (self.file.base, self.file.held_blocks) == (self.base, 0)
        disk = self.path.read_bytes()
        assert [disk[at : at + 6] for at in offsets] == [b"record"] * 2
        assert disk[FAR + 1024 :][:4] == b"mark"
        assert disk[2 * FAR :][: len(journal)] == journal

    @precondition(lambda self: self.file.held_blocks)
    @rule()
    def redo(self) -> None:
        """The journal, laid over what is safe, gives what the user sees."""
        found = bytearray(self.safe)
        for offset, data in entries(self.file.journal(), self.base) or []:
            patch(found, offset, data)
        assert found == self.seen[: self.base]

    @invariant()
    def only_commits_change_committed_bytes(self) -> None:
        """Whatever was written since, the disk has the last commit."""
        assert self.path.read_bytes()[: self.base] == self.safe[: self.base]
        assert self.read_view(self.base, b"") == self.safe[: self.base]
        assert self.file.held_blocks == len(self.held)
        assert self.file.error == 0

    def read_view(self, end: int, journal: bytes) -> bytes:
        """Read the file as a reader does."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            view = ReadView(fd)
            view.load(end, journal)
            assert view.read(end) == view.read_at(0, end)
            assert view.seek(0, 2) == view.tell() == end
            view.seek(0)
            return view.read(end)
        finally:
            os.close(fd)

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.file.release()
        self.place.cleanup()


TestJournaled = Journaled.TestCase


@pytest.fixture
def fd(tmp_path: Path) -> int:
    """Return the descriptor of a file of 4,096 ones; whoever gets it closes it."""
    path = tmp_path / "bytes"
    path.write_bytes(b"\1" * 4096)
    return os.open(path, os.O_RDWR)


def test_view_keeps_pages_until_it_is_loaded_again(fd: int) -> None:
    """What HDF5 reads in between belongs to one commit."""
    view = ReadView(fd)
    view.load(4096, b"")
    assert view.read(8) == b"\1" * 8
    os.pwrite(fd, b"\2" * 8, 0)
    view.seek(0)
    assert (view.read(8), view.fresh) == (b"\1" * 8, 1)
    view.load(4096, b"")
    view.seek(0)
    assert (view.read(8), view.fresh) == (b"\2" * 8, 0)
    os.close(fd)


def test_view_refuses_to_write(fd: int) -> None:
    """HDF5 is told that all went well; `error` tells us, and the file is as it was."""
    view = ReadView(fd)
    view.load(4096, b"")
    assert (view.write(b"abc"), view.tell(), view.error) == (3, 3, errno.EIO)
    assert view.truncate(7) == 7
    view.flush()
    assert view.read_at(0, 4097) == b"\1" * 4096 + b"\0"
    os.close(fd)


@pytest.mark.parametrize("kind", [ReadView, JournaledFile])
def test_reads_that_fail_are_recorded(fd: int, kind: type[ReadView] | type[JournaledFile]) -> None:
    """HDF5 gets zeros and no exception; `error` holds the first errno, `read_at` raises it."""
    file = kind(os.open(os.devnull, os.O_WRONLY))
    os.close(fd)
    assert file.read(10) == bytes(10)
    assert file.error == errno.EBADF
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(0, 10)
    assert (file.read(0), file.readinto(bytearray(0))) == (b"", 0)


def test_writes_that_fail_are_recorded(tmp_path: Path) -> None:
    """A write HDF5 makes never raises; the next check does, and nothing is written any more."""
    (tmp_path / "bytes").write_bytes(b"\1" * 4096)
    file = JournaledFile(os.open(tmp_path / "bytes", os.O_RDONLY))
    file.check()
    assert file.write(b"\2" * 100) == 100
    assert file.error == errno.EBADF
    for action in (file.check, lambda: file.write_at(0, b"\2")):
        with pytest.raises(OSError, match="Bad file descriptor"):
            action()
    assert file.seal(b"journal", 0, b"record", (0,), b"mark", 0, False) == errno.EBADF
    file.release()
    file.release()
    assert (file.fd, file.dead) == (-1, True)
    assert (tmp_path / "bytes").read_bytes() == b"\1" * 4096


@pytest.mark.parametrize(("raised", "recorded"), [(MemoryError, errno.ENOMEM), (RuntimeError, errno.EIO)])
def test_no_exception_reaches_hdf5(fd: int, raised: type[Exception], recorded: int) -> None:
    """Whatever goes wrong below, HDF5's write returns and the error is kept."""

    class Raising(JournaledFile):
        def put(self, offset: int, data: object) -> int:
            raise raised

    file = Raising(fd)
    assert (file.write(b"abc"), file.error) == (3, recorded)
    file.release()


def test_full_device() -> None:
    """ENOSPC of the system is what check raises."""
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    file = JournaledFile(os.open("/dev/full", os.O_WRONLY))
    file.write(b"abc")
    with pytest.raises(OSError, match="No space left") as found:
        file.check()
    assert found.value.errno == errno.ENOSPC
    file.release()


def test_an_abandoned_file_swallows_writes(fd: int) -> None:
    """HDF5 may go on closing a run that was given up; the disk keeps the last commit."""
    file = JournaledFile(fd)
    file.begin(4096)
    file.abandon()
    assert (file.write(b"\2" * 5000), file.tell()) == (5000, 5000)
    file.write_at(0, b"\2")
    assert file.read_at(0, 4096) == b"\1" * 4096
    assert (file.error, file.held_blocks) == (0, 0)
    file.release()


def test_open_flag_of_a_superblock_is_cleared(tmp_path: Path) -> None:
    """A superblock that says "open for writing" is written as one that does not, with a checksum HDF5 accepts."""
    path = tmp_path / "open.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.flush()
        start = path.read_bytes()
    assert (start[8], start[11] != 0) == (3, True)
    (tmp_path / "ours.h5").write_bytes(start)
    ours = JournaledFile(os.open(tmp_path / "ours.h5", os.O_RDWR))
    ours.write(start[:48])
    ours.release()
    found = (tmp_path / "ours.h5").read_bytes()
    assert found[11] == 0
    assert (found[:11], found[12:44], found[48:]) == (start[:11], start[12:44], start[48:])
    with h5py.File(tmp_path / "ours.h5", "r+") as file:
        assert list(file) == []


@pytest.mark.parametrize(
    ("journal", "sound"),
    [
        (b"", True),
        (bytes(8) + b"\2\0\0\0ab", True),
        (bytes(8) + b"\3\0\0\0ab", False),
        (bytes(8) + b"\2\0\0\0abc", False),
        (b"\xff" * 8 + b"\2\0\0\0ab", False),
        ((4095).to_bytes(8, "little") + b"\2\0\0\0ab", False),
        ((4094).to_bytes(8, "little") + b"\2\0\0\0ab", True),
    ],
)
def test_journals_that_reach_outside_the_run_are_not_laid_over_it(journal: bytes, sound: bool) -> None:
    """Entries must fill the journal and lie before the committed end."""
    assert (entries(journal, 4096) is not None) == sound


def test_superblocks_are_those_of_hdf5(tmp_path: Path) -> None:
    """Made from nothing but the end of the file, byte by byte what HDF5 writes."""
    path = tmp_path / "file.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file["some"] = [1, 2, 3]
    data = path.read_bytes()
    assert superblock(len(data)) == data[:48]
    assert superblock_check(data) == int.from_bytes(data[44:48], "little")
    with pytest.raises(ValueError, match="48 bytes"):
        superblock_check(b"short")


REFRESHED = """
import sys, threading
from archive._file import ReadView
entry = lambda block: (512 * block).to_bytes(8, "little") + (512).to_bytes(4, "little") + b"7" * 512
with open(sys.argv[1], "rb") as file:
    view, blocks = ReadView(file.fileno()), range(2048)
    view.load(1 << 20, b"".join(map(entry, blocks)))
    wrong = []
    def read():
        wrong.extend(k for k in range(300) if view.read_at(0, 1 << 20) != b"7" * (1 << 20))
    thread = threading.Thread(target=read)
    thread.start()
    while thread.is_alive():
        view.load(1 << 20, b"".join(map(entry, blocks)))
    assert not wrong
"""


def test_a_journal_that_is_being_read_stays(tmp_path: Path) -> None:
    """A thread reads a chunk through the journal while another takes the next snapshot."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    done = subprocess.run([sys.executable, "-c", REFRESHED, path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
