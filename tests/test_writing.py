"""What goes in comes back: add, vector environments, spaces, dtypes, odd shapes and inputs, columns, priorities."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import archive

Array = np.ndarray[Any, Any]
FLOAT = {"observation": archive.Field("float32", (2,)), "action": archive.Field("int64")}


@pytest.fixture
def create(tmp_path: Path) -> Iterator[Callable[..., archive.Run]]:
    """Return a function that creates a run with these fields."""
    runs: list[archive.Run] = []

    def make(fields: Any = FLOAT, **options: Any) -> archive.Run:
        runs.append(archive.create(tmp_path / f"{len(runs)}.h5", archive.Schema(fields, **options), commit_every=None))
        return runs[-1]

    yield make
    for run in runs:
        run.close()


def reopened(run: archive.Run, mode: str = "r") -> archive.Run:
    """Close a run and open its file again."""
    run.close()
    return archive.open(run.path, mode)


def doors(run: archive.Run) -> Iterator[archive.Run]:
    """Yield a run as it is, then closed and opened for reading, then opened for appending."""
    yield run
    run.close()
    for mode in ("r", "a"):
        with archive.open(run.path, mode) as again:
            yield again


def same_bytes(a: Any, b: Any) -> bool:
    """Tell whether two arrays have the same dtype, shape and bits: -0.0 is not 0.0, and NaN have payloads."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def contents(run: archive.Run) -> dict[str, Any]:
    """Return all that a run holds, as bytes."""
    fields = {name: run[name][:].tobytes() for name in run.schema.steps}
    columns = {name: column.tolist() for name, column in run.episodes.items()}
    return {**fields, **columns, "lengths": run.lengths.tolist()}


# --- add


def obs(*values: float) -> Array:
    return np.array(values, np.float32)


def test_added_transitions_that_follow_each_other_share_their_frames(create: Callable[..., archive.Run]) -> None:
    run = create()
    ids = [run.add(obs(k, k), k, k / 2, obs(k + 1, k + 1), k == 4, False) for k in range(5)]
    assert ids == [0, 1, 2, 3, 4]
    assert all(type(number) is int for number in ids)
    assert run.lengths.tolist() == [6]
    batch = run.replay().gather(ids)
    assert batch.observation[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert batch.next_observation[:, 0].tolist() == [1, 2, 3, 4, 5]
    assert batch.terminated.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("goes_on", [0.0, 0.7, 0.97])
def test_add_records_what_reset_and_step_record(create: Callable[..., archive.Run], goes_on: float) -> None:
    """A step that breaks is not followed by the transition that starts at its next observation. Over several chunks."""
    rng = np.random.default_rng(0)
    added, stepped = create(), create()
    fresh = True
    for k in range(1500):
        action, ending = int(rng.integers(4)), rng.choice(["breaks", "terminated", "truncated"])
        what = "goes on" if rng.random() < goes_on else ending
        now = obs(k, k + 0.5 * fresh)  # observations of an episode are numbered on; what starts anew is at a half
        after = obs(k + 1, k + 1)
        flags = (what == "terminated", what == "truncated")
        if fresh:
            stepped.reset(now)
        assert added.add(now, action, k, after, *flags) == stepped.step(action, after, k, *flags)
        fresh = what != "goes on"
    assert contents(added) == contents(stepped)
    assert contents(reopened(added)) == contents(reopened(stepped))


@pytest.mark.parametrize(
    ("before", "after", "breaks"),
    [
        (obs(1, 2), obs(1, 2), False),
        (obs(1, 2), obs(1, 3), True),
        (obs(0.0, 2), obs(-0.0, 2), True),
        (obs(np.nan, 2), obs(np.nan, 2), False),
        (obs(np.nan, 2), np.array([0x7FC00001, 0x40000000], np.uint32).view(np.float32), True),
        (obs(0.1, 2), np.array([np.float32(0.1), 2.0], np.float64), False),
        (obs(0.1, 2), np.array([0.1, 2.0], np.float64), False),
    ],
)
def test_breaks_are_found_by_comparing_bytes(
    create: Callable[..., archive.Run], before: Array, after: Array, breaks: bool
) -> None:
    """As they are stored, so a float64 that rounds to the float32 stored goes on."""
    run = create()
    run.add(obs(5, 5), 0, 1.0, before, False, False)
    run.add(after, 1, 1.0, obs(7, 7), False, False)
    assert run.episodes["length"].tolist() == ([1, 1] if breaks else [2])
    assert run.episodes["truncated"].tolist() == [False] * (1 + breaks)
    assert run.lengths.tolist() == [4 if breaks else 3]


def test_a_single_bit_breaks(create: Callable[..., archive.Run]) -> None:
    """Wherever it is, in whatever part."""
    fields = {"observation/a": archive.Field("uint8", (84, 84)), "observation/b": archive.Field(">f8", (3,))}
    run = create({**fields, "action": archive.Field("int64")})
    plain = {"a": np.arange(7056).reshape(84, 84).astype(np.uint8), "b": np.array([1.0, 2.0, 3.0])}
    run.add(plain, 0, 0.0, plain, False, False)
    run.add(plain, 0, 0.0, plain, False, False)
    assert run.num_episodes == 1
    for count, (name, place) in enumerate([("a", 0), ("a", 5000), ("a", 7055), ("b", 0), ("b", 23)], 2):
        changed = {key: value.copy() for key, value in plain.items()}
        changed[name].view(np.uint8).reshape(-1)[place] ^= 1
        run.add(changed, 0, 0.0, plain, False, False)
        assert run.num_episodes == count, (name, place)


def test_a_broken_episode_is_interrupted_and_bootstraps(create: Callable[..., archive.Run]) -> None:
    run = create()
    run.add(obs(1, 1), 1, 1.0, obs(2, 2), False, False)
    run.add(obs(8, 8), 2, 2.0, obs(9, 9), False, False)
    assert len(run.replay(n_step=2)) == 1  # the second waits for one more step
    batch = run.replay(n_step=2, gamma=0.5).gather([0])
    assert (batch.next_observation[0, 0], batch.reward[0], batch.discount[0]) == (2, 1, 0.5)
    assert not batch.terminated[0]
    assert not batch.truncated[0]


def test_the_same_bytes_after_an_end_start_an_episode(create: Callable[..., archive.Run]) -> None:
    run = create()
    run.add(obs(1, 1), 0, 0.0, obs(2, 2), True, False)
    run.add(obs(2, 2), 0, 0.0, obs(3, 3), False, True)
    run.add(obs(3, 3), 0, 0.0, obs(4, 4), False, False)
    assert run.episodes["length"].tolist() == [1, 1, 1]
    assert run["is_first"][:].tolist() == [True, False] * 3
    assert run.episodes["terminated"].tolist() == [True, False, False]
    assert run.episodes["truncated"].tolist() == [False, True, False]


def test_environments_break_one_by_one(create: Callable[..., archive.Run]) -> None:
    run = create(num_envs=3)
    none, rewards = np.zeros(3, bool), np.ones(3)
    run.add(np.full((3, 2), 1), np.zeros(3, int), rewards, np.full((3, 2), 2), none, none)
    start = np.array([[2, 2], [5, 5], [2, 2]])
    ids = run.add(start, np.ones(3, int), rewards, np.full((3, 2), 3), np.array([True, False, False]), none)
    assert ids.tolist() == [1, (1 << 32) + 2, (2 << 32) + 1]
    run.add(np.full((3, 2), 3), np.ones(3, int), rewards, np.full((3, 2), 4), none, none)
    assert run.lengths.tolist() == [5, 5, 4]
    table = run.episodes
    found = sorted(zip(table["env"].tolist(), table["start"].tolist(), table["length"].tolist(), strict=True))
    assert found == [(0, 0, 2), (0, 3, 1), (1, 0, 1), (1, 2, 2), (2, 0, 3)]


@pytest.mark.parametrize("autoreset", [None, "NextStep", "SameStep", "Disabled"])
def test_add_needs_no_reset_in_any_mode(create: Callable[..., archive.Run], autoreset: str | None) -> None:
    """The next observation of an ended transition is the final one, whatever the environments do on their own."""
    run = create(num_envs=2, autoreset=autoreset)
    ends = np.array([True, False]), np.array([False, True])
    for k in range(3):
        ids = run.add(np.full((2, 2), 10 * k), np.full(2, k), np.full(2, k), np.full((2, 2), 10 * k + 1), *ends)
        assert ids.tolist() == [2 * k, (1 << 32) + 2 * k]
    assert run.lengths.tolist() == [6, 6]
    assert run["observation"][:, 0, 0].tolist() == [0, 1, 10, 11, 20, 21]
    assert run["is_last"][:, 1].tolist() == [False, True] * 3
    assert run.episodes["terminated"].tolist() == [True, False] * 3


def test_add_compares_every_part_and_goes_on_after_reopening(create: Callable[..., archive.Run]) -> None:
    fields = {
        "observation/a": archive.Field("int64"),
        "observation/b": archive.Field("S4"),
        "action": archive.Field("bool"),
    }
    run = create(fields)
    run.add({"a": 1, "b": "x"}, True, 0.0, {"a": 2, "b": "y"}, False, False)
    run.add({"a": 2, "b": "y"}, True, 0.0, {"a": 3, "b": "z"}, False, False)
    with reopened(run, "a") as run:
        run.add({"a": 3, "b": "z"}, True, 0.0, {"a": 4, "b": "z"}, False, False)
        assert run.num_episodes == 1
        run.add({"a": 4, "b": "zz"}, True, 0.0, {"a": 5, "b": "z"}, False, False)
        assert run.episodes["length"].tolist() == [3, 1]


def test_add_goes_on_after_reset_and_step(create: Callable[..., archive.Run]) -> None:
    run = create()
    run.reset(obs(0, 0))
    run.add(obs(0, 0), 0, 0.0, obs(1, 1), False, False)
    run.step(0, obs(2, 2), 0.0, False, False)
    run.add(obs(2, 2), 0, 0.0, obs(3, 3), False, False)
    assert run.episodes["length"].tolist() == [3]


def test_added_stacks(create: Callable[..., archive.Run]) -> None:
    fields = {"observation": archive.Field("uint8", (), stacked=3, padding="zero"), "action": archive.Field("int64")}
    run = create(fields)
    for stack in ([0, 0, 1], [0, 1, 2], [1, 2, 3]):
        run.add(np.array(stack, np.uint8), 0, 0.0, np.array([*stack[1:], stack[-1] + 1], np.uint8), False, False)
    assert run["observation"][:].tolist() == [1, 2, 3, 4]
    assert run.replay().gather([2]).next_observation.tolist() == [[2, 3, 4]]
    before = contents(run)
    with pytest.raises(archive.FieldError, match="stack"):  # the next stack is not this one moved on
        run.add(np.array([2, 3, 4], np.uint8), 0, 0.0, np.array([9, 4, 5], np.uint8), False, False)
    with pytest.raises(archive.FieldError, match="stack"):  # a break into the middle of an episode
        run.add(np.array([7, 8, 9], np.uint8), 0, 0.0, np.array([8, 9, 10], np.uint8), False, False)
    assert contents(run) == before


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"observation": obs(1, 2, 3)}, archive.FieldError),
        ({"next_observation": obs(1, 2, 3)}, archive.FieldError),
        ({"next_observation": np.array(["a", "b"])}, archive.FieldTypeError),
        ({"action": 1.5}, archive.FieldTypeError),
        ({"reward": [1.0, 2.0]}, archive.FieldError),
        ({"terminated": 2}, archive.FieldError),
        ({"speed": 1.0}, archive.UnknownFieldError),
        ({"extra": None}, archive.FieldError),
    ],
)
@pytest.mark.parametrize("breaks", [True, False])
def test_an_addition_that_is_refused_changes_nothing(
    create: Callable[..., archive.Run], change: Any, error: Any, breaks: bool
) -> None:
    run = create({**FLOAT, "extra": archive.Field("float32")})
    good = {"action": 1, "reward": 0.5, "terminated": False, "truncated": False, "extra": 1.0}
    run.add(observation=obs(1, 1), next_observation=obs(2, 2), **good)
    start = obs(9, 9) if breaks else obs(2, 2)
    before = contents(run)
    with pytest.raises(error):
        run.add(**{"observation": start, "next_observation": obs(3, 3), **good, **change})
    assert contents(run) == before
    run.add(observation=start, next_observation=obs(3, 3), **good)
    assert run.num_steps == 2


