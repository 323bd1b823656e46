"""One batch that has been drawn: which rows it is made of, whatever happens to the run until it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from .casting import is_int, is_number
from .epochs import Epochs, Pass
from .errors import StateError
from .loader import Loading
from .places import PARTS, Places
from .rows import Rows

Array = np.ndarray[Any, Any]


class Draw(NamedTuple):
    """Batch number `batch`, drawn for a call that `asked` for a size and a beta (None: the sampler's).

    `epochs`: where the replay was in its passes before; `loading`: its chunks, if they are being brought.
    """

    asked: tuple[int, float | None]
    batch: int
    epochs: Pass | None
    ids: Array
    weight: Array
    place: Places
    loading: Loading | None = None

    def state(self) -> dict[str, Any]:
        """Return what `from_state` needs."""
        fields = {name: getattr(self, name) for name in ("batch", "ids", "weight")}
        epochs = {} if self.epochs is None else self.epochs.state()
        return {**fields, "asked": list(self.asked), "epochs": epochs, "place": self.place.block}

    @classmethod
    def from_state(cls, state: Mapping[str, Any], rows: Rows, epochs: Epochs | None) -> Draw:
        """Undo `state`; StateError for rows that the run does not have, ValueError for what is no draw at all."""
        count, beta = state["asked"]
        ids, weight, block = (np.asarray(state[name]) for name in ("ids", "weight", "place"))
        kinds = ids.dtype.kind + weight.dtype.kind + block.dtype.kind
        if not (is_int(count) and is_int(state["batch"]) and kinds == "ifi" and len(block) == PARTS):
            raise ValueError("what was drawn")
        if not (0 <= state["batch"] < 1 << 62 and np.isfinite(weight).all() and (beta is None or is_number(beta))):
            raise ValueError("what was drawn")
        ids, weight, place = (
            ids.astype(np.int64),
            weight.astype(np.float32),
            Places(np.array(block, np.int64, order="C")),
        )
        if not ids.shape == weight.shape == place.shape[:1] == (count,) or not inside(place, ids, rows):
            raise StateError(f"{rows.path}: the state has drawn rows that this run does not have")
        before = None if epochs is None else epochs.restored(state["epochs"])
        return cls((int(count), beta), int(state["batch"]), before, ids, weight, place)


def inside(place: Places, ids: Array, rows: Rows) -> bool:
    """Tell whether places lie within the run, in the episodes that they name, and are those of these ids."""
    table = rows.episodes
    known = (place.env >= 0) & (place.env < len(rows.rows)) & (place.number >= 0) & (place.number < table.count)
    if not known.all():
        return False
    low, length = (table[name][place.number] for name in ("start", "length"))
    fits = (place.env == table["env"][place.number]) & (place.low == low) & (place.stop - low <= length)
    fits &= (place.stop >= low) & (place.high - place.stop >= -1) & (place.high <= place.stop)
    fits &= (place.flags >= 0) & (place.flags < 4) & (place.row >= low) & (place.row < rows.rows[place.env])
    same = (ids == (place.env << 32 | place.row)) if place.row.ndim == 1 else ids >> 32 == place.env[:, 0]
    return bool((fits | (place.row == -1)).all() and same.all())
