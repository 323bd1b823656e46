"""Replays: options, what a state carries on, rewinds, bad input, and whether draws have the distribution they claim."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model import SHAPE, Options, ReplayModel, RunModel, frames

import archive

Array = np.ndarray[Any, Any]
Fresh = Callable[..., list[str]]
SAMPLERS = [archive.Uniform(), archive.Prioritized(), archive.Prioritized(alpha=1.0, stratified=False)]
FIELDS = {
    "observation": archive.Field("uint8", SHAPE),
    "action": archive.Field("int64"),
    "extra": archive.Field("float32"),
}


class Twin:
    """A run and its model that are fed the same rows; every row is made from its number."""

    def __init__(self, path: Path, envs: int = 1) -> None:
        several = {"num_envs": envs, "autoreset": "NextStep"} if envs > 1 else {}
        self.run = archive.create(path, archive.Schema(FIELDS, **several), commit_every=None)
        self.model, self.envs = RunModel(envs, resets_itself=envs > 1), envs

    def lead(self, values: Any) -> Any:
        """Take the axis of environments off where there is none."""
        return np.asarray(values) if self.envs > 1 else np.asarray(values)[0]

    def reset(self, first: int) -> None:
        for env in range(self.envs):
            self.model.reset(first + env, env)
        self.run.reset(self.lead(frames(range(first, first + self.envs))))

    def play(self, first: int, steps: int, ends: float = 0.1) -> None:
        """Take steps numbered from `first` on; a step ends an episode with probability `ends`."""
        if not self.model.can_step():
            self.reset(100 * first + 1_000_000)
        for t in range(first, first + steps):
            rng = np.random.default_rng(t)
            number = [t * self.envs + env + 1 for env in range(self.envs)]
            rewards, flags = rng.integers(-4, 5, self.envs) / 4, rng.random((2, self.envs)) < ends
            for env in range(self.envs):
                self.model.step(
                    number[env], env, number[env] % 5, rewards[env], *flags[:, env].tolist(), number[env] / 2
                )
            arguments = (self.lead(np.array(number) % 5), self.lead(frames(number)), self.lead(rewards))
            self.run.step(*arguments, *map(self.lead, flags), extra=self.lead(np.array(number) / 2))
            if not self.model.can_step():
                self.reset(100 * t + 2_000_000)

    def both(self, sampler: Any = None, **options: Any) -> tuple[archive.Replay, ReplayModel]:
        """Return a replay and its model."""
        names = ("alpha", "beta", "epsilon", "stratified")
        known = {name: getattr(sampler, name) for name in names if isinstance(sampler, archive.Prioritized)}
        given = {name: value for name, value in options.items() if value is not None}
        return self.run.replay(sampler=sampler, **options), ReplayModel(self.model, Options(**given, **known))

    def ordinals(self) -> dict[int, tuple[int, int]]:
        """Return (environment, number of the transition) by id, rows given up not counted."""
        found, count = {}, [0] * self.envs
        table = self.run.episodes
        for env, start, length in zip(table["env"], table["start"], table["length"], strict=True):
            for row in range(start, start + length):
                found[int(env) << 32 | int(row)] = (int(env), count[env])
                count[env] += 1
        return found


@pytest.fixture
def twin(path: Path) -> Iterator[Callable[..., Twin]]:
    """Return a function that makes a run with its model."""
    twins: list[Twin] = []

    def make(envs: int = 1) -> Twin:
        twins.append(Twin(path.with_name(f"twin{len(twins)}.h5"), envs))
        return twins[-1]

    yield make
    for made in twins:
        made.run.close()


def same(a: Any, b: Any) -> bool:
    """Tell whether two states are equal to the last bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    return type(a) is type(b) and a == b


def equal_batches(a: archive.Batch, b: archive.Batch) -> None:
    assert a.asdict().keys() == b.asdict().keys()
    for name in a.asdict():
        np.testing.assert_array_equal(a[name], b[name], name)


def learn(replay: archive.Replay, model: ReplayModel | None = None, batches: int = 5) -> list[archive.Batch]:
    """Draw batches as a learner does, set priorities from them, and compare each with the model."""
    found = []
    for _ in range(batches):
        batch = replay.sample(16)
        found.append(batch)
        if model is not None:
            model.check_draw(batch.index, batch.weight)
            model.check_batch(batch)
        if isinstance(replay.sampler, archive.Prioritized):
            priority = np.abs(batch.reward) + (batch.index & 7) / 3 + 0.05
            replay.update_priorities(batch.index, priority)
            if model is not None:
                model.update(batch.index.tolist(), priority.tolist())
    return found


# --- options


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_step": 3, "gamma": 0.9},
        {"stack": 4, "n_step": 2},
        {"stack": 1},
        {"stack": 3, "padding": "repeat", "gamma": 1.0, "n_step": 5},
        {"capacity": 21, "stack": 4, "seed": 99},
        {"capacity": 22, "n_step": 4, "gamma": 0.0},
    ],
)
def test_batches_are_those_of_the_model(twin: Callable[..., Twin], envs: int, sampler: Any, options: Any) -> None:
    both = twin(envs)
    replay, model = both.both(sampler, **options)
    for first in range(0, 120, 20):
        both.play(first, 20)
        learn(replay, model)
    assert len(replay) == len(model.starts())


def test_arrays_of_a_batch_have_the_documented_kinds(twin: Callable[..., Twin]) -> None:
    both = twin(3)
    both.play(0, 30)
    batch = both.run.replay(batch_size=7, stack=4, sampler=archive.Prioritized()).sample()
    kinds = {name: (array.dtype.str, array.shape) for name, array in batch.asdict().items()}
    assert kinds == {
        "observation": ("|u1", (7, 4, *SHAPE)),
        "action": ("<i8", (7,)),
        "next_observation": ("|u1", (7, 4, *SHAPE)),
        "reward": ("<f4", (7,)),
        "terminated": ("|b1", (7,)),
        "truncated": ("|b1", (7,)),
        "discount": ("<f4", (7,)),
        "index": ("<i8", (7,)),
        "weight": ("<f4", (7,)),
        "extra": ("<f4", (7,)),
    }
    assert len(batch) == 7
    assert batch["reward"] is batch.reward
    with pytest.raises(AttributeError, match="log_prob"):
        _ = batch.log_prob
    with pytest.raises(KeyError, match="log_prob"):
        _ = batch["log_prob"]


