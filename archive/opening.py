"""How runs are created and opened."""

from __future__ import annotations

import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import disk, text
from ._file import ReadView
from .budget import parse_bytes
from .codec import CODECS
from .errors import (
    ExistingRunError,
    FieldError,
    FieldTypeError,
    MissingRunError,
    NotARunError,
    SchemaError,
    StateError,
)
from .guard import interrupts, lock, settle_interrupts
from .header import Header
from .lock import WriterLock
from .options import UNSET
from .rows import Rows
from .run import Run
from .schema import Schema, autoreset_mode
from .snapshot import recover, take
from .source import Descriptor, Source
from .store import Store
from .writer import Writer


def create(
    path: str | os.PathLike[str],
    env_or_schema: Any,
    *,
    num_envs: int | None = None,
    autoreset: str | None = None,
    compression: str = "gzip",
    metadata: Mapping[str, Any] | None = None,
    commit_every: float | None = 5.0,
    memory: int | str = "1 GiB",
) -> Run:
    """Create a run at `path` and open it for writing; ExistingRunError if there is a file already.

    `env_or_schema`: a Gymnasium environment or vector environment, or a Schema. `commit_every` in seconds, None for
    commits by hand only. `memory` bounds decoded chunks and sum trees. The file appears whole or not at all.
    """
    if compression not in CODECS:
        raise SchemaError(f"compression {compression!r}: expected one of {', '.join(CODECS)}")
    schema = schema_of(env_or_schema).with_options(num_envs, autoreset)
    target, budget = Path(path).resolve(), parse_bytes(memory)
    texts = {
        "environment": dict(schema.environment),
        "metadata": checked_json(metadata or {}),
        "options": {"commit_every": checked_seconds(commit_every)},
        "provenance": provenance(),
    }
    return uninterrupted(lambda: create_writer(target, schema, compression, texts, commit_every, budget))


def provenance() -> dict[str, Any]:
    """Return when and by which Python a file is made."""
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
    }


