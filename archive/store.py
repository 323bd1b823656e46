"""The writer's side of the HDF5 file: datasets, whole chunks, episode columns, attributes, checkpoint slots.

Of those who write only `datasets` knows h5py beside it. Every call runs under `guard.quiet`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import h5py
import numpy as np

from ._file import JournaledFile
from .block import Block
from .chunk import checked
from .codec import CODECS
from .copies import LEAST, copies_due
from .datasets import contiguous, frame_fields, growing, mark_image, view
from .episodes import CHUNK as EPISODE_CHUNK
from .errors import ArchiveError, DamagedError, SchemaError, WriteError
from .guard import lock, quiet
from .header import Header
from .layout import FORMAT, FORMAT_VERSION, SPARE_ROWS, chunk_rows
from .objects import FOREIGN
from .record import Region
from .rewind import Rewind
from .schema import Schema
from .text import MOST_TEXT

LIBVER = ("v110", "v110")


class Calls:
    """Surround calls of HDF5: alone, and what it finds damaged or fails to write is said in our words."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __enter__(self) -> None:
        quiet.__enter__()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is None:
                self.store.dirty = True
                self.store.check()
            elif isinstance(error, FOREIGN) and not isinstance(error, ArchiveError):
                self.store.check()
                raise DamagedError(f"{self.store.path}: {error}") from error
        finally:
            quiet.__exit__(kind, error, trace)


