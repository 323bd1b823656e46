"""Machines that do everything a user may do to a run, in any order, and compare it with the model after each step.

Chunks are made tiny, so that a few rows fill them, and the memory small, so that chunks must be read again. The same
goes for the chunks of the episode table, and for the blocks in which a replay takes in what has arrived.
"""

from __future__ import annotations

import contextlib
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import ENDED, OPEN, SHAPE, Episode, Options, ReplayModel, Row, RunModel, frames

import archive
from archive import episodes, layout, priorities, store

FLAGS = st.sampled_from([*[""] * 12, "terminated", "truncated", "both"])
ROWS = st.sampled_from([*[""] * 10, "terminated", "truncated", "both", "last", "first"])
PRIORITIES = st.sampled_from([0.0, 0.25, 1.0, 3.0, 7.5])


def numbered(number: int) -> dict[str, Any]:
    """Return what else there is in the row whose frame has this number."""
    return {"action": number % 7, "reward": (number % 17 - 8) / 4, "extra": number / 2}


def field_values(model: RunModel, env: int) -> dict[str, tuple[list[int], np.ndarray[Any, Any]]]:
    """Return for each field which rows of an environment are known, and their values."""
    live = model.live(env)
    kept = [row for row in live if not row.reverted]
    known: dict[str, Callable[[Row], Any]] = {
        "action": lambda row: row.action,
        "reward": lambda row: row.reward,
        "terminated": lambda row: row.terminated,
        "truncated": lambda row: row.truncated,
        "is_first": lambda row: row.first,
        "is_last": lambda row: not row.complete,
        "extra": lambda row: row.extra,
    }
    values = {
        name: ([row.number for row in kept], np.array([value(row) for row in kept])) for name, value in known.items()
    }
    return {"observation": ([row.number for row in live], frames([row.observation for row in live])), **values}


def check_table(run: archive.Run, model: RunModel) -> None:
    """Compare lengths, counts and the episode table of a run with the model."""
    assert run.lengths.tolist() == model.lengths
    assert (run.num_rows, run.num_steps) == (sum(model.lengths), model.num_steps)
    assert run.num_episodes == len(model.episodes)
    table = run.episodes
    for name, values in model.table().items():
        assert table[name].tolist() == values, name


def check_columns(run: archive.Run, model: RunModel) -> None:
    """Compare every field of a run with the model."""
    columns = {name: run[name][:] for name in run.schema.steps}
    for env in range(model.envs):
        for name, (numbers, values) in field_values(model, env).items():
            column = columns[name][:, env] if run.schema.num_envs is not None else columns[name]
            if numbers:
                np.testing.assert_array_equal(column[numbers], values, f"{name} of environment {env}")
            assert not column[model.lengths[env] :].any(), f"{name} of environment {env} behind its end"


def check_episode(found: dict[str, Any], episode: Episode) -> None:
    """Compare `run.episode(k)` with the model."""
    np.testing.assert_array_equal(found["observation"], frames([row.observation for row in episode.rows]))
    rows = [row for row in episode.rows if row.complete]
    for name in ("action", "reward", "terminated", "truncated", "extra"):
        np.testing.assert_array_equal(found[name], [getattr(row, name) for row in rows], name)


