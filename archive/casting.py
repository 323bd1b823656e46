"""Values as arrays of a field's dtype: what is accepted, and how it is refused by name."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np

from .errors import FieldError, FieldTypeError


def as_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return `value` as an array; anything with __array__ or dlpack on the CPU will do."""
    if issubclass(type(value), np.ndarray):  # some objects only say that they are arrays
        return value  # type: ignore[no-any-return]
    try:
        return (
            np.asarray(value)
            if not hasattr(value, "__dlpack__") or hasattr(value, "__array__")
            else np.from_dlpack(value)
        )
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise FieldTypeError(
            f"field {name!r}: {type(value).__name__} cannot be read as an array on the CPU ({error}); "
            "move it to the CPU first, for instance with .cpu().numpy()"
        ) from error


def is_int(value: Any) -> TypeGuard[int]:
    """Tell whether a value is an integer, Python's or numpy's, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[float]:
    """Tell whether a value is a real number, Python's or numpy's, and no bool."""
    return is_int(value) or isinstance(value, (float, np.floating))


def flag(name: str, value: Any) -> bool:
    """Return a flag given as bool, Python's or numpy's, or as 0 or 1."""
    array = as_array(name, value)
    if array.shape != () or array.dtype.kind not in "biu" or array not in (0, 1):
        raise FieldTypeError(f"{name}: expected True or False, found {value!r}")
    return bool(array)


def encoded(name: str, value: Any, target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return text as UTF-8 of the target's length; what does not fit, or ends in NUL, is refused."""
    array = value if isinstance(value, np.ndarray) else np.asarray(value, object)  # "S" and "U" would cut a last NUL
    items = []
    for text in array.astype(object).reshape(-1):
        try:
            item = text.encode() if isinstance(text, str) else text
            item.decode()
        except UnicodeError as error:
            raise FieldError(f"field {name!r}: {text!r} is not UTF-8: {error}") from error
        except AttributeError:
            raise FieldTypeError(f"field {name!r}: expected text, found {type(text).__name__}") from None
        if len(item) > target.itemsize or item.endswith(b"\0"):
            raise FieldError(f"field {name!r}: {item!r} does not fit {target.itemsize} bytes of UTF-8, or ends in NUL")
        items.append(item)
    return np.array(items, target).reshape(array.shape)


def convert(name: str, array: np.ndarray[Any, Any], target: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Cast under the rules of `Field.cast`."""
    source = array.dtype
    whole = source.kind in "biu" or (source.kind == "O" and all(is_int(v) for v in array.flat))
    if source.kind not in "biufc" and not whole:
        raise FieldTypeError(f"field {name!r}: expected {target}, found {source}")
    if target.kind in "biu" and whole:
        low, high = (0, 1) if target.kind == "b" else (int(np.iinfo(target).min), int(np.iinfo(target).max))
        for extreme in (array.min(), array.max()) if array.size else ():
            if not low <= int(extreme) <= high:
                raise FieldError(f"field {name!r}: {extreme} does not fit {target}, which holds {low} to {high}")
        return array.astype(target)
    if not np.can_cast(source, target, "same_kind"):
        raise FieldTypeError(f"field {name!r}: expected {target}, found {source}")
    with np.errstate(over="ignore"):
        return array.astype(target)
