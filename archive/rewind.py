"""A rewind: rows and checkpoints that a run has given up for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Rewind:
    """Checkpoints `first` to `last` and, of each environment, the rows from `back_to` up to `rows` were given up."""

    first: int
    last: int
    rows: list[int]
    back_to: list[int]

    def to_json(self) -> dict[str, Any]:
        """Return the values of a rewind block."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Rewind:
        """Undo `to_json`."""
        return cls(values["first"], values["last"], list(values["rows"]), list(values["back_to"]))

    def fits(self, envs: int) -> bool:
        """Tell whether it may be one of a run of so many environments."""
        numbers = [self.first, self.last, *self.rows, *self.back_to]
        return len(self.rows) == len(self.back_to) == envs and all(type(n) is int and n >= 0 for n in numbers)
