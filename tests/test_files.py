"""Files: codecs, what viewers find in them, statistics, and the acceptance sentences about sizes and resuming."""

from __future__ import annotations

import math
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import archive

Array = np.ndarray[Any, Any]
Fresh = Callable[..., list[str]]
CODECS = ["gzip", "zstd", "lz4", "none"]
FILTERS = {"gzip": 1, "zstd": 32015, "lz4": 32004, "none": 1}
SHUFFLE, FLETCHER32 = 2, 3


def same_bytes(a: Any, b: Any) -> bool:
    """Tell whether two arrays have the same dtype, shape and bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# --- codecs

FIELDS = {
    "observation/pixels": ("uint8", (12, 12)),
    "observation/place": (">f8", (3,)),
    "action": ("int64", ()),
    "noise": ("uint8", (40,)),  # does not shrink
    "word": ("S5", ()),
    "half": ("float16", (2, 2)),
    "empty": ("float32", (0,)),
}


def values(rows: int, first: int = 0) -> dict[str, Array]:
    """Return rows of every field: some shrink well, some not at all."""
    rng = np.random.default_rng(first)
    row = np.arange(first, first + rows)
    return {
        "observation/pixels": np.broadcast_to((row % 11).astype(np.uint8)[:, None, None], (rows, 12, 12)).copy(),
        "observation/place": rng.random((rows, 3)).astype(">f8"),
        "action": row % 4,
        "noise": rng.integers(0, 256, (rows, 40), np.uint8),
        "word": np.array([f"w{k % 90}" for k in row], "S5"),
        "half": rng.integers(-9, 9, (rows, 2, 2)).astype(np.float16),
        "empty": np.zeros((rows, 0), np.float32),
        "reward": (row % 3).astype(np.float32),
        "truncated": row % 100 == 99,
    }


def make(
    path: Path, rows: int = 2500, compression: Any = "gzip", each: dict[str, str] | None = None
) -> dict[str, Array]:
    """Record rows that fill several chunks of every field and begin another; return them."""
    given = values(rows)
    fields = {name: archive.Field(*kind, compression=(each or {}).get(name)) for name, kind in FIELDS.items()}
    with archive.create(path, archive.Schema(fields), compression=compression) as run:
        run.extend(given)
    return given


def filters(dataset: h5py.Dataset) -> list[tuple[int, tuple[int, ...]]]:
    """Return the numbers of a dataset's filters and their options, in order."""
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(k) for k in range(plist.get_nfilters())]
    return [(number, options) for number, _, options, _ in found]


def check_filters(dataset: h5py.Dataset, codec: str) -> None:
    found = filters(dataset)
    assert found.pop()[0] == FLETCHER32
    number, options = found.pop()
    assert number == FILTERS[codec]
    if number == FILTERS["gzip"]:
        assert (options[0] == 0) == (codec == "none")
    assert [number for number, _ in found] == ([SHUFFLE] if dataset.dtype.itemsize > 1 else [])


@pytest.mark.parametrize("codec", CODECS)
def test_other_readers_find_the_same_values(path: Path, codec: str) -> None:
    """h5py, with the filters of hdf5plugin; those of gzip and none are HDF5's own."""
    pytest.importorskip("hdf5plugin")
    given = make(path, compression=codec)
    with h5py.File(path) as file:
        for name, expected in given.items():
            dataset = file[f"steps/{name}"]
            assert same_bytes(dataset[()].astype(expected.dtype), expected), name
            check_filters(dataset, codec)
            if expected.size:
                assert all(dataset.id.get_chunk_info(k).filter_mask == 0 for k in range(dataset.id.get_num_chunks()))
        needed = file.attrs["required_filters"].decode().split()
        assert ("32015" in " ".join(needed), "32004" in " ".join(needed)) == (codec == "zstd", codec == "lz4")


@pytest.mark.parametrize("codec", CODECS)
def test_the_package_reads_the_same_and_goes_on(path: Path, codec: str) -> None:
    given = make(path, compression=codec)
    for mode in ("r", "a"):
        with archive.open(path, mode, memory="4 MiB") as run:
            for name, expected in given.items():
                assert same_bytes(run[name][:], expected), name
            row = np.array([k for k in range(0, 2400, 7) if k % 100 != 99])  # 99: truncated, its successor unknown
            batch = run.replay(stack=2).gather(row)
            assert same_bytes(batch.observation["place"][:, 1], given["observation/place"][row])
            assert same_bytes(batch["noise"], given["noise"][row])
    more = values(3000, 2500)
    with archive.open(path, "a") as run:
        run.extend(more)
    with archive.open(path) as run, h5py.File(path) as file:
        for name in given:
            whole = np.concatenate([given[name], more[name]]).astype(given[name].dtype)
            assert same_bytes(run[name][:], whole), name
            assert same_bytes(file[f"steps/{name}"][()].astype(whole.dtype), whole), name


def test_codecs_shrink_what_can_be_shrunk(tmp_path: Path) -> None:
    sizes = {}
    for codec in CODECS:
        make(tmp_path / f"{codec}.h5", 20_000, compression=codec)
        with h5py.File(tmp_path / f"{codec}.h5") as file:
            names = ("observation/pixels", "noise", "action")
            sizes[codec] = {name: file[f"steps/{name}"].id.get_storage_size() for name in names}
    raw = {"observation/pixels": 20_000 * 144, "noise": 20_000 * 40, "action": 20_000 * 8}
    for name, whole in raw.items():
        assert sizes["none"][name] >= whole
        for codec in ("gzip", "zstd", "lz4"):
            most = 1.03 if name == "noise" else 0.2
            assert sizes[codec][name] <= most * whole, (codec, name)


