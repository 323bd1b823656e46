"""Salvaging a run: a new file from the bytes of one whose HDF5 metadata is gone."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import disk
from .budget import modest_memory
from .errors import ExistingRunError, MissingRunError
from .finding import Progress, damaged
from .guard import lock
from .lock import WriterLock
from .rebuilding import Rebuilding
from .remains import Remains, remains_of
from .rows import Rows
from .store import Store


@dataclass(frozen=True)
class Missing:
    """Rows `start` to `stop` of a field of one environment that are not in the file any more."""

    field: str
    env: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"field {self.field!r}, environment {self.env}: rows {self.start} to {self.stop - 1} are missing"


@dataclass(frozen=True)
class Salvage:
    """What `archive.salvage` got back, and what is missing.

    `rows` of each environment, of which `rows_lost` lack a field and are in no episode. `hidden` episodes lack their
    beginning. `notes` say what else is not there.
    """

    source: str
    destination: str
    run_id: str
    rows: tuple[int, ...]
    rows_lost: int
    chunks: int
    episodes: int
    hidden: int
    checkpoints: tuple[int, ...]
    missing: tuple[Missing, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return asdict(self)


def salvage(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    progress: Progress = lambda done, total: None,
) -> Salvage:
    """Rebuild a run from the bytes of `source`; the new file at `destination` is a closed run of the same id.

    Every whole chunk is found by its trailer and keeps its row numbers. NotARunError if no schema block is left,
    ExistingRunError if there is a file at `destination`. `source` is only read. `progress(done, total)` counts bytes
    and chunks. docs/format.md ("Damage") has the rules. Cost: reads the file twice. Memory: some 500 bytes a chunk.

    >>> import archive, tempfile
    >>> schema = archive.Schema(steps={"observation": archive.Field("float32"), "action": archive.Field("int64")})
    >>> path = tempfile.mkdtemp() + "/run.h5"
    >>> with archive.create(path, schema) as run:
    ...     run.reset(0.0)
    >>> archive.salvage(path, path + ".new").rows
    (1,)
    """
    old, new = Path(source).resolve(), Path(destination).resolve()
    if not old.is_file():
        raise MissingRunError(f"{old}: no such file")
    if new.exists():
        raise ExistingRunError(f"{new} exists already")
    if not new.parent.is_dir():
        raise MissingRunError(f"{new.parent}: no such folder")
    fd = os.open(old, os.O_RDONLY | disk.FLAGS)
    try:
        with damaged(str(old)):
            remains = remains_of(fd, str(old), progress)
            rebuilt = write(remains, new)
    finally:
        os.close(fd)
    table = rebuilt.rows.episodes
    return Salvage(
        source=str(old),
        destination=str(new),
        run_id=remains.header.run_id,
        rows=tuple(rebuilt.rows.rows.tolist()),
        rows_lost=sum(stop - start for _, start, stop in rebuilt.lost),
        chunks=len(remains.chunks),
        episodes=table.count,
        hidden=int(table["hidden"].sum()),
        checkpoints=tuple(slot.id for slot in remains.slots),
        missing=tuple(Missing(*one) for one in rebuilt.missing),
        notes=tuple(remains.notes),
    )


def write(remains: Remains, target: Path) -> Rebuilding:
    """Write the new file under a name of its own and give it its name once it is whole."""
    held = WriterLock(target)
    partial = target.with_name(target.name + ".partial")
    store = rebuilt = None
    try:
        store = Store(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | disk.FLAGS, 0o644), str(target))
        header = remains.header
        store.lay_out(header.schema, header.run_id, header.compression, texts_of(remains), header.rows)
        rows = Rows(store.header, str(target), store.read_at, modest_memory(header), lock)
        rebuilt = Rebuilding(remains, rows, store, held)
        rebuilt.finish()
        os.rename(partial, target)
        disk.sync_folder(target.parent)
    except BaseException:
        if rebuilt is None and store is not None:
            store.abandon()
        partial.unlink(missing_ok=True)
        raise
    finally:
        if rebuilt is not None:
            rebuilt.writer.abandon()
        held.release()
    return rebuilt


def texts_of(remains: Remains) -> dict[str, Any]:
    """Return the JSON texts of the new file: those that could be read, or what stands for them."""
    known = remains.contents.texts if remains.contents is not None else {}
    if "metadata" not in known:
        remains.notes.append("the metadata of the run is gone")
    return {
        "environment": known.get("environment", dict(remains.header.schema.environment)),
        "metadata": known.get("metadata", {}),
        "options": known.get("options", {"commit_every": 5.0}),
        "provenance": {
            **known.get("provenance", {}),
            "salvaged": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    }
