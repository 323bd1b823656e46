"""Ranges of rows that are put together."""

from __future__ import annotations

from collections.abc import Iterator


class Ranges:
    """A set of rows as (start, stop), added in any order."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, int]] = []

    @classmethod
    def of(cls, parts: list[tuple[int, int]]) -> Ranges:
        """Return some ranges together."""
        result = cls()
        for start, stop in parts:
            result.add(start, stop)
        return result

    def add(self, start: int, stop: int) -> None:
        """Add rows `start` to `stop`."""
        if start < stop:
            self.parts.append((start, stop))

    @property
    def end(self) -> int:
        """The row behind the last one."""
        return max((stop for _, stop in self.parts), default=0)

    def merged(self) -> list[tuple[int, int]]:
        """Return the ranges in order, none touching the next."""
        result: list[tuple[int, int]] = []
        for start, stop in sorted(self.parts):
            if result and start <= result[-1][1]:
                result[-1] = result[-1][0], max(stop, result[-1][1])
            else:
                result.append((start, stop))
        return result

    def gaps(self, end: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges of 0 .. end - 1 that were not added.

        >>> ranges = Ranges()
        >>> ranges.add(4, 8)
        >>> ranges.add(1, 5)
        >>> list(ranges.gaps(10))
        [(0, 1), (8, 10)]
        """
        low = 0
        for start, stop in self.merged():
            if low < min(start, end):
                yield low, min(start, end)
            low = max(low, stop)
        if low < end:
            yield low, end
