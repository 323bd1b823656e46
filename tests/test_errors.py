"""Mistakes: each gives the error that names what is wrong, and nothing has changed."""

from __future__ import annotations

import struct
import zlib

import h5py
import numpy as np
import pytest
from faults import ENDED, Diary, Player, differences, schema

import archive
from archive.block import Block

ENVS = pytest.mark.parametrize("envs", [0, 3], ids=["one environment", "three environments"])


@pytest.fixture
def path(tmp_path):
    """Return the path of a closed run."""
    path = tmp_path / "run.h5"
    player = Player(Diary(0), archive.create(path, schema(0)))
    player.steps(20)
    player.run.close()
    return path


def recording(path, envs, steps=11):
    """Return a player of a new run in which an episode is going on."""
    player = Player(Diary(envs), archive.create(path, schema(envs), commit_every=None))
    player.steps(steps)
    return player


def arguments(player, **changed):
    """Return the arguments of a step that fits, but for those given."""
    rows = [n - 1 for n in player.lengths()]
    flags = np.zeros(player.diary.envs, np.bool_) if player.diary.axis else False
    values = {k: player.batch(k, rows) for k in ("action", "reward", "log_prob")}
    values |= {"observation": player.observe(player.lengths()), "terminated": flags, "truncated": flags}
    return values | changed


def still_good(player):
    """The run holds what it held, and goes on; so does what is read back."""
    assert differences(player.run, player.diary) == []
    player.steps(3)
    player.run.close()
    with archive.open(player.run.path) as run:
        assert differences(run, player.diary) == []


# --- values


