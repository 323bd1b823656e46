"""Golden vectors: tiny inputs whose outputs were produced by the older systems' own code, and how they resume.

In all of them step k has observation k, action k and reward k (k = 1, 2, 3, ...) and gamma is 0.5; a 0 in a stack is a
zero frame. Where a system differs from ours on purpose, the test says so and checks the difference.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archive
from archive._core import SumTree

Array = np.ndarray[Any, Any]
Steps = Callable[..., archive.Run]
SCHEMA = archive.Schema(steps={"observation": archive.Field("uint8", (1,)), "action": archive.Field("int64")})


@pytest.fixture
def record(path: Path) -> Iterable[Steps]:
    """Return a function that records steps 1 .. count as systems do that keep no final observation.

    `terminated` and `truncated` list the steps that end an episode; with `final` {step: observation} the observation
    after such a step is kept.
    """
    runs: list[archive.Run] = []

    def make(count: int, terminated: Any = (), truncated: Any = (), final: dict[int, int] | None = None) -> archive.Run:
        run = archive.create(path.with_name(f"{len(runs)}.h5"), SCHEMA, commit_every=None)
        runs.append(run)
        rows = []
        for k in range(1, count + 1):
            rows.append((k, k, k, k in terminated, k in truncated, False))
            if final and k in final:
                rows.append((final[k], 0, 0, False, False, True))
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        names = ("observation", "action", "reward", "terminated", "truncated", "is_last")
        run.extend({**dict(zip(names, columns, strict=True)), "observation": columns[0].astype(np.uint8)[:, None]})
        return run

    yield make
    for run in runs:
        run.close()


def valid(replay: archive.Replay) -> list[int]:
    """Return the states (numbers of observations) that the replay may draw: some batches large enough for all."""
    replay.sample(1)
    batch = replay.sample(64 * len(replay))
    found = sorted({int(k) for k in batch.observation.reshape(len(batch), -1)[:, -1]})
    assert len(found) == len(replay)
    return found


def at(run: archive.Run, replay: archive.Replay, *states: int) -> archive.Batch:
    """Return the transitions that start at these states."""
    observations = run["observation"][:, 0]
    final = run["is_last"][:]
    return replay.gather([int(np.flatnonzero((observations == k) & ~final)[0]) for k in states])


def stacks(array: Array) -> list[list[int]]:
    """Return stacks as lists of observation numbers, oldest first."""
    found: list[list[int]] = array[..., 0].tolist()
    return found


# --- G1, G2: stacks


def test_g1_stack_at_episode_start_is_padded_with_zeros(record: Steps) -> None:
    """Dopamine, Rainbow, rlpyt and d3rlpy: K=4, terminal at 6, a new episode from 7 on."""
    run = record(8, terminated=[6])
    batch = at(run, run.replay(stack=4), 1, 2, 6, 7)
    assert stacks(batch.observation) == [[0, 0, 0, 1], [0, 0, 1, 2], [3, 4, 5, 6], [0, 0, 0, 7]]


def test_g1_stack_at_episode_start_repeats_the_first_frame(record: Steps) -> None:
    """tianshou and robomimic, by rule."""
    run = record(8, terminated=[6])
    batch = at(run, run.replay(stack=4, padding="repeat"), 1, 2, 6, 7)
    assert stacks(batch.observation) == [[1, 1, 1, 1], [1, 1, 1, 2], [3, 4, 5, 6], [7, 7, 7, 7]]


def test_g1_valid_starts_are_those_of_dopamine(record: Steps) -> None:
    """Dopamine's valid rows 3 .. 8 and 12 are states 1 .. 6 and 7: the newest step waits for its next observation."""
    assert valid(record(8, terminated=[6]).replay(stack=4)) == [1, 2, 3, 4, 5, 6, 7]


def test_g2_next_stack_at_a_terminal_without_final_observation_is_zeros(record: Steps) -> None:
    """d3rlpy; Dopamine leaves it undefined, rlpyt returns the next episode's frame, Rainbow a blank tail."""
    run = record(8, terminated=[6])
    batch = at(run, run.replay(stack=4, gamma=0.5), 6)
    assert (batch.reward.tolist(), batch.terminated.tolist(), batch.discount.tolist()) == ([6.0], [True], [0.0])
    assert stacks(batch.next_observation) == [[0, 0, 0, 0]]
    repeat = at(run, run.replay(stack=4, padding="repeat"), 6)
    assert stacks(repeat.next_observation) == [[0, 0, 0, 0]]


