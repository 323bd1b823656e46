"""Datasets of a kind that h5py's own calls do not make: bytes in one piece, pictures, growing fields."""

from __future__ import annotations

import h5py
import numpy as np

from .schema import Field


def growing(handle: h5py.File, name: str, field: Field, rows: int, envs: int | None) -> None:
    """Create a field that grows along rows: gzip behind shuffle, fletcher32 last, `rows` rows a chunk."""
    lead, chunk = ((envs,), (rows, 1)) if envs is not None else ((), (rows,))
    dataset = handle.create_dataset(
        name,
        (0, *lead, *field.shape),
        np.dtype(field.dtype),
        chunks=(*chunk, *field.shape),
        maxshape=(None, *lead, *field.shape),
        compression="gzip",
        compression_opts=2,
        shuffle=np.dtype(field.dtype).itemsize > 1,
        fletcher32=True,
    )
    if envs is None and field.dtype == "|u1":
        mark_image(dataset, field.shape)
    if field.description:
        dataset.attrs["description"] = np.bytes_(field.description.encode())


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