@pytest.mark.parametrize("whole", CODECS)
def test_each_field_may_have_a_codec_of_its_own(path: Path, whole: str) -> None:
    pytest.importorskip("hdf5plugin")
    each = {"observation/pixels": "zstd", "noise": "none", "action": "lz4", "half": "gzip"}
    given = make(path, compression=whole, each=each)
    with h5py.File(path) as file:
        for name, expected in given.items():
            assert same_bytes(file[f"steps/{name}"][()].astype(expected.dtype), expected), name
            check_filters(file[f"steps/{name}"], each.get(name, whole))
        assert {"32015", "32004"} <= set(
            file.attrs["required_filters"].decode().replace("(", " ").replace(")", " ").split()
        )
    with archive.open(path) as run:
        assert run.schema.steps["action"].compression == "lz4"
        for name, expected in given.items():
            assert same_bytes(run[name][:], expected), name


@pytest.mark.parametrize("codec", ["zip", "", "GZIP", None, 5])
def test_unknown_codecs_are_refused(path: Path, codec: Any) -> None:
    schema = archive.Schema({"observation": archive.Field("u1"), "action": archive.Field("u1")})
    with pytest.raises(archive.SchemaError, match="compression"):
        archive.create(path, schema, compression=codec)
    assert not list(path.parent.iterdir()) or codec is None
    if codec is not None:  # None: as the file's
        with pytest.raises(archive.SchemaError, match="compression"):
            archive.Field("u1", compression=codec)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["observation/pixels", "noise"])
