"""A change of a writer's state: what surrounds it so that it happens whole or breaks the writer."""

from __future__ import annotations

from typing import Any, Protocol

from .errors import StateError
from .guard import interrupts, lock
from .rows import Rows


class Changeable(Protocol):
    """What is changed."""

    broken: BaseException | None
    rows: Rows

    def require_usable(self) -> None:
        """Raise StateError if it must not be changed any more."""


class Change:
    """Surround a change of the writer's state: alone, Ctrl-C held back, broken if anything goes wrong."""

    def __init__(self, writer: Changeable) -> None:
        self.writer = writer

    def __enter__(self) -> None:
        interrupts.__enter__()
        lock.acquire()
        try:
            self.writer.require_usable()
        except StateError:
            lock.release()
            interrupts.__exit__()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.writer.rows.version += 1
        if error is not None:
            self.writer.broken = error
        lock.release()
        interrupts.__exit__()
