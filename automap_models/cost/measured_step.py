"""A training step that somebody measured: what ran, on what, and what came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from automap_models.core.cluster import Cluster
from automap_models.core.strategy import Precision, Strategy, TransformerShape
from automap_models.core.sublayer_sizes import Latent, Mixture, Recurrence
from automap_models.core.tuning import FULL, Training
from automap_models.cost.runtime import Runtime

Family = Literal["gpt", "llama", "bert"]
"""Which of the built-in transformers a model is: a decoder with learned positions and layer norms, one with rotary
positions and a gated perceptron, or an encoder."""


@dataclass(frozen=True, kw_only=True)
class MeasuredModel:
    """The model that a measured step trained.

    Attributes:
        family: which of the built-in ones it is.
        shape: its sizes; of a mixture, `ffn` is the width of an expert.
        tied: whether the word embedding is also the output matrix.
        dropout: whether activations are dropped at random, as the models of 2019 to 2022 do.
        head_width: of attention; None: the heads together are as wide as the hidden states.
        gated: whether perceptrons of a Llama have a third matrix; without it their activation is the square of ReLU.
        mixture: of experts; None where there is none.
        dense_layers: with a mixture, how many blocks before those that have it.
        dense_width: of their perceptron; None where there are none.
        latent: sizes of attention through latents; None: plain attention.
        predicting_layers: blocks after the others that predict later tokens, each with the output matrix once more.
        window: tokens that windowed attention reads.
        windowed_layers: how many blocks have it.
        recurrence: in place of attention in some blocks.
        blocks: sublayers of each block, see workloads.sizes; None: attention and a perceptron, or experts.
    """

    family: Family
    shape: TransformerShape
    tied: bool
    dropout: bool
    head_width: int | None = None
    gated: bool = True
    mixture: Mixture | None = None
    dense_layers: int = 0
    dense_width: int | None = None
    latent: Latent | None = None
    predicting_layers: int = 0
    window: int | None = None
    windowed_layers: int = 0
    recurrence: Recurrence | None = None
    blocks: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """One measured step, or one attempt that ran out of memory.

    Attributes:
        name: unique among those of a file.
        source: who published it.
        system: the software that ran it.
        model: which one it is.
        strategy: how it was trained.
        training: what of it was trained.
        device: name of a shipped device.
        cluster: what it ran on.
        runtime: how its software runs strategies.
        step_s: seconds of a step; None where only memory, or a failure, was published.
        memory_bytes: the largest that one device held; None where it was not published.
        only_tensors: whether that is what its tensors took, without the driver, libraries and buffers of collectives.
        fits: whether it ran; None where nobody says, or what it recomputes, or why it failed.
        day: on which it ran, as its source writes it; empty where that was not published.
    """

    name: str
    source: str
    system: str
    model: MeasuredModel
    strategy: Strategy
    device: str
    cluster: Cluster
    runtime: Runtime
    step_s: float | None
    memory_bytes: float | None
    only_tensors: bool = False
    fits: bool | None
    training: Training = FULL
    day: str = ""


@dataclass(frozen=True)
class DescribedModel:
    """A transformer as a profile describes it: one of the two.

    Attributes:
        built_in: its name.
        config: the text of its config.json.
        dropout: whether it has the dropout that the file says.
    """

    built_in: str | None = None
    config: str | None = None
    dropout: bool = False


@dataclass(frozen=True, kw_only=True)
class MeasuredPasses:
    """The passes of one micro-batch on one device, as a profile has them that was measured there.

    Attributes:
        name: of the profile.
        device: what it calls the device.
        model: which model it is.
        sequence: tokens of a sample.
        micro_batch: samples.
        precision: what the layers compute in.
        flash: whether attention runs in one kernel that never writes scores.
        forward_s, backward_s: seconds of the passes.
        update_s: of Adam's update in fp32; None where it was not measured, or runs in another precision.
    """

    name: str
    device: str
    model: DescribedModel
    sequence: int
    micro_batch: int
    precision: Precision
    flash: bool
    forward_s: float
    backward_s: float
    update_s: float | None = None

    @property
    def parts_s(self) -> tuple[float, ...]:
        """Forward, backward, and the update where it was measured."""
        return (self.forward_s, self.backward_s, *(() if self.update_s is None else (self.update_s,)))


@dataclass(frozen=True)
class SkippedStep:
    """A step that cannot be priced.

    Attributes:
        name, source: as a measured step's.
        reason: why, in one sentence.
    """

    name: str
    source: str
    reason: str