class Store:
    """An HDF5 file that is written through a JournaledFile; owns descriptor `fd`.

    `lay_out` makes a new file of it, `resume` goes on with one that was recovered.
    """

    header: Header

    def __init__(self, fd: int, path: str, file: JournaledFile | None = None) -> None:
        self.file, self.path = file or JournaledFile(fd), path
        self.handle: Any = None  # h5py.File; h5py has no types
        self.datasets: dict[str, Any] = {}  # by name: looking one up takes longer than writing a chunk
        self.extents: dict[str, int] = {}
        self.copies = 0  # number of the newest copy of the schema block
        self.dirty = True

    def lay_out(
        self,
        schema: Schema,
        run_id: str,
        compression: str,
        texts: Mapping[str, Any],
        rows: Mapping[str, int] | None = None,
    ) -> None:
        """Create groups and datasets; nothing of them counts before the first record. `rows`: those of one chunk."""
        rows = chunk_rows(schema.steps, schema.envs) if rows is None else rows
        room, size = Region.bytes_for(schema.envs, len(schema.steps))
        with self.hdf5():
            self.handle = handle = h5py.File(self.file, "w", libver=LIBVER)
            draft = Block(Block.SCHEMA, Header(run_id, schema, rows, Region(0, room), compression).to_json())
            block = contiguous(handle, "meta/schema_block", len(draft.pack()))  # first, so that it is found early
            records = contiguous(handle, "commits", size)
            self.header = Header(run_id, schema, rows, Region(records.id.get_offset(), room), compression)
            if self.header.nonsense():
                raise SchemaError(f"{self.path}: {self.header.nonsense()}")
            block[:] = np.frombuffer(Block(Block.SCHEMA, self.header.to_json()).pack(), np.uint8)
            for name, field in schema.steps.items():
                growing(handle, f"steps/{name}", field, self.header.codec(name), rows[name], schema.num_envs)
            options = {"chunks": (EPISODE_CHUNK,), "maxshape": (None,), "fletcher32": True}
            for name, dtype in schema.columns.items():
                handle.create_dataset(f"episodes/{name}", (0,), dtype, **options)
            for name, values in {"schema": schema.to_json(), **texts}.items():
                self.write_text(f"meta/{name}_json", values)
            self.write_root(schema)
            handle.flush()

    def resume(self, header: Header, end: int) -> None:
        """Open a recovered file whose committed end is at byte `end`."""
        self.header = header
        self.file.begin(end)
        with self.hdf5():
            self.handle = h5py.File(self.file, "r+", libver=LIBVER)
            names = [name for name in self.handle["meta"] if name.startswith("schema_copy_")]
            self.copies = max((int(name.rpartition("_")[2]) for name in names), default=0)

    def hdf5(self) -> Calls:
        """Return what must surround calls of HDF5 that may change the file."""
        return Calls(self)

    # --- layout

    def write_root(self, schema: Schema) -> None:
        """Write the short attributes of the root group."""
        attributes = self.handle.attrs
        filters = {CODECS[self.header.codec(name)].filters for name in schema.steps}
        attributes["format"] = np.bytes_(FORMAT)
        attributes["format_version"] = np.int32(FORMAT_VERSION)
        attributes["run_id"] = np.bytes_(self.header.run_id)
        attributes["environment_id"] = np.bytes_(str(schema.environment.get("id", ""))[:200].encode())
        attributes["required_filters"] = np.bytes_(" ".join(sorted(filters | {"shuffle", "fletcher32"})))
        attributes["NX_class"], attributes["default"] = np.bytes_("NXroot"), np.bytes_("episodes")
        for group, signal in (("episodes", "return"), ("steps", "reward")):
            hints = self.handle[group].attrs
            hints["NX_class"], hints["signal"] = np.bytes_("NXdata"), np.bytes_(signal)
        self.handle["episodes"].attrs["axes"] = np.bytes_("start")
        self.write_totals(0, 0, False)

    def write_totals(self, steps: int, episodes: int, complete: bool) -> None:
        """Write the attributes that change: totals, and whether the file was closed."""
        with self.hdf5():
            for name, value in (
                ("total_steps", np.int64(steps)),
                ("total_episodes", np.int64(episodes)),
                ("complete", np.uint8(complete)),
            ):
                if self.handle.attrs.get(name) != value:
                    self.handle.attrs[name] = value

    def write_text(self, name: str, values: Any) -> None:
        """Write JSON as a dataset of one fixed-length text, chunked so that HDF5 keeps a checksum of it."""
        text = json.dumps(values, indent=1).encode() or b" "
        if len(text) > MOST_TEXT:
            raise SchemaError(f"{self.path}: {name} takes {len(text)} bytes, at most {MOST_TEXT}")
        with self.hdf5():
            if name in self.handle:
                del self.handle[name]
            kind = h5py.string_dtype("utf-8", len(text))
            self.handle.create_dataset(name, data=[text], dtype=kind, chunks=(1,), fletcher32=True)

    def write_pictures(self, lengths: np.ndarray[Any, Any], sheet: np.ndarray[Any, Any] | None) -> None:
        """Give every environment its frames as a dataset of its own, without storing them twice, and add the sheet."""
        with self.hdf5():
            for name in [n for n in ("views", "preview") if n in self.handle]:
                del self.handle[name]
            if self.header.schema.num_envs is not None:
                for name in frame_fields(self.header.schema.steps):
                    for env, rows in enumerate(lengths.tolist()):
                        view(self.handle, f"views/env_{env:04d}/{name}", f"steps/{name}", env, rows)
            if sheet is not None:
                mark_image(
                    self.handle.create_dataset("preview/contact_sheet", data=sheet, compression="gzip"), sheet.shape
                )

    # --- rows

    def write_chunk(self, number: int, chunk: int, rows: int, data: bytes) -> tuple[int, int]:
        """Write an encoded chunk into a field that has at least `rows` rows then; return where in the file it is."""
        name, envs = self.header.fields[number], self.header.schema.envs
        first = chunk // envs * self.header.rows[name]
        field = self.header.schema.steps[name]
        with self.hdf5():
            dataset = self.grown(f"steps/{name}", rows)
            env = (chunk % envs,) if self.header.schema.num_envs is not None else ()
            at = (first, *env, *(0,) * len(field.shape))
            dataset.id.write_direct_chunk(at, data)
            if self.file.last_size == len(data):
                return self.file.last_offset, len(data)
            found = dataset.id.get_chunk_info_by_coord(at)
            return found.byte_offset, found.size

    def grown(self, name: str, rows: int) -> Any:
        """Return a dataset, made `rows` long if it is shorter; extents never shrink."""
        if name not in self.datasets:
            self.datasets[name] = self.handle[name]
            self.extents[name] = self.datasets[name].id.shape[0]
        dataset = self.datasets[name]
        if self.extents[name] < rows:
            dataset.id.set_extent((rows, *dataset.id.shape[1:]))
            self.extents[name] = rows
        return dataset

    def set_rows(self, rows: int, chunk_rows: int | None = None) -> None:
        """Make every field, or those of this chunk size, at least `rows` long."""
        with self.hdf5():
            for name in self.header.fields:
                if chunk_rows in (None, self.header.rows[name]):
                    self.grown(f"steps/{name}", rows)

    def create_tail(self, number: int) -> int:
        """Allocate the two tail slots of a field; return where they start."""
        name = self.header.fields[number]
        rows = self.header.rows[name] + SPARE_ROWS - 1
        size = 2 * self.header.schema.envs * rows * self.header.row_bytes(name)
        with self.hdf5():
            offset: int = contiguous(self.handle, f"tail/{name}", size).id.get_offset()
            self.file.reserve(offset, size)
        return offset

    # --- episodes

    def write_episodes(self, columns: Mapping[str, np.ndarray[Any, Any]], count: int, chunks: set[int]) -> None:
        """Write the given chunks of the episode table; entries past `count` become zeros."""
        with self.hdf5():
            for name, values in columns.items():
                dataset = self.grown(f"episodes/{name}", count)
                there = range(0, self.extents[f"episodes/{name}"], EPISODE_CHUNK)  # not those that never came so far
                for low in sorted(chunk * EPISODE_CHUNK for chunk in chunks if chunk < len(there)):
                    part, known = np.zeros(EPISODE_CHUNK, values.dtype), values[low : min(count, low + EPISODE_CHUNK)]
                    part[: len(known)] = known
                    dataset.id.write_direct_chunk((low,), checked(part.tobytes()))

    def write_copy(self) -> None:
        """Write the schema block once more if the file has grown enough since the last time."""
        number = copies_due(self.file.size)
        if number > self.copies:
            with self.hdf5():
                data = Block(Block.SCHEMA, self.header.to_json()).pack().ljust(LEAST, b"\0")
                contiguous(self.handle, f"meta/schema_copy_{number}", len(data))[:] = np.frombuffer(data, np.uint8)
            self.copies = number

    def write_rewind(self, rewind: Rewind, number: int) -> None:
        """Write down what was given up, as block `number` of its kind."""
        self.write_block(f"meta/rewind_block_{number}", Block.REWIND, rewind.to_json())

    def write_block(self, name: str, kind: int, values: Mapping[str, Any]) -> None:
        """Write down in the byte stream what was given up or lost."""
        with self.hdf5():
            data = Block(kind, {"run_id": self.header.run_id, **values}).pack()
            contiguous(self.handle, name, len(data))[:] = np.frombuffer(data, np.uint8)

    # --- the file

    def read_at(self, offset: int, size: int) -> bytes:
        """Return bytes of the file as they will be; alone, since whoever writes changes what is held back."""
        with lock:
            return self.file.read_at(offset, size)

    def write_at(self, offset: int, data: Any) -> None:
        """Write in place where no committed record looks yet."""
        self.do(self.file.write_at, offset, data)

    def trim(self) -> None:
        """Cut the file at its committed end: the last journal has been applied."""
        os.ftruncate(self.file.fd, self.file.base)

    def check(self) -> None:
        """Raise WriteError if HDF5 met a failed read or write."""
        self.do(self.file.check)

    def do(self, work: Callable[..., object], *arguments: Any) -> None:
        """Have the file do something, or raise WriteError."""
        try:
            work(*arguments)
        except OSError as error:
            raise WriteError(error.errno, f"{self.path}: {error.strerror}; reopen the run to go on") from error

    def flush(self) -> None:
        """Have HDF5 hand over everything it holds."""
        if self.dirty:
            with self.hdf5():
                self.handle.flush()
            self.dirty = False

    def close_handle(self) -> None:
        """Close HDF5's side; what it overwrites on the way is held."""
        with self.hdf5():
            self.datasets.clear()
            self.handle.close()
            self.handle = None

    def abandon(self) -> None:
        """Drop the file as it is on the disk."""
        self.file.abandon()
        with quiet:
            self.datasets.clear()
            # HDF5 may stumble over its own half-written state; the descriptor goes in any case
            with contextlib.suppress(RuntimeError, OSError, ValueError):
                if self.handle is not None:
                    self.handle.close()
            self.handle = None  # its identifiers must go inside `quiet`
            self.file.release()
