"""The header: what never changes about a run, as its schema block in the file's bytes says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import disk
from .block import Block
from .chunk import Trailer
from .errors import NotARunError, SchemaError, VersionError
from .layout import FORMAT, FORMAT_VERSION
from .record import Region
from .schema import Schema

SIGNATURE = b"\x89HDF\r\n\x1a\n"
SEARCHED = 1 << 20  # the schema block is among the first things that are written


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
            raise VersionError(f"{path}: format version {version}; this package reads up to {FORMAT_VERSION}")
        try:
            schema = Schema.from_json(values["schema"])
        except SchemaError as error:
            raise SchemaError(f"{path}: {error}") from error
        offset, room = values["records"]
        return cls(
            values["run_id"], schema, values["rows"], Region(int(offset, 16), room), values.get("compression", "gzip")
        )

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
        block = Block.find(start, Block.SCHEMA)
        if block is None or block.values.get("format") != FORMAT:
            raise NotARunError(f"{path}: an HDF5 file, but not a run recorded by {FORMAT}")
        try:
            return cls.from_json(block.values, path)
        except (KeyError, TypeError, AttributeError) as error:
            raise NotARunError(f"{path}: schema block without {error}") from error