OBSERVATION = {"vector": np.zeros(2250, "f4"), "pixels": np.zeros((6, 6), "u1")}
WRONG_VALUES = {
    "float for an int": ({"action": 0.5}, archive.FieldTypeError, r"'action': expected int64, found float64"),
    "text for an int": ({"action": "left"}, archive.FieldTypeError, r"'action'.*int64"),
    "object for a float": ({"reward": object()}, archive.FieldTypeError, r"'reward'"),
    "None for a float": ({"reward": None}, archive.FieldTypeError, r"'reward'"),
    "complex for a float": (
        {"log_prob": 1j},
        archive.FieldTypeError,
        r"'log_prob': expected float64, found complex128",
    ),
    "int too large": ({"action": 1 << 63}, archive.FieldError, r"'action': 9223372036854775808 does not fit int64"),
    "number for a flag": ({"terminated": 2}, archive.FieldError, r"'terminated': 2 does not fit bool"),
    "ragged": (
        {"observation": OBSERVATION | {"pixels": [[1, 2], [3]]}},
        archive.FieldTypeError,
        r"'observation/pixels'",
    ),
    "shape": ({"action": [1, 2]}, archive.FieldError, r"'action': expected shape \(\), found \(2,\)"),
    "shape of a part": (
        {"observation": OBSERVATION | {"pixels": np.zeros((6, 5), "u1")}},
        archive.FieldError,
        r"'observation/pixels': expected shape \(6, 6\), found \(6, 5\)",
    ),
    "value too large for a part": (
        {"observation": OBSERVATION | {"pixels": np.full((6, 6), 256)}},
        archive.FieldError,
        r"'observation/pixels': 256 does not fit uint8",
    ),
    "part missing": ({"observation": {"vector": OBSERVATION["vector"]}}, archive.FieldError, r"'observation/pixels'"),
    "part unknown": (
        {"observation": OBSERVATION | {"sound": 1}},
        archive.UnknownFieldError,
        r"'observation/sound'",
    ),
    "array for a dict": ({"observation": OBSERVATION["vector"]}, archive.FieldError, r"'observation/"),
    "extra missing": ({"log_prob": None}, archive.FieldError, r"'log_prob' is missing"),
    "extra unknown": ({"value": 1.0}, archive.UnknownFieldError, r"'value' is not in the schema"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_wrong_value_in_a_step(tmp_path, name):
    changed, error, message = WRONG_VALUES[name]
    player = recording(tmp_path / "run.h5", 0)
    with pytest.raises(error, match=message):
        player.run.step(**arguments(player, **changed))
    still_good(player)


WRONG_BATCHES = {
    "too few": ({"reward": np.zeros(2, "f4")}, archive.FieldError, r"'reward': expected shape \(3,\), found \(2,\)"),
    "a scalar": ({"action": 1}, archive.FieldError, r"'action': expected shape \(3,\), found \(\)"),
    "one of them": (
        {"action": np.array([1, 2, 0.5])},
        archive.FieldTypeError,
        r"'action': expected int64, found float64",
    ),
}


@pytest.mark.parametrize("name", WRONG_BATCHES)
def test_wrong_value_in_a_step_of_three(tmp_path, name):
    changed, error, message = WRONG_BATCHES[name]
    player = recording(tmp_path / "run.h5", 3)
    with pytest.raises(error, match=message):
        player.run.step(**arguments(player, **changed))
    still_good(player)


@ENVS
def test_wrong_value_in_a_reset(tmp_path, envs):
    player = recording(tmp_path / "run.h5", envs)
    fits = player.observe(player.lengths())
    with pytest.raises(archive.FieldTypeError, match="'observation/pixels': expected uint8, found float64"):
        player.run.reset(fits | {"pixels": fits["pixels"].astype("f8")})
    with pytest.raises(archive.FieldError, match="'observation/vector' is missing"):
        player.run.reset({"pixels": fits["pixels"]})
    with pytest.raises(archive.FieldError, match="mask"):
        player.run.reset(fits, mask=np.ones(7, np.bool_))
    with pytest.raises(archive.FieldError, match="mask"):
        player.run.reset(fits, mask=np.ones(envs or 1))
    with pytest.raises(archive.ArchiveError, match="seed"):
        player.run.reset(fits, seed="one")
    with pytest.raises(archive.ArchiveError, match="seed"):
        player.run.reset(fits, seed=[1, 2, 3, 4, 5])
    still_good(player)


WRONG_ROWS = {
    "field missing": ({"action": None}, archive.FieldError, "'action' is missing"),
    "observation missing": (
        {"observation/vector": None, "observation/pixels": None},
        archive.FieldError,
        "'observation",
    ),
    "part missing": ({"observation/pixels": None}, archive.FieldError, "'observation/pixels' is missing"),
    "field unknown": ({"value": np.zeros(4)}, archive.UnknownFieldError, "'value'"),
    "lengths differ": (
        {"reward": np.zeros(3, "f4")},
        archive.FieldError,
        r"'reward': expected shape \(4,\), found \(3,\)",
    ),
    "dtype": ({"action": np.zeros(4)}, archive.FieldTypeError, "'action': expected int64, found float64"),
    "final row flagged": ({"is_last": [0, 0, 0, 1], "terminated": [0, 0, 0, 1]}, archive.FieldError, "row 3"),
    "goes on after an end": ({"is_last": [0, 1, 0, 0], "is_first": [0, 1, 0, 0]}, archive.FieldError, "row 1"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_wrong_rows_in_extend(tmp_path, name):
    changed, error, message = WRONG_ROWS[name]
    player = recording(tmp_path / "run.h5", 0)
    player.end_episode()
    rows = {
        "observation/vector": np.zeros((4, 2250), "f4"),
        "observation/pixels": np.zeros((4, 6, 6), "u1"),
        "action": np.zeros(4, "i8"),
        "reward": np.zeros(4, "f4"),
        "log_prob": np.zeros(4),
    } | {
        k: v if v is None else np.asarray(v, np.bool_ if k.startswith(("is_", "term")) else None)
        for k, v in changed.items()
    }
    with pytest.raises(error, match=message):
        player.run.extend({k: v for k, v in rows.items() if v is not None})
    still_good(player)


@ENVS
def test_extend_of_an_environment_that_there_is_not(tmp_path, envs):
    player = recording(tmp_path / "run.h5", envs)
    for env in (-1, player.diary.envs):
        with pytest.raises(archive.IndexRangeError, match=f"environment {env}"):
            player.run.extend({}, env=env)
    still_good(player)


# --- calls at the wrong time


@ENVS
def test_step_before_reset(tmp_path, envs):
    player = Player(Diary(envs), archive.create(tmp_path / "run.h5", schema(envs)))
    player.diary.begin(0, 0)  # so that there are rows to take arguments of
    for env in range(1, player.diary.envs):
        player.diary.begin(env, 0)
    with pytest.raises(archive.StateError, match="reset"):
        player.run.step(**arguments(player))
    assert player.run.num_rows == 0
    player.diary = Diary(envs)
    still_good(player)


def test_step_after_the_end(tmp_path):
    player = recording(tmp_path / "run.h5", 0)
    player.step("terminated")
    with pytest.raises(archive.StateError, match="environment 0 has ended; call reset"):
        player.run.step(**arguments(player))
    still_good(player)


def test_step_after_the_end_without_autoreset(tmp_path):
    kind = archive.Schema(steps=schema(3).steps, num_envs=3)
    player = Player(Diary(3), archive.create(tmp_path / "run.h5", kind))
    player.steps(5)
    player.step("truncated")
    ended = player.diary.states.index(ENDED)
    with pytest.raises(archive.StateError, match=f"environment {ended} has ended; call reset"):
        player.run.step(**arguments(player))
    assert differences(player.run, player.diary) == []
    player.run.close()


@ENVS
def test_end_of_nothing(tmp_path, envs):
    player = recording(tmp_path / "run.h5", envs)
    player.end_episode()
    with pytest.raises(archive.StateError, match="no episode is going on"):
        player.run.end_episode()
    still_good(player)


def test_rewind_to_another_run(tmp_path):
    player, other = recording(tmp_path / "run.h5", 0), recording(tmp_path / "other.h5", 3)
    other.checkpoint()
    with pytest.raises(archive.StateError, match="checkpoint is of run"):
        player.run.rewind(other.run.last_checkpoint)
    other.run.close()
    still_good(player)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"x": object()}, archive.FieldTypeError, "x.*object"),
        ({"x": {"y": [1, lambda: 2]}}, archive.FieldTypeError, "x/y/1.*function"),
        ({"x": {1: 2}}, archive.FieldTypeError, "x.*keys must be str"),
        ({"x": np.array([None])}, archive.FieldTypeError, "x.*object"),
        ({"keep": 0}, archive.ArchiveError, "keep 0"),
        ({"keep": 1000}, archive.ArchiveError, "keep 1000"),
    ],
)
def test_checkpoint_of_what_cannot_be_stored(tmp_path, options, error, message):
    player = recording(tmp_path / "run.h5", 0)
    player.checkpoint()
    with pytest.raises(error, match=message):
        player.run.checkpoint(**options)
    still_good(player)