def test_g2_next_stack_at_a_terminal_ends_in_the_final_observation(record: Steps) -> None:
    """SB3 and Minari store the true final observation."""
    run = record(8, terminated=[6], final={6: 60})
    batch = at(run, run.replay(stack=4), 6, 7)
    assert stacks(batch.next_observation) == [[4, 5, 6, 60], [0, 0, 7, 8]]
    assert batch.terminated.tolist() == [True, False]


# --- G3, G4: n steps


def test_g3_n_steps_across_a_terminal(record: Steps) -> None:
    """Dopamine (returns, flags), rlpyt (returns, done_n) and d3rlpy (intervals): n=3, K=2, terminal at 5.

    Rainbow reads the flag one step late at state 2 and Dopamine JAX moves it to the step before; ours do not.
    """
    run = record(11, terminated=[5])
    replay = run.replay(n_step=3, gamma=0.5, stack=2)
    batch = at(run, replay, 1, 2, 3, 4, 5, 6)
    assert batch.reward.tolist() == [2.75, 4.5, 6.25, 6.5, 5.0, 11.5]
    assert batch.terminated.tolist() == [False, False, True, True, True, False]
    assert batch.discount.tolist() == [0.125, 0.125, 0.0, 0.0, 0.0, 0.125]
    assert stacks(batch.next_observation) == [[3, 4], [4, 5], [0, 0], [0, 0], [0, 0], [8, 9]]
    assert valid(replay) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_g3_stacks_are_those_of_rainbow(record: Steps) -> None:
    """Rainbow, K=4, n=3: state and next stacks away from the terminal; at it ours are zeros (see G2)."""
    run = record(11, terminated=[5])
    batch = at(run, run.replay(n_step=3, gamma=0.5, stack=4), 1, 5, 6)
    assert stacks(batch.observation) == [[0, 0, 0, 1], [2, 3, 4, 5], [0, 0, 0, 6]]
    assert stacks(batch.next_observation)[::2] == [[1, 2, 3, 4], [6, 7, 8, 9]]


def test_g4_truncation_without_final_observation_drops_what_is_unknown(record: Steps) -> None:
    """Dopamine, K=2: n=3 keeps the states 1, 2, 6, 7, 8, n=1 loses 5; its padding row is no row of ours."""
    run = record(11, truncated=[5])
    assert valid(run.replay(n_step=3, stack=2)) == [1, 2, 6, 7, 8]
    assert valid(run.replay(n_step=1, stack=2)) == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    batch = at(run, run.replay(n_step=3, gamma=0.5, stack=2), 1, 2, 6)
    assert batch.reward.tolist() == [2.75, 4.5, 11.5]
    assert stacks(batch.next_observation) == [[3, 4], [4, 5], [8, 9]]


def test_g4_truncation_bootstraps_from_the_final_observation(record: Steps) -> None:
    """SB3's n-step buffer, n=3: returns, factors and the true final observation; near the cursor SB3 shortens."""
    run = record(11, truncated=[5], final={5: 50})
    replay = run.replay(n_step=3, gamma=0.5, stack=2)
    batch = at(run, replay, 3, 4, 5)
    assert batch.reward.tolist() == [6.25, 6.5, 5.0]
    assert batch.discount.tolist() == [0.125, 0.25, 0.5]
    assert (batch.terminated.tolist(), batch.truncated.tolist()) == ([False] * 3, [True] * 3)
    assert stacks(batch.next_observation) == [[5, 50]] * 3
    assert valid(replay) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_g4_terminal_with_final_observation_has_the_same_returns_and_no_bootstrap(record: Steps) -> None:
    """SB3: "with a real terminal the same returns and done 1"."""
    run = record(11, terminated=[5], final={5: 50})
    batch = at(run, run.replay(n_step=3, gamma=0.5), 3, 4, 5)
    assert batch.reward.tolist() == [6.25, 6.5, 5.0]
    assert batch.terminated.tolist() == [True] * 3
    assert batch.discount.tolist() == [0.0] * 3


# --- G5: the oldest rows of a full replay


