"""verify finds what is damaged and nothing else; repair puts right what can be, and never makes it worse."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
import reader
from click.testing import CliRunner, Result

import archive
from archive.__main__ import commands
from archive.chunk import Trailer
from archive.header import Header
from archive.record import Record
from archive.rows import tail_position
from archive.snapshot import ENTRY

ENVS = pytest.mark.parametrize("envs", [None, 3])


def region(path: Path) -> tuple[Header, Record, int]:
    """Return header, newest record and applied mark of a file."""
    with path.open("rb") as file:
        header = Header.read(file.fileno(), str(path))
        data = os.pread(file.fileno(), header.region.nbytes, header.region.offset)
    record, applied = header.region.parse(data)
    assert record is not None
    return header, record, applied


def texts(path: Path, **options: Any) -> list[str]:
    """Return what verify finds, as lines."""
    return [str(one) for one in archive.verify(path, **options).findings]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Record a closed run and a killed one, of three environments."""
    folder = tmp_path_factory.mktemp("files")
    result = {name: folder / f"{name}.h5" for name in ("closed", "killed")}
    for name, path in result.items():
        damage.record(path, 170, 3, close=name == "closed")
    return result


# --- clean files


@pytest.mark.parametrize(("codec", "envs"), [("gzip", None), ("gzip", 3), ("zstd", 3), ("lz4", None), ("none", 3)])
def test_closed_and_killed_files_are_clean(tmp_path: Path, codec: str, envs: int | None) -> None:
    for close in (True, False):
        path = tmp_path / f"{close}.h5"
        damage.record(path, 70, envs, codec, close)
        found = archive.verify(path)
        assert (found.findings, found.notes) == ((), ())
        assert found.chunks == len(reader.File(path).chunks)
        assert archive.verify(path, quick=True).clean


@ENVS
def test_rewound_files_are_clean(path: Path, envs: int | None) -> None:
    damage.rewound(path, envs)
    assert texts(path) == []


def test_golden_files_are_clean(tmp_path: Path) -> None:
    for path in damage.golden(tmp_path):
        assert texts(path) == [], path.name


def test_live_files_are_clean(path: Path) -> None:
    """While a writer in the same process goes on, before and after each of its commits."""
    run = archive.create(path, damage.schema(None), commit_every=None)
    run.reset(damage.frame(0, 0))
    for step in range(90):
        run.step(np.full(2, step), damage.frame(0, step), 1.0, False, False)
        if step % 30 == 29:
            assert texts(path) == []
            run.checkpoint(step=step)
            assert texts(path) == []
    run.close()
    assert texts(path) == []


WRITER = """
import sys, damage, archive, numpy as np
run = archive.create(sys.argv[1], damage.schema(None), commit_every=None)
run.reset(damage.frame(0, 0))
print("begun", flush=True)
for step in range(int(sys.argv[2])):
    run.step(np.full(2, step), damage.frame(0, step), 1.0, False, step % 40 == 39)
    if step % 40 == 39:
        run.reset(damage.frame(0, step))
    if step % 7 == 0:
        run.commit()
    if step % 50 == 0:
        run.checkpoint(step=step)
"""