@ENVS
def test_closed_run(tmp_path, envs):
    player = recording(tmp_path / "run.h5", envs)
    player.checkpoint()
    checkpoint = player.run.last_checkpoint
    player.run.close()
    before = player.run.path.read_bytes()
    for verb in writing(player, checkpoint):
        with pytest.raises(archive.StateError, match=r"run\.h5: the run is closed"):
            verb()
    player.run.close()
    assert player.run.path.read_bytes() == before


def writing(player, checkpoint):
    """Return every verb that writes, with arguments that fit."""
    run = player.run
    return [
        lambda: run.reset(player.observe(player.lengths())),
        lambda: run.step(**arguments(player)),
        lambda: run.extend({}),
        run.end_episode,
        run.commit,
        lambda: run.checkpoint(x=1),
        lambda: run.rewind(checkpoint),
    ]


@ENVS
def test_writing_to_a_run_open_for_reading(tmp_path, envs):
    player = recording(tmp_path / "run.h5", envs)
    player.checkpoint()
    player.run.close()
    before = player.run.path.read_bytes()
    with archive.open(player.run.path) as player.run:
        for verb in writing(player, player.run.last_checkpoint):
            with pytest.raises(archive.StateError, match=r"run\.h5: open for reading; open it with mode 'a'"):
                verb()
        assert differences(player.run, player.diary) == []
    assert player.run.path.read_bytes() == before


# --- looking


@ENVS
def test_looking_for_what_is_not_there(tmp_path, envs):
    player = recording(tmp_path / "run.h5", envs)
    run, rows = player.run, len(player.diary.lines[0])
    with pytest.raises(archive.UnknownFieldError, match="no field 'state'; there are observation/vector"):
        run["state"]
    with pytest.raises(KeyError):
        run.episodes["score"]
    for number in (run.num_episodes, -run.num_episodes - 1):
        with pytest.raises(archive.IndexRangeError, match=f"episode {number} of {run.num_episodes}"):
            run.episode(number)
    for row in (rows, -rows - 1, [0, rows]):
        with pytest.raises(IndexError):
            run["action"][row]
    with pytest.raises(archive.NotEnoughData):
        Player(Diary(0), archive.create(tmp_path / "empty.h5", schema(0))).run.replay().sample(1)
    still_good(player)


