"""How a replay makes batches of rows: a frozen value that its state carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from .errors import FieldError


@dataclass(frozen=True)
class Options:
    """How a replay makes batches of rows; a frozen value that its state carries."""

    batch_size: int | None = None
    capacity: int | None = None
    gamma: float = 0.99
    n_step: int = 1
    stack: int | None = None
    padding: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, low in (("batch_size", 1), ("capacity", 1), ("n_step", 1), ("stack", 0), ("seed", 0)):
            value = getattr(self, name)
            required = name in ("n_step", "seed")
            if (value is None and required) or (value is not None and (not is_int(value) or value < low)):
                raise FieldError(f"{name} {value!r}: expected an integer >= {low}")
            if value is not None and name != "seed" and value >= 1 << 48:
                raise FieldError(f"{name} {value!r}: expected less than 2^48")
        if self.seed >= 1 << 64:
            raise FieldError(f"seed {self.seed}: expected less than 2^64")
        if not isinstance(self.gamma, (int, float)) or not 0 <= self.gamma <= 1:
            raise FieldError(f"gamma {self.gamma!r}: expected 0 to 1")
        if self.padding not in (None, "zero", "repeat"):
            raise FieldError(f"padding {self.padding!r}: expected 'zero' or 'repeat'")


def is_int(value: Any) -> TypeGuard[int]:
    """Tell whether a value is an integer and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