# --- vector environments


@pytest.fixture
def gym() -> Any:
    return pytest.importorskip("gymnasium")


LIMITS = (12, 9, 500)  # short enough for truncated episodes; the last one terminates


def policy(observation: Array) -> int:
    """Return an action that depends on every digit of the observation, so that whoever sees the same acts the same."""
    return int(np.abs(observation).sum() * 1e5) % 2


def plain_loop(gym: Any, env: int, episodes: int) -> list[dict[str, Any]]:
    """Return what a loop over one environment sees."""
    found = []
    cart = gym.make("CartPole-v1", max_episode_steps=LIMITS[env])
    for number in range(episodes):
        observation, _ = cart.reset(seed=env) if number == 0 else cart.reset()
        episode: dict[str, Any] = {"observation": [observation], "action": [], "reward": [], "ends": (False, False)}
        while not any(episode["ends"]):
            action = policy(observation)
            observation, reward, *ends, _ = cart.step(action)
            episode["observation"].append(observation)
            episode["action"].append(action)
            episode["reward"].append(reward)
            episode["ends"] = tuple(ends)
        found.append(episode)
    cart.close()
    return found


def carts(gym: Any, kind: str, mode: str) -> Any:
    makers = [lambda limit=limit: gym.make("CartPole-v1", max_episode_steps=limit) for limit in LIMITS]
    return getattr(gym.vector, kind)(makers, autoreset_mode=gym.vector.AutoresetMode[mode])


def record(run: archive.Run, envs: Any, steps: int) -> None:
    """Record as the documentation says."""
    observation, info = envs.reset(seed=0)
    run.reset(observation, info, seed=0)
    for _ in range(steps):
        action = np.array([policy(o) for o in observation])
        observation, reward, terminated, truncated, info = envs.step(action)
        run.step(action, observation, reward, terminated, truncated, info)
        ended = terminated | truncated
        if run.schema.autoreset == "Disabled" and ended.any():
            observation, info = envs.reset(options={"reset_mask": ended})
            run.reset(observation, info, mask=ended)


def check_carts(run: archive.Run, gym: Any) -> None:
    """Compare every recorded episode, the last ones as far as they went, with what plain loops see."""
    table = run.episodes
    assert not np.isnan(table["return"]).any()
    for env in range(3):
        mine = np.flatnonzero(table["env"] == env).tolist()
        assert len(mine) > 2
        assert table["seed"][mine].tolist() == [env] + [-1] * (len(mine) - 1)
        for number, seen in zip(mine, plain_loop(gym, env, len(mine)), strict=True):
            length = int(table["length"][number])
            whole = number != mine[-1] or length == len(seen["action"])
            assert length == len(seen["action"]) if number != mine[-1] else length <= len(seen["action"])
            assert (table["terminated"][number], table["truncated"][number]) == (
                seen["ends"] if whole else (False, False)
            )
            assert table["return"][number] == sum(seen["reward"][:length])
            episode = run.episode(number)
            assert same_bytes(episode["observation"], np.array(seen["observation"][: length + 1]))
            assert episode["action"].tolist() == seen["action"][:length]
            assert episode["reward"].tolist() == seen["reward"][:length]
            ends = [False] * (length - 1)
            assert episode["terminated"].tolist() == ([*ends, whole and seen["ends"][0]] if length else [])
            assert episode["truncated"].tolist() == ([*ends, whole and seen["ends"][1]] if length else [])


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("SyncVectorEnv", "NEXT_STEP"),
        ("SyncVectorEnv", "SAME_STEP"),
        ("SyncVectorEnv", "DISABLED"),
        ("AsyncVectorEnv", "NEXT_STEP"),
    ],
)
def test_vector_environments_are_recorded_as_plain_loops_see_them(path: Path, gym: Any, kind: str, mode: str) -> None:
    envs = carts(gym, kind, mode)
    with archive.create(path, envs) as run:
        assert run.schema.autoreset == {"NEXT_STEP": "NextStep", "SAME_STEP": "SameStep", "DISABLED": "Disabled"}[mode]
        record(run, envs, 120)
        check_carts(run, gym)
        assert run.num_steps == (360 if mode != "NEXT_STEP" else 360 - sum(run.episodes["seed"] == -1))
        check_transitions(run)
    envs.close()
    with archive.open(path) as run:
        check_carts(run, gym)
        check_transitions(run)


def check_transitions(run: archive.Run) -> None:
    """Every step may be drawn, the last of an episode with the observation it ended on."""
    replay = run.replay(gamma=1.0)
    assert len(replay) == run.num_steps
    table = run.episodes
    for number in range(run.num_episodes):
        length, start = int(table["length"][number]), int(table["start"][number])
        if length:
            batch = replay.gather(int(table["env"][number]) << 32 | np.arange(start, start + length))
            seen = run.episode(number)["observation"]
            assert same_bytes(batch.observation, seen[:-1])
            assert same_bytes(batch.next_observation, seen[1:])
            assert batch.discount[-1] == (not table["terminated"][number])


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_frame_stacks_of_vector_environments(path: Path, gym: Any, mode: str, padding: str) -> None:
    """What the policy saw comes back from the replay, and every frame is stored once."""

    def make(limit: int) -> Any:
        cart = gym.make("CartPole-v1", max_episode_steps=limit)
        return gym.wrappers.FrameStackObservation(cart, 3, padding_type=padding)

    makers = [lambda limit=limit: make(limit) for limit in (5, 8, 500)]
    envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode[mode])
    seen: dict[int, tuple[Array, Array]] = {}
    with archive.create(path, envs) as run:
        observation, info = envs.reset(seed=0)
        run.reset(observation, info)
        for _ in range(60):
            before = observation.copy()
            action = np.array([policy(o) for o in observation])
            observation, reward, terminated, truncated, info = envs.step(action)
            ids = run.step(action, observation, reward, terminated, truncated, info)
            ended = terminated | truncated
            for env in np.flatnonzero(ids >= 0).tolist():
                final = mode == "SAME_STEP" and ended[env]
                seen[int(ids[env])] = before[env], (info["final_obs"][env] if final else observation[env]).copy()
            if mode == "DISABLED" and ended.any():
                observation, info = envs.reset(options={"reset_mask": ended})
                run.reset(observation, info, mask=ended)
    envs.close()
    with archive.open(path) as run:
        replay = run.replay()
        assert len(replay) == len(seen) == run.num_steps
        batch = replay.gather(list(seen))
        assert same_bytes(batch.observation, np.array([before for before, _ in seen.values()]))
        assert same_bytes(batch.next_observation, np.array([after for _, after in seen.values()]))
        assert run["observation"].shape[1:] == (3, 4)
        assert run.num_rows == run.num_steps + run.num_episodes


def test_a_step_of_an_ended_environment_is_refused_where_nothing_resets_it(path: Path, gym: Any) -> None:
    envs = carts(gym, "SyncVectorEnv", "DISABLED")
    with archive.create(path, envs) as run:
        observation, info = envs.reset(seed=0)
        run.reset(observation, info)
        zeros, no = np.zeros(3, int), np.zeros(3, bool)
        run.step(zeros, observation, np.zeros(3), np.array([False, True, False]), no)
        before = contents(run)
        with pytest.raises(archive.StateError, match="environment 1"):
            run.step(zeros, observation, np.zeros(3), no, no)
        assert contents(run) == before
        run.reset(observation, mask=np.array([False, True, False]))
        assert (run.step(zeros, observation, np.zeros(3), no, no) >= 0).all()
    envs.close()