@pytest.mark.parametrize(("stack", "shape"), [(None, SHAPE), (0, SHAPE), (1, (1, *SHAPE)), (2, (2, *SHAPE))])
def test_axis_of_a_stack(twin: Callable[..., Twin], stack: int | None, shape: tuple[int, ...]) -> None:
    both = twin()
    both.play(0, 5)
    batch = both.run.replay(stack=stack).sample(3)
    assert batch.observation.shape == batch.next_observation.shape == (3, *shape)


@pytest.mark.parametrize("field_padding", ["zero", "repeat"])
def test_a_field_that_arrives_stacked_gives_its_stacks_back(path: Path, field_padding: str) -> None:
    """By default with its own padding; the options of the replay win, 0 takes the axis away."""
    fields = {**FIELDS, "observation": archive.Field("uint8", SHAPE, stacked=3, padding=field_padding)}
    before = 1 if field_padding == "repeat" else 0
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        run.reset(frames([before, before, 1]))
        run.step(0, frames([before, 1, 2]), 0.0, False, False, extra=0.0)
        run.step(0, frames([1, 2, 3]), 0.0, True, False, extra=0.0)
        batch = run.replay().gather([0, 1])
        np.testing.assert_array_equal(batch.observation, frames([[before, before, 1], [before, 1, 2]]))
        np.testing.assert_array_equal(batch.next_observation, frames([[before, 1, 2], [1, 2, 3]]))
        np.testing.assert_array_equal(run.replay(stack=0).gather([1]).observation, frames([2]))
        other = run.replay(stack=2, padding="zero" if before else "repeat").gather([0])
        np.testing.assert_array_equal(other.observation, frames([[0 if before else 1, 1]]))


def test_parts_of_an_observation_are_stacked_one_by_one(path: Path) -> None:
    fields = {
        "observation/camera": archive.Field("uint8", SHAPE, stacked=2, padding="zero"),
        "observation/arm/angle": archive.Field("float32", (2,)),
        "action/turn": archive.Field("int64"),
        "action/grip": archive.Field("bool"),
    }
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        run.reset({"camera": frames([0, 1]), "arm": {"angle": np.array([1, 1], np.float32)}})
        after = {"camera": frames([1, 2]), "arm": {"angle": np.array([2, 2], np.float32)}}
        run.step({"turn": 5, "grip": True}, after, 1.0, False, False)
        batch = run.replay().gather([0])
        np.testing.assert_array_equal(batch.observation["camera"], frames([[0, 1]]))
        np.testing.assert_array_equal(batch.next_observation["camera"], frames([[1, 2]]))
        assert batch.observation["arm"]["angle"].tolist() == [[1.0, 1.0]]
        assert batch.next_observation["arm"]["angle"].tolist() == [[2.0, 2.0]]
        assert (batch.action["turn"].tolist(), batch.action["grip"].tolist()) == ([5], [True])


def test_fields_limit_what_is_gathered(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10, ends=0.0)
    replay = both.run.replay()
    always = {"terminated", "truncated", "discount", "index", "weight"}
    for fields, extra in (
        (["observation"], {"observation", "next_observation"}),
        (["reward", "extra"], {"reward", "extra"}),
        (["action"], {"action"}),
    ):
        assert set(replay.gather([0, 1], fields).asdict()) == always | extra
    with pytest.raises(archive.UnknownFieldError, match="speed"):
        replay.gather([0], ["speed"])


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize(
    "options", [{}, {"stack": 4}, {"stack": 3, "padding": "repeat"}, {"stack": 2, "stack_axis": -1}]
)
def test_overlap_reads_both_observations_once(twin: Callable[..., Twin], envs: int, options: Any) -> None:
    """They are views of one array; only behind a terminated end do frames of the episode stay in the next stack."""
    both = twin(envs)
    both.play(0, 150)
    a, b = (both.run.replay(batch_size=200, overlap=overlap, **options) for overlap in (True, False))
    for _ in range(3):
        found, expected = a.sample().asdict(), b.sample().asdict()
        assert np.may_share_memory(found["observation"], found["next_observation"])
        ended = expected["terminated"]
        assert ended.any()
        assert not ended.all()
        later, next_ = found.pop("next_observation"), expected.pop("next_observation")
        np.testing.assert_array_equal(later[~ended], next_[~ended])
        if options:
            axis = options.get("stack_axis", 1)
            last, before = (np.moveaxis(array, axis, 1)[ended] for array in (later, found["observation"]))
            np.testing.assert_array_equal(last[:, :-1], before[:, 1:])
            np.testing.assert_array_equal(last[:, -1], np.moveaxis(next_, axis, 1)[ended][:, -1])
        assert same(found, expected)


@pytest.mark.parametrize("options", [{"n_step": 2}, {"sequence_length": 3}])
def test_overlap_needs_transitions_of_one_step(twin: Callable[..., Twin], options: Any) -> None:
    both = twin()
    both.play(0, 20)
    for overlap in (True, 1, "yes"):
        with pytest.raises(archive.FieldError, match="overlap"):
            both.run.replay(overlap=overlap, **(options if overlap is True else {}))
    assert both.run.replay(overlap=False, **options).options.overlap is False


def test_rewards_that_are_not_numbers_stay_in_their_own_returns(path: Path) -> None:
    rewards = [1.0, 2.0, np.nan, 4.0, 5.0, np.inf, 7.0, 8.0]
    with archive.create(path, archive.Schema(FIELDS), commit_every=None) as run:
        rows = {"observation": frames(range(1, 9)), "action": np.zeros(8, int), "extra": np.zeros(8)}
        ends = np.array([0, 0, 0, 1, 0, 0, 0, 1], bool)
        run.extend({**rows, "reward": rewards, "terminated": ends})
        found = run.replay(n_step=2, gamma=0.5).gather(range(8)).reward
    expected = [2.0, np.nan, np.nan, 4.0, np.inf, np.inf, 11.0, 8.0]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_returns_are_summed_in_double_precision(path: Path) -> None:
    """1e8 + 1 - 1e8 is 1 in float64 and 0 in float32."""
    with archive.create(path, archive.Schema(FIELDS), commit_every=None) as run:
        rows = {"observation": frames([1, 2, 3]), "action": np.zeros(3, int), "extra": np.zeros(3)}
        run.extend({**rows, "reward": [1e8, 1.0, -1e8], "terminated": [False, False, True]})
        assert run.replay(n_step=3, gamma=1.0).gather([0]).reward.tolist() == [1.0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("batch_size", v) for v in (0, -1, 1.0, True, "8")),
        *(("capacity", v) for v in (0, -5, 2.5, True)),
        *(("n_step", v) for v in (0, -1, 1.5, True)),
        *(("stack", v) for v in (-1, 2.0, True)),
        *(("gamma", v) for v in (-0.1, 1.1, np.nan, np.inf, "0.9")),
        *(("padding", v) for v in ("edge", 0)),
        *(("seed", v) for v in (-1, 1 << 64, 0.5)),
        *(("prefetch", v) for v in (-1, 1.0, True, 2000)),
        *(("sampler", v) for v in ("prioritized", archive.Prioritized)),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(twin: Callable[..., Twin], name: str, value: Any) -> None:
    both = twin()
    both.play(0, 5)
    with pytest.raises((archive.FieldError, archive.FieldTypeError), match=name):
        both.run.replay(**{name: value})


