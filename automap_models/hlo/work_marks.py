"""What tensor, context and expert parallelism divide, told from the classes of dimensions of a traced transformer.

    SAMPLES   the first dimension of what a step reads
    TOKENS    its second dimension. Queries and keys have the same class, which never could be sharded as a whole; here
              it is a mark of everything that is proportional to the tokens
    EXPERTS   the first dimension of the parameters of three dimensions; what has fewer and no samples is whole
              on every device, as a router is, whose columns are one for each expert
    TENSOR    of a block, dimensions of its matrices whose partition makes its forward pass sum only what has the hidden
              width: heads (of keys and values, where queries share them) and columns of the perceptron, but neither the
              hidden width itself nor the width of a latent; outside the blocks, rows of the vocabulary

What has SAMPLES has no EXPERTS: with a share of the experts come the tokens of the devices that have the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from automap_models.core.instruction_graph import Phase
from automap_models.core.model_work import Mark
from automap_models.core.strategy import TransformerShape
from automap_models.hlo.model_layers import ModelLayers
from automap_models.hlo.sharding_classes import NO_CLASS
from automap_models.hlo.step_classes import Classes, StepClasses

EXPERT_DIMS = 3
"""Dimensions of a matrix of each expert."""


class WorkMarks:
    """The marks of classes of dimensions.

    Attributes:
        step: the classes.
        layers: those of the model.
        shape: its sizes.
    """

    def __init__(self, step: StepClasses, layers: ModelLayers, shape: TransformerShape) -> None:
        self.step, self.layers, self.shape = step, layers, shape

    @cached_property
    def samples(self) -> frozenset[int]:
        """Classes of samples."""
        return self._of_inputs(0)

    @cached_property
    def tokens(self) -> frozenset[int]:
        """Classes of tokens."""
        return self._of_inputs(1)

    @cached_property
    def experts(self) -> frozenset[int]:
        """Classes of experts."""
        return frozenset(dims[0] for v, dims in self._matrices if len(dims) == EXPERT_DIMS) - {NO_CLASS}

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Classes that one layer hands on to another, other than samples and tokens."""
        passed = {c for v in self.layers.crossing for c in self.step.of_values[v]}
        return frozenset(passed) - self.samples - self.tokens

    @cached_property
    def tensor(self) -> frozenset[int]:
        """Classes of heads, columns of the perceptron and rows of the vocabulary."""
        chosen: set[int] = set()
        for v, dims in self._matrices:
            if self.layers.of_arguments[v] >= 0:
                chosen.update(dims)
            else:
                sizes = self.step.graph.shapes[v]
                chosen.update(c for c, size in zip(dims, sizes, strict=True) if size == self.shape.vocabulary)
        chosen -= {NO_CLASS} | self.samples | self.tokens | self.experts | self.hidden
        return frozenset(chosen - self._summed_to_narrow)

    def of_classes(self, classes: Iterable[int]) -> int:
        """The mark of what has dimensions of these classes."""
        mark, present = 0, frozenset(classes)
        for own, flag in self._flags:
            if present & own:
                mark |= flag
        if mark & Mark.EXPERTS and mark & Mark.SAMPLES:
            mark = mark & ~Mark.EXPERTS | Mark.TOKENS  # how many tokens an expert takes is a share of the tokens
        return mark

    def of_value(self, v: int) -> int:
        """The mark of a value of the graph."""
        mark = self.of_classes(self.step.of_values[v])
        return mark if len(self.step.of_dims[v]) >= EXPERT_DIMS else mark & ~Mark.EXPERTS

    def is_scores(self, v: int) -> bool:
        """Whether a value has queries and keys."""
        return sum(c in self.tokens for c in self.step.of_dims[v]) > 1

    @cached_property
    def _flags(self) -> tuple[tuple[frozenset[int], Mark], ...]:
        return (
            (self.samples, Mark.SAMPLES),
            (self.tokens, Mark.TOKENS),
            (self.tensor, Mark.TENSOR),
            (self.experts, Mark.EXPERTS),
        )

    @cached_property
    def _matrices(self) -> list[tuple[int, Classes]]:
        """Parameters of two dimensions or more, and the classes of these."""
        arguments = enumerate(self.step.graph.arguments)
        matrices = ((v, self.step.of_dims[v]) for v, argument in arguments if argument.kind == "parameter")
        return [(v, dims) for v, dims in matrices if len(dims) > 1]

    @cached_property
    def _summed_to_narrow(self) -> set[int]:
        """Classes over which a forward pass of a block sums what has not the hidden width."""
        of_blocks = range(1, self.layers.after)
        return {
            total.over
            for total in self.step.separate_sums
            if self.step.graph.phases[total.operation] == Phase.FORWARD
            and self.layers.of_instructions[total.operation] in of_blocks
            and self.hidden.isdisjoint(total.classes)
        }

    def _of_inputs(self, dim: int) -> frozenset[int]:
        return frozenset(self.step.of_dims[v][dim] for v in self.layers.token_inputs) - {NO_CLASS}
