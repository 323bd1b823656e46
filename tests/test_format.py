"""The file is what docs/format.md says, for other readers and for later releases."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import reader
from golden import make
from hypothesis import given
from hypothesis import strategies as st

import archive
from archive.block import Block
from archive.chunk import SIZE, Trailer
from archive.record import Record, Region, Slot
from archive.schema import EPISODE_COLUMNS

GOLDEN = Path(__file__).parent / "golden"
CLOSED, KILLED, VECTOR = "run_v1.h5", "run_v1_killed.h5", "vector_v1.h5"


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Unpack the golden files."""
    folder = tmp_path_factory.mktemp("golden")
    for name in (CLOSED, KILLED, VECTOR):
        (folder / name).write_bytes(gzip.decompress((GOLDEN / f"{name}.gz").read_bytes()))
    return {name: folder / name for name in (CLOSED, KILLED, VECTOR)}


def expected_rows() -> dict[str, list[Any]]:
    """Return what make.py recorded, field by field; a row without a transition holds zeros beside its observation."""
    rows: dict[str, list[Any]] = {name: [] for name in make.SCHEMA.steps}
    lengths = [*make.LENGTHS[:-1], make.LENGTHS[-1] + 1]
    for number, length in enumerate(lengths):
        for place in range(length + 1):
            row, last = len(rows["reward"]), place == length
            found = make.observation(row)
            rows["observation/pixels"].append(found["pixels"])
            rows["observation/place"].append(found["place"])
            for name, value in make.outcome(row).items():
                rows[name].append(np.zeros_like(value) if last else value)
            rows["terminated"].append(number == 0 and place == length - 1)
            rows["truncated"].append(number == 1 and place == length - 1)
            rows["is_first"].append(place == 0)
            rows["is_last"].append(last)
    return rows


# --- golden files


@pytest.mark.parametrize("name", [CLOSED, KILLED])
def test_golden_rows(golden: dict[str, Path], name: str) -> None:
    expected = expected_rows()
    with archive.open(golden[name]) as run:
        assert run.schema == make.SCHEMA
        assert run.metadata == {"golden": 1, "text": "Äpfel"}
        assert run.lengths.tolist() == [19]
        for field, values in expected.items():
            found = run[field][:]
            assert found.dtype == np.dtype(make.SCHEMA.steps[field].dtype)
            np.testing.assert_array_equal(found, np.array(values))


@pytest.mark.parametrize("name", [CLOSED, KILLED])
def test_golden_episodes(golden: dict[str, Path], name: str) -> None:
    rewards = [np.float64(make.outcome(row)["reward"]) for row in range(19)]
    expected = {
        "env": [0, 0, 0],
        "start": [0, 7, 14],
        "length": [6, 6, 4],
        "return": [sum(rewards[0:6]), sum(rewards[7:13]), sum(rewards[14:18])],
        "terminated": [True, False, False],
        "truncated": [False, True, False],
        "final": [True, True, True],
        "seed": [0, 1, 2],
        "hidden": [False, False, False],
    }
    with archive.open(golden[name]) as run:
        assert {column: values.tolist() for column, values in run.episodes.items()} == expected
        assert run.episode(0)["observation"]["place"].tolist() == [
            make.observation(t)["place"].tolist() for t in range(7)
        ]


@pytest.mark.parametrize("name", [CLOSED, KILLED])
def test_golden_checkpoint(golden: dict[str, Path], name: str) -> None:
    with archive.open(golden[name]) as run:
        last = run.last_checkpoint
    assert last is not None
    assert (last["number"], last["text"], last["bytes"]) == (1.5, "schön", b"\0\1")
    assert last["complex"] == 1 - 2j
    assert last["nested"] == {"list": [1, None, True], "tuple": (2,)}
    np.testing.assert_array_equal(last["array"], np.arange(6).reshape(2, 3))
    assert (last["array"].dtype, last["scalar"], last["scalar"].dtype) == (np.uint16, 0.25, np.float32)