def test_g5_valid_starts_of_a_full_replay(record: Steps) -> None:
    """Dopamine, C=10, K=2, 13 steps: its states 6 .. 12 and also 4 and 5, whose history is read from the file.

    Dopamine excludes the rows whose stack would reach behind the cursor; they are kept here, on purpose.
    """
    run = record(13)
    replay = run.replay(capacity=10, stack=2)
    dopamine = [10, 11, 12, 6, 7, 8, 9]
    assert valid(replay) == sorted({4, 5, *dopamine})
    batch = at(run, replay, 10, 4)
    assert stacks(batch.observation) == [[9, 10], [3, 4]]
    assert stacks(batch.next_observation) == [[10, 11], [4, 5]]


def test_g5_returns_of_a_full_replay(record: Steps) -> None:
    """rlpyt, T=10, n=3, 13 steps: the stored returns of its states 4 .. 10; it may draw 5 .. 10 of them."""
    run = record(13)
    replay = run.replay(capacity=10, n_step=3, gamma=0.5)
    assert valid(replay) == [4, 5, 6, 7, 8, 9, 10]
    assert at(run, replay, *range(4, 11)).reward.tolist() == [8.0, 9.75, 11.5, 13.25, 15.0, 16.75, 18.5]


def test_g5_valid_starts_with_stacks_and_n_steps(record: Steps) -> None:
    """K=4, n=3, C=12, 17 steps: Dopamine and Rainbow 10 .. 14, rlpyt 9 too; ours the rest of the capacity as well."""
    replay = record(17).replay(capacity=12, stack=4, n_step=3)
    assert valid(replay) == [6, 7, 8, *(9, 10, 11, 12, 13, 14)]


def test_g5_eight_steps_of_a_replay_not_yet_full(record: Steps) -> None:
    """rlpyt draws {3, 4} (states 4, 5) of 8 steps, K=4, n=3; ours the first three as well, padded."""
    assert valid(record(8).replay(capacity=12, stack=4, n_step=3)) == [1, 2, 3, *(4, 5)]


def test_g5_stacks_across_the_wrap_stop_at_the_episode(record: Steps) -> None:
    """rlpyt, T=12, K=4, 14 steps, done at 11."""
    run = record(14, terminated=[11])
    batch = at(run, run.replay(capacity=12, stack=4), 12, 13, 11)
    assert stacks(batch.observation) == [[0, 0, 0, 12], [0, 0, 12, 13], [8, 9, 10, 11]]
    assert stacks(batch.next_observation)[1] == [0, 12, 13, 14]


# --- G7: sum tree


@pytest.fixture
def tree() -> SumTree:
    """Leaves 1, 2, 3, 4."""
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    return tree


def owners(tree: SumTree, mass: Any) -> list[int]:
    out = np.empty(len(mass), np.int64)
    tree.find(np.array(mass), out)
    return out.tolist()


def test_g7_ties_go_right(tree: SumTree) -> None:
    """Dopamine and Dopamine JAX (rlpyt and Rainbow: left)."""
    assert tree.total == 10.0
    assert owners(tree, [0.0, 1.0, 3.0, 6.0]) == [0, 1, 2, 3]


def test_g7_stratified_and_single_draws(tree: SumTree) -> None:
    """Dopamine, random.seed(0): three stratified batches of 4, eight single samples; rlpyt, np.random.seed(0)."""
    rng = random.Random(0)
    for _ in range(3):
        mass = [rng.uniform(k / 4, (k + 1) / 4) * tree.total for k in range(4)]
        assert owners(tree, mass) == [1, 2, 3, 3]
    rng.seed(0)
    assert owners(tree, [rng.random() * tree.total for _ in range(8)]) == [3, 3, 2, 1, 2, 2, 3, 2]
    assert owners(tree, np.random.RandomState(0).rand(8) * tree.total) == [2, 3, 3, 2, 2, 3, 2, 3]


def test_g7_leaf_of_zero_is_not_found_by_a_draw_of_zero(tree: SumTree) -> None:
    """rlpyt returns leaf 0 for a draw of exactly 0 even if its priority is 0; ours must not."""
    tree.set(np.array([0]), np.array([0.0]))
    assert owners(tree, [0.0, tree.total]) == [1, 3]


# --- G8: weights and updates


def weights(record: Steps, beta: float, priorities: list[float], **options: Any) -> dict[int, float]:
    """Return the weight of each state, by priorities that are the leaves: 10 strata hit every leaf of 1, 2, 3, 4."""
    run = record(5)
    replay = run.replay(sampler=archive.Prioritized(**{"alpha": 1.0, "beta": beta, "epsilon": 0.0} | options))
    replay.update_priorities([0, 1, 2, 3], priorities)
    index, weight = replay.draw(10)
    return {int(i) + 1: float(w) for i, w in zip(index, weight, strict=True)}