# --- files


def test_missing_file(tmp_path):
    for mode in ("r", "a"):
        with pytest.raises(archive.MissingRunError, match=r"none\.h5: no such file"):
            archive.open(tmp_path / "none.h5", mode)
    assert issubclass(archive.MissingRunError, FileNotFoundError)
    assert list(tmp_path.iterdir()) == []


def test_missing_folder(tmp_path):
    with pytest.raises(archive.MissingRunError, match="none"):
        archive.create(tmp_path / "none" / "run.h5", schema(0))
    with pytest.raises(archive.MissingRunError, match="none"):
        archive.open(tmp_path / "none" / "run.h5", "a", schema(0))
    assert list(tmp_path.iterdir()) == []


def test_folder_instead_of_a_file(tmp_path):
    for mode in ("r", "a"):
        with pytest.raises(archive.NotARunError, match="not a file"):
            archive.open(tmp_path, mode, schema(0))
    with pytest.raises(archive.ExistingRunError):
        archive.create(tmp_path / ".", schema(0))
    assert list(tmp_path.iterdir()) == []


def test_existing_file(path):
    before = path.read_bytes()
    with pytest.raises(archive.ExistingRunError, match=r"run\.h5 exists already; open it with mode 'a'"):
        archive.create(path, schema(0))
    assert path.read_bytes() == before
    assert issubclass(archive.ExistingRunError, FileExistsError)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def expect_refused(path, error, message):
    """Opening is refused in both modes, and leaves the file alone."""
    before = path.read_bytes()
    for mode in ("r", "a"):
        with pytest.raises(error, match=message):
            archive.open(path, mode)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("data", [b"", b"x", b"not HDF5" * 1000, b"\x89PNG\r\n\x1a\n" + bytes(5000)])
def test_file_that_is_not_hdf5(tmp_path, data):
    path = tmp_path / "run.h5"
    path.write_bytes(data)
    expect_refused(path, archive.NotARunError, r"run\.h5: not an HDF5 file")


def test_hdf5_file_of_somebody_else(tmp_path):
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file["steps/observation"] = np.zeros((10, 4))
    expect_refused(path, archive.NotARunError, r"run\.h5: an HDF5 file, but not a run")


def test_only_the_start_of_an_hdf5_file(tmp_path):
    path = tmp_path / "run.h5"
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(3000))
    expect_refused(path, archive.NotARunError, r"run\.h5: an HDF5 file, but not a run")


def rewrite_schema_block(path, old, new):
    """Replace text of the schema block, as long as what it replaces, and make its checksum right."""
    data = bytearray(path.read_bytes())
    at = data.find(Block.MAGIC)
    length = Block.HEAD.unpack_from(data, at)[2]
    stop = at + Block.HEAD.size + length
    body = bytes(data[at:stop]).replace(old, new)
    assert len(body) == stop - at
    assert body != data[at:stop]
    data[at : stop + 4] = body + struct.pack("<I", zlib.crc32(body))
    path.write_bytes(data)


def test_newer_format(path):
    rewrite_schema_block(path, b'"format_version":1', b'"format_version":2')
    expect_refused(path, archive.VersionError, r"run\.h5: format version 2; this package reads up to 1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"format":"rl-archive"', b'"format":"rl-Archive"'),
        (b'"format_version"', b'"Format_version"'),
        (b'"records"', b'"Records"'),
        (b'"run_id"', b'"Run_id"'),
        (b'"dtype":"<f4"', b'"dtype":"|O8"'),
        (b'"dtype":"<f4"', b'"dtype":"<x4"'),
        (b'"steps"', b'"stepz"'),
        (b'"num_envs":null', b'"num_envs":"no"'),
        (b'"observation/pixels"', b'"observation/../..."'[:19] + b'"'),
    ],
)
def test_schema_block_that_makes_no_sense(path, old, new):
    """Well checksummed nonsense is refused by one of our errors."""
    rewrite_schema_block(path, old, new)
    expect_refused(path, archive.ArchiveError, r"run\.h5")


def test_another_schema(path):
    before = path.read_bytes()
    for kind, message in ((schema(3), "num_envs"), (other_schema(), "fields")):
        with pytest.raises(archive.SchemaError, match=message):
            archive.open(path, "a", kind)
        assert path.read_bytes() == before
    archive.open(path, "a", schema(0)).close()


