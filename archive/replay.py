"""A replay: a view of a run for sampling, with stacks and n-step returns made when a batch is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from . import _core
from .batch import Batch, nest
from .errors import (
    ArchiveError,
    FieldError,
    FieldTypeError,
    IndexRangeError,
    NotEnoughData,
    StateError,
    UnknownFieldError,
)
from .guard import lock
from .options import Options, is_int
from .priorities import Priorities, position
from .rows import Rows
from .samplers import DRAW_VERSION, Prioritized, Sampler, Uniform, sampler_from_json, uniforms
from .schema import as_array, is_observation
from .valid import ValidStarts

Array = np.ndarray[Any, Any]
BAD_STATE = (KeyError, TypeError, AttributeError, IndexError, ValueError)  # what a state made by hand may cause


class Replay:
    """Draw batches from the rows of a run. Made by `run.replay`; all threads of one replay share its position.

    Call k draws from (seed, k) and the rows and priorities then present, as docs/draws.md says.
    """

    def __init__(self, rows: Rows, run_id: str, options: Options, sampler: Sampler) -> None:
        if not isinstance(sampler, (Uniform, Prioritized)):
            raise FieldTypeError(f"sampler {sampler!r}: expected archive.Uniform() or archive.Prioritized(...)")
        self._rows, self._run_id, self.options, self.sampler = rows, run_id, options, sampler
        envs = rows.header.schema.envs
        capacity = 0
        if options.capacity is not None:
            capacity = options.capacity // envs
            if capacity < 1:
                raise FieldError(
                    f"capacity {options.capacity}: expected at least one transition per environment ({envs})"
                )
        self._valid = ValidStarts(rows, options.n_step, capacity)
        self._priorities = None
        if isinstance(sampler, Prioritized):
            self._priorities = Priorities(self._valid, sampler)
        self._batches = 0
        self._rewinds = len(rows.rewinds)

    # --- position

    def _refresh(self) -> None:
        """Take in what has arrived since the last call."""
        self._rows.require_open()
        if self._rewinds != len(self._rows.rewinds):
            raise StateError(f"{self._rows.path}: rewound after this replay was made; make one from the checkpoint")
        changed = self._valid.refresh()
        if changed and self._priorities is not None:
            self._priorities.enter(changed)

    def __len__(self) -> int:
        """Return the number of valid starts."""
        with lock:
            self._refresh()
            return len(self._valid)

    @property
    def ignored_updates(self) -> int:
        """How many priority updates were ignored because their rows had left the capacity."""
        return self._priorities.ignored if self._priorities is not None else 0

    # --- sampling

    def sample(self, batch_size: int | None = None, *, beta: float | None = None) -> Batch:
        """Draw the next batch. NotEnoughData if there is no valid start."""
        with lock:
            env, row, weight = self._draw(batch_size, beta)
            return self._gather(env, row, weight, None)

    def draw(self, batch_size: int | None = None, *, beta: float | None = None) -> tuple[Array, Array]:
        """Draw the next batch's ids and weights without reading its rows."""
        with lock:
            env, row, weight = self._draw(batch_size, beta)
            return env << 32 | row, weight

    def gather(self, index: Any, fields: Sequence[str] | None = None) -> Batch:
        """Return the transitions that start at these ids, all of them valid starts; `fields` limits what is read."""
        with lock:
            self._refresh()
            env, row = self._split(index)
            valid = self._valid.contains(env, row)
            position(~valid, IndexRangeError, "not the id of a valid start", env << 32 | row)
            return self._gather(env, row, np.ones(len(env), np.float32), fields)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.sample()

    def _draw(self, batch_size: int | None, beta: float | None) -> tuple[Array, Array, Array]:
        count = self.options.batch_size if batch_size is None else batch_size
        if not is_int(count) or count < 1:
            raise FieldError(f"batch_size {count!r}: expected an integer >= 1, here or when the replay is made")
        if beta is not None and not (isinstance(beta, (int, float)) and 0 <= beta < math.inf):
            raise FieldError(f"beta {beta!r}: expected a finite number >= 0")
        self._refresh()
        if not len(self._valid):
            few = 0 < self._valid.capacity < self.options.n_step
            why = ", and the capacity keeps fewer than that per environment" if few else ""
            raise NotEnoughData(f"{self._rows.path}: no transition of {self.options.n_step} step(s) is complete{why}")
        uniform = uniforms(self.options.seed, self._batches, count)
        if self._priorities is not None and isinstance(self.sampler, Prioritized):
            env, row, probability = self._priorities.draw(uniform)
            weight = self._priorities.weights(probability, self.sampler.beta if beta is None else beta)
        else:
            total = len(self._valid)
            env, row = self._valid.pick(np.minimum((uniform * total).astype(np.int64), total - 1))
            weight = np.ones(count, np.float32)
        self._batches += 1
        return env, row, weight

    # --- rows of a batch

    def _gather(self, env: Array, row: Array, weight: Array, fields: Sequence[str] | None) -> Batch:
        names = self._fields(fields)
        columns, rows = self._rows.columns, self._rows
        segments = rows.episodes.segments
        segment = self._valid.segment_of(env, row)
        number, low = segments.episode[segment], segments.start[segment]
        steps = np.minimum(self.options.n_step, low + rows.episodes.columns["length"][number] - row)
        at_end = row + steps == low + rows.episodes.columns["length"][number]
        flags = {k: rows.episodes.columns[k][number] & at_end for k in ("terminated", "truncated")}
        high = np.where(at_end & ~rows.episodes.columns["final"][number], -1, row + steps)  # -1: nothing to look at
        arrays: dict[str, Any] = {}
        seen = {k: self._stack(k, env, row, low, row) for k in names if is_observation(k)}
        ahead = {k: self._stack(k, env, row + steps, low, high) for k in names if is_observation(k)}
        acted = {k: columns[k].gather(env, row[:, None])[:, 0] for k in names if k.split("/")[0] == "action"}
        for name, group in (("observation", seen), ("action", acted), ("next_observation", ahead)):
            if group:
                arrays[name] = nest("observation" if name == "next_observation" else name, group)
        if "reward" in names:
            arrays["reward"] = self._returns(env, row, steps)
        discount = np.where(flags["terminated"], 0.0, np.power(self.options.gamma, steps))
        arrays |= {**flags, "discount": discount.astype(np.float32), "index": env << 32 | row, "weight": weight}
        for name in names:
            if name in rows.header.schema.extras:
                arrays[name] = columns[name].gather(env, row[:, None])[:, 0]
        return Batch(arrays)

    def _fields(self, fields: Sequence[str] | None) -> list[str]:
        """Return the names of the fields that a batch reads."""
        known = [k for k in self._rows.header.fields if k not in ("terminated", "truncated", "is_first", "is_last")]
        if fields is None:
            return known
        for name in fields:
            if not any(k == name or k.startswith(f"{name}/") for k in known):
                raise UnknownFieldError(f"field {name!r} cannot be gathered; there are {', '.join(known)}")
        return [k for k in known if any(k == name or k.startswith(f"{name}/") for name in fields)]

    def _stack(self, name: str, env: Array, row: Array, low: Array, high: Array) -> Array:
        """Return observations at `row`, stacked if the field or the option says so: (B, [K,] *shape)."""
        column = self._rows.columns[name]
        stacked = self.options.stack if self.options.stack is not None else column.field.stacked
        size = stacked or 1
        padding = self.options.padding or column.field.padding or "zero"
        where = np.empty((len(row), size), np.int64)
        _core.windows(row, np.arange(1 - size, 1), low, high, padding == "repeat", where)
        where[high < 0] = -1  # a terminated end without a final observation: the whole stack is zeros
        out = column.gather(env, where)
        return out if stacked else out[:, 0]

    def _returns(self, env: Array, row: Array, steps: Array) -> Array:
        """Return the n-step sums: added in float64, float32."""
        where = row[:, None] + np.arange(self.options.n_step)
        where[np.arange(self.options.n_step) >= steps[:, None]] = -1
        reward = self._rows.columns["reward"].gather(env, np.ascontiguousarray(where))
        total = np.empty(len(row))
        _core.returns(np.ascontiguousarray(reward, np.float64), steps, self.options.gamma, total)
        with np.errstate(over="ignore"):
            return total.astype(np.float32)

    # --- priorities

    def update_priorities(self, index: Any, priority: Any) -> None:
        """Set the priorities of ids: one finite number >= 0 each; the last of duplicates wins.

        Ids whose rows have left the capacity are ignored and counted in `ignored_updates`.
        """
        if self._priorities is None:
            raise StateError("update_priorities needs sampler=archive.Prioritized(...)")
        with lock:
            self._refresh()
            env, row = self._split(index)
            values = as_array("priority", priority)
            if values.shape != row.shape or values.dtype.kind not in "fiub":
                raise FieldError(f"priority: expected {len(row)} numbers, found {values.dtype} of shape {values.shape}")
            self._priorities.update(env, row, values.astype(np.float64))

    def _split(self, index: Any) -> tuple[Array, Array]:
        """Return environment and row of ids."""
        ids = as_array("index", index)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise FieldError(f"index: expected ids (B,), found {ids.dtype} of shape {ids.shape}")
        ids = ids.astype(np.int64)
        env = ids >> 32
        position(
            (ids < 0) | (env >= len(self._rows.rows)), IndexRangeError, "of an environment that does not exist", ids
        )
        return env, ids & 0xFFFFFFFF

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next batches depend on beside the rows: options, position, priorities."""
        with lock:
            self._refresh()
            state = {
                "draw_version": DRAW_VERSION,
                "run_id": self._run_id,
                "options": asdict(self.options),
                "sampler": self.sampler.to_json(),
                "batches": self._batches,
                "rows": self._rows.rows.copy(),
                "rewinds": self._rewinds,
            }
            if self._priorities is not None:
                state["priorities"] = self._priorities.state()
            return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this run; options stay as this replay was made, capacity and seed included."""
        with lock:
            fresh = Replay(self._rows, self._run_id, self.options, self.sampler)
            fresh._load(state)
            self.__dict__ = fresh.__dict__

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if state["draw_version"] != DRAW_VERSION:
            raise StateError(f"state of draw version {state['draw_version']}; this package draws by {DRAW_VERSION}")
        if state["run_id"] != self._run_id:
            raise StateError(f"state of run {state['run_id']}, but this is run {self._run_id}")
        seen, later = np.asarray(state["rows"]), self._rows.rewinds[state["rewinds"] :]
        if state["rewinds"] > len(self._rows.rewinds) or (seen > self._rows.rows).any():
            raise StateError(f"{self._rows.path}: the state has seen rows that this run does not have")
        if any((seen > rewind.back_to).any() for rewind in later):
            raise StateError(f"{self._rows.path}: the state has seen rows that this run has given up")

    def _load(self, state: Mapping[str, Any]) -> None:
        """Take over a state; only for a replay that has not been used."""
        try:
            self._check_state(state)
            self._take_over(state)
        except ArchiveError:
            raise
        except BAD_STATE as error:
            raise StateError(f"{self._rows.path}: the state of a replay lacks or garbles {error}") from error

    def _take_over(self, state: Mapping[str, Any]) -> None:
        self._batches = int(state["batches"])
        changed = self._valid.refresh()
        if self._priorities is not None:
            made = sampler_from_json(state["sampler"])
            if isinstance(made, Prioritized):
                self._priorities.load(state["priorities"], made)
            self._priorities.enter(changed)


def restored(
    rows: Rows, run_id: str, state: Mapping[str, Any], given: Mapping[str, Any], sampler: Sampler | None
) -> Replay:
    """Return a replay that goes on from a state; options given beside it win."""
    if not isinstance(state, Mapping):
        raise FieldTypeError(f"state: expected what state_dict() gave, found {type(state).__name__}")
    try:
        options, made = {**state["options"], **given}, sampler_from_json(state["sampler"])
    except ArchiveError:
        raise
    except BAD_STATE as error:
        raise StateError(f"{rows.path}: the state of a replay lacks or garbles {error}") from error
    unknown = set(options) - set(Options.__dataclass_fields__)
    if unknown:
        raise StateError(f"{rows.path}: the state has options that this version does not know: {sorted(unknown)}")
    replay = Replay(rows, run_id, Options(**options), sampler or made)
    replay._load(state)
    return replay