@pytest.mark.parametrize("name", ["alpha", "beta", "epsilon"])
@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf, "1", None])
def test_exponents_that_mean_nothing_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(archive.FieldError, match=name):
        archive.Prioritized(**{name: value})


def test_capacity_holds_one_transition_of_each_environment_at_least(twin: Callable[..., Twin]) -> None:
    both = twin(3)
    both.play(0, 5)
    with pytest.raises(archive.FieldError, match="capacity 2"):
        both.run.replay(capacity=2)
    assert len(both.run.replay(capacity=3)) == 3
    assert len(both.run.replay(capacity=5)) == 3
    assert len(both.run.replay(capacity=6)) == 6


# --- the same draws


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draw_and_gather_make_what_sample_makes(twin: Callable[..., Twin], sampler: Any) -> None:
    both = twin(3)
    both.play(0, 40)
    a, b = (both.run.replay(batch_size=8, sampler=sampler, stack=2, n_step=2) for _ in range(2))
    for _ in range(5):
        index, weight = b.draw()
        b.gather(index[:3])  # reading is no draw
        whole, parts = a.sample(), b.gather(index)
        assert parts.weight.tolist() == [1.0] * 8
        equal_batches(whole, archive.Batch(parts.asdict() | {"weight": weight}))


def test_batches_depend_on_seed_and_position_alone(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 200)
    a, b, c = (both.run.replay(seed=seed) for seed in (5, 5, 6))
    a.sample(3)
    b.sample(64)  # the size of a batch does not move the next one
    np.testing.assert_array_equal(a.draw(32)[0], b.draw(32)[0])
    assert a.draw(32)[0].tolist() != c.draw(32)[0].tolist()
    assert a.draw(32)[0].tolist() != a.draw(32)[0].tolist()


def test_iteration_goes_on_where_sample_stopped(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 50)
    a, b = (both.run.replay(batch_size=8) for _ in range(2))
    equal_batches(a.sample(), b.sample())
    for batch, _ in zip(a, range(4), strict=False):
        equal_batches(batch, b.sample())


