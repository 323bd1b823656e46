"""The plain step: one more row of every environment while no episode starts or ends."""

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from .rows import Rows

@final
class PlainField:
    """One field of a plain step."""

    def __init__(
        self,
        source: str,
        role: str,
        begin: Callable[[int], int],
        pool: np.ndarray[Any, Any],
        newest: np.ndarray[Any, Any],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        chunk_rows: int,
        stack: int,
        envs: int,
    ) -> None: ...
    @property
    def source(self) -> str:
        """Name of the argument of step."""

@final
class PlainStep:
    """Append plain steps to `fields` of `envs` environments; `rows` is what they belong to."""

    def __init__(self, fields: list[PlainField], rows: Rows, waiting: int) -> None: ...
    def append(self, values: dict[str, Any], stacks: Mapping[str, np.ndarray[Any, Any]], alone: bool) -> bool | None:
        """Append a row of every environment and return True, or change nothing and return False.

        None, and nothing changed, where a chunk begins and the caller is not `alone`.
        """
