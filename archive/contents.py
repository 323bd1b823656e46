"""What HDF5 says is in a file, read as far as it can be read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import h5py
import numpy as np

from ._file import ReadView
from .block import Block
from .codec import MOST_EXPANSION
from .errors import DamagedError
from .finding import Findings
from .guard import quiet
from .header import Header
from .lost import Lost
from .objects import Objects
from .record import Record
from .rewind import Rewind
from .schema import Schema
from .snapshot import check_root, list_chunks, read_column, read_text
from .text import MOST_TEXT

Array = np.ndarray[Any, Any]
MOST_PREVIEW = 1 << 27  # bytes that a contact sheet which is read may become
LISTED = ("steps/", "episodes/", "checkpoints/", "meta/")
BROKEN = "HDF5 and the run fail on it; salvage finds the rows"


@dataclass
class Contents:
    """Chunks and extents by field, episodes by column, texts, blocks: those that could be read."""

    record: Record
    chunks: dict[str, tuple[Array, Array, Array]] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    episodes: dict[str, Array] = field(default_factory=dict)
    texts: dict[str, Any] = field(default_factory=dict)
    rewinds: list[Rewind] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    root: dict[str, Any] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)


def examine(handle: h5py.File, header: Header, record: Record, path: str) -> Contents:
    """Read everything that HDF5 holds; what cannot be read is a finding."""
    result, objects = Contents(record), Objects(handle, record.end, path)
    found = result.findings
    with found.of("HDF5 structure", BROKEN):
        check_root(objects, header)
        handle.visititems(partial(visit, objects))
    with found.of("attributes", "other readers need them"):
        result.root = {k: v.decode() if isinstance(v, bytes) else v for k, v in handle.attrs.items()}
    for name in header.fields:
        with found.of(f"chunks of field {name!r}", BROKEN):
            result.chunks[name] = list_chunks(objects, header, name)
            result.extents[name] = handle[f"steps/{name}"].shape[0]
    for name, dtype in header.schema.columns.items():
        with found.of(f"episode column {name!r}", "the run cannot be opened; salvage rebuilds the table"):
            result.episodes[name] = read_column(objects, name, dtype, record)
    with found.of("meta", BROKEN):
        for name in handle["meta"]:
            read_meta(objects, header, name, result)
    return result


def examined(view: ReadView, header: Header, record: Record, path: str) -> Contents:
    """Examine what a view shows; a file that HDF5 does not open is a finding."""
    result = Contents(record)
    with quiet, result.findings.of("HDF5 structure", BROKEN):
        handle = h5py.File(view, "r")
        try:
            result = examine(handle, header, record, path)
        finally:
            handle.close()
    return result


def visit(objects: Objects, name: str, item: Any) -> None:
    """Read what belongs to an object that nobody else looks at: attributes, chunk index, the contact sheet."""
    dict(item.attrs)
    if not isinstance(item, h5py.Dataset) or name.startswith(LISTED) or not item.chunks or item.is_virtual:
        return
    stored = int(objects.chunks(name, item, objects.end)[:, -1].sum())
    if name == "preview/contact_sheet" and stored * MOST_EXPANSION <= MOST_PREVIEW:
        item[()]


def read_meta(objects: Objects, header: Header, name: str, result: Contents) -> None:
    """Read one dataset of /meta."""
    found = result.findings
    if name.endswith("_json"):
        with found.of(f"meta/{name}", "the run cannot be opened; salvage does without"):
            result.texts[name.removesuffix("_json")] = read_text(objects, f"meta/{name}")
        return
    costs = {"schema": "it would be missed if the file lost its beginning", "rewind": BROKEN, "lost": BROKEN}
    with found.of(f"meta/{name}", costs.get(name.partition("_")[0], BROKEN)):
        block = Block.parse(objects.piece(f"meta/{name}", MOST_TEXT))
        if block is None:
            raise DamagedError("the block is damaged")
        if block.kind == Block.REWIND:
            rewind = Rewind.from_json(block.values)
            if not rewind.fits(header.schema.envs):
                raise DamagedError("the block is no rewind of this run")
            result.rewinds.append(rewind)
        elif block.kind == Block.LOST:
            result.lost.append(Lost.from_json(block.values))


def check_contents(contents: Contents, header: Header) -> None:
    """Compare what is told twice: attributes, the schema, extents."""
    found, record, root = contents.findings, contents.record, contents.root
    steps = int(contents.episodes["length"].sum()) if "length" in contents.episodes else None
    expected = {"run_id": header.run_id, "complete": int(record.in_fields)}
    if record.in_fields and steps is not None:
        expected |= {"total_episodes": record.episodes, "total_steps": steps}
    for name, value in expected.items() if root else ():
        if np.any(root.get(name) != value):
            what = f"attribute {name} is {root.get(name)!r}, expected {value!r}"
            found.add(what, "attributes", "other readers are misled")
    if "schema" in contents.texts:
        with found.of("meta/schema_json", "other readers are misled"):
            told, real = Schema.from_json(contents.texts["schema"]), header.schema
            if replace(told, autoreset=real.autoreset) != real:
                raise DamagedError("contradicts the schema block")
    longest = int(record.rows.max()) if record.in_fields else 0
    for name, extent in contents.extents.items():
        if extent < longest:
            found.add(f"has {extent} rows, expected {longest}", f"field {name!r}", "other readers see fewer rows")


def ranges_of(contents: Contents, env: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the rows of an environment that were given up, and those that were lost."""
    given_up = [(r.back_to[env], r.rows[env]) for r in contents.rewinds if r.back_to[env] < r.rows[env]]
    return given_up, [(start, stop) for lost in contents.lost for e, start, stop in lost.ranges if e == env]