@pytest.mark.parametrize("where", ["head", "middle", "trailer", "checksum"])
def test_damage_is_noticed(path: Path, codec: str, name: str, where: str) -> None:
    """One flipped bit anywhere in a chunk: ours names field and row, HDF5 notices it too; other chunks are whole."""
    pytest.importorskip("hdf5plugin")
    given = make(path, compression=codec)
    with h5py.File(path) as file:
        dataset = file[f"steps/{name}"]
        info, rows = dataset.id.get_chunk_info(1), dataset.chunks[0]
        assert info.chunk_offset[0] == rows
    places = {"head": 1, "middle": info.size // 3, "trailer": info.size - 20, "checksum": info.size - 2}
    with path.open("r+b") as file:
        file.seek(info.byte_offset + places[where])
        byte = file.read(1)
        file.seek(info.byte_offset + places[where])
        file.write(bytes([byte[0] ^ 0x10]))
    with archive.open(path) as run:
        assert same_bytes(run[name][:rows], given[name][:rows])
        with pytest.raises(archive.DamagedError, match=f"{name}.*{rows}"):
            run[name][rows]
        with pytest.raises(archive.DamagedError, match=name):
            run.replay().gather([rows])
        assert same_bytes(run["action"][:], given["action"])
    with h5py.File(path) as file, pytest.raises(OSError, match=r"[Cc]hecksum|filter|read"):
        file[f"steps/{name}"][rows]


def test_a_file_of_any_codec_is_read_by_a_process_without_other_imports(tmp_path: Path, fresh_process: Fresh) -> None:
    for codec in CODECS:
        make(tmp_path / f"{codec}.h5", compression=codec)
    found = fresh_process(digest, *(tmp_path / f"{codec}.h5" for codec in CODECS))
    assert len(found) == len(CODECS)
    assert len(set(found)) == 1
    assert found[0] == digest(tmp_path / "none.h5")[0]


def digest(*paths: Any) -> list[str]:
    """Return a digest of everything that each run holds."""
    import hashlib

    found = []
    for path in paths:
        sha = hashlib.sha256()
        with archive.open(path) as run:
            for name in run.schema.steps:
                for first in range(0, run.num_rows, 500):
                    sha.update(run[name][first : first + 500].tobytes())
        found.append(sha.hexdigest())
    return found


# --- what viewers find


def played(path: Path, steps: int, shape: tuple[int, ...] = (6, 5), envs: int | None = 3, **fields: Any) -> archive.Run:
    """Return an open run whose pixels all hold the number of their frame; environment e is reset e times more."""
    known = {"observation": archive.Field("uint8", shape), "action": archive.Field("int64"), **fields}
    run = archive.create(path, archive.Schema(known), num_envs=envs, commit_every=None)
    play(run, steps)
    return run


def play(run: archive.Run, steps: int) -> None:
    lead = () if run.schema.num_envs is None else (run.num_envs,)
    shape = run.schema.steps["observation"].shape
    no = np.zeros(lead, bool)
    run.reset(np.full((*lead, *shape), 1, np.uint8))
    for again in range(1, run.num_envs):
        run.reset(np.full((*lead, *shape), 1, np.uint8), mask=np.arange(run.num_envs) >= again)
    for k in range(steps):
        run.step(np.zeros(lead, int), np.full((*lead, *shape), k % 250 + 2, np.uint8), np.ones(lead), no, no)


def text_of(attribute: Any) -> str:
    return attribute.decode() if isinstance(attribute, bytes) else str(attribute)


@pytest.mark.parametrize("envs", [None, 3])
def test_nexus_attributes_lead_to_the_return_curve(path: Path, envs: int | None) -> None:
    with played(path, 40, envs=envs) as run:
        run.end_episode()
        returns = run.episodes["return"]
    with h5py.File(path) as file:
        assert text_of(file.attrs["NX_class"]) == "NXroot"
        group = file[text_of(file.attrs["default"])]
        assert group.name == "/episodes"
        assert text_of(group.attrs["NX_class"]) == "NXdata"
        signal, axis = group[text_of(group.attrs["signal"])], group[text_of(group.attrs["axes"])]
        assert signal.name == "/episodes/return"
        np.testing.assert_array_equal(signal[()], returns)
        assert (signal.ndim, axis.shape) == (1, signal.shape)
        assert np.isfinite(axis[()]).all()


@pytest.mark.parametrize(
    ("shape", "subclass"),
    [((6, 5), "IMAGE_GRAYSCALE"), ((6, 5, 3), "IMAGE_TRUECOLOR"), ((3, 6, 5), None)],
)
@pytest.mark.parametrize("envs", [1, 3])
def test_every_environment_has_its_frames_as_pictures(path: Path, shape: Any, subclass: str | None, envs: int) -> None:
    """Also after reopening, appending and closing again; not stored twice, and in the same file."""
    played(path, 40, shape, envs).close()
    check_views(path, shape, subclass, envs, 41)
    with archive.open(path, "a") as run:
        play(run, 30)
    check_views(path, shape, subclass, envs, 41 + 31)
    with archive.open(path, "a"):
        pass
    check_views(path, shape, subclass, envs, 41 + 31)


def check_views(path: Path, shape: Any, subclass: str | None, envs: int, rows: int) -> None:
    with archive.open(path) as run, h5py.File(path) as file:
        assert len(file["views"]) == envs
        for env in range(envs):
            view = file[f"views/env_{env:04d}/observation"]
            more = env * (2 if rows > 41 else 1)  # its resets, in each sitting
            assert view.shape == (rows + more, *shape)
            assert same_bytes(view[()], run["observation"][: rows + more, env])
            assert view[()].any(axis=tuple(range(1, view.ndim))).all()
            assert view.is_virtual
            assert {source.file_name for source in view.virtual_sources()} == {"."}
            found = {name: text_of(value) for name, value in view.attrs.items()}
            assert found.get("IMAGE_SUBCLASS") == subclass
            assert found.get("CLASS") == (None if subclass is None else "IMAGE")


def test_only_frames_have_views(path: Path) -> None:
    fields = {
        "observation/camera": archive.Field("uint8", (4, 4)),
        "observation/joints": archive.Field("float32", (2,)),
    }
    schema = archive.Schema({**fields, "action": archive.Field("uint8", (8, 8))}, num_envs=2)
    with archive.create(path, schema) as run:
        run.reset({"camera": np.ones((2, 4, 4), np.uint8), "joints": np.zeros((2, 2))})
    names: list[str] = []
    with h5py.File(path) as file:
        file["views"].visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
    assert names == ["env_0000/observation/camera", "env_0001/observation/camera"]


def test_views_of_environments_without_rows(path: Path) -> None:
    """An environment that was never reset has a view of no frames; a run without rows closes and opens as ever."""
    schema = archive.Schema(
        {"observation": archive.Field("uint8", (4, 4)), "action": archive.Field("int64")}, num_envs=2
    )
    archive.create(path, schema).close()
    with archive.open(path, "a") as run:
        run.reset(np.ones((2, 4, 4), np.uint8), mask=np.array([True, False]))
    with h5py.File(path) as file:
        shapes = [file[f"views/env_000{env}/observation"].shape for env in range(2)]
    assert shapes == [(1, 4, 4), (0, 4, 4)]
    with archive.open(path) as run:
        assert run.lengths.tolist() == [1, 0]


def tiles(sheet: Array, height: int, width: int) -> Array:
    """Return the tiles of a contact sheet in reading order."""
    down, across = sheet.shape[0] // height, sheet.shape[1] // width
    assert sheet.shape == (down * height, across * width, 3)
    return sheet.reshape(down, height, across, width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)


@pytest.mark.parametrize("envs", [None, 3])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1), (6, 5, 3), (3, 6, 5), (1, 6, 5)])
def test_a_contact_sheet_shows_frames_from_first_to_last(path: Path, shape: Any, envs: int | None) -> None:
    """Each frame has one colour, its number: row k of the longest environment holds k + 1, after its resets."""
    played(path, 60, shape, envs).close()
    check_sheet(path, 61)
    with archive.open(path, "a") as run:
        play(run, 180)
    check_sheet(path, 181)


def check_sheet(path: Path, last: int) -> None:
    with h5py.File(path) as file:
        sheet = file["preview/contact_sheet"]
        assert sheet.dtype == np.uint8
        attributes = {name: text_of(value) for name, value in sheet.attrs.items()}
        expected = {"CLASS": "IMAGE", "IMAGE_SUBCLASS": "IMAGE_TRUECOLOR", "INTERLACE_MODE": "INTERLACE_PIXEL"}
        assert expected.items() <= attributes.items()
        found = tiles(sheet[()], 6, 5)
    number = found[:, 0, 0, 0].astype(int)
    assert (found == number[:, None, None, None]).all()
    assert len(number) >= 9
    assert (number[0], number[-1]) == (1, last)
    assert len(set(number.tolist())) > 0.8 * len(number)


def test_a_contact_sheet_shows_the_longest_environment(path: Path) -> None:
    schema = archive.Schema(
        {"observation": archive.Field("uint8", (6, 5)), "action": archive.Field("int64")}, num_envs=3
    )
    with archive.create(path, schema) as run:
        for number, envs in ((50, [True, True, True]), (60, [False, True, False]), (70, [False, True, False])):
            run.reset(np.full((3, 6, 5), number, np.uint8), mask=np.array(envs))
    with h5py.File(path) as file:
        found = tiles(file["preview/contact_sheet"][()], 6, 5)[:, 0, 0, 0].tolist()
    assert set(found) == {50, 60, 70}
    assert found == sorted(found)


