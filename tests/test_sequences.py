"""Sequences, offsets and passes: valid starts and batches against the oracle, golden vectors, resuming in a pass."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sequence_model import SHAPE, Look, Story, check_batch, check_prioritized, frame, outcome, uniform_draw, uniforms

import archive

Array = np.ndarray[Any, Any]
FIELDS = {
    "observation": archive.Field("int32", SHAPE),
    "action": archive.Field("int64"),
    "extra": archive.Field("float32"),
}


# --- a run and its story


class Twin:
    """A run and its story, fed the same; what happens is made of the numbers that the story gives out."""

    def __init__(self, path: Path, envs: int = 1) -> None:
        self.path, self.story = path, Story(envs)
        path.unlink(missing_ok=True)
        schema = archive.Schema(FIELDS, num_envs=envs if envs > 1 else None)
        self.run = archive.create(path, schema, commit_every=None)

    def __enter__(self) -> Twin:
        return self

    def __exit__(self, *error: object) -> None:
        self.run.close()

    def lead(self, values: Any) -> Any:
        """Take the axis of environments off where there is none."""
        return np.asarray(values) if self.story.envs > 1 else np.asarray(values)[0]

    def extend(self, env: int, numbers: list[int], **flags: Any) -> None:
        """Append whole rows; a list of flags names the rows that have it."""
        action, reward, extra = np.array([outcome(number) for number in numbers]).T
        rows = {"observation": np.stack([frame(n) for n in numbers]), "action": action.astype(int)}
        given = {name: np.isin(np.arange(len(numbers)), where) for name, where in flags.items()}
        self.run.extend({**rows, "reward": reward, "extra": extra, **given}, env=env)

    def whole(
        self, env: int, steps: int, terminated: bool = False, truncated: bool = False, final: bool = True
    ) -> None:
        """Append a whole episode at once, or without flags and final observation the beginning of one."""
        numbers = self.story.fresh(steps + final)
        end = [steps - 1]
        self.extend(
            env,
            numbers,
            is_first=[0],
            terminated=end if terminated else [],
            truncated=end if truncated else [],
            is_last=[steps] if final else [],
        )
        self.story.begin(env, numbers[:steps])
        self.story.more(env, [], terminated, truncated)
        self.story.of(env)[-1].steps = steps
        if final:
            self.story.final(env, numbers[-1])

    def more(self, env: int, steps: int, terminated: bool = False, truncated: bool = False) -> None:
        """Go on with an episode that `whole` began."""
        numbers, end = self.story.fresh(steps), [steps - 1]
        self.extend(env, numbers, terminated=end if terminated else [], truncated=end if truncated else [])
        self.story.more(env, numbers, terminated, truncated)

    def final(self, env: int) -> None:
        """Append the final observation that an episode lacks."""
        self.extend(env, self.story.fresh(), is_last=[0])
        self.story.final(env, self.story.newest)

    def reset(self, mask: Any = None) -> None:
        """Reset the environments that do not wait for an action, or those of the mask."""
        envs = range(self.story.envs)
        mask = np.array([not self.story.waits(env) for env in envs]) if mask is None else np.asarray(mask)
        numbers = self.story.fresh(len(envs))
        self.run.reset(self.lead([frame(n) for n in numbers]), mask=mask)
        for env in np.flatnonzero(mask).tolist():
            self.story.begin(env, [numbers[env]])

    def step(self, terminated: Any = False, truncated: Any = False) -> None:
        """Step all environments, which must wait for an action."""
        envs = range(self.story.envs)
        ends = np.broadcast_to(terminated, len(envs)), np.broadcast_to(truncated, len(envs))
        done = [outcome(self.story.of(env)[-1].frames[-1]) for env in envs]
        numbers = self.story.fresh(len(envs))
        action, reward, extra = (self.lead(column) for column in zip(*done, strict=True))
        self.run.step(action, self.lead([frame(n) for n in numbers]), reward, *map(self.lead, ends), extra=extra)
        for env in envs:
            self.story.step(env, numbers[env], bool(ends[0][env]), bool(ends[1][env]))

    def hide(self, number: int, hidden: bool = True) -> None:
        if self.story.episodes:
            self.run.annotate(number % len(self.story.episodes), hidden=hidden)
            self.story.episodes[number % len(self.story.episodes)].hidden = hidden

    def end(self) -> None:
        if self.story.going_on:
            self.run.end_episode()
            self.story.end()

    def reopen(self, killed: bool) -> None:
        """Open the run again, closed properly or as a kill would leave it after a commit."""
        copy = self.path.with_name("copy.h5")
        if killed:
            self.run.commit()
            shutil.copy(self.path, copy)
        self.run.close()
        if killed:
            copy.replace(self.path)
        self.run = archive.open(self.path, "a", commit_every=None)

    def replay(self, look: Look, **options: Any) -> archive.Replay:
        return self.run.replay(**look.options(), **options)

    def play(self, event: tuple[Any, ...]) -> None:
        """Let one of EVENTS happen, or what comes nearest to it."""
        name, *values = event
        env = values[0] % self.story.envs if name in ("whole", "more", "final") else 0
        if name == "whole":
            self.whole(env, *values[1:])
        elif name == "more":
            grows = self.story.lacks_final(env) and not self.story.of(env)[-1].ended
            self.more(env, *values[1:]) if grows else self.whole(env, *values[1:], final=False)
        elif name == "final":
            self.final(env) if self.story.lacks_final(env) else self.whole(env, 1)
        elif name == "steps":
            self.reset()
            for k in range(values[0]):
                last = k == values[0] - 1
                self.step(*(np.array(flags[: self.story.envs]) & last for flags in values[1:]))
        else:
            getattr(self, name)(*values)


ENDS = st.sampled_from([(False, False), (True, False), (False, True), (True, True)])
TRIPLE = st.tuples(st.booleans(), st.booleans(), st.booleans())
EVENTS = st.one_of(
    st.builds(
        lambda env, n, ends, final: ("whole", env, n, *ends, final),
        st.integers(0, 2),
        st.integers(1, 7),
        ENDS,
        st.booleans(),
    ),
    st.builds(lambda env, n, ends: ("more", env, n, *ends), st.integers(0, 2), st.integers(1, 3), ENDS),
    st.tuples(st.just("steps"), st.integers(0, 5), TRIPLE, TRIPLE),
    st.tuples(st.just("final"), st.integers(0, 2)),
    st.tuples(st.just("hide"), st.integers(0, 20), st.booleans()),
    st.just(("reset",)),
    st.just(("end",)),
    st.tuples(st.just("reopen"), st.booleans()),
)
HISTORIES = st.lists(EVENTS, min_size=1, max_size=9)
ENVS = st.sampled_from([1, 3])
REWARDS = {
    "reward_scale": st.sampled_from([1.0, 0.5, -2.0]),
    "reward_shift": st.sampled_from([0.0, 1.0]),
    "reward_clip": st.sampled_from([None, (-1.0, 1.0), (0.25, 0.75)]),
}
COMMON = {
    **REWARDS,
    "gamma": st.sampled_from([0.99, 0.5, 1.0, 0.0]),
    "stack": st.integers(0, 3),
    "stack_axis": st.sampled_from([1, 2, 3, -1]),
    "padding": st.sampled_from(["zero", "repeat"]),
    "capacity": st.none() | st.integers(3, 40),
    "stride": st.integers(1, 3),
    "previous": st.lists(st.sampled_from(["action", "reward", "extra"]), unique=True).map(tuple),
    "extras": st.lists(st.sampled_from(["timestep", "episode", "remaining", "return_to_go"]), unique=True).map(tuple),
}
SEQUENCES = st.builds(
    Look,
    sequence_length=st.integers(1, 6),
    burn_in=st.integers(0, 3),
    within_episode=st.booleans(),
    pad=st.sampled_from([None, "left", "right"]),
    time_major=st.booleans(),
    **COMMON,
)
OFFSETS = st.dictionaries(
    st.sampled_from(["observation", "action", "reward", "extra"]),
    st.lists(st.integers(-4, 4), min_size=1, max_size=4),
    max_size=3,
)
TRANSITIONS = st.builds(
    Look,
    n_step=st.integers(1, 4),
    missing_final=st.sampled_from(["drop", "shorten"]),
    offsets=OFFSETS,
    **COMMON,
)


def check_replay(replay: archive.Replay, story: Story, look: Look) -> None:
    """Compare the whole of a replay: every valid start and its batch, and that other rows are refused."""
    starts = look.starts(story)
    assert len(replay) == len(starts)
    if starts:
        check_batch(replay.gather(starts), story, look)
    else:
        with pytest.raises(archive.NotEnoughData):
            replay.sample(1)
    valid = {
        e.env << 32 | e.start + i for e in story.episodes for i in range(e.steps) if look.is_valid(story, e, i)
    }  # rows that left the capacity may still be gathered
    rows = {e.env << 32 | e.start + i for e in story.episodes for i in range(len(e.frames))}
    for number in rows - valid:
        with pytest.raises(archive.IndexRangeError, match="valid start"):
            replay.gather([number])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the run of one example after the other can be."""
    return tmp_path_factory.mktemp("runs") / "run.h5"