class Machine(RuleBasedStateMachine):
    """One environment. It must be reset after each end."""

    envs, axis, resets_itself = 1, False, False

    # --- making things

    @initialize(
        watched=st.sampled_from([False, False, True]),
        chunk_rows=st.sampled_from([1, 2, 4, 8]),
        chunk_episodes=st.sampled_from([1, 4]),
        stacked=st.sampled_from([None, None, 1, 3]),
        arrives=st.sampled_from(["zero", "repeat"]),
        stack=st.sampled_from([None, 0, 1, 2, 4]),
        n_step=st.sampled_from([1, 2, 3, 5]),
        gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
        padding=st.sampled_from([None, "zero", "repeat"]),
        capacity=st.sampled_from([None, 3, 7, 20, 50]),
        seed=st.sampled_from([0, 1, (1 << 64) - 1]),
        sampler=st.builds(
            archive.Prioritized,
            alpha=st.sampled_from([0.0, 0.6, 1.0]),
            beta=st.sampled_from([0.0, 0.4, 1.0]),
            epsilon=st.sampled_from([0.0, 1e-6, 0.5]),
            stratified=st.booleans(),
        ),
    )
    def create(
        self,
        watched: bool,
        chunk_rows: int,
        chunk_episodes: int,
        stacked: int | None,
        arrives: str,
        sampler: archive.Prioritized,
        **options: Any,
    ) -> None:
        """Create the run, a uniform and a prioritized replay, and their models.

        Only a `watched` run is read after every step: reading brings chunks into memory, which may hide what is wrong.
        """
        self.watched = watched
        self.folder = Path(tempfile.mkdtemp())
        self.path, self.reader = self.folder / "run.h5", None
        self.stacked, self.arrives = stacked, arrives
        steps = {
            "observation": archive.Field("uint8", SHAPE, stacked=stacked, padding=arrives if stacked else None),
            "action": archive.Field("int16"),
            "extra": archive.Field("float32"),
        }
        several = {"num_envs": self.envs, "autoreset": "NextStep" if self.resets_itself else None} if self.axis else {}
        schema = archive.Schema(steps, **several)
        self.patches = contextlib.ExitStack()
        sizes = {(layout, "MAX_ROWS"): chunk_rows, (priorities, "BLOCK"): 5}
        sizes |= {(episodes, "CHUNK"): chunk_episodes, (store, "EPISODE_CHUNK"): chunk_episodes}
        for (module, name), value in sizes.items():
            self.patches.enter_context(mock.patch.object(module, name, value))
        self.memory = self.least_memory(schema) + 40 * self.envs * max(options["capacity"] or 5000, 20)  # for trees
        self.run = archive.create(self.path, schema, commit_every=None, memory=self.memory)
        self.model, self.number = RunModel(self.envs, self.resets_itself), 0
        self.given_up: list[int] = []
        self.saved: tuple[int, RunModel, list[ReplayModel]] | None = None  # the newest checkpoint
        self.make_replays(sampler, options)
        self.note_commit()

    def least_memory(self, schema: archive.Schema) -> int:
        """Return the bytes without which a run is refused."""
        with pytest.raises(archive.MemoryBudgetError) as refusal:
            archive.create(self.path, schema, memory=0)
        (least,) = re.findall(r"at least (\d+)", str(refusal.value))
        return int(least)

    def make_replays(self, sampler: archive.Prioritized, options: dict[str, Any]) -> None:
        if options["capacity"] is not None:
            options["capacity"] *= self.envs
        default = self.arrives if self.stacked else "zero"
        stack = options["stack"] if options["stack"] is not None else self.stacked or 0
        chosen = Options(**{**options, "stack": stack, "padding": options["padding"] or default})
        by_priority = {name: getattr(sampler, name) for name in ("alpha", "beta", "epsilon", "stratified")}
        self.replays = [self.run.replay(**options), self.run.replay(**options, sampler=sampler)]
        self.models = [
            ReplayModel(self.model, chosen),
            ReplayModel(self.model, Options(**{**chosen.__dict__, **by_priority})),
        ]

    def note_commit(self) -> None:
        """Remember what a kill from now on would leave."""
        self.committed = self.model.copy()
        self.states = [replay.state_dict() for replay in self.replays]
        self.kept = [model.saved() for model in self.models]

    def resume(self, states: list[Any], kept: list[ReplayModel], **changed: Any) -> None:
        """Make the replays anew from states."""
        self.replays = [self.run.replay(state=state, **changed) for state in states]
        self.models = [model.resumed(self.model, **changed) for model in kept]

    def teardown(self) -> None:
        if hasattr(self, "run"):
            self.run.close()
            if self.reader is not None:
                self.reader.close()
            self.patches.close()
            shutil.rmtree(self.folder)

    # --- rows

    def next_number(self) -> int:
        """Return a number that no frame has yet."""
        self.number += 1
        return self.number

    def newest(self, envs: range | list[int]) -> Any:
        """Return the newest stacks of these environments, by ids; zeros for the others."""
        size = self.stacked or 1
        stacks = np.zeros((self.envs, size), np.int64)
        for env in envs:
            episode = self.model.of(env)[-1]
            stacks[env] = episode.stack(len(episode.rows) - 1, size, self.arrives)
        return stacks

    def pixels(self, stacks: Any) -> Any:
        """Return an observation as the user would hand it in: stacked where it arrives so, for one environment or N."""
        found = frames(stacks) if self.stacked else frames(stacks[:, 0])
        return found if self.axis else found[0]

    @rule(seed=st.sampled_from([None, 7]), chosen=st.none() | st.sets(st.integers(0, 2)))
    def reset(self, seed: int | None, chosen: set[int] | None) -> None:
        """Reset all environments, or with a mask some."""
        mask = None if chosen is None else np.isin(np.arange(self.envs), list(chosen))
        envs = list(range(self.envs)) if mask is None else np.flatnonzero(mask).tolist()
        for env in envs:
            self.model.reset(self.next_number(), env, -1 if seed is None else seed + env)
        self.run.reset(self.pixels(self.newest(envs)), {}, mask=mask, seed=seed)

    @rule(
        steps=st.lists(st.tuples(FLAGS, FLAGS, FLAGS), min_size=1, max_size=6),
        helped=st.sampled_from([True, True, False]),
        wrong=st.sampled_from([False, False, True]),
    )
    def step(self, steps: list[tuple[str, str, str]], helped: bool, wrong: bool) -> None:
        """Take steps until one is not allowed; that one must be refused, and so must a `wrong` stack."""
        if helped and not self.model.can_step():
            self.reset(None, {env for env in range(self.envs) if self.model.state(env) != OPEN})
        if wrong and self.stacked == 3 and self.model.can_step():
            with pytest.raises(archive.FieldError, match="stack"):
                self.take_step(np.tile([1 << 40, 1 << 41, 1 << 42], (self.envs, 1)), [0] * self.envs, steps[0])
        for kinds in steps:
            if not self.model.can_step():
                with pytest.raises(archive.StateError):
                    self.take_step(np.zeros((self.envs, self.stacked or 1), np.int64), [0] * self.envs, kinds)
                return
            numbers = [self.next_number() for _ in range(self.envs)]
            ids = []
            for env, number in enumerate(numbers):
                flags = {name: kinds[env] in (name, "both") for name in ("terminated", "truncated")}
                ids.append(self.model.step(number, env, **numbered(number), **flags))
            found = self.take_step(self.newest(range(self.envs)), numbers, kinds)
            assert np.atleast_1d(found).tolist() == ids

    def take_step(self, stacks: Any, numbers: list[int], kinds: tuple[str, str, str]) -> Any:
        """Hand a step to the run: stacks of frames by id, and what follows from the numbers."""
        rows = [numbered(number) for number in numbers]
        values = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        for name in ("terminated", "truncated"):
            values[name] = np.array([kinds[env] in (name, "both") for env in range(self.envs)])
        if not self.axis:
            values = {name: value[0] for name, value in values.items()}
        action, extra = values.pop("action"), values.pop("extra")
        return self.run.step(action, self.pixels(stacks), *values.values(), {}, extra=extra)

    @rule(truncated=st.booleans())
    def end_episode(self, truncated: bool) -> None:
        if all(self.model.state(env) == ENDED for env in range(self.envs)):
            with pytest.raises(archive.StateError):
                self.run.end_episode(truncated)
            return
        self.model.end_episode(truncated)
        self.run.end_episode(truncated)

    @rule(kinds=st.lists(ROWS, min_size=1, max_size=30), env=st.integers(0, 2))
    def extend(self, kinds: list[str], env: int) -> None:
        """Append whole rows; what would contradict the rows before is made an ordinary row."""
        env %= self.envs
        rows: list[dict[str, Any]] = []
        mine = self.model.of(env)
        waiting = self.model.state(env) == OPEN
        closed = not mine or mine[-1].has_final or self.model.lengths[env] != mine[-1].rows[-1].number + 1
        for kind in kinds:
            number = self.next_number()
            row = {"observation": number, **numbered(number)}
            row |= {name: kind in (name, "both") for name in ("terminated", "truncated")}
            row["is_last"] = kind == "last" and not closed
            row["is_first"] = kind == "first" or (waiting and not rows)
            rows.append(row)
            closed = row["is_last"]
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        found = self.run.extend({**columns, "observation": frames(columns["observation"])}, env)
        assert found.tolist() == self.model.extend(rows, env)

    # --- what survives

    @rule(sync=st.sampled_from([False, False, False, True]))
    def commit(self, sync: bool) -> None:
        self.run.commit(sync=sync)
        self.note_commit()

    @rule(keep=st.integers(1, 3))
    def checkpoint(self, keep: int) -> None:
        states = [replay.state_dict() for replay in self.replays]
        self.run.checkpoint(keep=keep, number=self.number, replays=states)
        self.saved = self.number, self.model.copy(), [model.saved() for model in self.models]
        self.note_commit()

    @rule(grow=st.sampled_from([None, None, 1, 2, 5]), look=st.booleans())
    def close_and_reopen(self, grow: int | None, look: bool) -> None:
        """Close and open again; replays go on from their states, perhaps with another capacity."""
        self.note_commit()
        self.run.close()
        if look:
            with archive.open(self.path, memory=self.memory) as run:
                check_table(run, self.model)
                check_columns(run, self.model)
        self.reopen(grow)

    @rule(grow=st.sampled_from([None, None, 2]))
    def kill_and_reopen(self, grow: int | None) -> None:
        """Drop the file as a killed process would; what came after the last commit is gone."""
        self.run._file.abandon()
        self.model = self.committed.copy()
        self.reopen(grow)

    def reopen(self, grow: int | None) -> None:
        self.run = archive.open(self.path, "a", commit_every=None, memory=self.memory)
        limited = self.models[0].options.capacity is not None
        self.resume(self.states, self.kept, **({"capacity": 3 * grow * self.envs} if grow and limited else {}))
        self.note_commit()

    @precondition(lambda self: self.saved is not None)
    @rule()
    def resume_from_checkpoint(self) -> None:
        """Go back to the replays of the newest checkpoint; rows appended since are new to them."""
        number, _, kept = self.saved
        last = self.run.last_checkpoint
        assert last["number"] == number
        self.resume(last["replays"], kept)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def rewind(self) -> None:
        """Give up the rows after the newest checkpoint."""
        before = {n for env in range(self.envs) for n in self.ids(env)}
        _, position, kept = self.saved
        last, old = self.run.last_checkpoint, self.replays[0]
        self.run.rewind(last)
        with pytest.raises(archive.StateError):
            old.sample(1)
        self.model.rewind(position)
        self.given_up += sorted(before.difference(*(self.ids(env) for env in range(self.envs))))
        self.resume(last["replays"], kept)
        self.note_commit()

    @precondition(lambda self: self.saved is not None)
    @rule(closed=st.booleans())
    def fork(self, closed: bool) -> None:
        """Go on with a fork from the newest checkpoint: everything after it has never been."""
        _, position, kept = self.saved
        if closed:
            self.run.close()
        old, self.path = self.path, Path(tempfile.mkdtemp(dir=self.folder)) / "run.h5"
        archive.fork(old, self.path, memory=self.memory)
        self.run.close()
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        self.model = position.copy()
        live = {env << 32 | row.number for env in range(self.envs) for row in self.model.live(env)}
        self.given_up = [n for n in self.given_up if n & 0xFFFFFFFF < self.model.lengths[n >> 32] and n not in live]
        self.run = archive.open(self.path, "a", commit_every=None, memory=self.memory)
        self.resume(self.run.last_checkpoint["replays"], kept)
        self.note_commit()

    # --- reading beside the writer

    @rule(keep=st.booleans())
    def read(self, keep: bool) -> None:
        """Open the file beside the writer, or look again: a reader sees what was committed."""
        if self.reader is None:
            self.reader = archive.open(self.path, memory=self.memory)
        self.reader.refresh()
        check_table(self.reader, self.committed)
        check_columns(self.reader, self.committed)
        last = self.reader.last_checkpoint
        assert (last["number"] if last else None) == (self.saved[0] if self.saved else None)
        if not keep:
            self.reader.close()
            self.reader = None

    # --- sampling

    def ids(self, env: int) -> list[int]:
        """Ids of an environment's transitions."""
        return [env << 32 | row.number for row in self.model.live(env) if row.complete]

    @rule(which=st.integers(0, 1), count=st.integers(1, 9), beta=st.sampled_from([None, 0.7]), rows=st.booleans())
    def draw(self, which: int, count: int, beta: float | None, rows: bool) -> None:
        """Draw a batch, with its rows or without."""
        replay, model = self.replays[which], self.models[which]
        drawable = model.starts() if which == 0 else [1 for *_, leaf in model.leaves() if leaf > 0]
        if not drawable:
            with pytest.raises(archive.NotEnoughData):
                replay.sample(count)
            return
        if not rows:
            model.check_draw(*replay.draw(count, beta=beta), beta)
            return
        batch = replay.sample(count, beta=beta)
        model.check_draw(batch.index, batch.weight, beta)
        model.check_batch(batch)

    @rule(places=st.lists(st.tuples(st.integers(0, 10**6), PRIORITIES), min_size=1, max_size=8))
    def update_priorities(self, places: list[tuple[int, float]]) -> None:
        """Set priorities of any transitions: valid or not, within the capacity or not, given up or not."""
        known = [n for env in range(self.envs) for n in self.ids(env)] + self.given_up
        if known:
            index = [known[place % len(known)] for place, _ in places]
            priority = [value for _, value in places]
            self.replays[1].update_priorities(np.array(index), np.array(priority))
            self.models[1].update(index, priority)
            assert self.replays[1].ignored_updates == self.models[1].ignored

    @rule(which=st.integers(0, 1))
    def gather(self, which: int) -> None:
        """Read every valid start, those that left the capacity too, and every episode; no other id can be gathered."""
        replay, model = self.replays[which], self.models[which]
        whole = replace(model, options=replace(model.options, capacity=None))
        starts = whole.starts()
        batch = replay.gather(np.array(starts, np.int64))
        assert batch.index.tolist() == starts
        model.check_batch(batch)
        for env in range(self.envs):
            for number in {env << 32 | row for row in range(self.model.lengths[env] + 1)} - set(starts):
                with pytest.raises(archive.IndexRangeError):
                    replay.gather([number])
        for k, episode in enumerate(self.model.episodes):
            check_episode(self.run.episode(k), episode)

    # --- after every step

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "run"):
            check_table(self.run, self.model)
            if self.watched:
                check_columns(self.run, self.model)
            for replay, model in zip(self.replays, self.models, strict=True):
                assert len(replay) == len(model.starts())