def test_threads_share_the_batches_of_one_replay(twin: Callable[..., Twin]) -> None:
    """Each batch is drawn exactly once, whoever draws it."""
    both = twin()
    both.play(0, 300)
    shared, serial = (both.run.replay(batch_size=16, seed=3, stack=2) for _ in range(2))
    found: list[archive.Batch] = []
    threads = [threading.Thread(target=lambda: found.extend(shared.sample() for _ in range(50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(b.index.tolist() for b in found) == sorted(serial.draw()[0].tolist() for _ in range(200))


def test_arrays_of_a_batch_belong_to_the_caller(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 50)
    replay, model = both.both()
    batch = replay.sample(16)
    model.check_draw(batch.index, batch.weight)
    kept = {name: array.copy() for name, array in batch.asdict().items()}
    learn(replay, model)
    for name, array in kept.items():
        np.testing.assert_array_equal(batch[name], array, name)
        batch[name][:] = 0
    learn(replay, model)


def test_rows_that_arrive_are_drawn_at_once(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 3, ends=0.0)
    replay = both.run.replay(n_step=2)
    assert (len(replay), set(replay.draw(100)[0].tolist())) == (2, {0, 1})
    both.play(3, 1, ends=0.0)
    assert (len(replay), set(replay.draw(100)[0].tolist())) == (3, {0, 1, 2})
    both.run.end_episode()
    assert (len(replay), set(replay.draw(100)[0].tolist())) == (4, {0, 1, 2, 3})


def test_a_reader_draws_what_the_writer_draws(twin: Callable[..., Twin]) -> None:
    """After each commit and refresh, rows that arrived in between included."""
    both = twin(3)
    both.play(0, 20)
    both.run.commit()
    with archive.open(both.run.path) as reader:
        a, b = (
            run.replay(batch_size=16, n_step=2, capacity=90, sampler=archive.Prioritized(), prefetch=0)
            for run in (both.run, reader)
        )
        for first in range(20, 120, 20):
            batch = b.sample()
            equal_batches(a.sample(), batch)
            for replay in (a, b):
                replay.update_priorities(batch.index, np.abs(batch.reward))
            both.play(first, 20)
            both.run.commit()
            reader.refresh()


# --- priorities


def test_updating_and_gathering_nothing_is_no_error(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10)
    replay = both.run.replay(sampler=archive.Prioritized())
    with Unchanged(replay, both.run):
        replay.update_priorities([], [])
        replay.update_priorities(np.zeros(0, np.int64), np.zeros(0))
        assert len(replay.gather([])) == 0


def test_leaf_of_zero_is_never_drawn(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 40, ends=0.0)
    replay = both.run.replay(sampler=archive.Prioritized(epsilon=0.0))
    replay.update_priorities(range(40), np.where(np.arange(40) % 5 == 2, 1e-300, 0.0))
    assert set(replay.draw(2000)[0].tolist()) == set(range(2, 40, 5))
    replay.update_priorities(range(40), np.zeros(40))
    with pytest.raises(archive.NotEnoughData, match="every priority is 0"):
        replay.draw(4)
    replay.update_priorities([7], [1.0])
    assert set(replay.draw(50)[0].tolist()) == {7}


def test_alpha_zero_makes_every_leaf_one(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 40, ends=0.0)
    replay = both.run.replay(sampler=archive.Prioritized(alpha=0.0, epsilon=0.0))
    replay.update_priorities(range(40), np.arange(40) * 1e9)
    index, weight = replay.draw(40)
    assert index.tolist() == list(range(40))  # one from each of 40 equal parts
    assert weight.tolist() == [1.0] * 40


def test_the_last_of_duplicates_wins(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10, ends=0.0)
    replay, model = both.both(archive.Prioritized(epsilon=0.0))
    for update in (([3, 3, 4, 3], [0.0, 9.0, 0.0, 0.5]), ([4, 4], [2.0, 0.0])):
        replay.update_priorities(*update)
        model.update(*update)
    index, weight = replay.draw(500)
    model.check_draw(index, weight)
    assert 4 not in index
    assert 3 in index


def test_updates_of_rows_that_left_the_capacity_are_ignored_and_counted(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 30, ends=0.0)
    replay, model = both.both(archive.Prioritized(), capacity=10)
    update = [5, 19, 20, 29, 5], [1e6, 1e6, 3.0, 2.0, 1e6]
    replay.update_priorities(*update)
    model.update(*update)
    assert replay.ignored_updates == model.ignored == 3
    both.play(30, 3, ends=0.0)  # they enter at 3, not at the million that was ignored
    for _ in range(5):
        model.check_draw(*replay.draw(64))


def test_a_priority_given_before_a_start_is_valid_is_kept(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10, ends=0.0)
    replay, model = both.both(archive.Prioritized(), n_step=4)
    update = [8, 9], [50.0, 0.25]
    replay.update_priorities(*update)
    model.update(*update)
    for first in range(10, 16):
        model.check_draw(*replay.draw(64))
        both.play(first, 1, ends=0.0)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_of_a_call_wins(twin: Callable[..., Twin], beta: float) -> None:
    both = twin()
    both.play(0, 60)
    replay, model = both.both(archive.Prioritized(beta=0.3))
    learn(replay, model)
    model.check_draw(*replay.draw(32, beta=beta), beta)
    batch = replay.sample(32, beta=beta)
    model.check_draw(batch.index, batch.weight, beta)
    learn(replay, model)


# --- bad input changes nothing


class Unchanged:
    """Check that a replay's state, and what it draws next, are as they were before the block."""

    def __init__(self, replay: archive.Replay, run: archive.Run) -> None:
        self.replay, self.run = replay, run

    def __enter__(self) -> None:
        self.state = self.replay.state_dict()

    def __exit__(self, *error: object) -> None:
        assert same(self.replay.state_dict(), self.state)
        if len(self.replay):
            np.testing.assert_array_equal(self.replay.draw(8)[0], self.run.replay(state=self.state).draw(8)[0])


@pytest.mark.parametrize(
    ("priority", "error", "words"),
    [
        ([1.0, np.nan, 2.0], archive.PriorityError, "position 1"),
        ([1.0, 2.0, -0.5], archive.PriorityError, "position 2.*-0.5.*negative"),
        ([np.inf, 1.0, 1.0], archive.PriorityError, "position 0.*not finite"),
        ([1.0, -np.inf, 1.0], archive.PriorityError, "position 1"),
        ([1.0, 1.0, 1.7e308], archive.PriorityError, "position 2"),
        ([1.0, 2.0], archive.FieldError, "priority: expected 3"),
        ([[1.0], [2.0], [3.0]], archive.FieldError, "priority: expected 3"),
        (1.0, archive.FieldError, "priority: expected 3"),
        ([1j, 2.0, 3.0], archive.FieldError, "priority"),
        (["1", "2", "3"], archive.FieldError, "priority"),
        ([None, 1.0, 2.0], archive.FieldError, "priority"),
    ],
)
def test_bad_priorities_are_refused_by_position(
    twin: Callable[..., Twin], priority: Any, error: Any, words: str
) -> None:
    both = twin()
    both.play(0, 30)
    replay = both.run.replay(sampler=archive.Prioritized(alpha=1.0))
    learn(replay)
    with Unchanged(replay, both.run), pytest.raises(error, match=f"(?s){words}"):
        replay.update_priorities([0, 1, 2], priority)


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ([0, 1, -1], archive.IndexRangeError, "position 2.*-1"),
        ([0, 3 << 32, 1], archive.IndexRangeError, "position 1.*environment"),
        ([0, 1, 1000], archive.IndexRangeError, "position 2.*1000"),
        ([0, 1 << 62, 1], archive.IndexRangeError, "position 1"),
        ([0, 1, 1 << 32 | 21], archive.IndexRangeError, "position 2"),  # the head of environment 1
        ([0, 1, 5], archive.IndexRangeError, "position 2"),  # a final observation
        ([0.0, 1.0, 2.0], archive.FieldError, "index"),
        ([[0, 1, 2]], archive.FieldError, "index"),
        ([True, False, True], archive.FieldError, "index"),
        (["0", "1", "2"], archive.FieldError, "index"),
        (0, archive.FieldError, "index"),
    ],
)
def test_ids_that_never_existed_are_refused_by_position(
    twin: Callable[..., Twin], index: Any, error: Any, words: str
) -> None:
    both = twin(3)
    both.play(0, 5, ends=0.0)
    both.run.end_episode()
    both.model.end_episode()
    both.play(5, 16, ends=0.0)
    assert both.run["is_last"][5].all()
    assert both.run.lengths.tolist() == [22, 22, 22]
    replay = both.run.replay(sampler=archive.Prioritized())
    learn(replay)
    with Unchanged(replay, both.run), pytest.raises(error, match=f"(?s){words}"):
        replay.update_priorities(index, [1.0, 2.0, 3.0])
    with Unchanged(replay, both.run), pytest.raises(error, match=f"(?s){words}"):
        replay.gather(index)


def test_a_uniform_replay_has_no_priorities(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 5)
    replay = both.run.replay()
    with Unchanged(replay, both.run), pytest.raises(archive.StateError, match="Prioritized"):
        replay.update_priorities([0], [1.0])
    assert replay.ignored_updates == 0


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "8"])
def test_bad_batch_sizes_are_refused(twin: Callable[..., Twin], size: Any) -> None:
    both = twin()
    both.play(0, 10)
    replay = both.run.replay(batch_size=4)
    with Unchanged(replay, both.run), pytest.raises(archive.FieldError, match="batch_size"):
        replay.sample(size)