def test_g8_weights(record: Steps) -> None:
    """Dopamine (beta 0.5); Rainbow, tianshou, rlpyt (0.4): leaves 1, 2, 3, 4."""
    dopamine = {1: 1.0, 2: 0.70711, 3: 0.57735, 4: 0.5}
    others = {1: 1.0, 2: 0.757858, 3: 0.644394, 4: 0.574349}
    assert weights(record, 0.5, [1.0, 2.0, 3.0, 4.0]) == pytest.approx(dopamine, abs=1e-5)
    assert weights(record, 0.4, [1.0, 2.0, 3.0, 4.0]) == pytest.approx(others, abs=1e-6)


def test_g8_weights_are_relative_to_the_batch(record: Steps) -> None:
    """Batch of the leaves 2 and 4 only: Dopamine, rlpyt, Rainbow, tianshou divide by the batch's largest weight."""
    assert weights(record, 0.5, [0.0, 2.0, 0.0, 4.0]) == pytest.approx({2: 1.0, 4: 0.70711}, abs=1e-5)
    assert weights(record, 0.4, [0.0, 2.0, 0.0, 4.0]) == pytest.approx({2: 1.0, 4: 0.757858}, abs=1e-6)


@pytest.mark.parametrize(("alpha", "expected"), [(0.5, (2.0, 3.0)), (0.6, (2.2974, 3.7372))])
def test_g8_updates(record: Steps, alpha: float, expected: tuple[float, float]) -> None:
    """Rainbow: losses 4 and 9 with exponent 0.5 are leaves 2 and 3; rlpyt: 0.6 gives 2.2974 and 3.7372.

    A batch of one leaf 1 and one other shows the other's leaf: its weight at beta 1 is 1 / leaf.
    """
    found = []
    for priority in (4.0, 9.0):
        shown = weights(record, 1.0, [1.0, priority, 0.0, 0.0], alpha=alpha)
        found.append(1 / shown[2])
    assert found == pytest.approx(expected, abs=1e-4)


def test_g8_new_rows_enter_at_the_largest_priority_seen(record: Steps) -> None:
    """Dopamine and TorchRL: the largest raw priority when the row arrives, at least 1, is transformed for it."""
    run = record(5)

    def extend(k: int) -> None:
        run.extend({"observation": np.full((1, 1), k, np.uint8), "action": [k], "reward": [k]})

    replay = run.replay(sampler=archive.Prioritized(alpha=0.5, beta=1.0, epsilon=0.0))
    replay.update_priorities([0, 1, 2, 3], [0.25, 0.25, 0.25, 0.25])
    extend(6)
    replay.update_priorities([3], [16.0])  # steps 5 and 6 have arrived before, at 1
    extend(7)
    extend(8)
    index, weight = replay.draw(200)
    leaf = {int(i) + 1: 0.5 / float(w) for i, w in zip(index, weight, strict=True)}
    assert leaf == pytest.approx({1: 0.5, 2: 0.5, 3: 0.5, 4: 4.0, 5: 1.0, 6: 1.0, 7: 4.0}, rel=1e-5)


# --- S2c, S2d, S2h: what rlpyt's pickles could not do


def feed(run: Any, first: int, steps: int) -> Any:
    """Take vector steps with made-up frames; the same numbers give the same rows in any process."""
    for t in range(first, first + steps):
        rng = np.random.default_rng(t)
        frames = rng.integers(0, 256, (4, 10, 8), np.uint8)
        ends = rng.random((2, 4)) < 0.02
        ids = run.step(rng.integers(0, 6, 4), frames, rng.normal(size=4), ends[0], ends[1])
    return ids


def digests(run: Any, replay: Any, first: int, iterations: int) -> list[str]:
    """Iterate as rlpyt's DQN does: 64 new steps, then 4 updates of 128; return a digest of each iteration's batches."""
    import hashlib

    found = []
    for k in range(iterations):
        feed(run, first + 16 * k, 16)
        digest = hashlib.sha256()
        for _ in range(4):
            batch = replay.sample(128, beta=0.4 + 0.001 * k)
            for name in sorted(batch.asdict()):
                digest.update(batch[name].tobytes())
            if isinstance(replay.sampler, archive.Prioritized):
                replay.update_priorities(batch.index, np.abs(batch.reward) + 0.01)
        found.append(digest.hexdigest())
    return found


