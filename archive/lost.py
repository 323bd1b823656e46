"""Rows whose data is lost: repair or salvage went without them, and no episode holds them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Lost:
    """(environment, start, stop) of rows of which at least one field could not be read; zeros stand there."""

    ranges: tuple[tuple[int, int, int], ...]

    def to_json(self) -> dict[str, Any]:
        """Return the values of a block of lost rows."""
        return {"ranges": [list(one) for one in self.ranges]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Lost:
        """Undo `to_json`."""
        return cls(tuple((env, start, stop) for env, start, stop in values["ranges"]))
