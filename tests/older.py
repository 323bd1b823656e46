"""What older systems' memories hold and draw, in plain Python, by their rules; oracles for the presets.

Step k of a story has observation k (k = 1, 2, 3, ...); its action and reward follow from k. 0 is a zero frame. Memories
keep no final observation, as those systems do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import archive

Array = np.ndarray[Any, Any]
SCHEMA = archive.Schema(steps={"observation": archive.Field("int32", (1,)), "action": archive.Field("int64")})


@dataclass
class Story:
    """Steps 1 .. count of one environment, and which of them ended an episode. Reward k is k, or what was made up."""

    count: int
    terminated: frozenset[int] = frozenset()
    truncated: frozenset[int] = frozenset()
    rewards: list[float] = field(default_factory=list)

    @classmethod
    def random(cls, seed: int, count: int, truncation: bool = True) -> Story:
        """Make up episodes of 1 to 12 steps with rewards whose discounted sums by 1/2 are exact."""
        rng = np.random.default_rng(seed)
        ends = np.cumsum(rng.integers(1, 13, count))
        ends = ends[ends <= count]
        cut = rng.random(len(ends)) < (0.4 if truncation else 0.0)
        rewards = (rng.integers(-32, 33, count) / 8).tolist()
        return cls(count, frozenset(ends[~cut].tolist()), frozenset(ends[cut].tolist()), rewards)

    def reward(self, k: int) -> float:
        return self.rewards[k - 1] if self.rewards else float(k)

    def starts(self, k: int) -> bool:
        """Whether an episode starts at step k."""
        return k == 1 or k - 1 in self.terminated or k - 1 in self.truncated

    def known(self, k: int, n_step: int) -> bool:
        """Whether the n steps from step k on, and what came after them, are known without a final observation."""
        for j in range(k, k + n_step):
            if j > self.count or j in self.truncated:
                return False
            if j in self.terminated:
                return True
        return k + n_step <= self.count

    def record(self, path: Path, final: dict[int, int] | None = None) -> archive.Run:
        """Record the steps; with `final` {step: observation} the observation after such a step is kept."""
        rows: list[tuple[Any, ...]] = []
        for k in range(1, self.count + 1):
            rows.append((k, k, self.reward(k), k in self.terminated, k in self.truncated, False))
            if final and k in final:
                rows.append((final[k], 0, 0, False, False, True))
        names = ("observation", "action", "reward", "terminated", "truncated", "is_last")
        columns = dict(zip(names, (np.array(column) for column in zip(*rows, strict=True)), strict=True))
        run = archive.create(path, SCHEMA, commit_every=None)
        run.extend({**columns, "observation": columns["observation"].astype(np.int32)[:, None]})
        return run


# --- what our replays draw


def drawable(run: archive.Run, options: dict[str, Any]) -> list[int]:
    """Return the steps at which a replay may start: one pass over all valid starts."""
    replay = run.replay(**options | {"sampler": archive.Epoch()})
    index = replay.draw(len(replay))[0]
    assert len(set(index.tolist())) == len(index)
    return sorted(run["observation"][:, 0][index].tolist())


def at(run: archive.Run, options: dict[str, Any], states: Any) -> archive.Batch:
    """Return what starts at these steps."""
    row = {int(k): i for i, k in enumerate(run["observation"][:, 0]) if not run["is_last"][i]}
    return run.replay(**options).gather([row[k] for k in states])


# --- what the others draw


@dataclass
class Transition:
    """What a system returns for a start; `after` is the next stack, None where its value has no meaning."""

    stack: list[int]
    reward: float
    terminal: bool
    after: list[int] | None


class DopamineRing:
    """Dopamine's circular buffer: blank rows before each episode, windows into a truncation are not drawn."""

    def __init__(self, story: Story, capacity: int, stack: int, n_step: int, gamma: float) -> None:
        self.story, self.capacity, self.stack, self.n, self.gamma = story, capacity, stack, n_step, gamma
        self.rows: list[int] = []  # every row that was ever added: its step, 0 for a blank one
        for k in range(1, story.count + 1):
            self.rows += [0] * (stack - 1) * story.starts(k) + [k]
        self.oldest = max(len(self.rows) - capacity, 0)

    @property
    def kept(self) -> int:
        """How many steps the ring holds."""
        return sum(k > 0 for k in self.rows[self.oldest :])

    def left_out(self) -> set[int]:
        """Steps that it does not draw, whatever is known of them.

        The oldest K rows of a full ring, whose stacks may reach behind the cursor; the newest n rows; and windows into
        an episode's terminal if the next episode is cut off less than n rows behind their start.
        """
        rows, near = self.rows, set(self.rows[self.oldest : self.oldest + self.stack]) if self.oldest else set()
        cut = {k for i, k in enumerate(rows) if any(r in self.story.truncated for r in rows[i : i + self.n])}
        return near | set(rows[-self.n :]) | cut

    def valid(self) -> list[int]:
        """Return the steps that it may draw; 0 for each blank row that it may draw too."""
        first = self.oldest + self.stack if self.oldest else self.stack - 1
        return sorted(self.rows[i] for i in range(first, len(self.rows) - self.n) if self.is_valid(i))

    def is_valid(self, i: int) -> bool:
        """No terminal in the older rows of the stack, and no truncation among the n rows ahead."""
        ended = any(k in self.story.terminated for k in self.rows[i - self.stack + 1 : i])
        return not ended and not any(k in self.story.truncated for k in self.rows[i : i + self.n])

    def at(self, k: int) -> Transition:
        """Return the transition of step k."""
        i, total, taken = self.rows.index(k), 0.0, 0
        for taken in range(1, self.n + 1):
            row = self.rows[i + taken - 1]
            total += self.gamma ** (taken - 1) * self.story.reward(row)
            if row in self.story.terminated:
                return Transition(self.rows[i - self.stack + 1 : i + 1], total, True, None)
        after = self.rows[i + taken - self.stack + 1 : i + taken + 1]
        return Transition(self.rows[i - self.stack + 1 : i + 1], total, False, after)


