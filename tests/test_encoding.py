"""Chunks encoded in the background: the same file, no row lost, and failures that are said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import archive
from archive.budget import ENCODING

Array = np.ndarray[Any, Any]
Fresh = Callable[..., list[str]]
SHAPE = (240, 320, 3)
FIELDS = {"observation": archive.Field("uint8", SHAPE), "action": archive.Field("int64")}


@pytest.fixture(autouse=True)
def always_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(archive.chunks, "SLOW", -1.0)


def image(t: int) -> Array:
    """Return a picture made from its number."""
    return np.broadcast_to(np.arange(320, dtype=np.uint8)[:, None] * np.uint8(t % 7 + 1), SHAPE) + np.uint8(t)


def play(run: archive.Run, first: int, count: int) -> None:
    for t in range(first, first + count):
        run.step(t, image(t + 1), t / 2, False, False)


def check(run: archive.Run, rows: int) -> None:
    assert run.num_rows >= rows
    for t in range(rows):
        np.testing.assert_array_equal(run["observation"][t], image(t))


@pytest.mark.parametrize("envs", [None, 3])
@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4", "none"])
def test_rows_arrive_whole(path: Path, codec: str, envs: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read by the writer meanwhile, by a reader after each commit, and after closing; most were encoded behind."""
    names: set[str] = set()
    encode = archive.chunks.encode
    monkeypatch.setattr(archive.chunks, "encode", lambda *a: names.add(threading.current_thread().name) or encode(*a))
    several = {"num_envs": envs, "autoreset": "NextStep"} if envs else {}
    with archive.create(path, archive.Schema(FIELDS, **several), compression=codec, commit_every=None) as run:
        many = envs or 1
        lead = (lambda a: np.stack([a] * many)) if envs else (lambda a: a)
        run.reset(lead(image(0)))
        for t in range(40):
            no = np.zeros(many, bool) if envs else False
            run.step(lead(np.int64(t)), lead(image(t + 1)), lead(np.float32(t)), no, no)
            if t % 13 == 12:
                np.testing.assert_array_equal(run["observation"][t - 3], lead(image(t - 3)))
                run.commit()
                with archive.open(path) as reader:
                    np.testing.assert_array_equal(
                        reader["observation"][: t + 2], [lead(image(k)) for k in range(t + 2)]
                    )
    assert any(name.startswith("archive-encoder") for name in names)
    with archive.open(path) as run:
        np.testing.assert_array_equal(run["observation"][:], [lead(image(k)) for k in range(41)])
        assert run.replay(batch_size=8).sample().observation.shape == (8, *SHAPE)


def test_few_chunks_wait_at_a_time(path: Path) -> None:
    with archive.create(path, archive.Schema(FIELDS), commit_every=None) as run:
        run.reset(image(0))
        most = 0
        for t in range(60):
            play(run, t, 1)
            most = max(most, len(run._file.chunks.encoding))
        assert 0 < most <= ENCODING
        run.commit()
        assert not run._file.chunks.encoding


def test_what_fails_in_the_background_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a later call at the latest by commit; the file stays as the last commit left it."""
    run = archive.create(path, archive.Schema(FIELDS), commit_every=None)
    run.reset(image(0))
    play(run, 0, 20)
    run.commit()

    def worn_out(*_: Any) -> bytes:
        raise MemoryError("worn out")

    with monkeypatch.context() as patch:
        patch.setattr(archive.chunks, "encode", worn_out)
        with pytest.raises(MemoryError, match="worn out"):
            play(run, 20, 20)
    with pytest.raises(archive.StateError, match="worn out"):
        run.commit()
    run.close()
    with archive.open(path, "a") as run:
        assert run.num_rows == 21
        check(run, 21)


@pytest.mark.parametrize("how", ["close", "exit"])
def test_leaving_waits_for_what_is_being_encoded(path: Path, fresh_process: Fresh, how: str) -> None:
    assert fresh_process(leave_with_images, path, how) == ["26"]
    with archive.open(path) as run:
        check(run, 26)


def leave_with_images(path: str, how: str) -> list[str]:
    """As a script would: everything it needs is in here."""
    os = sys.modules["os"]  # noqa: F821 - the process has imported sys, and the package os and numpy
    os.sched_getaffinity, archive.chunks.SLOW = lambda _: {0, 1}, -1.0
    shape = (240, 320, 3)
    fields = {"observation": archive.Field("uint8", shape), "action": archive.Field("int64")}
    run = archive.create(path, archive.Schema(fields), commit_every=None)

    def picture(t: int) -> Any:
        return np.broadcast_to(np.arange(320, dtype=np.uint8)[:, None] * np.uint8(t % 7 + 1), shape) + np.uint8(t)

    run.reset(picture(0))
    for t in range(25):
        run.step(t, picture(t + 1), 0.0, False, False)
    rows = run.num_rows
    if how == "close":
        run.close()
    globals()["kept"] = run
    return [str(rows)]