def test_same_step_needs_the_final_observations(create: Callable[..., archive.Run]) -> None:
    run = create(num_envs=2, autoreset="SameStep")
    run.reset(np.zeros((2, 2)))
    arguments = np.zeros(2, int), np.ones((2, 2)), np.zeros(2), np.array([False, True]), np.zeros(2, bool)
    before = contents(run)
    for info in (
        None,
        {},
        {"final_obs": np.array([None, None], object)},
        {"final_obs": np.array([None, obs(1, 2, 3)], object)},
    ):
        with pytest.raises(archive.FieldError, match=r"final_obs|shape"):
            run.step(*arguments, info)
        assert contents(run) == before
    ids = run.step(*arguments, {"final_obs": np.array([None, obs(7, 7)], object)})
    assert ids.tolist() == [0, 1 << 32]
    assert run["observation"][:, 1, 0].tolist() == [0, 7, 1]
    assert run.lengths.tolist() == [2, 3]


@pytest.mark.parametrize("ends", [1.0, 0.3])
def test_two_rows_of_a_step_fill_chunks_as_one_does(create: Callable[..., archive.Run], ends: float) -> None:
    """SAME_STEP appends the final observation and the first one of the next episode at once; commits in between."""
    rng = np.random.default_rng(1)
    same, other = create(num_envs=2, autoreset="SameStep"), create(num_envs=2, autoreset="Disabled")
    for run in (same, other):
        run.reset(np.zeros((2, 2)))
    for k in range(1, 1300):
        final, start, action = np.full((2, 2), k), np.full((2, 2), -k), np.array([k, k + 1])
        ended = rng.random(2) < ends
        flags = ended & (k % 2 == 0), ended & (k % 2 == 1)
        seen = np.where(ended[:, None], start, final)
        info = {"final_obs": np.array([obs(k, k) if e else None for e in ended] + [None], object)[:2]}
        ids = same.step(action, seen, np.full(2, k), *flags, info)
        assert ids.tolist() == other.step(action, final, np.full(2, k), *flags).tolist()
        if ended.any():
            other.reset(start, mask=ended)
        if k % 100 == 0:
            same.commit()
    assert contents(same) == contents(other)
    assert contents(reopened(same)) == contents(reopened(other))


def counting(gym: Any, tells: bool) -> Any:
    """Return the class of environments with episodes of 3 steps, which info counts; `tells`: a reset's info says -1."""

    class Counting(gym.Env):  # type: ignore[misc, name-defined]
        observation_space = gym.spaces.Discrete(100)
        action_space = gym.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            self.steps = 0
            return 0, {"count": -1} if tells else {}

        def step(self, action: Any) -> Any:
            self.steps += 1
            return self.steps, 1.0, self.steps == 3, False, {"count": self.steps}

    return Counting


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("tells", [True, False])
def test_infos_belong_to_the_step_that_ended_an_episode(path: Path, gym: Any, mode: str, tells: bool) -> None:
    """SAME_STEP moves the info of that step to final_info; a NEXT_STEP reset tells nothing of a step."""
    one = counting(gym, tells)
    envs = gym.vector.SyncVectorEnv([one, one], autoreset_mode=gym.vector.AutoresetMode[mode])
    schema = archive.Schema.from_env(envs)
    fields = {**schema.steps, "info/count": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields, schema.num_envs, schema.autoreset)) as run:
        run.reset(*envs.reset(seed=0))
        for _ in range(10):
            action = envs.action_space.sample()
            run.step(action, *envs.step(action))
        for number in range(4):
            assert run.episode(number)["info/count"].tolist() == [1, 2, 3]
            assert run.episode(number)["observation"].tolist() == [0, 1, 2, 3]
    envs.close()


# --- resets by mask


def test_environments_are_reset_one_by_one(create: Callable[..., archive.Run]) -> None:
    """Each has its own length; what was going on is interrupted, what others do is not touched."""
    run = create({**FLOAT}, num_envs=3)
    no, zeros = np.zeros(3, bool), np.zeros(3)
    run.reset(np.full((3, 2), 1), mask=np.array([True, False, True]))
    with pytest.raises(archive.StateError, match="environment 1"):
        run.step(np.zeros(3, int), np.full((3, 2), 2), zeros, no, no)
    run.reset(np.full((3, 2), 5), mask=np.array([False, True, False]))
    run.step(np.zeros(3, int), np.full((3, 2), 2), zeros, no, no)
    run.reset(np.full((3, 2), 6), mask=no)  # nobody
    run.reset(np.full((3, 2), 7), mask=np.array([False, False, True]))
    run.step(np.zeros(3, int), np.full((3, 2), 3), zeros, no, no)
    assert run.lengths.tolist() == [3, 3, 4]
    seen = run["observation"][:, :, 0]
    assert seen.T.tolist() == [[1, 2, 3, 0], [5, 2, 3, 0], [1, 2, 7, 3]]
    table = run.episodes
    assert table["env"].tolist() == [0, 2, 1, 2]
    assert table["length"].tolist() == [2, 1, 2, 1]
    assert not (table["terminated"] | table["truncated"]).any()
    assert len(run.replay()) == 6  # the interrupted one bootstraps


@pytest.mark.parametrize("mask", [np.ones(2, bool), np.ones(3, int), True, [1, 0, 1], np.ones((3, 1), bool)])
def test_masks_that_do_not_fit_are_refused(create: Callable[..., archive.Run], mask: Any) -> None:
    run = create(num_envs=3)
    with pytest.raises(archive.FieldError, match="mask"):
        run.reset(np.zeros((3, 2)), mask=mask)
    assert run.num_rows == 0


# --- spaces


def everything(gym: Any) -> Any:
    """Return the class of an environment that has every space; its observations are samples."""
    spaces = gym.spaces

    class Everything(gym.Env):  # type: ignore[misc, name-defined]
        observation_space = spaces.Dict(
            {
                "box": spaces.Box(-np.inf, np.inf, (2, 3), np.float64),
                "image": spaces.Box(0, 255, (4, 5), np.uint8),
                "count": spaces.Discrete(5, start=-2),
                "bits": spaces.MultiBinary((2, 2)),
                "many": spaces.MultiDiscrete([3, 200]),
                "word": spaces.Text(6, min_length=0, charset="abcäß€漢\0"),
                "pair": spaces.Tuple((spaces.Discrete(3), spaces.Dict({"deep": spaces.Box(-1, 1, (), np.float16)}))),
            }
        )
        action_space = spaces.Tuple(
            (
                spaces.Discrete(2),
                spaces.Text(4, min_length=1),
                spaces.Dict({"move": spaces.Box(-1, 1, (3,), np.float32)}),
            )
        )

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            if seed is not None:
                self.observation_space.seed(seed)
            self.steps = 0
            return self.sample(), {}

        def sample(self) -> Any:
            seen = self.observation_space.sample()
            seen["word"] = seen["word"].rstrip("\0")  # what a fixed text can hold
            return seen

        def step(self, action: Any) -> Any:
            self.steps += 1
            return self.sample(), 1.0, self.steps == 4, False, {}

    return Everything


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return nested dicts and tuples as a dict by path; a tuple's key says that it is one."""
    if isinstance(value, dict):
        parts = {f"{path}/{key}": part for key, part in value.items()}
    elif isinstance(value, tuple):
        parts = {f"{path}/({key})": part for key, part in enumerate(value)}
    else:
        return {path: value}
    return {name: leaf for key, part in parts.items() for name, leaf in leaves(part, key).items()}


def check_leaves(found: Any, rows: list[Any]) -> None:
    """Compare nested arrays, a row each, with nested values bit for bit; text is compared as str."""
    arrays = leaves(found)
    expected = [leaves(row) for row in rows]
    assert arrays.keys() == expected[0].keys()
    for name, array in arrays.items():
        values = [row[name] for row in expected]
        if isinstance(values[0], str):
            assert array.tolist() == values, name
        else:
            assert same_bytes(array, np.array(values)), name


def test_every_space_comes_back_bit_for_bit(path: Path, gym: Any) -> None:
    env = everything(gym)()
    env.action_space.seed(1)
    seen, acts = [], []
    with archive.create(path, env) as run:
        observation, info = env.reset(seed=3)
        run.reset(observation, info)
        seen.append(observation)
        for _ in range(4):
            action = env.action_space.sample()
            observation, *rest = env.step(action)
            run.step(action, observation, *rest)
            seen.append(observation)
            acts.append(action)
        check_everything(run, seen, acts)
    with archive.open(path) as run:
        check_everything(run, seen, acts)


def check_everything(run: archive.Run, seen: list[Any], acts: list[Any]) -> None:
    """Look at an episode of four steps in every way there is."""
    batch = run.replay().gather(range(4))
    check_leaves(batch.observation, seen[:4])
    check_leaves(batch.next_observation, seen[1:])
    check_leaves(batch.action, acts)
    episode = run.episode(0)
    check_leaves(episode["observation"], seen)
    check_leaves(episode["action"], acts)
    sequence = run.replay(sequence_length=5).gather([0])
    check_leaves(first_item(sequence.observation), seen)
    words = [row["word"].encode() for row in seen]
    assert run["observation/word"][:].tolist() == words
    assert same_bytes(run["observation/pair/1/deep"][:], np.array([row["pair"][1]["deep"] for row in seen]))
    assert run["action/1"][:4].tolist() == [action[1].encode() for action in acts]


def first_item(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: first_item(part) for key, part in value.items()}
    return tuple(first_item(part) for part in value) if isinstance(value, tuple) else value[0]


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_every_space_of_a_vector_environment(path: Path, gym: Any, mode: str) -> None:
    """Both environments end in step 4; the fifth step is a reset in NEXT_STEP, and a step of the next episode else."""
    one = everything(gym)
    envs = gym.vector.SyncVectorEnv([one, one], autoreset_mode=gym.vector.AutoresetMode[mode])
    envs.action_space.seed(1)
    seen: list[list[Any]] = [[], []]
    with archive.create(path, envs) as run:
        observation, info = envs.reset(seed=3)
        run.reset(observation, info)
        for step in range(5):
            for env in range(2):
                seen[env].append(item(observation, env))
            action = envs.action_space.sample()
            observation, *rest, info = envs.step(action)
            run.step(action, observation, *rest, info)
            if step == 3 and mode == "SAME_STEP":
                for env in range(2):
                    seen[env].append(info["final_obs"][env])
        for env in range(2):
            check_leaves(run.episode(env)["observation"], seen[env][:5])
            assert leaves(run.episode(2 + env)["observation"]).keys() == leaves(seen[env][0]).keys()
        assert run.episodes["length"].tolist() == [4, 4, *([1, 1] if mode == "SAME_STEP" else [0, 0])]
    envs.close()
    with archive.open(path) as run:
        for env in range(2):
            check_leaves(run.episode(env)["observation"], seen[env][:5])


