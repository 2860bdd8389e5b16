"""A recurrent network of PyTorch with dropout ended in a KeyError when its operators were to be partitioned.

Random numbers read the generator's seed only, so that the execution order may put them before the tensor whose shape
they have; the rules of the operators wanted to know that tensor first.
"""

from __future__ import annotations

import warnings

import pytest

from automap_models.hlo.dimension_classes import sharding_classes
from automap_models.hlo.graph import rules_of
from automap_models.hlo.rule_sets import read_rule_set

pytest.importorskip("jax")
torch = pytest.importorskip("torch")


class LanguageModel(torch.nn.Module):
    """Two layers with dropout in between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 8)
        self.recurrent = torch.nn.LSTM(8, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """A loss of sorts."""
        return self.recurrent(self.embedding(tokens))[0].square().mean()


def test_a_recurrent_network_with_dropout_has_a_batch_dimension_and_exports_in_silence() -> None:
    from automap_models.torch_export.step import step_module

    with warnings.catch_warnings():
        warnings.filterwarnings("error", "The tensor attributes")  # by torch.export, about weights of its own
        module = step_module(LanguageModel(), (torch.zeros(4, 3, dtype=torch.long),), name="lm")
    classes = sharding_classes(module, rules_of(module), read_rule_set("shardy")).classes
    tokens = next(i for i, variable in enumerate(classes.variables) if variable.kind == "input")
    batch = classes.dim_classes[classes.dim_variables == tokens][0]
    assert classes.variables[tokens].shape == (4, 3)
    assert classes.divisors[batch] == 4
    assert not module.unknown
