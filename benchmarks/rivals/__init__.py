"""Who is compared: this package and the others, a module each; OFFERS says what each of them can do."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

MODULES = {  # contestant: its module in this folder
    "archive": "ours",
    "numpy": "by_hand",
    "cpprb": "cpprb_memory",
    "tianshou": "tianshou_memory",
    "stable-baselines3": "sb3_memory",
    "dopamine": "dopamine_memory",
    "d3rlpy": "d3rlpy_memory",
    "torchrl": "torchrl_tree",
    "memmap": "memmap_files",
    "pickle": "pickle_files",
    "npz": "npz_files",
}

OFFERS = {
    # tree(values): a sum tree with sample(batch) and update(index, value)
    "tree": ("archive", "numpy", "cpprb", "tianshou", "dopamine", "torchrl"),
    # prioritised(folder, steps): a prioritised memory with sample(batch) -> Drawn and update(index, priority)
    "prioritised": ("archive", "numpy", "cpprb", "tianshou"),
    # stacked(folder, steps, n_step): a function from a batch size to a Drawn of frame stacks
    "stacked": ("archive", "numpy", "cpprb", "tianshou", "stable-baselines3", "dopamine", "d3rlpy"),
    # sequences(folder, steps, length): a function from a batch size to observations (batch, length, ...)
    "sequences": ("archive", "numpy", "d3rlpy"),
    # overlapping(folder, steps): as `stacked`, both observations views of one array
    "overlapping": ("archive",),
    # uncached(folder, steps): as `stacked`, the frames read from a file for every batch
    "uncached": ("archive", "memmap"),
    # stepper(folder, steps, envs): a function that appends step t of all environments
    "stepper": ("archive", "cpprb", "tianshou", "stable-baselines3", "dopamine", "d3rlpy"),
    # save(path, steps): writes steps into a file; dump(path, steps): fills a memory with frames and saves it
    "save": ("archive", "memmap", "pickle", "npz"),
    "dump": ("tianshou", "d3rlpy"),  # not cpprb, which takes half a minute to load a hundred thousand
    # first_batch(path): reads what was written and draws 32 frame stacks, or rows where there are no frames
    "first_batch": ("archive", "memmap", "pickle", "npz", "tianshou", "d3rlpy"),
}


class Drawn(NamedTuple):
    """A batch; arrays or tensors."""

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    index: Any = None


class Tree(Protocol):
    """Leaves drawn in proportion to their values."""

    def sample(self, batch: int) -> Array:
        """Draw leaves, random numbers included."""

    def update(self, index: Array, value: Array) -> None:
        """Set leaves."""


class Prioritised(Protocol):
    """Transitions drawn in proportion to their priorities."""

    def sample(self, batch: int) -> Drawn:
        """Draw a batch with importance weights."""

    def update(self, index: Array, priority: Array) -> None:
        """Set priorities."""


class Rivals:
    """The contestants asked for; `skipped` says why one could not take part."""

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self.names = names or tuple(MODULES)
        self.skipped: dict[str, str] = {}

    def among(self, *names: str) -> Rivals:
        """Return those of them that have one of these names."""
        chosen = Rivals(tuple(name for name in self.names if name in names))
        chosen.skipped = self.skipped
        return chosen

    def offer(self, function: str, *arguments: Any) -> dict[str, Any]:
        """Return what each contestant that has the function makes of the arguments."""
        made = {}
        for name, make in self.offers(function).items():
            try:
                made[name] = make(*arguments)
            except NotImplementedError as error:
                self.skipped[name] = str(error)
        return made

    def offers(self, function: str) -> dict[str, Callable[..., Any]]:
        """Return the functions of a name by contestant."""
        found = {}
        for name in OFFERS[function]:
            if name not in self.names:
                continue
            try:
                found[name] = getattr(importlib.import_module(f".{MODULES[name]}", __name__), function)
            except (ImportError, OSError) as error:  # OSError: a library in it that does not load
                self.skipped[name] = str(error)
        return found