def test_a_contact_sheet_shows_colours_where_they_are(path: Path) -> None:
    for name, axis in (("last", 2), ("first", 0)):
        place = path.with_name(f"{name}.h5")
        picture = np.stack([np.full((6, 5), 10), np.arange(30).reshape(6, 5), np.full((6, 5), 200)], axis)
        shape = picture.shape
        schema = archive.Schema({"observation": archive.Field("uint8", shape), "action": archive.Field("int64")})
        with archive.create(place, schema) as run:
            run.reset(picture)
        with h5py.File(place) as file:
            for tile in tiles(file["preview/contact_sheet"][()], 6, 5):
                np.testing.assert_array_equal(tile, np.moveaxis(picture, axis, 2))


def test_runs_without_frames_have_no_preview(path: Path) -> None:
    schema = archive.Schema({"observation": archive.Field("float32", (8, 8)), "action": archive.Field("uint8", (8, 8))})
    with archive.create(path, schema) as run:
        run.reset(np.zeros((8, 8)))
    with h5py.File(path) as file:
        assert "preview" not in file or not len(file["preview"])


def test_closing_again_and_again_does_not_grow_the_file(path: Path) -> None:
    """Views and contact sheet are written anew each time."""
    played(path, 40).close()
    for _ in range(3):
        archive.open(path, "a").close()
    size = path.stat().st_size
    for _ in range(10):
        archive.open(path, "a").close()
    assert path.stat().st_size <= size + 10 * 4096


# --- statistics


def check_stats(found: dict[str, Any], rows: Array, digits: float = 1e-9) -> None:
    """Compare with numpy in float64 over all rows."""
    wide = rows.astype(np.float64)
    assert found["count"] == len(rows)
    np.testing.assert_allclose(found["mean"], wide.mean(axis=0), digits, 1e-12)
    np.testing.assert_allclose(found["std"], wide.std(axis=0), digits, 1e-12)
    np.testing.assert_array_equal(found["min"], rows.min(axis=0))
    np.testing.assert_array_equal(found["max"], rows.max(axis=0))
    assert np.shape(found["mean"]) == np.shape(found["std"]) == np.shape(found["min"]) == rows.shape[1:]


def in_episodes(run: archive.Run, name: str) -> Array:
    """Return all rows of a field that lie in episodes."""
    top, *keys = name.split("/")
    found = []
    for number in range(run.num_episodes):
        value = run.episode(number)[top]
        for key in keys:
            value = value[key]
        found.append(value)
    return np.concatenate(found)


@pytest.mark.parametrize("envs", [None, 3])
def test_stats_are_those_of_numpy(path: Path, envs: int | None) -> None:
    """Final observations count, and nothing of rows that hold no action does. Also what was appended meanwhile."""
    rng = np.random.default_rng(0)
    kinds = {"observation/a": "float32", "observation/b": ">i2", "action": "uint8", "flag": "bool", "half": "float16"}
    fields = {name: archive.Field(kind, (2, 2) if name == "observation/a" else ()) for name, kind in kinds.items()}
    lead = () if envs is None else (envs,)

    def seen() -> Any:
        return {"a": rng.normal(5, 3, (*lead, 2, 2)), "b": rng.integers(-30000, 30000, lead)}

    with archive.create(path, archive.Schema(fields), num_envs=envs, autoreset="NextStep" if envs else None) as run:
        run.reset(seen())
        for k in range(1500):
            ends = rng.random(lead) < 0.05
            more = {"flag": rng.random(lead) < 0.3, "half": rng.normal(0, 1, lead).astype(np.float16)}
            run.step(rng.integers(0, 255, lead), seen(), rng.normal(0, 1, lead), ends, np.zeros(lead, bool), **more)
            if envs is None and ends:
                run.reset(seen())
            if k in (0, 700):
                check_stats(run.stats(["observation/a"])["observation/a"], in_episodes(run, "observation/a"))
        names = [*kinds, "reward"]
        assert set(run.stats()) == {"observation/a", "observation/b", "action", "reward"}
        for name, found in run.stats(names).items():
            check_stats(found, in_episodes(run, name))
        live = run.stats(names)
    with archive.open(path) as run:
        for name, found in run.stats(names).items():
            for key, value in found.items():
                np.testing.assert_allclose(value, live[name][key], 1e-12)


@pytest.mark.parametrize(("offset", "digits"), [(0.0, 1e-12), (1e8, 1e-7), (-1e12, 1e-4)])
def test_stats_of_small_changes_on_a_large_offset(path: Path, offset: float, digits: float) -> None:
    """The mean of squares less the square of the mean would have no digit left."""
    rng = np.random.default_rng(0)
    rows = offset + rng.normal(0, 1, (200_000, 8))  # more than a block
    schema = archive.Schema({"observation": archive.Field("float64", (8,)), "action": archive.Field("uint8")})
    with archive.create(path, schema, memory="4 MiB") as run:
        run.extend({"observation": rows, "action": np.zeros(len(rows), int), "reward": np.zeros(len(rows))})
        found = run.stats(["observation"])["observation"]
    exact = (rows - offset).std(axis=0, dtype=np.longdouble)
    np.testing.assert_allclose(found["std"], exact.astype(float), digits)
    np.testing.assert_allclose(found["mean"], offset + (rows - offset).mean(axis=0), 1e-13, 1e-12)