def other_schema():
    return archive.Schema(steps={"observation": archive.Field("f4", (4,)), "action": archive.Field("i8")})


@pytest.mark.parametrize("mode", ["w", "r+", "", None, 1])
def test_unknown_mode(path, mode):
    before = path.read_bytes()
    with pytest.raises(archive.FieldError, match=r"mode.*expected 'r' or 'a'"):
        archive.open(path, mode)
    assert path.read_bytes() == before


@pytest.mark.parametrize("memory", [0, -1, 1000, "1 KB", "2 MB"])
def test_memory_below_the_floor(path, memory):
    """The floor is named, and is enough."""
    before = path.read_bytes()
    for mode in ("r", "a"):
        with pytest.raises(archive.MemoryBudgetError, match=r"needs at least \d+") as caught:
            archive.open(path, mode, memory=memory)
        assert path.read_bytes() == before
    with pytest.raises(archive.MemoryBudgetError, match="needs at least"):
        archive.create(path.with_name("new.h5"), schema(0), memory=memory)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    floor = int(str(caught.value).split("needs at least ")[1].split()[0])
    with archive.open(path, memory=floor) as run:
        assert run["action"][:].shape == (21,)


@pytest.mark.parametrize("memory", ["lots", "1 XB", "", "GiB", None, [1]])
def test_memory_that_is_no_size(path, memory):
    with pytest.raises(archive.ArchiveError, match="memory"):
        archive.open(path, memory=memory)


# --- schemas


GOOD = {"observation": archive.Field("f4", (4,)), "action": archive.Field("i8")}
BAD_SCHEMAS = {
    "object": (lambda: archive.Field("O"), "object"),
    "structured": (lambda: archive.Field([("a", "i4")]), "a"),
    "datetime": (lambda: archive.Field("M8[s]"), "datetime64"),
    "text without a length": (lambda: archive.Field("U"), "U"),
    "long double": (lambda: archive.Field("longdouble"), "float128|longdouble"),
    "no dtype": (lambda: archive.Field("colour"), "colour"),
    "negative size": (lambda: archive.Field("f4", (-1,)), r"\(-1,\)"),
    "shape that is none": (lambda: archive.Field("f4", "big"), "big"),
    "padding": (lambda: archive.Field("u1", (6, 6), stacked=4, padding="mirror"), "mirror"),
    "stack": (lambda: archive.Field("u1", (6, 6), stacked=0), "stacked=0"),
    "stack axis": (lambda: archive.Field("u1", (6, 6), stacked=4, stack_axis=3), "stack_axis=3"),
    "compression": (lambda: archive.Field("u1", compression="lzf"), "lzf"),
    "no action": (lambda: archive.Schema(steps={"observation": GOOD["observation"]}), "'action'"),
    "no observation": (lambda: archive.Schema(steps={"action": GOOD["action"]}), "'observation'"),
    "no fields": (lambda: archive.Schema(steps={}), "'observation'"),
    "not a field": (lambda: archive.Schema(steps=GOOD | {"x": "f4"}), "'x'"),
    "reward with a shape": (lambda: archive.Schema(steps=GOOD | {"reward": archive.Field("f4", (2,))}), "'reward'"),
    "complex reward": (lambda: archive.Schema(steps=GOOD | {"reward": archive.Field("c8")}), "'reward'"),
    "flag that is no bool": (lambda: archive.Schema(steps=GOOD | {"terminated": archive.Field("i4")}), "'terminated'"),
    "stacked action": (lambda: archive.Schema(steps=GOOD | {"action": archive.Field("i8", stacked=2)}), "stacked"),
    "no environments": (lambda: archive.Schema(steps=GOOD, num_envs=0), "num_envs 0"),
    "too many environments": (lambda: archive.Schema(steps=GOOD, num_envs=65_537), "num_envs 65537"),
    "autoreset": (lambda: archive.Schema(steps=GOOD, autoreset="Sometimes"), "Sometimes"),
    "text too long": (lambda: archive.Text((1 << 20) + 1), "cannot be stored"),
    "text of nothing": (lambda: archive.Text(0), "cannot be stored"),
    "episode column of ours": (lambda: archive.Schema(GOOD, episodes={"seed": archive.Field("i8")}), "'seed'"),
    "episode column with a shape": (lambda: archive.Schema(GOOD, episodes={"x": archive.Field("i8", (2,))}), "'x'"),
    "episode column with parts": (lambda: archive.Schema(GOOD, episodes={"x/y": archive.Field("i8")}), "'x/y'"),
    "whole priority": (lambda: archive.Schema(GOOD | {"priority": archive.Field("i8")}), "'priority'"),
    "priority with a shape": (lambda: archive.Schema(GOOD | {"priority": archive.Field("f8", (2,))}), "'priority'"),
    "name that batches use": (lambda: archive.Schema(GOOD | {"weight": archive.Field("f4")}), "'weight'"),
    "name of a row before": (lambda: archive.Schema(GOOD | {"prev_action": archive.Field("f4")}), "'prev_action'"),
    "field inside a field": (
        lambda: archive.Schema(steps=GOOD | {"observation/x": archive.Field("f4")}),
        "observation",
    ),
}
BAD_NAMES = ["", "/x", "x/", "x//y", ".", "x/..", "new\nline", "nul\0", "x" * 300, 7]


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_bad_schema(name):
    make, message = BAD_SCHEMAS[name]
    with pytest.raises(archive.SchemaError, match=message):
        make()


