"""Batches drawn ahead: the same batches however many, whoever loads their chunks, and across states, forks, threads."""

from __future__ import annotations

import copy
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_replay import same

import archive

Array = np.ndarray[Any, Any]
Fresh = Callable[..., list[str]]
FRAME, ROWS, BUDGET = (84, 84), 6000, "12 MiB"  # 40 MB of frames
AHEAD = [0, 1, 2, 4]
SAMPLERS = [archive.Uniform(), archive.Epoch(), archive.Prioritized(beta=archive.Linear(0.4, 1.0, steps=50))]
MODES: list[dict[str, Any]] = [
    {"stack": 4, "n_step": 3},
    {"sequence_length": 6, "burn_in": 2, "within_episode": False},
    {"offsets": {"observation": (-2, 3)}, "previous": ("action",), "extras": ("return_to_go",)},
]


def equal_batches(a: archive.Batch, b: archive.Batch) -> None:
    assert same(a.asdict(), b.asdict()), (a, b)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of noise in episodes of 70 steps, some of them terminated."""
    path, rng = tmp_path_factory.mktemp("ahead") / "run.h5", np.random.default_rng(0)
    fields = {"observation": archive.Field("uint8", FRAME), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        for first in range(0, ROWS, 70):
            count = min(70, ROWS - first)
            frames = rng.integers(0, 256, (count, *FRAME), np.uint8)
            ends = (np.arange(count) == count - 1) & (first % 3 == 0)
            rows = {"observation": frames, "action": np.arange(first, first + count), "reward": rng.normal(size=count)}
            run.extend({**rows, "terminated": ends, "truncated": (np.arange(count) == count - 1) & ~ends})
    return path


@pytest.fixture
def reader(recorded: Path) -> Iterator[archive.Run]:
    with archive.open(recorded, memory=BUDGET) as run:
        yield run


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_batches_do_not_depend_on_how_many_are_drawn_ahead(reader: archive.Run, mode: Any, sampler: Any) -> None:
    replays = [reader.replay(sampler=sampler, batch_size=24, seed=3, prefetch=n, **mode) for n in AHEAD]
    for _ in range(12):
        first, *others = [replay.sample() for replay in replays]
        for other in others:
            equal_batches(first, other)


def test_chunks_are_loaded_in_the_background(reader: archive.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: dict[int, int] = {}
    fetch = archive.column.Column.fetch

    def noted(self: Any, chunk: int) -> bytes:
        loaded[threading.get_ident()] = loaded.get(threading.get_ident(), 0) + 1
        return fetch(self, chunk)

    monkeypatch.setattr(archive.column.Column, "fetch", noted)
    replay = reader.replay(batch_size=16, stack=4)
    for _ in range(20):
        replay.sample()
    mine = loaded.pop(threading.get_ident())
    assert sum(loaded.values()) > mine


def test_the_default_is_two_for_readers_and_none_for_writers(recorded: Path, path: Path) -> None:
    with archive.open(recorded) as run:
        assert run.replay().state_dict()["prefetch"] == 2
    fields = {"observation": archive.Field("f4", (1,)), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        assert run.replay().state_dict()["prefetch"] == 0


@pytest.mark.parametrize("ahead", [1, 3])
def test_priorities_count_for_what_is_drawn_after_them(reader: archive.Run, ahead: int) -> None:
    """Call k draws batch k + ahead; by hand, from a replay that draws nothing ahead."""
    a, b = (reader.replay(sampler=archive.Prioritized(), batch_size=16, prefetch=n) for n in (ahead, 0))
    by_hand = [b.draw() for _ in range(ahead)]
    for _ in range(15):
        by_hand.append(b.draw())
        batch, (index, weight) = a.sample(), by_hand.pop(0)
        assert batch.index.tolist() == index.tolist()
        assert batch.weight.tolist() == weight.tolist()
        for replay in (a, b):
            replay.update_priorities(index, np.abs(batch.reward) + 0.01)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_another_size_or_beta_gives_back_what_was_drawn(reader: archive.Run, sampler: Any) -> None:
    a, b = (reader.replay(sampler=sampler, batch_size=8, prefetch=n) for n in (3, 0))
    for size, beta in ((None, None), (5, None), (5, None), (5, 0.7), (8, 0.7), (None, None), (2, 0.0), (9, None)):
        equal_batches(a.sample(size, beta=beta), b.sample(size, beta=beta))
        assert a.draw()[0].tolist() == b.draw()[0].tolist()


@pytest.mark.parametrize("resumed", [0, 2, 5])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_state_holds_what_was_drawn(reader: archive.Run, sampler: Any, resumed: int) -> None:
    a = reader.replay(sampler=sampler, batch_size=8, stack=2, prefetch=2)
    for _ in range(3):
        a.sample()
    state = a.state_dict()
    assert len(state["pending"]) == 2
    b, c = reader.replay(state=state, prefetch=resumed), reader.replay(sampler=sampler, batch_size=8, stack=2)
    c.load_state_dict(state)
    for _ in range(6):
        expected = a.sample()
        equal_batches(expected, b.sample())
        equal_batches(expected, c.sample())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_other_options_beside_a_state_give_back_what_was_drawn(reader: archive.Run, sampler: Any) -> None:
    a = reader.replay(sampler=sampler, batch_size=8, prefetch=2)
    plain = reader.replay(sampler=sampler, batch_size=8, stack=3, prefetch=0)
    for _ in range(3):
        a.sample()
        plain.sample()
    changed = reader.replay(state=a.state_dict(), stack=3)
    for _ in range(4):
        equal_batches(changed.sample(), plain.sample())


def go_on(path: str, count: str) -> list[int]:
    with archive.open(path, "a") as run:
        replay = run.replay(state=run.last_checkpoint["replay"])
        return [int(k) for _ in range(int(count)) for k in replay.sample().index]


def test_a_new_process_goes_on_with_what_was_drawn(path: Path, fresh_process: Fresh) -> None:
    """A writer that draws ahead: rows and priorities that came after a draw do not change it."""
    schema = archive.Schema({"observation": archive.Field("f4", (1,)), "action": archive.Field("int64")})
    run = archive.create(path, schema, commit_every=None)
    replay = run.replay(sampler=archive.Prioritized(), batch_size=8, prefetch=3, capacity=300)

    def play(count: int) -> None:
        rows = np.arange(count, dtype=np.float32)
        run.extend({"observation": rows[:, None], "action": np.arange(count), "reward": rows})
        run.end_episode()

    for _ in range(10):
        play(50)
        batch = replay.sample()
        replay.update_priorities(batch.index, batch.reward)
    run.checkpoint(replay=replay.state_dict())
    expected = [int(k) for _ in range(10) for k in replay.sample().index]
    run.close()
    assert [int(word) for word in fresh_process(go_on, path, 10)] == expected


@pytest.mark.parametrize("ahead", [0, 2])
def test_threads_share_the_batches_of_a_replay(reader: archive.Run, ahead: int) -> None:
    """Each batch exactly once, and whole, while the cache is too small for all."""
    shared, alone = (reader.replay(batch_size=16, stack=4, seed=9, prefetch=n) for n in (ahead, 0))
    found: list[archive.Batch] = []

    def work() -> None:
        for _ in range(25):
            found.append(shared.sample())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    by_index = {batch.index.tobytes(): batch for batch in found}
    assert len(by_index) == len(found) == 100
    for _ in range(100):
        expected = alone.sample()
        equal_batches(expected, by_index[expected.index.tobytes()])


def test_a_reader_refreshes_while_threads_sample(path: Path) -> None:
    """Rows of chunks that fill up between two looks are never seen half there."""
    schema = archive.Schema({"observation": archive.Field("uint8", FRAME), "action": archive.Field("int64")})
    with archive.create(path, schema, commit_every=None, memory="64 MiB") as run:
        row, wrong = 0, []

        def grow(count: int) -> None:
            nonlocal row
            number = np.arange(row, row + count)
            frames = np.broadcast_to((number % 251)[:, None, None].astype(np.uint8), (count, *FRAME))
            run.extend({"observation": frames, "action": number, "reward": number})
            run.commit()
            row += count

        grow(100)
        with archive.open(path, memory=BUDGET) as reader:
            replay, done = reader.replay(batch_size=32), threading.Event()

            def watch() -> None:
                while not done.is_set():
                    batch = replay.sample()
                    for name, numbers in (("observation", batch.action), ("next_observation", batch.action + 1)):
                        if not (batch[name] == (numbers % 251)[:, None, None]).all():
                            wrong.append(batch)

            threads = [threading.Thread(target=watch) for _ in range(2)]
            for thread in threads:
                thread.start()
            for k in range(60):
                grow(1 + k % 40)
                reader.refresh()
            done.set()
            for thread in threads:
                thread.join()
        assert not wrong


def test_what_cannot_be_read_is_said_by_the_call_that_wants_it(recorded: Path, path: Path) -> None:
    """Each time, until it can be read."""
    path.write_bytes(recorded.read_bytes())
    with archive.open(path) as run:
        column = run._rows.columns["observation"]
        at = int(column.offset[100])
    with open(path, "r+b") as file:
        file.seek(at + 20)
        byte = file.read(1)
        file.seek(at + 20)
        file.write(bytes([byte[0] ^ 255]))
    with archive.open(path, memory=BUDGET) as run, archive.open(recorded, memory=BUDGET) as whole:
        a, b = run.replay(batch_size=64, prefetch=4), whole.replay(batch_size=64, prefetch=0)
        damaged = run._rows.header.rows["observation"] * 100
        failed = 0
        for _ in range(30):
            expected = b.sample()
            row = expected.index[:, None] + (0, 1)
            if not (row // column.chunk_rows == 100).any():
                equal_batches(a.sample(), expected)
                continue
            for _ in range(2):
                with pytest.raises(archive.DamagedError, match=f"from {damaged}: checksum differs"):
                    a.sample()
            assert a.draw()[0].tolist() == expected.index.tolist()
            failed += 1
        assert 0 < failed < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_goes_on_by_itself(reader: archive.Run) -> None:
    """As workers of a DataLoader do: while the parent's threads load, and theirs are not there."""
    replay = reader.replay(batch_size=32, stack=4, prefetch=4)
    for _ in range(5):
        replay.sample()
        into, out = os.pipe()
        child = os.fork()
        if not child:
            status = 1
            try:
                drawn = [replay.sample() for _ in range(6)]
                os.write(out, b"".join(b.index.tobytes() + b.observation.sum().tobytes() for b in drawn))
                status = 0
            finally:
                os._exit(status)
        os.close(out)
        twin = reader.replay(state=replay.state_dict())
        expected = b"".join(
            b.index.tobytes() + b.observation.sum().tobytes() for b in (twin.sample() for _ in range(6))
        )
        with os.fdopen(into, "rb") as pipe:
            assert pipe.read() == expected
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("mode", ["r", "a"])
def test_closing_does_not_wait_for_ever(recorded: Path, path: Path, mode: str) -> None:
    path.write_bytes(recorded.read_bytes())
    for _ in range(10):
        run = archive.open(path, mode, memory=BUDGET)
        replay = run.replay(batch_size=64, prefetch=6)
        replay.sample()
        replay.sample()
        run.close()
        with pytest.raises(archive.StateError, match="closed"):
            replay.sample()


