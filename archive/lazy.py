"""A field as an array that reads when it is indexed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from .column import Column
from .errors import IndexRangeError
from .guard import lock

Array = np.ndarray[Any, Any]


class Lengths(Protocol):
    """What knows how many rows each environment has."""

    rows: Array

    def require_open(self) -> None:
        """Raise StateError if the run was closed."""


class LazyColumn:
    """A field as an array that reads when it is indexed: (rows, *shape), or (rows, environments, *shape)."""

    def __init__(self, column: Column, owner: Lengths, axis: bool) -> None:
        self._column, self._owner, self._axis = column, owner, axis

    @property
    def _lengths(self) -> Array:
        return self._owner.rows

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape; rows of the longest environment first."""
        envs = (self._column.envs,) if self._axis else ()
        return (int(self._lengths.max()), *envs, *self._column.field.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """dtype of the field."""
        return self._column.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: Any) -> Array:
        """Index as numpy does; rows past an environment's end are zeros."""
        key = key if isinstance(key, tuple) else (key,)
        if any(k is Ellipsis for k in key):
            at = next(i for i, k in enumerate(key) if k is Ellipsis)
            key = key[:at] + (slice(None),) * (len(self.shape) - len(key) + 1) + key[at + 1 :]
        row_key, env_key = key[0] if key else slice(None), key[1] if self._axis and len(key) > 1 else slice(None)
        try:
            rows = np.asarray(np.arange(len(self))[row_key])
            envs = np.asarray(np.arange(self._column.envs)[env_key] if self._axis else 0)
        except IndexError as error:
            raise IndexRangeError(f"field {self._column.name!r} of shape {self.shape}: {error}") from error
        if isinstance(row_key, slice) or isinstance(env_key, slice):  # otherwise numpy takes them pair by pair
            rows = rows.reshape((*rows.shape, *(1,) * envs.ndim))
        rest = key[1 + self._axis :]
        rows, envs = np.broadcast_arrays(rows, envs)
        result = self._read(rows, envs)
        return result[(*(slice(None),) * rows.ndim, *rest)] if rest else result

    def _read(self, rows: Array, envs: Array) -> Array:
        flat_rows, flat_envs = rows.reshape(-1).astype(np.int64), envs.reshape(-1).astype(np.int64)
        flat_rows[flat_rows >= self._lengths[flat_envs]] = -1
        with lock:
            self._owner.require_open()
            found = self._column.gather(flat_envs, flat_rows)
        return found.reshape((*rows.shape, *self._column.field.shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)