@pytest.mark.parametrize("name", [CLOSED, KILLED, VECTOR])
def test_golden_draws(golden: dict[str, Path], name: str) -> None:
    expected = json.loads((GOLDEN / "draws_v1.json").read_text())[name]
    found = make.drawn_from(golden[name])
    assert found["generator"] == expected["generator"]
    for kind in ("resumed", "larger", "uniform", "unstratified"):
        assert [batch["index"] for batch in found[kind]] == [batch["index"] for batch in expected[kind]], kind
        for batch, known in zip(found[kind], expected[kind], strict=True):
            np.testing.assert_allclose(batch["weight"], known["weight"], rtol=1e-6)


@pytest.mark.parametrize("name", [CLOSED, KILLED])
def test_golden_goes_on(golden: dict[str, Path], name: str, tmp_path: Path) -> None:
    """A file of this version is gone on with: the open rows move back, and the draws stay."""
    path = tmp_path / name
    shutil.copyfile(golden[name], path)
    expected = expected_rows()
    with archive.open(path, "a") as run:
        make.step(run, 18, terminated=True)
    with archive.open(path) as run:
        assert run.lengths.tolist() == [20]
        for field in ("reward", "action", "observation/place"):
            np.testing.assert_array_equal(run[field][:18], np.array(expected[field][:18]))
        assert run["reward"][18] == make.outcome(18)["reward"]
    assert make.drawn_from(path)["generator"] == json.loads((GOLDEN / "draws_v1.json").read_text())[name]["generator"]


@pytest.mark.parametrize("name", [CLOSED, KILLED])
def test_golden_by_the_document_alone(golden: dict[str, Path], name: str) -> None:
    file = reader.File(golden[name])
    assert file.record["flags"] == (name == CLOSED)
    assert len(file.copies) == 2
    for field, values in expected_rows().items():
        found = file.rows(field)
        assert len(found) == 19 - (not field.startswith("observation"))
        np.testing.assert_array_equal(found, np.array(values)[: len(found)])
    number, content = next(file.checkpoints())
    assert number == 1
    assert content["values"]["text"] == "schön"
    assert content["values"]["complex"] == 1 - 2j
    assert content["run"]["run_id"] == file.block["run_id"]
    assert content["run"]["rows"].tolist() == [18]
    assert content["values"]["replay"]["draw_version"] == 1


def test_golden_vector(golden: dict[str, Path]) -> None:
    """Two environments that reset themselves, frame stacks, and a rewind: rows given up stay, in no episode."""
    names = ("frame", "action", "reward", "terminated", "truncated", "is_first", "is_last")
    rows: list[list[dict[str, Any]]] = [[{"frame": 200, "is_first": True}], [{"frame": 201, "is_first": True}]]
    for step in make.vector_script():
        for env, mine in enumerate(rows):
            if step["begins"][env]:
                mine[-1]["is_last"] = True
            else:
                mine[-1] |= {name: step[name][env] for name in ("action", "reward", "terminated", "truncated")}
            mine.append({"frame": step["frame"][env], "is_first": step["begins"][env]})
    for mine in rows:
        mine[-1]["is_last"] = True
    rows[0].append({"frame": 250, "is_first": True, "is_last": True})
    file = reader.File(golden[VECTOR])
    with archive.open(golden[VECTOR]) as run:
        assert run.lengths.tolist() == [len(mine) for mine in rows] == [42, 41]
        for env, mine in enumerate(rows):
            for name in names:
                field = "observation" if name == "frame" else name
                expected = [row.get(name, 0) for row in mine]
                for found in (run[field][: len(mine), env], file.rows(field, env)):
                    assert found.reshape(len(found), -1)[:, 0].tolist() == expected[: len(found)], name
        table = run.episodes
        covered = [int((table["length"] + table["final"])[table["env"] == env].sum()) for env in (0, 1)]
        assert covered == [make.KEPT_STEPS + 1 + 1, make.KEPT_STEPS + 1]
        stacks = run.replay(batch_size=64, seed=1).sample().observation
        assert stacks.shape == (64, 2, 4, 4)


# --- every file


FILTERS = {"gzip": 1, "none": 1, "zstd": 32015, "lz4": 32004}
CODECS = pytest.mark.parametrize("codec", FILTERS)
FIELDS = {"observation": archive.Field("uint8", (96, 96)), "action": archive.Field("float32", (2,))}


