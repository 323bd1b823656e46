"""A disk that is really full: the error says so, what was committed is there, and with room again all goes on."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from faults import Diary, Player, differences

import archive

DISK, BALLAST = 6 << 20, 5 << 19


@pytest.fixture
def disk(tmp_path):
    """Return a folder on a disk of six megabytes, some of them taken by a file `ballast`; skip without the right."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if sys.platform != "linux" or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a disk can be mounted by root on Linux only")
    (folder / "ballast").write_bytes(bytes(BALLAST))
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def commit(player, number):
    """Append and commit, now and then with a checkpoint."""
    player.steps(5)
    player.step("terminated" if number % 3 else "")
    if number % 4 == 3:
        player.checkpoint(size=2000)
    else:
        player.commit(sync=number % 5 == 4)


def append(player, number):
    """Append without end; a commit comes late."""
    player.steps(40)
    if number % 10 == 9:
        player.commit()


def leave(player, number):
    """Append, close, and open again."""
    player.steps(40)
    player.close()
    player.reopen(player.run.path)


def again_and_again(verb, player):
    """Do something until it fails."""
    for number in range(1000):
        verb(player, number)


@pytest.mark.parametrize("envs", [0, 3], ids=["one environment", "three environments"])
@pytest.mark.parametrize("verb", [commit, append, leave], ids=lambda verb: verb.__name__)
def test_full_disk(disk, envs, verb):
    """Until the disk is full; then there is the last commit, bit for bit, and after there is room it goes on."""
    states, done = [], [0]
    player = Player(
        Diary(envs),
        before=lambda diary: states.append(diary.copy()),
        after=lambda: done.append(len(states) - 1),
    )
    path = disk / "run.h5"
    player.create(path)
    with pytest.raises(archive.WriteError) as caught:
        again_and_again(verb, player)
    assert caught.value.errno == errno.ENOSPC
    assert str(path) in str(caught.value)
    player.run.close()
    with archive.open(path) as run:  # still full
        found = [state for state in states[done[-1] :] if not differences(run, state)]
        assert found, differences(run, states[done[-1]])
    (disk / "ballast").unlink()
    player = Player(found[0].copy(), archive.open(path, "a", commit_every=None), life=99)
    player.steps(20)
    player.checkpoint(size=100)
    player.run.close()
    with archive.open(path) as run:
        assert differences(run, player.diary) == []
    assert sorted(p.name for p in disk.iterdir()) == ["run.h5"]
