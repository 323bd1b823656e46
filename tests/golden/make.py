"""Make the golden files of format version 1: python tests/golden/make.py

Run once for a format version and never again: what these files hold must stay readable, and what is drawn from them
must stay the same. Everything in them follows from the functions below, so that the test knows what it must find.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import archive

HERE = Path(__file__).parent
SCHEMA = archive.Schema(
    steps={
        "observation/pixels": archive.Field("uint8", (160, 160), description="a picture"),
        "observation/place": archive.Field(">i2", (2,)),
        "action": archive.Field("int64"),
        "log_prob": archive.Field("float16"),
        "info/lives": archive.Field("uint8"),
        "spectrum": archive.Field("complex64", (3,)),
    }
)
LENGTHS = (6, 6, 3)  # the first terminated, the second truncated, the third going on
PIXELS = np.add.outer(np.arange(160), np.arange(160)).astype(np.uint8)


def observation(row: int) -> dict[str, Any]:
    """Return the observation in a row."""
    return {"pixels": PIXELS + np.uint8(row), "place": np.array([row - 5, 1000 * row])}


def outcome(row: int) -> dict[str, Any]:
    """Return what follows the observation of a row in which an action is taken."""
    return {
        "action": (7 * row) % 5 - 2,
        "reward": np.float32(row / 4 - 1),
        "log_prob": np.float16(-row / 8),
        "info/lives": 5 - row % 3,
        "spectrum": np.array([row, 1j * row, 0.5 - 0.25j], np.complex64),
    }


def priority(index: Any) -> Any:
    """Return the priorities that are set for drawn ids."""
    return (np.asarray(index) * 3 % 7).astype(np.float64) / 4


def step(run: archive.Run, row: int, terminated: bool = False, truncated: bool = False) -> None:
    """Complete a row and append the observation of the next one."""
    values = outcome(row)
    first = [values.pop(name) for name in ("action", "reward")]
    info = {"lives": values.pop("info/lives")}
    run.step(first[0], observation(row + 1), first[1], terminated, truncated, info, **values)


def record(run: archive.Run) -> None:
    """Record the first two episodes and begin the third."""
    row = 0
    for number, length in enumerate(LENGTHS):
        run.reset(observation(row), seed=number)
        for last in range(length - 1, -1, -1):
            step(run, row, number == 0 and not last, number == 1 and not last)
            row += 1
        row += 1


def prioritized(run: archive.Run, **options: Any) -> archive.Replay:
    """Return a prioritized replay of a run, or the one that a state goes on with."""
    if "state" in options:
        return run.replay(**options)
    sampler = archive.Prioritized(alpha=0.7, beta=0.5, epsilon=0.01)
    return run.replay(batch_size=8, capacity=12, n_step=2, gamma=0.9, seed=11, sampler=sampler)


def draws(replay: archive.Replay, update: bool) -> list[dict[str, Any]]:
    """Return the next five batches, setting priorities after each if asked to."""
    found = []
    for _ in range(5):
        index, weight = replay.draw()
        found.append({"index": index.tolist(), "weight": weight.tolist()})
        if update:
            replay.update_priorities(index, priority(index))
    return found


def drawn_from(path: Path) -> dict[str, Any]:
    """Return what replays of a golden file draw next."""
    with archive.open(path) as run:
        last = run.last_checkpoint
        assert last is not None
        fresh = run.replay(batch_size=8, n_step=1, seed=2**63 + 1, prefetch=0)
        plain = run.replay(batch_size=5, seed=3, sampler=archive.Prioritized(stratified=False), prefetch=0)
        return {
            "resumed": draws(prioritized(run, state=last["replay"]), update=True),
            "larger": draws(prioritized(run, state=last["replay"], capacity=1000), update=True),
            "uniform": draws(fresh, update=False),
            "unstratified": draws(plain, update=True),
            "generator": last["generator"].integers(0, 1000, 5).tolist(),
        }


VECTOR = archive.Schema(
    steps={"observation": archive.Field("uint8", (4, 4), stacked=2, padding="zero"), "action": archive.Field("int32")},
    num_envs=2,
    autoreset="NextStep",
)
VECTOR_STEPS, KEPT_STEPS = 40, 30  # the run is rewound to a checkpoint after KEPT_STEPS


def vector_script() -> list[dict[str, np.ndarray[Any, Any]]]:
    """Return what two environments give in each step; they end at different times and reset in the step after."""
    script, age = [], np.zeros(2, np.int64)
    for t in range(VECTOR_STEPS):
        begins = age < 0
        age += 1
        terminated, truncated = ~begins & (age == [5, 7]) & (t % 2 == 0), ~begins & (age == [5, 7]) & (t % 2 == 1)
        frame = np.array([2 * t + 2, 2 * t + 3])
        script.append(
            {
                "begins": begins,
                "frame": frame,
                "action": frame % 5,
                "reward": np.where(begins, 0, frame / 2),
                "terminated": terminated,
                "truncated": truncated,
            }
        )
        age[terminated | truncated] = -1
    return script


def record_vector(path: Path) -> None:
    """Record two environments whose frames arrive stacked, rewind, and go on for one more episode of the first."""
    stack = np.zeros((2, 2, 4, 4), np.uint8)
    stack[:, 1] = np.array([200, 201])[:, None, None]
    with archive.create(path, VECTOR, commit_every=None) as run:
        run.reset(stack)
        replay = prioritized(run)
        for t, step in enumerate(vector_script()):
            stack = np.where(step["begins"][:, None, None, None], 0, np.roll(stack, -1, axis=1))
            stack[:, 1] = step["frame"][:, None, None]
            run.step(step["action"], stack, *(step[k] for k in ("reward", "terminated", "truncated")))
            if t + 1 == KEPT_STEPS:
                draws(replay, update=True)
                run.checkpoint(replay=replay.state_dict(), generator=np.random.default_rng(6))
        last = run.last_checkpoint
        assert last is not None
        run.rewind(last)
        stack = np.zeros((2, 2, 4, 4), np.uint8)
        stack[:, 1] = 250
        run.reset(stack, mask=np.array([True, False]))


def make(folder: Path) -> None:
    """Write run_v1.h5, run_v1_killed.h5, vector_v1.h5 and draws_v1.json."""
    path, killed, vector = folder / "run_v1.h5", folder / "run_v1_killed.h5", folder / "vector_v1.h5"
    record_vector(vector)
    with archive.create(path, SCHEMA, metadata={"golden": 1, "text": "Äpfel"}, commit_every=None) as run:
        record(run)
        replay = prioritized(run)
        draws(replay, update=True)
        generator = np.random.default_rng(5)
        generator.integers(0, 1000, 3)
        values = {"number": 1.5, "text": "schön", "bytes": b"\0\1", "nested": {"list": [1, None, True], "tuple": (2,)}}
        values |= {"array": np.arange(6, dtype="<u2").reshape(2, 3), "scalar": np.float32(0.25), "complex": 1 - 2j}
        run.checkpoint(replay=replay.state_dict(), generator=generator, **values)
        step(run, sum(LENGTHS) + 2)  # one more row behind the checkpoint
        run.commit()
        shutil.copyfile(path, killed)
    for file in (path, killed, vector):
        with gzip.GzipFile(HERE / f"{file.name}.gz", "wb", mtime=0) as packed:
            packed.write(file.read_bytes())
    expected = {file.name: drawn_from(file) for file in (path, killed, vector)}
    (HERE / "draws_v1.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    if list(HERE.glob("*_v1*")) and "--replace" not in sys.argv:
        sys.exit("the golden files of version 1 exist and must never change")
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
