"""Twenty minutes of everything at once: a writer that is killed again and again, a live reader, a sampler.

`make soak [SOAK=seconds]`. Row n of every file is known from n alone, so reader and sampler check what they see. The
writer begins a new file now and then; the others follow. At the end: what was checked, how memory grew, how much of a
file is not rows. Exit status 1 if anything was wrong.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from rich.console import Console
from rich.table import Table

import archive

SPAWN = multiprocessing.get_context("spawn")
STEPS = 200  # of an episode, which has one row more
ROWS_OF_A_FILE = 60_000
MOST_FILES = 10_000
PATTERNS = np.random.default_rng(0).integers(0, 4, (64, 84, 84), np.uint8)
SCHEMA = archive.Schema(
    steps={"observation": archive.Field("uint8", (84, 84)), "action": archive.Field("int64")},
)
MOST_GROWTH = 20.0  # MB an hour of a process that runs through: noise of the allocator, not a leak
MOST_OVERHEAD = 0.10  # of a file of 60,000 compressed rows


def frame(row: int) -> np.ndarray[Any, Any]:
    """Return the observation of a row: its number in the first eight bytes, then a pattern."""
    made = PATTERNS[row % len(PATTERNS)].copy()
    made.reshape(-1)[:8] = np.frombuffer(np.int64(row).tobytes(), np.uint8)
    return made


def number(frames: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the numbers that frames (B, 84, 84) carry."""
    return np.ascontiguousarray(frames.reshape(len(frames), -1)[:, :8]).view(np.int64)[:, 0]


@dataclass
class Shared:
    """What the processes know of each other; without locks, which a killed process would keep."""

    folder: Path
    file: Any = field(default_factory=lambda: SPAWN.RawValue("q", 0))
    committed: Any = field(default_factory=lambda: SPAWN.RawArray("q", MOST_FILES))
    checked: Any = field(default_factory=lambda: SPAWN.RawArray("q", 2))

    def path(self, at: int) -> Path:
        """Return where file number `at` is."""
        return self.folder / f"{at}.h5"


def write(shared: Shared, seed: int) -> None:
    """Record until killed; now and then close a full file and begin the next."""
    choice = random.Random(seed)
    while True:
        at = shared.file.value
        with archive.open(shared.path(at), "a", SCHEMA, commit_every=None, memory="32 MiB") as run:
            while run.num_rows < ROWS_OF_A_FILE:
                for _ in range(choice.randint(1, 600)):
                    append(run)
                if choice.random() < 0.1:
                    run.checkpoint(blob=bytes(choice.randint(0, 300_000)), row=run.num_rows)
                else:
                    run.commit()
                shared.committed[at] = run.num_rows
                if choice.random() < 0.02:
                    break  # a clean close in the middle
                time.sleep(0.02)
            full = run.num_rows >= ROWS_OF_A_FILE
        if full:
            shared.file.value = at + 1
            shared.path(at - 1).unlink(missing_ok=True)


def append(run: archive.Run) -> None:
    """Append the row that comes next."""
    row = run.num_rows
    place = row % (STEPS + 1)
    if place == 0:
        run.reset(frame(row))
    else:
        run.step(row - 1, frame(row), float(place), place == STEPS, False)


def read(shared: Shared) -> None:
    """Poll the newest file: never a wrong row, never fewer rows than were committed before the poll."""
    choice, at, run = np.random.default_rng(1), -1, None
    while True:
        known = shared.file.value, shared.committed[shared.file.value]
        if not known[1]:
            continue
        if known[0] != at or choice.random() < 0.01:
            at, run = known[0], follow(shared, known[0], run)
            continue
        assert run is not None
        run.refresh()
        assert run.num_rows >= known[1], f"file {at}: {run.num_rows} rows, {known[1]} were committed"
        rows = np.concatenate(
            [choice.integers(run.num_rows, size=20), np.arange(max(run.num_rows - 20, 0), run.num_rows)]
        )
        for row in rows.tolist():
            assert np.array_equal(run["observation"][row], frame(row)), f"file {at}: row {row}"
        known_rows = rows[(rows + 1 < run.num_rows) & (rows % (STEPS + 1) != STEPS)]
        assert np.array_equal(run["action"][known_rows], known_rows), f"file {at}: actions"
        shared.checked[0] += len(rows)


def follow(shared: Shared, at: int, run: archive.Run | None) -> archive.Run | None:
    """Open file number `at` instead of another one; None if it is gone already."""
    if run is not None:
        run.close()
    try:
        return archive.open(shared.path(at), memory="32 MiB")
    except archive.MissingRunError:
        return None