class RainbowRing:
    """Rainbow's memory: one row a step, blanks where the window leaves the episode; it knows no truncation."""

    def __init__(self, story: Story, capacity: int, stack: int, n_step: int, gamma: float) -> None:
        self.story, self.capacity, self.stack, self.n, self.gamma = story, capacity, stack, n_step, gamma
        self.oldest = max(story.count - capacity, 0) + 1

    def left_out(self) -> set[int]:
        """Steps that it does not draw: the newest n, and the K slots from the cursor on, also before it is full."""
        slots = {(self.story.count + j) % self.capacity for j in range(self.stack)}
        newest = self.story.count - self.n
        return {k for k in range(self.oldest, self.story.count + 1) if k > newest or (k - 1) % self.capacity in slots}

    def valid(self) -> list[int]:
        return [k for k in range(self.oldest, self.story.count + 1) if k not in self.left_out()]

    def window(self, k: int) -> list[int]:
        """Return the steps k - K + 1 .. k + n, 0 for blank ones."""
        before, after = [k], [k]
        for j in range(1, self.stack):
            before.append(0 if before[-1] == 0 or self.story.starts(before[-1]) else k - j)
        for j in range(1, self.n + 1):
            after.append(0 if after[-1] == 0 or self.story.starts(k + j) else k + j)
        return [*before[:0:-1], *after]

    def at(self, k: int) -> Transition:
        """Return the transition of step k, its flag read where it belongs."""
        window = self.window(k)
        ahead = window[self.stack - 1 : -1]
        total = sum(self.gamma**j * self.story.reward(s) for j, s in enumerate(ahead) if s)
        terminal = any(s in self.story.terminated for s in ahead)
        return Transition(window[: self.stack], total, terminal, None if terminal else window[self.n :])

    def flag_is_late(self, k: int) -> bool:
        """Whether it calls a transition terminal only because the step behind its n rewards is."""
        return not self.at(k).terminal and k + self.n in self.story.terminated


class RlpytRing:
    """rlpyt's frame buffer with one environment: frames before an episode are zeroed; done covers time limits."""

    def __init__(self, story: Story, capacity: int, stack: int, n_step: int, gamma: float) -> None:
        self.story, self.capacity, self.stack, self.n, self.gamma = story, capacity, stack, n_step, gamma
        self.oldest = max(story.count - capacity, 0) + 1

    def left_out(self) -> set[int]:
        """Steps that it does not draw: the newest n, and the oldest max(1, K - 1), in the first lap too."""
        oldest, newest = self.oldest + max(1, self.stack - 1), self.story.count - self.n
        return {k for k in range(self.oldest, self.story.count + 1) if k < oldest or k > newest}

    def valid(self) -> list[int]:
        return [k for k in range(self.oldest, self.story.count + 1) if k not in self.left_out()]

    def frames(self, k: int) -> list[int]:
        found = [k]
        for _ in range(1, self.stack):
            found.insert(0, 0 if found[0] == 0 or self.story.starts(found[0]) else found[0] - 1)
        return found

    def at(self, k: int) -> Transition:
        total = 0.0
        for j in range(self.n):
            total += self.gamma**j * self.story.reward(k + j)
            if k + j in self.story.terminated:
                return Transition(self.frames(k), total, True, None)
        return Transition(self.frames(k), total, False, self.frames(k + self.n))

    def previous(self, k: int) -> int:
        """Return the step before, 0 where an episode starts."""
        return 0 if self.story.starts(k) else k - 1


class PlanetRing:
    """PlaNet's memory: chunks of rows that run on through the ends of episodes."""

    def __init__(self, story: Story, capacity: int, length: int) -> None:
        self.story, self.length = story, length
        self.oldest = max(story.count - capacity, 0) + 1
        self.full = story.count >= capacity

    def valid(self) -> list[int]:
        """Return the steps at which chunks start; before the ring is full the last whole one is never drawn."""
        last = self.story.count - self.length + 1
        return list(range(self.oldest, last + self.full))

    def at(self, k: int) -> list[tuple[int, float, bool]]:
        """Return observation, reward and nonterminal of each row of a chunk."""
        steps = range(k, k + self.length)
        return [(s, self.story.reward(s), s not in self.story.terminated) for s in steps]
