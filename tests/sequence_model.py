"""The oracle of sequences and offsets: which starts are valid and what their batches hold, in plain Python.

Written from the design, not from the code, and slow: everything is counted anew whenever it is asked for. An
observation is a number, its id, which `frame` turns into an array; 0 stands for the frame of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
SHAPE = (2, 3)


def frame(number: int) -> Array:
    """Return the observation with this id: no two are equal in any element, 0 is all zeros."""
    return (number * np.arange(1, 7, dtype=np.int32)).reshape(SHAPE)


def outcome(number: int) -> tuple[int, float, float]:
    """Return what follows observation `number`: action, reward and an extra value. Action and extra are never 0."""
    return number % 7 + 1, (number * 37 % 17 - 8) / 4, number / 2 + 0.25


# --- what happened


@dataclass
class Episode:
    """One episode: `frames` has an id more than there are steps where the final (or newest) observation is known."""

    env: int
    start: int
    number: int
    frames: list[int]
    steps: int = 0
    terminated: bool = False
    truncated: bool = False
    ended: bool = False
    hidden: bool = False

    @property
    def has_final(self) -> bool:
        return len(self.frames) > self.steps

    @property
    def rows(self) -> int:
        """Rows that a sequence may hold: a final observation's row is one, a head that waits for its action is not."""
        return len(self.frames) if self.ended else self.steps

    @property
    def flagged(self) -> bool:
        return self.terminated or self.truncated


@dataclass
class Story:
    """The episodes of N environments in order of arrival, appended as a user appends them."""

    envs: int = 1
    episodes: list[Episode] = field(default_factory=list)
    newest: int = 0

    def fresh(self, count: int = 1) -> list[int]:
        """Return ids that no observation had before."""
        self.newest += count
        return list(range(self.newest - count + 1, self.newest + 1))

    def of(self, env: int) -> list[Episode]:
        return [episode for episode in self.episodes if episode.env == env]

    def waits(self, env: int) -> bool:
        """Tell whether the newest observation waits for its action, so that a step may come."""
        mine = self.of(env)
        return bool(mine) and not mine[-1].ended and mine[-1].has_final

    def lacks_final(self, env: int) -> bool:
        """Tell whether a final observation may still be appended."""
        mine = self.of(env)
        return bool(mine) and not mine[-1].has_final

    def begin(self, env: int, frames: list[int], steps: int = 0) -> Episode:
        """Start an episode with rows; the one going on ends without a flag: it is interrupted."""
        mine = self.of(env)
        if mine:
            mine[-1].ended = True
        start = sum(len(episode.frames) for episode in mine)
        self.episodes.append(Episode(env, start, len(self.episodes), frames, steps))
        return self.episodes[-1]

    def step(self, env: int, observation: int, terminated: bool, truncated: bool) -> None:
        episode = self.of(env)[-1]
        episode.frames.append(observation)
        episode.steps += 1
        episode.terminated, episode.truncated = terminated, truncated
        episode.ended = terminated or truncated

    def more(self, env: int, frames: list[int], terminated: bool, truncated: bool) -> None:
        """Append whole rows to an episode that has no observation waiting."""
        episode = self.of(env)[-1]
        episode.frames += frames
        episode.steps += len(frames)
        episode.terminated, episode.truncated = terminated, truncated
        episode.ended = terminated or truncated

    def final(self, env: int, observation: int) -> None:
        """Append a final observation to an episode that lacks one."""
        self.of(env)[-1].frames.append(observation)
        self.of(env)[-1].ended = True

    def end(self) -> None:
        """End what is going on as truncated in its last step; without a step there is nothing to flag."""
        for env in range(self.envs):
            for episode in self.of(env)[-1:]:
                if not episode.ended:
                    episode.ended, episode.truncated = True, episode.steps > 0

    @property
    def going_on(self) -> bool:
        return any(not mine[-1].ended for env in range(self.envs) if (mine := self.of(env)))


# --- how it is looked at

Place = tuple[Episode, int] | None  # a row: its episode and its number there


