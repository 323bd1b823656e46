"""What a case is, and what several kinds of them need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..measure import Contest
from ..rivals import Drawn, Rivals
from ..steps import STACK

CASTS = {"d3rlpy": np.float32}  # it has no other way: every batch is cast


@dataclass(frozen=True)
class Case:
    """A contest for contestants, in a folder, of a size; the sizes that are run, and those of the short set.

    kept: the C library keeps large blocks that are freed instead of giving them back, so that nobody's time depends
    on what the others have freed before. It favours those that make new arrays for every batch.
    """

    contest: Callable[[Rivals, Path, int], Contest]
    sizes: tuple[int, ...] = (0,)
    short: tuple[int, ...] | None = None
    kept: bool = True
    cores: int = 1

    def chosen(self, short: bool) -> tuple[int, ...]:
        """Return the sizes to run."""
        return self.sizes if self.short is None or not short else self.short

    @property
    def title(self) -> str:
        """Return what the contest is about."""
        contest = self.contest.func if isinstance(self.contest, partial) else self.contest
        return (contest.__doc__ or "").splitlines()[0]

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that numpy's BLAS and glibc's allocator read; 32 MiB is as far as that goes."""
        kept = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)} if self.kept else {}
        return kept | {"OPENBLAS_NUM_THREADS": "1"}


def drawing(samplers: dict[str, Callable[[int], Any]], batch: int) -> dict[str, Callable[[], object]]:
    """Return contestants that draw batches of one size."""
    return {name: partial(sample, batch) for name, sample in samplers.items()}


def check_frames(name: str, observation: Any, shapes: set[tuple[int, ...]]) -> None:
    """Refuse observations that are no frames of such a shape."""
    found, expected = np.asarray(observation), CASTS.get(name, np.uint8)
    if found.dtype != expected or found.shape not in shapes:
        raise TypeError(f"{name}: a batch of {found.dtype} {found.shape}")


def check_stacks(name: str, drawn: Drawn, batch: int, frame: tuple[int, ...]) -> None:
    """Refuse a batch whose observations are no frame stacks."""
    for observation in (drawn.observation, drawn.next_observation):
        check_frames(name, observation, {(batch, STACK, *frame), (batch, *frame, STACK)})
    check_columns(name, drawn, batch)


def check_columns(name: str, drawn: Drawn, batch: int) -> None:
    """Refuse actions and rewards that are not one number a transition."""
    for column in (np.asarray(drawn.action), np.asarray(drawn.reward)):
        if column.shape not in {(batch,), (batch, 1)}:
            raise TypeError(f"{name}: a column of shape {column.shape}")
