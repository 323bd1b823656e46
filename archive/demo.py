"""The main job, shown: record a real game, kill the recorder, resume it, compare with a run that was never killed.

`python -m archive.demo` (or `make demo`) starts a recorder as a process of its own: ALE Breakout in 8 environments,
prioritised batches drawn and priorities updated after every step. It kills that process with SIGKILL at a random
moment and starts the same command line again, which resumes. Every row the recorder appends also comes here, to a
reference run that is never killed. In the end both must hold the same rows and draw the same 500 batches.
"""

from __future__ import annotations

import hashlib
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import archive

from .breakout import BATCH, ENVS, FRAME, KEY, REPLAY, STACK, add_batch, digest, learn, record, value_weights


class Reference:
    """A run that is never killed, fed the rows that the recorder appended and made safe.

    Events wait until a checkpoint makes them certain. After a kill, those up to the checkpoint that the recorder
    resumed from are taken in whole; of later ones only the rows that the file still has, since the draws made
    meanwhile are lost with the process that made them.
    """

    run: archive.Run
    replay: archive.Replay

    def __init__(self, path: Path) -> None:
        self.path, self.started = path, False
        self.pending: list[Any] = []
        self.weights = value_weights()

    def start(self, schema: archive.Schema) -> None:
        """Create the run."""
        self.run, self.started = archive.create(self.path, schema), True
        self.replay = self.run.replay(**REPLAY)

    @property
    def lengths(self) -> list[int]:
        """Rows of each environment."""
        return list(self.run.lengths) if self.started else [0] * ENVS

    def append(self, event: Any) -> None:
        """Append what one event brought."""
        kind, *values = event
        if kind == "reset":
            self.run.reset(values[0])
        elif kind == "step":
            self.run.step(*values)

    def settle(self, checkpoint: int) -> None:
        """Take in everything up to a checkpoint, learning as the recorder did."""
        if ("checkpoint", checkpoint) not in [e for e in self.pending if e[0] == "checkpoint"]:
            return
        while True:
            event = self.pending.pop(0)
            self.append(event)
            if event[0] == "step" and len(self.replay) >= BATCH:
                learn(self.replay, self.weights)
            if event == ("checkpoint", checkpoint):
                return

    def resume(self, checkpoint: int, lengths: list[int]) -> None:
        """Follow a recorder that was killed and has resumed with these rows."""
        self.settle(checkpoint)
        for event in self.pending:
            if self.lengths != lengths:
                self.append(event)
        self.pending = []
        if self.lengths != lengths:
            raise SystemExit(f"the resumed run has {lengths} rows, the reference {self.lengths}")