@pytest.fixture
def twin(tmp_path: Path) -> Iterator[Callable[..., Twin]]:
    """Return a function that makes a run with its story."""
    made: list[Twin] = []

    def make(envs: int = 1) -> Twin:
        made.append(Twin(tmp_path / f"{len(made)}.h5", envs))
        return made[-1]

    yield make
    for both in made:
        both.run.close()


# --- against the oracle


@given(envs=ENVS, looks=st.lists(SEQUENCES | TRANSITIONS, min_size=4, max_size=4), history=HISTORIES)
def test_valid_starts_and_their_batches(place: Path, envs: int, looks: list[Look], history: list[Any]) -> None:
    with Twin(place, envs) as both:
        for event in history:
            both.play(event)
        for look in looks:
            check_replay(both.replay(look), both.story, look)


EVERY_ENDING = [
    ("whole", 0, 4, True, False, True),
    ("whole", 0, 2, False, True, False),
    ("whole", 0, 3, True, True, True),
    ("hide", 2, True),
    ("whole", 0, 5, False, True, True),
    ("whole", 0, 3, False, False, True),
    ("whole", 0, 4, False, False, False),
    ("whole", 0, 1, True, False, False),
    ("whole", 0, 2, False, True, True),
    ("reset",),
    ("whole", 0, 3, True, False, True),
    ("steps", 2, (False, False, False), (False, False, False)),
]


@pytest.mark.parametrize("within_episode", [True, False])
@pytest.mark.parametrize("pad", [None, "left", "right"])
def test_sequences_around_every_ending(twin: Callable[..., Twin], pad: str | None, within_episode: bool) -> None:
    """Terminated, truncated, both, neither, with and without a final observation, hidden, of no steps, going on."""
    both = twin()
    for event in EVERY_ENDING:
        both.play(event)
    assert both.story.waits(0)
    for sequence_length, burn_in, stride in ((1, 0, 1), (2, 0, 1), (3, 2, 1), (4, 0, 2), (9, 0, 1), (12, 20, 1)):
        look = Look(
            sequence_length=sequence_length,
            burn_in=burn_in,
            stride=stride,
            pad=pad,
            within_episode=within_episode,
            stack=2,
            previous=("action", "reward"),
            extras=("timestep", "episode", "remaining", "return_to_go"),
        )
        check_replay(both.replay(look), both.story, look)


@given(
    envs=ENVS,
    look=SEQUENCES | TRANSITIONS,
    history=HISTORIES,
    seed=st.integers(0, 2**64 - 1),
    beta=st.sampled_from([0.0, 0.4, archive.Linear(0.2, 1.0, steps=4)]),
    normalize=st.sampled_from(["batch", "global"]),
)
def test_draws_while_rows_arrive(
    place: Path, envs: int, look: Look, history: list[Any], seed: int, beta: Any, normalize: str
) -> None:
    """Three replays of one run, each going on from its state whenever the run is opened again."""
    prioritized = archive.Prioritized(alpha=0.7, beta=beta, epsilon=0.01, normalize=normalize)
    with Twin(place, envs) as both:
        samplers = (archive.Uniform(), prioritized, archive.Epoch())
        replays = [both.replay(look, sampler=sampler, seed=seed, batch_size=5) for sampler in samplers]
        drawn = Drawn(both.story, look, seed, beta, normalize)
        shown_again = any(event[0] == "hide" and not event[2] for event in history)
        for event in history:
            states = [replay.state_dict() for replay in replays]
            both.play(event)
            if event[0] == "reopen":
                replays = [both.run.replay(state=state) for state in states]
            starts = look.starts(both.story)
            assert [len(replay) for replay in replays] == [len(starts)] * 3
            drawn.arrived()
            if not starts:
                continue
            uniform, weighted, once = (replay.sample() for replay in replays)
            for batch in (uniform, weighted, once):
                check_batch(batch, both.story, look)
            drawn.check_uniform(uniform, starts)
            drawn.check_prioritized(weighted)
            replays[1].update_priorities(weighted.index, weighted.index % 5 + 0.25)
            if not shown_again:  # a start shown again in the middle of a pass may be drawn in it or not
                drawn.passes.check(once.index, set(starts))


