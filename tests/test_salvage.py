"""salvage gets back every whole chunk, invents nothing, and makes a run that is clean."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import numpy as np
import pytest
import reader
from click.testing import CliRunner

import archive
from archive.__main__ import commands
from archive.copies import copies_due
from archive.header import SEARCHED

ENVS = pytest.mark.parametrize("envs", [None, 3])
MIB = 1 << 20


def salvaged(path: Path) -> tuple[archive.Salvage, Path]:
    """Salvage a file; what comes out must be clean, closed and plain."""
    out = path.with_name(path.name + ".out")
    out.unlink(missing_ok=True)
    before = path.read_bytes()
    found = archive.salvage(path, out)
    assert path.read_bytes() == before
    assert archive.verify(out).findings == ()
    assert not list(path.parent.glob("*.partial"))
    assert not list(path.parent.glob("*.lock"))
    with archive.open(out) as run:
        assert run._file.record.in_fields
        assert found.rows == tuple(run.lengths.tolist())
    return found, out


def whole_chunks(path: Path) -> dict[tuple[int, int, int], Any]:
    """Return by field, environment and first row what the oracle decodes of the trailers in a file's bytes."""
    file = object.__new__(reader.File)
    file.data = path.read_bytes()
    file.block = next(reader.blocks(file.data, 1))
    file.fields = list(file.block["schema"]["steps"])
    file.record = {"end": len(file.data)}
    return file.chunks


def holds(out: Path, chunks: dict[tuple[int, int, int], Any], limits: Any = None) -> int:
    """Check that a run has the rows of chunks at their places, bit for bit; return how many there are."""
    with archive.open(out) as run:
        fields, count = list(run.schema.steps), 0
        columns = {name: run[name][:] for name in fields}
        for (field, env, first), rows in chunks.items():
            column = columns[fields[field]]
            found = (column[:, env] if run.schema.num_envs else column)[first : first + len(rows)]
            assert found.tobytes() == rows.tobytes(), (fields[field], env, first)
            count += 1
    return count


def same_episodes(out: Path, original: Path, start: int = 0) -> None:
    """Check that the episodes which begin at row `start` or later, without hidden ones, are those of the original."""
    with archive.open(out) as new, archive.open(original) as old:
        for env in range(new.num_envs):
            for name in ("start", "length", "return", "terminated", "truncated", "final"):
                ours, theirs = (
                    table[name][(table["env"] == env) & (table["start"] >= start) & ~table["hidden"]].tolist()
                    for table in (new.episodes, old.episodes)
                )
                assert ours == theirs, name


# --- what is whole stays as it was


KINDS = pytest.mark.parametrize(
    ("codec", "envs"),
    [
        ("gzip", None),
        ("zstd", 3),
        *(
            pytest.param(c, e, marks=pytest.mark.slow)
            for c, e in (("gzip", 3), ("zstd", None), ("lz4", None), ("lz4", 3), ("none", None), ("none", 3))
        ),
    ],
)


@KINDS
@pytest.mark.parametrize("close", [True, False])
def test_a_file_that_is_whole_comes_back_as_it_was(path: Path, codec: str, envs: int | None, close: bool) -> None:
    """Rows, heads, episodes with the user's columns, checkpoints; a closed and a killed file."""
    damage.record(path, 130, envs, codec, close)
    found, out = salvaged(path)
    assert damage.contents(out) == damage.contents(path)
    assert (found.rows_lost, found.missing, found.notes, found.hidden) == (0, (), (), 0)
    with archive.open(out) as run:
        assert run.metadata == {"a": 1}


@ENVS
def test_rewound_and_golden_files_come_back_as_they_were(path: Path, tmp_path: Path, envs: int | None) -> None:
    damage.rewound(path, envs)
    for file in [path, *(damage.golden(tmp_path) if envs is None else [])]:
        _, out = salvaged(file)
        assert damage.contents(out) == damage.contents(file)
        archive.open(out, "a").close()
        assert archive.verify(out).clean


# --- files that have lost something


def without_start(data: bytes) -> bytes:
    """Return a file whose first MiB is zeros."""
    return bytes(MIB) + data[MIB:]


