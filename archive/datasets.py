"""Datasets of a kind that h5py's own calls do not make: bytes in one piece, pictures, growing fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import h5py
import numpy as np

from .codec import GZIP_LEVEL, ZSTD_LEVEL
from .schema import Field, is_observation


def growing(handle: h5py.File, name: str, field: Field, codec: str, rows: int, envs: int | None) -> None:
    """Create a field that grows along rows: shuffle, the codec's filter, fletcher32 last, `rows` rows a chunk.

    An axis of no elements may grow as well, since HDF5 wants chunks of at least one element.
    """
    lead, chunk = ((envs,), (rows, 1)) if envs is not None else ((), (rows,))
    dataset = handle.create_dataset(
        name,
        (0, *lead, *field.shape),
        np.dtype(field.dtype),
        chunks=(*chunk, *(max(n, 1) for n in field.shape)),
        maxshape=(None, *lead, *(n or None for n in field.shape)),
        shuffle=np.dtype(field.dtype).itemsize > 1,
        fletcher32=True,
        **filter_of(codec),
    )
    if envs is None and field.dtype == "|u1":
        mark_image(dataset, field.shape)
    if field.description:
        dataset.attrs["description"] = np.bytes_(field.description.encode())


def filter_of(codec: str) -> dict[str, Any]:
    """Return h5py's arguments for a codec's filter; hdf5plugin registers those that HDF5 does not bring."""
    if codec in ("gzip", "none"):
        return {"compression": "gzip", "compression_opts": GZIP_LEVEL if codec == "gzip" else 0}
    import hdf5plugin

    return dict(hdf5plugin.Zstd(clevel=ZSTD_LEVEL) if codec == "zstd" else hdf5plugin.LZ4())


def view(handle: h5py.File, name: str, source: str, env: int, rows: int) -> None:
    """Create a virtual dataset of one environment's rows, in the same file."""
    whole = handle[source]
    layout = h5py.VirtualLayout((rows, *whole.shape[2:]), whole.dtype)
    if rows:
        layout[:] = h5py.VirtualSource(".", source, whole.shape)[:rows, env]
    mark_image(handle.create_virtual_dataset(name, layout), whole.shape[2:])


def frame_fields(fields: Mapping[str, Field]) -> list[str]:
    """Return the fields of grey or colour frames: (H, W), (H, W, 1 or 3) or (1 or 3, H, W), uint8."""
    return [name for name, field in fields.items() if is_observation(name) and is_frame(field)]


def is_frame(field: Field) -> bool:
    """Tell whether rows of a field can be shown as pictures."""
    shape = field.shape
    grey = len(shape) == 2
    colour = len(shape) == 3 and (shape[0] in (1, 3) or shape[2] in (1, 3))
    sides = shape if grey else shape[1:] if len(shape) == 3 and shape[0] in (1, 3) else shape[:2]
    return field.dtype == "|u1" and (grey or colour) and min(sides, default=0) > 1


def contiguous(handle: h5py.File, name: str, size: int) -> h5py.Dataset:
    """Create a uint8 dataset whose bytes lie in one piece and are allocated at once, unwritten."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    space = h5py.h5s.create_simple((size,))
    kind = h5py.h5t.py_create(np.dtype("u1"))
    return h5py.Dataset(h5py.h5d.create(handle.id, name.encode(), kind, space, plist, links))


def mark_image(dataset: h5py.Dataset, shape: tuple[int, ...]) -> None:
    """Tell viewers that a field of frames is a picture: grey (H, W) or colour (H, W, 3)."""
    grey, colour = len(shape) == 2, len(shape) == 3 and shape[2] == 3
    if (grey or colour) and min(shape[:2]) > 1:
        texts = {"CLASS": "IMAGE", "IMAGE_VERSION": "1.2"}
        texts["IMAGE_SUBCLASS"] = "IMAGE_GRAYSCALE" if grey else "IMAGE_TRUECOLOR"
        texts |= {"DISPLAY_ORIGIN": "UL"} if grey else {"DISPLAY_ORIGIN": "UL", "INTERLACE_MODE": "INTERLACE_PIXEL"}
        for name, text in texts.items():
            write_terminated(dataset, name, text)
        if grey:
            dataset.attrs["IMAGE_WHITE_IS_ZERO"] = np.uint8(0)
            dataset.attrs["IMAGE_MINMAXRANGE"] = np.array([0, 255], np.uint8)


def write_terminated(dataset: h5py.Dataset, name: str, text: str) -> None:
    """Write a text attribute that ends in a zero, as HDF5's image convention wants it."""
    kind = h5py.h5t.TypeID.copy(h5py.h5t.C_S1)
    kind.set_size(len(text) + 1)
    kind.set_strpad(h5py.h5t.STR_NULLTERM)
    attribute = h5py.h5a.create(dataset.id, name.encode(), kind, h5py.h5s.create(h5py.h5s.SCALAR))
    attribute.write(np.array(text.encode(), f"S{len(text) + 1}"))