def make_run(
    path: Path, envs: int | None, steps: int, *, close: bool, codec: str = "gzip"
) -> dict[str, np.ndarray[Any, Any]]:
    """Record random rows in odd places, commit, and leave; return what readers must find."""
    rng = np.random.default_rng(steps)
    lead = () if envs is None else (envs,)
    run = archive.create(path, archive.Schema(FIELDS, envs, "NextStep"), compression=codec, commit_every=None)
    picture = rng.integers(0, 4, (*lead, 96, 96), np.uint8)
    run.reset(picture)
    for t in range(steps):
        ends = rng.random(lead) < 0.15
        run.step(
            rng.random((*lead, 2), np.float32),
            picture + np.uint8(t % 256),
            rng.random(lead, np.float32),
            ends,
            ends & False,
        )
        if t == steps // 2:
            run.commit()
    run.commit()
    found = {name: run[name][:] for name in run.schema.steps}
    if close:
        run.close()
    else:
        shutil.copyfile(path, path.with_suffix(".killed"))
        run.close()
        path.with_suffix(".killed").replace(path)
    return found


@pytest.mark.parametrize("codec", ["zstd", "lz4", "none"])
@pytest.mark.parametrize("envs", [None, 3])
def test_the_document_is_enough_for_other_codecs(path: Path, envs: int | None, codec: str) -> None:
    expected = make_run(path, envs, 2100, close=True, codec=codec)  # full chunks of scalars too
    file = reader.File(path)
    assert file.block["compression"] == codec
    for env in range(envs or 1):
        for name in file.fields:
            found = file.rows(name, env)
            whole = expected[name] if envs is None else expected[name][:, env]
            assert found.tobytes() == whole[: len(found)].tobytes()


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
def test_the_document_is_enough_for_all_kinds_of_fields(path: Path, close: bool) -> None:
    """Text, fields of no elements, parts of a tuple, one codec for each, and noise that none can shrink."""
    fields = {
        "observation/word": archive.Text(6),
        "observation/nothing": archive.Field("float32", (3, 0)),
        "action/0": archive.Field("int64", compression="lz4"),
        "action/1": archive.Field(">f8", compression="none"),
        "noise": archive.Field("uint8", (70,), compression="lz4"),
        "more": archive.Field("uint8", (70,), compression="gzip"),
    }
    given = {
        "observation/word": np.array([f"ä{k % 60}".encode() for k in range(3000)], "S6"),
        "observation/nothing": np.zeros((3000, 3, 0), np.float32),
        "action/0": np.arange(3000),
        "action/1": np.arange(3000) / 7,
        "noise": np.random.default_rng(0).integers(0, 256, (3000, 70), np.uint8),
        "more": np.random.default_rng(1).integers(0, 256, (3000, 70), np.uint8),
        "reward": np.ones(3000, np.float32),
    }
    with archive.create(path, archive.Schema(fields, tuples=("action",)), compression="zstd", commit_every=None) as run:
        run.extend(given)
        run.commit()
        if not close:
            shutil.copyfile(path, path.with_suffix(".killed"))
    if not close:
        path.with_suffix(".killed").replace(path)
    file = reader.File(path)
    assert file.block["schema"]["tuples"] == ["action"]
    for name, values in given.items():
        found = file.rows(name)
        assert found.shape == values.shape
        assert found.tobytes() == values.astype(found.dtype).tobytes(), name
    with h5py.File(path) as plain:
        nothing = plain["steps/observation/nothing"]
        assert (nothing.maxshape, nothing.chunks) == ((None, 3, None), (1024, 3, 1))
        assert nothing.id.get_num_chunks() == 0
        assert "nothing" not in plain["tail/observation"]
        assert plain.attrs["required_filters"] == b"fletcher32 gzip lz4 (32004) shuffle zstd (32015)"


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_bytes_of_a_chunk(path: Path, codec: str) -> None:
    """The framing that lets HDF5's filters pass over the trailer, written out."""
    make_run(path, None, 40, close=True, codec=codec)
    with h5py.File(path) as file:
        mask, data = file["steps/reward"].id.read_direct_chunk((0,))
    assert mask == 0
    packed = reader.TRAILER.unpack(data[-52:-4])[9]
    assert len(data) == packed + 52
    if codec == "zstd":
        assert data[:4] == bytes.fromhex("28b52ffd")
        assert data[packed - 8 : packed] == bytes.fromhex("5e2a4d18 30000000")
    else:
        assert data[:16] == struct.pack(">QII", 4096, 4096, packed - 16)