class VectorMachine(Machine):
    """Three environments that reset themselves in the step after their end."""

    envs, axis, resets_itself = 3, True, True


class ResetMachine(Machine):
    """Two environments that must be reset after each end."""

    envs, axis, resets_itself = 2, True, False


class LoneMachine(Machine):
    """A vector environment of one."""

    envs, axis, resets_itself = 1, True, True


# --- random play: hypothesis tries variants of few scripts, which it can shorten well; this tries many different ones

Call = tuple[str, dict[str, Any]]
WEIGHTS = {
    "step": 10,
    "extend": 3,
    "reset": 3,
    "end_episode": 1,
    "commit": 3,
    "checkpoint": 2,
    "close_and_reopen": 3,
    "kill_and_reopen": 2,
    "resume_from_checkpoint": 1,
    "rewind": 1,
    "fork": 1,
    "read": 2,
    "draw": 3,
    "update_priorities": 2,
    "gather": 1,
}


def random_script(seed: int, length: int) -> list[Call]:
    """Return calls of a machine's rules with random arguments, the creation first."""
    rng = random.Random(seed)

    def one_of(*values: Any) -> Any:
        return rng.choice(values)

    def kinds(count: int, *rare: str) -> list[str]:
        return [rng.choice(rare) if rng.random() < 0.12 else "" for _ in range(count)]

    def arguments(name: str) -> dict[str, Any]:
        ends = ("terminated", "truncated", "both")
        made: dict[str, Callable[[], dict[str, Any]]] = {
            "step": lambda: {
                "steps": [tuple(kinds(3, *ends)) for _ in range(rng.randint(1, 5))],
                "helped": rng.random() < 0.9,
                "wrong": rng.random() < 0.2,
            },
            "extend": lambda: {
                "kinds": kinds(rng.randint(1, 12), *ends, "last", "first"),
                "env": rng.randrange(3),
            },
            "reset": lambda: {"seed": one_of(None, 7), "chosen": one_of(None, {0}, {1, 2}, {0, 2}, {0, 1})},
            "end_episode": lambda: {"truncated": one_of(True, False)},
            "commit": lambda: {"sync": rng.random() < 0.2},
            "checkpoint": lambda: {"keep": rng.randint(1, 3)},
            "close_and_reopen": lambda: {"grow": one_of(None, None, 1, 2, 5), "look": one_of(True, False)},
            "kill_and_reopen": lambda: {"grow": one_of(None, None, 2)},
            "fork": lambda: {"closed": one_of(True, False)},
            "read": lambda: {"keep": one_of(True, False)},
            "draw": lambda: {
                "which": rng.randrange(2),
                "count": rng.randint(1, 9),
                "beta": one_of(None, 0.7),
                "rows": one_of(True, False),
            },
            "update_priorities": lambda: {
                "places": [(rng.randrange(10**6), one_of(0.0, 0.25, 1.0, 3.0, 7.5)) for _ in range(rng.randint(1, 8))]
            },
            "gather": lambda: {"which": rng.randrange(2)},
        }
        return made.get(name, dict)()

    start = {
        "watched": rng.random() < 0.25,
        "chunk_rows": one_of(1, 2, 4, 8),
        "chunk_episodes": one_of(1, 2, 4),
        "stacked": one_of(None, 1, 3, 3),
        "arrives": one_of("zero", "repeat"),
        "stack": one_of(None, 0, 1, 2, 4),
        "n_step": one_of(1, 2, 3, 5),
        "gamma": one_of(0.5, 0.99, 1.0),
        "padding": one_of(None, "zero", "repeat"),
        "capacity": one_of(None, 3, 7, 20, 50),
        "seed": one_of(0, 1, (1 << 64) - 1),
        "sampler": archive.Prioritized(
            one_of(0.0, 0.6, 1.0), one_of(0.0, 0.4), one_of(0.0, 1e-6, 0.5), one_of(True, False)
        ),
    }
    names = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=length)
    return [("create", start), *((name, arguments(name)) for name in names)]


