"""Chunks encoded in the background, while the caller's environment and learner let other threads run."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from .guard import block_signals


class Encoder:
    """One thread that encodes, begun when it is first needed; none where the process has a single core."""

    def __init__(self) -> None:
        self.thread: ThreadPoolExecutor | None = None
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.possible, self.owner = cores > 1, os.getpid()

    def starts(self) -> bool:
        """Tell whether chunks can be encoded in the background, and have a thread ready for it."""
        if self.possible and self.thread is None:
            self.thread = ThreadPoolExecutor(1, "archive-encoder", block_signals)
        return self.possible

    def begin(self, work: Callable[[], bytes]) -> Future[bytes]:
        """Begin work; it is done at once where no thread starts any more, because the interpreter ends."""
        try:
            if self.thread is not None:
                return self.thread.submit(work)
        except RuntimeError:
            self.possible = False
        done: Future[bytes] = Future()
        done.set_result(work())
        return done

    def close(self) -> None:
        """Give up what has not begun; the thread stays with the parent of a fork, and so may its locks."""
        if self.thread is not None and self.owner == os.getpid():
            self.thread.shutdown(wait=False, cancel_futures=True)
