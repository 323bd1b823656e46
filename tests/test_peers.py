"""Presets beside the real packages: 10,000 random valid starts each. `make peers` has them; elsewhere these skip.

What is stored comes back equal bit for bit, and so do n-step returns of d3rlpy and tianshou, once they are rounded to
float32. Those that Dopamine and Stable-Baselines3 sum in float32 differ by less than 1e-6, with rewards of deviation 1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from older import DopamineRing, Story

import archive
from archive import presets

pytestmark = pytest.mark.filterwarnings("default")  # of the packages, when they are imported

Array = np.ndarray[Any, Any]
STEPS, DRAWN, GAMMA = 6_000, 10_000, 0.97
FRAME = (6, 5)


@dataclass
class Data:
    """Steps of one environment: step t saw observation t; `after[t]` is what it led to, also where an episode ended."""

    observation: Array
    after: Array
    action: Array
    reward: Array
    terminated: Array
    truncated: Array

    @classmethod
    def random(cls, seed: int, steps: int = STEPS) -> Data:
        """Make up episodes of 1 to 60 steps, of which the last is cut off."""
        rng = np.random.default_rng(seed)
        ends = np.cumsum(rng.integers(1, 60, steps)) - 1
        done = np.isin(np.arange(steps), ends)
        done[-1] = True
        terminated = done & (rng.random(steps) < 0.6) & (np.arange(steps) < steps - 1)
        frames = rng.integers(1, 256, (2, steps, *FRAME), np.uint8)
        after = np.concatenate([frames[0][1:], frames[1][-1:]])
        after[done] = frames[1][done]
        action, reward = rng.integers(0, 18, steps), rng.normal(size=steps).astype(np.float32)
        return cls(frames[0], after, action, reward, terminated, done & ~terminated)

    def until(self, step: int) -> Data:
        """Return the first steps."""
        return Data(*(column[:step] for column in vars(self).values()))

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated

    @property
    def story(self) -> Story:
        """The same as a story, whose steps count from 1."""
        terminated, truncated = (frozenset((np.flatnonzero(f) + 1).tolist()) for f in (self.terminated, self.truncated))
        return Story(len(self.action), terminated, truncated)

    @property
    def first(self) -> Array:
        """First step of each step's episode."""
        starts = np.flatnonzero(np.append(True, self.done[:-1]))
        return starts[np.searchsorted(starts, np.arange(len(self.action)), "right") - 1]

    def rows(self, final: bool) -> tuple[dict[str, Array], Array]:
        """Return rows for `extend` and the row of each step; with `final` the observations that episodes ended on."""
        row = np.arange(len(self.action))
        if not final:
            names = ("observation", "action", "reward", "terminated", "truncated")
            return {name: getattr(self, name) for name in names}, row
        row = row + np.cumsum(np.append(0, self.done[:-1]))
        size = len(row) + int(self.done.sum())
        made = {"observation": np.zeros((size, *FRAME), np.uint8), "is_last": np.ones(size, bool)}
        made["observation"][row], made["is_last"][row] = self.observation, False
        made["observation"][row[self.done] + 1] = self.after[self.done]
        for name in ("action", "reward", "terminated", "truncated"):
            made[name] = np.zeros(size, getattr(self, name).dtype)
            made[name][row] = getattr(self, name)
        return made, row


def record(path: Path, *envs: Data, final: bool = True) -> tuple[archive.Run, list[Array]]:
    """Record environments; return the run and the id of each step of each of them."""
    fields = {"observation": archive.Field("uint8", FRAME), "action": archive.Field("int64")}
    run = archive.create(path, archive.Schema(fields, num_envs=len(envs) if len(envs) > 1 else None), commit_every=None)
    ids = []
    for env, data in enumerate(envs):
        rows, row = data.rows(final)
        run.extend(rows, env=env)
        ids.append((env << 32) + row)
    return run, ids


def drawable(run: archive.Run, options: dict[str, Any]) -> set[int]:
    """Return the ids of all valid starts."""
    replay = run.replay(**options | {"sampler": archive.Epoch()})
    return set(replay.draw(len(replay))[0].tolist())


def some(values: Any) -> Array:
    """Draw 10,000 of the values."""
    return np.random.default_rng(1).choice(np.asarray(values), DRAWN)


