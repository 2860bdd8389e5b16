"""Records with arrays as JSON, as caches keep them: an array is its shape and its bytes, so that it stays exact."""

from __future__ import annotations

import base64
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

from automap_models.errors import BadInput

T = TypeVar("T")


def encode_record(record: Any) -> bytes:
    """The document of a data class whose parts are such, arrays and plain values; equal records give equal bytes."""
    return msgspec.json.encode(record, enc_hook=lambda array: [array.shape, array.tobytes()])


def decode_record(content: bytes, kind: type[T]) -> T:
    """The record of that type in a document of `encode_record`; its arrays are read-only.

    Raises:
        BadInput: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=kind, dec_hook=_array)
    except (msgspec.MsgspecError, ValueError, TypeError):
        raise BadInput(f"is no {kind.__name__} of this version", where="cache", do="delete the entry") from None


def _array(kind: Any, value: Any) -> Any:
    """The array of a declared type, NDArray[scalar type]; a value that may be of any type as it is."""
    if kind is object:
        return value
    shape, content = value
    return np.frombuffer(base64.b64decode(content), get_args(get_args(kind)[1])[0]).reshape(shape)