def test_stats_of_what_is_no_number(path: Path) -> None:
    schema = archive.Schema({"observation": archive.Field("float64", (4,)), "action": archive.Field("int64")})
    rows = np.array([[1, np.nan, np.inf, 1e200], [2, 3, 4, -1e200], [3, 5, -np.inf, 0.0]])
    with archive.create(path, schema) as run:
        run.extend({"observation": rows, "action": np.array([2**62, -(2**62), 1]), "reward": np.zeros(3)})
        found = run.stats()
    np.testing.assert_array_equal(found["observation"]["mean"][:3], [2.0, np.nan, np.nan])
    np.testing.assert_allclose(found["observation"]["std"][0], rows[:, 0].std())
    assert np.isnan(found["observation"]["std"][1:3]).all()
    np.testing.assert_array_equal(found["observation"]["max"], rows.max(axis=0))
    np.testing.assert_array_equal(found["observation"]["min"], rows.min(axis=0))
    assert (found["action"]["min"], found["action"]["max"]) == (-(2**62), 2**62)


def test_stats_of_nothing(path: Path) -> None:
    schema = archive.Schema({"observation": archive.Field("uint8", (2,)), "action": archive.Field("int64")})
    with archive.create(path, schema) as run:
        found = run.stats()["reward"]
        assert found["count"] == 0
        assert found["mean"] is None or np.isnan(found["mean"])
        assert found["std"] is None or np.isnan(found["std"])
        run.reset(np.array([3, 4]))
        found = run.stats()
        assert found["observation"]["mean"].tolist() == [3, 4]
        assert (found["observation"]["count"], found["reward"]["count"]) == (1, 0)
        assert run.stats([]) == {}


def test_rows_given_up_are_not_counted_and_hidden_ones_are(path: Path) -> None:
    schema = archive.Schema({"observation": archive.Field("float64"), "action": archive.Field("int64")})
    with archive.create(path, schema) as run:
        run.reset(1.0)
        run.step(0, 2.0, 10.0, True, False)
        run.checkpoint()
        run.reset(100.0)
        run.step(0, 200.0, 1000.0, True, False)
        run.rewind(run.last_checkpoint)
        run.reset(3.0)
        run.annotate(0, hidden=True)
        found = run.stats()
    assert (found["observation"]["mean"], found["observation"]["count"]) == (2.0, 3)
    assert (found["reward"]["max"], found["reward"]["count"]) == (10.0, 1)


@pytest.mark.parametrize("name", ["speed", "word", "complex", "observation/x"])
def test_stats_of_fields_that_have_none_are_refused_by_name(path: Path, name: str) -> None:
    fields = {"word": archive.Text(4), "complex": archive.Field("complex64")}
    schema = archive.Schema({"observation": archive.Field("uint8"), "action": archive.Field("int64"), **fields})
    with archive.create(path, schema) as run, pytest.raises(archive.UnknownFieldError, match=name):
        run.stats([name])


def test_stats_take_the_same_memory_for_twice_the_rows(path: Path) -> None:
    peaks = []
    schema = archive.Schema({"observation": archive.Field("uint8", (64, 64)), "action": archive.Field("uint8")})
    with archive.create(path, schema, memory="4 MiB") as run:
        rows = np.random.default_rng(0).integers(0, 4, (3000, 64, 64), np.uint8)
        for _ in range(2):
            run.extend({"observation": rows, "action": np.zeros(3000, int), "reward": np.zeros(3000)})
            tracemalloc.start()
            run.stats(["observation"])
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


# --- S1: PlaNet's memory

PIXELS = (3, 64, 64)


def extend_in_blocks(run: archive.Run, blocks: Iterator[Array]) -> int:
    """Append rows of observations block by block; return their bytes."""
    raw = 0
    for block in blocks:
        run.extend({"observation": block, "action": np.zeros(len(block), int), "reward": np.zeros(len(block))})
        raw += block.nbytes
    return raw


def whole_digest(path: str) -> list[str]:
    """Return rows, dtype and a digest of every byte of the observations."""
    import hashlib

    sha = hashlib.sha256()
    with archive.open(path) as run:
        rows, dtype = run.num_rows, run["observation"].dtype
        for first in range(0, rows, 100):
            sha.update(run["observation"][first : first + 100].tobytes())
    return [str(rows), dtype.str, sha.hexdigest()]


def observations(path: Path, dtype: str, shape: tuple[int, ...], blocks: Iterator[Array]) -> int:
    """Record observations and return their bytes."""
    schema = archive.Schema({"observation": archive.Field(dtype, shape), "action": archive.Field("uint8")})
    with archive.create(path, schema) as run:
        return extend_in_blocks(run, blocks)


def test_s1a_zeros(path: Path, fresh_process: Fresh) -> None:
    """10,000 frames of zeros, 122,880,000 B, take at most 1 MB and read back byte-equal in a new process."""
    import hashlib

    raw = observations(path, "uint8", PIXELS, (np.zeros((500, *PIXELS), np.uint8) for _ in range(20)))
    assert raw == 122_880_000
    assert path.stat().st_size <= 1_000_000
    zeros = hashlib.sha256(bytes(raw)).hexdigest()
    assert fresh_process(whole_digest, path) == ["10000", "|u1", zeros]


def test_s1b_random(path: Path, fresh_process: Fresh) -> None:
    """500 rows of random float64 take at most 0.96 of their bytes, and every byte comes back."""
    import hashlib

    rows = np.random.default_rng(0).random((500, *PIXELS))
    raw = observations(path, "float64", PIXELS, iter(np.split(rows, 5)))
    assert path.stat().st_size <= 0.96 * raw
    assert fresh_process(whole_digest, path) == ["500", "<f8", hashlib.sha256(rows.tobytes()).hexdigest()]


def test_s1d_quantised_noise(path: Path) -> None:
    """The worst case of PlaNet's 5 bits: at most 0.67 of the bytes with the default codec."""
    rng = np.random.default_rng(0)
    raw = observations(path, "uint8", PIXELS, (rng.integers(0, 32, (250, *PIXELS), np.uint8) << 3 for _ in range(8)))
    assert path.stat().st_size <= 0.67 * raw


