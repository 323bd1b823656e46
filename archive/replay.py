"""A replay: a view of a run for sampling, with stacks and n-step returns made when a batch is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from threading import get_ident
from typing import Any, cast

import numpy as np

from ._core import ranks
from .ahead import Ahead
from .assembly import Assembly, check_out, fill
from .batch import Batch
from .casting import as_array, is_int, is_number
from .draw import Draw
from .epochs import Epochs, Pass
from .errors import (
    ArchiveError,
    FieldError,
    FieldTypeError,
    IndexRangeError,
    NotEnoughData,
    StateError,
)
from .guard import lock
from .leaves import position, split
from .loader import Loading, bring
from .options import Options
from .places import Places
from .priorities import Priorities
from .rows import Rows
from .samplers import DRAW_VERSION, Epoch, Prioritized, Sampler, Uniform, sampler_from_json
from .valid import ValidStarts

Array = np.ndarray[Any, Any]
MOST_AHEAD = 1024  # batches drawn ahead
BAD_STATE = (
    KeyError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    ValueError,
)  # what a state made by hand may cause


class Replay:
    """Draw batches from the rows of a run. Made by `run.replay`; all threads of one replay share its position.

    Call k draws from (seed, k) and the rows and priorities then present, as docs/draws.md says.
    """

    def __init__(self, rows: Rows, run_id: str, options: Options, sampler: Sampler, prefetch: int = 0) -> None:
        if not isinstance(sampler, (Uniform, Epoch, Prioritized)):
            raise FieldTypeError(f"sampler {sampler!r}: expected archive.Uniform(), Epoch() or Prioritized(...)")
        if not is_int(prefetch) or not 0 <= prefetch <= MOST_AHEAD:
            raise FieldError(f"prefetch {prefetch!r}: expected an integer from 0 to {MOST_AHEAD}")
        self._rows, self._run_id, self.options, self.sampler = rows, run_id, options, sampler
        envs = rows.header.schema.envs
        capacity = 0
        if options.capacity is not None:
            capacity = options.capacity // envs
            if capacity < 1:
                raise FieldError(
                    f"capacity {options.capacity}: expected at least one transition per environment ({envs})"
                )
        self._valid = ValidStarts(rows, options.rule, capacity, rank_hidden=isinstance(sampler, Epoch))
        self._assembly = Assembly(rows, self._valid, options)
        self._priorities = Priorities(self._valid, sampler) if isinstance(sampler, Prioritized) else None
        self._epochs = Epochs(self._valid, options.seed) if isinstance(sampler, Epoch) else None
        self._prefetch = prefetch
        self._ahead = Ahead(self._epochs.first() if self._epochs is not None else None)
        self._loads = -1
        self._rewinds = len(rows.rewinds)

    # --- position

    def _refresh(self) -> None:
        """Take in what has arrived since the last call."""
        self._rows.require_open()
        if self._rewinds != len(self._rows.rewinds):
            raise StateError(f"{self._rows.path}: rewound after this replay was made; make one from the checkpoint")
        self._valid.refresh()
        if self._priorities is not None:
            self._priorities.enter()

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

    def sample(
        self, batch_size: int | None = None, *, beta: float | None = None, out: Mapping[str, Any] | None = None
    ) -> Batch:
        """Draw the next batch. NotEnoughData if there is no valid start.

        `beta` replaces the sampler's for this batch; arrays of `out`, a dict by batch name, are filled and returned.
        """
        batch = self._made(self._take(batch_size, beta))
        if out is not None:
            check_out(out, batch.asdict())
            batch = Batch(fill(out, batch.asdict()))
        self._give_out()
        return batch

    def draw(self, batch_size: int | None = None, *, beta: float | None = None) -> tuple[Array, Array]:
        """Draw the next batch's ids and weights without reading its rows."""
        drawn = self._take(batch_size, beta)
        found = drawn.ids, drawn.weight
        self._give_out()
        return found

    def gather(self, index: Any, fields: Sequence[str] | None = None) -> Batch:
        """Return the transitions that start at these ids, all of them valid starts; `fields` limits what is read."""
        with lock:
            self._refresh()
            ids = self._ids(index)
            env, row = split(ids, len(self._rows.rows))
            position(~self._valid.contains(env, row), IndexRangeError, "not the id of a valid start", ids)
            place = self._assembly.places(self._valid.places(env, row))
        with self._rows.reading:
            return self._assembly.make(ids, np.ones(len(ids), np.float32), place, fields)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.sample()

    def _take(self, batch_size: int | None = None, beta: float | None = None) -> Draw:
        """Return the draw that this call is for; this thread's next one too, unless `_give_out` says it was given."""
        with lock:
            asked = self._asked(batch_size, beta)
            self._refresh()
            return self._ahead.take(get_ident(), asked, self._prefetch, self._draw)

    def _made(self, drawn: Draw) -> Batch:
        """Return the batch of a draw."""
        if drawn.loading is not None:
            drawn.loading.wait()
        with self._rows.reading:
            self._rows.require_open()
            return self._assembly.make(drawn.ids, drawn.weight, drawn.place)

    def _give_out(self) -> None:
        """Note that what this thread took has been given out."""
        del self._ahead.given[get_ident()]

    def _asked(self, batch_size: int | None, beta: float | None) -> tuple[int, float | None]:
        """Return the size of a batch and its beta, None for the sampler's."""
        if batch_size is None and beta is None and self.options.batch_size is not None:
            return self.options.batch_size, None
        given = self.options.batch_size if batch_size is None else batch_size
        count = given if given is not None and is_int(given) else 0
        if count < 1:
            raise FieldError(f"batch_size {given!r}: expected an integer >= 1, here or when the replay is made")
        if beta is not None and not (is_number(beta) and 0 <= beta < math.inf):
            raise FieldError(f"beta {beta!r}: expected a finite number >= 0")
        return int(count), None if beta is None else float(beta)

    def _draw(self, batch: int, epochs: Pass | None, count: int, beta: float | None) -> tuple[Draw, Pass | None]:
        """Draw batch number `batch`, and have its chunks loaded if those of others had to be."""
        if not len(self._valid):
            what = f"sequence of {self._valid.rule.rows} rows" if self.options.sequence_length else "transition"
            few = 0 < self._valid.capacity < self._valid.rule.rows
            why = ", and the capacity keeps fewer rows than that per environment" if few else ""
            raise NotEnoughData(f"{self._rows.path}: no {what} is complete{why}")
        weight, after = None, epochs
        if self._epochs is not None and epochs is not None:
            starts, ids, after = self._epochs.draw(epochs, count)
        elif self._priorities is not None:
            starts, ids, share = self._priorities.draw(self.options.seed, batch, count)
            weight = self._priorities.weights(share, self._beta(batch, beta))
        else:
            rank = np.empty(count, np.int64)
            ranks(self.options.seed, batch, len(self._valid), rank)
            starts, ids = self._valid.pick(rank)
        place = self._assembly.places(starts)
        weight = np.ones(count, np.float32) if weight is None else weight
        return Draw((count, beta), batch, epochs, ids, weight, place, self._bring(place)), after

    def _bring(self, place: Places) -> Loading | None:
        """Begin to load a batch that is drawn ahead, unless all that was looked for lately was in memory."""
        if not self._prefetch:
            return None
        seen, self._loads = self._loads, self._rows.loads.count
        if seen == self._loads:
            return None
        return bring(self._rows.loader, self._assembly.wanted(place, self._prefetch + 1))

    def _beta(self, batch: int, beta: float | None) -> float:
        """Return the beta of a batch."""
        return beta if beta is not None else cast(Prioritized, self.sampler).beta_at(batch)

    # --- priorities

    def update_priorities(self, index: Any, priority: Any) -> None:
        """Set the priorities of ids: one finite number >= 0 each; the last of duplicates wins.

        Ids whose rows have left the capacity are ignored and counted in `ignored_updates`.
        """
        with lock:
            priorities, ids, values = self._update(index, priority)
            priorities.update(ids, values)

    def _update(self, index: Any, priority: Any) -> tuple[Priorities, Array, Array]:
        """Return what priorities are kept in, ids, and a float64 for each."""
        if self._priorities is None:
            raise StateError("update_priorities needs sampler=archive.Prioritized(...)")
        self._refresh()
        ids = self._ids(index)
        values = priority if type(priority) is np.ndarray else as_array("priority", priority)
        if values.shape != ids.shape or values.dtype.kind not in "fiub":
            raise FieldError(f"priority: expected {len(ids)} numbers, found {values.dtype} of shape {values.shape}")
        return self._priorities, ids, values.astype(np.float64)

    def _ids(self, index: Any) -> Array:
        """Return ids as int64 (B,)."""
        ids = index if type(index) is np.ndarray else as_array("index", index)
        if ids.ndim != 1 or (ids.dtype.kind not in "iu" and len(ids)):
            raise FieldError(f"index: expected ids (B,), found {ids.dtype} of shape {ids.shape}")
        return np.ascontiguousarray(ids, np.int64)

    # --- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next batches depend on beside the rows: options, position, priorities."""
        with lock:
            self._refresh()
            batches, epochs, pending = self._ahead.not_given_out()
            state = {
                "draw_version": DRAW_VERSION,
                "run_id": self._run_id,
                "options": self.options.to_json(),
                "sampler": self.sampler.to_json(),
                "batches": batches,
                "rows": self._rows.rows.copy(),
                "rewinds": self._rewinds,
                "prefetch": self._prefetch,
                "pending": [drawn.state() for drawn in pending],
            }
            if self._priorities is not None:
                state["priorities"] = self._priorities.state()
            if epochs is not None:
                state["epochs"] = epochs.state()
            return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of this run; options stay as this replay was made, capacity and seed included."""
        with lock:
            self.__dict__ = self._loaded(state).__dict__

    def _loaded(self, state: Mapping[str, Any]) -> Replay:
        """Return another replay like this one that goes on from a state."""
        fresh = Replay(self._rows, self._run_id, self.options, self.sampler, self._prefetch)
        fresh._load(state)
        return fresh

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
        batches = state["batches"]
        if not is_int(batches) or not 0 <= batches < 1 << 62:
            raise StateError(f"{self._rows.path}: a state after {batches!r} batches")
        self._valid.refresh()
        made, epochs = sampler_from_json(state["sampler"]), self._ahead.queue[1]
        if self._priorities is not None:
            if isinstance(made, Prioritized):
                self._priorities.load(state["priorities"], made)
            self._priorities.enter()
        if self._epochs is not None and "epochs" in state:
            epochs = self._epochs.restored(state["epochs"])
        pending = tuple(Draw.from_state(drawn, self._rows, self._epochs) for drawn in state.get("pending", ()))
        same = Options.from_json(state["options"]) == self.options and made == self.sampler
        if pending and not same:
            batches, epochs, pending = pending[0].batch, pending[0].epochs, ()
        self._ahead.queue = (int(batches), epochs, pending)


def restored(
    rows: Rows,
    run_id: str,
    state: Mapping[str, Any],
    given: Mapping[str, Any],
    sampler: Sampler | None,
    prefetch: int | None,
) -> Replay:
    """Return a replay that goes on from a state; options given beside it win."""
    if not isinstance(state, Mapping):
        raise FieldTypeError(f"state: expected what state_dict() gave, found {type(state).__name__}")
    try:
        made = sampler_from_json(state["sampler"])
        options = Options.from_json(state["options"], **given)
    except ArchiveError:
        raise
    except BAD_STATE as error:
        raise StateError(f"{rows.path}: the state of a replay lacks or garbles {error}") from error
    ahead = state.get("prefetch", 0) if prefetch is None else prefetch
    replay = Replay(rows, run_id, options, sampler or made, ahead)
    replay._load(state)
    return replay