def start(script: str, *arguments: Any) -> subprocess.Popen[str]:
    """Start a script in another process; return once it has said a word."""
    here = Path(__file__).parent
    where = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    process = subprocess.Popen(command, env=where, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_files_that_another_process_writes_are_clean(path: Path) -> None:
    count = 0
    with start(WRITER, path, 600) as process:
        while process.poll() is None:
            assert texts(path) == []
            count += 1
    assert count
    assert process.returncode == 0
    assert texts(path) == []


def test_verify_writes_nothing(files: dict[str, Path]) -> None:
    for path in files.values():
        before, names = path.read_bytes(), sorted(os.listdir(path.parent))
        os.chmod(path, 0o444)
        archive.verify(path)
        assert (path.read_bytes(), sorted(os.listdir(path.parent))) == (before, names)


def test_verify_needs_a_run(tmp_path: Path) -> None:
    with pytest.raises(archive.MissingRunError, match="no such file"):
        archive.verify(tmp_path / "none.h5")
    (tmp_path / "text.h5").write_text("a text")
    with pytest.raises(archive.NotARunError, match="salvage"):
        archive.verify(tmp_path / "text.h5")


# --- what verify finds


def structures(path: Path) -> dict[str, tuple[int, str]]:
    """Return by name one byte of every kind of structure, and what must be said of it."""
    header, record, _ = region(path)
    places = {"superblock": (30, "superblock"), "mark": (header.region.mark_offset + 5, "mark")}
    for k in range(4):
        places[f"record {k}"] = (header.region.offset + k * header.region.room + 40, "commit record")
    slot = max(record.slots, key=lambda slot: slot.id)
    places["checkpoint"] = (slot.offset + 40, "checkpoint")
    if not record.in_fields:
        at = tail_position(header, record.tail_offset, record.tail_slot, 0, 1)
        places["tail"] = (at + 3, "field 'observation', environment 1")
    data = path.read_bytes()
    trailer = data.find(b"RLAT")
    for name, at in {"stream": -9, "trailer": 20, "check": 45, "fletcher32": 48}.items():
        places[name] = (trailer + at, "field 'observation'")
    places["texts"] = (data.find(b'"a": 1'), "metadata")
    places["episode column"] = (data.find(b"task 50") + 2, "'task'")
    places["root"] = (50, "HDF5")
    return places


@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_every_structure_is_checked(files: dict[str, Path], kind: str) -> None:
    for name, (at, expected) in structures(files[kind]).items():
        found = texts(damage.flipped(files[kind], at))
        assert any(expected in line for line in found), (name, found)
        if name not in ("superblock", "root"):
            assert len(found) == 1, (name, found)


def test_findings_say_what_where_and_what_it_costs(files: dict[str, Path]) -> None:
    at = files["closed"].read_bytes().find(b"RLAT")
    trailer = Trailer.parse(files["closed"].read_bytes()[at : at + 48])
    assert trailer is not None
    (found,) = archive.verify(damage.flipped(files["closed"], at - 9)).findings
    rows = f"rows {trailer.first} to {trailer.first + trailer.rows - 1}"
    assert found.where == f"field 'observation', environment {trailer.env}, {rows} (byte {at - trailer.packed})"
    assert found.what == "checksum differs"
    assert found.costs == "these rows of the field cannot be read"


def test_quick_does_not_read_chunks(files: dict[str, Path]) -> None:
    at = files["closed"].read_bytes().find(b"RLAT")
    damaged = damage.flipped(files["closed"], at - 9)
    assert texts(damaged, quick=True) == []
    assert len(texts(damaged)) == 1


@pytest.mark.parametrize("column", ["start", "length", "return", "terminated", "final"])
def test_wrong_episodes_are_found(path: Path, column: str) -> None:
    """Values that no checksum gives away."""
    damage.record(path, 160)
    with archive.open(path, "a", commit_every=None) as run:
        table = run._rows.episodes
        table.columns[column][2] = not table.columns[column][2] if column in ("terminated", "final") else 1
        table.dirty.add(0)
        run._file.uncommitted = True
        run.commit()
    assert texts(path)


@pytest.mark.parametrize("name", ["is_first", "is_last", "terminated", "truncated"])
def test_flags_that_contradict_the_table_are_found(path: Path, name: str) -> None:
    damage.record(path, 60, close=False)
    run = archive.open(path, "a", commit_every=None)
    run._rows.columns[name].put(np.array([0]), np.array([20]), np.array([True]))
    run._file.commits.changed(name, np.array([0]))
    run._file.uncommitted = True
    run.commit()
    found = texts(path)
    run.close()
    assert [line for line in found if f"field {name!r}, environment 0, row 20" in line] == found != []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["closed", "killed"])