def test_episode_columns_of_the_user(path: Path) -> None:
    columns = {"task": archive.Text(6, description="what is asked"), "score": archive.Field(">f4")}
    with archive.create(path, archive.Schema(FIELDS, episodes=columns)) as run:
        run.reset(np.zeros((96, 96), np.uint8), task="ä", score=0.5)
        run.reset(np.zeros((96, 96), np.uint8))
    with h5py.File(path) as file:
        kind = file["episodes/task"].id.get_type()
        assert (kind.get_size(), kind.get_strpad(), kind.is_variable_str()) == (6, h5py.h5t.STR_NULLPAD, False)
        assert file["episodes/task"][:].tolist() == ["ä".encode(), b""]
        assert file["episodes/score"][:].tolist() == [0.5, 0]
        assert file["episodes/score"].dtype == np.dtype(">f4")
        schema = json.loads(file["meta/schema_json"][0])
    assert schema == reader.File(path).block["schema"]
    assert {name: (c["dtype"], c["description"]) for name, c in schema["episodes"].items()} == {
        "task": ("|S6", "what is asked"),
        "score": (">f4", ""),
    }


def test_keys_of_the_schema_block(path: Path) -> None:
    make_run(path, None, 1, close=True)
    block = reader.File(path).block
    assert set(block) == {"format", "format_version", "run_id", "schema", "rows", "compression", "records"}
    assert set(block["schema"]) == {"steps", "num_envs", "autoreset", "environment", "episodes", "tuples"}
    keys = {"dtype", "shape", "stacked", "stack_axis", "padding", "compression", "description"}
    assert set(block["schema"]["steps"]["observation"]) == keys


def test_golden_schema_blocks_lack_what_came_later(golden: dict[str, Path]) -> None:
    """Files of before have no codec, user's columns and tuples in their blocks, and are read all the same."""
    for path in golden.values():
        block = reader.File(path).block
        assert "compression" not in block
        assert not {"episodes", "tuples"} & set(block["schema"])
        with archive.open(path) as run:
            assert (dict(run.schema.episodes), run.schema.tuples) == ({}, ())


