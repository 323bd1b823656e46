"""Contestants timed in turn, A B C A B C, so that whatever slows the machine down slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

LEAST = 0.02  # seconds that a repeat lasts at least


@dataclass(frozen=True)
class Prepared:
    """An operation that needs new work to do: `before` is called ahead of each call and not timed."""

    before: Callable[[], object]
    run: Callable[[], object]


Contestant = Callable[[], object] | Prepared


@dataclass
class Contest:
    """Contestants by name ("archive" is ours) that do the same work.

    moved: bytes that the work moves at least, per: operations in a call, figures: other results, by what and by whom.
    """

    contestants: Mapping[str, Contestant]
    moved: int = 0
    per: int = 1
    repeats: int = 7
    figures: dict[str, dict[str, float]] = field(default_factory=dict)

    def play(self) -> dict[str, list[float]]:
        """Return seconds per operation of each repeat of each contestant, of memcpy too."""
        contestants = dict(self.contestants)
        if self.moved:
            contestants["memcpy"] = memcpy(self.moved)
        seconds = alternate(contestants, self.repeats)
        return {name: [s / self.per for s in found] for name, found in seconds.items()}


def alternate(contestants: Mapping[str, Contestant], repeats: int) -> dict[str, list[float]]:
    """Return seconds per call of each repeat; the rounds before the first are for warming up."""
    calls = {name: calls_of(contestant) for name, contestant in contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, contestant in contestants.items():
            seconds[name].append(timed(contestant, calls[name]))
    return seconds


def calls_of(contestant: Contestant) -> int:
    """Warm a contestant up; return how many calls make a repeat long enough."""
    calls = 1
    while (seconds := timed(contestant, calls) * calls) < LEAST and not isinstance(contestant, Prepared):
        calls = max(calls + 1, int(calls * min(10, 1.2 * LEAST / max(seconds, 1e-9))))
    return calls


def timed(contestant: Contestant, calls: int) -> float:
    """Return the seconds of a call."""
    if isinstance(contestant, Prepared):
        contestant.before()
        contestant = contestant.run
    start = time.perf_counter()
    for _ in range(calls):
        contestant()
    return (time.perf_counter() - start) / calls


def memcpy(size: int) -> Callable[[], object]:
    """Return a copy of `size` bytes that are in no cache into a warm buffer: the least that moving them takes."""
    rows = max(2, min(64, (256 << 20) // size))
    source, target = cycle(np.ones((rows, size), np.uint8)), np.empty(size, np.uint8)
    return lambda: np.copyto(target, next(source))