class Passes:
    """What an Epoch replay may draw: `left` are the starts of the pass that were not drawn yet."""

    def __init__(self) -> None:
        self.left: set[int] = set()

    def check(self, index: Array, valid: set[int]) -> None:
        """Check that these ids come next; starts that are no longer valid are passed over."""
        for number in index.tolist():
            self.left &= valid
            if not self.left:
                self.left = set(valid)
            assert number in self.left, f"{number} was drawn in this pass already, or never was valid"
            self.left.discard(number)


class Drawn:
    """What was drawn so far, and the priorities that follow from it: `priority` by id of a transition."""

    def __init__(self, story: Story, look: Look, seed: int, beta: Any, normalize: str) -> None:
        self.story, self.look, self.seed, self.beta, self.normalize = story, look, seed, beta, normalize
        self.batches, self.largest = 0, 1.0
        self.priority: dict[int, float] = {}
        self.passes = Passes()

    def arrived(self) -> None:
        """Let transitions enter at the largest priority seen."""
        for episode in self.story.episodes:
            for i in range(episode.steps):
                self.priority.setdefault(episode.env << 32 | episode.start + i, self.largest)

    def check_uniform(self, batch: archive.Batch, starts: list[int]) -> None:
        assert batch.index.tolist() == uniform_draw(starts, self.seed, self.batches, len(batch))
        assert batch.weight.tolist() == [1.0] * len(batch)

    def check_prioritized(self, batch: archive.Batch) -> None:
        """Check ids and weights, then let each drawn start have the priority that the test gives it."""
        beta = self.beta if isinstance(self.beta, float) else 0.2 + 0.8 * min(self.batches / 4, 1)
        numbers = uniforms(self.seed, self.batches, len(batch))
        leaves = ordered_leaves(self.story, self.look, self.priority)
        check_prioritized(batch.index, batch.weight, leaves, numbers, beta, self.normalize)
        given = {number: number % 5 + 0.25 for number in batch.index.tolist()}
        self.priority |= given
        self.largest = max(self.largest, *given.values())
        self.batches += 1


def ordered_leaves(story: Story, look: Look, priority: dict[int, float]) -> list[tuple[int, float]]:
    """Return id and leaf of the valid starts in the order of the tree: slot by slot, its environments in turn."""
    found = []
    for env in range(story.envs):
        for q, episode, i in look.kept(story, env):
            if look.is_valid(story, episode, i):
                number = env << 32 | episode.start + i
                slot = q % look.share(story) * story.envs + env
                found.append((slot, number, (priority[number] + 0.01) ** 0.7))
    return [(number, leaf) for _, number, leaf in sorted(found)]


# --- limits, casts, arrays of the caller


ALWAYS = {"terminated", "truncated", "discount", "index", "weight"}


@pytest.mark.parametrize(
    "options", [{}, {"sequence_length": 3, "burn_in": 1}, {"sequence_length": 3, "time_major": True}]
)
def test_fields_limit_what_is_gathered(twin: Callable[..., Twin], options: Any) -> None:
    both = twin()
    both.whole(0, 8, terminated=True)
    replay = both.run.replay(**options, previous=("reward",), extras=("timestep",))
    always = ALWAYS | {"prev_reward", "timestep"} | ({"is_first", "mask"} if options else set())
    for fields, found in (
        (["observation"], {"observation"} if options else {"observation", "next_observation"}),
        (["reward", "extra"], {"reward", "extra"}),
        (["action"], {"action"}),
        ([], set()),
    ):
        whole, part = replay.gather([0, 2]), replay.gather([0, 2], fields)
        assert set(part.asdict()) == always | found
        for name in part.asdict():
            np.testing.assert_array_equal(part[name], whole[name], name)
    with pytest.raises(archive.UnknownFieldError, match="speed"):
        replay.gather([0], ["speed"])


PARTS = {
    "observation/top": archive.Field("uint8", (2,)),
    "observation/arm/angle": archive.Field("float64"),
    "action/turn": archive.Field("int64"),
    "action/grip": archive.Field("bool"),
    "info/lives": archive.Field("int32"),
    "log_prob": archive.Field("float64"),
}


@pytest.fixture
def parts(path: Path) -> Iterator[archive.Run]:
    """Return a run of two episodes of three steps whose observations, actions and infos have parts."""
    with archive.create(path, archive.Schema(PARTS), commit_every=None) as run:
        for start in (0, 10):
            seen = [{"top": np.full(2, start + k), "arm": {"angle": start + k + 0.5}} for k in range(4)]
            run.reset(seen[0])
            for k in range(3):
                action = {"turn": start + k + 1, "grip": k == 1}
                run.step(action, seen[k + 1], k, k == 2, False, {"lives": 9 - k}, log_prob=-start - k)
        yield run


def test_casts_reach_one_field_or_all_its_parts(parts: archive.Run) -> None:
    plain = parts.replay().gather([0, 5])
    whole = parts.replay(cast={"observation": "float32", "reward": "float16"}).gather([0, 5])
    assert whole.observation["top"].dtype == whole.next_observation["arm"]["angle"].dtype == np.float32
    assert whole.reward.dtype == np.float16
    some = parts.replay(cast={"observation/top": ">f8", "info/lives": "int8", "action/turn": "uint16"}).gather([0, 5])
    assert some.observation["top"].dtype == some.next_observation["top"].dtype == np.dtype(">f8")
    assert some.observation["arm"]["angle"].dtype == np.float64
    assert (some["info/lives"].dtype, some.action["turn"].dtype, some.action["grip"].dtype) == (
        "int8",
        "uint16",
        "bool",
    )
    for batch in (whole, some):
        np.testing.assert_array_equal(batch.observation["top"], plain.observation["top"])
        np.testing.assert_array_equal(batch.next_observation["arm"]["angle"], plain.next_observation["arm"]["angle"])
        np.testing.assert_array_equal(batch.action["turn"], plain.action["turn"])
        np.testing.assert_array_equal(batch["info/lives"], plain["info/lives"])
        np.testing.assert_array_equal(batch.reward, plain.reward)


