"""Leaving a process, forks, threads, garbage, Ctrl-C with runs open: no crash, no deadlock, no committed row lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from faults import Diary, Player, row_differences

import archive
from archive.info import about

TRIES = 20
HANGS = 300  # seconds; a deadlock, not slowness

CLOSED, KILLED = True, False  # what a scenario leaves: a run closed with every row, or at least what was committed


def expected(rows):
    """Return the diary of a run of one endless episode."""
    player = Player(Diary(0))
    player.reset()
    player.steps(rows - 1)
    return player.diary


def play(scenario, folder, **options):
    """Play a scenario TRIES times, on two cores; return the exit codes and what was written on standard error."""
    script, codes, errors = Path(__file__).with_name("leave_child.py"), [], ""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    halves = ((0, TRIES // 2 - 1), (TRIES // 2, TRIES - 1))
    commands = [[sys.executable, str(script), scenario, str(folder), *map(str, half)] for half in halves]
    processes = [subprocess.Popen(command, **pipes) for command in commands]
    try:
        for process in processes:
            found, error = process.communicate(timeout=HANGS)
            assert process.returncode == 0, error
            codes, errors = codes + [int(code) for code in found.split()], errors + error
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert "Fatal Python error" not in errors, errors
    assert "Exception ignored" not in errors, errors
    return codes, errors


def examine(path, closed):
    """Compare a file with what its process had committed; go on with it."""
    committed = [int(n) for n in path.with_suffix(".committed").read_text().split()]
    with archive.open(path) as run:
        rows = run.num_rows
        assert rows >= max(committed)
        diary = expected(rows)
        assert row_differences(run, diary) == []
        assert about(run)["complete"] == closed
    assert path.with_name(path.name + ".lock").exists() != closed
    if int(path.stem) < 5:
        with archive.open(path, "a") as run:
            Player(diary, run).steps(9)
        with archive.open(path) as run:
            assert row_differences(run, diary) == []


@pytest.mark.parametrize(
    ("scenario", "code", "closed"),
    [
        ("falls_off_the_end", 0, CLOSED),
        ("keeps_it_in_a_global", 0, CLOSED),
        ("calls_sys_exit", 3, CLOSED),
        ("raises", 1, CLOSED),
        ("calls_os_exit", 4, KILLED),
        ("closes_at_exit", 0, CLOSED),
        ("closes_after_ours", 0, CLOSED),
        ("leaves_a_daemon_stepping", 0, CLOSED),
        ("leaves_daemons_sampling", 0, CLOSED),
        ("leaves_readers_open", 0, CLOSED),
        ("leaves_several_runs_open", 0, CLOSED),
        ("gets_sigterm", -signal.SIGTERM, KILLED),
        ("drops_it", 0, CLOSED),
        ("leaves_it_in_a_cycle", 0, CLOSED),
        ("collects_all_the_time", 0, CLOSED),
        ("samples_in_threads", 0, CLOSED),
        ("interrupted_steps", 0, CLOSED),
        ("interrupted_commits", 0, CLOSED),
        ("interrupted_closes", 0, CLOSED),
        ("interrupted_everywhere", 0, CLOSED),
        ("interrupted_while_opening", 0, CLOSED),
        ("forks_children_that_exit", 0, CLOSED),
        ("forks_children_that_end_at_once", 0, CLOSED),
        ("forks_children_that_use_the_run", 0, CLOSED),
        ("forks_beside_threads", 0, CLOSED),
        ("uses_a_pool", 0, CLOSED),
        ("leaves_workers_behind", 0, CLOSED),
    ],
)
def test_leaving(tmp_path, scenario, code, closed):
    """Twenty times: the exit code is the scenario's own, every committed row is there, the run goes on."""
    codes, errors = play(scenario, tmp_path)
    assert codes == [code] * TRIES, errors
    for number in range(TRIES):
        examine(tmp_path / f"{number}.h5", closed)


def test_leaving_without_forks(tmp_path):
    """The scenarios above run in forked children; this one ends the first process itself."""
    code = f"import leave_child; leave_child.attempt('falls_off_the_end', leave_child.Path({str(tmp_path / '0.h5')!r}))"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, timeout=HANGS, check=True)
    examine(tmp_path / "0.h5", CLOSED)


def test_leaving_with_a_full_disk(tmp_path):
    """A run that broke is left as its last commit says."""
    codes, errors = play("leaves_a_broken_run", tmp_path)
    assert codes == [0] * TRIES, errors
    for number in range(TRIES):
        path = tmp_path / f"{number}.h5"
        assert not path.with_name(path.name + ".lock").exists()
        with archive.open(path) as run:
            assert run.num_rows >= int(path.with_suffix(".committed").read_text().split()[-1])
            assert row_differences(run, expected(run.num_rows)) == []


@pytest.mark.parametrize(
    ("scenario", "code", "closed"),
    [
        ("leaves_a_child_and_exits", 0, CLOSED),
        ("leaves_a_child_and_is_killed", -signal.SIGKILL, KILLED),
        ("forks_while_opening_and_is_killed", -signal.SIGKILL, KILLED),
    ],
)
def test_lock_and_forked_children(tmp_path, scenario, code, closed):
    """A forked child that lives on does not hold the lock of its parent."""
    with subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE) as holder:  # keeps standard input open
        try:
            codes, errors = play(scenario, tmp_path, stdin=holder.stdout)
            assert codes == [code] * TRIES, errors
            for number in range(TRIES):
                examine(tmp_path / f"{number}.h5", closed)
        finally:
            holder.kill()