def test_a_batch_size_must_come_from_somewhere(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10)
    replay = both.run.replay()
    with Unchanged(replay, both.run), pytest.raises(archive.FieldError, match="batch_size"):
        replay.sample()
    assert len(replay.sample(3)) == 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_too_little_data_is_an_error_that_moves_nothing(twin: Callable[..., Twin], sampler: Any) -> None:
    both = twin()
    replay, model = both.both(sampler, n_step=3)
    both.reset(1)
    for first in range(3):
        assert len(replay) == 0
        for call in (replay.sample, replay.draw):
            with Unchanged(replay, both.run), pytest.raises(archive.NotEnoughData):
                call(4)
        with Unchanged(replay, both.run), pytest.raises(archive.IndexRangeError, match="position 0"):
            replay.gather([0])
        both.play(first, 1, ends=0.0)
    assert issubclass(archive.NotEnoughData, LookupError)
    learn(replay, model)  # batch number 0


# --- states


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_state_goes_on_exactly(twin: Callable[..., Twin], envs: int, sampler: Any) -> None:
    """By run.replay(state=...) and by load_state_dict, after rows have arrived too, and more than once."""
    both = twin(envs)
    options = {"capacity": 60, "n_step": 3, "seed": 11}
    replay, model = both.both(sampler, **options)
    for first in range(0, 160, 40):
        both.play(first, 40)
        learn(replay, model)
        state = replay.state_dict()
        again = both.run.replay(state=state)
        loaded = both.run.replay(sampler=sampler, **options)
        loaded.sample(5)
        loaded.load_state_dict(state)
        assert same(again.state_dict(), state)
        assert same(loaded.state_dict(), state)
        both.play(first + 20, 10)
        expected = learn(replay, model)
        for other in (again, loaded):
            for a, b in zip(learn(other), expected, strict=True):
                equal_batches(a, b)
        replay = again


def test_a_state_is_a_copy(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 40)
    replay, model = both.both(archive.Prioritized(), n_step=2, capacity=30)
    learn(replay, model)
    state, kept = replay.state_dict(), replay.state_dict()
    other = both.run.replay(state=state)
    learn(replay, model)
    learn(other)
    both.play(40, 10)
    learn(other)
    assert same(state, kept)
    for array in state["priorities"].values():
        if isinstance(array, np.ndarray):
            array[:] = 0
    learn(replay, model)


def test_a_state_survives_a_checkpoint_to_the_bit(twin: Callable[..., Twin]) -> None:
    both = twin(3)
    both.play(0, 40)
    for sampler in SAMPLERS:
        replay = both.run.replay(sampler=sampler, capacity=50, n_step=2, gamma=0.95, batch_size=9, seed=(1 << 64) - 1)
        learn(replay)
        both.run.checkpoint(replay=replay.state_dict())
        assert same(both.run.last_checkpoint["replay"], replay.state_dict())


def begin(path: str) -> list[str]:
    """Record a first session and leave it with a checkpoint."""
    steps = {"observation": archive.Field("uint8", (6,)), "action": archive.Field("int64")}
    run = archive.create(path, archive.Schema(steps, num_envs=2, autoreset="NextStep"), commit_every=None)
    run.reset(np.zeros((2, 6), np.uint8))
    replay = run.replay(batch_size=32, capacity=150, n_step=3, stack=2, sampler=archive.Prioritized(), seed=5)
    found = session(run, replay, 0)
    run.checkpoint(replay=replay.state_dict(), step=1)
    run.close()
    return found