@pytest.mark.parametrize("close", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("envs", [None, 3])
@pytest.mark.parametrize("steps", [0, 1, 15, 16, 17, 80])
def test_the_document_is_enough(
    path: Path, envs: int | None, steps: int, close: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archive.layout.MAX_ROWS", 16)  # scalars fill their chunks too
    expected = make_run(path, envs, steps, close=close)
    file = reader.File(path)
    for env in range(envs or 1):
        for name in file.fields:
            found = file.rows(name, env)
            whole = expected[name] if envs is None else expected[name][:, env]
            assert len(found) >= int(file.record["rows"][env]) - 1
            assert found.tobytes() == whole[: len(found)].tobytes()


@pytest.mark.parametrize("envs", [None, 3])
def test_closed_file_is_plain_hdf5(path: Path, envs: int | None) -> None:
    """Every field of a closed file is as long as the longest environment, and holds the rows."""
    expected = make_run(path, envs, 40, close=True)
    with h5py.File(path) as file:
        assert {len(file[f"steps/{name}"]) for name in expected} == {len(expected["reward"])}
        for name, values in expected.items():
            np.testing.assert_array_equal(file[f"steps/{name}"][:], values)
        assert file.attrs["complete"] == 1
        assert file.attrs["total_episodes"] == len(file["episodes/start"])
        assert file.attrs["total_steps"] == file["episodes/length"][:].sum()


def test_killed_file_is_plain_hdf5(path: Path) -> None:
    """A killed file shows whole chunks to readers that know nothing of tails."""
    expected = make_run(path, None, 40, close=False)
    with h5py.File(path) as file:
        shown = file["steps/observation"][:]
        assert len(shown) >= 32 - 8
        np.testing.assert_array_equal(shown, expected["observation"][: len(shown)])
        assert file.attrs["complete"] == 0


@CODECS
@pytest.mark.parametrize("envs", [None, 3])
def test_nothing_strange_is_in_a_file(path: Path, envs: int | None, codec: str) -> None:
    """Hard links, plain types, known filters, chunks that stock readers cache, and views of this file only."""
    make_run(path, envs, 40, close=True, codec=codec)
    with h5py.File(path) as file:
        names: list[str] = []
        file.visit(names.append)
        for name in names:
            assert isinstance(file.get(name, getlink=True), h5py.HardLink)
            if isinstance(found := file[name], h5py.Dataset):
                kind, plist = found.id.get_type(), found.id.get_create_plist()
                assert kind.get_class() in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM, h5py.h5t.STRING)
                assert not kind.detect_class(h5py.h5t.REFERENCE)
                assert kind.get_class() != h5py.h5t.STRING or not kind.is_variable_str()
                assert found.is_virtual == (name.split("/")[0] == "views")
                if found.is_virtual:
                    assert {source.file_name for source in found.virtual_sources()} == {"."}
                assert plist.get_external_count() == 0
                filters = [plist.get_filter(k)[0] for k in range(plist.get_nfilters())]
                steps = [2, FILTERS[codec], 3] if found.dtype.itemsize > 1 else [FILTERS[codec], 3]
                top = "texts" if name.endswith("_json") else name.split("/")[0]
                assert filters == {"steps": steps, "episodes": [3], "texts": [3], "preview": [1]}.get(top, [])
                assert found.chunks is None or np.prod(found.chunks) * found.dtype.itemsize <= 1 << 20
        assert set(file["episodes"]) == set(EPISODE_COLUMNS)
        assert file.userblock_size == 0
        known = {"shuffle", "fletcher32", {"zstd": "zstd (32015)", "lz4": "lz4 (32004)"}.get(codec, "gzip")}
        assert file.attrs["required_filters"].decode() == " ".join(sorted(known))


def test_rewind(path: Path) -> None:
    """What was given up stays in the file, in no episode, and a block says so."""
    schema = archive.Schema({"observation": archive.Field("float32"), "action": archive.Field("int64")})
    with archive.create(path, schema, commit_every=None) as run:
        run.reset(0.0)
        for t in range(5):
            run.step(0, t + 1.0, 1.0, False, False)
            run.checkpoint(number=t)
            if t == 2:
                back = run.last_checkpoint
        assert back is not None
        run.rewind(back)
        run.reset(10.0)
        run.step(0, 11.0, 1.0, True, False)
        run.checkpoint(number=10)
    (block,) = reader.blocks(path.read_bytes(), 2)
    run_id = block.pop("run_id")
    assert block == {"first": 4, "last": 5, "rows": [6], "back_to": [4]}
    file = reader.File(path)
    assert run_id == file.block["run_id"]
    assert file.rows("observation").tolist() == [0, 1, 2, 3, 4, 5, 10, 11]
    assert [number for number, _ in file.checkpoints()] == [6]
    with h5py.File(path) as plain:
        table = {name: plain[f"episodes/{name}"][:].tolist() for name in ("start", "length", "final")}
    assert table == {"start": [0, 6], "length": [3, 1], "final": [True, True]}


@pytest.mark.parametrize("envs", [None, 2])
def test_every_name_is_documented(path: Path, envs: int | None) -> None:
    document = (Path(__file__).parents[1] / "docs" / "format.md").read_text(encoding="utf-8")
    make_run(path, envs, 5, close=True)
    with archive.open(path, "a") as run:
        run.checkpoint(number=1)
        last = run.last_checkpoint
        assert last is not None
        run.rewind(last)
    with h5py.File(path) as file:
        names = [*file.attrs, *file["episodes"]]
        names += [name for path in ("episodes", "steps", "steps/observation") for name in file[path].attrs]
        names += [f"/{name}" for name in file if not isinstance(file[name], h5py.Group)]
        for group, pattern in {"meta": None, "tail": "<field>", "steps": "<field>", "checkpoints": None}.items():
            names += [f"/{group}/{pattern or name.rstrip('0123456789')}" for name in file[group]]
        names += [f"/preview/{name}" for name in file["preview"]]
        groups = {"checkpoints", "commits", "episodes", "meta", "preview", "steps", "tail"}
        if envs is not None:
            groups.add("views")
            assert set(file["views"]) == {"env_0000", "env_0001"}
            assert {name for env in file["views"].values() for name in env} == {"observation"}
            names += ["/views/env_<n>/<field>", *file["views/env_0000/observation"].attrs]
        assert set(file) == groups
    assert [name for name in names if f"`{name}`" not in document and f"`{name}<n>`" not in document] == []


def test_bytes_of_the_superblock(path: Path) -> None:
    make_run(path, None, 5, close=False)
    start = path.read_bytes()[:12]
    assert start[:9] == b"\x89HDF\r\n\x1a\n\x03"
    assert start[11] == 0, "consistency flags lock other readers out"


@pytest.mark.parametrize(
    ("shape", "subclass"),
    [((8, 6), "IMAGE_GRAYSCALE"), ((8, 6, 3), "IMAGE_TRUECOLOR"), ((3, 8, 6), None), ((9,), None)],
)
def test_image_attributes(path: Path, shape: tuple[int, ...], subclass: str | None) -> None:
    schema = archive.Schema({"observation": archive.Field("uint8", shape), "action": archive.Field("int64")})
    archive.create(path, schema).close()
    with h5py.File(path) as file:
        dataset = file["steps/observation"]
        texts = {name: dataset.attrs[name] for name in dataset.attrs if dataset.attrs[name].dtype.kind == "S"}
        kinds = [dataset.attrs.get_id(name).get_type() for name in texts]
        assert all(kind.get_strpad() == h5py.h5t.STR_NULLTERM for kind in kinds)
        assert [kind.get_size() for kind in kinds] == [len(text) + 1 for text in texts.values()]
        others = {name: np.asarray(dataset.attrs[name]).tolist() for name in dataset.attrs if name not in texts}
    common = {"CLASS": b"IMAGE", "IMAGE_VERSION": b"1.2", "DISPLAY_ORIGIN": b"UL"}
    if subclass is None:
        assert (texts, others) == ({}, {})
    elif subclass == "IMAGE_GRAYSCALE":
        assert texts == {**common, "IMAGE_SUBCLASS": subclass.encode()}
        assert others == {"IMAGE_WHITE_IS_ZERO": 0, "IMAGE_MINMAXRANGE": [0, 255]}
    else:
        assert texts == {**common, "IMAGE_SUBCLASS": subclass.encode(), "INTERLACE_MODE": b"INTERLACE_PIXEL"}
        assert others == {}


def test_h5dump_prints_values_without_plugins(path: Path) -> None:
    """h5dump exits with 0 and prints no values where a filter is missing: what it prints is compared."""
    tool = shutil.which("h5dump")
    if tool is None and not os.environ.get("CI"):
        pytest.skip("h5dump is not installed (Debian: hdf5-tools)")
    assert tool is not None, "h5dump is mandatory when CI is set"
    expected = make_run(path, None, 40, close=True)
    for name in ("observation", "reward", "terminated"):
        command = [tool, "-d", f"/steps/{name}", "-y", "-w", "0", "-m", "%.9g", str(path)]
        environment = {**os.environ, "HDF5_PLUGIN_PATH": "/none"}
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert shown.stderr == ""
        data = shown.stdout.split("DATA {")[1].split("}")[0].replace("TRUE", "1").replace("FALSE", "0")
        printed = np.array(data.replace(",", " ").split(), np.float64)
        np.testing.assert_array_equal(printed.astype(expected[name].dtype), expected[name].reshape(-1))


# --- small structures, byte for byte

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
U16, U32, U64 = (st.integers(0, (1 << bits) - 1) for bits in (16, 32, 64))
I64 = st.integers(0, (1 << 63) - 1)


@given(st.sampled_from([Block.SCHEMA, Block.REWIND]), st.dictionaries(st.text(), JSON, max_size=4), st.binary())
def test_block(kind: int, values: dict[str, Any], before: bytes) -> None:
    block = Block(kind, values)
    data = block.pack()
    assert Block.parse(before + data + b"more", len(before)) == block
    assert Block.find(before + data, kind) in (block, Block.find(before, kind))
    assert next(reader.blocks(data, kind)) == values
    assert Block.parse(data[:-1]) is None
    assert Block.parse(data[:-1] + bytes([data[-1] ^ 1])) is None


@given(st.builds(Trailer, st.binary(min_size=8, max_size=8), U32, U16, U32, U32, U64, U32, U32), st.binary())
def test_trailer(trailer: Trailer, stream: bytes) -> None:
    trailer = trailer._replace(packed=len(stream))
    data = trailer.pack(stream, trailer.raw)
    assert len(data) == SIZE == 48
    found = Trailer.parse(data)
    assert found is not None
    assert found._replace(check=trailer.check) == trailer
    run_id, epoch, field, env, *others, _ = trailer
    assert reader.TRAILER.unpack(data)[:-1] == (b"RLAT", run_id, epoch, field, 0, env, *others)
    assert Trailer.parse(b"X" + data[1:]) is None


@st.composite
def records(draw: st.DrawFn) -> Record:
    """Return any record."""
    envs, fields = draw(st.integers(1, 5)), draw(st.integers(1, 4))

    def array(values: st.SearchStrategy[int], dtype: str, *shape: int) -> np.ndarray[Any, Any]:
        count = int(np.prod(shape))
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype).reshape(shape)

    return Record(
        sequence=draw(U64),
        epoch=draw(U32),
        rows=array(I64, "i8", envs),
        states=array(st.integers(0, 2), "u1", envs),
        episodes=draw(I64),
        tail_offset=array(I64, "i8", fields),
        tail_slot=array(st.integers(0, 1), "u1", fields, envs),
        tail_check=array(U32, "u4", fields, envs),
        in_fields=draw(st.booleans()),
        synced=draw(st.booleans()),
        end=draw(I64),
        journal_offset=draw(I64),
        journal_length=draw(I64),
        journal_check=draw(U32),
        slots=tuple(draw(st.lists(st.builds(Slot, U64, U64, U32, U64, U32), max_size=4))),
    )


