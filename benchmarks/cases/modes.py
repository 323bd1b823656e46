"""Each way of sampling beside a copy of what it returns: 20,000 real frames, all in the cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import archive

from ..measure import Contest
from ..rivals import Rivals, ours
from ..steps import atari
from .case import Case

SEQUENCE = {"sequence_length": 20, "batch_size": 16}

OPTIONS: dict[str, dict[str, Any]] = {
    "transitions": {},
    "stack": {"stack": 4},
    "stack-last-axis": {"stack": 4, "stack_axis": -1},
    "stack-n-step": {"stack": 4, "n_step": 5},
    "stack-cast": {"stack": 4, "cast": {"observation": "float32"}},
    "prioritised": {"stack": 4, "sampler": archive.Prioritized()},
    "prioritised-global": {"stack": 4, "sampler": archive.Prioritized(normalize="global")},
    "epoch": {"stack": 4, "sampler": archive.Epoch()},
    "offsets": {"offsets": {"observation": range(-3, 2), "action": range(8)}},
    "previous-extras": {"previous": ("action", "reward"), "extras": ("timestep", "episode", "remaining")},
    "return-to-go": {"extras": ("return_to_go",)},
    "sequences": SEQUENCE,
    "sequences-burn-in": SEQUENCE | {"burn_in": 10},
    "sequences-time-major": SEQUENCE | {"time_major": True},
    "sequences-across-ends": SEQUENCE | {"within_episode": False},
    "sequences-padded": SEQUENCE | {"pad": "left"},
    "sequences-stack": SEQUENCE | {"stack": 4},
    "sequences-prioritised": SEQUENCE | {"sampler": archive.Prioritized()},
}


def sampling(mode: str, rivals: Rivals, folder: Path, size: int) -> Contest:
    """sample() in one mode, batches of `size` (32, of sequences 16) starts."""
    options = {"batch_size": 32, **OPTIONS[mode]} | ({"batch_size": size} if size else {})
    steps = atari(20_000)
    replay = ours.stored(folder, steps).replay(**options)
    for _ in range(len(steps.observation) // options["batch_size"]):
        batch = replay.sample()
    return Contest({"archive": replay.sample}, moved=nbytes(batch.asdict()))


def nbytes(value: Any) -> int:
    """Return the bytes of all arrays of a batch."""
    return sum(map(nbytes, value.values())) if isinstance(value, Mapping) else np.asarray(value).nbytes


MODES = {f"sample-{mode}": Case(partial(sampling, mode), short=()) for mode in OPTIONS}