@dataclass(frozen=True)
class Look:
    """The options of a replay, named as there, and what they mean."""

    sequence_length: int | None = None
    burn_in: int = 0
    stride: int = 1
    within_episode: bool = True
    pad: str | None = None
    time_major: bool = False
    n_step: int = 1
    missing_final: str = "drop"
    gamma: float = 0.99
    stack: int = 0
    stack_axis: int = 1
    padding: str = "zero"
    capacity: int | None = None
    offsets: dict[str, Sequence[int]] = field(default_factory=dict)
    previous: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    reward_clip: tuple[float, float] | None = None

    def options(self) -> dict[str, Any]:
        """Return the arguments of `run.replay`."""
        return dict(self.__dict__)

    # --- which starts are valid

    def share(self, story: Story) -> int:
        """Return how many transitions each environment keeps."""
        return 1 << 62 if self.capacity is None else self.capacity // story.envs

    def kept(self, story: Story, env: int) -> Iterator[tuple[int, Episode, int]]:
        """Yield the newest transitions of an environment with their numbers, oldest first."""
        found = [(episode, i) for episode in story.of(env) for i in range(episode.steps)]
        for q in range(max(len(found) - self.share(story), 0), len(found)):
            yield q, *found[q]

    def starts(self, story: Story) -> list[int]:
        """Return the ids of the valid starts, environment by environment, oldest first."""
        return [
            env << 32 | episode.start + i
            for env in range(story.envs)
            for _, episode, i in self.kept(story, env)
            if self.is_valid(story, episode, i)
        ]

    def is_valid(self, story: Story, episode: Episode, i: int) -> bool:
        if episode.hidden or i % self.stride:
            return False
        if self.sequence_length is None:
            return self.steps_ahead(episode, i) is not None
        if self.pad == "left":
            return True
        complete = None not in self.window(story, episode, i)
        return complete or (self.pad == "right" and episode.ended)

    # --- transitions

    def steps_ahead(self, episode: Episode, i: int) -> int | None:
        """Return over how many steps the transition at place i goes, None where something is not known (yet)."""
        ahead = episode.steps - i
        if i + self.n_step < len(episode.frames):
            return self.n_step
        if not episode.ended:
            return None
        if episode.terminated or episode.has_final:
            return min(self.n_step, ahead)
        # the last observation is the one of the last step, so the return stops in front of that step
        return ahead - 1 if self.missing_final == "shorten" and ahead > 1 else None

    def transition(self, episode: Episode, i: int) -> dict[str, Any]:
        steps = self.steps_ahead(episode, i)
        assert steps is not None
        at_end = i + steps == episode.steps
        terminated = at_end and episode.terminated
        ahead = (episode, i + steps) if i + steps < len(episode.frames) else None
        rewards = [self.reward(episode, i + k) for k in range(steps)]
        return self.row((episode, i)) | {
            "next_observation": self.observation(ahead),
            "reward": sum(self.gamma**k * r for k, r in enumerate(rewards)),
            "terminated": terminated,
            "truncated": at_end and episode.truncated,
            "discount": 0.0 if terminated else self.gamma**steps,
        }

    # --- sequences

    def chain(self, story: Story, episode: Episode) -> list[Episode]:
        """Return the episodes that a sequence through this one may run through."""
        if self.within_episode:
            return [episode]
        mine = story.of(episode.env)
        first = last = mine.index(episode)
        while first > 0 and joined(mine[first - 1], mine[first]):
            first -= 1
        while last + 1 < len(mine) and joined(mine[last], mine[last + 1]):
            last += 1
        return mine[first : last + 1]

    def window(self, story: Story, episode: Episode, i: int) -> list[Place]:
        """Return the rows of the sequence whose id is that of place i; None where there is none."""
        rows: list[Place] = [(e, k) for e in self.chain(story, episode) for k in range(e.rows)]
        count = self.burn_in + (self.sequence_length or 0)
        first = rows.index((episode, i)) - (count - 1 if self.pad == "left" else 0)
        return [rows[k] if 0 <= k < len(rows) else None for k in range(first, first + count)]

    def sequence(self, story: Story, episode: Episode, i: int) -> list[dict[str, Any]]:
        return [self.row(place) | self.flags(place) for place in self.window(story, episode, i)]

    def flags(self, place: Place) -> dict[str, Any]:
        """Return what only a sequence says of one row."""
        if place is None:
            return {
                **dict.fromkeys(("terminated", "truncated", "is_first", "mask"), False),
                "reward": 0.0,
                "discount": 0.0,
            }
        episode, i = place
        acted, last = i < episode.steps, i == episode.steps - 1
        return {
            "reward": self.reward(episode, i) if acted else 0.0,
            "terminated": last and episode.terminated,
            "truncated": last and episode.truncated,
            "discount": self.gamma if acted and not (last and episode.terminated) else 0.0,
            "is_first": i == 0,
            "mask": acted,
        }

    # --- one row

    def row(self, place: Place) -> dict[str, Any]:
        """Return observation, action, extra field and what options `previous` and `extras` ask for."""
        episode, i = place or (Episode(0, 0, 0, []), 0)
        action, _, extra = outcome(episode.frames[i]) if i < episode.steps else (0, 0.0, 0.0)
        found = {"observation": self.observation(place), "action": action, "extra": extra}
        return found | self.row_before(episode, i) | self.numbers(place)

    def row_before(self, episode: Episode, i: int) -> dict[str, Any]:
        """Return what the row before says, zeros at the first one."""
        values = {"action": 0, "reward": 0.0, "extra": 0.0}
        if i > 0:
            action, _, extra = outcome(episode.frames[i - 1])
            values = {"action": action, "reward": self.reward(episode, i - 1), "extra": extra}
        return {f"prev_{name}": values[name] for name in self.previous}

    def numbers(self, place: Place) -> dict[str, Any]:
        """Return option `extras`, zeros where there is no row."""
        if place is None:
            return dict.fromkeys(self.extras, 0)
        episode, i = place
        values = {
            "timestep": i,
            "episode": episode.number,
            "remaining": episode.steps - i,
            "return_to_go": sum(self.reward(episode, k) for k in range(i, episode.steps)),
        }
        return {name: values[name] for name in self.extras}

    def observation(self, place: Place) -> Array:
        """Return the observation with its stack, frames before the episode's start padded; zeros without a row."""
        ids = [0] * max(self.stack, 1)
        if place is not None:
            episode, i = place
            outside = episode.frames[0] if self.padding == "repeat" else 0
            ids = [episode.frames[k] if k >= 0 else outside for k in range(i - len(ids) + 1, i + 1)]
        stack = np.stack([frame(number) for number in ids])
        if not self.stack:
            return stack[0]
        # axis 0 of a batch is the batch, so axis 1 of the batch is axis 0 of one item
        return np.moveaxis(stack, 0, self.stack_axis - 1 if self.stack_axis > 0 else self.stack_axis)

    def reward(self, episode: Episode, i: int) -> float:
        """Return one reward, scaled, shifted and clipped in that order."""
        value = outcome(episode.frames[i])[1] * self.reward_scale + self.reward_shift
        low, high = self.reward_clip or (value, value)
        return min(max(value, low), high)

    # --- offsets

    def at_offsets(self, episode: Episode, i: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return every field of option `offsets`, clamped to what is known of the episode, and what needed no clamp."""
        values: dict[str, Any] = {}
        inside: dict[str, Any] = {}
        for name, offsets in self.offsets.items():
            last = (len(episode.frames) if name == "observation" else episode.steps) - 1
            places = [min(max(i + offset, 0), last) for offset in offsets]
            inside[name] = [place == i + offset for place, offset in zip(places, offsets, strict=True)]
            values[name] = [self.value(name, episode, place) for place in places]
        return values, inside

    def value(self, name: str, episode: Episode, i: int) -> Any:
        if name == "observation":
            return frame(episode.frames[i])
        action, _, extra = outcome(episode.frames[i])
        return {"action": action, "extra": extra, "reward": self.reward(episode, i)}[name]

    # --- whole batches

    def find(self, story: Story, number: int) -> tuple[Episode, int]:
        """Return the transition with this id."""
        env, row = number >> 32, number & 0xFFFFFFFF
        return next((e, row - e.start) for e in story.of(env) if 0 <= row - e.start < e.steps)

    def batch(self, story: Story, ids: Sequence[int]) -> dict[str, Any]:
        """Return every array that a batch with these ids must hold, but for its weights."""
        found = [self.find(story, number) for number in ids]
        if self.sequence_length is None:
            items = [self.transition(*start) for start in found]
            arrays = {name: np.array([item[name] for item in items]) for name in items[0]}
        else:
            rows = [self.sequence(story, *start) for start in found]
            arrays = {name: np.array([[row[name] for row in sequence] for sequence in rows]) for name in rows[0][0]}
            arrays = {name: a.swapaxes(0, 1) if self.time_major else a for name, a in arrays.items()}
        if self.offsets:
            read = [self.at_offsets(*start) for start in found]
            arrays = {k: v for k, v in arrays.items() if k.removeprefix("next_") not in self.offsets}
            arrays |= {name: np.array([values[name] for values, _ in read]) for name in self.offsets}
            arrays["mask"] = {name: np.array([inside[name] for _, inside in read]) for name in self.offsets}
        return arrays | {"index": np.array(ids, np.int64)}


def joined(before: Episode, after: Episode) -> bool:
    """Tell whether a sequence may run on from one episode into the next."""
    return before.flagged and not before.hidden and not after.hidden


# --- draws


def uniforms(seed: int, batch: int, count: int) -> list[float]:
    """Return the numbers in [0, 1) of batch number `batch`: the top 53 bits of Philox words keyed (seed, batch)."""
    words = np.random.Philox(key=np.array([seed, batch], np.uint64)).random_raw(count)
    return [(int(word) >> 11) * 2.0**-53 for word in words]


def uniform_draw(starts: Sequence[int], seed: int, batch: int, count: int) -> list[int]:
    """Return the ids that a uniform replay draws."""
    return [starts[min(int(u * len(starts)), len(starts) - 1)] for u in uniforms(seed, batch, count)]


def check_prioritized(
    index: Array, weight: Array, leaves: list[tuple[int, float]], numbers: list[float], beta: float, normalize: str
) -> None:
    """Check stratified draws: `leaves` has id and leaf of every valid start, in the order of the tree."""
    total, low = sum(leaf for _, leaf in leaves), 0.0
    owned = {}
    for number, leaf in leaves:
        owned[number] = (low, low + leaf)
        low += leaf
    for k, number in enumerate(index.tolist()):
        mass = (k + numbers[k]) / len(numbers) * total
        below, above = owned[number]
        assert below - 1e-9 * total <= mass <= above + 1e-9 * total, f"draw {k}: {number} does not own {mass}"
        assert below < above, f"draw {k}: {number} has leaf 0"
    share = {number: leaf / total for number, leaf in leaves}
    raw = np.array([(len(leaves) * share[number]) ** -beta for number in index.tolist()])
    smallest = min(leaf for _, leaf in leaves if leaf > 0) / total
    largest = (len(leaves) * smallest) ** -beta if normalize == "global" else raw.max()
    np.testing.assert_allclose(weight, raw / largest, 1e-5)
    assert weight.dtype == np.float32


# --- comparing

KINDS = {
    "observation": np.int32,
    "next_observation": np.int32,
    "action": np.int64,
    "extra": np.float32,
    "reward": np.float32,
    "discount": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
    "is_first": np.bool_,
    "mask": np.bool_,
    "index": np.int64,
    "prev_action": np.int64,
    "prev_reward": np.float32,
    "prev_extra": np.float32,
    "timestep": np.int64,
    "episode": np.int64,
    "remaining": np.int64,
    "return_to_go": np.float32,
}
SUMS = {"reward", "discount", "return_to_go", "prev_reward"}  # equal but for the last digits of a float32


def check_batch(batch: Any, story: Story, look: Look) -> None:
    """Compare every array of a batch, its shape and its dtype, with what its ids stand for."""
    expected = look.batch(story, batch.index.tolist())
    found = batch.asdict()
    assert found.keys() - {"weight"} == expected.keys()
    for name, wanted in expected.items():
        if isinstance(wanted, dict):
            assert found[name].keys() == wanted.keys()
            for part, inside in wanted.items():
                np.testing.assert_array_equal(found[name][part], inside, f"{name}/{part}")
            continue
        assert found[name].dtype == KINDS[name], name
        assert found[name].shape == wanted.shape, name
        if name in SUMS:
            np.testing.assert_allclose(found[name], wanted, 1e-5, 1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], wanted.astype(KINDS[name]), name)
