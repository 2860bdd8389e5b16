"""The Q-networks of pipelines: dueling, blind to the order of choices, and one answer whatever the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from automap_models.envs.pipeline import features
from automap_models.envs.pipeline.env import Problems, States
from automap_models.rl.episodes import values
from automap_models.rl.networks.pipeline import (
    NETWORKS,
    ChoiceNetwork,
    NetworkSize,
    PipelineNetwork,
    best_legal,
    dueling,
    masked_pool,
)

CHOICES, BATCH = 9, 5
SIZE = NetworkSize(points=16, max_stages=4, max_devices=18, hidden=8)


def large(network: PipelineNetwork) -> PipelineNetwork:
    """The network with weights as large as trained ones."""
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return network


def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, global features and which choices are legal: of the last state none, of the one before all."""
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(BATCH, CHOICES, generator=generator) < 0.6
    legal[-1], legal[-2] = False, True
    described = torch.rand(BATCH, CHOICES, features.FEATURES, generator=generator)
    return described, torch.rand(BATCH, features.GLOBAL_FEATURES, generator=generator), legal


def test_pooling_and_the_best_see_legal_choices_only() -> None:
    """Mean and maximum of 1 and 5 are 3 and 5, whatever the third is; of nothing both are 0."""
    hidden = torch.tensor([[[1.0], [5.0], [99.0]], [[-4.0], [-2.0], [7.0]], [[1.0], [2.0], [3.0]]])
    mask = torch.tensor([[True, True, False], [True, True, False], [False, False, False]])
    assert masked_pool(hidden, mask).tolist() == [[3.0, 5.0], [-3.0, -2.0], [0.0, 0.0]]
    assert best_legal(hidden.squeeze(2), mask).tolist() == [[5.0], [-2.0], [0.0]]


def test_the_mean_advantage_over_legal_choices_is_zero() -> None:
    """So the mean of Q over them is V, and differences of Q are those of A (Wang et al. 2016, eq. 9)."""
    mask, advantage, value = drawn(1)[2], torch.randn(BATCH, CHOICES), torch.randn(BATCH, 1)
    q = dueling(value, advantage, mask)
    for i in range(BATCH - 1):
        torch.testing.assert_close(q[i, mask[i]].mean(), value[i, 0])
    torch.testing.assert_close(q.diff(dim=1), advantage.diff(dim=1))


def test_choices_in_another_order_have_their_values_in_that_order() -> None:
    network, (described, globally, legal) = large(ChoiceNetwork(SIZE)), drawn(2)
    order = torch.randperm(CHOICES)
    ours, theirs = network(described[:, order], globally, legal[:, order]), network(described, globally, legal)
    torch.testing.assert_close(ours, theirs[:, order])


def test_illegal_choices_and_padding_touch_no_value() -> None:
    network, (described, globally, legal) = large(ChoiceNetwork(SIZE)), drawn(4)
    theirs = network(described, globally, legal)
    others = torch.where(legal.unsqueeze(2), described, torch.rand_like(described))
    torch.testing.assert_close(network(others, globally, legal)[legal], theirs[legal])
    wider = (torch.nn.functional.pad(part, pad) for part, pad in ((others, (0, 0, 0, 3)), (legal, (0, 3))))
    features_, legal_ = wider
    torch.testing.assert_close(network(features_, globally, legal_)[:, :CHOICES][legal], theirs[legal])


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_state_is_worth_the_same_in_any_batch(kind: str, problems: Problems, states: States) -> None:
    """States that choose points and states that choose devices side by side, and each alone."""
    network = large(NETWORKS[kind](SIZE))
    describe = network.describe(SIZE)
    choices = describe(problems, states)
    together = values(network, choices)
    assert together.shape == choices.choice.shape and together.isfinite().all()
    assert set((states.step % 2).tolist()) == {0, 1}
    for i in range(len(states.step)):
        single = describe(problems.take([i]), states.take([i]))
        alone = values(network, single)[0][single.legal[0]]
        torch.testing.assert_close(alone, together[i][choices.legal[i]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_advantages_that_are_shifted_as_one_give_the_same_values(kind: str, problems: Problems, states: States) -> None:
    """Dueling in the whole network."""
    network = large(NETWORKS[kind](SIZE))
    choices = network.describe(SIZE)(problems, states)
    before = values(network, choices)
    with torch.no_grad():
        network.advantage.bias += 3.0
    torch.testing.assert_close(values(network, choices)[choices.legal], before[choices.legal], rtol=1e-4, atol=1e-5)
