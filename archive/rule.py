"""Which starts of an episode are valid, as a frozen value: n-step transitions, or sequences of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ends:
    """Episodes of one environment in order, one entry each: where they start and how they end.

    `final`: the final observation is there; `ended`: no row will follow; `flagged`: terminated or truncated.
    """

    start: Array
    length: Array
    final: Array
    ended: Array
    terminated: Array
    flagged: Array
    hidden: Array

    @property
    def stop(self) -> Array:
        """First row behind each episode; a head that waits for its action is not inside."""
        return np.asarray(self.start + self.length + (self.final & self.ended))


@dataclass(frozen=True)
class Rule:
    """What a start must have ahead: `rows` steps of one transition, or as many rows of a sequence.

    A valid start is always among the first ones of its episode, on a grid of `stride`.
    """

    rows: int
    sequence: bool = False
    stride: int = 1
    within_episode: bool = True
    pad: str | None = None
    missing_final: str = "drop"

    def reach(self, ends: Ends) -> tuple[Array, int]:
        """Return how many first steps of each episode are valid starts, and from which episode on that may change.

        Of hidden episodes too: what they would have if they were shown.
        """
        open_ = len(ends.length) - 1  # the latest episode may grow, and a final observation may still come
        if not self.sequence:
            reach = self.reach_of_transitions(ends)
        elif self.pad == "left":
            reach = ends.length
        else:
            behind, chained = self.ends_of_chains(ends)
            reach = np.clip(behind - ends.start - self.rows + 1, 0, ends.length)
            if self.pad == "right":
                reach = np.where(ends.ended, ends.length, reach)
            waiting = np.flatnonzero(chained & (reach < ends.length))
            open_ = int(waiting[0]) if len(waiting) else open_
        return np.asarray(reach), open_

    def reach_of_transitions(self, ends: Ends) -> Array:
        """Return the starts whose n steps ahead are known, or end where the episode did."""
        ahead = np.maximum(ends.length - self.rows + ends.final, 0)
        if self.missing_final == "shorten":
            ahead = np.where(ends.ended & ~ends.final, np.maximum(ends.length - 1, 0), ahead)
        return np.where(ends.terminated | ends.ended & ends.final, ends.length, ahead)

    def ends_of_chains(self, ends: Ends) -> tuple[Array, Array]:
        """Return the first row behind what a sequence may run through, and whether that still grows."""
        stop, last = ends.stop, len(ends.length) - 1
        if self.within_episode:
            return stop, np.arange(last + 1) == last
        breaks = np.append(np.flatnonzero(~self.joined(ends)), last)
        end = breaks[np.searchsorted(breaks, np.arange(last + 1))]
        return stop[end], end == last

    def joined(self, ends: Ends) -> Array:
        """Tell of each episode but the last whether a sequence may run on into the next."""
        shown = ~ends.hidden[:-1] & ~ends.hidden[1:]
        return np.asarray(ends.flagged[:-1] & (ends.stop[:-1] == ends.start[1:]) & shown)

    def on_grid(self, reach: Array) -> Array:
        """Return how many of the first `reach` steps lie on the grid."""
        return -(-reach // self.stride) if self.stride > 1 else reach
