"""The HDF5 objects of a run, looked at before they are read: the file may come from a stranger.

Only hard links are followed, so that no path leads out of the file, and a dataset is read only if it lies inside the
file in the form in which we write it: no virtual dataset, no external storage, no filter of somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import h5py
import numpy as np

from .errors import DamagedError

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]
FOREIGN = (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError)  # what a strange file may cause
SHUFFLE, FLETCHER32 = 2, 3  # numbers of HDF5's filters
FEW_PLACES = 10**7  # places of chunks in indexes, used or not, that are looked through in half a second
MORE_PLACES = 2  # for each byte of the file: environments may differ very much in length


@dataclass(frozen=True)
class Form:
    """What a dataset must be: None stands for any dtype, and for any length of an axis.

    `most`: how far it may grow, None without end; None alone: not looked at. `chunk`: its chunk's shape; None where it
    lies in one piece. `filters` by HDF5's numbers.
    """

    dtype: np.dtype[Any] | None
    shape: Shape
    most: Shape | None = None
    chunk: Shape | None = None
    filters: tuple[int, ...] = ()

    def fits(self, found: Form) -> bool:
        """Tell whether what was found is what is expected."""
        kind = self.dtype is None or self.dtype == found.dtype  # numpy takes None for float64
        same = kind and self.filters == found.filters and self.most in (None, found.most)
        return same and matches(self.shape, found.shape) and matches(self.chunk, found.chunk)

    def __str__(self) -> str:
        parts = [f"{self.dtype or 'text'} {self.shape}", f"chunks {self.chunk}", f"filters {self.filters}"]
        return ", ".join(parts)


def matches(expected: Shape | None, found: Shape | None) -> bool:
    """Tell whether axes are as long as expected."""
    if expected is None or found is None:
        return expected is found
    return len(expected) == len(found) and all(n in (None, m) for n, m in zip(expected, found, strict=True))


class Objects:
    """What an open HDF5 file of `end` bytes holds; `path` names the file in errors."""

    def __init__(self, handle: h5py.File, end: int, path: str) -> None:
        self.root, self.end, self.path = h5py.h5g.open(handle.id, b"/"), end, path
        self.found: dict[str, Any] = {"": self.root}  # groups
        self.places = FEW_PLACES + end * MORE_PLACES  # that may still be looked through

    def refuse(self, name: str, what: str) -> DamagedError:
        """Return the error that says what is wrong with an object."""
        return DamagedError(f"{self.path}: /{name}: {what}")

    def find(self, name: str) -> Any:
        """Return the identifier of an object that is reached by hard links alone, None if it is not there."""
        if name in self.found:
            return self.found[name]
        above, _, last = name.rpartition("/")
        group, part = self.find(above), last.encode()
        if not isinstance(group, h5py.h5g.GroupID | None):
            raise self.refuse(name, "expected a group above it")
        if group is None or not group.links.exists(part):
            return None
        if group.links.get_info(part).type != h5py.h5l.TYPE_HARD:
            raise self.refuse(name, "a link that may lead elsewhere; only hard links are followed")
        found = h5py.h5o.open(group, part)
        if isinstance(found, h5py.h5g.GroupID):
            self.found[name] = found
        return found

    def dataset(self, name: str, form: Form) -> h5py.Dataset:
        """Return a dataset that has the expected form."""
        found = self.find(name)
        if not isinstance(found, h5py.h5d.DatasetID):
            raise self.refuse(name, "expected a dataset, found " + ("none" if found is None else "something else"))
        stored = found.get_create_plist()
        chunked = stored.get_layout() == h5py.h5d.CHUNKED
        if stored.get_external_count() or not (chunked or stored.get_layout() == h5py.h5d.CONTIGUOUS):
            raise self.refuse(name, "its values are elsewhere: external storage or a virtual dataset")
        dataset = h5py.Dataset(found)
        filters = tuple(stored.get_filter(k)[0] for k in range(stored.get_nfilters()))
        have = Form(dataset.dtype, dataset.shape, dataset.maxshape, stored.get_chunk() if chunked else None, filters)
        if not form.fits(have):
            raise self.refuse(name, f"expected {form}; found {have}")
        return dataset

    def chunks(self, name: str, dataset: h5py.Dataset, most: int) -> Array:
        """Return first element by axis, offset and size (n, axes + 2) of every chunk, all inside the file.

        `most`: bytes of the largest chunk. Cost: about 1 us a chunk.
        """
        shape = dataset.shape
        self.places -= prod(-(-n // c) for n, c in zip(shape, dataset.chunks, strict=True))
        if self.places < 0:
            raise self.refuse(name, "room for more chunks than the file can hold")
        found: list[tuple[int, ...]] = []
        if all(shape):
            dataset.id.chunk_iter(
                lambda i: found.append((*i.chunk_offset, i.byte_offset, i.size if not i.filter_mask else most + 1))
            )
        table = np.array(found, np.uint64).reshape(-1, len(shape) + 2)
        offset, size = table[:, -2], table[:, -1]
        if (size > most).any() or (offset > self.end).any() or (offset + size > self.end).any():
            raise self.refuse(name, f"a chunk of more than {most} bytes, not filtered, or not inside the file")
        if int(size.sum()) > self.end:
            raise self.refuse(name, "chunks that lie on one another")
        return table.astype(np.int64)

    def text(self, name: str, most: int) -> bytes:
        """Return a text of at most `most` bytes."""
        dataset = self.dataset(name, Form(None, (1,), chunk=(1,), filters=(FLETCHER32,)))
        size = dataset.dtype.itemsize
        if dataset.dtype.kind != "S" or size > most:
            raise self.refuse(name, f"expected a text of at most {most} bytes, found {dataset.dtype}")
        if self.chunks(name, dataset, size + 4)[:, -1].tolist() != [size + 4]:
            raise self.refuse(name, "a text that is not there")
        return bytes(dataset[0])

    def piece(self, name: str, most: int) -> bytes:
        """Return bytes that lie in one piece, at most `most`."""
        dataset = self.dataset(name, Form(np.dtype("u1"), (None,)))
        offset, size = dataset.id.get_offset(), dataset.shape[0]
        if offset is None or size > most or offset + size > self.end:
            raise self.refuse(name, f"expected at most {most} bytes inside the file")
        return bytes(dataset[()])

    def attribute(self, name: str, dtype: np.dtype[Any]) -> Any:
        """Return an attribute of the root, one value of this dtype."""
        found = h5py.h5a.open(self.root, name.encode()) if h5py.h5a.exists(self.root, name.encode()) else None
        if found is None or found.shape != () or found.dtype != dtype:
            raise self.refuse("", f"attribute {name!r}: expected one {dtype}")
        value = np.empty((), dtype)
        found.read(value)
        return value[()]