def test_casts_also_reach_sequences(parts: archive.Run) -> None:
    batch = parts.replay(sequence_length=4, cast={"observation/top": "float32", "reward": "float64"}).gather([0])
    assert (batch.observation["top"].dtype, batch.reward.dtype) == (np.float32, np.float64)
    assert batch.observation["top"][0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_offsets_of_a_part_leave_the_other_parts_alone(parts: archive.Run) -> None:
    offsets = {"observation/top": (-1, 0, 9), "action/turn": range(4), "info/lives": (1,)}
    batch = parts.replay(offsets=offsets).gather([1, 4])
    assert batch.observation["top"][..., 0].tolist() == [[0, 1, 3], [10, 10, 13]]
    assert batch.observation["arm"]["angle"].tolist() == [1.5, 10.5]
    assert batch.next_observation["arm"]["angle"].tolist() == [2.5, 11.5]
    assert batch.action["turn"].tolist() == [[2, 3, 3, 3], [11, 12, 13, 13]]
    assert batch.action["grip"].tolist() == [True, False]
    assert batch["info/lives"].tolist() == [[7], [8]]
    assert {name: array.tolist() for name, array in batch.mask.items()} == {
        "observation/top": [[True, True, False], [False, True, False]],
        "action/turn": [[True, True, False, False], [True, True, True, False]],
        "info/lives": [[True], [True]],
    }


def test_previous_of_parts_and_groups(parts: archive.Run) -> None:
    both = parts.replay(previous=("action", "log_prob", "info/lives")).gather([0, 2])
    assert {name: array.tolist() for name, array in both.prev_action.items()} == {"turn": [0, 2], "grip": [False, True]}
    assert (both["prev_log_prob"].tolist(), both["prev_info/lives"].tolist()) == ([0.0, -1.0], [0, 8])
    one = parts.replay(previous=("action/turn",)).gather([0, 2])
    assert one["prev_action/turn"].tolist() == [0, 2]


def test_parts_have_sequences_of_their_own_shape(parts: archive.Run) -> None:
    batch = parts.replay(sequence_length=2, time_major=True, stack=2).gather([1, 4, 5])
    assert batch.observation["top"].shape == (2, 3, 2, 2)
    assert batch.observation["arm"]["angle"].shape == (2, 3, 2)
    assert batch.action["turn"].tolist() == [[2, 11, 12], [3, 12, 13]]
    assert batch["info/lives"].tolist() == [[8, 9, 8], [7, 8, 7]]


def test_a_field_that_arrives_stacked_has_its_stacks_in_sequences(path: Path) -> None:
    """By default; at offsets a field is what is stored, one frame."""
    fields = {"observation": archive.Field("int64", (), stacked=3, padding="repeat"), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields)) as run:
        run.reset([1, 1, 1])
        run.step(5, [1, 1, 2], 0.0, False, False)
        run.step(6, [1, 2, 3], 0.0, True, False)
        batch = run.replay(sequence_length=3, pad="left").gather([0, 1])
        assert batch.observation.tolist() == [[[0] * 3, [0] * 3, [1, 1, 1]], [[0] * 3, [1, 1, 1], [1, 1, 2]]]
        assert batch.mask.tolist() == [[False, False, True], [False, True, True]]
        batch = run.replay(sequence_length=3, stack=2, padding="zero").gather([0])
        assert batch.observation.tolist() == [[[0, 1], [1, 2], [2, 3]]]
        assert run.replay(sequence_length=3, stack=0).gather([0]).observation.tolist() == [[1, 2, 3]]
        batch = run.replay(offsets={"observation": (-1, 0, 1, 2)}).gather([0, 1])
        assert batch.observation.tolist() == [[1, 1, 2, 3], [1, 2, 3, 3]]


def flat(arrays: Any, path: str = "") -> dict[str, Array]:
    """Return nested arrays by path."""
    if not isinstance(arrays, dict):
        return {path: arrays}
    return {name: array for key, value in arrays.items() for name, array in flat(value, f"{path}/{key}").items()}


def emptied(arrays: Any) -> Any:
    """Return nested arrays of the same kind, filled with ones."""
    if isinstance(arrays, dict):
        return {key: emptied(value) for key, value in arrays.items()}
    return np.ones_like(arrays)


@pytest.mark.parametrize("options", [{}, {"sequence_length": 2}, {"offsets": {"observation/top": (0, 1)}}])
def test_arrays_of_the_caller_are_filled_in_place(parts: archive.Run, options: Any) -> None:
    a, b = (parts.replay(batch_size=5, sampler=archive.Prioritized(), **options) for _ in range(2))
    out = emptied(a.sample().asdict())
    b.sample()
    for _ in range(3):
        filled, plain = a.sample(out=out), b.sample()
        mine = flat(out)
        assert all(array is mine[name] for name, array in flat(filled.asdict()).items())
        for name, array in flat(plain.asdict()).items():
            np.testing.assert_array_equal(mine[name], array, name)
    some = {"reward": np.zeros_like(plain.reward)}
    assert a.sample(out=some).reward is some["reward"]
    np.testing.assert_array_equal(some["reward"], b.sample().reward)


@pytest.mark.parametrize(
    ("out", "error"),
    [
        ({"reward": np.zeros(4, np.float32)}, archive.FieldError),
        ({"reward": np.zeros((5, 1), np.float32)}, archive.FieldError),
        ({"reward": np.zeros(5, np.float64)}, archive.FieldError),
        ({"observation": {"top": np.zeros((5, 3), np.uint8)}}, archive.FieldError),
        ({"observation": np.zeros((5, 2), np.uint8)}, archive.ArchiveError),
        ({"observation": {"depth": np.zeros(5)}}, archive.UnknownFieldError),
        ({"reward": [0.0] * 5}, archive.ArchiveError),
        ({"speed": np.zeros(5)}, archive.UnknownFieldError),
    ],
)
def test_arrays_of_the_caller_that_do_not_fit_are_refused(parts: archive.Run, out: Any, error: Any) -> None:
    """By name, and neither they nor the position of the replay change."""
    a, b = (parts.replay(batch_size=5) for _ in range(2))
    fits = np.full(5, -1, np.int64)
    names = "top|depth|reward|speed|observation"
    with pytest.raises(error, match=names):
        a.sample(out={"index": fits, **out})
    assert fits.tolist() == [-1] * 5
    np.testing.assert_array_equal(a.sample().index, b.sample().index)


