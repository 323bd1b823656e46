"""Appending rows: arguments are checked before anything changes, then they go into the columns.

Full chunks go to the file from here; commits, and what happens when a change fails halfway, are the writer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from . import bulk
from .casting import flag, is_int
from .change import Change
from .chunks import Chunks
from .commit import Commits
from .errors import FieldTypeError, IndexRangeError, StateError
from .intake import Intake, seeds_of
from .plain import plain_step
from .record import BETWEEN, ENDED, OPEN
from .rows import Rows
from .stacks import stored_stacks
from .store import Store

Array = np.ndarray[Any, Any]


class Appender:
    """Append to `rows` and write full chunks into `store`; what a writer can do beside committing."""

    def __init__(self, rows: Rows, store: Store, commits: Commits) -> None:
        self.rows, self.store, self.commits = rows, store, commits
        self.header, self.schema = rows.header, rows.header.schema
        self.broken: BaseException | None = None
        self.uncommitted = True
        self.intake = Intake(self.schema)
        self.intake.stacks = stored_stacks(rows)
        self.everyone, self.nobody = np.arange(self.schema.envs), np.zeros(0, np.int64)
        self.plain_ids = (self.everyone << 32) - 2  # and the rows after a plain step: ids of what it completed
        self.from_info = [name for name in self.schema.extras if name.startswith("info/")]
        self.columns = list(rows.columns.items())
        self.chunks = Chunks(rows, store, commits.epoch)
        self.chunks.catch_up(self.everyone.tolist())
        self.plain = plain_step(rows)

    @property
    def change(self) -> Change:
        """Return what must surround every change. Made anew: a cycle would keep decoded chunks alive."""
        return Change(self)

    def require_usable(self) -> None:
        """Raise StateError if nothing can be appended any more."""
        raise NotImplementedError

    def commit_when_due(self) -> None:
        """Commit if it is time."""
        raise NotImplementedError

    def reset(self, observation: Any, mask: Array | None, seed: Any, columns: Mapping[str, Any]) -> None:
        """Start an episode in every environment, or in those of `mask`; what was going on is interrupted."""
        env = self.everyone if mask is None else np.flatnonzero(mask)
        start = self.checked_start(self.intake.group(self.intake.observations, observation), env)
        seeds = seeds_of(seed, self.schema.envs)
        given = self.intake.columns(columns, self.schema.envs)
        with self.change:
            self.start_episodes(env, *start, [{"seed": seeds[e], **{k: v[e] for k, v in given.items()}} for e in env])
            self.appended()
        self.commit_when_due()

    def checked_start(self, values: Mapping[str, Array], env: Array) -> tuple[Mapping[str, Array], dict[str, Array]]:
        """Return observations of all environments, and newest frames of those that start an episode, checked."""
        return values, self.intake.frames({k: v[env] for k, v in values.items()}, np.ones(len(env), np.bool_))

    def start_episodes(
        self, env: Array, values: Mapping[str, Array], frames: Mapping[str, Array], columns: list[dict[str, Any]]
    ) -> None:
        """Append first rows."""
        self.append_observations(env, frames, env)
        for e, given in zip(env.tolist(), columns, strict=True):
            self.rows.episodes.begin(e, int(self.rows.rows[e]) - 1, given)
        self.rows.states[env] = OPEN
        self.intake.remember(values, env)

    def step(
        self, values: Mapping[str, Any], observation: Any, info: Any, extras: Mapping[str, Any], resets: bool = True
    ) -> Array:
        """Complete every waiting row and append what it led to; return ids, -1 where an environment was reset.

        `resets`: in SAME_STEP mode, observations of environments that ended are those after their reset.
        """
        if self.plain is not None and self.step_plainly({**values, "observation": observation, **extras}, info):
            return self.rows.rows + self.plain_ids
        states = self.rows.states
        first = states != OPEN
        begins = bool(first.any())
        if begins:
            self.refuse_step(first)
        done = self.intake.step(values, info, extras, completes=not first.all())
        observations = self.intake.group(self.intake.observations, observation)
        ended = (done["terminated"] | done["truncated"]) & ~first
        restart = None
        if resets and self.schema.autoreset == "SameStep" and ended.any():
            restart = self.checked_start(observations, np.flatnonzero(ended))
            observations = self.intake.finals(info, ended, observations)
        frames = self.intake.frames(observations, first)
        env = np.flatnonzero(~first) if begins else self.everyone
        done = {k: v[env] for k, v in done.items()} if begins else done
        ids = np.full(self.schema.envs, -1, np.int64)
        with self.change:
            ids[env] = env << 32 | self.rows.rows[env] - 1
            self.complete(env, done)
            self.append_observations(self.everyone, frames, np.flatnonzero(first) if begins else self.nobody)
            self.end(env, done) if ended.any() else None
            for e in np.flatnonzero(first).tolist() if begins else ():
                self.rows.episodes.begin(e, int(self.rows.rows[e]) - 1)
                states[e] = OPEN
            self.intake.remember(observations, self.everyone)
            if restart is not None:
                self.start_episodes(np.flatnonzero(ended), *restart, [{}] * int(ended.sum()))
            self.appended()
        self.commit_when_due()
        return ids

    def step_plainly(self, values: dict[str, Any], info: Any) -> bool:
        """Append a step in compiled code, unless anything of it is out of the ordinary."""
        for name in self.from_info:
            if name not in values and isinstance(info, Mapping):
                values[name] = info.get(name.removeprefix("info/"))
        self.uncommitted = True  # before the first change, as the next: Ctrl-C may come between any two lines
        self.chunks.rows_left -= 1
        done = self.plain.append(values, self.intake.stacks, False) if self.plain is not None else False
        if done is None or (done and self.chunks.rows_left <= 0):
            with self.change:
                if done is None and self.plain is not None:
                    self.plain.append(values, self.intake.stacks, True)
                if self.chunks.rows_left <= 0:
                    self.chunks.write_settled(self.chunks.at_once)
        if done is not False:
            self.commit_when_due()
        return done is not False

    def add(self, values: Mapping[str, Any], observation: Any, ahead: Any, extras: Mapping[str, Any]) -> Array:
        """Append whole transitions; an episode breaks where `observation` is not the one stored last."""
        start = self.intake.group(self.intake.observations, observation)
        self.intake.step(values, None, extras)
        self.intake.check_continues(start, self.intake.group(self.intake.observations, ahead))
        broken = (self.rows.states != OPEN) | ~self.is_newest(start)
        self.intake.check_known(start, np.flatnonzero(~broken))
        if broken.any():
            env = np.flatnonzero(broken)
            checked = self.checked_start(start, env)
            with self.change:
                self.start_episodes(env, *checked, [{}] * len(env))
                self.appended()
        return self.step(values, ahead, None, extras, resets=False)

    def is_newest(self, observations: Mapping[str, Array]) -> Array:
        """Tell of which environments the last row holds exactly these bytes."""
        result = np.ones(self.schema.envs, np.bool_)
        for name, frame in self.intake.newest(observations).items():
            column = self.rows.columns[name]
            bytes_ = np.ascontiguousarray(frame).reshape(self.schema.envs, -1).view(np.uint8)
            result &= (column.memory[column.newest].reshape(bytes_.shape) == bytes_).all(axis=1)
        return result

    def end(self, env: Array, done: Mapping[str, Array]) -> None:
        """Note which episodes this step ended."""
        for at in np.flatnonzero(done["terminated"] | done["truncated"]).tolist():
            self.rows.episodes.mark(int(env[at]), {name: done[name][at] for name in ("terminated", "truncated")})
            self.rows.states[env[at]] = ENDED

    def refuse_step(self, first: Array) -> None:
        """Raise StateError unless the environments that do not wait for an action reset themselves in this step."""
        never = np.flatnonzero(self.rows.episodes.current < 0)
        if len(never):
            raise StateError(f"{self.rows.path}: step before reset of environment {int(never[0])}")
        if (self.rows.states == BETWEEN).any() or self.schema.autoreset != "NextStep":
            ended = int(np.flatnonzero(first)[0])
            raise StateError(f"{self.rows.path}: environment {ended} has ended; call reset before step")

    def complete(self, env: Array, done: Mapping[str, Array]) -> None:
        """Fill in action, reward, flags and extras of waiting rows."""
        columns = self.rows.columns
        for name, array in done.items():
            column = columns[name]
            column.values[column.newest[env]] = array
        last = columns["is_last"]
        last.values[last.newest[env]] = False
        self.rows.episodes.grow(env, done["reward"])

    def append_observations(self, env: Array, frames: Mapping[str, Array], first: Array) -> None:
        """Append a row that holds an observation only; `first` lists the environments whose episode starts with it."""
        row = self.rows.rows[env]
        begins = {r: np.flatnonzero(row % r == 0) for r in self.chunks.base}
        for name, column in self.columns:
            starts = begins[column.chunk_rows]
            column.advance(env, row, starts if len(starts) else None)
            if name in frames:
                column.values[column.newest[env]] = frames[name]
            elif name == "is_last":
                column.values[column.newest[env]] = True
            elif name == "is_first" and len(first):
                column.values[column.newest[first]] = True
        self.rows.rows[env] += 1

    def end_episode(self, truncated: bool, columns: Mapping[str, Any]) -> None:
        """End the episodes going on; `truncated` sets the flag of their last transition."""
        given = self.intake.columns(columns, self.schema.envs)
        env = np.flatnonzero(self.rows.states != ENDED)
        if not len(env):
            raise StateError(f"{self.rows.path}: no episode is going on")
        with self.change:
            steps = self.rows.episodes.columns["length"][self.rows.episodes.current[env]]
            cut = env[steps > 0] if truncated else env[:0]
            row = self.rows.rows[cut] - 1 - (self.rows.states[cut] == OPEN)
            if len(cut):
                self.rows.columns["truncated"].put(cut, row, np.ones(len(cut), np.bool_))
                self.commits.changed("truncated", cut)
            for e in env.tolist():
                values = {k: v[e] for k, v in given.items()}
                self.rows.episodes.mark(e, values | ({"truncated": True} if e in cut else {}))
            self.rows.states[env] = ENDED
            self.appended()

    def annotate(self, number: int, values: Mapping[str, Any]) -> None:
        """Set columns of an episode: hidden, or the user's own."""
        episodes = self.rows.episodes
        if not is_int(number):
            raise FieldTypeError(f"{self.rows.path}: episode {number!r}: expected an integer")
        if not 0 <= number < episodes.count:
            raise IndexRangeError(f"{self.rows.path}: episode {number} of {episodes.count}")
        given = dict(values)
        hidden = {"hidden": flag("hidden", given.pop("hidden"))} if "hidden" in given else {}
        columns = {k: v[0] for k, v in self.intake.columns(given, 1).items()}
        with self.change:
            episodes.annotate(int(number), hidden | columns)
            self.uncommitted = True

    def extend(self, values: Mapping[str, Any], env: int) -> Array:
        """Append whole rows of one environment; return their ids, -1 for rows without a transition."""
        rows = self.intake.extend(values)
        first = bulk.episode_starts(self.rows, rows, env)
        step, start, done = min(self.header.rows.values()), int(self.rows.rows[env]), 0
        with self.change:
            while done < len(first):
                stop = min(done + step - (start + done) % step, len(first))
                bulk.append(self.rows, {k: v[done:stop] for k, v in rows.items()}, first[done:stop], env)
                self.appended()
                done = stop
            self.chunks.catch_up([env])
        self.commit_when_due()
        return np.where(rows["is_last"], -1, np.int64(env) << 32 | np.arange(start, start + len(first)))

    def appended(self) -> None:
        """Note that rows have come or settled, and write the chunks that this has filled."""
        self.uncommitted = True
        self.chunks.write_settled()
