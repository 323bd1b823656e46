"""Everything beside each other for minutes: a writer that is killed again and again, a live reader, a sampler.

    soak.py [SECONDS]

The writer appends, commits, makes checkpoints and closes at random, and is killed every few seconds; whoever comes
after it must find every row it had committed. The reader looks again all the time, the sampler draws at full speed.
Every row that anybody reads is checked. Prints a table; exit status 1 if anything was wrong or memory grew.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from test_processes import BUDGET, append, check_batch, check_reader, create

import archive

PACE = 400  # rows a second, so that the file stays small
MOST_GROWTH = 1.0  # MB a minute in the second half; lists of episodes and chunks take 0.1
JUDGED = 300  # seconds from which on growth counts: before, caches fill
spawning = multiprocessing.get_context("spawn")


class Shared:
    """What the processes tell each other. Raw: a process that is killed can hold no lock."""

    def __init__(self) -> None:
        names = ("committed", "checkpoints", "commits", "open", "polls", "batches", "stop")
        self.values = {name: spawning.RawValue("q", 0) for name in names}

    def __getitem__(self, name: str) -> int:
        return int(self.values[name].value)

    def __setitem__(self, name: str, value: int) -> None:
        self.values[name].value = value


# --- the three processes


def write(path: Path, shared: Shared, life: int) -> None:
    """Go on with the run, and never stop."""
    choice = random.Random(life)
    run = archive.open(path, "a", commit_every=None, memory=BUDGET) if path.exists() else create(path)
    check_recovered(run, shared)
    begun, rows = time.monotonic(), run.num_rows
    first = rows
    while True:
        append(run, rows, count := choice.choice([1, 1, 3, 17, 100]))
        rows += count
        if (kind := choice.random()) < 0.01:
            run.close()
            run = archive.open(path, "a", commit_every=None, memory=BUDGET)
        elif kind < 0.05:
            run.checkpoint(rows=rows, blob=blob_of(rows))
            shared["checkpoints"] += 1
        else:
            run.commit(sync=life % 5 == 4 and kind < 0.1)
        shared["committed"], shared["commits"] = rows, shared["commits"] + 1
        time.sleep(max(0.0, begun + (rows - first) / PACE - time.monotonic()))


def blob_of(rows: int) -> bytes:
    """Return the blob of the checkpoint at so many rows: up to 3 MB."""
    return np.random.default_rng(rows).bytes(rows * 7919 % 3_000_000)


def check_recovered(run: archive.Run, shared: Shared) -> None:
    """Check what a killed writer has left."""
    check_reader(run, shared["committed"], 0, random.Random(0))
    for kept in run.checkpoints():
        assert kept["blob"] == blob_of(kept["rows"])
        assert kept["rows"] <= run.num_rows
    assert run.checkpoints() or not shared["checkpoints"]
    shared["open"] = 1


def read(path: Path, shared: Shared) -> None:
    """Look at the run again and again."""
    choice, seen = random.Random(1), 0
    run = archive.open(path, memory=BUDGET)
    while not shared["stop"]:
        least = shared["committed"]
        run.refresh()
        seen = check_reader(run, least, seen, choice)
        shared["polls"] += 1
    run.close()


def sample(path: Path, shared: Shared) -> None:
    """Draw batches at full speed."""
    with archive.open(path, memory=BUDGET) as run:
        replay = run.replay(batch_size=32, sampler=archive.Prioritized(), capacity=20_000)
        while not shared["stop"]:
            if shared["batches"] % 200 == 0:
                run.refresh()
            batch = replay.sample()
            check_batch(batch)
            replay.update_priorities(batch.index, batch.reward % 7)
            shared["batches"] += 1


# --- the one that watches


def memory_of(process: Any) -> float:
    """Return the resident memory of a process in MB."""
    try:
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def slope(samples: list[tuple[float, float]]) -> float:
    """Return MB a minute in the second half of what was seen."""
    table = np.array([s for s in samples if np.isfinite(s[1])])[len(samples) // 2 :]
    return float(np.polyfit(table[:, 0], table[:, 1], 1)[0] * 60) if len(table) > 2 else 0.0


class Soak:
    """The processes, and what was seen of them."""

    def __init__(self, path: Path) -> None:
        self.path, self.shared, self.life, self.failures = path, Shared(), 0, list[str]()
        self.writer = self.start(write, 0)
        while not self.shared["committed"] and self.writer.is_alive():
            time.sleep(0.01)
        self.watched = {"reader": self.start(read), "sampler": self.start(sample)}
        self.seen: dict[str, list[tuple[float, float]]] = {name: [] for name in self.watched}

    def start(self, work: Any, *more: Any) -> Any:
        process = spawning.Process(target=work, args=(self.path, self.shared, *more))
        process.start()
        return process

    def watch(self, seconds: float) -> None:
        """Look at everybody four times a second, and kill the writer every few seconds."""
        choice, begun = random.Random(2), time.monotonic()
        next_kill, early = begun + 2, False
        while (now := time.monotonic()) < begun + seconds and not self.failures:
            time.sleep(0.25)
            for name, process in self.watched.items():
                self.seen[name].append((now - begun, memory_of(process)))
                self.require(process.is_alive(), f"the {name} has ended")
            self.require(self.writer.is_alive(), "the writer has ended")
            if not early and not self.shared["open"]:
                next_kill = now + choice.uniform(0, 8)  # it has just begun to write
            elif now > next_kill:
                self.kill()
                self.life, early = self.life + 1, choice.random() < 0.2
                self.shared["open"], next_kill = 0, now + choice.uniform(0, 4)
                self.writer = self.start(write, self.life)

    def require(self, good: bool, message: str) -> None:
        if not good:
            self.failures.append(message)

    def kill(self) -> None:
        os.kill(self.writer.pid, signal.SIGKILL)
        self.writer.join()
        self.require(self.writer.exitcode == -signal.SIGKILL, "the writer had ended")

    def finish(self) -> dict[str, str]:
        """Stop everybody, check the file once more from its first row to its last, and return what to print."""
        self.shared["stop"] = 1
        for name, process in self.watched.items():
            process.join()
            self.require(process.exitcode == 0, f"the {name} has failed")
        self.kill()
        archive.open(self.path, "a", memory=BUDGET).close()
        with archive.open(self.path, memory=BUDGET) as run:
            rows = check_reader(run, self.shared["committed"], 0, random.Random(3))
            np.testing.assert_array_equal(run["action"][:], np.arange(rows))
            stored = sum(int(column.size.sum()) for column in run._rows.columns.values())
            slots = sum(slot.chunks << 20 for slot in run._file.record.slots)
        size = self.path.stat().st_size
        table = {name: str(self.shared[name]) for name in ("commits", "checkpoints", "polls", "batches")}
        table |= {"kills": str(self.life + 1), "rows": str(rows), "file": f"{size / 1e6:.1f} MB"}
        table["beside rows and checkpoint slots"] = f"{100 * (size - stored - slots) / size:.2f} %"
        for name, samples in self.seen.items():
            grown = slope(samples)
            judged = samples[-1][0] > 0.9 * JUDGED
            self.require(grown < MOST_GROWTH or not judged, f"the {name} grows by {grown:.2f} MB a minute")
            table[f"{name}: memory, growth"] = f"{samples[-2][1]:.0f} MB, {grown:+.2f} MB a minute"
        return table | {"wrong": ", ".join(self.failures) or "nothing"}


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 1200.0
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder) / "run.h5")
        soak.watch(seconds)
        table = Table(title=f"soak of {seconds:.0f} s", show_header=False)
        for row in soak.finish().items():
            table.add_row(*row)
        Console().print(table)
        sys.exit(bool(soak.failures))


if __name__ == "__main__":
    main()
