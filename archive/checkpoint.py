"""A checkpoint as it was stored: the user's values, and where the run stood."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import payload
from .errors import DamagedError
from .record import Slot
from .slots import read_payload


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
            if not isinstance(values.get("values"), dict) or not is_position(values.get("run")):
                raise DamagedError(f"checkpoint {slot.id}: expected the user's values and a place in the run")
            found.append(Checkpoint(slot.id, values["run"], values["values"]))
        except DamagedError as error:
            damaged = error
    if damaged is not None and not found:
        raise damaged
    return found


def is_position(values: Any) -> bool:
    """Tell whether values are a place in a run, as `Commits.position` gives it."""
    if not isinstance(values, dict) or not isinstance(values.get("episodes"), int):
        return False
    arrays = [values.get(name) for name in ("rows", "states", "length", "return", "final")]
    rows = arrays[0]
    return isinstance(rows, np.ndarray) and all(
        isinstance(a, np.ndarray) and a.ndim == 1 and a.shape == rows.shape and a.dtype.kind in "biuf" for a in arrays
    )