def sample(shared: Shared) -> None:
    """Draw prioritised stacks at full speed from the newest file, and look at every one."""
    at, run, choice = -1, None, np.random.default_rng(2)
    while True:
        if shared.file.value != at and shared.committed[shared.file.value] > STEPS:
            at = shared.file.value
            run = follow(shared, at, run)
            if run is not None:
                replay = run.replay(batch_size=32, stack=4, capacity=30_000, sampler=archive.Prioritized())
        if run is None:
            continue
        for _ in range(50):
            look_at(replay.sample(), at, choice)
        replay.update_priorities(replay.draw()[0], choice.random(32))
        run.refresh()
        shared.checked[1] += 50 * 32


def look_at(batch: archive.Batch, at: int, choice: np.random.Generator) -> None:
    """Compare a batch with the rows that it says it holds."""
    assert np.array_equal(number(batch.observation[:, -1]), batch.index), f"file {at}: observations"
    assert np.array_equal(number(batch.next_observation[:, -1]), batch.index + 1), f"file {at}: next observations"
    assert np.array_equal(batch.reward, batch.index % (STEPS + 1) + 1), f"file {at}: rewards"
    item = int(choice.integers(len(batch)))
    row = int(batch.index[item])
    for k in range(4):
        there = row % (STEPS + 1) >= 3 - k
        expected = frame(row - 3 + k) if there else np.zeros((84, 84), np.uint8)
        assert np.array_equal(batch.observation[item, k], expected), f"file {at}: frame {k} of row {row}"


def resident(pid: int | None) -> float:
    """Return the memory of a process in MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")) / 1000


def growth(seconds: list[float], memory: list[float]) -> float:
    """Return the slope of memory, MB an hour, after the first quarter."""
    late = len(seconds) // 4
    return float(np.polyfit(seconds[late:], memory[late:], 1)[0] * 3600) if len(seconds) > 8 else 0.0


def overhead(path: Path) -> float:
    """Return how much of a file is not rows, as a share of the rows."""
    with h5py.File(path) as file:
        rows = sum(file[f"steps/{name}"].id.get_storage_size() for name in file["steps"])
    return path.stat().st_size / rows - 1


def soak(seconds: float, folder: Path) -> dict[str, Any]:
    """Run everything for so long; return what was found."""
    shared, began, seed = Shared(folder), time.monotonic(), 0
    roles = {
        "reader": SPAWN.Process(target=read, args=(shared,)),
        "sampler": SPAWN.Process(target=sample, args=(shared,)),
    }
    for process in roles.values():
        process.start()
    clocks: list[float] = []
    memory: dict[str, list[float]] = {name: [] for name in (*roles, "writer")}
    choice, kills, alive = random.Random(0), 0, True
    while alive and time.monotonic() < began + seconds:
        seed += 1
        writer = SPAWN.Process(target=write, args=(shared, seed))
        writer.start()
        life = time.monotonic() + choice.uniform(1.5, 12.0)
        while alive and time.monotonic() < min(life, began + seconds):
            time.sleep(choice.uniform(0.3, 0.7))
            alive = writer.is_alive() and all(process.is_alive() for process in roles.values())
            clocks.append(time.monotonic() - began)
            for name, process in {**roles, "writer": writer}.items():
                memory[name].append(resident(process.pid) if process.is_alive() else 0.0)
        kills += writer.is_alive()
        writer.kill()
        writer.join()
    for process in roles.values():
        process.kill()
        process.join()
    files = [path for path in sorted(folder.glob("*.h5")) if path.name != f"{shared.file.value}.h5"]
    return {
        "seconds": round(time.monotonic() - began),
        "alive": alive,
        "kills": kills,
        "files": shared.file.value + 1,
        "rows committed": sum(shared.committed),
        "rows read": shared.checked[0],
        "transitions drawn": shared.checked[1],
        "memory, MB": {name: round(values[-1]) for name, values in memory.items()},
        "growth, MB an hour": {name: round(growth(clocks, memory[name]), 1) for name in roles},
        "overhead": round(max((overhead(path) for path in files), default=0.0), 4),
        "last file": state_of(shared.path(shared.file.value), shared.committed[shared.file.value]),
    }


def state_of(path: Path, committed: int) -> str:
    """Say whether the file that was killed last holds all that was committed, row by row."""
    with archive.open(path) as run:
        rows = run.num_rows
        right = all(np.array_equal(run["observation"][row], frame(row)) for row in range(rows))
    return "right" if right and rows >= committed else f"{rows} rows, {committed} committed, {right=}"


def good(found: dict[str, Any]) -> bool:
    """Tell whether a soak found nothing wrong; growth means something only after some minutes."""
    steady = found["seconds"] < 300 or max(found["growth, MB an hour"].values()) < MOST_GROWTH
    return found["alive"] and found["last file"] == "right" and found["overhead"] < MOST_OVERHEAD and steady


def main(seconds: float) -> int:
    """Soak, print a table, return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        found = soak(seconds, Path(folder))
    table = Table("what", "found", title="soak")
    for name, value in found.items():
        table.add_row(name, json.dumps(value))
    Console().print(table)
    return 0 if good(found) else 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 1200.0))
