"""Positional reads and writes of a descriptor, with a fallback where the system has none."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Return up to `size` bytes at `offset`, fewer only at the end of the file."""
    parts = []
    while size > 0:
        if hasattr(os, "pread"):
            part = os.pread(fd, size, offset)
        else:  # Windows
            os.lseek(fd, offset, os.SEEK_SET)
            part = os.read(fd, size)
        if not part:
            break
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`."""
    view = memoryview(data)
    while view:
        if hasattr(os, "pwrite"):
            done = os.pwrite(fd, view, offset)
        else:  # Windows
            os.lseek(fd, offset, os.SEEK_SET)
            done = os.write(fd, view)
        view, offset = view[done:], offset + done


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