def item(value: Any, env: int) -> Any:
    """Return one environment's part of nested values; arrays are copied since Gymnasium fills them again."""
    if isinstance(value, dict):
        return {key: item(part, env) for key, part in value.items()}
    if isinstance(value, tuple) and not isinstance(value[0], str):
        return tuple(item(part, env) for part in value)
    return value[env] if isinstance(value, tuple) else value[env].copy()


def test_a_space_that_cannot_be_stored_is_refused_by_name(gym: Any) -> None:
    spaces = gym.spaces
    space = spaces.Dict({"graph": spaces.Graph(spaces.Discrete(2), None)})
    with pytest.raises(archive.SchemaError, match=r"observation/graph.*Graph"):
        archive.Schema.from_spaces(space, spaces.Discrete(2))
    with pytest.raises(archive.SchemaError, match=r"action.*Sequence"):
        archive.Schema.from_spaces(spaces.Discrete(2), spaces.Sequence(spaces.Discrete(2)))


def test_parts_that_are_missing_or_unknown_are_refused_by_name(create: Callable[..., archive.Run]) -> None:
    fields = {
        "observation/a": archive.Field("int64"),
        "observation/b/c": archive.Field("int64"),
        "action/0": archive.Field("int64"),
    }
    run = create(fields, tuples=("action",))
    for value, name in (
        ({"a": 1}, "observation/b/c"),
        ({"a": 1, "b": {}}, "observation/b/c"),
        ({"a": 1, "b": {"c": 2, "d": 3}}, "observation/b/d"),
        ({"a": 1, "b": {"c": 2}, "z": 0}, "observation/z"),
        (5, "observation"),
    ):
        with pytest.raises(archive.ArchiveError, match=name):
            run.reset(value)
    run.reset({"a": 1, "b": {"c": 2}})
    for action in ((), (1, 2), 5):
        with pytest.raises(archive.ArchiveError, match="action"):
            run.step(action, {"a": 1, "b": {"c": 2}}, 0.0, False, False)
    assert run.step((4,), {"a": 1, "b": {"c": 2}}, 0.0, True, False) == 0
    assert run.episode(0)["action"][0].tolist() == [4]
    assert type(run.replay().gather([0]).action) is tuple


def test_extended_parts_are_checked_as_those_of_a_step(create: Callable[..., archive.Run]) -> None:
    fields = {name: archive.Field("int64") for name in ("observation/a", "observation/b", "action/0", "action/1")}
    run = create(fields, tuples=("action",))
    z = np.arange(3)
    good = {"observation": {"a": z, "b": z + 1}, "action": (z + 2, z + 3), "reward": z}
    for change, name in (
        ({"observation": {"a": z, "b": z, "q": z}}, "observation/q"),
        ({"observation": {"a": z}}, "observation/b"),
        ({"action": (z, z, z)}, "action"),
        ({"action": (z,)}, "action"),
        ({"observation/a": z}, "observation"),
        ({"speed": z}, "speed"),
        ({"reward": z[:2]}, "reward"),
    ):
        with pytest.raises(archive.ArchiveError, match=name):
            run.extend({**good, **change})
    assert run.num_rows == 0
    by_name = {"observation/a": z, "observation/b": z + 1, "action/0": z + 2, "action/1": z + 3, "reward": z}
    assert run.extend(good).tolist() == [0, 1, 2]
    assert run.extend(by_name).tolist() == [3, 4, 5]
    batch = run.replay(sequence_length=3).gather([0, 3])
    for array, value in ((batch.observation["b"], z + 1), (batch.action[1], z + 3)):
        assert array.tolist() == [value.tolist()] * 2


# --- dtypes

NUMBERS = [
    "u1",
    "i1",
    *(
        f"{order}{kind}"
        for kind in ("u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16")
        for order in "<>"
    ),
]


def any_bits(dtype: str, shape: tuple[int, ...]) -> Array:
    """Return values of every bit pattern: NaN of any payload, quiet or not, infinities, subnormals, extremes."""
    kind = np.dtype(dtype)
    count = math.prod(shape)
    if kind.kind == "b":
        return np.random.default_rng(0).integers(0, 2, shape).astype(bool)
    found = np.frombuffer(np.random.default_rng(0).bytes(count * kind.itemsize), kind).copy()
    special: list[Any] = []
    if kind.kind in "iu":
        special = [np.iinfo(kind).min, np.iinfo(kind).max, 0]
    elif kind.kind in "fc":
        special = [np.nan, -np.nan, np.inf, -np.inf, -0.0, np.finfo(kind).max, np.finfo(kind).tiny / 2]
    found[: len(special)] = special
    if kind.kind == "f":  # a signalling NaN with a payload
        bits = found.view(f"{kind.str[0]}u{kind.itemsize}")
        bits[len(special)] = {2: 0x7C01, 4: 0x7F800123, 8: 0x7FF0000000000123}[kind.itemsize]
    return found.reshape(shape)


@pytest.mark.parametrize("dtype", ["?", *NUMBERS])
def test_every_dtype_comes_back_bit_for_bit(create: Callable[..., archive.Run], dtype: str) -> None:
    """As observation, action and extra field, from every door."""
    run = create({name: archive.Field(dtype, (3,)) for name in ("observation", "action", "extra")})
    values = any_bits(dtype, (8, 3))
    run.reset(values[0])
    for k in range(7):
        run.step(values[k], values[k + 1], 0.0, k == 6, False, extra=values[k])
    run.extend(
        {"observation": values, "action": values, "extra": values, "reward": np.zeros(8), "is_last": np.arange(8) == 7}
    )
    acted = values.copy()
    acted[7] = 0  # the last row is a final observation; np.concatenate would change the order of bytes
    for now in doors(run):
        for door in (now.replay(), now.replay(stack=1, stack_axis=-1), now.replay(sequence_length=1)):
            batch = door.gather([*range(7), *range(8, 15)])
            for name in ("observation", "action", "extra"):
                assert same_bytes(batch[name].reshape(14, 3), values[[*range(7)] * 2]), name
        assert same_bytes(now.replay().gather(range(7)).next_observation, values[1:])
        assert same_bytes(now.episode(1)["observation"], values)
        assert same_bytes(now.episode(1)["extra"], values[:7])
        assert same_bytes(now["observation"][8:], values)
        assert same_bytes(now["action"][8:], acted)
    with h5py.File(run.path) as file:
        assert same_bytes(file["steps/observation"][8:], values)


@pytest.mark.parametrize("dtype", ["?", "i1", "<u8", ">i2", "<f2", ">f4", "<f8"])
def test_rewards_keep_their_dtype_in_the_file(create: Callable[..., archive.Run], dtype: str) -> None:
    run = create({**FLOAT, "reward": archive.Field(dtype)})
    values = np.array([0, 1, 1, 0, 1]).astype(dtype)
    run.extend(
        {"observation": np.zeros((5, 2)), "action": np.zeros(5, int), "reward": values, "terminated": np.arange(5) == 4}
    )
    with reopened(run) as run:
        assert same_bytes(run["reward"][:], values)
        assert same_bytes(run.episode(0)["reward"], values)
        batch = run.replay(n_step=5, gamma=1.0).gather([0])
        assert (batch.reward.tolist(), batch.reward.dtype) == ([3.0], np.float32)
        assert run.episodes["return"].tolist() == [3.0]


REFUSED = ["O", "U4", "V3", "M8[s]", "m8[ns]", [("a", "i4"), ("b", "f4")], "S0", "g", "G"]


@pytest.mark.parametrize("dtype", REFUSED, ids=str)
def test_dtypes_that_cannot_be_stored_are_refused_by_name(dtype: Any) -> None:
    kind = np.dtype(dtype)
    if kind == np.dtype("f8") or kind == np.dtype("c16"):
        pytest.skip("long double is double here")
    with pytest.raises(archive.SchemaError, match=r"dtype .*cannot be stored") as caught:
        archive.Field(dtype)
    assert str(kind) in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        np.array("2020-01-01", "M8[s]"),
        np.array(5, "m8[s]"),
        np.array(None, object),
        np.array((1,), [("a", "i4")]),
        "text",
        b"text",
        None,
        {},
        1 + 2j,
    ],
    ids=repr,
)
def test_values_of_other_kinds_are_refused_by_name(create: Callable[..., archive.Run], value: Any) -> None:
    run = create({"observation": archive.Field("float32"), "action": archive.Field("int64")})
    with pytest.raises(archive.ArchiveError, match="observation"):
        run.reset(value)
    run.reset(0.0)
    with pytest.raises(archive.ArchiveError, match="action"):
        run.step(value, 0.0, 0.0, False, False)


@pytest.mark.parametrize(
    ("dtype", "good", "bad"),
    [
        ("uint8", [0, 255, np.int64(7), True, np.uint64(255)], [-1, 256, 1.0, np.float16(1)]),
        ("int8", [-128, 127, np.uint8(127)], [128, -129, np.uint8(128)]),
        ("uint64", [2**64 - 1, 0], [-1, 2**64, -(2**63)]),
        ("int64", [2**63 - 1, -(2**63)], [2**63, np.uint64(2**63)]),
        ("bool", [True, False, 0, 1], [2, -1, 0.0]),
        ("float16", [1.5, 70000.0, np.float64(1e-9), 3], [1j]),
        (">f4", [1e300, 2**40, True], [1j, "1"]),
        ("complex64", [1.5, 2j, 7], ["x"]),
    ],
)
def test_numbers_are_cast_by_the_rules(
    create: Callable[..., archive.Run], dtype: str, good: list[Any], bad: list[Any]
) -> None:
    """Integers where they fit, floats by numpy's same_kind rule; 70000 is infinity in float16."""
    run = create({"observation": archive.Field("int64"), "action": archive.Field(dtype)})
    run.reset(0)
    for value in bad:
        with pytest.raises(archive.ArchiveError, match="action"):
            run.step(value, 0, 0.0, False, False)
    for value in good:
        run.step(value, 0, 0.0, False, False)
    with np.errstate(over="ignore"):
        expected = np.array([np.array(value).astype(dtype) for value in good])
    assert same_bytes(run["action"][: len(good)], expected.astype(dtype))


