"""Checkpoint values as bytes and back: numbers, text, bytes, arrays, numpy generators, lists, tuples, nested dicts.

A JSON manifest describes the tree; arrays and bytes follow it one after the other. Nothing is pickled.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import text
from .casting import as_array
from .errors import DamagedError, FieldTypeError

HEAD = struct.Struct("<4sI")
MAGIC = b"RLAC"
MOST_DEEP = 100  # dicts and lists in one another; more could not be read back
LARGEST_POOL = 1024  # words of a seed sequence; numpy's own have 4
MOST_MANIFEST = 64 << 20  # bytes
KINDS = "biufcSU"
MISFITS = (struct.error, ArithmeticError, ValueError, TypeError, LookupError, AttributeError, RecursionError)
GENERATORS = ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")


def pack(values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a nested dict; FieldTypeError names the value that cannot be stored."""
    buffers: list[bytes] = []
    try:
        manifest = json.dumps(describe("", dict(values), buffers)).encode()
    except ValueError as error:  # an integer of thousands of digits
        raise FieldTypeError(f"checkpoint: {error}") from error
    if len(manifest) > MOST_MANIFEST:
        size = f"{len(manifest)} bytes of numbers, texts and names, at most {MOST_MANIFEST}"
        raise FieldTypeError(f"checkpoint: {size}; give long lists as arrays")
    return b"".join([HEAD.pack(MAGIC, len(manifest)), manifest, *buffers])


def describe(path: str, value: Any, buffers: list[bytes], depth: int = 0) -> Any:
    """Return the JSON that stands for `value`, its bytes appended to `buffers`."""
    if depth > MOST_DEEP:
        raise FieldTypeError(f"checkpoint {path[:200]}...: nested more than {MOST_DEEP} deep, or contains itself")
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise FieldTypeError(f"checkpoint {path or 'values'}: keys must be str, found {key!r}")
        return {"dict": {k: describe(f"{path}/{k}", v, buffers, depth + 1) for k, v in value.items()}}
    if isinstance(value, (list, tuple)):
        items = [describe(f"{path}/{k}", v, buffers, depth + 1) for k, v in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": items}
    if isinstance(value, complex) and not isinstance(value, np.generic):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, (bytes, bytearray, memoryview)):
        buffers.append(bytes(value))
        return {"bytes": len(buffers[-1])}
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        kind = "generator" if isinstance(value, np.random.Generator) else "random_state"
        return {kind: describe(path, state_of(path, value), buffers, depth)}
    return describe_array(path, value, buffers)


def state_of(path: str, rng: np.random.Generator | np.random.RandomState) -> dict[str, Any]:
    """Return a generator's state, with that of its seed sequence: children are spawned from it."""
    if isinstance(rng, np.random.RandomState):
        state, seeds = dict(rng.get_state(legacy=False)), None
    else:
        state, seeds = dict(rng.bit_generator.state), rng.bit_generator.seed_seq
    if state["bit_generator"] not in GENERATORS:
        raise FieldTypeError(f"checkpoint {path}: bit generator {state['bit_generator']!r} is not one of {GENERATORS}")
    return state | ({"seed_seq": seeds.state} if isinstance(seeds, np.random.SeedSequence) else {})


def describe_array(path: str, value: Any, buffers: list[bytes]) -> Any:
    """Return the JSON of an array, a numpy scalar or anything that numpy can read as one."""
    if not isinstance(value, (np.ndarray, np.generic)) and not hasattr(value, "__array__"):
        raise FieldTypeError(f"checkpoint {path}: {type(value).__name__} cannot be stored; give its bytes or arrays")
    array = as_array(f"checkpoint{path}", value)
    if array.dtype.hasobject or array.dtype.kind not in KINDS:
        raise FieldTypeError(f"checkpoint {path}: an array of {array.dtype} cannot be stored")
    buffers.append(array.tobytes())
    return {"scalar" if isinstance(value, np.generic) else "array": [array.dtype.str, list(array.shape)]}


