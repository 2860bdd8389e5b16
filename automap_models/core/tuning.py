"""What of a model is trained, and by which optimiser: what full training and fine-tuning differ in.

    --freeze embedding --freeze 'block_?'     layers, or matrices of layers, that are not trained
    --lora 16:q,v                             adapters beside matrices (2106.09685): y = x W + (x A) B, with W frozen
    --quantize                                frozen matrices of blocks in 4 bits (QLoRA, 2305.14314)
    --optimizer lion --states bf16            what is kept for every parameter that is trained

A layer is called by its place, `embedding`, `block_0` … or `head`, and of a model of images `vision` or `projector`; a
matrix in it by `block_0/q` (MATRICES). What is frozen has no gradient, no optimiser's state and no products of
gradients of weights, and saves no inputs of theirs; layers before the first one that trains have no backward pass.

    optimiser      moments, bytes a parameter, in fp32
    adamw          8
    adamw-8bit     2 + 8 / 256, a number of fp32 for each block of 256 of both moments (2110.02861)
    lion, sgd      4, of sgd with momentum
    muon           4, and no second moment of embeddings; its products are left out, about 1 % of a step
    adafactor      0: a row and a column of each matrix (1804.04235)

With states in bf16 moments of more than a byte are halved, and 16-bit weights have no fp32 copy: these are trained
themselves, as torchtune does. Else that copy, 4 bytes, stands beside the moments.

    loss      a sample                           beside the model that is trained
    tokens    a sequence, which several          nothing
              documents may share
    dpo       a chosen and a rejected sequence   a frozen copy of it, which runs forward (2305.18290, equation 7); with
                                                 adapters it is the model itself, with these switched off
    pairs     the same                           nothing: ORPO (2403.07691), SimPO, and DPO whose reference ran before
    reward    the same                           nothing; one number is in place of the vocabulary (2203.02155,
                                                 equation 1)

Attention reads the document, or the one of both sequences, that a token is of. Documents are as if all were as long:
where they are not, the length that costs as much is the sum of squares of their lengths over the sum of their lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, get_args

from automap_models.core.units import LARGEST
from automap_models.errors import BadInput

Optimizer = Literal["adamw", "adamw-8bit", "adafactor", "sgd", "muon", "lion"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
States = Literal["fp32", "bf16"]
STATES: tuple[States, ...] = get_args(States)
Loss = Literal["tokens", "dpo", "pairs", "reward"]
LOSSES: tuple[Loss, ...] = get_args(Loss)
MOMENT_BYTES = {"adamw": 8.0, "adamw-8bit": 2.03125, "adafactor": 0.0, "sgd": 4.0, "muon": 4.0, "lion": 4.0}
"""Of a parameter, in fp32."""
QUANTIZED_BYTES = 0.5 + 0.127 / 8
"""Of a parameter in NF4 with a scale for each block of 64, itself in 8 bits (2305.14314, section 3)."""
ADAPTER = "adapter"
MATRICES = (*("q", "k", "v", "o", "gate", "up", "down", "router", "logits", "embedding", "norm", "bias"), "other")
"""What names of matrices and vectors in a layer there are; `other` are those of latents and recurrences."""


class LayerTraining(NamedTuple):
    """What of one layer is trained.

    Attributes:
        frozen: patterns of its MATRICES that are not.
        rank: of adapters; 0 is none.
        targets: patterns of the matrices that have one.
        quantized: whether frozen matrices are in 4 bits.
        backward: whether gradients go through it: it, or a layer before it, is trained.
        document: tokens that attention reads at most; None: all of a sample.
        copied: whether there is a frozen copy of it, too.
    """

    frozen: tuple[str, ...] = ()
    rank: int = 0
    targets: tuple[str, ...] = ()
    quantized: bool = False
    backward: bool = True
    document: int | None = None
    copied: bool = False

    def trains(self, name: str) -> bool:
        """Whether a matrix is trained."""
        return name == ADAPTER or not any(fnmatchcase(name, pattern) for pattern in self.frozen)

    def adapts(self, name: str) -> bool:
        """Whether a matrix has an adapter."""
        return self.rank > 0 and name != ADAPTER and any(fnmatchcase(name, pattern) for pattern in self.targets)

    def saves(self, name: str) -> bool:
        """Whether gradients of parameters need what a matrix is multiplied with."""
        return self.trains(name) or self.adapts(name)


ALL = LayerTraining()


@dataclass(frozen=True, kw_only=True)
class Training:
    """What of a model is trained, and by which optimiser; see this module.

    Attributes:
        optimizer: one of OPTIMIZERS.
        states: what its moments are in.
        freeze: patterns of layers, or of matrices of layers, that are not trained.
        rank: of adapters beside frozen matrices of all blocks; 0 is none.
        targets: patterns of the matrices that have one.
        quantize: whether the frozen matrices of blocks are in 4 bits.
        loss: one of LOSSES.
        packed: tokens of each of the documents that share a sample; 0: a sample is one.

    Raises:
        BadInput: a name or a pattern that nothing has, or fields that contradict one another.
    """

    optimizer: Optimizer = "adamw"
    states: States = "fp32"
    freeze: tuple[str, ...] = ()
    rank: int = 0
    targets: tuple[str, ...] = ("*",)
    quantize: bool = False
    loss: Loss = "tokens"
    packed: int = 0

    def __post_init__(self) -> None:
        for name, values in (("optimizer", OPTIMIZERS), ("states", STATES), ("loss", LOSSES)):
            if (value := getattr(self, name)) not in values:
                raise BadInput(f"{value!r} is none", where=f"`{name}`", do=f"choose from {', '.join(values)}")
        if self.quantize and not self.rank:
            raise BadInput("trains nothing without adapters", where="`quantize`", do="give `lora`, too")
        if self.rank and self.freeze:
            raise BadInput("all but the adapters is frozen with `lora`", where="`freeze`", do="leave it out")
        if self.packed and (self.loss != "tokens" or not 1 <= self.packed <= LARGEST):
            what = f"is {self.packed}" if self.loss == "tokens" else f"a sample of {self.loss} is a pair of sequences"
            raise BadInput(what, where="`packed`", do="give tokens of a document, for samples of several")
        for pattern in self.targets:
            _require_matrix(pattern, "`lora`")

    @classmethod
    def of_options(cls, lora: str | int | None = None, freeze: Sequence[str] = (), **others: object) -> Training:
        """From options: `lora` is the rank, or rank and targets as in "16:q,v".

        Raises:
            BadInput: see the class.
        """
        rank, _, targets = str(lora or 0).partition(":")
        if not (rank.isascii() and rank.isdigit()) or (lora is not None and int(rank) < 1):
            do = "give a rank, or a rank and matrices, such as 16:q,v"
            raise BadInput(f"{lora!r} is no rank", where="`lora`", do=do)
        several = (freeze,) if isinstance(freeze, str) else tuple(freeze)
        return cls(rank=int(rank), targets=tuple(targets.split(",")) if targets else ("*",), freeze=several, **others)  # type: ignore[arg-type]

    @property
    def is_full(self) -> bool:
        """Whether all is trained by AdamW in fp32, on samples of one document."""
        return self == FULL

    @property
    def trains_all(self) -> bool:
        """Whether all is trained by AdamW in fp32, whatever a sample is."""
        return replace(self, loss="tokens", packed=0).is_full

    @property
    def sequences(self) -> int:
        """Of a sample."""
        return 1 if self.loss == "tokens" else 2

    @property
    def has_reference(self) -> bool:
        """Whether a model that is not trained runs forward, too."""
        return self.loss == "dpo"

    @property
    def has_copy(self) -> bool:
        """Whether that has weights of its own."""
        return self.has_reference and not self.rank

    def layers(self, blocks: int, tied: bool, tower: bool = False, document: int | None = None) -> list[LayerTraining]:
        """[L+2] of the embedding, the blocks and the head; before these of a tower, if there is one, and its projector.

        Args:
            blocks: how many.
            tied: whether the embedding is the output matrix, too.
            tower: whether there is one.
            document: tokens that attention of blocks reads at most; None: all.

        Raises:
            BadInput: a pattern matches nothing, nothing is left to train, or a tied embedding is frozen at one end.
        """
        before = ["vision", "projector"] * tower
        places = [*before, "embedding", *(f"block_{i}" for i in range(blocks)), "head"]
        for pattern in self.freeze:
            place, _, name = pattern.partition("/")
            if not any(fnmatchcase(one, place) for one in places):
                first = ", ".join([*before, "embedding"])
                do = f"give {first}, block_0 to block_{blocks - 1}, head, or a pattern of them"
                raise BadInput(f"no layer is called {place!r}", where="`freeze`", do=do)
            _require_matrix(name or "*", "`freeze`")
        layers = list[LayerTraining]()
        backward = False
        for place in places:
            rank = self.rank if place.startswith("block_") else 0
            frozen = ("*",) if self.rank else self._frozen(place)
            backward = backward or rank > 0 or "*" not in frozen
            targets, quantized = self.targets if rank else (), self.quantize and rank > 0
            of_text = None if place in before else document
            layers.append(LayerTraining(frozen, rank, targets, quantized, backward, of_text, self.has_copy))
        if not backward:
            raise BadInput("nothing is left to train", where="`freeze`", do="leave a layer out")
        if tied and layers[len(before)].trains("embedding") != layers[-1].trains("logits"):
            what = "the word embedding is the output matrix, too, and frozen as one of the two"
            raise BadInput(what, where="`freeze`", do="freeze both embedding and head/logits")
        return layers

    def _frozen(self, place: str) -> tuple[str, ...]:
        """Patterns of matrices of a layer."""
        parts = (pattern.partition("/") for pattern in self.freeze)
        return tuple(name or "*" for scope, _, name in parts if fnmatchcase(place, scope))

    def parameter_bytes(self, precision: str, gradient_bytes: int = 4) -> tuple[float, float, float]:
        """Bytes of the weight, the gradient and the optimiser's state of a parameter that is trained, undivided.

        Args:
            precision: of weights and activations.
            gradient_bytes: of a gradient beside 16-bit weights, see `Runtime`; those in 2 are added up in fp32, too.
        """
        moments, narrow = MOMENT_BYTES[self.optimizer], self.states == "bf16"
        if narrow and self.optimizer != "adamw-8bit":
            moments /= 2
        if precision == "fp32":
            return 4.0, 4.0, moments
        if narrow:
            return 2.0, 2.0, moments
        return 2.0, float(gradient_bytes), moments + (8.0 if gradient_bytes == 2 else 4.0)

    @property
    def copied_bytes(self) -> float:
        """Of a parameter's second moment, which an update may hold a copy of; none of other optimisers than AdamW."""
        return MOMENT_BYTES["adamw"] / (4.0 if self.states == "bf16" else 2.0) * (self.optimizer == "adamw")

    def __str__(self) -> str:
        """`adapters of rank 16 beside q, v, adamw-8bit with states in bf16`; or what is frozen."""
        targets = "all matrices of blocks" if self.targets == ("*",) else ", ".join(self.targets)
        reference = "adapters off for the reference" if self.rank else "a frozen copy as reference"
        of_pairs = {
            "dpo": f"DPO, {reference}",
            "pairs": "a loss without reference",
            "reward": "a reward, one number each",
        }
        parts = [f"pairs of sequences by {of_pairs[self.loss]}"] if self.loss in of_pairs else []
        parts += [f"documents of {self.packed:,} tokens"] if self.packed else []
        parts += [f"adapters of rank {self.rank} beside {targets}"] * (self.rank > 0)
        parts += ["frozen matrices in 4 bits"] * self.quantize
        parts += [f"{', '.join(self.freeze)} frozen"] * bool(self.freeze)
        return ", ".join([*parts, f"{self.optimizer} with states in {self.states}"])


def _require_matrix(pattern: str, where: str) -> None:
    if not any(fnmatchcase(name, pattern) for name in MATRICES):
        raise BadInput(f"no matrix is called {pattern!r}", where=where, do=f"choose from {', '.join(MATRICES)}")


FULL = Training()
