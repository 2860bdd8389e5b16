"""A model's work by layers as JSON, as caches keep it: an array is its shape and its numbers, which stay exact."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import numpy as np

from automap_models.core.model_work import ModelWork
from automap_models.errors import BadInput


def encode_model_work(work: ModelWork) -> bytes:
    """The document."""
    return msgspec.json.encode(work, enc_hook=_encoded)


def decode_model_work(content: bytes) -> ModelWork:
    """The work in a document of `encode_model_work`.

    Raises:
        BadInput: it is something else.
    """
    try:
        return msgspec.json.decode(content, type=ModelWork, dec_hook=_array)
    except (msgspec.MsgspecError, ValueError, TypeError):
        raise BadInput("is no model's work", where="cache", do="delete the entry") from None


def _encoded(array: Any) -> Any:
    return [array.shape, array.ravel().tolist()]


def _array(kind: Any, value: Any) -> Any:
    """The array of a declared type, NDArray[scalar type]."""
    shape, numbers = value
    return np.array(numbers, dtype=get_args(get_args(kind)[1])[0]).reshape(shape)
