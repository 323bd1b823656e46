"""The batches that a replay has drawn and not given out, in order."""

from __future__ import annotations

from collections.abc import Callable

from .draw import Draw
from .epochs import Pass

Asked = tuple[int, float | None]  # the size of a batch, and its beta
Queue = tuple[int, Pass | None, tuple[Draw, ...]]


class Ahead:
    """How many batches were drawn, where the replay is in its passes, and what waits: `queue`, replaced as a whole.

    `given`: what each thread is about to give out; it removes it when it has. So whatever interrupts a call, Ctrl-C
    between any two lines too, a draw that was not given out is the next.
    """

    def __init__(self, first: Pass | None) -> None:
        self.queue: Queue = (0, first, ())
        self.given: dict[int, Draw] = {}

    def take(
        self,
        thread: int,
        asked: Asked,
        prefetch: int,
        draw: Callable[[int, Pass | None, int, float | None], tuple[Draw, Pass | None]],
    ) -> Draw:
        """Return the next draw, and draw ahead until `prefetch` wait behind it.

        draw(batch, where the passes are, *asked): what draws a batch. Draws for which something else was asked are
        given back.
        """
        self.take_back(thread)
        batches, epochs, pending = self.queue
        if pending and pending[0].asked != asked:
            batches, epochs, pending = pending[0].batch, pending[0].epochs, ()
        while len(pending) <= prefetch:
            drawn, epochs = draw(batches, epochs, *asked)
            batches, pending = batches + 1, (*pending, drawn)
        self.queue = (batches, epochs, pending)
        self.given[thread] = pending[0]
        self.queue = (batches, epochs, pending[1:])
        return pending[0]

    def take_back(self, thread: int) -> None:
        """Put a draw that this thread took and did not give out in front again."""
        taken = self.given.get(thread)
        if taken is not None:
            batches, epochs, pending = self.queue
            if not pending or pending[0] is not taken:
                self.queue = (batches, epochs, (taken, *pending))
            del self.given[thread]

    def not_given_out(self) -> Queue:
        """Return the queue with what threads have taken in front."""
        batches, epochs, pending = self.queue
        taken = sorted(self.given.values(), key=lambda drawn: drawn.batch)
        return batches, epochs, (*(d for d in taken if not any(d is other for other in pending)), *pending)
