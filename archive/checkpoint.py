"""A checkpoint as it was stored: the user's values, and where the run stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from . import payload
from .errors import DamagedError
from .record import Slot
from .store import read_payload


@dataclass(frozen=True, eq=False)
class Checkpoint(Mapping[str, Any]):
    """The values of `run.checkpoint(**values)` by name; `id` counts checkpoints, `position` is what rewind needs."""

    id: int
    position: Mapping[str, Any]
    values_: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def __repr__(self) -> str:
        return f"Checkpoint(id={self.id}, rows={self.position['rows'].tolist()}, values={', '.join(self.values_)})"


def every(read: Callable[[int, int], bytes], size: int, slots: tuple[Slot, ...]) -> list[Checkpoint]:
    """Return the intact checkpoints in a file of `size` bytes, newest first; DamagedError if all are damaged."""
    found, damaged = [], None
    for slot in sorted((s for s in slots if s.id), key=lambda s: -s.id):
        try:
            values = payload.unpack(read_payload(read, size, slot))
            found.append(Checkpoint(slot.id, values["run"], values["values"]))
        except DamagedError as error:
            damaged = error
    if damaged is not None and not found:
        raise damaged
    return found