@given(records(), st.binary(max_size=20))
def test_record(record: Record, behind: bytes) -> None:
    data = record.pack()
    found = Record.parse(data + behind)
    assert found is not None
    assert found.pack() == data
    parsed = reader.parse_record(data + behind)
    assert parsed is not None
    for name, value in {"sequence": record.sequence, "epoch": record.epoch, "end": record.end}.items():
        assert parsed[name] == value
    assert parsed["flags"] == record.in_fields + 2 * record.synced
    for name in ("rows", "states", "tail offset", "tail slot", "tail check"):
        np.testing.assert_array_equal(parsed[name], getattr(record, name.replace(" ", "_")))
    assert parsed["slots"] == [dataclasses.astuple(slot) for slot in record.slots]


@given(records(), st.data())
def test_record_with_a_flipped_bit_is_none(record: Record, data: st.DataObject) -> None:
    damaged = bytearray(record.pack())
    bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
    damaged[bit // 8] ^= 1 << bit % 8
    assert Record.parse(bytes(damaged)) is None
    assert reader.parse_record(bytes(damaged)) is None


@given(U64, I64)
def test_mark_and_places(sequence: int, offset: int) -> None:
    region = Region(offset, 512 * 3)
    assert region.nbytes == 4 * region.room + 512
    assert region.mark_offset == offset + 4 * region.room
    first = offset + (2 * region.room if sequence % 2 else 0)
    assert region.copies(sequence) == (first, first + region.room)
    data = bytes(4 * region.room) + region.mark(sequence)
    assert region.parse(data) == (None, sequence)
    assert region.mark(sequence)[:12] == b"RLAM" + struct.pack("<Q", sequence)


def test_newest_record_wins() -> None:
    """The highest epoch counts first, then the highest sequence number; one whole copy is enough."""
    region = Region(0, 512)
    ints, bytes_, checks = np.zeros(1, "i8"), np.zeros(1, "u1"), np.zeros((1, 1), "u4")
    older = Record(4, 2, ints, bytes_, 0, ints, bytes_.reshape(1, 1), checks)
    newer = dataclasses.replace(older, sequence=3, epoch=3)
    image = bytearray(region.nbytes)
    for record in (older, newer):
        at = region.copies(record.sequence)[1]
        image[at : at + len(record.pack())] = record.pack()
    found, applied = region.parse(bytes(image))
    assert found is not None
    assert (found.epoch, found.sequence, applied) == (3, 3, 0)
