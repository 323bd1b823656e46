"""A run: one file, open for writing or for reading. Wires the other modules together and computes little itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from .batch import nest_all, texts_of
from .casting import as_array, flag, is_int
from .checkpoint import Checkpoint, every
from .errors import FieldError, FieldTypeError, IndexRangeError, StateError, UnknownFieldError
from .guard import lock
from .header import Header
from .lazy import LazyColumn
from .options import UNSET, Options
from .replay import Replay, restored
from .rows import Rows
from .samplers import Sampler, Uniform
from .schema import Schema
from .source import Source
from .stats import stats
from .writer import Writer

Array = np.ndarray[Any, Any]


class Run:
    """Rows of one training run. Made by `archive.create` and `archive.open`; also a context manager.

    A run that was opened with "r" refuses everything that writes. Calls from several threads take turns.
    """

    def __init__(
        self, path: Path, header: Header, file: Writer | Source, texts: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self._header, self._file = path, header, file
        self._rows: Rows = file.rows
        self._texts = dict(file.texts if isinstance(file, Source) else texts or {})

    # --- write

    def _writer(self) -> Writer:
        if isinstance(self._file, Writer):
            self._file.require_usable()
            return self._file
        raise StateError(f"{self.path}: open for reading; open it with mode 'a' to write")

    def reset(self, observation: Any, info: Any = None, *, mask: Any = None, seed: Any = None, **columns: Any) -> None:
        """Start an episode: run.reset(*env.reset()). An episode going on is interrupted.

        `mask` (N,) bool limits it to some environments; `seed` (int, or one per environment) and the user's episode
        columns, one value or one per environment, are kept with the episode.
        """
        with lock:
            writer = self._writer()
            if mask is not None:
                mask = as_array("mask", mask)
                if mask.shape != (self._header.schema.envs,) or mask.dtype != np.bool_:
                    raise FieldError(
                        f"mask: expected bool ({self._header.schema.envs},), found {mask.dtype} {mask.shape}"
                    )
            writer.reset(observation, mask, seed, columns)

    def step(
        self,
        action: Any,
        observation: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        info: Any = None,
        **extras: Any,
    ) -> Any:
        """Append a step: run.step(action, *env.step(action)); return the ids (N,), an int for one environment.

        -1 where nothing was completed: an environment that ended in the step before and resets itself in this one.
        Extra fields of the schema come by keyword, `info/...` fields from `info`.
        """
        with lock:
            values = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            ids = self._writer().step(values, observation, info, extras)
            return ids if self._header.schema.num_envs is not None else int(ids[0])

    def extend(self, rows: Mapping[str, Any], env: int = 0) -> Array:
        """Append whole rows (L, *field) of one environment and return their ids (L,), -1 for final observations.

        Row t holds an observation and what followed it; a row with `is_last` holds the observation an episode ended
        on. Missing flags are False; a row starts an episode where the one before it ended one, or by `is_first`.
        """
        with lock:
            writer = self._writer()
            if not is_int(env) or not 0 <= env < self._header.schema.envs:
                raise IndexRangeError(f"environment {env!r}: the run has {self._header.schema.envs}")
            if not isinstance(rows, Mapping):
                raise FieldTypeError(f"rows: expected a dict by field name, found {type(rows).__name__}")
            return writer.extend(rows, int(env))

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        truncated: Any,
        **extras: Any,
    ) -> Any:
        """Append whole transitions, as other replay memories take them; return the ids as `step` does.

        Where `observation` differs, byte by byte, from the next observation of the transition before, a new episode
        starts and the one before is interrupted.
        """
        with lock:
            values = {"action": action, "reward": reward, "terminated": terminated, "truncated": truncated}
            ids = self._writer().add(values, observation, next_observation, extras)
            return ids if self._header.schema.num_envs is not None else int(ids[0])

    def end_episode(self, truncated: bool = True, **columns: Any) -> None:
        """End the episodes going on in all environments, by default as truncated in their last step."""
        with lock:
            writer = self._writer()
            writer.end_episode(flag("truncated", truncated), columns)

    def annotate(self, episode: int, **columns: Any) -> None:
        """Set `hidden` or the user's columns of an episode. A hidden episode is never drawn but keeps its place."""
        with lock:
            self._writer().annotate(episode, columns)

    def commit(self, sync: bool = False) -> None:
        """Make all that was appended survive a kill of the process; with `sync` a power cut as well."""
        with lock:
            self._writer().commit(sync)

    def refresh(self) -> None:
        """See what a writer in another process has committed meanwhile; does nothing on a run open for writing."""
        if isinstance(self._file, Source):
            with lock:
                self._file.refresh()
                self._texts = self._file.texts

    def close(self) -> None:
        """Commit and close; a run whose writes failed is left as the last commit."""
        self._rows.loader.close(wait=True)
        with lock:
            self._file.close()

    def __enter__(self) -> Run:
        self._rows.require_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as path and run id; what comes back is open for reading, and sees what was committed by then."""
        from .opening import reopen

        return reopen, (str(self.path), self._header.run_id, self._rows.memory)

    # --- resume

    def checkpoint(self, *, keep: int = 2, sync: bool = False, **values: Any) -> None:
        """Commit and keep the newest `keep` sets of `values`: run.checkpoint(replay=replay.state_dict(), step=n).

        Values: numbers, text, bytes, arrays, numpy generators, lists, tuples and nested dicts with str keys.
        """
        with lock:
            self._writer().checkpoint(values, keep, sync)

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, None before the first."""
        return next(iter(self.checkpoints()), None)

    def rewind(self, checkpoint: Checkpoint) -> None:
        """Give up every row after a checkpoint: they stay in the file but are never drawn again.

        Episodes going on at the checkpoint end there, interrupted; reset comes next. Replays made before refuse to go
        on: make one with run.replay(state=checkpoint["replay"]).
        """
        with lock:
            writer = self._writer()
            if not isinstance(checkpoint, Checkpoint):
                raise FieldTypeError(f"rewind goes to a checkpoint of this run, found {type(checkpoint).__name__}")
            writer.rewind(checkpoint.id, checkpoint.position)

    def replay(
        self,
        *,
        batch_size: int | None = UNSET,
        capacity: int | None = UNSET,
        sampler: Sampler | None = None,
        gamma: float = UNSET,
        n_step: int = UNSET,
        stack: int | None = UNSET,
        stack_axis: int = UNSET,
        padding: str | None = UNSET,
        sequence_length: int | None = UNSET,
        burn_in: int = UNSET,
        stride: int = UNSET,
        within_episode: bool = UNSET,
        pad: str | None = UNSET,
        time_major: bool = UNSET,
        offsets: Mapping[str, Any] = UNSET,
        previous: Sequence[str] = UNSET,
        extras: Sequence[str] = UNSET,
        cast: Mapping[str, Any] = UNSET,
        reward_scale: float = UNSET,
        reward_shift: float = UNSET,
        reward_clip: float | tuple[float, float] | None = UNSET,
        missing_final: str = UNSET,
        overlap: bool = UNSET,
        seed: int = UNSET,
        prefetch: int | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Replay:
        """Make a view for sampling.

        capacity: the newest transitions of all environments together (None: all). n_step, gamma (0.99): returns over
        n steps. stack: frames per observation (None: as the field arrives, 0: no axis) at axis `stack_axis`, padding
        "zero" or "repeat". sampler: Uniform(), Prioritized(...) or Epoch().

        sequence_length (+ burn_in): rows one after the other instead of transitions, starts on a grid of `stride`
        within each episode, `within_episode=False` to run on through terminated and truncated ends, pad="left" or
        "right" to make every step a start, time_major for (T, B, ...). offsets: any field at any offsets from the
        start. previous: fields of the row before as prev_<field>. extras: "timestep", "episode", "remaining",
        "return_to_go". cast: dtypes by field. Rewards are scaled, shifted and clipped in that order, per step.
        missing_final="shorten": end n-step returns before a final observation that is missing (d3rlpy's rule).

        overlap=True: observation and next_observation are views of one array, read once, which is faster; for
        transitions of one step. Where an episode terminated without a final observation, only the last frame of
        next_observation is zeros then.

        prefetch: so many batches are drawn ahead, and what they need is loaded in the background; by default 2 on a
        run open for reading, 0 otherwise. Batches do not depend on it, but priorities set meanwhile come later.

        With `state` the replay goes on where `state_dict` was taken; options given beside it win.
        """
        names = Options.__dataclass_fields__
        given = {name: value for name, value in locals().items() if name in names and value is not UNSET}
        with lock:
            if state is not None:
                return restored(self._rows, self._header.run_id, state, given, sampler, prefetch)
            ahead = prefetch if prefetch is not None else 2 if isinstance(self._file, Source) else 0
            return Replay(self._rows, self._header.run_id, Options(**given), sampler or Uniform(), ahead)

    # --- look

    @property
    def schema(self) -> Schema:
        """What the run stores."""
        return self._header.schema

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The user's metadata, as given when the run was created."""
        return MappingProxyType(self._texts.get("metadata", {}))

    @property
    def num_envs(self) -> int:
        """Number of environments."""
        return self._header.schema.envs

    @property
    def lengths(self) -> Array:
        """Rows of each environment (N,), the one waiting for its action and those given up included."""
        return self._rows.rows.copy()

    @property
    def num_rows(self) -> int:
        """Rows of all environments."""
        return int(self._rows.rows.sum())

    @property
    def num_steps(self) -> int:
        """Transitions of all environments, without those given up."""
        return self._rows.steps

    @property
    def num_episodes(self) -> int:
        """Episodes, those going on included."""
        return self._rows.episodes.count

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, field: str) -> LazyColumn:
        """Return a field as a lazy array: run["observation"][100:200]. UnknownFieldError without one."""
        if not isinstance(field, str) or field not in self._rows.columns:
            raise UnknownFieldError(f"{self.path}: no field {field!r}; there are {', '.join(self._rows.columns)}")
        return LazyColumn(self._rows.columns[field], self._rows, self._header.schema.num_envs is not None)

    @property
    def episodes(self) -> Mapping[str, Array]:
        """Episode columns by name: env, start, length, return, terminated, truncated, final, seed, hidden."""
        with lock:
            table = self._rows.episodes
            return {name: texts_of(table[name]) for name in table.columns}

    def episode(self, number: int) -> dict[str, Any]:
        """Return one episode: L + 1 observations (L where the final one is unknown), L of everything else."""
        with lock:
            self._rows.require_open()
            return nest_all(self._rows.episode(number), self._header.schema.tuples)

    def checkpoints(self) -> list[Checkpoint]:
        """Return every checkpoint that is whole, newest first."""
        with lock:
            if isinstance(self._file, Source):
                return self._file.checkpoints()
            writer = self._writer()
            return every(writer.store.file.read_at, self.path.stat().st_size, writer.commits.slots)

    def stats(self, fields: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
        """Return mean, std, min, max (of one row's shape) and count of numeric fields, in bounded memory.

        Without `fields`: observations, actions, reward. Reads every row of them once.
        """
        with lock:
            self._rows.require_open()
            return stats(self._rows, (fields,) if isinstance(fields, str) else fields)

    def __repr__(self) -> str:
        mode = "writing" if isinstance(self._file, Writer) else "reading"
        return f"<Run {self.path} open for {mode}: {self.num_steps} steps, {self.num_episodes} episodes>"