def unpack(data: bytes) -> dict[str, Any]:
    """Undo `pack`; arrays come back as new, writable arrays."""
    try:
        magic, length = HEAD.unpack_from(data)
        if magic != MAGIC:
            raise ValueError("not a checkpoint")
        reader = Reader(data, HEAD.size + length)
        manifest = text.parse(data[HEAD.size : HEAD.size + length], MOST_MANIFEST, 2 * MOST_DEEP + 10)
        values = reader.build(manifest)
        if not isinstance(values, dict):
            raise ValueError("expected a dict")
        return values
    except MISFITS as error:
        raise DamagedError(f"checkpoint: {error}") from error


class Reader:
    """Rebuild values from their JSON, taking bytes in the order in which they were written."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data, self.at = data, at

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size < 0 or self.at + size > len(self.data):
            raise ValueError("shorter than its manifest says")
        self.at += size
        return self.data[self.at - size : self.at]

    def build(self, node: Any) -> Any:
        """Return the value of one node."""
        if not isinstance(node, dict):
            return node
        ((kind, body),) = node.items()
        return BUILDERS[kind](self, body)

    def array(self, body: Any) -> np.ndarray[Any, Any]:
        """Return the array of a [dtype, shape] node."""
        dtype, shape = np.dtype(str(body[0])[:20]), tuple(int(n) for n in body[1])
        if dtype.kind not in KINDS or min(shape, default=0) < 0:
            raise ValueError(f"an array of {dtype} and shape {shape}")
        count = int(np.prod(shape, dtype=object))
        array = np.frombuffer(self.take(count * dtype.itemsize), dtype).reshape(shape).copy()
        if dtype.kind == "U" and (array.reshape(-1).view(dtype.str[0] + "u4") > sys.maxunicode).any():
            raise ValueError("text of what are no characters")
        return array

    def generator(self, body: Any) -> np.random.Generator:
        """Return a Generator."""
        state = self.build(body)
        seeds = state.pop("seed_seq", None)
        bits = bits_of(state, seeds)
        bits.state = state
        return np.random.Generator(bits)

    def random_state(self, body: Any) -> np.random.RandomState:
        """Return a RandomState, which keeps a normal number beside its bits."""
        state = self.build(body)
        result = np.random.RandomState(bits_of(state, None))
        result.set_state(state)
        return result


def bits_of(state: Mapping[str, Any], seeds: Mapping[str, Any] | None) -> np.random.BitGenerator:
    """Return the bit generator that a state is for; only numpy's own are made."""
    if state["bit_generator"] not in GENERATORS:
        raise ValueError(f"bit generator {state['bit_generator']!r} is not one of {GENERATORS}")
    check_position(state)
    if seeds is not None and not seeds["pool_size"] <= LARGEST_POOL:
        raise ValueError(f"a seed sequence with a pool of {seeds['pool_size']} words")
    bits: np.random.BitGenerator = getattr(np.random, state["bit_generator"])(
        0 if seeds is None else np.random.SeedSequence(**seeds)
    )
    return bits


def check_position(state: Any) -> None:
    """Refuse a generator that would read behind its numbers; numpy believes what it is given."""
    kind = state["bit_generator"]
    position = state["state"]["pos"] if kind == "MT19937" else state["buffer_pos"] if kind == "Philox" else 0
    if not isinstance(position, int) or not 0 <= position <= (624 if kind == "MT19937" else 4):
        raise ValueError(f"{kind} at position {position!r}")


BUILDERS: dict[str, Callable[[Reader, Any], Any]] = {
    "dict": lambda reader, body: {k: reader.build(v) for k, v in body.items()},
    "list": lambda reader, body: [reader.build(v) for v in body],
    "tuple": lambda reader, body: tuple(reader.build(v) for v in body),
    "complex": lambda reader, body: complex(*body),
    "bytes": lambda reader, body: reader.take(body),
    "array": Reader.array,
    "scalar": lambda reader, body: reader.array(body)[()],
    "generator": Reader.generator,
    "random_state": Reader.random_state,
}