def first_half(data: bytes) -> bytes:
    """Return a file cut in half."""
    return data[: len(data) // 2]


def second_half(data: bytes) -> bytes:
    """Return the half that was cut off."""
    return data[len(data) // 2 :]


@KINDS
@pytest.mark.parametrize("harm", [without_start, first_half, second_half])
def test_every_whole_chunk_comes_back(path: Path, codec: str, envs: int | None, harm: Callable[[bytes], bytes]) -> None:
    whole = path.with_suffix(".whole")
    damage.record(whole, 1200 if envs is None else 400, envs, codec)
    path.write_bytes(harm(whole.read_bytes()))
    with pytest.raises(archive.ArchiveError):
        archive.open(path)
    chunks = whole_chunks(path)
    found, out = salvaged(path)
    assert found.chunks == holds(out, chunks) > 5
    with archive.open(out) as run:
        rows, fields = run.lengths, list(run.schema.steps)
        count = {(name, env): 0 for name in fields for env in range(run.num_envs)}
        for (field, env, _), values in chunks.items():
            count[fields[field], env] += len(values)
        for one in found.missing:  # what is not reported missing is there, and the other way round
            count[one.field, one.env] += one.stop - one.start
            column = run[one.field][one.start : one.stop]
            assert not any((column[:, one.env] if envs else column).tobytes())
        assert count == {(name, env): rows[env] for name, env in count}


@ENVS
def test_episodes_are_those_of_the_whole_file(path: Path, envs: int | None) -> None:
    """Behind what is lost; the one that has lost its beginning is hidden."""
    whole = path.with_suffix(".whole")
    damage.record(whole, 1200 if envs is None else 400, envs)
    path.write_bytes(without_start(whole.read_bytes()))
    found, out = salvaged(path)
    lost = max(one.stop for one in found.missing)
    assert lost > 51
    same_episodes(out, whole, lost)
    with archive.open(out) as run:
        hidden = run.episodes["hidden"]
        assert int(hidden.sum()) == found.hidden <= run.num_envs
        assert (run.episodes["start"][hidden] >= 51).all()
        assert run.num_episodes == found.episodes
        assert any("seed" in note and "task" in note for note in found.notes)
        index = run.replay(seed=1).draw(500)[0]
    with archive.open(whole) as run:
        old = run.replay()
        assert set(index.tolist()) <= set(old.draw(100_000)[0].tolist())


def test_killed_files(path: Path) -> None:
    """Without its start a killed file has whole chunks; with it also the tail."""
    whole = path.with_suffix(".whole")
    damage.record(whole, 1200, close=False)
    path.write_bytes(without_start(whole.read_bytes()))
    found, out = salvaged(path)
    assert found.chunks == holds(out, whole_chunks(path)) > 10
    assert any("no commit record" in note for note in found.notes)
    data = bytearray(whole.read_bytes())
    data[48:52] = bytes(4)  # the root group
    path.write_bytes(data)
    with pytest.raises(archive.DamagedError):
        archive.open(path)
    found, out = salvaged(path)
    old, new = damage.contents(whole), damage.contents(out)
    assert found.rows_lost == 0
    assert new["last"] == old["last"]
    with archive.open(whole) as run:
        expected = run.num_rows - 1  # the head is left out, since only the table says whether it begins an episode
    assert found.rows == (expected,)
    assert new["observation"] == old["observation"][: len(new["observation"])]
    same_episodes_but_the_last(out, whole)
    with archive.open(out, "a") as run, pytest.raises(archive.StateError, match="before it was salvaged"):
        run.rewind(run.last_checkpoint)


@pytest.mark.parametrize("steps", [63, 64, 65, 1023, 1024, 1025])
def test_heads_at_the_edge_of_chunks(path: Path, steps: int) -> None:
    """A head may be the only row of its chunk, and then no tail but that of the observation has it."""
    live = path.with_suffix(".live")
    with archive.create(live, damage.schema(None), commit_every=None) as run:
        run.extend(
            {
                "observation": np.ones((steps - 20, *damage.SHAPE), np.uint8),
                "action": np.ones((steps - 20, 2), ">i2"),
                "reward": np.ones(steps - 20, np.float32),
            }
        )
        run.reset(np.full(damage.SHAPE, 2, np.uint8))
        for step in range(20):
            run.step(np.full(2, step), damage.frame(0, step), 1.0, False, False)
        run.commit()
        path.write_bytes(live.read_bytes())
        assert run.num_rows == steps + 1
    found, out = salvaged(path)
    assert damage.contents(out) == damage.contents(path)
    assert salvaged(out)[0].missing == found.missing == ()


def same_episodes_but_the_last(out: Path, original: Path) -> None:
    """Check all episodes but the one that was going on."""
    with archive.open(out) as new, archive.open(original) as old:
        for name in ("start", "length", "return", "terminated", "truncated"):
            assert new.episodes[name][:-1].tolist() == old.episodes[name][:-1].tolist()


@ENVS
def test_rows_given_up_stay_given_up(path: Path, envs: int | None) -> None:
    """Also where only the block of the rewind says so."""
    damage.rewound(path, envs)
    with archive.open(path) as run:
        expected = {(int(e), int(s)) for e, s in zip(run.episodes["env"], run.episodes["start"], strict=True)}
    data = bytearray(path.read_bytes())
    data[48:52] = bytes(4)
    broken = path.with_suffix(".broken")
    broken.write_bytes(data)
    found, out = salvaged(broken)
    assert found.rows_lost == 0
    with archive.open(out) as run:
        assert expected == {(int(e), int(s)) for e, s in zip(run.episodes["env"], run.episodes["start"], strict=True)}
    same_returns(out, path)


def same_returns(out: Path, original: Path) -> None:
    """Check lengths and returns in any order."""
    tables = []
    for path in (out, original):
        with archive.open(path) as run:
            columns = (run.episodes[name].tolist() for name in ("env", "start", "length", "return", "final"))
            tables.append(sorted(zip(*columns, strict=True)))
    assert tables[0] == tables[1]


def test_rows_of_a_dead_writer_do_not_come_back(path: Path) -> None:
    """A killed writer's chunks that nobody counts stay in the bytes; later rows took their place."""
    live = path.with_suffix(".live")
    run = archive.create(live, damage.schema(None), commit_every=None)
    run.reset(damage.frame(0, 0))
    for step in range(100):
        run.step(np.full(2, step), damage.frame(0, step + 1), 1.0, False, False)
    run.commit()
    for step in range(100, 1500):  # never committed
        run.step(np.full(2, -1), damage.frame(1, step), -1.0, False, False)
    path.write_bytes(live.read_bytes())
    run.close()
    with archive.open(path, "a", commit_every=None) as run:
        for step in range(100, 1100):
            run.step(np.full(2, step), damage.frame(0, step + 1), 1.0, False, False)
    data = path.read_bytes()
    whole = path.with_suffix(".whole")
    whole.write_bytes(data)
    for broken in (without_start(data), data[:48] + bytes(4) + data[52:]):
        path.write_bytes(broken)
        found, out = salvaged(path)
        with archive.open(whole) as old, archive.open(out) as new:
            assert found.rows == (old.num_rows,)
            for name in old.schema.steps:
                column = new[name][:]
                kept = np.ones(len(column), bool)
                for one in found.missing:
                    kept[one.start : one.stop] &= one.field != name
                assert column[kept].tobytes() == old[name][:][kept].tobytes()


@ENVS
def test_a_hole_in_the_middle(path: Path, envs: int | None) -> None:
    """The episode around it is interrupted before it, and hidden behind it; other episodes are as they were."""
    damage.record(path, 400, envs)
    whole = damage.contents(path)
    with archive.open(path) as run:
        column = run._rows.columns["observation"]
        chunk = 2 * run.num_envs
        at, first = int(column.offset[chunk]), 2 * column.chunk_rows
        stop = first + column.chunk_rows
    broken = damage.flipped(path, at + 20)
    found, out = salvaged(broken)
    assert [(one.field, one.env, one.start, one.stop) for one in found.missing] == [("observation", 0, first, stop)]
    assert found.rows_lost == stop - first
    new = damage.contents(out)
    assert {k for k in whole if k in dict(archive.open(path).schema.steps) and new[k] != whole[k]} == {"observation"}
    with archive.open(out) as run, archive.open(path) as old:
        table = run.episodes
        ours = table["env"] == 0
        starts, lengths = table["start"][ours], table["length"][ours]
        assert not any(s < stop and s + n > first for s, n in zip(starts, lengths, strict=True))
        behind = ours & (table["start"] == stop)
        assert table["hidden"][behind].tolist() == [True]
        kept = [k for k in range(old.num_episodes) if not overlaps(old.episodes, k, first, stop)]
        keys = list(zip(table["env"].tolist(), table["start"].tolist(), strict=True))
        for k in kept:
            at = keys.index((old.episodes["env"][k], old.episodes["start"][k]))
            for name, column in old.episodes.items():
                assert table[name][at] == column[k], name
    again, _ = salvaged(out)
    assert (again.rows_lost, again.episodes, again.hidden) == (found.rows_lost, found.episodes, found.hidden)


def overlaps(table: Any, k: int, first: int, stop: int) -> bool:
    """Tell whether an episode of environment 0 has rows in a hole."""
    end = table["start"][k] + table["length"][k] + table["final"][k]
    return bool(table["env"][k] == 0 and table["start"][k] < stop and end > first)


@pytest.mark.slow
def test_any_damage(path: Path) -> None:
    """Blocks of zeros anywhere: every whole chunk comes back, and the run is clean."""
    whole, choice = path.with_suffix(".whole"), random.Random(0)
    damage.record(whole, 900)
    data = whole.read_bytes()
    for _ in range(60):
        broken = bytearray(data)
        for _ in range(choice.randrange(1, 4)):
            at, size = choice.randrange(len(data)), choice.choice([1, 512, 4096, 200_000])
            broken[at : at + size] = bytes(len(broken[at : at + size]))
        path.write_bytes(broken)
        if next(reader.blocks(bytes(broken), 1), None):
            found, out = salvaged(path)
            chunks = whole_chunks(path)
            assert holds(out, {k: v for k, v in chunks.items() if k[2] < max(found.rows)}) > 0


# --- the schema block and its copies


def test_copies_of_the_schema_block(path: Path) -> None:
    """Each says the same as the first; they take a thousandth of a file, and are within either half of it."""
    damage.record(path, 2800)
    data = path.read_bytes()
    blocks = list(reader.blocks(data, 1))
    assert len(data) > 4 * MIB
    assert len(blocks) == 1 + copies_due(len(data))
    assert all(block == blocks[0] for block in blocks)
    places = list(itertools.accumulate(len(part) + 4 for part in data.split(b"RLAB")[:-1]))
    assert any(at > len(data) / 2 for at in places)
    assert sum(at > SEARCHED for at in places) == len(blocks) - 1


def test_opening_again_makes_no_more_copies(path: Path) -> None:
    damage.record(path, 1000)
    before = path.read_bytes().count(b"RLAB")
    for _ in range(3):
        archive.open(path, "a").close()
    assert path.read_bytes().count(b"RLAB") == before > 1


# --- refusals and the command line


def test_refusals(path: Path, tmp_path: Path) -> None:
    with pytest.raises(archive.MissingRunError, match="no such file"):
        archive.salvage(tmp_path / "none.h5", path)
    (tmp_path / "text").write_bytes(b"RLAB RLAT" * 1000)
    with pytest.raises(archive.NotARunError, match="no schema block"):
        archive.salvage(tmp_path / "text", path)
    damage.record(path, 10)
    with pytest.raises(archive.ExistingRunError):
        archive.salvage(path, path)
    with pytest.raises(archive.MissingRunError, match="no such folder"):
        archive.salvage(path, tmp_path / "no" / "out.h5")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5", "text"]


def test_command(path: Path) -> None:
    damage.record(path, 400)
    out = path.with_suffix(".out")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    done = CliRunner().invoke(commands, ["salvage", str(path), str(out)])
    assert done.exit_code == 0
    assert "field 'reward', environment 0: rows 0 to" in done.output
    assert CliRunner().invoke(commands, ["verify", str(out)]).exit_code == 0
    assert isinstance(CliRunner().invoke(commands, ["salvage", str(path), str(out)]).exception, archive.ArchiveError)


def test_memory_does_not_grow_with_the_file(path: Path) -> None:
    """A window of the file and a few chunks at a time."""
    import tracemalloc

    peaks = []
    for steps in (500, 1500):
        path.unlink(missing_ok=True)
        damage.record(path, steps)
        tracemalloc.start()
        salvaged_to = path.with_suffix(".out")
        salvaged_to.unlink(missing_ok=True)
        archive.salvage(path, salvaged_to)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + MIB // 2
