"""The writer's lock: a file `RUN.lock` beside the run. The system's lock decides; its text names the owner."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from pathlib import Path
from typing import Any

from . import disk
from .errors import LockedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


LOCKED_BYTE = 1 << 62


def boot_id() -> str:
    """Return what changes when the machine restarts, empty where the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class WriterLock:
    """Hold the right to write a run, from construction to `release`.

    A lock whose process is gone is taken over. One from another host is refused, since its process cannot be seen; the
    boot id tells a host of another name from another machine.
    """

    def __init__(self, run: Path) -> None:
        self.path = run.with_name(run.name + ".lock")
        self.fd = -1
        while self.fd < 0:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | disk.FLAGS, 0o644)
            try:
                if self.acquire(fd, run):
                    self.fd = fd
            finally:
                if self.fd < 0:
                    os.close(fd)

    def acquire(self, fd: int, run: Path) -> bool:
        """Lock the descriptor and sign it; False if the file was replaced meanwhile."""
        owner = read_owner(fd)
        if not try_lock(fd):
            if owner.get("pid") == os.getpid():
                raise LockedError(f"{run} is being written by this process: close the run that was opened before")
            raise LockedError(f"{run} is being written by process {owner.get('pid')} on {owner.get('host')}")
        try:
            if os.fstat(fd).st_ino != os.stat(self.path).st_ino:
                return False
        except FileNotFoundError:
            return False
        owner = read_owner(fd)
        here, boot = socket.gethostname(), boot_id()
        same_machine = bool(boot) and owner.get("boot") == boot  # under another name, as in a container
        if owner.get("host", here) != here and not same_machine:
            raise LockedError(
                f"{run} is locked by process {owner.get('pid')} on host {owner['host']}, which cannot be seen from "
                f"here; if that process has ended, delete {self.path}"
            )
        text = json.dumps({"pid": os.getpid(), "host": here, "boot": boot}).encode()
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, text)
        return True

    def claim(self, fd: int, run: Path) -> None:
        """Lock the run's own descriptor too, so that it cannot be written through another name of the same file.

        A lock of one byte far behind the end: HDF5's locks, which readers take, are of another kind.
        """
        if fcntl is not None and hasattr(fcntl, "F_OFD_SETLK"):
            wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCKED_BYTE, 1, 0)
            try:
                fcntl.fcntl(fd, fcntl.F_OFD_SETLK, wanted)
            except (BlockingIOError, PermissionError) as error:
                raise LockedError(f"{run} is being written under another name of the same file") from error

    def release(self) -> None:
        """Give the lock up and remove its file."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            self.forget()

    def forget(self) -> None:
        """Close the descriptor without giving up the lock of the process it was inherited from."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


def try_lock(fd: int) -> bool:
    """Take the system's lock on a descriptor without waiting."""
    if fcntl is None:  # pragma: no cover - Windows
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_owner(fd: int) -> dict[str, Any]:
    """Return pid, host and boot id written in a lock file, empty where it is unreadable."""
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        owner = json.loads(os.read(fd, 4096) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}
