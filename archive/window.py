"""How one field comes into a batch: row by row or as stacks of frames, in which dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._pool import Part
from .column import Column
from .errors import FieldError
from .options import Options
from .places import Places
from .schema import is_observation

Array = np.ndarray[Any, Any]


class Window:
    """The field of `column` under `options`: `count` frames up to a row, `stacked` if they have an axis."""

    def __init__(self, column: Column, options: Options) -> None:
        self.column, self.name, self.shape = column, column.name, column.field.shape
        self.observed = is_observation(column.name)
        given = options.stack if options.stack is not None else column.field.stacked
        self.stacked = bool(self.observed and given)
        self.count = int(given or 1) if self.observed else 1
        self.repeat = (options.padding or column.field.padding or "zero") == "repeat"
        axes, axis = 1 + len(self.shape), options.stack_axis
        if self.stacked and not -axes <= axis <= axes:
            raise FieldError(f"stack_axis {axis}: stacks of field {self.name!r} have {axes} axes")
        self.axis = axis if axis > 0 else axis + axes + 1
        dtype = options.cast.get(self.name, options.cast.get(self.name.split("/")[0]))
        self.part = self.taken()
        self.dtype = None if dtype is None or self.name == "reward" else np.dtype(dtype)

    def taken(self, later: bool = False) -> Part:
        """Return what a batch takes of the field, at rows or at those after their transitions."""
        count = self.count if self.stacked else None
        return self.column.part(1 - self.count, count, repeat=self.repeat, later=later)

    def taken_once(self) -> Part:
        """Return what a batch takes of the field, at rows and at those behind them at once: one row more."""
        return self.column.part(1 - self.count, self.count + 1, repeat=self.repeat)

    def halves(self, array: Array) -> tuple[Array, Array]:
        """Return views of what `taken_once` gave: at the rows, and at those behind them."""
        now, later = (array[:, :-1], array[:, 1:]) if self.stacked else (array[:, 0], array[:, 1])
        return self.finished(now), self.finished(later)

    def read(self, place: Places, row: Array | None = None) -> Array:
        """Return the field at places, or at other rows of their episodes: (*places, [frames], *shape).

        What is not an observation is known only for transitions: zeros at final observations.
        """
        row = place.row if row is None else row
        if not self.observed:
            row = np.where(row < place.stop, row, -1)
        return self.finished(self.rows(self.part, place, row))

    def rows(self, part: Part, place: Places, row: Array) -> Array:
        """Return a part of rows of any shape."""
        return self.column.windows(part, place.flat, row.reshape(-1)).reshape(*row.shape, *part.shape)

    def finished(self, array: Array) -> Array:
        """Return what was read with the frames of stacks on their axis, in the dtype of option `cast`."""
        if self.stacked and self.axis > 1:
            lead = array.ndim - len(self.shape) - 1
            array = np.moveaxis(array, lead, lead + self.axis - 1)
        return self.casted(array)

    @property
    def plain(self) -> bool:
        """Whether `finished` changes nothing."""
        return self.dtype is None and not (self.stacked and self.axis > 1)

    def single(self, place: Places) -> Array:
        """Return single rows, not stacked."""
        return self.casted(self.rows(self.column.single, place, place.row))

    def missing(self, place: Places, row: Array) -> list[int]:
        """Return the chunks that reading these rows would have to load."""
        return self.column.missing(self.part, place.flat, row.reshape(-1))

    def casted(self, array: Array) -> Array:
        """Return an array in the dtype that option `cast` gives the field, or the group it belongs to."""
        if self.dtype is None:
            return array
        out = self.column.buffers.take(array.shape, self.dtype)
        np.copyto(out, array, casting="unsafe")  # as astype does
        return out
