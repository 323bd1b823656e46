"""One batch that has been drawn: which rows it is made of, whatever happens to the run until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .errors import StateError
from .loader import Loading
from .places import Places
from .rows import Rows

Array = np.ndarray[Any, Any]


class Draw(NamedTuple):
    """Batch number `batch`, drawn for a call that `asked` for a size and a beta (None: the sampler's).

    `epochs`: where the replay was in its passes before; `loading`: its chunks, if they are being brought.
    """

    asked: tuple[int, float | None]
    batch: int
    epochs: dict[str, Any]
    ids: Array
    weight: Array
    place: Places
    loading: Loading | None = None

    def state(self) -> dict[str, Any]:
        """Return what `from_state` needs."""
        fields = {name: getattr(self, name) for name in ("asked", "batch", "epochs", "ids", "weight")}
        return {**fields, "asked": list(self.asked), "place": self.place.block}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], rows: Rows) -> Draw:
        """Undo `state`; StateError for rows that the run does not have."""
        count, beta = state["asked"]
        ids, weight = np.array(state["ids"], np.int64), np.array(state["weight"], np.float32)
        place = Places(np.array(state["place"], np.int64, order="C"))
        if not ids.shape == weight.shape == place.shape[:1] == (count,) or not inside(place, rows):
            raise StateError(f"{rows.path}: the state has drawn rows that this run does not have")
        return cls((count, beta), int(state["batch"]), dict(state["epochs"]), ids, weight, place)


def inside(place: Places, rows: Rows) -> bool:
    """Tell whether places lie within the run and its episodes."""
    known = (place.env >= 0) & (place.env < len(rows.rows))
    known &= (place.number >= 0) & (place.number < rows.episodes.count) & (place.low >= 0)
    there = (place.row >= place.low) & (place.row < rows.rows[np.where(known, place.env, 0)])
    return bool((known & (there | (place.row == -1))).all())