class Show:
    """Run the recorder, kill it once, and follow it."""

    def __init__(self, path: Path, rows: int, folder: Path, console: Console) -> None:
        self.path, self.rows, self.console = path, rows, console
        self.reference = Reference(folder / "reference.h5")
        self.listener = Listener(str(folder / "rows") if os.name == "posix" else None, authkey=KEY)
        self.safe = [0] * ENVS
        self.kill_at = random.uniform(0.3, 0.8) * rows
        self.done = self.killed_at = self.lost = self.recorder_memory = 0
        self.progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )

    def follow(self) -> float:
        """Record to the end, with one kill on the way; return the seconds it took."""
        start = time.perf_counter()
        with self.progress:
            task = self.progress.add_task("recording", total=self.rows)
            self.watch(task, kill=True)
            self.check_killed()
            self.watch(task, kill=False)
        return time.perf_counter() - start

    def watch(self, task: Any, kill: bool) -> None:
        """Start the recorder's command line and take in what it sends until it ends or is killed."""
        command = [
            sys.executable,
            "-m",
            "archive.demo",
            "record",
            str(self.path),
            str(self.rows),
            self.listener.address,
        ]
        recorder = subprocess.Popen(command)
        try:
            with self.listener.accept() as stream:
                steps = self.take_in(stream, recorder, task, kill)
            if recorder.wait() and not kill:
                raise SystemExit(f"the recorder ended with {recorder.returncode} after {steps} steps")
        finally:
            recorder.kill()
            recorder.wait()

    def take_in(self, stream: Connection, recorder: subprocess.Popen[bytes], task: Any, kill: bool) -> int:
        """Pass events on to the reference; with `kill` end the recorder on the way."""
        events: queue.Queue[Any] = queue.Queue(maxsize=500)  # the recorder goes on while the reference learns
        threading.Thread(target=drain, args=(stream, events), daemon=True).start()
        steps = 0
        while (event := events.get()) is not None:
            steps += event[0] == "step"
            self.on_event(event)
            self.done += ENVS * (event[0] == "step")
            self.progress.update(task, completed=min(self.done, self.rows))
            if kill and self.done >= self.kill_at:
                time.sleep(random.uniform(0, 0.05))
                recorder.kill()
                self.killed_at, kill = self.done, False
        return steps

    def on_event(self, event: Any) -> None:
        """Take in one message of the recorder."""
        kind, *values = event
        if kind == "resumed":
            if not self.reference.started:
                self.reference.start(archive.open(self.path).schema)
            self.reference.resume(*values)
            self.done = sum(self.reference.lengths)
        elif kind == "safe":
            self.safe = values[0]
            self.reference.settle(max(e[1] for e in self.reference.pending if e[0] == "checkpoint"))
        elif kind == "done":
            self.recorder_memory = values[0]
        else:
            self.reference.pending.append(event)

    def check_killed(self) -> None:
        """Count rows that the killed recorder had been told were safe and that the file does not have."""
        with archive.open(self.path) as run:
            self.lost = int(np.maximum(np.array(self.safe) - run.lengths, 0).sum())
            at = f"killed near row {self.killed_at:,}; the file holds {run.num_rows:,} rows"
        self.console.print(f"{at}, {sum(self.safe):,} of them promised; resuming with the same command line")

    def compare(self) -> bool:
        """Count differing rows, compare the next 500 batches, print the table; True if all is as it must be."""
        run, reference = archive.open(self.path), self.reference
        differing = count_differences(run, reference.run)
        words = subprocess.check_output(
            [sys.executable, "-m", "archive.demo", "digest", str(self.path)], text=True
        ).split()
        sha = hashlib.sha256()
        for _ in range(500):
            add_batch(sha, learn(reference.replay, reference.weights))
        same = sha.hexdigest() == words[1]
        size, transitions = self.path.stat().st_size, run.num_steps
        raw = run.num_rows * sum(field.nbytes for field in run.schema.steps.values())
        pickled = transitions * (2 * STACK * FRAME + 8 + 4 + 2)
        table = Table(show_header=False, title=f"{self.path}")
        lines = {
            "rows committed": f"{run.num_rows:,} ({transitions:,} transitions, {run.num_episodes} episodes)",
            "committed rows lost": f"{self.lost}",
            "rows that differ from the reference": f"{differing}",
            "next 500 batches, resumed": words[1][:32],
            "next 500 batches, never killed": f"{sha.hexdigest()[:32]} ({'identical' if same else 'DIFFERENT'})",
            "file": f"{size / 1e6:.1f} MB",
            "raw rows": f"{raw / 1e6:.1f} MB ({raw / size:.0f} times the file)",
            "pickle of the same transitions": f"{pickled / 1e6:.1f} MB ({pickled / size:.0f} times), computed",
            "first batch after reopening": f"{float(words[0]) * 1e3:.0f} ms",
            "peak memory": f"{self.recorder_memory / 1e6:.0f} MB recording, {int(words[2]) / 1e6:.0f} MB sampling",
        }
        for name, text in lines.items():
            table.add_row(name, text)
        self.console.print(table)
        return same and not differing and not self.lost and transitions >= self.rows


def drain(stream: Connection, events: queue.Queue[Any]) -> None:
    """Pass on what the recorder sends, and None at its end."""
    try:
        while True:
            events.put(stream.recv())
    except (EOFError, OSError):
        events.put(None)


def info_command(path: Path) -> str:
    """Return the command that shows a file, as it can be typed here."""
    if shutil.which("rl-archive"):
        return f"rl-archive info {path}"
    return f"{os.path.relpath(sys.executable)} -m archive info {path}"


def count_differences(run: archive.Run, other: archive.Run) -> int:
    """Return in how many rows two runs differ, counting rows that only one has."""
    if run.lengths.tolist() != other.lengths.tolist():
        return int(np.abs(run.lengths - other.lengths).sum())
    differing = 0
    for low in range(0, int(run.lengths.max()), 256):
        bad = np.zeros((min(256, int(run.lengths.max()) - low), ENVS), np.bool_)
        for name in run.schema.steps:
            a, b = run[name][low : low + 256], other[name][low : low + 256]
            bad |= (a != b).reshape(*bad.shape, -1).any(axis=-1)
        differing += int(bad.sum())
    return differing


@click.group(invoke_without_command=True)
@click.option("--path", type=click.Path(path_type=Path), default="runs/breakout.h5", show_default=True)
@click.option("--rows", default=30_000, show_default=True, help="Transitions to record in total.")
@click.pass_context
def main(context: click.Context, path: Path, rows: int) -> None:
    """Record Breakout, kill the recorder, resume it, and compare with a run that was never killed."""
    if context.invoked_subcommand is not None:
        return
    console = Console()
    if path.exists():
        with archive.open(path) as old:
            if not old.metadata.get("demo"):
                raise SystemExit(f"{path} was not made by this demo; give another --path")
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        show = Show(path, rows, Path(folder), console)
        seconds = show.follow()
        good = show.compare()
        show.reference.run.close()
        show.listener.close()
    console.print(f"{rows / seconds:,.0f} rows a second with the game, sampling and the reference beside it")
    console.print(f"look into it: {info_command(path)}")
    sys.exit(0 if good else 1)


main.command("record", hidden=True)(
    click.argument("path", type=click.Path(path_type=Path))(
        click.argument("rows", type=int)(click.argument("address")(record))
    )
)
main.command("digest", hidden=True)(click.argument("path", type=click.Path(path_type=Path))(digest))

if __name__ == "__main__":
    main()
