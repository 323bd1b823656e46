"""Small runs of every kind, and what can happen to their bytes."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import archive
from archive import payload

GOLDEN = Path(__file__).parent / "golden"
MIB = 1 << 20
SHAPE = (40, 40)


def schema(envs: int | None) -> archive.Schema:
    """Return the schema of these runs."""
    steps = {"observation": archive.Field("uint8", SHAPE), "action": archive.Field(">i2", (2,))}
    columns = {"task": archive.Text(16)}
    return archive.Schema(steps=steps, num_envs=envs, autoreset="Disabled" if envs else None, episodes=columns)


def frame(env: int, row: int) -> np.ndarray[Any, Any]:
    """Return a frame of noise."""
    return np.random.default_rng([env, row]).integers(256, size=SHAPE, dtype=np.uint8)


def record(path: Path, steps: int, envs: int | None = None, compression: str = "gzip", close: bool = True) -> None:
    """Record a run of episodes of 50 steps; without `close` leave the file as a kill would."""
    live = path if close else path.with_suffix(".live")
    run = archive.create(live, schema(envs), compression=compression, commit_every=None, metadata={"a": 1})
    lead = (envs,) if envs else ()
    row = 0

    def batch() -> Any:
        frames = np.stack([frame(env, row) for env in range(envs or 1)])
        return frames if envs else frames[0]

    for step in range(steps):
        if step % 50 == 0:
            run.reset(batch(), seed=step, task=f"task {step}")
            row += 1
        ends = step % 50 == 49
        flags = [np.full(lead, ends and step % 100 == k) if envs else ends and step % 100 == k for k in (49, 99)]
        run.step(np.full((*lead, 2), step), batch(), np.full(lead, step / 7) if envs else step / 7, *flags)
        row += 1
        if step == steps // 3:
            run.checkpoint(number=step)
        if step % 100 == 60:
            run.commit()
    if not close:
        shutil.copyfile(live, path)
    run.close()


def rewound(path: Path, envs: int | None = None) -> None:
    """Record a run that gave rows up, and that was closed and opened again in between."""
    record(path, 230, envs)
    lead = (envs,) if envs else ()
    with archive.open(path, "a", commit_every=None) as run:
        run.rewind(run.last_checkpoint)
        run.reset(np.zeros((*lead, *SHAPE), np.uint8))
        for step in range(70):
            values = (np.zeros((*lead, 2)), np.full((*lead, *SHAPE), step), np.full(lead, 0.1))
            no = np.zeros(lead, bool) if envs else False
            run.step(values[0].astype(">i2"), values[1].astype(np.uint8), values[2] if envs else 0.1, no, no)
            if step == 30:
                run.end_episode()
                run.reset(np.zeros((*lead, *SHAPE), np.uint8))
        run.annotate(1, hidden=True)


def golden(folder: Path) -> list[Path]:
    """Unpack the golden files."""
    found = []
    for packed in sorted(GOLDEN.glob("*.h5.gz")):
        path = folder / packed.stem
        with gzip.open(packed) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
        found.append(path)
    return found


def flipped(path: Path, at: int, bit: int = 0) -> Path:
    """Return a copy of a file in which one bit is another."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    copy = path.with_suffix(".flipped")
    copy.write_bytes(data)
    return copy


def contents(path: Path) -> dict[str, Any]:
    """Return everything that a run says: rows, episodes, checkpoint, metadata."""
    with archive.open(path) as run:
        found = {name: run[name][:].tobytes() for name in run.schema.steps}
        found |= {f"episodes/{name}": column.tolist() for name, column in run.episodes.items()}
        last = run.last_checkpoint
        return found | {"lengths": run.lengths.tolist(), "last": last and (last.id, payload.pack(dict(last)))}
