"""One thread beside the caller's, for work that nobody waits for yet."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from .guard import block_signals

T = TypeVar("T")


def several_cores() -> bool:
    """Tell whether this process may use more than one core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores > 1


class Background:
    """A thread called `name`, begun with the first work. That of a parent is not there in a forked child."""

    def __init__(self, name: str) -> None:
        self.name, self.owner, self.closed = name, -1, False
        self.thread: ThreadPoolExecutor | None = None

    def begin(self, work: Callable[..., T], *arguments: object) -> Future[T] | None:
        """Begin work; None where no thread takes it any more: after `close`, or because the interpreter ends."""
        if self.closed:
            return None
        if self.thread is None or self.owner != os.getpid():
            self.thread, self.owner = ThreadPoolExecutor(1, f"archive-{self.name}", block_signals), os.getpid()
        try:
            return self.thread.submit(work, *arguments)
        except RuntimeError:
            return None

    def close(self, wait: bool) -> None:
        """Give up what has not begun; wait for what has, if asked to."""
        self.closed = True
        if self.thread is not None and self.owner == os.getpid():
            self.thread.shutdown(wait=wait, cancel_futures=True)