def test_flipped_bits_are_found_or_change_nothing(files: dict[str, Path], kind: str) -> None:
    """500 flips anywhere: what verify calls clean reads as it did before."""
    expected, data, choice = damage.contents(files[kind]), files[kind].read_bytes(), random.Random(kind)
    used = np.unique(np.flatnonzero(np.frombuffer(data, np.uint8)) // 64)
    for _ in range(500):
        at = min(int(choice.choice(used)) * 64 + choice.randrange(64), len(data) - 1)
        damaged = damage.flipped(files[kind], at, choice.randrange(8))
        try:
            clean = archive.verify(damaged).clean
        except archive.NotARunError:
            clean = False
        assert not clean or damage.contents(damaged) == expected, at


# --- repair


def undo(copy: str, path: Path) -> bytes:
    """Return a file as it was, from what repair kept."""
    data, kept, at, entries = bytearray(path.read_bytes()), Path(copy).read_bytes(), 0, []
    while at < len(kept):
        offset, size = ENTRY.unpack_from(kept, at)
        at += ENTRY.size + size
        entries.append((offset, kept[at - size : at]))
    for offset, old in reversed(entries):
        data[offset : offset + len(old)] = old
    return bytes(data)


REPAIRED = ["superblock", "mark", "record 0", "record 3"]


@pytest.mark.parametrize("kind", ["closed", "killed"])
@pytest.mark.parametrize("name", REPAIRED)
def test_repair(files: dict[str, Path], kind: str, name: str) -> None:
    """Repaired files say what they said before, and what was there can be had back."""
    expected = damage.contents(files[kind])
    path = damage.flipped(files[kind], structures(files[kind])[name][0])
    before = path.read_bytes()
    planned = archive.repair(path, dry_run=True)
    assert path.read_bytes() == before
    assert planned.steps
    assert not planned.done
    assert planned.left
    found = archive.repair(path)
    assert (found.steps, found.done, found.left) == (planned.steps, True, ())
    assert damage.contents(path) == expected
    assert undo(found.copy, path)[: len(before)] == before
    os.remove(found.copy)
    archive.open(path, "a").close()
    assert texts(path) == []


def test_there_is_nothing_to_repair_in_good_files(files: dict[str, Path], tmp_path: Path) -> None:
    for path in (*files.values(), *damage.golden(tmp_path)):
        before = path.read_bytes()
        assert archive.repair(path) == archive.Repair(str(path), (), False, "", ())
        assert path.read_bytes() == before


def test_repair_gives_up_the_rows_of_a_damaged_tail(files: dict[str, Path]) -> None:
    """Those of one environment from its first row that was not in a full chunk; all others are as before."""
    header, record, _ = region(files["killed"])
    number, env = header.fields.index("reward"), 1
    at = tail_position(header, record.tail_offset, record.tail_slot, number, env)
    path = damage.flipped(files["killed"], at + 80)
    with pytest.raises(archive.DamagedError, match=r"tail of field 'reward', environment 1, rows 0 to \d+, fails"):
        archive.open(path)
    found = archive.repair(path)
    assert found.steps == ("give up the rows of environment 1 from row 0 on",)
    assert (found.done, found.left) == (True, ())
    with archive.open(files["killed"]) as old, archive.open(path) as new:
        assert new.lengths.tolist() == old.lengths.tolist()
        for name in ("observation", "action"):
            assert new[name][:].tobytes() == old[name][:].tobytes()
        assert (new["reward"][:][:, 1] == 0).all()
        others = old.episodes["env"] != 1
        for name, column in old.episodes.items():
            kept = column[others]
            ends = ("terminated", "truncated", "final")
            assert name in ends or new.episodes[name].tolist() == kept.tolist()
        assert new.last_checkpoint is not None
    with archive.open(path, "a") as run:
        with pytest.raises(archive.StateError, match="past"):
            run.rewind(run.last_checkpoint)
        run.reset(np.zeros((3, *damage.SHAPE), np.uint8))
    assert texts(path) == []
    os.remove(found.copy)


@pytest.mark.parametrize("applied", [True, False])
def test_repair_without_the_journal(path: Path, applied: bool) -> None:
    """The commit counts if all of it is in place; the one before counts if nothing is."""
    live = path.with_suffix(".live")
    run = archive.create(live, damage.schema(None), commit_every=None)
    run.reset(damage.frame(0, 0))
    for step in range(40):
        run.step(np.full(2, step), damage.frame(0, step), 1.0, False, False)
    run.commit()
    before = live.read_bytes()
    older = damage.contents(live)
    for step in range(40, 60):
        run.step(np.full(2, step), damage.frame(0, step), 1.0, False, False)
    run.commit()
    after, newer = live.read_bytes(), damage.contents(live)
    header, record, _ = region(live)
    run.close()
    data = bytearray(after)
    mark = header.region.mark_offset
    data[mark : mark + 16] = header.region.mark(record.sequence - 1)
    data[record.journal_offset] ^= 1
    if not applied:
        at, journal = 0, after[record.journal_offset :][: record.journal_length]
        while at < len(journal):
            offset, size = ENTRY.unpack_from(journal, at)
            data[offset : offset + size] = before[offset : offset + size]
            at += ENTRY.size + size
    path.write_bytes(data)
    with pytest.raises(archive.DamagedError, match="journal"):
        archive.open(path)
    assert "journal" in texts(path)[0]
    found = archive.repair(path)
    assert (found.done, found.left) == (True, ())
    assert damage.contents(path) == (newer if applied else older)


def test_repair_waits_for_the_writer(path: Path) -> None:
    with archive.create(path, damage.schema(None)), pytest.raises(archive.LockedError):
        archive.repair(path)


def test_repair_leaves_what_it_cannot_put_right(files: dict[str, Path]) -> None:
    at = files["closed"].read_bytes().find(b"RLAT")
    path = damage.flipped(files["closed"], at - 9)
    before = path.read_bytes()
    found = archive.repair(path)
    assert (found.steps, found.done, len(found.left)) == ((), False, 1)
    assert path.read_bytes() == before


DYING = """
import os, signal, sys, archive, archive.repairing as repairing, archive.disk as disk
path, die_at, keep = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
count = 0
def counted(write):
    def write_or_die(*arguments):
        global count
        count += 1
        if count == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return write(*arguments)
    return write_or_die
def torn(fd, data, offset):
    global count
    count += 1
    if count == die_at:
        os.pwrite(fd, data[: int(len(data) * keep)], offset)
        os.kill(os.getpid(), signal.SIGKILL)
    return os.pwrite(fd, data, offset)
disk.write_at = torn
repairing.KeepingFile.put = counted(repairing.KeepingFile.put)
repairing.Kept.keep = counted(repairing.Kept.keep)
archive.repair(path)
print("done", flush=True)
"""


def kill_repairs(files: dict[str, Path], tmp_path: Path, names: list[str], kills: range, tears: list[float]) -> int:
    """Kill repairs at many places; each file can be repaired afterwards. Return how many were killed."""
    killed = 0
    header, record, _ = region(files["killed"])
    tail = tail_position(header, record.tail_offset, record.tail_slot, 1, 2)
    places = {name: at for name, (at, _) in structures(files["killed"]).items()} | {"tail": tail + 1}
    for name, at in ((name, places[name]) for name in names):
        clean = tmp_path / "clean.h5"
        shutil.copyfile(damage.flipped(files["killed"], at), clean)
        archive.repair(clean)
        for die_at in kills:
            for tear in tears:
                path = tmp_path / "killed.h5"
                shutil.copyfile(damage.flipped(files["killed"], at), path)
                with start(DYING, path, die_at, tear) as process:
                    process.wait()
                killed += process.returncode == -signal.SIGKILL
                assert archive.repair(path).left == (), (name, die_at, tear)
                assert damage.contents(path) == damage.contents(clean), (name, die_at, tear)
                for copy in tmp_path.glob("*.repair-*"):
                    copy.unlink()
    return killed


def test_a_repair_that_is_killed_can_be_done_again(files: dict[str, Path], tmp_path: Path) -> None:
    assert kill_repairs(files, tmp_path, ["record 0", "tail"], range(2, 3), [0.5]) == 2


@pytest.mark.slow
def test_many_repairs_that_are_killed(files: dict[str, Path], tmp_path: Path) -> None:
    names = ["superblock", "mark", "record 0", "record 3", "tail"]
    assert kill_repairs(files, tmp_path, names, range(1, 10), [0.5]) >= 15


# --- the command line


def call(*arguments: Any) -> Result:
    """Run rl-archive, nobody being at the terminal."""
    return CliRunner().invoke(commands, [str(one) for one in arguments])


def test_commands(files: dict[str, Path]) -> None:
    """Exit status, one line for each finding, JSON, and a repair that asks before it does anything."""
    good = call("verify", files["killed"])
    assert (good.exit_code, good.stderr) == (0, "")
    assert good.output.startswith("good: commit ")
    path = damage.flipped(files["killed"], structures(files["killed"])["record 0"][0])
    before = path.read_bytes()
    bad = call("verify", path)
    assert bad.exit_code == 1
    assert "commit record" in bad.output.splitlines()[0]
    found = json.loads(call("verify", path, "--json", "--quick").output)
    assert (found["clean"], len(found["findings"]), found["quick"]) == (False, 1, True)
    assert call("verify").exit_code == 2
    asked = call("repair", path)
    assert asked.exit_code == 1
    assert "--yes does it" in asked.output
    assert path.read_bytes() == before
    done = call("repair", path, "--yes")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "repaired" in done.output
    assert call("verify", path, "--quick").exit_code == 0
    again = call("repair", path)
    assert (again.exit_code, again.output) == (0, "good: there is nothing to repair\n")
    for copy in path.parent.glob("*.repair-*"):
        copy.unlink()