def go_on(path: str, ending: str) -> list[str]:
    """Resume, go on for a session, leave a checkpoint, then close or append rows that a kill takes away."""
    run = archive.open(path, "a", commit_every=None)
    last = run.last_checkpoint
    replay = run.replay(state=last["replay"])
    found = session(run, replay, last["step"])
    run.checkpoint(replay=replay.state_dict(), step=last["step"] + 1)
    if ending == "kill":
        import os
        import signal

        session(run, replay, 1000)
        print(*found, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    run.close()
    return found


def session(run, replay, number):  # type: ignore[no-untyped-def]
    """Take steps and draw batches; return digests of the batches."""
    import hashlib

    found = []
    for t in range(number * 40, number * 40 + 40):
        rng = np.random.default_rng(t)
        ends = rng.random((2, 2)) < 0.1
        run.step(rng.integers(0, 3, 2), rng.integers(0, 256, (2, 6), np.uint8), rng.normal(size=2), *ends)
        if t % 4 == 3:
            batch = replay.sample()
            replay.update_priorities(batch.index, np.abs(batch.reward))
            parts = [batch[name].tobytes() for name in sorted(batch.asdict())]
            found.append(hashlib.sha256(b"".join(parts)).hexdigest())
    return found


@pytest.mark.parametrize("ending", ["close", "kill"])
def test_resuming_again_and_again_draws_as_one_that_never_stopped(
    path: Path, fresh_process: Fresh, ending: str
) -> None:
    """Four sessions in four processes; a killed one loses only what came after its checkpoint."""
    found = fresh_process(begin, path, uses=(session,))
    for _ in range(3):
        found += fresh_process(go_on, path, ending, uses=(session,), status=-9 if ending == "kill" else 0)
    other = path.with_name("reference.h5")
    begin(str(other))
    with archive.open(other, "a", commit_every=None) as run:
        replay = run.replay(state=run.last_checkpoint["replay"])
        expected = [digest for number in (1, 2, 3) for digest in session(run, replay, number)]
    assert len(found) == 40
    assert len(set(found)) == 40
    assert found[10:] == expected


def resume_with_capacity(path: str, capacity: str) -> list[str]:
    """Resume with another capacity and go on."""
    run = archive.open(path, "a", commit_every=None)
    replay = run.replay(state=run.last_checkpoint["replay"], capacity=int(capacity))
    return session(run, replay, 1)


@pytest.mark.parametrize("capacity", [20, 80, 149, 150, 400])
def test_another_capacity_after_reopening_equals_a_change_in_the_same_process(
    path: Path, fresh_process: Fresh, capacity: int
) -> None:
    begin(str(path))
    twin = path.with_name("twin.h5")
    twin.write_bytes(path.read_bytes())
    with archive.open(twin, "a", commit_every=None) as run:
        replay = run.replay(state=run.last_checkpoint["replay"])
        changed = run.replay(state=replay.state_dict(), capacity=capacity)
        expected = session(run, changed, 1)
    assert fresh_process(resume_with_capacity, path, capacity, uses=(session,)) == expected


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("capacity", [6, 20, 59, 60, 61, 200])
def test_another_capacity_keeps_the_newest_priorities(twin: Callable[..., Twin], envs: int, capacity: int) -> None:
    """Those that had left the old capacity come back at the largest priority seen."""
    both = twin(envs)
    replay, model = both.both(archive.Prioritized(), capacity=60, n_step=2)
    both.play(0, 100)
    for _ in range(4):
        learn(replay, model)
    changed = both.run.replay(state=replay.state_dict(), capacity=capacity)
    expected = model.saved().resumed(both.model, capacity=capacity)
    learn(changed, expected)
    both.play(100, 30)
    learn(changed, expected)
    assert changed.options.capacity == capacity


@pytest.mark.parametrize(("before", "after"), [(1, 5), (5, 1), (2, 3)])
def test_another_n_step_draws_what_is_valid_now(twin: Callable[..., Twin], before: int, after: int) -> None:
    """Valid starts may be drawn and no others, in episodes without final observations too."""
    both = twin()
    for k in range(4):
        rows = [{"observation": 10 * k + i + 1, "truncated": i == 6} for i in range(7)]
        columns = {"observation": frames([row["observation"] for row in rows]), "action": np.zeros(7, int)}
        both.run.extend({**columns, "extra": np.zeros(7), "reward": np.zeros(7), "truncated": np.arange(7) == 6})
        both.model.extend(rows)
    both.play(0, 10, ends=0.0)
    replay = both.run.replay(sampler=archive.Prioritized(), n_step=before)
    learn(replay)
    other = both.run.replay(state=replay.state_dict(), n_step=after)
    starts = ReplayModel(both.model, Options(n_step=after)).starts()
    assert len(other) == len(starts)
    assert set(other.draw(4000)[0].tolist()) == set(starts)
    both.play(10, 5, ends=0.0)
    starts = ReplayModel(both.model, Options(n_step=after)).starts()
    assert set(other.draw(4000)[0].tolist()) == set(starts)


@pytest.mark.parametrize("sampler", [archive.Prioritized(alpha=1.0), archive.Prioritized(alpha=0.3, epsilon=0.01)])
def test_another_exponent_keeps_the_priorities(twin: Callable[..., Twin], sampler: archive.Prioritized) -> None:
    both = twin()
    both.play(0, 60)
    replay, model = both.both(archive.Prioritized(alpha=0.6), n_step=2)
    learn(replay, model)
    other = both.run.replay(state=replay.state_dict(), sampler=sampler)
    assert other.sampler == sampler
    expected = model.saved().resumed(both.model, alpha=sampler.alpha, epsilon=sampler.epsilon)
    learn(other, expected)
    both.play(60, 10)
    learn(other, expected)


def test_an_exponent_that_would_overflow_is_refused(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10)
    replay = both.run.replay(sampler=archive.Prioritized(alpha=0.1))
    replay.update_priorities([0], [1e300])
    with pytest.raises(archive.PriorityError), np.errstate(over="ignore"):
        both.run.replay(state=replay.state_dict(), sampler=archive.Prioritized(alpha=1.5))


def test_resuming_takes_no_more_memory_than_before(path: Path) -> None:
    """A tree of more than half of the budget."""
    memory = 128 << 20
    with archive.create(path, archive.Schema(FIELDS), commit_every=None, memory=memory) as run:
        replay = run.replay(capacity=5_000_000, sampler=archive.Prioritized())
        run.checkpoint(replay=replay.state_dict())
        with pytest.raises(archive.MemoryBudgetError):
            run.replay(capacity=5_000_000, sampler=archive.Prioritized())
    with archive.open(path, memory=memory) as run:
        assert len(run.replay(state=run.last_checkpoint["replay"])) == 0


def test_rows_can_be_added_after_a_read_that_filled_the_memory(path: Path) -> None:
    """Chunks that a read has touched last make way for those of new rows."""
    schema = archive.Schema({**FIELDS, "observation": archive.Field("uint8", (64, 64))})
    with pytest.raises(archive.MemoryBudgetError) as refusal:
        archive.create(path, schema, memory=0)
    (least,) = re.findall(r"at least (\d+)", str(refusal.value))
    with archive.create(path, schema, commit_every=None, memory=int(least)) as run:
        rows, done = run._rows.columns["observation"].chunk_rows, 0
        run.reset(np.zeros((64, 64), np.uint8))
        for size in (8, 15, 16, 17, 18, 19, 20):
            for _ in range(20 * rows):
                run.step(0, np.full((64, 64), done % 251, np.uint8), done, False, False, extra=0.0)
                done += 1
            found = run["observation"][np.arange(size) * rows]
            assert found[1:, 0, 0].tolist() == [(k * rows - 1) % 251 for k in range(1, size)]
        assert run["reward"][:-1].tolist()[-1] == done - 1


def test_a_replay_without_capacity_grows_with_its_run(path: Path) -> None:
    """Past the leaves it began with, in many episodes, and in blocks of transitions that arrive at once."""
    with Twin(path).run as run:
        model, count = RunModel(), 0
        replay, expected = run.replay(sampler=archive.Prioritized()), ReplayModel(model, Options(alpha=0.6))
        for length in (1, 700, 350, 2000, 40, 1500):
            rows = [{"observation": count + k + 1, "terminated": k % 97 == 96} for k in range(length)]
            columns = {"observation": frames([row["observation"] for row in rows])}
            columns |= {name: np.zeros(length) for name in ("reward", "extra")} | {"action": np.zeros(length, int)}
            run.extend({**columns, "terminated": [row["terminated"] for row in rows]})
            model.extend(rows)
            count += length
            if count > 1:
                index, weight = replay.draw(200)
                expected.check_draw(index, weight)
                update = index[:50], (index[:50] % 10) / 3.0
                replay.update_priorities(*update)
                expected.update(update[0].tolist(), update[1].tolist())
        assert len(replay) == len(expected.starts()) > 4096


def test_options_beside_a_state_win(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 60)
    replay, model = both.both(stack=2, n_step=2, gamma=0.9, seed=4)
    learn(replay, model)
    state = both.run.replay(state=replay.state_dict(), batch_size=5).state_dict()
    changed = {"stack": 3, "n_step": 1, "gamma": 0.5, "seed": 8, "padding": "repeat"}
    assert len(both.run.replay(state=state, **changed).sample()) == 5
    assert len(both.run.replay(state=state, batch_size=6, **changed).sample()) == 6
    again = both.run.replay(state=state, **changed)
    learn(again, model.saved().resumed(both.model, **changed))


def test_load_state_dict_keeps_the_options_of_the_replay(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 60)
    replay, model = both.both(seed=4, capacity=20)
    learn(replay, model)
    other = both.run.replay(seed=9, capacity=40, batch_size=3)
    other.load_state_dict(replay.state_dict())
    assert (other.options.seed, other.options.capacity) == (9, 40)
    assert len(other.sample()) == 3
    expected = model.saved().resumed(both.model, seed=9, capacity=40)
    expected.batches += 1
    learn(other, expected)


def test_a_uniform_state_can_become_prioritized(twin: Callable[..., Twin]) -> None:
    """Its position is kept, all priorities are 1; and back again."""
    both = twin()
    both.play(0, 60)
    replay, model = both.both()
    learn(replay, model)
    other = both.run.replay(state=replay.state_dict(), sampler=archive.Prioritized())
    expected = model.saved().resumed(both.model, alpha=0.6)
    expected.priority = [[]]
    learn(other, expected)
    back = both.run.replay(state=other.state_dict(), sampler=archive.Uniform())
    learn(back, expected.saved().resumed(both.model, alpha=None))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state, other: other, "state of run"),
        (lambda state, other: state | {"draw_version": 2}, "draw version 2"),
        (lambda state, other: state | {"rows": state["rows"] + 1}, "rows that this run does not have"),
        (lambda state, other: state | {"rewinds": 1}, "rows that this run does not have"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(twin: Callable[..., Twin], change: Any, words: str) -> None:
    both, stranger = twin(), twin()
    both.play(0, 30)
    stranger.play(0, 30)
    replay = both.run.replay(sampler=archive.Prioritized())
    learn(replay)
    other = stranger.run.replay(sampler=archive.Prioritized()).state_dict()
    bad = change(replay.state_dict(), other)
    with pytest.raises(archive.StateError, match=words):
        both.run.replay(state=bad)
    with Unchanged(replay, both.run), pytest.raises(archive.StateError, match=words):
        replay.load_state_dict(bad)


@pytest.mark.parametrize("missing", ["draw_version", "run_id", "options", "sampler", "batches", "priorities"])
def test_a_state_that_lacks_something_is_refused(twin: Callable[..., Twin], missing: str) -> None:
    both = twin()
    both.play(0, 30)
    replay = both.run.replay(sampler=archive.Prioritized())
    bad = replay.state_dict()
    del bad[missing]
    with pytest.raises(archive.StateError, match=missing):
        both.run.replay(state=bad)


# --- rewinds


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("options", [{"n_step": 1}, {"n_step": 4, "capacity": 60, "stack": 2}])
def test_a_rewound_run_draws_as_one_that_was_interrupted(
    twin: Callable[..., Twin], envs: int, sampler: Any, options: Any
) -> None:
    """Compare by ordinals: the rewound run has rows between that nobody draws."""
    rewound, other = twin(envs), twin(envs)
    replays = []
    for both in (rewound, other):
        both.play(0, 60)
        replays.append(both.run.replay(sampler=sampler, **options))
        learn(replays[-1])
    rewound.run.checkpoint(replay=replays[0].state_dict())
    position = rewound.model.copy()
    assert "open" in [position.state(env) for env in range(envs)]
    rewound.play(500, 25)
    learn(replays[0])
    rewound.run.rewind(rewound.run.last_checkpoint)
    rewound.model.rewind(position)
    replays[0] = rewound.run.replay(state=rewound.run.last_checkpoint["replay"])
    other.run.end_episode(truncated=False)
    other.model.end_episode(truncated=False)
    for first in range(60, 180, 30):
        found = []
        for both, replay in zip((rewound, other), replays, strict=True):
            ordinals, drawn = both.ordinals(), []
            for _ in range(6):
                index, weight = replay.draw(32)
                drawn.append(([ordinals[i] for i in index.tolist()], weight.tolist()))
                if isinstance(sampler, archive.Prioritized):
                    replay.update_priorities(index, [sum(ordinals[i]) % 7 / 3 for i in index.tolist()])
                batch = replay.gather(index)
                drawn.append({k: v.tolist() for k, v in batch.asdict().items() if k != "index"})
            found.append(drawn)
            both.reset(10_000 + first)
            both.play(first, 30)
        assert found[0] == found[1]
    assert rewound.run.num_steps == other.run.num_steps
    assert rewound.run.num_rows > other.run.num_rows


def test_a_replay_made_before_a_rewind_refuses_to_go_on(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 20)
    replay = both.run.replay(sampler=archive.Prioritized())
    both.run.checkpoint(replay=replay.state_dict())
    both.run.rewind(both.run.last_checkpoint)
    calls: list[Callable[[], Any]] = [
        lambda: replay.sample(1),
        lambda: replay.draw(1),
        lambda: replay.gather([0]),
        lambda: replay.update_priorities([0], [1.0]),
        lambda: replay.state_dict(),
        lambda: len(replay),
    ]
    for call in calls:
        with pytest.raises(archive.StateError, match="rewound"):
            call()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_readers_replay_notices_a_rewind(twin: Callable[..., Twin], sampler: Any) -> None:
    both = twin()
    both.play(0, 20, ends=0.0)
    both.run.checkpoint()
    both.play(20, 20, ends=0.0)
    both.run.commit()
    with archive.open(both.run.path) as reader:
        replay = reader.replay(sampler=sampler)
        assert max(replay.draw(500)[0]) > 19
        both.run.rewind(both.run.last_checkpoint)
        assert max(replay.draw(500)[0]) > 19  # not before it looks again
        reader.refresh()
        with pytest.raises(archive.StateError, match="rewound"):
            replay.draw(4)
        assert set(reader.replay(sampler=sampler).draw(2000)[0].tolist()) == set(range(20))


def test_a_checkpoint_of_rows_given_up_is_no_place_to_go_back_to(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 10, ends=0.0)
    both.run.checkpoint(number=1)
    early = both.run.last_checkpoint
    both.play(10, 10, ends=0.0)
    replay = both.run.replay()
    both.run.checkpoint(number=2)
    late, state = both.run.last_checkpoint, replay.state_dict()
    both.run.rewind(early)
    assert both.run.last_checkpoint["number"] == 1
    both.model.end_episode(truncated=False)
    both.play(100, 40, ends=0.0)
    steps, table = both.run.num_steps, both.run.episodes["length"].tolist()
    with pytest.raises(archive.StateError):
        both.run.rewind(late)
    with pytest.raises(archive.StateError, match="given up"):
        both.run.replay(state=state)
    assert (both.run.num_steps, both.run.episodes["length"].tolist()) == (steps, table)
    both.run.rewind(early)  # again, from the new branch
    assert both.run.num_steps == 10


def extend(both: Twin, count: int, **flags: Any) -> Array:
    """Append whole rows without numbers of their own."""
    rows = {"observation": frames(range(1, count + 1)), "action": np.zeros(count, int), "reward": np.ones(count)}
    return both.run.extend({**rows, "extra": np.zeros(count), **{k: np.array(v, bool) for k, v in flags.items()}})


def test_a_rewind_takes_back_a_final_observation(twin: Callable[..., Twin]) -> None:
    both = twin()
    extend(both, 3, truncated=[0, 0, 1])
    both.run.checkpoint()
    extend(both, 1, is_last=[1])
    assert (both.run.episodes["final"].tolist(), len(both.run.replay())) == ([True], 3)
    both.run.rewind(both.run.last_checkpoint)
    assert (both.run.episodes["final"].tolist(), len(both.run.replay())) == ([False], 2)


def test_a_rewind_takes_back_a_late_truncation(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.play(0, 4, ends=0.0)
    both.run.checkpoint()
    both.run.end_episode(truncated=True)
    assert both.run.replay().gather([3]).truncated.tolist() == [True]
    both.run.rewind(both.run.last_checkpoint)
    assert both.run.replay().gather([3]).truncated.tolist() == [False]
    assert both.run.episodes["truncated"].tolist() == [False]
    assert both.run.episode(0)["truncated"].tolist() == [False] * 4


@pytest.mark.parametrize("flags", [{}, {"truncated": [0, 0, 1]}])
def test_a_final_observation_cannot_follow_rows_given_up(twin: Callable[..., Twin], flags: Any) -> None:
    both = twin()
    extend(both, 3, **flags)
    both.run.checkpoint()
    extend(both, 2, is_first=[1, 0])
    both.run.rewind(both.run.last_checkpoint)
    with pytest.raises(archive.FieldError, match="final observation"):
        extend(both, 1, is_last=[1])
    assert both.run.lengths.tolist() == [5]
    assert both.run.episodes["final"].tolist() == [False]


@pytest.mark.parametrize("before", [0, 5])
def test_updates_of_rows_given_up_are_ignored_and_counted(twin: Callable[..., Twin], before: int) -> None:
    both = twin()
    if before:
        both.play(0, before, ends=0.0)
    both.run.checkpoint()
    if not before:
        both.reset(1)
    for t in range(5):
        both.run.step(0, frames(t), 0.0, False, False, extra=0.0)
    given_up = list(range(before, before + 5))
    both.run.rewind(both.run.last_checkpoint)
    replay = both.run.replay(sampler=archive.Prioritized())
    for k, number in enumerate(given_up):
        replay.update_priorities([number], [9.0])
        assert replay.ignored_updates == k + 1
    assert replay.state_dict()["priorities"]["largest"] == 1.0


def test_a_row_given_up_behind_an_episode_without_final_observation_is_no_final_observation(path: Path) -> None:
    schema = archive.Schema({"observation": archive.Field("f4"), "action": archive.Field("i8")})
    with archive.create(path, schema, commit_every=None) as run:
        row = {"observation": np.zeros(1), "action": np.zeros(1, int), "reward": np.zeros(1)}
        run.extend({name: np.repeat(value, 3) for name, value in row.items()})
        run.checkpoint()
        run.extend(row)
        run.rewind(run.last_checkpoint)
        replay = run.replay(sampler=archive.Prioritized())
        replay.update_priorities([3], [9.0])
        assert replay.ignored_updates == 1


# --- distributions


def chi_square(index: Array, share: dict[int, float]) -> tuple[float, int]:
    """Return chi-square of draws against probabilities by id, and the degrees of freedom."""
    ids = np.array(sorted(share))
    expected = np.array([share[k] for k in ids.tolist()]) * len(index)
    counts = np.bincount(np.searchsorted(ids, index), minlength=len(ids))
    assert set(index.tolist()) <= set(share)
    return float(((counts - expected) ** 2 / expected).sum()), len(ids) - 1


def check_distribution(replay: archive.Replay, model: ReplayModel, draws: int, independent: bool) -> None:
    """Draw in batches of 500; chi-square must be within 5 standard deviations, not below if draws are independent."""
    index = np.concatenate([replay.draw(500)[0] for _ in range(draws // 500)])
    if model.options.alpha is None:
        starts = model.starts()
        share = dict.fromkeys(starts, 1 / len(starts))
    else:
        leaves = model.leaves()
        share = {number: leaf / sum(leaf for *_, leaf in leaves) for _, number, leaf in leaves}
    found, freedom = chi_square(index, share)
    deviation = 5 * (2 * freedom) ** 0.5
    assert found < freedom + deviation
    if independent:
        assert found > freedom - deviation


def distribution(both: Twin, draws: int, sampler: Any, capacity: int | None) -> None:
    replay, model = both.both(sampler, n_step=3, capacity=capacity, seed=1234)
    both.play(0, 200)
    if isinstance(sampler, archive.Prioritized):
        known = model.starts()
        priority = np.random.default_rng(0).exponential(size=len(known)) + 0.05
        replay.update_priorities(known, priority)
        model.update(known, priority.tolist())
    check_distribution(replay, model, draws, not getattr(sampler, "stratified", False))


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("capacity", [None, 150])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_have_their_distribution(
    twin: Callable[..., Twin], envs: int, capacity: int | None, sampler: Any
) -> None:
    distribution(twin(envs), 100_000, sampler, capacity)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_have_their_distribution_to_the_third_digit(twin: Callable[..., Twin], sampler: Any) -> None:
    distribution(twin(3), 20_000_000, sampler, 150)