@pytest.mark.parametrize("part", ["env", "row", "low", "number"])
@pytest.mark.parametrize("value", [-2, 1 << 40])
def test_states_with_rows_that_are_not_there_are_refused(reader: archive.Run, part: str, value: int) -> None:
    replay = reader.replay(batch_size=4)
    replay.sample()
    state = replay.state_dict()
    block = {"env": 0, "row": 1, "low": 2, "number": 5}[part]
    state["pending"][1]["place"][block, 2] = value
    with pytest.raises(archive.StateError, match="rows that this run does not have"):
        reader.replay(state=state)
    state["pending"] = [{"asked": 3}]
    with pytest.raises(archive.StateError, match="lacks or garbles"):
        reader.replay(state=state)


# --- Ctrl-C


class At:
    """Raise KeyboardInterrupt when the `number`-th line of the package runs in this block, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.left, self.came = number, False

    def __enter__(self) -> At:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def trace(self, frame: Any, event: str, argument: Any) -> Any:
        if Path(frame.f_code.co_filename).parent.name != "archive":
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python looks for no signal between `del` and `return`, nor where it leaves a `with`, which is a line again.
        if text in ("return batch", "return found") or text.startswith("with "):
            return self.trace
        if event == "line" and not self.came:
            self.left -= 1
            if self.left == 0:
                self.came = True
                raise KeyboardInterrupt
        return self.trace


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_batch_that_ctrl_c_came_for_is_the_next(path: Path, sampler: Any, ahead: int) -> None:
    """At every line that runs between the call and the batch."""
    fields = {"observation": archive.Field("u1", (4,)), "action": archive.Field("int64")}
    run = archive.create(path, archive.Schema(fields), commit_every=None)
    rows = np.arange(50)
    run.extend({"observation": np.tile(rows.astype("u1")[:, None], 4), "action": rows, "reward": rows})
    a, b = (run.replay(sampler=sampler, batch_size=8, stack=2, prefetch=ahead) for _ in range(2))
    number, done = 0, False
    while not done:
        number += 1
        at = At(number)
        try:
            with at:
                batch = a.sample()
            twin = batch
        except KeyboardInterrupt:
            twin = run.replay(state=a.state_dict()).sample()
            batch = a.sample()
        done = not at.came
        expected = b.sample()
        equal_batches(batch, expected)
        equal_batches(twin, expected)
    assert number > 30


def total(replay: archive.Replay) -> float:
    assert replay._priorities is not None
    return replay._priorities.tree.total


def test_rows_that_ctrl_c_came_for_enter_later(path: Path) -> None:
    """New rows, an episode hidden or shown again, and priorities: at every line that runs."""
    fields = {"observation": archive.Field("f4", (1,)), "action": archive.Field("int64")}
    with archive.create(path, archive.Schema(fields), commit_every=None) as run:
        a, b = (run.replay(sampler=archive.Prioritized(), batch_size=64, capacity=200) for _ in range(2))
        row, number, done = 0, 0, 0
        while done < 3:
            number += 1
            count = 3 + number % 5
            rows = np.arange(row, row + count)
            run.extend({"observation": rows[:, None].astype("f4"), "action": rows, "reward": rows})
            run.end_episode()
            run.annotate(number // 2, hidden=number % 3 == 0)
            row += count
            at, index = At(number), np.arange(row - 3, row - 1)
            try:
                with at:
                    len(a)
                    a.update_priorities(index, [number, 0.5])
            except KeyboardInterrupt:
                a.update_priorities(index, [number, 0.5])
            done += not at.came
            b.update_priorities(index, [number, 0.5])
            assert same(a.state_dict()["priorities"], b.state_dict()["priorities"])
            assert total(a) == total(b)
            assert a.draw()[0].tolist() == b.draw()[0].tolist()
        assert number > 60


def test_a_chunk_that_ctrl_c_came_for_is_not_taken_for_loaded(
    reader: archive.Run, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot is claimed, and holds what was there before."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with archive.open(recorded) as whole:
        a, b = (run.replay(batch_size=16, stack=2, prefetch=0) for run in (reader, whole))
        for _ in range(6):
            with monkeypatch.context() as patch:
                patch.setattr(archive.column, "spread", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    a.sample()
            equal_batches(a.sample(), b.sample())


def test_a_forked_child_forgets_a_chunk_that_was_half_loaded(reader: archive.Run) -> None:
    rows, column = reader._rows, reader._rows.columns["observation"]
    expected = column.rows(0, 1600, 1616)
    column.forget(100)
    column.filling = 100
    column.bytes_of(column.claim(100))[:] = 77
    rows.renew_locks()
    np.testing.assert_array_equal(column.rows(0, 1600, 1616), expected)
    assert column.filling == -1


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("batches",), 1 << 80),
        (("batches",), -1),
        (("epochs", "until"), np.array([1 << 62])),
        (("epochs", "until"), np.zeros((2, 2), np.int64)),
        (("epochs", "skip"), np.zeros(1)),
        (("epochs", "position"), -1),
        (("epochs", "number"), -(1 << 63)),
        (("pending", 0, "ids"), 1e300),
        (("pending", 0, "ids"), np.arange(8)),
        (("pending", 0, "weight"), np.full(8, np.nan, np.float32)),
        (("pending", 1, "batch"), float("inf")),
        (("pending", 0, "asked"), [8, np.ones(3)]),
        (("pending", 0, "place"), np.zeros((7, 8))),
        (("pending", 0, "place"), np.zeros((6, 8), np.int64)),
        (("options", "within_episode"), np.ones(3)),
        (("options", "time_major"), "yes"),
    ],
)
def test_states_made_by_hand_are_refused_at_once(reader: archive.Run, where: tuple[Any, ...], value: Any) -> None:
    replay = reader.replay(sampler=archive.Epoch(), batch_size=8, seed=5)
    replay.sample()
    state = copy.deepcopy(replay.state_dict())
    place = state
    for key in where[:-1]:
        place = place[key]
    place[where[-1]] = value
    with pytest.raises(archive.ArchiveError):
        reader.replay(state=state)