ACCEPTED_SCHEMAS = {
    "no elements": {"steps": GOOD | {"x": archive.Field("f4", (3, 0))}},
    "text": {"steps": GOOD | {"x": archive.Text(1 << 20)}},
    "codecs": {"steps": {k: archive.Field("f4", compression=k) for k in ("zstd", "lz4", "none", "gzip")} | GOOD},
    "resets at once": {"steps": GOOD, "num_envs": 2, "autoreset": "SameStep"},
    "resets by hand": {"steps": GOOD, "num_envs": 2, "autoreset": "Disabled"},
    "episode columns": {"steps": GOOD, "episodes": {"task": archive.Text(8), "success": archive.Field("bool")}},
    "priority": {"steps": GOOD | {"priority": archive.Field("f4")}},
}


@pytest.mark.parametrize("name", ACCEPTED_SCHEMAS)
def test_accepted_schema(tmp_path, name):
    """What could be taken for a mistake and is none comes back from JSON and from a file."""
    made = archive.Schema(**ACCEPTED_SCHEMAS[name])
    assert archive.Schema.from_json(made.to_json()) == made
    archive.create(tmp_path / "run.h5", made).close()
    with archive.open(tmp_path / "run.h5") as run:
        assert run.schema == made


@pytest.mark.parametrize("name", BAD_NAMES, ids=repr)
def test_bad_name(name):
    with pytest.raises(archive.SchemaError, match="name"):
        archive.Schema(steps=GOOD | {name: archive.Field("f4")})


def test_wrong_arguments_of_create(tmp_path):
    for options, message in (
        ({"compression": "lzf"}, "lzf"),
        ({"num_envs": -1}, "num_envs -1"),
        ({"autoreset": "Sometimes"}, "Sometimes"),
        ({"commit_every": "often"}, "commit_every"),
        ({"metadata": {"x": object()}}, "metadata"),
    ):
        with pytest.raises(archive.ArchiveError, match=message):
            archive.create(tmp_path / "run.h5", schema(0), **options)
        assert list(tmp_path.iterdir()) == []
    for kind in ("CartPole-v1", {"observation": GOOD["observation"]}, None):
        with pytest.raises(archive.ArchiveError, match=r"Schema|schema|environment"):
            archive.create(tmp_path / "run.h5", kind)
        assert list(tmp_path.iterdir()) == []


def test_metadata_is_the_same_after_reopening(tmp_path):
    """Text, numbers, lists, nested; what JSON would change is refused."""
    values = {"text": "ä\0\n", "number": 1.5, "list": [1, None, True], "nested": {"a": {"b": []}}, "empty": ""}
    with archive.create(tmp_path / "run.h5", schema(0), metadata=values) as run:
        assert dict(run.metadata) == values
    with archive.open(tmp_path / "run.h5") as run:
        assert dict(run.metadata) == values
    for changed in ({1: 2}, {"x": (1, 2)}, {"x": float("nan")}):
        path = tmp_path / "changed.h5"
        try:
            archive.create(path, schema(0), metadata=changed).close()
        except archive.ArchiveError:
            assert not path.exists()
        else:
            with archive.open(path) as run:
                assert repr(dict(run.metadata)) == repr(changed)
            path.unlink()
