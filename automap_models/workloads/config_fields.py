"""What the families of config.json have in common: the ranges of sizes, and what does not fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from msgspec import Meta

from automap_models.errors import BadInput
from automap_models.formats.schema import Foreign, wrong

if TYPE_CHECKING:
    from automap_models.workloads.blocks import Activation
    from automap_models.workloads.training import Architecture

FACTORY = "a factory of your own (my_package.my_module:make_model), which works for any model"

Size = Annotated[int, Meta(ge=1, le=1 << 24)]
"""Of one dimension of a parameter."""
Heads = Annotated[int, Meta(ge=1, le=1 << 14)]
Layers = Annotated[int, Meta(ge=1, le=1000)]
Few = Annotated[int, Meta(ge=1, le=64)]
"""Experts of a token: each is chosen by operations of its own."""
Epsilon = Annotated[float, Meta(gt=0, lt=1)]
Dropout = Annotated[float, Meta(ge=0, lt=1)]
Dtype = Literal["float32", "bfloat16", "float16"]

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Hugging Face's word for an activation → ours."""


class Family(Foreign):
    """What all families have in common; `positions` and `architecture` are of each family's own."""

    torch_dtype: str | None = None
    dtype: str | None = None
    architectures: tuple[str, ...] | None = None
    num_labels: Size | None = None
    id2label: dict[str, Any] | None = None

    classifies: ClassVar[bool] = False
    """Whether models of the family that classify sequences are known: `classes` says into how many."""

    @property
    def classes(self) -> int | None:
        """Columns of the matrix that is in place of the vocabulary's; None where the model has the vocabulary's."""
        if not any(name.endswith("ForSequenceClassification") for name in self.architectures or ()):
            return None
        return self.num_labels or len(self.id2label or {}) or 2

    def compute_dtype(self) -> Dtype:
        """What the model is published in; float32 where the file does not say, or says what nothing computes in."""
        match self.torch_dtype or self.dtype:
            case "bfloat16" | "float16" as dtype:
                return dtype
        return "float32"

    def without_dropout(self) -> Self:
        """The same without dropout."""
        return self

    def positions(self) -> tuple[int | None, bool]:
        """For how many tokens the model was made, None for any number; whether it has a learned position for each."""
        raise NotImplementedError

    def architecture(self, where: str) -> Architecture:
        """The model; `where` is the file's name for messages.

        Raises:
            BadInput: sizes do not fit each other.
        """
        raise NotImplementedError


def unsupported(where: str, path: str, value: object, expected: str) -> BadInput:
    """What to say of a value that a model may well have and no family here knows."""
    return wrong(path, value, expected, where, f"give a model that has that, or {FACTORY}")


def known_activation(where: str, key: str, name: str) -> Activation:
    """Our word for an activation.

    Raises:
        BadInput: it is none of those.
    """
    if name not in _ACTIVATIONS:
        raise unsupported(where, f"$.{key}", name, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def one_of(where: str, **sizes: int | None) -> int:
    """The first of sizes that go by several names which the file has.

    Raises:
        BadInput: it has none.
    """
    known = next((size for size in sizes.values() if size is not None), None)
    if known is None:
        raise BadInput(f"$.{' or $.'.join(sizes)} is missing", where=where, do="add it")
    return known


def require_divides(where: str, key: str, count: int, whole_key: str, whole: int) -> None:
    """Refuse a number that does not divide another.

    Raises:
        BadInput: it does not.
    """
    if whole % count:
        raise BadInput(
            f"$.{key} is {count}, which does not divide $.{whole_key}, {whole}", where=where, do="check both numbers"
        )


def require_enough(where: str, per_token: int, key: str, experts: int) -> None:
    """Refuse more experts for a token than there are.

    Raises:
        BadInput: there are fewer.
    """
    if per_token > experts:
        do = "check both numbers"
        raise BadInput(f"$.num_experts_per_tok is {per_token}, more than $.{key}, {experts}", where=where, do=do)
