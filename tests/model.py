"""The oracle: what a run and its replays must hold, in plain Python, written from the design and not from the code.

Everything is counted anew from the rows whenever it is asked for; nothing is fast. A frame is a number, its id,
which `frame` paints into pixels; 0 stands for the zero frame.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SHAPE = (4, 4)


def frame(number: int) -> Array:
    """Return a frame whose pixels are its id, twice."""
    return np.frombuffer(np.array([number, number], "<i8").tobytes(), np.uint8).reshape(SHAPE).copy()


def frames(numbers: Sequence[Any]) -> Array:
    """Return frames by id, nested as the ids are."""
    ids = np.asarray(numbers, "<i8")
    return np.stack([ids, ids], -1).view(np.uint8).reshape(*ids.shape, *SHAPE)


# --- rows


@dataclass
class Row:
    """An observation and, once `complete`, what followed it.

    `reverted`: after a rewind this row is the final observation of an interrupted episode, or its last transition,
    whatever had been written over it meanwhile; only its observation (and reward) is still what the file says.
    """

    number: int
    observation: int
    first: bool = False
    complete: bool = False
    action: int = 0
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    extra: float = 0.0
    reverted: bool = False


@dataclass
class Episode:
    """The rows of one episode of one environment, in order; the last one may hold an observation only."""

    env: int
    rows: list[Row]
    seed: int = -1
    ended: bool = False

    @property
    def length(self) -> int:
        """Transitions."""
        return sum(row.complete for row in self.rows)

    @property
    def has_final(self) -> bool:
        """Whether the observation after the last transition is known."""
        return not self.rows[-1].complete

    @property
    def last(self) -> Row | None:
        """The row of the last transition."""
        return self.rows[self.length - 1] if self.length else None

    @property
    def terminated(self) -> bool:
        return self.last is not None and self.last.terminated

    @property
    def truncated(self) -> bool:
        return self.last is not None and self.last.truncated

    @property
    def total_reward(self) -> float:
        return sum(float(row.reward) for row in self.rows if row.complete)

    def stack(self, place: int, size: int, padding: str | None) -> list[int]:
        """The newest frames up to a place in the episode; before its start zeros, or its first frame again."""
        before = self.rows[0].observation if padding == "repeat" else 0
        return [self.rows[k].observation if k >= 0 else before for k in range(place - size + 1, place + 1)]


ENDED, OPEN, BETWEEN = "ended", "open", "between"


class RunModel:
    """The episodes of N environments in the order in which they began, without the rows that were given up.

    `lengths` counts every row that ever was appended. `resets_itself`: an environment that has ended uses the next
    step for its reset, as Gymnasium's vector environments do.
    """

    def __init__(self, envs: int = 1, resets_itself: bool = False) -> None:
        self.envs, self.resets_itself = envs, resets_itself
        self.lengths = [0] * envs
        self.episodes: list[Episode] = []

    def copy(self) -> RunModel:
        result = RunModel(self.envs, self.resets_itself)
        result.lengths = list(self.lengths)
        result.episodes = [replace(e, rows=[copy.copy(row) for row in e.rows]) for e in self.episodes]
        return result

    def of(self, env: int) -> list[Episode]:
        """Episodes of an environment."""
        return [episode for episode in self.episodes if episode.env == env]

    def state(self, env: int) -> str:
        """Whether the environment must be reset, waits for an action, or stands behind a whole row."""
        mine = self.of(env)
        if not mine or mine[-1].ended:
            return ENDED
        return OPEN if mine[-1].has_final else BETWEEN

    def can_step(self) -> bool:
        """Whether `step` is allowed."""
        states = [self.state(env) for env in range(self.envs)]
        if BETWEEN in states or not all(self.of(env) for env in range(self.envs)):
            return False
        return self.resets_itself or ENDED not in states

    # --- what a user does

    def append(self, env: int, row: Row) -> Row:
        row.number = self.lengths[env]
        self.lengths[env] += 1
        return row

    def begin(self, env: int, row: Row, seed: int = -1) -> None:
        """Start an episode with a row; the one going on is interrupted."""
        mine = self.of(env)
        if mine:
            mine[-1].ended = True
        row.first = True
        self.episodes.append(Episode(env, [self.append(env, row)], seed))

    def reset(self, observation: int, env: int = 0, seed: int = -1) -> None:
        self.begin(env, Row(0, observation), seed)

    def step(
        self,
        observation: int,
        env: int = 0,
        action: int = 0,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        extra: float = 0.0,
    ) -> int:
        """Complete the waiting row and append what it led to; return its id, -1 for a reset."""
        if self.state(env) == ENDED:
            self.begin(env, Row(0, observation))
            return -1
        episode = self.of(env)[-1]
        row = episode.rows[-1]
        row.complete, row.action, row.reward, row.extra = True, action, reward, extra
        row.terminated, row.truncated = terminated, truncated
        episode.rows.append(self.append(env, Row(0, observation)))
        episode.ended = terminated or truncated
        return env << 32 | row.number

    def end_episode(self, truncated: bool = True) -> None:
        for env in range(self.envs):
            if self.state(env) != ENDED:
                episode = self.of(env)[-1]
                if truncated and episode.last is not None:
                    episode.last.truncated = True
                episode.ended = True

    def extend(self, rows: Sequence[dict[str, Any]], env: int = 0) -> list[int]:
        """Append whole rows: dicts of Row's values, with is_first or is_last where they are; return ids."""
        ids = []
        for values in rows:
            values = dict(values)
            first, last = values.pop("is_first", False), values.pop("is_last", False)
            row = Row(0, values.pop("observation"), complete=not last, **({} if last else values))
            mine = self.of(env)
            if last:
                mine[-1].rows.append(self.append(env, row))
                mine[-1].ended = True
            elif first or not mine or mine[-1].ended:
                self.begin(env, row)
            else:
                mine[-1].rows.append(self.append(env, row))
            if row.terminated or row.truncated:
                self.of(env)[-1].ended = True
            ids.append(-1 if last else env << 32 | row.number)
        return ids

    def rewind(self, position: RunModel) -> None:
        """Go back to an earlier copy: what was appended since is given up, episodes going on then are interrupted."""
        self.episodes = position.copy().episodes
        for env in range(self.envs):
            if self.state(env) != ENDED:
                episode = self.of(env)[-1]
                episode.ended = True
                for row in (episode.rows[-1], episode.last):
                    if row is not None:
                        row.reverted = True

    # --- what can be seen

    @property
    def num_steps(self) -> int:
        return sum(episode.length for episode in self.episodes)

    def live(self, env: int) -> list[Row]:
        """Rows of an environment that were not given up."""
        return [row for episode in self.of(env) for row in episode.rows]

    def table(self) -> dict[str, list[Any]]:
        """The columns of the episode table."""
        return {
            "env": [e.env for e in self.episodes],
            "start": [e.rows[0].number for e in self.episodes],
            "length": [e.length for e in self.episodes],
            "return": [e.total_reward for e in self.episodes],
            "terminated": [e.terminated for e in self.episodes],
            "truncated": [e.truncated for e in self.episodes],
            "final": [e.has_final for e in self.episodes],
            "seed": [e.seed for e in self.episodes],
            "hidden": [False] * len(self.episodes),
        }