def test_read_only_arrays_are_refused(parts: archive.Run) -> None:
    target = np.zeros(5, np.float32)
    target.flags.writeable = False
    with pytest.raises(archive.ArchiveError, match="reward"):
        parts.replay().sample(5, out={"reward": target})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        *(({"sequence_length": v}, "sequence_length") for v in (0, -1, 1.5, True, "8")),
        *(({"sequence_length": 4, "burn_in": v}, "burn_in") for v in (-1, 0.5, True)),
        *(({"stride": v}, "stride") for v in (0, -2, 1.5, True)),
        *(({"sequence_length": 4, "pad": v}, "pad") for v in ("both", True, 0)),
        *(
            ({name: v}, name)
            for name, v in {"burn_in": 2, "pad": "left", "time_major": True, "within_episode": False}.items()
        ),
        ({"sequence_length": 4, "n_step": 2}, "n_step"),
        ({"sequence_length": 4, "offsets": {"action": (0, 1)}}, "offsets"),
        *(({"stack": 2, "stack_axis": v}, "stack_axis") for v in (0, 4, -4, 1.5, True)),
        *(({"extras": v}, "extras") for v in (("time",), ("timestep", "reward"))),
        *(({"previous": (v,)}, v) for v in ("speed", "terminate")),
        *(({"offsets": {v: (0,)}}, v) for v in ("speed", "observation/top")),
        *(({"cast": {v: "f4"}}, v) for v in ("speed", "observation/top")),
        ({"cast": {"observation": "nonsense"}}, "cast|nonsense"),
        *(({"missing_final": v}, "missing_final") for v in ("keep", None)),
        *(({name: v}, name) for name in ("reward_scale", "reward_shift") for v in (np.nan, np.inf, "1")),
        *(({"reward_clip": v}, "reward_clip") for v in ((1.0, -1.0), (np.nan, 1.0), (0.0,), "1", np.nan)),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(twin: Callable[..., Twin], options: Any, words: str) -> None:
    both = twin()
    both.whole(0, 8)
    with pytest.raises(archive.ArchiveError, match=words):
        both.run.replay(**options)


# --- weights


def test_weights_relative_to_all_starts(twin: Callable[..., Twin]) -> None:
    """Leaves 1 .. 8: the weight of leaf k is (k / 1)^-beta, whatever else is in the batch; N cancels out."""
    both = twin()
    both.whole(0, 8, terminated=True)
    sampler = archive.Prioritized(alpha=1.0, beta=0.5, epsilon=0.0, normalize="global")
    replay = both.run.replay(sampler=sampler)
    replay.update_priorities(range(8), range(1, 9))
    for _ in range(5):
        batch = replay.sample(3)
        np.testing.assert_allclose(batch.weight, (batch.index + 1.0) ** -0.5, 1e-6)
    batch = replay.sample(3, beta=2.0)  # the beta of a call wins
    np.testing.assert_allclose(batch.weight, (batch.index + 1.0) ** -2.0, 1e-6)
    assert replay.sample(4, beta=0.0).weight.tolist() == [1.0] * 4
    replay.update_priorities([0], [0.0])  # a start that is never drawn is no measure
    batch = replay.sample(4, beta=1.0)
    np.testing.assert_allclose(batch.weight, 2.0 / (batch.index + 1), 1e-6)


