"""The header: what never changes about a run, as its schema block in the file's bytes says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import disk
from .block import Block
from .casting import is_int
from .chunk import Trailer
from .codec import CODECS
from .errors import ArchiveError, DamagedError, NotARunError, SchemaError, VersionError
from .layout import FORMAT, FORMAT_VERSION
from .record import Region
from .schema import COMPRESSIONS, Schema
from .superblock import SIGNATURE

SEARCHED = 1 << 20  # the schema block is among the first things that are written
MOST_CHUNK = 64 << 20  # decoded bytes of a chunk of more than one row
MOST_RECORDS = 64 << 20  # bytes of the commit region


@dataclass(frozen=True)
class Header:
    """Run id, schema, rows per chunk and the place of the commit records."""

    run_id: str
    schema: Schema
    rows: Mapping[str, int]
    region: Region
    compression: str = "gzip"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields; a field's number is its place here."""
        return tuple(self.schema.steps)

    def codec(self, name: str) -> str:
        """Return the name of a field's codec: its own, or the run's."""
        return self.schema.steps[name].compression or self.compression

    def row_bytes(self, name: str) -> int:
        """Return the bytes of one row of a field."""
        return self.schema.steps[name].nbytes

    def trailer(self, number: int, env: int, first: int, rows: int, epoch: int) -> Trailer:
        """Return the trailer of a chunk of field `number`."""
        return Trailer(bytes.fromhex(self.run_id), epoch, number, env, rows, first)

    def to_json(self) -> dict[str, Any]:
        """Return the values of the schema block."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run_id": self.run_id,
            "schema": self.schema.to_json(),
            "rows": dict(self.rows),
            "compression": self.compression,
            "records": [f"{self.region.offset:016x}", self.region.room],  # fixed width: known before it is placed
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], path: str) -> Header:
        """Undo `to_json`; `path` is for messages."""
        version = values.get("format_version")
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise VersionError(f"{path}: format version {version!r}; this package reads up to {FORMAT_VERSION}")
        try:
            schema = Schema.from_json(values["schema"])
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from error
        (offset, room), compression = values["records"], values.get("compression", "gzip")
        header = cls(values["run_id"], schema, values["rows"], Region(int(offset, 16), room), compression)
        wrong = header.nonsense()
        if wrong:
            raise DamagedError(f"{path}: schema block: {wrong}")
        return header

    def nonsense(self) -> str:
        """Return what about these values no run can have, empty if nothing."""
        if not isinstance(self.run_id, str) or not re.fullmatch("[0-9a-f]{16}", self.run_id):
            return f"run id {str(self.run_id)[:50]!r}: expected 16 hexadecimal digits"
        if self.compression not in COMPRESSIONS:
            return f"compression {str(self.compression)[:50]!r}: expected one of {', '.join(CODECS)}"
        if not isinstance(self.rows, Mapping) or set(self.rows) != set(self.fields):
            return "the fields that have rows are not those of the schema"
        for name, rows in self.rows.items():
            if not is_int(rows) or not 1 <= rows <= max(MOST_CHUNK // max(self.row_bytes(name), 1), 1):
                return f"field {name!r}: chunks of {rows!r} rows of {self.row_bytes(name)} bytes"
        room, size = Region.bytes_for(self.schema.envs, len(self.fields))
        if self.region.room != room or not 0 < self.region.offset < 1 << 62 or size > MOST_RECORDS:
            where = f"{self.region.room!r} bytes at {self.region.offset}"
            return f"records of {where}, expected {room}, and at most {MOST_RECORDS // 4} (environments times fields)"
        return ""

    @classmethod
    def read(cls, fd: int, path: str) -> Header:
        """Find the schema block of an open file."""
        start = disk.read_at(fd, SEARCHED, 0)
        if not start.startswith(SIGNATURE):
            raise NotARunError(f"{path}: not an HDF5 file")
        return cls.find(start, path)

    @classmethod
    def find(cls, start: bytes, path: str) -> Header:
        """Find the schema block in the first bytes of a file."""
        try:
            block = Block.find(start, Block.SCHEMA)
        except DamagedError as error:
            raise DamagedError(f"{path}: {error}") from error
        if block is None or block.values.get("format") != FORMAT:
            raise NotARunError(f"{path}: an HDF5 file, but not a run recorded by {FORMAT}")
        return cls.of(block, path)

    @classmethod
    def of(cls, block: Block, path: str) -> Header:
        """Return what a schema block says; NotARunError if it makes no sense."""
        try:
            return cls.from_json(block.values, path)
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            if isinstance(error, ArchiveError):
                raise
            raise NotARunError(f"{path}: schema block that makes no sense: {error!r}") from error