def rendered(rows: int) -> Array:
    """Return frames as a control suite renders them: a smooth background, a checkered floor, moving shapes, 5 bits."""
    y, x = np.mgrid[0:64, 0:64]
    floor = ((x // 8 + y // 8) % 2 * 24 + 64) * (y > 40)
    sky = (120 + y) * (y <= 40)
    frames = np.empty((rows, *PIXELS), np.uint8)
    for k in range(rows):
        joint = np.array([32 + 20 * math.sin(k / 9), 30 + 9 * math.cos(k / 7)])
        foot = joint + 12 * np.array([math.sin(k / 5), math.cos(k / 5)])
        along = np.clip(((x - joint[0]) * (foot - joint)[0] + (y - joint[1]) * (foot - joint)[1]) / 144, 0, 1)
        near = np.hypot(x - joint[0] - along * (foot - joint)[0], y - joint[1] - along * (foot - joint)[1])
        shade = np.clip(200 - 12 * near, 0, 255)
        for channel, light in enumerate((1.0, 0.8, 0.5)):
            frames[k, channel] = np.where(near < 5, shade * light, (sky + floor) * (1.2 - light / 2))
    return frames & 0xF8


def test_s1d_rendered_frames(path: Path) -> None:
    """Smooth background, moving shapes: at most 0.25 of the bytes."""
    frames = rendered(1000)
    assert len(np.unique(frames[::50].reshape(20, -1), axis=0)) == 20
    raw = observations(path, "uint8", PIXELS, iter(np.split(frames, 4)))
    assert path.stat().st_size <= 0.25 * raw


def frame_of(number):  # type: ignore[no-untyped-def]
    """Return a frame made from its number; no two are equal."""
    return (np.arange(12288, dtype=np.uint32) * (2 * number + 1) >> 9).astype(np.uint8).reshape(3, 64, 64) & 0xF8


def add_one_by_one(path: str) -> list[str]:
    """Add 12,000 frames with a replay of capacity 50,000 open; return the peak of resident memory in bytes."""
    schema = archive.Schema(
        {"observation": archive.Field("uint8", (3, 64, 64)), "action": archive.Field("float32", (2,))}
    )
    with archive.create(path, schema, memory="64 MiB") as run:
        replay = run.replay(capacity=50_000, sequence_length=8)
        now = frame_of(0)
        for k in range(12_000):
            after = frame_of(k + 1)
            run.add(now, np.full(2, k), k, after, False, k % 500 == 499)
            now = after
            if k % 1000 == 999:
                replay.sample(50)
    return [str(peak_memory())]


def peak_memory() -> int:
    """Return the peak of resident memory; Linux's getrusage would count what the parent had before exec as well."""
    import sys

    try:
        with open("/proc/self/status") as file:
            return int(next(line for line in file if line.startswith("VmHWM:")).split()[1]) * 1024
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def sample_again(path: str) -> list[str]:
    """Sample 100 of the first 10,000 steps and compare them with what was added."""
    with archive.open(path, memory="64 MiB") as run:
        assert run.num_steps == 12_000
        step = np.random.default_rng(7).integers(0, 10_000, 100)
        batch = run.replay(capacity=50_000).gather(step + step // 500)  # every 500 steps a final observation
        for k, number in enumerate(step.tolist()):
            assert (batch.observation[k] == frame_of(number)).all()
            assert (batch.next_observation[k] == frame_of(number + 1)).all()
        assert (batch.reward == step).all()
        assert batch.observation.any()
    return ["equal"]


def test_s1e_ring(path: Path, fresh_process: Fresh) -> None:
    """Adding one by one keeps resident memory under 512 MB and the cache; a new process samples the same bytes."""
    pytest.importorskip("resource")
    (peak,) = fresh_process(add_one_by_one, path, uses=[frame_of, peak_memory])
    assert int(peak) <= 512_000_000 + (64 << 20)
    assert fresh_process(sample_again, path, uses=[frame_of]) == ["equal"]


def planet(path: str) -> list[str]:
    """Train by PlaNet's rules; save after an episode, keep the file as it is then, and return what follows."""
    import shutil

    schema = archive.Schema(
        {"observation": archive.Field("uint8", (3, 4, 4)), "action": archive.Field("float32", (2,))}
    )
    with archive.create(path, schema, commit_every=None) as run:
        rng = np.random.default_rng(3)
        collect(run, 0, 5, rng)
        replay = run.replay(
            batch_size=50,
            capacity=1500,
            sequence_length=50,
            time_major=True,
            within_episode=False,
            cast={"observation": "float32"},
            seed=11,
        )
        train(replay, 10, rng)
        run.checkpoint(replay=replay.state_dict(), rng=rng, episode=5)
        shutil.copy(path, path + ".saved")
        return go_on(run, replay, rng)


def planet_resumed(path: str) -> list[str]:
    with archive.open(path + ".saved", "a", commit_every=None) as run:
        last = run.last_checkpoint
        assert last["episode"] == 5
        return go_on(run, run.replay(state=last["replay"]), last["rng"])


def collect(run, first, episodes, rng):  # type: ignore[no-untyped-def]
    """Append episodes of 200 steps that end on the time limit."""
    for number in range(first, first + episodes):
        run.reset(rng.integers(0, 32, (3, 4, 4)).astype(np.uint8) << 3)
        for k in range(200):
            frame = rng.integers(0, 32, (3, 4, 4)).astype(np.uint8) << 3
            run.step(rng.random(2), frame, number + k / 256, False, k == 199)


def train(replay, batches, rng):  # type: ignore[no-untyped-def]
    """Draw batches and return their ids and bytes as digests, with PlaNet's noise added."""
    import hashlib

    found = []
    for _ in range(batches):
        batch = replay.sample()
        pixels = np.floor(batch.observation / 8) / 32 - 0.5 + rng.random(batch.observation.shape) / 32
        sha = hashlib.sha256(batch.index.tobytes() + batch.observation.tobytes() + pixels.tobytes())
        for name in ("action", "reward", "discount", "mask", "is_first"):
            sha.update(batch[name].tobytes())
        assert batch.observation.shape == (50, 50, 3, 4, 4)
        found.append(sha.hexdigest())
    return found


def go_on(run, replay, rng):  # type: ignore[no-untyped-def]
    """Return the next 100 batches, with episodes collected in between."""
    found = []
    for episode in range(5, 10):
        found += train(replay, 20, rng)
        collect(run, episode, 1, rng)
    return found


def test_s1g_resume(path: Path, fresh_process: Fresh) -> None:
    """Saved after an episode and resumed in a new process: the next 100 batches have the same starts and bytes."""
    uses = (collect, train, go_on)
    expected = fresh_process(planet, path, uses=uses)
    assert len(set(expected)) == 100
    assert fresh_process(planet_resumed, path, uses=uses) == expected


# --- S2: rlpyt's buffer

PONG = (104, 80)


def pong_schema(envs: int) -> archive.Schema:
    field = archive.Field("uint8", PONG, stacked=4, padding="zero")
    return archive.Schema({"observation": field, "action": archive.Field("int64")}, envs, "NextStep")


def pong(number: int) -> Array:
    """Return a frame as of Pong: one colour, two paddles, a ball."""
    frame = np.full(PONG, 87, np.uint8)
    frame[:4] = frame[-4:] = 236
    frame[10 + number % 70 :, 8:10][:16] = 213
    frame[10 + number * 3 % 70 :, 70:72][:16] = 92
    ball = 6 + number * 5 % 90, number * 7 % 78
    frame[ball[0] : ball[0] + 3, ball[1] : ball[1] + 2] = 236
    return frame


def test_s2a_empty(path: Path, fresh_process: Fresh) -> None:
    """A buffer for 1,000,000 steps of 32 environments, saved before any step, takes at most 1 MB."""
    with archive.create(path, pong_schema(32)) as run:
        replay = run.replay(capacity=10**6, sampler=archive.Prioritized(), batch_size=128)
        assert len(replay) == 0
        run.commit()
        assert path.stat().st_size <= 1_000_000
    assert path.stat().st_size <= 1_000_000
    assert fresh_process(count_steps, path) == ["0", "32"]
    with archive.open(path, "a") as run:  # a slot for checkpoints is one MiB more
        replay = run.replay(capacity=10**6, sampler=archive.Prioritized(), batch_size=128)
        run.checkpoint(replay=replay.state_dict())
    assert path.stat().st_size <= 1_000_000 + (1 << 20)


def count_steps(path: str) -> list[str]:
    with archive.open(path) as run:
        return [str(run.num_steps), str(run.num_envs)]


def test_s2b_unique_frames(path: Path) -> None:
    """8 environments of 1,000 steps, arriving as stacks of 4: each frame is stored once, in a quarter of its bytes."""
    envs, steps = 8, 1000
    with archive.create(path, pong_schema(envs), commit_every=None) as run:
        frames = np.zeros((envs, 4, *PONG), np.uint8)
        frames[:, -1] = [pong(13 * env) for env in range(envs)]
        run.reset(frames)
        no = np.zeros(envs, bool)
        for k in range(1, steps + 1):
            frames = np.roll(frames, -1, 1)
            frames[:, -1] = [pong(k + 13 * env) for env in range(envs)]
            run.step(np.zeros(envs, int), frames, np.zeros(envs), no, no)
        stack = run.replay(batch_size=8).gather([3 << 32 | 2]).observation[0]
    assert [frame.tobytes() for frame in stack] == [
        bytes(PONG[0] * PONG[1]),
        *(pong(k + 39).tobytes() for k in range(3)),
    ]
    most = 8.34e9 / 1e6 * envs * steps
    with h5py.File(path) as file:
        stored = file["steps/observation"]
        assert stored.shape == (steps + 1, envs, *PONG)
        assert stored.size <= most
        assert stored.id.get_storage_size() <= 0.25 * stored.size
        assert same_bytes(stored[500, 2], pong(500 + 26))
    assert path.stat().st_size <= 0.25 * most


def save_again(path: str) -> list[str]:
    """Save, take one more iteration of 64 steps, save again; return the bytes written for it and the priorities'."""
    import os

    field = archive.Field("uint8", (104, 80))
    schema = archive.Schema({"observation": field, "action": archive.Field("int64")}, 32, "NextStep")
    rng = np.random.default_rng(0)
    with archive.create(path, schema, commit_every=None) as run:
        replay = run.replay(capacity=64_000, sampler=archive.Prioritized(), batch_size=128)
        run.reset(rng.integers(0, 256, (32, 104, 80)).astype(np.uint8))
        iterate(run, 60, rng)
        for _ in range(4):
            replay.update_priorities(replay.draw()[0], rng.random(128))
        run.checkpoint(replay=replay.state_dict())
        before = written()
        iterate(run, 2, rng)
        run.checkpoint(replay=replay.state_dict())
        after = written()
        state = replay.state_dict()["priorities"]["leaves"].nbytes
        iterate(run, 3, rng)  # not committed
        print(after - before, state, flush=True)
        os._exit(0)  # nothing is closed


def iterate(run, steps, rng):  # type: ignore[no-untyped-def]
    for _ in range(steps):
        frames = rng.integers(0, 256, (32, 104, 80)).astype(np.uint8)
        run.step(np.zeros(32, int), frames, np.ones(32), np.zeros(32, bool), np.zeros(32, bool))


def written():  # type: ignore[no-untyped-def]
    """Return how many bytes this process has written."""
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])


def test_s2e_incremental(path: Path, fresh_process: Fresh) -> None:
    """Saving after one more iteration writes at most 4 MB beside the priorities; what was saved survives."""
    if not Path("/proc/self/io").exists():
        pytest.skip("the system does not count the bytes that a process writes")
    found, state = map(int, fresh_process(save_again, path, uses=[iterate, written]))
    assert 532_480 <= found <= 4_000_000 + state
    with archive.open(path, "a") as run:
        assert run.num_steps == 62 * 32
        last = run.last_checkpoint
        assert last is not None
        assert int(last.position["rows"].sum()) == 63 * 32
        assert len(run.replay(state=last["replay"])) == 62 * 32
        assert (run["observation"][62] != 0).mean() > 0.9


@pytest.mark.parametrize("capacity", [48, 64])
def test_s2g_nothing_crosses_the_wrap(path: Path, capacity: int) -> None:
    """After 1.5 times the capacity: only the newest rows are drawn, and every stack, return and sequence is made of
    neighbours of one episode. Observation, action and reward are the number of the step; 0 is padding.
    """
    rng = np.random.default_rng(capacity)
    schema = archive.Schema({"observation": archive.Field("int64"), "action": archive.Field("int64")})
    schema = archive.Schema(schema.steps, 2, "NextStep")
    steps = capacity * 3 // 4  # of each of the two
    first_of: dict[int, int] = {}  # step: the first step of its episode
    with archive.create(path, schema, commit_every=None) as run:
        now, start = np.array([1000, 2000]), np.array([1000, 2000])
        run.reset(now)
        while run.num_steps < 2 * steps:
            going = ~run_ended(run)
            ends = (rng.random(2) < 0.1) & going
            first_of |= {int(k): int(s) for k, s in zip(now[going], start[going], strict=True)}
            reset = ~going
            after = now + 1
            start = np.where(reset, after, start)
            run.step(now, after, now, ends & (now % 2 == 0), ends & (now % 2 == 1))
            now = after
        newest = {env: sorted(k for k in first_of if k // 1000 == env)[-capacity // 2 :] for env in (1, 2)}
        recent = {k for steps_of in newest.values() for k in steps_of}
        check_wrap(run, capacity, recent, first_of)


def run_ended(run: archive.Run) -> Array:
    """Tell which environments have ended and reset themselves in the next step."""
    table = run.episodes
    latest = [int(np.flatnonzero(table["env"] == env)[-1]) for env in range(run.num_envs)]
    return np.array([bool(table["terminated"][k] or table["truncated"][k]) for k in latest])


def check_wrap(run: archive.Run, capacity: int, recent: set[int], first_of: dict[int, int]) -> None:
    batch = run.replay(capacity=capacity, stack=4, n_step=3, gamma=1.0).sample(2000)
    drawn = batch.observation[:, -1]
    assert set(drawn.tolist()) <= recent
    assert len(set(drawn.tolist())) > 0.8 * len(recent)
    for stack, after, reward, action in zip(
        batch.observation, batch.next_observation, batch.reward, batch.action, strict=True
    ):
        newest = int(stack[-1])
        low = first_of[newest]
        assert stack.tolist() == [k if k >= low else 0 for k in range(newest - 3, newest + 1)]
        steps = int(after[-1]) - newest
        assert 1 <= steps <= 3
        assert after.tolist() == [k if k >= low else 0 for k in range(newest + steps - 3, newest + steps + 1)]
        assert reward == sum(range(newest, newest + steps))
        assert action == newest
    replay = run.replay(capacity=capacity, sequence_length=5, within_episode=False)
    batch = replay.sample(2000)
    assert set(batch.observation[:, 0].tolist()) <= recent
    assert (np.diff(batch.observation) == 1).all()
    assert (batch.reward == np.where(batch.mask, batch.observation, 0)).all()
    expected = [[first_of.get(k) == k for k in row] for row in batch.observation.tolist()]
    assert batch.is_first.tolist() == expected


def test_a_copied_file_is_the_same_run(path: Path) -> None:
    """A file has no names of other files in it: views still show its frames after a move."""
    played(path, 30).close()
    moved = path.with_name("moved.h5")
    shutil.move(path, moved)
    with h5py.File(moved) as file, archive.open(moved) as run:
        assert same_bytes(file["views/env_0001/observation"][()], run["observation"][: run.lengths[1], 1])
        assert file["views/env_0001/observation"][()].any()


def test_episodes_that_were_given_up_before_a_commit(path: Path) -> None:
    """More of them than a chunk of the table holds: HDF5 must not be given a chunk behind the table's end."""
    schema = archive.Schema({"observation": archive.Field("float32"), "action": archive.Field("int64")})
    with archive.create(path, schema, commit_every=None) as run:
        run.reset(0.0)
        run.checkpoint(step=0)
        for _ in range(1500):
            run.step(0, 0.0, 1.0, True, False)
            run.reset(0.0)
        run.rewind(run.last_checkpoint)
        assert run.num_episodes == 1
    assert archive.verify(path).clean
    with archive.open(path, "a") as run:
        assert run.num_episodes == 1
        run.reset(1.0)
    assert archive.verify(path).clean