# --- random numbers

WORD = (1 << 64) - 1


def philox(key: tuple[int, int], counter: int) -> list[int]:
    """Return the four words of Philox4x64-10 (Salmon et al. 2011) for a key and a counter."""
    a, b, c, d = counter, 0, 0, 0
    first, second = key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
        a, b, c, d = (right >> 64) ^ b ^ first, right & WORD, (left >> 64) ^ d ^ second, left & WORD
        first, second = (first + 0x9E3779B97F4A7C15) & WORD, (second + 0xBB67AE8584CAA73B) & WORD
    return [a, b, c, d]


def uniforms(seed: int, batch: int, count: int) -> list[float]:
    """Return the numbers in [0, 1) of batch number `batch`: the top 53 bits of Philox words, counted from 1."""
    words: list[int] = []
    while len(words) < count:
        words += philox((seed, batch), len(words) // 4 + 1)
    return [(word >> 11) * 2.0**-53 for word in words[:count]]


# --- sampling


@dataclass(frozen=True)
class Transition:
    """What a batch must say of one start. Frames are ids."""

    observation: list[int]
    action: int
    reward: float
    next_observation: list[int]
    terminated: bool
    truncated: bool
    discount: float
    extra: float
    steps: int


@dataclass(frozen=True)
class Options:
    """How a replay makes batches. `alpha` None: uniform draws. `stack` 0: no axis."""

    n_step: int = 1
    gamma: float = 0.99
    stack: int = 0
    padding: str = "zero"
    capacity: int | None = None
    seed: int = 0
    alpha: float | None = None
    beta: float = 0.4
    epsilon: float = 1e-6
    stratified: bool = True


@dataclass
class ReplayModel:
    """A replay of a run: which starts are valid, what they hold, their priorities and what may be drawn.

    `priority[e][q]` is the priority of transition q of environment e, counted without rows given up.
    """

    run: RunModel
    options: Options
    priority: list[list[float]] = field(default_factory=list)
    largest: float = 1.0
    ignored: int = 0
    batches: int = 0

    def __post_init__(self) -> None:
        self.priority = self.priority or [[] for _ in range(self.run.envs)]

    def saved(self) -> ReplayModel:
        """Return a state: the replay as it is, without its run."""
        self.take_in()
        return replace(self, run=RunModel(self.run.envs), priority=copy.deepcopy(self.priority))

    def resumed(self, run: RunModel, **changed: Any) -> ReplayModel:
        """Return a replay of `run` that goes on from this state; priorities that had left the capacity are lost."""
        result = replace(self, run=run, priority=copy.deepcopy(self.priority), options=replace(self.options, **changed))
        for mine in result.priority:
            for q in range(max(len(mine) - self.share, 0)):
                mine[q] = self.largest
        return result

    @property
    def share(self) -> int:
        """How many transitions each environment keeps."""
        return self.options.capacity // self.run.envs if self.options.capacity else 1 << 62

    # --- which rows may be drawn

    def transitions(self, env: int) -> list[tuple[Episode, int]]:
        """Every transition of an environment as (episode, place in it), oldest first."""
        return [(episode, i) for episode in self.run.of(env) for i in range(episode.length)]

    def is_valid(self, episode: Episode, i: int) -> bool:
        """Whether every value of the transition that starts at place i is known."""
        ahead = episode.length - i
        if ahead > self.options.n_step or (ahead == self.options.n_step and episode.has_final):
            return True
        return episode.ended and (episode.terminated or episode.has_final)

    def kept(self, env: int) -> Iterator[tuple[int, Episode, int]]:
        """The transitions within the capacity, with their ordinals."""
        found = self.transitions(env)
        for q in range(max(len(found) - self.share, 0), len(found)):
            yield q, *found[q]

    def starts(self) -> list[int]:
        """Ids of the valid starts, environment by environment, oldest first."""
        return [
            env << 32 | episode.rows[i].number
            for env in range(self.run.envs)
            for _, episode, i in self.kept(env)
            if self.is_valid(episode, i)
        ]

    # --- what a transition holds

    def transition(self, number: int) -> Transition:
        """What a batch must say of the valid start with this id."""
        env, row = number >> 32, number & 0xFFFFFFFF
        episode, i = next((e, i) for e, i in self.transitions(env) if e.rows[i].number == row)
        steps = min(self.options.n_step, episode.length - i)
        at_end = i + steps == episode.length
        terminated = at_end and episode.terminated
        known = i + steps < len(episode.rows)
        now, gamma = episode.rows[i], self.options.gamma
        size, padding = max(self.options.stack, 1), self.options.padding
        return Transition(
            observation=episode.stack(i, size, padding),
            action=now.action,
            reward=sum(gamma**k * float(np.float32(episode.rows[i + k].reward)) for k in range(steps)),
            next_observation=episode.stack(i + steps, size, padding) if known else [0] * size,
            terminated=terminated,
            truncated=at_end and episode.truncated,
            discount=0.0 if terminated else gamma**steps,
            extra=now.extra,
            steps=steps,
        )

    def check_batch(self, batch: Any) -> None:
        """Compare every array of a batch with what its ids stand for."""
        expected = [self.transition(number) for number in batch.index.tolist()]
        assert len(batch.action) == len(batch.index) == len(batch.weight)
        size = max(self.options.stack, 1)
        for name in ("observation", "next_observation"):
            pixels = frames([getattr(t, name) for t in expected]).reshape(len(expected), size, *SHAPE)
            found = batch[name] if self.options.stack else batch[name][:, None]
            np.testing.assert_array_equal(found, pixels, name)
        for name in ("action", "terminated", "truncated"):
            np.testing.assert_array_equal(batch[name], [getattr(t, name) for t in expected], name)
        scale = max((abs(t.reward) for t in expected), default=0.0)
        np.testing.assert_allclose(batch.reward, [t.reward for t in expected], 3e-7, 3e-7 * scale, err_msg="reward")
        np.testing.assert_allclose(batch.discount, [t.discount for t in expected], 3e-7, err_msg="discount")
        assert (batch.reward.dtype, batch.discount.dtype) == (np.float32, np.float32)
        if "extra" in batch:
            np.testing.assert_array_equal(batch["extra"], np.array([t.extra for t in expected], np.float32), "extra")

    # --- priorities

    def take_in(self) -> None:
        """Let new transitions enter at the largest priority seen."""
        for env, mine in enumerate(self.priority):
            mine += [self.largest] * (len(self.transitions(env)) - len(mine))

    def update(self, index: Sequence[int], priority: Sequence[float]) -> None:
        """Set priorities one after the other; those that left the capacity or were given up only count."""
        self.take_in()
        place = {}
        for env in range(self.run.envs):
            place |= {env << 32 | e.rows[i].number: (env, q) for q, e, i in self.kept(env)}
        for number, value in zip(index, priority, strict=True):
            if number not in place:
                self.ignored += 1
                continue
            env, q = place[number]
            self.priority[env][q] = float(value)
            self.largest = max(self.largest, float(value))

    def leaves(self) -> list[tuple[int, int, float]]:
        """(leaf number, id, leaf) of the valid starts in the order of the tree."""
        assert self.options.alpha is not None
        self.take_in()
        found = []
        for env in range(self.run.envs):
            for q, episode, i in self.kept(env):
                if self.is_valid(episode, i):
                    leaf = (self.priority[env][q] + self.options.epsilon) ** self.options.alpha
                    slot = q % self.share * self.run.envs + env
                    found.append((slot, env << 32 | episode.rows[i].number, leaf))
        return sorted(found)

    # --- drawing

    def check_draw(self, index: Array, weight: Array, beta: float | None = None) -> None:
        """Check that these ids and weights are what the next batch must be."""
        numbers = uniforms(self.options.seed, self.batches, len(index))
        self.batches += 1
        if self.options.alpha is None:
            starts = self.starts()
            expected = [starts[min(int(u * len(starts)), len(starts) - 1)] for u in numbers]
            assert index.tolist() == expected
            np.testing.assert_array_equal(weight, np.ones(len(index), np.float32))
        else:
            self.check_prioritized(index, weight, numbers, self.options.beta if beta is None else beta)

    def check_prioritized(self, index: Array, weight: Array, numbers: list[float], beta: float) -> None:
        leaves = self.leaves()
        total = sum(leaf for *_, leaf in leaves)
        owner, low = {}, 0.0
        for _, number, leaf in leaves:
            owner[number] = (low, low + leaf, leaf)
            low += leaf
        count, close = len(numbers), 1e-9 * total
        for k, number in enumerate(index.tolist()):
            mass = ((k + numbers[k]) / count if self.options.stratified else numbers[k]) * total
            assert number in owner, f"draw {k}: {number} is not a valid start"
            below, above, leaf = owner[number]
            assert leaf > 0, f"draw {k}: {number} has leaf 0"
            assert below - close <= mass <= above + close, f"draw {k}: {number} owns {below} to {above}, not {mass}"
        share = np.array([owner[number][2] / total for number in index.tolist()])
        raw = (len(leaves) * share) ** -beta
        np.testing.assert_allclose(weight, raw / raw.max(), 1e-6)
        assert weight.dtype == np.float32