def play(kind: type[Machine], script: list[Call]) -> BaseException | None:
    """Run a script and return what went wrong."""
    machine = kind()
    try:
        for name, arguments in script:
            if name not in ("rewind", "resume_from_checkpoint", "fork") or machine.saved is not None:
                getattr(machine, name)(**arguments)
                machine.agrees()
    except (Exception, pytest.fail.Exception) as error:
        return error
    finally:
        with contextlib.suppress(Exception):
            machine.teardown()
    return None


def shortened(kind: type[Machine], script: list[Call], error: BaseException) -> list[Call]:
    """Leave out of a script that fails all calls without which it fails in the same way."""
    for k in reversed(range(1, len(script))):
        shorter = script[:k] + script[k + 1 :]
        if type(play(kind, shorter)) is type(error):
            script = shorter
    return script


def random_play(kind: type[Machine], seeds: range, length: int) -> None:
    """Play random scripts; of one that fails the calls that matter are printed."""
    for seed in seeds:
        script = random_script(seed, length)
        error = play(kind, script)
        if error is not None:
            for name, arguments in shortened(kind, script, error):
                values = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
                print(f"machine.{name}({values})")
            raise AssertionError(f"random script {seed} fails; its essence is printed") from error


@pytest.mark.parametrize("machine", [Machine, VectorMachine])
def test_everything_agrees_with_the_model(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings(settings.get_profile("quick"), max_examples=30))


@pytest.mark.parametrize(
    ("machine", "count"), [(Machine, 30), (VectorMachine, 30), (ResetMachine, 10), (LoneMachine, 10)]
)
def test_random_play_agrees_with_the_model(machine: type[Machine], count: int) -> None:
    random_play(machine, range(count), 60)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Machine, VectorMachine])
def test_everything_agrees_with_the_model_for_long(machine: type[Machine]) -> None:
    run_state_machine_as_test(machine, settings=settings.get_profile("thorough"))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Machine, VectorMachine, ResetMachine, LoneMachine])
def test_random_play_agrees_with_the_model_for_long(machine: type[Machine]) -> None:
    random_play(machine, range(1000, 3000), 100)