def same_returns(found: Array, expected: Array, n_step: int = 1) -> None:
    """Compare returns, given in float32 or to be rounded to it; with `n_step` above 1 they were summed in float32."""
    assert found.dtype == np.float32
    expected = expected.reshape(-1).astype(np.float32)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 if n_step > 1 else 0)


# --- Dopamine


@pytest.fixture
def dopamine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return Dopamine's circular buffers. TensorFlow, which only their checkpoints use, need not be there."""
    for needed in ("gin", "absl", "dopamine"):
        pytest.importorskip(needed)
    monkeypatch.setitem(sys.modules, "tensorflow", ModuleType("tensorflow"))
    from dopamine.tf.replay_memory import circular_replay_buffer, prioritized_replay_buffer

    circular = circular_replay_buffer.OutOfGraphReplayBuffer
    yield circular, prioritized_replay_buffer.OutOfGraphPrioritizedReplayBuffer
    for name in [name for name in sys.modules if name.startswith("dopamine.tf")]:
        monkeypatch.delitem(sys.modules, name)  # they hold the stand-in


def filled(make: Any, data: Data, capacity: int, stack: int, n_step: int) -> tuple[Any, Array]:
    """Return a buffer that all steps were added to, and the step in each slot, -1 for a blank row."""
    sizes = {"observation_shape": FRAME, "stack_size": stack, "replay_capacity": capacity, "batch_size": DRAWN}
    buffer = make(**sizes, update_horizon=n_step, gamma=GAMMA, max_sample_attempts=10**6)
    slot = np.full(capacity, -1)
    for t in range(len(data.action)):
        more = {"priority": 1.0} if hasattr(buffer, "sum_tree") else {}
        before, end = int(buffer.add_count), bool(data.truncated[t])
        buffer.add(data.observation[t], data.action[t], data.reward[t], data.terminated[t], episode_end=end, **more)
        slot[np.arange(before, buffer.add_count - 1) % capacity] = -1
        slot[(buffer.add_count - 1) % capacity] = t
    return buffer, slot


@pytest.mark.parametrize("capacity", [2_000, 10_000])
@pytest.mark.parametrize(("stack", "n_step"), [(4, 1), (4, 3), (1, 5)])
def test_dopamine(dopamine: Any, capacity: int, stack: int, n_step: int, path: Path) -> None:
    """A ring that has wrapped and one that has not; its starts are those of the rules that test ours elsewhere."""
    data = Data.random(0)
    buffer, slot = filled(dopamine[0], data, capacity, stack, n_step)
    valid = [i for i in range(capacity) if buffer.is_valid_transition(i)]
    ring = DopamineRing(data.story, capacity, stack, n_step, GAMMA)
    assert sorted((slot[valid] + 1).tolist()) == ring.valid()

    run, [ids] = record(path, data, final=False)
    options = presets.dopamine(n_step=n_step, gamma=GAMMA, stack=stack, capacity=int((slot >= 0).sum()))
    mine, theirs = drawable(run, options), set(ids[[t for t in slot[valid] if t >= 0]].tolist())
    assert mine >= theirs
    assert {int(i) + 1 for i in mine - theirs} <= ring.left_out()

    np.random.seed(0)
    index = np.array(buffer.sample_index_batch(2 * DRAWN))
    index = index[slot[index] >= 0][:DRAWN]
    state, action, reward, after, _, _, terminal, *_ = buffer.sample_transition_batch(len(index), index)
    batch = run.replay(**options).gather(ids[slot[index]])
    assert len(batch.index) == DRAWN
    np.testing.assert_array_equal(batch.observation, state)
    np.testing.assert_array_equal(batch.action, action)
    np.testing.assert_array_equal(batch.terminated, terminal)
    same_returns(batch.reward, reward, n_step)
    np.testing.assert_array_equal(batch.next_observation[terminal == 0], after[terminal == 0])
    run.close()


