"""Batches made of several replays: demonstrations beside what the agent does, one task beside another."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .batch import Batch
from .casting import as_array, is_int, is_number
from .errors import FieldError, FieldTypeError, IndexRangeError, NotEnoughData, StateError
from .guard import lock
from .leaves import position
from .replay import Replay
from .samplers import Prioritized

Array = np.ndarray[Any, Any]
SOURCE_BIT = 48  # ids of a batch: source << 48 | the id that the replay knows
PER_BATCH = ("index", "weight")  # one value an item, also where the rows of sequences come first


class Mix:
    """Draw every batch from all of several replays, from each a fixed number. Made by `archive.mix`.

    Several threads may sample: batch k is made of batch k of every replay.
    """

    def __init__(self, replays: Sequence[Replay], weights: Sequence[float], batch_size: int | None) -> None:
        self.replays, self.weights, self.batch_size = tuple(replays), tuple(weights), batch_size
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of valid starts of all replays together."""
        return sum(len(replay) for replay in self.replays)

    def counts(self, batch_size: int) -> list[int]:
        """Return how many items of a batch come from each replay: its share, the rest to the largest remainders.

        Of equal remainders the first wins.
        """
        share = np.array(self.weights) / sum(self.weights) * batch_size
        counts = np.floor(share + 1e-9).astype(int)
        order = np.argsort(np.round(counts - share, 9), kind="stable")
        counts[order[: batch_size - counts.sum()]] += 1
        return [int(count) for count in counts]

    def sample(self, batch_size: int | None = None) -> Batch:
        """Draw the next batch: the arrays of the replays' batches behind one another, and `batch["source"]`.

        `source` (B,) int64 is the place of an item's replay in the list, also in bits 48 and up of `index`.
        NotEnoughData, and nothing is drawn, while a replay that is to give something has no valid start.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None or not is_int(size) or size < 1:
            raise FieldError(f"batch_size {size!r}: expected an integer >= 1, here or when the mix is made")
        with self._lock:
            counts = self.counts(int(size))
            parts = [(k, replay, n) for k, (replay, n) in enumerate(zip(self.replays, counts, strict=True)) if n]
            for k, replay, n in parts:
                if not len(replay):
                    raise NotEnoughData(f"replay {k} of a mix is to give {n} of {size} items, but has no valid start")
            taken = [replay._take(n) for _, replay, n in parts]
            made = [replay._made(draw).asdict() for (_, replay, _), draw in zip(parts, taken, strict=True)]
            batch = joined(made, self.replays[0].options.time_major)
            for _, replay, _ in parts:
                replay._give_out()
        batch["source"] = np.repeat(np.array([k for k, _, _ in parts]), [n for _, _, n in parts])
        batch["index"] |= batch["source"] << SOURCE_BIT
        return Batch(batch)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.sample()

    def update_priorities(self, index: Any, priority: Any) -> None:
        """Set priorities by the ids of batches; those of replays that are not prioritised are left alone.

        Everything is checked before anything changes.
        """
        ids, values = as_array("index", index), as_array("priority", priority)
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or values.shape != ids.shape:
            raise FieldError(f"index, priority: expected (B,) both, found {ids.dtype} {ids.shape} and {values.shape}")
        ids = ids.astype(np.int64)
        source, own = ids >> SOURCE_BIT, ids & ((1 << SOURCE_BIT) - 1)
        position((source < 0) | (source >= len(self.replays)), IndexRangeError, "the id of no replay of this mix", ids)
        parts = [(r, source == k) for k, r in enumerate(self.replays) if isinstance(r.sampler, Prioritized)]
        if not parts:
            raise StateError("update_priorities needs a replay with sampler=archive.Prioritized(...) in the mix")
        with lock:
            updates = [replay._update(own[mine], values[mine]) for replay, mine in parts]
            for priorities, some, new in updates:
                priorities.checked(some, new)
            for priorities, some, new in updates:
                priorities.update(some, new)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next batches depend on beside the rows: the states of all replays."""
        with self._lock:
            return {"mix": [replay.state_dict() for replay in self.replays]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a mix of as many replays, of the same runs in the same order."""
        states = state.get("mix") if isinstance(state, Mapping) else None
        if not isinstance(states, (list, tuple)) or len(states) != len(self.replays):
            raise StateError(f"expected the state of a mix of {len(self.replays)} replays")
        with self._lock, lock:
            loaded = [replay._loaded(part) for replay, part in zip(self.replays, states, strict=True)]
            for replay, fresh in zip(self.replays, loaded, strict=True):
                replay.__dict__ = fresh.__dict__


def mix(replays: Sequence[Replay], weights: Sequence[float] | None = None, *, batch_size: int | None = None) -> Mix:
    """Draw batches from several replays at once, of each its share by `weights` (equal without them).

    The replays may be of different runs; their batches must have the same arrays. A share of zero is allowed.

    >>> import archive, tempfile, numpy as np
    >>> schema = archive.Schema.from_example({"observation": 0.0, "action": 0})
    >>> runs = [archive.create(f"{tempfile.mkdtemp()}/run.h5", schema) for _ in range(2)]
    >>> for run in runs:
    ...     _ = run.extend({"observation": np.arange(9.0), "action": np.arange(9), "reward": np.ones(9)})
    >>> batch = archive.mix([run.replay() for run in runs], weights=[0.75, 0.25]).sample(8)
    >>> batch["source"].tolist()
    [0, 0, 0, 0, 0, 0, 1, 1]
    >>> for run in runs:
    ...     run.close()
    """
    given = tuple(replays)
    if not given or not all(isinstance(replay, Replay) for replay in given):
        raise FieldTypeError("mix: expected a list of replays, one at least")
    if len({id(replay) for replay in given}) < len(given):
        raise FieldError("mix: the same replay twice; make another one with a seed of its own")
    if len({replay.options.time_major for replay in given}) > 1:
        raise FieldError("mix: time_major must be the same for all replays")
    shares = tuple(weights) if weights is not None else (1.0,) * len(given)
    good = len(shares) == len(given) and all(is_number(w) and 0 <= w < float("inf") for w in shares)
    if not good or not sum(shares) > 0:
        raise FieldError(f"weights {shares}: expected {len(given)} finite numbers >= 0, not all zero")
    return Mix(given, [float(w) for w in shares], batch_size)


def joined(batches: list[dict[str, Any]], rows_first: bool = False) -> dict[str, Any]:
    """Return the arrays of several batches behind one another, by name."""
    names = [set(batch) for batch in batches]
    if any(other != names[0] for other in names):
        odd = sorted({name for batch in batches for name in batch if any(name not in other for other in batches)})
        raise FieldError(f"mix: not every replay has {', '.join(odd)} in its batches")
    return {
        name: join(name, [batch[name] for batch in batches], int(rows_first and name not in PER_BATCH))
        for name in batches[0]
    }


def join(name: str, values: list[Any], axis: int) -> Any:
    """Return arrays behind one another along `axis`, also those nested in dicts and tuples."""
    first = values[0]
    if isinstance(first, dict):
        if any(not isinstance(value, dict) or value.keys() != first.keys() for value in values):
            raise FieldError(f"mix: {name!r} has other parts in one replay than in another")
        return {key: join(f"{name}/{key}", [value[key] for value in values], axis) for key in first}
    if isinstance(first, tuple):
        return tuple(join(f"{name}/{k}", [value[k] for value in values], axis) for k in range(len(first)))
    if first is None:
        return None
    kinds = {(v.dtype, v.shape[:axis] + v.shape[axis + 1 :]) for v in values}
    if len(kinds) > 1:
        found = " and ".join(sorted(f"{dtype} {shape}" for dtype, shape in kinds))
        raise FieldError(f"mix: {name!r} is {found} an item")
    return np.concatenate(values, axis)
