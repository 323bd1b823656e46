"""How this process may touch HDF5, and how it leaves: one lock, no collection, no signal, no fork in between.

HDF5 calls our file object back. A collection, a second thread, a signal handler or a fork in the middle of that
has crashed or deadlocked real programs; docs/format.md ("Ten rules") has the list.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - before us: at a fork its lock must be taken after ours, as in a commit
import contextlib
import gc
import os
import signal
import threading
from types import FrameType
from typing import Any, Protocol

from h5py._objects import phil


class Writer(Protocol):
    """What the registry needs of an open writer."""

    broken: BaseException | None

    def close(self) -> None:
        """Commit and close."""

    def abandon(self) -> None:
        """Let go without writing."""


lock = threading.RLock()
writers: dict[int, Writer] = {}  # strong: a writer must not be collected while HDF5 has its file open


class Interrupts:
    """Hold Ctrl-C back while rows or a commit are half done; used as a context manager in the main thread."""

    def __init__(self) -> None:
        self.depth = 0
        self.pending: tuple[int, FrameType | None] | None = None
        self.previous: Any = None
        self.first: Any = None  # who handled SIGINT before us; `previous` may since be somebody who calls us
        self.passing = False

    def __enter__(self) -> None:
        if threading.get_ident() == MAIN:
            self.depth += 1

    def __exit__(self, *exc: object) -> None:
        if threading.get_ident() == MAIN:
            self.depth -= 1
            if not self.depth:
                pending, self.pending = self.pending, None
                settle_interrupts()
                if pending:
                    self.pass_on(*pending)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Pass SIGINT on, now or when the outermost block is left."""
        if self.depth:
            self.pending = (number, frame)
        else:
            self.pass_on(number, frame)

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Call who stands before us; if that one calls us in turn, who stood there at first."""
        if self.passing:
            self.first(number, frame)
            return
        self.passing = True
        try:
            self.previous(number, frame)
        finally:
            self.passing = False

    def install(self) -> None:
        """Stand before the present handler of SIGINT; only the main thread can."""
        present = signal.getsignal(signal.SIGINT)
        if threading.get_ident() == MAIN and present != self.handle and callable(present):
            self.first = present if self.first is None else self.first
            self.previous = present
            signal.signal(signal.SIGINT, self.handle)

    def remove(self) -> None:
        """Give SIGINT back, unless somebody stands before us."""
        if threading.get_ident() == MAIN and signal.getsignal(signal.SIGINT) == self.handle:
            signal.signal(signal.SIGINT, self.previous)
            self.first = None


MAIN = threading.main_thread().ident
interrupts = Interrupts()


class Quiet:
    """Surround every call of HDF5: our lock, then h5py's, garbage collector off, Ctrl-C held back."""

    def __init__(self) -> None:
        self.depth = 0
        self.collecting = False

    def __enter__(self) -> None:
        interrupts.__enter__()
        lock.acquire()
        phil.acquire()
        if not self.depth:
            self.collecting = gc.isenabled()
            gc.disable()
        self.depth += 1

    def __exit__(self, *exc: object) -> None:
        self.depth -= 1
        if not self.depth and self.collecting:
            gc.enable()
        phil.release()
        lock.release()
        interrupts.__exit__(*exc)


quiet = Quiet()


def block_signals() -> None:
    """Leave signals to the caller's threads; for threads of ours, which must not take what others have blocked."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def register(writer: Writer) -> None:
    """Keep an open writer alive until it is closed or abandoned."""
    writers[id(writer)] = writer
    interrupts.install()


def unregister(writer: Writer) -> None:
    """Forget a writer that has been closed or abandoned."""
    writers.pop(id(writer), None)


def settle_interrupts() -> None:
    """Stand before the handler of SIGINT only while there are writers."""
    if not writers:
        interrupts.remove()


def leave() -> None:
    """Close what is open when the interpreter ends; the lock is kept, so that daemon threads stop here."""
    if writers and threading.get_ident() == MAIN:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nobody is left to handle it
    lock.acquire()
    for writer in list(writers.values()):
        if writer.broken is None:
            # At exit nobody can be told; what had been committed is safe, and opening recovers.
            with contextlib.suppress(Exception):
                writer.close()
        writer.abandon()


def in_child() -> None:
    """Let go of every writer after a fork: it belongs to the parent."""
    global MAIN
    MAIN = threading.get_ident()
    for writer in list(writers.values()):
        writer.abandon()
    lock.release()


atexit.register(leave)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=in_child)