# --- text


def test_text_with_nul_and_beyond_ascii(create: Callable[..., archive.Run]) -> None:
    words = ["", "a", "a\0b", "\0x", "äöü", "漢字", "🦉🦉", "\u200b", "x" * 8, "\0\0\0\0\0\0\0y"]
    fields = {"observation": archive.Text(8), "action": archive.Field("S8", (2,)), "info/note": archive.Text(8)}
    run = create(fields, episodes={"task": archive.Text(16)})
    run.reset(words[0], task="größe\0漢")
    for k, word in enumerate(words[1:]):
        run.step([word, words[k]], word, 0.0, False, False, {"note": word.encode()})
    run.end_episode()
    run.extend(
        {"observation": words, "action": [[w, w] for w in words], "reward": np.zeros(10), "info/note": np.array(words)}
    )
    for now in doors(run):
        assert now.episode(0)["observation"].tolist() == words
        assert now.episode(0)["info/note"].tolist() == words[1:]
        assert now["observation"][:10].tolist() == now["observation"][10:].tolist() == [w.encode() for w in words]
        assert now.episodes["task"].tolist() == ["größe\0漢", ""]
        batch = now.replay(stack=2).gather([0, 1, 2, 3])
        assert batch.next_observation.tolist() == [[words[k], words[k + 1]] for k in range(4)]
        assert batch.action.tolist() == [[words[k + 1], words[k]] for k in range(4)]
        assert now.replay(previous=("info/note",)).gather([3])["prev_info/note"].tolist() == [words[3]]


@pytest.mark.parametrize("word", ["123456789", "ääääö", "a\0", b"a\0", b"\xff\xfe", "\ud800", 5, 1.5, None], ids=repr)
def test_text_that_does_not_fit_is_refused(create: Callable[..., archive.Run], word: Any) -> None:
    """Too long, ending in NUL (which fixed text cannot tell from padding), no text at all or no UTF-8."""
    run = create({"observation": archive.Text(8), "action": archive.Field("int64")}, episodes={"task": archive.Text(8)})
    with pytest.raises(archive.ArchiveError, match="observation"):
        run.reset(word)
    with pytest.raises(archive.ArchiveError, match="task"):
        run.reset("", task=word)
    assert run.num_rows == 0


# --- odd shapes and amounts


@pytest.mark.parametrize("envs", [None, 2])
def test_shapes_of_no_elements(create: Callable[..., archive.Run], envs: int | None) -> None:
    fields = {
        "observation": archive.Field("float32", (0, 3)),
        "action": archive.Field(">i2", (2, 0)),
        "extra": archive.Field("S3", (0,)),
    }
    run = create(fields, num_envs=envs)
    lead = () if envs is None else (envs,)
    for k in range(2500):  # more than a chunk
        if k % 50 == 0:
            run.reset(np.zeros((*lead, 0, 3)))
        ends = np.full(lead, k % 50 == 49), np.zeros(lead, bool)
        run.step(
            np.zeros((*lead, 2, 0), int),
            np.zeros((*lead, 0, 3)),
            np.full(lead, k),
            *ends,
            extra=np.zeros((*lead, 0), "S3"),
        )
    for now in doors(run):
        batch = now.replay(stack=4, n_step=2).sample(7)
        assert batch.observation.shape == batch.next_observation.shape == (7, 4, 0, 3)
        assert (batch.action.shape, batch.action.dtype) == ((7, 2, 0), np.dtype(">i2"))
        assert now["observation"][:].shape == (2550, *lead, 0, 3)
        assert now.episode(3)["action"].shape == (50, 2, 0)
        assert now.num_steps == 2500 * (envs or 1)
        assert now.stats(["observation"])["observation"]["mean"].shape == (0, 3)
    with h5py.File(run.path) as file:
        assert file["steps/observation"][()].shape == (2550, *lead, 0, 3)


def test_no_steps_at_all(create: Callable[..., archive.Run]) -> None:
    run = create()
    for now in doors(run):
        assert (now.num_rows, now.num_steps, now.num_episodes, len(now)) == (0, 0, 0, 0)
        assert now["observation"][:].shape == (0, 2)
        assert all(len(column) == 0 for column in now.episodes.values())
        with pytest.raises(archive.NotEnoughData):
            now.replay(sequence_length=2, pad="left").sample(1)
        with pytest.raises(archive.IndexRangeError):
            now.episode(0)


def test_episodes_of_no_steps(create: Callable[..., archive.Run]) -> None:
    """Reset after reset: each leaves an observation and nothing to draw."""
    run = create()
    for k in range(5):
        run.reset(obs(k, k), seed=k)
    run.end_episode()
    for now in doors(run):
        assert now.episodes["length"].tolist() == [0] * 5
        assert not now.episodes["truncated"].any()
        assert now.episode(3)["observation"].tolist() == [[3, 3]]
        assert now.episode(3)["reward"].shape == (0,)
        assert len(now.replay(sequence_length=1, pad="left")) == len(now.replay()) == 0
        assert now["is_first"][:].all()
        assert now["is_last"][:].all()


def one_step_episodes(path: Path, count: int) -> None:
    """Record episodes of one step, each with its final observation; look at them here and after reopening."""
    schema = archive.Schema({"observation": archive.Field("int64"), "action": archive.Field("uint8")})
    with archive.create(path, schema, commit_every=None) as run:
        for first in range(0, count, 50_000):
            row = np.arange(2 * first, 2 * min(first + 50_000, count))
            final = row % 2 == 1
            columns = {"action": row % 7, "reward": row % 3, "terminated": ~final & (row % 4 == 0), "is_last": final}
            ids = run.extend({"observation": row, **columns})
            assert ids[0] == 2 * first
            assert (ids[1::2] == -1).all()
        check_one_step_episodes(run, count)
    with archive.open(path) as run:
        check_one_step_episodes(run, count)
    with archive.open(path, "a") as run:
        run.reset(0)
        run.step(1, 1, 0.0, True, False)
        assert len(run.replay()) == count + 1


def check_one_step_episodes(run: archive.Run, count: int) -> None:
    assert (run.num_episodes, run.num_steps, run.num_rows) == (count, count, 2 * count)
    table = run.episodes
    assert (table["length"] == 1).all()
    assert (table["start"] == 2 * np.arange(count)).all()
    assert (table["terminated"] == (np.arange(count) % 2 == 0)).all()
    assert (table["return"] == 2 * np.arange(count) % 3).all()
    for sampler in (archive.Uniform(), archive.Prioritized(), archive.Epoch()):
        replay = run.replay(stack=3, n_step=4, gamma=0.5, sampler=sampler)
        assert len(replay) == count
        batch = replay.sample(500)
        row = batch.index
        assert (row % 2 == 0).all()
        assert (batch.observation == np.stack([0 * row, 0 * row, row], 1)).all()
        assert (batch.next_observation == np.stack([0 * row, row, row + 1], 1)).all()
        assert (batch.reward == row % 3).all()
        assert (batch.discount == np.where(row % 4 == 0, 0, 0.5)).all()


def test_many_one_step_episodes(path: Path) -> None:
    one_step_episodes(path, 100_000)


@pytest.mark.slow
def test_a_million_one_step_episodes(path: Path) -> None:
    one_step_episodes(path, 1_000_000)


def test_metadata_of_a_megabyte(tmp_path: Path) -> None:
    metadata = {
        "text": 'äß€\0\n"' * 150_000,
        "numbers": list(range(1000)),
        "nested": {"none": None, "deep": [{"x": 1.5}]},
    }
    assert len(json.dumps(metadata)) > 1 << 20
    path = tmp_path / "run.h5"
    schema = archive.Schema(FLOAT)
    with archive.create(path, schema, metadata=metadata) as run:
        assert run.metadata == metadata
    with archive.open(path) as run:
        assert run.metadata == metadata
    with h5py.File(path) as file:
        assert json.loads(file["meta/metadata_json"][0]) == metadata
    with archive.open(path, "a", metadata={"small": 1}) as run:
        assert run.metadata == {"small": 1}
    with archive.open(path) as run:
        assert run.metadata == {"small": 1}
    with archive.open(path, "a", metadata=metadata) as run:
        run.reset(obs(1, 1))
    with archive.open(path) as run:
        assert (run.metadata, run.num_rows) == (metadata, 1)


# --- odd inputs