def test_dopamine_offline(dopamine: Any, path: Path) -> None:
    """Rows of a file loaded into a smaller capacity as batch_rl loads them (G9): draws 3 .. 17 of 20 rows.

    These are the states in front of the cursor but the newest; a run that holds them draws the same.
    """
    data = Data.random(7, 200)
    data.terminated[:], data.truncated[:] = False, False
    file, slot = filled(dopamine[0], data.until(96), 100, 4, 1)
    assert int(file.add_count) == 99
    buffer = dopamine[0](FRAME, 4, 20, DRAWN, max_sample_attempts=10**6)
    buffer._store = {name: column[: 20 + 4].copy() for name, column in file._store.items()}
    buffer.add_count, buffer.invalid_range = file.add_count, file.invalid_range
    np.random.seed(0)
    index = np.array(buffer.sample_index_batch(DRAWN))
    assert set(index.tolist()) == set(range(3, 18))

    run, [ids] = record(path, data.until(int(buffer.cursor()) - 3), final=False)
    options = presets.dopamine_offline()
    assert drawable(run, options) == set(ids[slot[3:18]].tolist())
    state, action, reward, after, _, _, terminal, *_ = buffer.sample_transition_batch(DRAWN, index)
    batch = run.replay(**options).gather(ids[slot[index]])
    found = (batch.observation, batch.action, batch.reward, batch.next_observation, batch.terminated)
    for mine, theirs in zip(found, (state, action, reward, after, terminal), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    run.close()


def test_dopamine_weights(dopamine: Any, path: Path) -> None:
    data = Data.random(1)
    buffer, slot = filled(dopamine[1], data, 2_000, 4, 1)
    run, [ids] = record(path, data, final=False)
    replay = run.replay(**presets.dopamine(capacity=int((slot >= 0).sum()), prioritized=True))
    kept = np.flatnonzero(slot >= 0)
    priority = np.random.default_rng(0).uniform(0.5, 3.0, len(kept)).astype(np.float32)
    buffer.set_priority(kept.astype(np.int32), priority)
    replay.update_priorities(ids[slot[kept]], priority)
    index, weight = replay.draw(DRAWN)
    slot_of = {int(ids[slot[i]]): i for i in kept}
    share = buffer.get_priority(np.array([slot_of[i] for i in index.tolist()], np.int32))
    expected = 1.0 / np.sqrt(share.astype(np.float64) + 1e-10)
    np.testing.assert_allclose(weight, expected / expected.max(), rtol=1e-6)
    run.close()


# --- Stable-Baselines3


@pytest.mark.parametrize("size", [3_000, 30_000])
@pytest.mark.parametrize("n_step", [1, 3])
def test_sb3(size: int, n_step: int, path: Path) -> None:
    """Three environments; true final observations; a factor gamma^m, 0 where terminated."""
    buffers, spaces = pytest.importorskip("stable_baselines3.common.buffers"), pytest.importorskip("gymnasium.spaces")
    envs = [Data.random(seed, 2_500) for seed in range(3)]
    shapes = (size, spaces.Box(0, 255, FRAME, np.uint8), spaces.Discrete(18), "cpu")
    buffer: Any = buffers.ReplayBuffer(*shapes, n_envs=3)
    if n_step > 1:
        buffer = buffers.NStepReplayBuffer(*shapes, n_envs=3, n_steps=n_step, gamma=GAMMA)
    for t in range(2_500):
        seen, after, action, reward, done = (
            np.stack([getattr(d, k)[t] for d in envs]) for k in ("observation", "after", "action", "reward", "done")
        )
        buffer.add(seen, after, action, reward, done, [{"TimeLimit.truncated": bool(d.truncated[t])} for d in envs])

    run, ids = record(path, *envs)
    options = presets.sb3(n_step=n_step, gamma=GAMMA, capacity=size)
    per_env = min(size // 3, 2_500)
    assert drawable(run, options) == {int(i) for some_ids in ids for i in some_ids[-per_env:]}

    np.random.seed(0)
    slot, env = np.random.randint(0, buffer.size(), DRAWN), np.random.randint(0, 3, DRAWN)
    np.random.seed(0)
    found = buffer.sample(DRAWN)
    step = slot if per_env == 2_500 else slot + (2_500 - slot - 1) // per_env * per_env
    batch = run.replay(**options).gather(np.array(ids)[env, step])
    np.testing.assert_array_equal(batch.observation, found.observations.numpy())
    np.testing.assert_array_equal(batch.next_observation, found.next_observations.numpy())
    np.testing.assert_array_equal(batch.action, found.actions.numpy()[:, 0])
    np.testing.assert_array_equal(batch.terminated, found.dones.numpy()[:, 0])
    same_returns(batch.reward, found.rewards.numpy(), n_step)
    if n_step > 1:
        bootstrap = found.discounts.numpy()[:, 0] * (1 - found.dones.numpy()[:, 0])
        np.testing.assert_allclose(batch.discount, bootstrap, rtol=1e-6)
    run.close()


# --- d3rlpy


def episodes(data: Data) -> list[Any]:
    """Return d3rlpy's episodes, whose frames have a leading axis of channels."""
    from d3rlpy.dataset import Episode

    found = []
    for first in np.unique(data.first).tolist():
        mine = slice(first, first + int((data.first == first).sum()))
        values = (data.observation[mine, None], data.action[mine, None], data.reward[mine, None])
        found.append(Episode(*values, terminated=bool(data.terminated[mine][-1])))
    return found


@pytest.mark.parametrize(("n_step", "stack"), [(1, None), (3, None), (1, 4)])
def test_d3rlpy(n_step: int, stack: int | None, path: Path) -> None:
    dataset = pytest.importorskip("d3rlpy.dataset")
    data = Data.random(2)
    first = np.unique(data.first)
    told = episodes(data)
    starts = [(k, t) for k, episode in enumerate(told) for t in range(episode.transition_count)]

    run, [ids] = record(path, data, final=False)
    options = presets.d3rlpy(n_step=n_step, gamma=GAMMA, stack=stack)
    assert drawable(run, options) == {int(ids[first[k] + t]) for k, t in starts}

    pick = dataset.MultiStepTransitionPicker(n_step, GAMMA) if n_step > 1 else dataset.BasicTransitionPicker()
    if stack:
        pick = dataset.FrameStackTransitionPicker(stack)
    chosen = some(starts)
    found = dataset.TransitionMiniBatch.from_transitions([pick(told[k], t) for k, t in chosen.tolist()])
    batch = run.replay(**options).gather(ids[first[chosen[:, 0]] + chosen[:, 1]])
    shape = (DRAWN, stack or 1, *FRAME)
    np.testing.assert_array_equal(batch.observation.reshape(shape), found.observations)
    np.testing.assert_array_equal(batch.next_observation.reshape(shape), found.next_observations)
    np.testing.assert_array_equal(batch.action, found.actions[:, 0])
    np.testing.assert_array_equal(batch.terminated, found.terminals[:, 0])
    same_returns(batch.reward, found.rewards)
    bootstrap = GAMMA ** found.intervals[:, 0].astype(np.float64) * (1 - found.terminals[:, 0])
    np.testing.assert_allclose(batch.discount, bootstrap, rtol=1e-6)
    run.close()


@pytest.mark.parametrize("stack", [None, 3])
def test_d3rlpy_trajectories(stack: int | None, path: Path) -> None:
    """Its starts are steps that are transitions; ours also the last steps of episodes that were cut off."""
    dataset = pytest.importorskip("d3rlpy.dataset")
    data = Data.random(3)
    first = np.unique(data.first)
    told = episodes(data)
    starts = [(k, t) for k, episode in enumerate(told) for t in range(episode.transition_count)]
    run, [ids] = record(path, data, final=False)
    options = presets.d3rlpy_trajectories(length=12, stack=stack)
    assert drawable(run, options) == set(ids.tolist())

    cut = dataset.FrameStackTrajectorySlicer(stack) if stack else dataset.BasicTrajectorySlicer()
    chosen = some(starts)
    parts = [cut(told[k], t, 12) for k, t in chosen.tolist()]
    found = dataset.TrajectoryMiniBatch.from_partial_trajectories(parts)
    batch = run.replay(**options).gather(ids[first[chosen[:, 0]] + chosen[:, 1]])
    np.testing.assert_array_equal(batch.mask, found.masks)
    np.testing.assert_array_equal(batch.observation.reshape(DRAWN, 12, stack or 1, *FRAME), found.observations)
    np.testing.assert_array_equal(batch.action, found.actions[..., 0])
    np.testing.assert_array_equal(batch.reward, found.rewards[..., 0])
    np.testing.assert_array_equal(batch.terminated, found.terminals[..., 0])
    np.testing.assert_array_equal((batch["timestep"] + 1) * batch.mask, found.timesteps)
    np.testing.assert_allclose(batch["return_to_go"], found.returns_to_go[..., 0], rtol=0, atol=1e-4)
    run.close()


# --- tianshou


def tianshou_filled(buffer: Any, data: Data) -> Array:
    """Add all steps and return the step in each slot."""
    from tianshou.data import Batch

    slot = np.full(buffer.maxsize, -1)
    for t in range(len(data.action)):
        values = {"obs": data.observation[t], "obs_next": data.after[t], "act": data.action[t], "rew": data.reward[t]}
        flags = {"terminated": data.terminated[t], "truncated": data.truncated[t], "info": {}}
        slot[buffer.add(Batch(**values, **flags))[0][0]] = t
    return slot


@pytest.mark.parametrize("size", [2_000, 10_000])
@pytest.mark.parametrize("n_step", [1, 3])
def test_tianshou(size: int, n_step: int, path: Path) -> None:
    """Next observations stored, no stacks; targets by its compute_nstep_return, with values of 0 and of 1."""
    tianshou, torch = pytest.importorskip("tianshou"), pytest.importorskip("torch")
    from tianshou.algorithm.algorithm_base import Algorithm

    data = Data.random(4)
    buffer = tianshou.data.ReplayBuffer(size)
    slot = tianshou_filled(buffer, data)
    run, [ids] = record(path, data)
    options = presets.tianshou(n_step=n_step, gamma=GAMMA, capacity=size)
    assert drawable(run, options) == set(ids[slot[slot >= 0]].tolist())

    index = some(buffer.sample_indices(0))
    found, batch = buffer[index], run.replay(**options).gather(ids[slot[index]])
    np.testing.assert_array_equal(batch.observation, found.obs)
    np.testing.assert_array_equal(batch.action, found.act)
    last, targets = [], []
    for value in (0.0, 1.0):

        def target(_: Any, ends: Array, value: float = value) -> Any:
            last.append(ends)
            return torch.full((len(ends), 1), value, dtype=torch.float64)

        made = Algorithm.compute_nstep_return(buffer[index], buffer, index, target, GAMMA, n_step)
        targets.append(made.returns.numpy().reshape(-1))
    same_returns(batch.reward, targets[0])
    np.testing.assert_allclose(batch.discount, targets[1] - targets[0], rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(batch.next_observation, buffer[last[0]].obs_next)
    np.testing.assert_array_equal(batch.terminated, buffer[last[0]].terminated)
    run.close()


@pytest.mark.parametrize("size", [2_000, 10_000])
@pytest.mark.parametrize("ignore", [True, False])
def test_tianshou_stacks(size: int, ignore: bool, path: Path) -> None:
    """Stacks repeat the first frame. Next stacks are ours away from the ends, where it takes others (see the docs)."""
    tianshou = pytest.importorskip("tianshou")
    data = Data.random(5)
    buffer = tianshou.data.ReplayBuffer(size, stack_num=4, ignore_obs_next=ignore)
    slot = tianshou_filled(buffer, data)
    run, [ids] = record(path, data)
    options = presets.tianshou(stack=4, capacity=size)

    index = some(buffer.sample_indices(0))
    step, oldest = slot[index], slot[slot >= 0].min()
    whole = (data.first[step] >= oldest) | (step - oldest >= 3)  # its history has not left the ring
    assert whole.mean() > 0.9
    found, batch = buffer[index], run.replay(**options).gather(ids[step])
    np.testing.assert_array_equal(batch.observation[whole], found.obs[whole])
    np.testing.assert_array_equal(batch.reward, found.rew.astype(np.float32))
    if not ignore:
        assert (found.obs_next[data.first[step] == step] == data.after[step, None][data.first[step] == step]).all()
    same = whole & (~data.done[step] if ignore else step - data.first[step] >= 3)
    assert same.mean() > 0.8
    np.testing.assert_array_equal(batch.next_observation[same], found.obs_next[same])
    run.close()


def test_tianshou_weights(path: Path) -> None:
    tianshou = pytest.importorskip("tianshou")
    data = Data.random(6)
    buffer = tianshou.data.PrioritizedReplayBuffer(2_000, alpha=0.6, beta=0.4)
    slot = tianshou_filled(buffer, data)
    run, [ids] = record(path, data)
    replay = run.replay(**presets.tianshou(capacity=2_000, prioritized=True))
    error = np.random.default_rng(0).normal(size=2_000)
    buffer.update_weight(np.arange(2_000), error)
    replay.update_priorities(ids[slot], np.abs(error))
    index, weight = replay.draw(DRAWN)
    slot_of = {int(i): k for k, i in enumerate(ids[slot])}
    expected = buffer[np.array([slot_of[i] for i in index.tolist()])].weight
    np.testing.assert_allclose(weight, expected, rtol=1e-6)
    run.close()