def resumed(path: str, iterations: str) -> list[str]:
    """Go on from the newest checkpoint of a file."""
    run = archive.open(path, "a", commit_every=None)
    last = run.last_checkpoint
    return digests(run, run.replay(state=last["replay"]), last["step"], int(iterations))


def vector_run(path: Path) -> archive.Run:
    fields = {"observation": archive.Field("uint8", (10, 8)), "action": archive.Field("int64")}
    run = archive.create(path, archive.Schema(fields, num_envs=4, autoreset="NextStep"), commit_every=None)
    run.reset(np.zeros((4, 10, 8), np.uint8))
    return run


@pytest.mark.parametrize("sampler", [archive.Uniform(), archive.Prioritized()])
def test_s2c_a_fresh_process_draws_the_same(path: Path, sampler: Any, fresh_process: Any) -> None:
    """rlpyt's pickled frame buffer could not be read in a process that had not built one; 100 iterations here."""
    with vector_run(path) as run:
        replay = run.replay(capacity=3000, n_step=3, stack=4, sampler=sampler, seed=7)
        if isinstance(sampler, archive.Uniform):
            replay.update_priorities = lambda index, priority: None  # type: ignore[method-assign]
        feed(run, 0, 200)
        digests(run, replay, 200, 3)
        run.checkpoint(replay=replay.state_dict(), step=248)
        copy = shutil.copy(path, path.with_name("copy.h5"))
        expected = digests(run, replay, 248, 100)
    assert len(set(expected)) == 100
    assert fresh_process(resumed, copy, 100, uses=(feed, digests)) == expected


def test_s2d_a_frame_appended_after_reopening_is_drawn(path: Path) -> None:
    """A pickled rlpyt buffer returns stale frames after loading; and leaves, root and cursor must agree."""
    with vector_run(path) as run:
        replay = run.replay(capacity=400, stack=4, sampler=archive.Prioritized())
        feed(run, 0, 150)
        replay.update_priorities(replay.draw(64)[0], np.linspace(0.1, 1.0, 64))
        run.checkpoint(replay=replay.state_dict())
    with archive.open(path, "a", commit_every=None) as run:
        replay = run.replay(state=run.last_checkpoint["replay"])
        run.reset(np.full((4, 10, 8), 200, np.uint8))
        ids = run.step(
            np.arange(4), np.full((4, 10, 8), 201, np.uint8), np.ones(4), np.zeros(4, bool), np.zeros(4, bool)
        )
        replay.update_priorities(ids, np.full(4, 1e12))
        batch = replay.sample(40)
        assert set(batch.index.tolist()) == set(ids.tolist())
        assert batch.observation[:, :, 0, 0].tolist() == [[0, 0, 0, 200]] * 40
        assert batch.next_observation[:, :, 0, 0].tolist() == [[0, 0, 200, 201]] * 40
        state = replay.state_dict()
        assert state["priorities"]["entered"].sum() == run.num_steps
        assert replay._priorities.tree.total == pytest.approx(state["priorities"]["leaves"].sum(), rel=1e-9)


def test_s2h_prioritized_draws_go_on_exactly(path: Path) -> None:
    """alpha 0.6, beta annealed, input priorities: the next 1,000 indices and weights after reopening."""

    def go_on(run: archive.Run, replay: archive.Replay) -> list[Array]:
        found = []
        for k in range(25):
            ids = feed(run, 1000 + k, 1)
            done = ids >= 0
            replay.update_priorities(ids[done], (0.5 + np.arange(4))[done])
            index, weight = replay.draw(40, beta=0.4 + 0.02 * k)
            replay.update_priorities(index, (index % 13) / 7)
            found += [index, weight]
        return found

    with vector_run(path) as run:
        replay = run.replay(capacity=600, n_step=2, sampler=archive.Prioritized(alpha=0.6), seed=3)
        feed(run, 0, 300)
        for _ in range(20):
            index, _ = replay.draw(40)
            replay.update_priorities(index, (index % 11) / 5)
        run.checkpoint(replay=replay.state_dict())
        copy = shutil.copy(path, path.with_name("copy.h5"))
        expected = go_on(run, replay)
    with archive.open(copy, "a", commit_every=None) as run:
        found = go_on(run, run.replay(state=run.last_checkpoint["replay"]))
    assert sum(map(len, expected[::2])) == 1000
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)