class OnlyDlpack:
    """An array that can do nothing but hand itself over."""

    def __init__(self, array: Array, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        if self.device[0] != 1:
            raise BufferError("this memory is on another device")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class OnlyArray:
    """An object with __array__."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self.array.astype(dtype) if dtype is not None else self.array


class Subclass(np.ndarray):
    """An array of a class of its own."""


def read_only(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def strided(array: Array) -> Array:
    """Return an equal array whose elements are spread backwards over a larger one."""
    wide = np.zeros((*array.shape, 2), array.dtype)
    wide[..., 0] = array[..., ::-1]
    return wide[..., 0][..., ::-1]


FORMS = {
    "strided": strided,
    "fortran": np.asfortranarray,
    "read-only": read_only,
    "list": lambda array: array.tolist(),
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "dlpack": OnlyDlpack,
    "__array__": OnlyArray,
    "subclass": lambda array: array.view(Subclass),
}


@pytest.mark.parametrize("form", FORMS)
def test_inputs_of_any_form(create: Callable[..., archive.Run], form: str) -> None:
    """By every door: step, add, extend, reset and update_priorities."""
    check_inputs(create, FORMS[form])


def check_inputs(create: Callable[..., archive.Run], change: Callable[[Array], Any]) -> None:
    fields = {"observation": archive.Field("float32", (3, 4)), "action": archive.Field("int64", (2,))}
    frames = np.random.default_rng(0).random((8, 3, 4), np.float32)
    acts = np.arange(14).reshape(7, 2)
    rewards = np.arange(7, dtype=np.float32)
    one = create(fields)
    one.reset(change(frames[0]))
    for k in range(7):
        one.step(change(acts[k]), change(frames[k + 1]), rewards[k], False, False)
    two = create(fields)
    for k in range(7):
        two.add(change(frames[k]), change(acts[k]), rewards[k], change(frames[k + 1]), False, False)
    three = create(fields)
    three.extend({"observation": change(frames[:7]), "action": change(acts), "reward": change(rewards)})
    for run, rows in ((one, 8), (two, 8), (three, 7)):
        assert same_bytes(run["observation"][:], frames[:rows])
        assert same_bytes(run["action"][:7], acts)
        assert same_bytes(run["reward"][:7], rewards)
    replay = one.replay(sampler=archive.Prioritized(alpha=1.0, epsilon=0.0))
    replay.update_priorities(change(np.arange(7)), change(np.array([0, 0, 5.0, 0, 0, 0, 0])))
    assert set(replay.draw(20)[0].tolist()) == {2}
    assert same_bytes(replay.gather(change(np.array([2, 3]))).observation, frames[2:4])


def test_inputs_are_copied(create: Callable[..., archive.Run]) -> None:
    """Environments use one buffer again and again."""
    run = create()
    seen, action = np.zeros(2, np.float32), np.zeros((), np.int64)
    run.reset(seen)
    for _ in range(5):
        seen += 1
        action += 1
        run.step(action, seen, 0.0, False, False)
    assert run["observation"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert run["action"][:5].tolist() == [1, 2, 3, 4, 5]


def test_torch_tensors(create: Callable[..., archive.Run], torch: Any) -> None:
    check_inputs(create, lambda array: torch.from_numpy(np.ascontiguousarray(array)))
    check_inputs(
        create, lambda array: torch.from_numpy(np.ascontiguousarray(array.T)).permute(*reversed(range(array.ndim)))
    )
    run = create({"observation": archive.Field("float16", (2,)), "action": archive.Field("bool")})
    run.reset(torch.tensor([1.5, float("nan")], dtype=torch.float16))
    run.step(
        torch.tensor(True),
        torch.zeros(2, dtype=torch.float16),
        torch.tensor(2.5),
        torch.tensor(False),
        torch.tensor(True),
    )
    assert run["reward"][:1].tolist() == [2.5]
    assert run.episodes["truncated"].tolist() == [True]
    with pytest.raises(archive.ArchiveError, match="cpu"):
        run.reset(torch.zeros(2, device="meta"))


def test_other_devices_are_refused_with_the_sentence_that_helps(create: Callable[..., archive.Run]) -> None:
    run = create()
    with pytest.raises(archive.FieldTypeError, match=r"observation.*CPU.*\.cpu\(\)"):
        run.reset(OnlyDlpack(obs(1, 2), device=(2, 0)))
    assert run.num_rows == 0


# --- episode columns

COLUMNS = {
    "task": archive.Text(12),
    "success": archive.Field("bool"),
    "score": archive.Field("float32"),
    "level": archive.Field("int16"),
}


def test_columns_are_given_at_any_time(create: Callable[..., archive.Run]) -> None:
    run = create(FLOAT, episodes=COLUMNS)
    run.reset(obs(0, 0), seed=7, task="reach", level=3)
    run.step(0, obs(1, 1), 1.0, False, False)
    run.end_episode(score=0.5, success=True)
    run.reset(obs(0, 0))
    run.step(0, obs(1, 1), 1.0, True, False)
    run.annotate(0, level=-4, task="größer")
    run.annotate(1, score=np.float32(np.nan))
    expected = {"task": ["größer", ""], "success": [True, False], "level": [-4, 0], "seed": [7, -1]}
    for now in doors(run):
        assert {name: now.episodes[name].tolist() for name in expected} == expected
        assert now.episodes["score"][0] == 0.5
        assert np.isnan(now.episodes["score"][1])
        assert now.episodes["level"].dtype == np.int16
    with archive.open(run.path, "a") as again:
        again.annotate(0, success=False)
        again.annotate(1, task="late")
        again.reset(obs(0, 0), task="third")
        again.commit()
        with archive.open(run.path) as reader:
            assert reader.episodes["task"].tolist() == ["größer", "late", "third"]
        again.annotate(2, level=9)
    with archive.open(run.path) as reader:
        assert reader.episodes["success"].tolist() == [False, False, False]
        assert reader.episodes["level"].tolist() == [-4, 0, 9]
    with h5py.File(run.path) as file:
        assert file["episodes/task"][:].tolist() == ["größer".encode(), b"late", b"third"]


def test_columns_of_environments(create: Callable[..., archive.Run]) -> None:
    run = create(FLOAT, num_envs=3, episodes=COLUMNS)
    run.reset(np.zeros((3, 2)), seed=10, task=["a", "b", "c"], level=5)
    run.reset(
        np.zeros((3, 2)), seed=[1, 2, 3], mask=np.array([False, True, True]), task=["x", "y", "z"], level=[1, 2, 3]
    )
    run.end_episode(score=[0.5, 1.5, 2.5])
    assert run.episodes["env"].tolist() == [0, 1, 2, 1, 2]
    assert run.episodes["seed"].tolist() == [10, 11, 12, 2, 3]
    assert run.episodes["task"].tolist() == ["a", "b", "c", "y", "z"]
    assert run.episodes["level"].tolist() == [5, 5, 5, 2, 3]
    assert run.episodes["score"].tolist() == [0.5, 0, 0, 1.5, 2.5]


def test_seeds_of_environments(create: Callable[..., archive.Run]) -> None:
    """As Gymnasium gives them: one for all is counted up, None stands for no seed."""
    run = create(FLOAT, num_envs=3)
    for seed in (7, [4, None, 6], np.array([1, 2, 3], np.uint8), None):
        run.reset(np.zeros((3, 2)), seed=seed)
    expected = [7, 8, 9, 4, -1, 6, 1, 2, 3, -1, -1, -1]
    assert run.episodes["seed"].tolist() == expected
    before = contents(run)
    for bad in (1.5, "x", [1, 2], [1.5, 2, 3], True, 1 << 63, [[1, 2, 3]]):
        with pytest.raises(archive.ArchiveError, match="seed"):
            run.reset(np.zeros((3, 2)), seed=bad)
        assert contents(run) == before
    with reopened(run) as run:
        assert run.episodes["seed"].tolist() == expected
        assert run.episodes["seed"].dtype == np.int64


@pytest.mark.parametrize(
    "columns",
    [
        {"speed": 1},
        {"length": 3},
        {"return": 1.0},
        {"terminated": True},
        {"task": "a text that is too long"},
        {"task": 5},
        {"success": 2},
        {"score": "x"},
        {"level": 40000},
        {"level": 1.5},
        {"level": [1, 2]},
    ],
    ids=str,
)
def test_columns_that_do_not_fit_are_refused_by_name(
    create: Callable[..., archive.Run], columns: dict[str, Any]
) -> None:
    run = create(FLOAT, episodes=COLUMNS)
    run.reset(obs(0, 0))
    run.step(0, obs(1, 1), 1.0, False, False)
    before = contents(run)
    (name,) = columns
    for call in (
        lambda: run.reset(obs(0, 0), **columns),
        lambda: run.end_episode(**columns),
        lambda: run.annotate(0, **columns),
    ):
        with pytest.raises(archive.ArchiveError, match=name):
            call()
        assert contents(run) == before


def test_annotations_of_episodes_that_do_not_exist_are_refused(create: Callable[..., archive.Run]) -> None:
    run = create(FLOAT, episodes=COLUMNS)
    run.reset(obs(0, 0))
    for number in (1, -2, 10**9):
        with pytest.raises(archive.IndexRangeError, match=str(number)):
            run.annotate(number, hidden=True)
    reader = reopened(run)
    with reader, pytest.raises(archive.StateError):
        reader.annotate(0, hidden=True)


@pytest.mark.parametrize(
    "columns",
    [{"task": archive.Text(8)}, {**COLUMNS, "more": archive.Field("bool")}, {"success": archive.Field("int8")}],
)
def test_columns_that_differ_from_the_file_are_refused(create: Callable[..., archive.Run], columns: Any) -> None:
    run = create(FLOAT, episodes=COLUMNS)
    run.close()
    with pytest.raises(archive.SchemaError, match="episode"):
        archive.open(run.path, "a", archive.Schema(FLOAT, episodes=columns))
    with archive.open(run.path, "a", archive.Schema(FLOAT, episodes=COLUMNS)) as again:
        again.reset(obs(0, 0), task="a", level=2)
        assert again.episodes["level"].tolist() == [2]


# --- hidden episodes

SAMPLERS = [archive.Uniform(), archive.Prioritized(), archive.Epoch()]


def hundred(create: Callable[..., archive.Run]) -> archive.Run:
    """Return a run of 10 episodes of 10 steps; the last goes on. Step k is at row k + (its episode)."""
    run = create()
    for k in range(100):
        if k % 10 == 0:
            run.reset(obs(k, -1))
        run.step(0, obs(k, k), k, k % 10 == 9 and k < 99, False)
    return run


def steps_of(index: Array) -> set[int]:
    """Return the steps that rows of `hundred` stand for."""
    return {int(row) - int(row) // 11 for row in index}


@pytest.mark.parametrize("mode", [None, "a", "r"])
def test_hidden_episodes_are_never_drawn(create: Callable[..., archive.Run], mode: str | None) -> None:
    run = hundred(create)
    for number in (2, 5, 9):
        run.annotate(number, hidden=True)
    with run if mode is None else reopened(run, mode) as now:
        ways = ({}, {"n_step": 3}, {"sequence_length": 4}, {"sequence_length": 4, "pad": "left"}, {"stride": 5})
        for sampler, options in product(SAMPLERS, ways):
            replay = now.replay(sampler=sampler, **options)
            found = steps_of(replay.draw(20 * len(replay))[0])
            assert len(found) == len(replay)
            assert {k // 10 for k in found} == {0, 1, 3, 4, 6, 7, 8}
            with pytest.raises(archive.IndexRangeError):
                replay.gather([22])
        assert now.episode(2)["reward"].tolist() == list(range(20, 30))
        assert now.episodes["hidden"].nonzero()[0].tolist() == [2, 5, 9]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_left_when_everything_is_hidden(create: Callable[..., archive.Run], sampler: Any) -> None:
    run = hundred(create)
    replay = run.replay(sampler=sampler, batch_size=4)
    first = replay.draw()[0].tolist()
    for number in range(10):
        run.annotate(number, hidden=True)
    assert len(replay) == 0
    with pytest.raises(archive.NotEnoughData):
        replay.draw()
    for number in range(10):
        run.annotate(number, hidden=False)
    assert len(replay) == 100
    assert not isinstance(sampler, archive.Epoch) or set(replay.draw(96)[0]).isdisjoint(first)


def test_hidden_episodes_keep_their_place_in_the_capacity(create: Callable[..., archive.Run]) -> None:
    run = hundred(create)
    replay = run.replay(capacity=30)
    assert steps_of(replay.draw(1000)[0]) == set(range(70, 100))
    run.annotate(8, hidden=True)
    assert steps_of(replay.draw(1000)[0]) == {*range(70, 80), *range(90, 100)}
    run.annotate(8, hidden=False)
    assert steps_of(replay.draw(1000)[0]) == set(range(70, 100))


def test_a_reader_sees_what_was_hidden(create: Callable[..., archive.Run]) -> None:
    run = hundred(create)
    run.commit()
    with archive.open(run.path) as reader:
        replays = [reader.replay(sampler=sampler, prefetch=0) for sampler in SAMPLERS]
        for hidden in (True, False, True):
            run.annotate(4, hidden=hidden)
            run.commit()
            reader.refresh()
            for replay in replays:
                assert len(replay) == (90 if hidden else 100)
                assert (4 in {k // 10 for k in steps_of(replay.draw(2000)[0])}) == (not hidden)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("grows", [False, True])
@pytest.mark.parametrize("number", [3, 9])
def test_priorities_of_hidden_episodes_come_back(
    create: Callable[..., archive.Run], number: int, grows: bool, resume: bool
) -> None:
    """Also of the episode going on, of steps that arrive meanwhile and of updates meanwhile, and through a state."""
    run = hundred(create)
    replay = run.replay(sampler=archive.Prioritized(alpha=1.0, epsilon=0.0))
    rows = np.array([k + k // 10 for k in range(100)])
    replay.update_priorities(rows, np.arange(100) + 1.0)
    expected = (np.arange(100) + 1.0).tolist()
    run.annotate(number, hidden=True)
    assert len(replay) == 90
    assert number not in {k // 10 for k in steps_of(replay.draw(3000)[0])}
    mine = 10 * number + 4
    replay.update_priorities([rows[mine]], [500.0])  # kept for later
    expected[mine] = 500.0
    if grows:
        run.step(0, obs(100, 100), 0.0, False, False)
        expected.append(500.0)  # the largest seen
        rows = np.append(rows, rows[-1] + 1)
        assert len(replay) == (91 if number != 9 else 90)
    if resume:
        run.checkpoint(replay=replay.state_dict())
        run = reopened(run, "a")
        replay = run.replay(state=run.last_checkpoint["replay"])
    run.annotate(number, hidden=False)
    assert len(replay) == len(rows)
    total = sum(expected)
    index, _ = replay.draw(200_000)
    counts = np.array([(index == row).sum() for row in rows])
    np.testing.assert_allclose(counts / 200_000, np.array(expected) / total, atol=2e-5)  # one from each equal part
    leaves = replay.state_dict()["priorities"]["leaves"]
    assert leaves.tolist() == expected
    run.close()


# --- priorities that come with steps

WITH_PRIORITY = {
    "observation": archive.Field("int64"),
    "action": archive.Field("int64"),
    "priority": archive.Field("float32"),
}
PLAIN = archive.Prioritized(alpha=1.0, epsilon=0.0)


def test_a_priority_given_with_a_step_is_its_leaf(create: Callable[..., archive.Run]) -> None:
    """By step, add and extend; where none is given, the row enters at the largest priority seen."""
    run = create(WITH_PRIORITY)
    early = run.replay(sampler=PLAIN)
    run.reset(0)
    for k, priority in enumerate([0.25, None, 0.5]):
        run.step(0, k + 1, 0.0, False, False, priority=priority)
    run.add(3, 0, 0.0, 4, False, False, priority=0.125)
    run.add(4, 0, 0.0, 5, True, False)
    nan = np.nan
    rows = {
        "observation": np.arange(4),
        "action": np.zeros(4, int),
        "reward": np.zeros(4),
        "is_last": np.arange(4) == 3,
    }
    run.extend({**rows, "priority": np.array([0.75, nan, 0.0, nan])})
    run.extend(rows)
    expected = [0.25, 1, 0.5, 0.125, 1, 0.75, 1, 0, 1, 1, 1]
    assert early.state_dict()["priorities"]["leaves"].tolist() == expected
    for now in doors(run):
        late = now.replay(sampler=PLAIN)
        assert late.state_dict()["priorities"]["leaves"].tolist() == expected
        assert 8 not in late.draw(1000)[0]  # row 8 is step 7, whose leaf is 0
        assert same_bytes(now["priority"][:3], np.array([0.25, nan, 0.5], np.float32))
        assert now.replay().gather([0])["priority"].tolist() == [0.25]


def test_given_priorities_follow_the_exponent_and_the_capacity(create: Callable[..., archive.Run]) -> None:
    run = create(WITH_PRIORITY, num_envs=2)
    run.reset(np.zeros(2, int))
    no = np.zeros(2, bool)
    replay = run.replay(capacity=6, sampler=archive.Prioritized(alpha=0.5, epsilon=0.25))
    for k in range(5):
        run.step(np.zeros(2, int), np.full(2, k), np.zeros(2), no, no, priority=np.array([k, 10 * k]))
    state = replay.state_dict()["priorities"]
    np.testing.assert_allclose(state["leaves"], np.sqrt([2.25, 3.25, 4.25, 20.25, 30.25, 40.25]))
    replay.update_priorities([2], [12.0])
    np.testing.assert_allclose(replay.state_dict()["priorities"]["leaves"][0], np.sqrt(12.25))


def test_given_priorities_do_not_raise_the_largest_seen(create: Callable[..., archive.Run]) -> None:
    """Else it would matter when a replay looks: what enters without a priority would depend on what it saw before."""
    run = create(WITH_PRIORITY)
    early = run.replay(sampler=PLAIN)
    run.reset(0)
    for k, priority in enumerate([0.5, 40.0, None]):
        run.step(0, k + 1, 0.0, False, False, priority=priority)
        assert len(early) == k + 1
    for replay in (early, run.replay(sampler=PLAIN)):
        assert replay.state_dict()["priorities"]["leaves"].tolist() == [0.5, 40.0, 1.0]


@pytest.mark.parametrize("priority", [-1.0, np.inf, -np.inf, "high", 1e300])
def test_priorities_that_mean_nothing_are_refused_with_the_step(
    create: Callable[..., archive.Run], priority: Any
) -> None:
    """1e300 does not fit the float32 of the field."""
    run = create(WITH_PRIORITY)
    run.reset(0)
    before = contents(run)
    with pytest.raises(archive.ArchiveError, match="priority"):
        run.step(0, 1, 0.0, False, False, priority=priority)
    with pytest.raises(archive.ArchiveError, match="priority"):
        run.add(0, 0, 0.0, 1, False, False, priority=priority)
    assert contents(run) == before
    rows = {"observation": np.arange(2), "action": np.zeros(2, int), "reward": np.zeros(2), "is_first": [True, False]}
    with pytest.raises(archive.ArchiveError, match="priority"):
        run.extend({**rows, "priority": [1.0, priority]})
    assert contents(run) == before


# --- many environments


@pytest.mark.parametrize(
    ("envs", "shape"),
    [
        (256, (84, 84)),
        (256, (1024,)),
        (256, (20_000,)),
        (1024, ()),
        (1024, (256,)),
        (1024, (84 * 84,)),
        pytest.param(1024, (16, 16), marks=pytest.mark.slow),  # frames have a view for each environment
        pytest.param(1024, (84, 84), marks=pytest.mark.slow),
    ],
)
def test_many_environments_stay_within_the_memory_rule(path: Path, envs: int, shape: tuple[int, ...]) -> None:
    """Chunks still open and the tail, as the file has them, take at most 64 MiB; what was recorded comes back."""
    schema = archive.Schema(
        {"observation": archive.Field("float32" if not shape else "uint8", shape), "action": archive.Field("int64")}
    )
    frames = np.random.default_rng(0).integers(0, 256, (4, envs, *shape)).astype(np.uint8)
    no = np.zeros(envs, bool)
    with archive.create(path, schema, num_envs=envs, autoreset="NextStep", commit_every=None) as run:
        run.reset(frames[0])
        for k in range(1, 4):
            ids = run.step(np.arange(envs), frames[k], np.full(envs, k), np.arange(envs) % 3 == k, no)
            run.commit()
        with archive.open(path) as reader:
            assert same_bytes(reader["observation"][3], frames[3].astype(reader["observation"].dtype))
        with h5py.File(path) as file:
            fields = [file[f"steps/{name}"] for name in run.schema.steps]
            chunks = sum(math.prod(field.chunks) * field.dtype.itemsize * envs for field in fields)
            tails: list[int] = []
            file["tail"].visititems(
                lambda name, found: tails.append(found.size) if isinstance(found, h5py.Dataset) else None
            )
        assert chunks + sum(tails) <= 64 << 20
        assert (ids >= 0).sum() == envs - (np.arange(envs) % 3 == 2).sum()
        batch = run.replay().gather(np.arange(envs) << 32)
        assert same_bytes(batch.next_observation, frames[1].astype(batch.observation.dtype))
        assert batch.action.tolist() == list(range(envs))


def test_rows_are_pairs_of_neighbours(create: Callable[..., archive.Run]) -> None:
    """Over chunks: with 40 environments every next observation is the next row's."""
    run = create(
        {"observation": archive.Field("int64"), "action": archive.Field("int64")}, num_envs=40, autoreset="NextStep"
    )
    run.reset(np.arange(40))
    no = np.zeros(40, bool)
    for k in range(1, 3000):
        run.step(np.full(40, k), np.arange(40) + 40 * k, np.zeros(40), no, no)
    with reopened(run) as run:
        batch = run.replay().sample(2000)
        assert (batch.next_observation - batch.observation == 40).all()
        assert (batch.observation == (batch.index >> 32) + 40 * (batch.index & 0xFFFFFFFF)).all()
        assert all(b - a == 40 for a, b in pairwise(run["observation"][:, 3].tolist()))


# --- what is refused leaves the run as it was


def plain_run(create: Callable[..., archive.Run], **columns: archive.Field) -> archive.Run:
    """Return a run of three whole episodes of one step."""
    steps = {"observation": archive.Field("f4"), "action": archive.Field("i4")}
    run = create(steps, episodes=columns)
    for _ in range(3):
        run.reset(0.0)
        run.step(0, 1.0, 1.0, True, False)
    return run


@pytest.mark.parametrize("number", [True, np.bool_(True), 1.0, 0.5, "1", None, [0, 1], 3, -1])
def test_annotations_name_one_episode(create: Callable[..., archive.Run], number: Any) -> None:
    run = plain_run(create, task=archive.Text(8))
    with pytest.raises(archive.ArchiveError, match="episode"):
        run.annotate(number, task="x")
    run.annotate(np.int64(1), task="y")
    assert run.episodes["task"].tolist() == ["", "y", ""]


def test_episode_columns_may_have_any_name_that_calls_leave_free(create: Callable[..., archive.Run]) -> None:
    run = plain_run(create, number=archive.Field("i4"), values=archive.Field("i4"), env_id=archive.Field("i4"))
    run.reset(0.0, number=3, values=4, env_id=5)
    run.annotate(0, number=6, values=7, env_id=8)
    assert [run.episodes[k].tolist() for k in ("number", "values", "env_id")] == [
        [6, 0, 0, 3],
        [7, 0, 0, 4],
        [8, 0, 0, 5],
    ]


@pytest.mark.parametrize("name", ["self", "info", "mask", "observation", "episode", "seed", "hidden", "truncated"])
def test_names_that_no_call_could_fill_are_refused(name: str) -> None:
    steps = {"observation": archive.Field("f4"), "action": archive.Field("i4")}
    with pytest.raises(archive.SchemaError, match=name):
        archive.Schema(steps, episodes={name: archive.Field("f4")})
    if name not in ("observation", "seed", "hidden", "truncated"):
        with pytest.raises(archive.SchemaError, match=name):
            archive.Schema(steps | {name: archive.Field("f4")})


@pytest.mark.parametrize("value", ["no", 2, [True], None, np.zeros(2, bool)])
def test_flags_are_flags(create: Callable[..., archive.Run], value: Any) -> None:
    run = plain_run(create)
    run.reset(0.0)
    run.step(0, 1.0, 1.0, False, False)
    for action in (lambda: run.annotate(0, hidden=value), lambda: run.end_episode(value)):
        with pytest.raises(archive.ArchiveError, match=r"hidden|truncated"):
            action()
    run.end_episode(np.bool_(True))
    assert run.episodes["truncated"].tolist() == [False, False, False, True]


def deep(depth: int) -> Any:
    """Return lists in lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", [10**5000, deep(101), deep(5000)], ids=["digits", "deep", "deeper"])
def test_checkpoint_values_that_cannot_come_back_are_refused(create: Callable[..., archive.Run], value: Any) -> None:
    run = plain_run(create)
    with pytest.raises(archive.FieldTypeError, match="checkpoint"):
        run.checkpoint(value=value)
    run.checkpoint(value=deep(90), number=10**4000)
    assert run.last_checkpoint == {"value": deep(90), "number": 10**4000}


def test_checkpoints_of_torch_values_are_refused_with_the_sentence_that_helps(
    create: Callable[..., archive.Run], torch: Any
) -> None:
    run = plain_run(create)
    for value in (torch.nn.Parameter(torch.ones(2)), torch.ones(2, dtype=torch.bfloat16)):
        with pytest.raises(archive.FieldTypeError, match="checkpoint"):
            run.checkpoint(value=value)
    run.checkpoint(value=torch.ones(2))
    assert run.last_checkpoint["value"].tolist() == [1.0, 1.0]


def test_added_stacks_are_checked_before_an_episode_breaks(create: Callable[..., archive.Run]) -> None:
    fields = {"observation": archive.Field("f4", (), stacked=3, padding="zero"), "action": archive.Field("i4")}
    run = create(fields, num_envs=2)
    none = np.zeros(2, bool)

    def add(first: Any, second: Any, ahead: Any, ahead_second: Any) -> None:
        run.add(
            np.array([first, second], "f4"),
            none.astype(int),
            none * 1.0,
            np.array([ahead, ahead_second], "f4"),
            none,
            none,
        )

    add((0, 0, 1), (0, 0, 1), (0, 1, 2), (0, 1, 2))
    before = run.lengths.tolist(), run.num_episodes
    with pytest.raises(archive.FieldError, match="stack"):
        add((0, 0, 7), (9, 9, 2), (0, 7, 8), (9, 2, 3))
    assert (run.lengths.tolist(), run.num_episodes) == before
    add((0, 1, 2), (0, 1, 2), (1, 2, 3), (1, 2, 3))
    assert (run.lengths.tolist(), run.num_episodes) == ([3, 3], 2)


def test_a_checkpoint_after_a_rewind_keeps_older_ones(create: Callable[..., archive.Run]) -> None:
    for keep in (2, 3):
        run = plain_run(create)
        for number in range(3):
            run.checkpoint(keep=3, number=number)
        run.rewind(run.checkpoints()[-1])
        run.checkpoint(keep=keep, number=9)
        assert [c["number"] for c in run.checkpoints()] == [9, 0]
        run.checkpoint(keep=keep, number=10)
        assert [c["number"] for c in run.checkpoints()] == [10, 9, 0][:keep]
        run.close()


@pytest.mark.parametrize(
    "rows",
    [
        None,
        5,
        [1, 2],
        {},
        {"observation": 3.0},
        {"observation": None},
        {"observation": {}},
        {5: [1.0], "observation": [1.0]},
    ],
)
def test_rows_that_are_none_are_refused(create: Callable[..., archive.Run], rows: Any) -> None:
    run = plain_run(create)
    for env in (0, "a", None, 0.5, 1):
        with pytest.raises(archive.ArchiveError):
            run.extend(rows, env=env)
    assert (run.num_rows, run.num_episodes) == (6, 3)


def test_arguments_of_no_use_are_refused_in_our_words(create: Callable[..., archive.Run]) -> None:
    run = plain_run(create)
    for action in (
        lambda: run.rewind(None),
        lambda: run.rewind({}),
        lambda: run.episode("a"),
        lambda: run.episode(None),
        lambda: run.episode(0.5),
        lambda: run.reset(0.0, mask=[[1], [1, 2]]),
        lambda: run[["a"]],
        lambda: run["action"][999],
        lambda: run["action"]["a"],
        lambda: run.stats("nothing"),
        lambda: archive.Linear("a", 1.0, 10),
        lambda: archive.Linear(0.0, 1.0, None),
        lambda: archive.Text("a"),
        lambda: archive.Field("f4", stacked="a"),
        lambda: archive.Field("f4", (2,), stacked=2, stack_axis="a"),
        lambda: archive.Field(None),
        lambda: archive.Field("f4", (1.5,)),
        lambda: archive.Schema(None),
        lambda: archive.Schema([1]),
        lambda: archive.Schema({}, episodes=["a"]),
        lambda: archive.Schema(dict(run.schema.steps), episodes={"a": "S5"}),
        lambda: archive.Schema(dict(run.schema.steps), num_envs="a"),
        lambda: archive.Schema(dict(run.schema.steps), num_envs=1.5),
        lambda: archive.Schema.from_env(object()),
        lambda: archive.Schema.from_example(5),
        lambda: archive.Prioritized(stratified="x"),
        lambda: run.replay(state=run.replay().state_dict() | {"batches": -5}),
    ):
        with pytest.raises(archive.ArchiveError):
            action()
    run.close()
    with pytest.raises(archive.StateError, match="closed"):
        run.stats()


def test_lists_of_large_integers(create: Callable[..., archive.Run]) -> None:
    """numpy would make floats of them."""
    run = create({"observation": archive.Field("uint64", (2,)), "action": archive.Field("int64", (2,))})
    run.reset([2**64 - 1, 0])
    run.step([-(2**63), 2**63 - 1], (2**63, 1), 0.0, False, False)
    assert run["observation"][:].tolist() == [[2**64 - 1, 0], [2**63, 1]]
    assert run["action"][0].tolist() == [-(2**63), 2**63 - 1]
    for action in ([2**63, 0], [2**64, 0], [0, -(2**63) - 1]):
        with pytest.raises(archive.FieldError, match="does not fit"):
            run.step(action, [0, 0], 0.0, False, False)
    for observation in ([2**64 - 1, 0.5], [2**64 - 1, None], [2**64 - 1, -1]):
        with pytest.raises((archive.FieldError, archive.FieldTypeError), match="observation"):
            run.step([0, 0], observation, 0.0, False, False)


def test_open_takes_what_create_takes(path: Path) -> None:
    """The reset mode may change from session to session; the number of environments and the codec may not."""
    gymnasium = pytest.importorskip("gymnasium")
    schema = archive.Schema({"observation": archive.Field("f4"), "action": archive.Field("i4")}, num_envs=2)
    archive.create(path, schema).close()
    mode = gymnasium.vector.AutoresetMode.NEXT_STEP
    with archive.open(path, "a", autoreset=mode, num_envs=2, compression="gzip") as run:
        run.reset(np.zeros(2))
        ended = np.array([True, False])
        for _ in range(2):
            run.step(np.zeros(2, int), np.zeros(2), np.zeros(2), ended, np.zeros(2, bool))
        assert run.schema.autoreset == "NextStep"
    for options in ({"num_envs": 3}, {"compression": "zstd"}, {"autoreset": "Never"}):
        with pytest.raises(archive.SchemaError, match=next(iter(options))):
            archive.open(path, "a", **options)