def new_run_id() -> str:
    """Return the id of a new run: 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


def create_writer(
    target: Path, schema: Schema, compression: str, texts: dict[str, Any], commit_every: float | None, budget: int
) -> Run:
    """Create a run without rows."""

    def lay_out(store: Store) -> Rows:
        store.lay_out(schema, new_run_id(), compression, texts)
        return Rows(store.header, str(target), store.read_at, budget, lock)

    writer = make_file(target, lay_out, Writer.commit, commit_every)
    return Run(target, writer.header, writer, texts)


def make_file(
    target: Path, lay_out: Callable[[Store], Rows], commit: Callable[[Writer], None], commit_every: float | None
) -> Writer:
    """Make a file under a name of its own, by laying it out and a first commit, and give it its name once it is whole.

    ExistingRunError if there is a file of that name.
    """
    if not target.parent.is_dir():
        raise MissingRunError(f"{target.parent}: no such folder")
    held = WriterLock(target)
    partial = target.with_name(target.name + ".partial")
    store = writer = None
    try:
        if target.exists():
            raise ExistingRunError(f"{target} exists already; open it with mode 'a' to go on")
        store = Store(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | disk.FLAGS, 0o644), str(target))
        held.claim(store.file.fd, target)
        writer = Writer(lay_out(store), store, held, None, commit_every)
        commit(writer)
        os.rename(partial, target)
        disk.sync_folder(target.parent)
    except BaseException:
        let_go(writer, store, held)
        partial.unlink(missing_ok=True)
        raise
    return writer


def open(  # noqa: A001 - the name is part of the public contract
    path: str | os.PathLike[str],
    mode: str = "r",
    env_or_schema: Any = None,
    *,
    num_envs: int | None = None,
    autoreset: str | None = None,
    compression: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    commit_every: float | None = UNSET,
    memory: int | str = "1 GiB",
) -> Run:
    """Open a run: "r" reads and never writes, also while somebody else writes; "a" goes on writing.

    "a" recovers what a killed writer had committed. It creates the run when it is missing and a schema or an
    environment is given; a schema given for a run that exists must agree with it.
    """
    if mode not in ("r", "a"):
        raise FieldError(f"mode {mode!r}: expected 'r' or 'a'")
    target, budget = Path(path).resolve(), parse_bytes(memory)
    if mode == "a" and env_or_schema is not None and not target.exists():
        every = 5.0 if commit_every is UNSET else commit_every
        return create(
            target,
            env_or_schema,
            num_envs=num_envs,
            autoreset=autoreset,
            compression=compression or "gzip",
            metadata=metadata,
            commit_every=every,
            memory=memory,
        )
    existing(target)
    if mode == "r":
        return open_reader(target, budget)
    wanted = None if env_or_schema is None else schema_of(env_or_schema).with_options(num_envs, autoreset)
    mode_wanted = wanted.autoreset if wanted is not None else autoreset_mode(autoreset)

    def agreed(header: Header) -> Header:
        agree(header, target, wanted, num_envs, compression)
        return replace(header, schema=replace(header.schema, autoreset=mode_wanted or header.schema.autoreset))

    every = UNSET if commit_every is UNSET else checked_seconds(commit_every)
    texts = None if metadata is None else checked_json(metadata)
    return uninterrupted(lambda: open_writer(target, budget, every, agreed, texts))


def existing(target: Path) -> Path:
    """Return the path of a file, or raise MissingRunError or NotARunError."""
    if not target.exists():
        raise MissingRunError(f"{target}: no such file")
    if not target.is_file():
        raise NotARunError(f"{target}: not a file")
    return target


def open_reader(target: Path, budget: int) -> Run:
    """Open a run for reading."""
    file = Descriptor(os.open(target, os.O_RDONLY | disk.FLAGS), str(target))
    try:
        header = Header.read(file.fd, str(target))
        return Run(target, header, Source(file, header, str(target), budget))
    except BaseException:
        file.close()
        raise


def reopen(path: str, run_id: str, budget: int) -> Run:
    """Open the run that was pickled, for reading; StateError if another one is there now."""
    run = open(path, memory=budget)
    if run._header.run_id != run_id:
        run.close()
        raise StateError(f"{path}: holds run {run._header.run_id}, but run {run_id} was pickled")
    return run


def open_writer(
    target: Path,
    budget: int,
    commit_every: Any,
    agreed: Callable[[Header], Header],
    metadata: Mapping[str, Any] | None,
) -> Run:
    """Recover a run and open it for writing. `agreed` looks at the header that the file has and returns it for use."""
    held = WriterLock(target)
    store = writer = None
    try:
        fd = os.open(target, os.O_RDWR | disk.FLAGS)
        store = Store(fd, str(target))
        held.claim(fd, target)
        header = agreed(Header.read(fd, str(target)))
        record = recover(fd, header, str(target))
        snapshot = take(fd, header, ReadView(fd), str(target))
        store.resume(header, record.end)
        rows = Rows(header, str(target), store.read_at, budget, lock)
        rows.restore(snapshot)
        rows.need_tails(rows.restore_open(record))
        every = snapshot.texts["options"]["commit_every"] if commit_every is UNSET else commit_every
        writer = Writer(rows, store, held, record, every)
        texts = dict(snapshot.texts) | ({} if metadata is None else {"metadata": dict(metadata)})
        if texts != snapshot.texts:
            store.write_text("meta/metadata_json", texts["metadata"])
        store.write_totals(rows.steps, rows.episodes.count, False)
        writer.commit()
    except BaseException:
        let_go(writer, store, held)
        raise
    return Run(target, header, writer, texts)


def uninterrupted(make: Callable[[], Run]) -> Run:
    """Call `make` with forks and Ctrl-C held back; a run that Ctrl-C came for is closed before that is raised."""
    run = None
    try:
        interrupts.install()
        with interrupts, lock:
            run = make()
            if interrupts.pending:
                run.close()
        return run
    except BaseException:
        if run is not None:
            run.close()  # nobody will ever hold it
        settle_interrupts()
        raise


def schema_of(env_or_schema: Any) -> Schema:
    """Return the schema that was given, or that of an environment."""
    if isinstance(env_or_schema, Schema):
        return env_or_schema
    return Schema.from_env(env_or_schema)


def checked_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata if JSON can hold it as it is."""
    try:
        result: dict[str, Any] = text.parse(json.dumps(dict(values), allow_nan=False, indent=1).encode())
        same = result == dict(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise FieldTypeError(f"metadata cannot be written as JSON: {error}") from error
    if not same:
        raise FieldTypeError("metadata would change as JSON: keys must be str, lists instead of tuples")
    return result


def checked_seconds(commit_every: Any) -> float | None:
    """Return an interval in seconds, or None."""
    if commit_every is None or (isinstance(commit_every, (int, float)) and commit_every >= 0):
        return commit_every
    raise FieldError(f"commit_every {commit_every!r}: expected seconds >= 0, or None")


def agree(header: Header, target: Path, wanted: Schema | None, num_envs: int | None, compression: str | None) -> None:
    """Refuse a schema or options that are not those of the file."""
    have = header.schema
    pairs: list[tuple[str, Any, Any]] = []
    if wanted is not None:
        pairs += [("fields", have.steps, wanted.steps), ("tuples", have.tuples, wanted.tuples)]
        if wanted.episodes:  # a schema read off an environment has no columns
            pairs.append(("episode columns", have.episodes, wanted.episodes))
    if wanted is not None or num_envs is not None:
        pairs.append(("num_envs", have.num_envs, num_envs if wanted is None else wanted.num_envs))
    if compression is not None:
        pairs.append(("compression", header.compression, compression))
    for what, ours, theirs in pairs:
        if ours != theirs:
            raise SchemaError(f"{target}: the file has {what} {ours}, but {theirs} was given")


def let_go(writer: Writer | None, store: Store | None, held: WriterLock) -> None:
    """Undo a half-done opening."""
    if writer is not None:
        writer.abandon()
    elif store is not None:
        store.abandon()
    held.release()