def test_a_linear_beta_counts_batches_and_goes_on_after_a_state(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.whole(0, 4, terminated=True)
    sampler = archive.Prioritized(alpha=1.0, beta=archive.Linear(0.0, 1.0, steps=4), epsilon=0.0)
    replay = both.run.replay(sampler=sampler, batch_size=64, seed=1)
    replay.update_priorities(range(4), [1.0, 1.0, 1.0, 8.0])
    for number in range(7):
        if number == 3:
            replay = both.run.replay(state=replay.state_dict())
        if number == 5:
            assert set(replay.sample(beta=3.0).weight.tolist()) == {1.0, np.float32(8**-3.0)}  # a batch all the same
            continue
        beta = min(number / 4, 1.0)
        weights = {np.float32(1.0), np.float32(8**-beta)}
        assert {round(w, 6) for w in replay.draw()[1].tolist()} == {round(float(w), 6) for w in weights}


@pytest.mark.parametrize("sampler", [archive.Uniform(), archive.Epoch(), archive.Prioritized()])
def test_a_batch_that_could_not_be_read_is_drawn_again(
    twin: Callable[..., Twin], monkeypatch: pytest.MonkeyPatch, sampler: Any
) -> None:
    both = twin()
    both.whole(0, 12)
    a, b = (both.run.replay(sampler=sampler, batch_size=5) for _ in range(2))

    def worn_out(*_: Any) -> None:
        raise OSError("worn out")

    for _ in range(4):
        with monkeypatch.context() as patch:
            patch.setattr(archive.plan.Plan, "read", worn_out)
            with pytest.raises(OSError, match="worn out"):
                a.sample()
        assert a.sample().index.tolist() == b.sample().index.tolist()


@pytest.mark.parametrize("beta", [-0.1, np.nan, np.inf, "1"])
def test_betas_that_mean_nothing_are_refused(twin: Callable[..., Twin], beta: Any) -> None:
    both = twin()
    both.whole(0, 4)
    a, b = (both.run.replay(sampler=archive.Prioritized(), batch_size=4) for _ in range(2))
    with pytest.raises(archive.ArchiveError, match="beta"):
        a.sample(beta=beta)
    assert a.draw()[0].tolist() == b.draw()[0].tolist()


@pytest.mark.parametrize("order", list(permutations(range(1, 4))))
@pytest.mark.parametrize("back", list(permutations(range(1, 4))))
def test_priorities_come_back_in_whatever_order_neighbours_are_hidden(
    twin: Callable[..., Twin], order: tuple[int, ...], back: tuple[int, ...]
) -> None:
    """Sequences run through all five episodes, so hiding one takes starts of those before it away as well."""
    both = twin()
    for steps in (3, 3, 3, 3, 8):
        both.whole(0, steps, terminated=True)
    look = Look(sequence_length=6, within_episode=False)
    replay = both.replay(look, sampler=archive.Prioritized(alpha=1.0, epsilon=0.0))
    starts = look.starts(both.story)
    priority = {number: 1.0 + k for k, number in enumerate(starts)}
    replay.update_priorities(starts, list(priority.values()))
    for hidden, numbers in ((True, order), (False, back)):
        for number in numbers:
            both.hide(number, hidden)
            shown = look.starts(both.story)
            assert len(replay) == len(shown)
            index, _ = replay.draw(600)
            assert set(index.tolist()) == set(shown)
    total = sum(priority.values())
    index, _ = replay.draw(6000)
    for number, value in priority.items():
        assert abs((index == number).sum() - 6000 * value / total) <= 2, number  # one from each of equal parts


# --- passes


def test_passes_have_orders_of_their_own(twin: Callable[..., Twin]) -> None:
    both = twin(3)
    for env in range(3):
        both.whole(env, 40, terminated=True)
    replay = both.run.replay(sampler=archive.Epoch(), seed=4)
    orders = [tuple(replay.draw(120)[0].tolist()) for _ in range(20)]
    assert len(set(orders)) == 20
    assert len({frozenset(order) for order in orders}) == 1
    assert tuple(both.run.replay(sampler=archive.Epoch(), seed=5).draw(120)[0].tolist()) not in orders
    assert tuple(both.run.replay(sampler=archive.Epoch(), seed=4).draw(120)[0].tolist()) == orders[0]
    first = Counter(order[0] for order in orders)
    assert max(first.values()) < 5  # no start is preferred at the head of a pass
    assert replay.draw(1)[1].tolist() == [1.0]


def test_a_pass_does_not_depend_on_the_sizes_of_its_batches(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.whole(0, 50, terminated=True)
    a, b = (both.run.replay(sampler=archive.Epoch()) for _ in range(2))
    pieces = np.concatenate([a.draw(size)[0] for size in (1, 7, 30, 40, 22)])  # the fourth spans two passes
    np.testing.assert_array_equal(pieces, b.draw(100)[0])
    assert sorted(pieces[:50].tolist()) == sorted(pieces[50:].tolist()) == list(range(50))


def test_a_batch_may_be_larger_than_a_pass(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.whole(0, 3, terminated=True)
    assert Counter(both.run.replay(sampler=archive.Epoch()).draw(10)[0].tolist()).most_common()[0][1] == 4


@pytest.mark.parametrize("look", [Look(), Look(sequence_length=4, within_episode=False)])
def test_hiding_and_showing_within_a_pass(twin: Callable[..., Twin], look: Look) -> None:
    """What is valid all the time is drawn exactly once in each pass, what is not for a while at most once."""
    both = twin()
    for _ in range(9):
        both.whole(0, 10, terminated=True)
    always, ever = set(look.starts(both.story)), set(look.starts(both.story))
    replay = both.replay(look, sampler=archive.Epoch(), seed=2, batch_size=1)
    found = [int(replay.draw()[0][0]) for _ in range(20)]
    for number, hidden in ((3, True), (5, True), (3, False), (7, True)):
        both.hide(number, hidden)
        always &= set(look.starts(both.story))
        assert len(replay) == len(look.starts(both.story))
        found += [int(replay.draw()[0][0]) for _ in range(5)]
    while not always <= set(found):
        found.append(int(replay.draw()[0][0]))
    assert max(Counter(found).values()) == 1
    both.hide(5, False)
    both.hide(7, False)
    while not ever <= set(found):  # a pass that begins now is whole again
        found.append(int(replay.draw()[0][0]))
    shares = Counter(replay.draw(6 * len(ever))[0].tolist())
    assert set(shares) == ever
    assert set(shares.values()) <= {5, 6, 7}


def test_options_beside_a_state_change_a_pass_without_harm(twin: Callable[..., Twin]) -> None:
    """What is drawn is valid under the options that hold now, and the next pass is whole."""
    both = twin()
    for _ in range(10):
        both.whole(0, 10)
    replay = both.run.replay(sampler=archive.Epoch(), batch_size=30)
    replay.draw()
    for options in ({"sequence_length": 8}, {"capacity": 25}, {"stride": 3}, {"n_step": 4}):
        changed = both.run.replay(state=replay.state_dict(), **options)
        found = changed.draw(300)[0]
        assert len(changed.gather(found)) == 300
        assert len(set(found[-2 * len(changed) :].tolist())) == len(changed)


@pytest.mark.parametrize("size", [10, 3000])
def test_the_state_of_a_pass_does_not_grow(twin: Callable[..., Twin], size: int) -> None:
    both = twin()
    both.whole(0, size)
    replay = both.run.replay(sampler=archive.Epoch())
    replay.draw(7)
    arrays = [v for v in flat(replay.state_dict()).values() if isinstance(v, np.ndarray)]
    assert sum(array.nbytes for array in arrays) < 200


# --- resuming


def begin(path: str) -> list[str]:
    """Draw within a pass, save, keep a copy of the file as it is then, and return what comes next."""
    import shutil

    schema = archive.Schema({"observation": archive.Field("int64"), "action": archive.Field("int64")}, num_envs=2)
    with archive.create(path, schema, commit_every=None) as run:
        replays = [run.replay(batch_size=7, seed=k, **options(sampler)) for k, sampler in enumerate(samplers())]
        feed(run, 0)
        for replay in replays:
            learn(replay, 9)
        run.checkpoint(replays=[replay.state_dict() for replay in replays])
        shutil.copy(path, f"{path}.copy")
        return ids(run, replays)


def go_on(path: str) -> list[str]:
    """Resume from the checkpoint and return what comes next."""
    with archive.open(f"{path}.copy", "a", commit_every=None) as run:
        replays = [run.replay(state=state) for state in run.last_checkpoint["replays"]]
        return ids(run, replays)


def samplers():  # type: ignore[no-untyped-def]
    beta = archive.Linear(0.4, 1.0, 30)
    return archive.Epoch(), archive.Uniform(), archive.Prioritized(beta=beta, normalize="global")


def options(sampler):  # type: ignore[no-untyped-def]
    return {
        "sampler": sampler,
        "sequence_length": 3,
        "burn_in": 1,
        "stride": 2,
        "pad": "left",
        "time_major": True,
        "within_episode": False,
        "previous": ("action", "reward"),
        "extras": ("return_to_go", "timestep"),
        "cast": {"observation": "float32"},
        "reward_clip": 1.0,
        "capacity": 300,
    }


def feed(run, first):  # type: ignore[no-untyped-def]
    """Append five episodes of each environment, made of their numbers."""
    for k in range(first, first + 5):
        run.reset(np.array([k, -k]))
        for t in range(11 + k % 7):
            end = np.full(2, t == 10 + k % 7)
            run.step(np.array([t, t]), np.array([100 * k + t, -100 * k - t]), np.array([t, 0.5]), end, ~end & end)


def learn(replay, batches):  # type: ignore[no-untyped-def]
    """Draw batches and return the bytes of everything in them, as text."""
    import hashlib

    found = []
    for _ in range(batches):
        batch = replay.sample()
        digest = hashlib.sha256()
        for name, array in sorted(batch.asdict().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        found.append(digest.hexdigest())
        if isinstance(replay.sampler, archive.Prioritized):
            replay.update_priorities(batch.index, (batch.index & 15) / 4)
    return found


def ids(run, replays):  # type: ignore[no-untyped-def]
    """Return what the next batches are while rows arrive."""
    found = []
    for first in (5, 10, 15):
        for replay in replays:
            found += learn(replay, 20)
        feed(run, first)
    return found


def test_a_fresh_process_goes_on_within_a_pass(path: Path, fresh_process: Callable[..., list[str]]) -> None:
    uses = (samplers, options, feed, learn, ids)
    expected = fresh_process(begin, path, uses=uses)
    assert len(expected) == 180
    assert fresh_process(go_on, path, uses=uses) == expected


LOOKS = [
    Look(
        offsets={"observation": range(-2, 3), "reward": (0, 1)},
        extras=("episode", "remaining"),
        reward_clip=(-0.5, 0.5),
    ),
    Look(sequence_length=3, burn_in=2, pad="left", stack=2, stack_axis=-1, padding="repeat", time_major=True),
    Look(
        n_step=3, missing_final="shorten", previous=("action", "extra"), reward_scale=0.5, reward_shift=-0.25, stride=2
    ),
]


@pytest.mark.parametrize("look", LOOKS)
def test_options_survive_a_checkpoint(twin: Callable[..., Twin], look: Look) -> None:
    both = twin(3)
    for env in range(3):
        both.whole(env, 9, truncated=True, final=env != 1)
    sampler = archive.Prioritized(beta=archive.Linear(0.0, 1.0, 9), normalize="global", stratified=False)
    before = both.replay(look, sampler=sampler, cast={"observation": ">f4"}, batch_size=6)
    before.sample()
    both.run.checkpoint(replay=before.state_dict())
    expected = [before.sample().asdict() for _ in range(3)]
    both.reopen(False)
    after = both.run.replay(state=both.run.last_checkpoint["replay"])
    assert (after.options, after.sampler) == (before.options, before.sampler)
    for batch in expected:
        found = flat(after.sample().asdict())
        assert found.keys() == flat(batch).keys()
        for name, array in flat(batch).items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array, name)
    assert both.run.replay(state=after.state_dict(), gamma=0.5).options.gamma == 0.5


@pytest.mark.parametrize("sampler", [archive.Epoch(), archive.Uniform(), archive.Prioritized()])
def test_a_state_goes_on_within_the_process(twin: Callable[..., Twin], sampler: Any) -> None:
    both = twin()
    both.whole(0, 30, terminated=True)
    look = Look(sequence_length=4, stride=2, capacity=20, pad="right")
    a = both.replay(look, sampler=sampler, batch_size=6)
    a.sample()
    b = both.run.replay(state=a.state_dict())
    c = both.replay(look, sampler=sampler, batch_size=6)
    c.load_state_dict(a.state_dict())
    for _ in range(6):
        both.whole(0, 3, truncated=True)
        expected = a.draw()[0].tolist()
        assert b.draw()[0].tolist() == c.draw()[0].tolist() == expected


# --- G6, G10: golden vectors


def recorded(path: Path, count: int, ends: Any = ()) -> archive.Run:
    """Record steps 1 .. count as systems do that keep no final observation: observation, action and reward k."""
    schema = archive.Schema({"observation": archive.Field("uint8", (1,)), "action": archive.Field("int64")})
    run = archive.create(path, schema, commit_every=None)
    k = np.arange(1, count + 1)
    run.extend({"observation": k.astype(np.uint8)[:, None], "action": k, "reward": k, "terminated": np.isin(k, ends)})
    return run


def drawable(replay: archive.Replay) -> list[int]:
    """Return the observations at which a replay may start."""
    found = {int(k) for k in replay.sample(100 * len(replay)).observation[:, 0, 0]}
    assert len(found) == len(replay)
    return sorted(found)


def test_g6_starts_of_planet_at_the_wrap(path: Path) -> None:
    """C=10, L=3, 13 steps: ring 11,12,13,4..10 and starts {0,3,4,..,9}, which are the observations 4 .. 11."""
    with recorded(path, 13) as run:
        replay = run.replay(capacity=10, sequence_length=3, within_episode=False)
        assert drawable(replay) == [4, 5, 6, 7, 8, 9, 10, 11]


def test_g6_starts_of_planet_before_the_wrap(path: Path) -> None:
    """8 steps: PlaNet draws the starts 0 .. 4 and never 5, which is complete; ours draws it too."""
    with recorded(path, 8) as run:
        assert drawable(run.replay(capacity=10, sequence_length=3, within_episode=False)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("within_episode", "starts"), [(False, [4, 5, 6, 7, 8, 9, 10, 11]), (True, [6, 7, 8, 9, 10, 11])]
)
def test_g6_starts_where_an_episode_ends(path: Path, within_episode: bool, starts: list[int]) -> None:
    """PlaNet's chunks cross the end of an episode at 5."""
    with recorded(path, 13, ends=[5]) as run:
        replay = run.replay(capacity=10, sequence_length=3, within_episode=within_episode)
        assert drawable(replay) == starts


def test_g6_chunks_of_planet(path: Path) -> None:
    """Chunks at the ring's [8,9,0] and [3,4,5], time-major, done at 5: nonterminal [[1,1],[1,0],[1,1]]."""
    with recorded(path, 13, ends=[5]) as run:
        replay = run.replay(capacity=10, sequence_length=3, within_episode=False, time_major=True, gamma=1.0)
        batch = replay.gather([8, 3])
        assert batch.observation[..., 0].tolist() == [[9, 4], [10, 5], [11, 6]]
        assert batch.action.tolist() == batch.reward.tolist() == [[9, 4], [10, 5], [11, 6]]
        assert batch.discount.tolist() == [[1, 1], [1, 0], [1, 1]]
        assert (~batch.terminated).astype(int).tolist() == [[1, 1], [1, 0], [1, 1]]
        assert batch.mask.all()


def test_g6_sequences_of_rlpyt(path: Path) -> None:
    """T=12, batch_T=3, 17 steps, done at 15: what rlpyt returns at its starts 11 and 0, whose previous actions it
    mixes up, [13,14,15,12]; right are [12,13,14,15]. Its frames go one step further than its returns.
    """
    with recorded(path, 17, ends=[15]) as run:
        replay = run.replay(capacity=12, sequence_length=4, within_episode=False, previous=("action",), time_major=True)
        batch = replay.gather([11, 12])
        assert batch.observation[..., 0].T.tolist() == [[12, 13, 14, 15], [13, 14, 15, 16]]
        assert batch["prev_action"].T.tolist() == [[11, 12, 13, 14], [12, 13, 14, 0]]  # 0: an episode starts at 16
        assert batch.reward[:3].T.tolist() == [[12, 13, 14], [13, 14, 15]]
        assert batch.terminated[:3].T.tolist() == [[False, False, False], [False, False, True]]
        assert batch.is_first.T.tolist() == [[False] * 4, [False, False, False, True]]


def test_g6_starts_of_rlpyt_at_the_wrap(path: Path) -> None:
    """T=12, n=1, batch_T=3, 17 steps: rlpyt's starts {0,6,..,11} are the observations 7 .. 13. Ours has two more: 6,
    whose previous action left the ring but not the file, and 14, whose rows are all there although rlpyt gives up
    the last n + batch_T of them.
    """
    with recorded(path, 17) as run:
        replay = run.replay(capacity=12, sequence_length=4, within_episode=False, previous=("action",))
        assert drawable(replay) == [6, *range(7, 14), 14]
        assert replay.gather([5])["prev_action"].tolist() == [[5, 6, 7, 8]]


def test_g10_bytes_of_planet_come_back_exactly(path: Path) -> None:
    """Bytes 0,1,7,8,9,127,128,200,255 at 5 bits; 255 is legal although it is no multiple of 8."""
    levels = np.array([0, 1, 7, 8, 9, 127, 128, 200, 255], np.uint8)
    schema = archive.Schema({"observation": archive.Field("uint8", (9,)), "action": archive.Field("float32", (1,))})
    with archive.create(path, schema) as run:
        run.extend({"observation": np.tile(levels, (3, 1)), "action": np.zeros((3, 1)), "reward": np.zeros(3)})
        batch = run.replay(sequence_length=2, cast={"observation": "float32"}).gather([1])
    found = np.floor(batch.observation[0, 0] / 2**3) / 2**5 - 0.5
    assert found.tolist() == [-0.5, -0.5, -0.5, -0.46875, -0.46875, -0.03125, 0, 0.28125, 0.46875]


# --- parts of tuples


def test_parts_of_tuples_keep_their_places(path: Path) -> None:
    names = ("observation/0", "observation/1", "observation/2", "action/0", "action/1")
    schema = archive.Schema({name: archive.Field("f4") for name in names}, tuples=("observation", "action"))
    with archive.create(path, schema) as run:
        run.reset((0.0, 100.0, 200.0))
        for t in range(5):
            run.step((t, 1000 + t), (t + 1.0, 101.0 + t, 201.0 + t), 0.0, False, False)
        batch = run.replay(offsets={"action/0": (0, 1)}).gather([1])
        assert [part.tolist() for part in batch.action] == [[[1.0, 2.0]], [1001.0]]
        batch = run.replay(offsets={"observation/1": (0, 1)}).gather([1])
        assert [part.tolist() for part in batch.observation] == [[1.0], [[101.0, 102.0]], [201.0]]
        first, missing, last = batch.next_observation
        assert (first.tolist(), missing, last.tolist()) == ([2.0], None, [202.0])
        assert [p.tolist() for p in run.replay().gather([1], fields=["action/1", "action/0"]).action] == [
            [1.0],
            [1001.0],
        ]
        missing, last = run.replay().gather([1], fields=["action/1"]).action
        assert (missing, last.tolist()) == (None, [1001.0])


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"offsets": v}
            for v in (5, [1], {"action": 3}, {"action": []}, {"action": "01"}, {"action": [0.7]}, {"action": [2**70]})
        ),
        *(
            {"cast": v}
            for v in (
                "float32",
                5,
                {5: "f4"},
                {"reward": "O"},
                {"reward": "M8[s]"},
                {"reward": None},
                {"prev_reward": "f4"},
            )
        ),
        *({name: v} for name in ("previous", "extras") for v in (None, 5, "reward", [[1]])),
    ],
)
def test_options_of_no_form_are_refused(twin: Callable[..., Twin], options: Any) -> None:
    both = twin()
    both.whole(0, 8)
    with pytest.raises(archive.ArchiveError, match=f"{next(iter(options))}|prev_reward"):
        both.run.replay(**options)


def test_casts_of_what_is_made_for_the_batch(twin: Callable[..., Twin]) -> None:
    both = twin()
    both.whole(0, 8)
    cast = {"prev_reward": "f8", "mask": "f4", "reward": "f8", "discount": "f2", "timestep": "i2"}
    options = {"previous": ("reward",), "extras": ("timestep",), "offsets": {"action": (0, 1)}}
    batch = both.run.replay(cast=cast, **options).gather([1])
    assert {k: batch[k]["action"].dtype if k == "mask" else batch[k].dtype for k in cast} == cast
