"""The Q-networks: dueling, blind to the order of candidates, in range, and one answer whatever the batch."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from automap_models.envs.pipeline.env import REWARDS, Partial, PipelineEnv, Problems
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import (
    HOPELESS,
    CandidateNetwork,
    Described,
    FlatQNetwork,
    LookAheadQNetwork,
    NetworkSize,
    SplitQNetwork,
    dueling,
    masked_pool,
)
from automap_models.rl.targets import masked

FEATURES, GLOBAL_FEATURES, CANDIDATES, BATCH = 7, 4, 9, 5
NETWORKS = (LookAheadQNetwork, FlatQNetwork, OneStepQNetwork)


def size(**changes: object) -> NetworkSize:
    return NetworkSize(**{"points": 16, "max_stages": 4, "max_devices": 18, "hidden": 8, **changes})  # type: ignore[arg-type]


def candidates(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, global features, mask, estimates; the last row has no legal candidate, the one before has all."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(BATCH, CANDIDATES, generator=generator) < 0.6
    mask[-1], mask[-2] = False, True
    return (
        torch.randn(BATCH, CANDIDATES, FEATURES, generator=generator),
        torch.randn(BATCH, GLOBAL_FEATURES, generator=generator),
        mask,
        torch.rand(BATCH, CANDIDATES, generator=generator),
    )


ESTIMATED = torch.zeros(BATCH, dtype=torch.bool)
"""No state's look-ahead is exact."""


def network(use_dueling: bool = True, residual: str = "log") -> CandidateNetwork:
    torch.manual_seed(0)
    return CandidateNetwork(FEATURES, GLOBAL_FEATURES, NetworkSize(hidden=16, dueling=use_dueling, residual=residual))


# --- parts -------------------------------------------------------------------------------------------------------


def test_pooling_sees_legal_candidates_only() -> None:
    """Mean and maximum of 1 and 5 are 3 and 5, whatever the third is; of nothing both are 0."""
    hidden = torch.tensor([[[1.0], [5.0], [99.0]], [[-4.0], [-2.0], [7.0]], [[1.0], [2.0], [3.0]]])
    mask = torch.tensor([[True, True, False], [True, True, False], [False, False, False]])
    assert masked_pool(hidden, mask).tolist() == [[3.0, 5.0], [-3.0, -2.0], [0.0, 0.0]]


def test_the_mean_advantage_over_legal_actions_is_zero() -> None:
    """So the mean of Q over them is V, and differences of Q are those of A (Wang et al. 2016, eq. 9)."""
    _, _, mask, advantage = candidates(1)
    value = torch.randn(BATCH, 1)
    q = dueling(value, advantage, mask)
    for i in range(BATCH - 1):
        torch.testing.assert_close(q[i, mask[i]].mean(), value[i, 0])
    torch.testing.assert_close(q.diff(dim=1), advantage.diff(dim=1))


@pytest.mark.parametrize("residual", ["none", "linear", "log"])
@pytest.mark.parametrize("use_dueling", [True, False])
def test_candidates_in_another_order_have_their_values_in_that_order(use_dueling: bool, residual: str) -> None:
    net = network(use_dueling, residual)
    features, globally, mask, estimate = candidates(2)
    order = torch.randperm(CANDIDATES, generator=torch.Generator().manual_seed(3))
    ours = net(Described(features[:, order], globally, mask[:, order], estimate[:, order], ESTIMATED))
    torch.testing.assert_close(ours, net(Described(features, globally, mask, estimate, ESTIMATED))[:, order])


def test_illegal_candidates_do_not_touch_the_legal_ones() -> None:
    features, globally, mask, estimate = candidates(4)
    net, noise = network(), torch.randn(BATCH, CANDIDATES, FEATURES)
    other = torch.where(mask.unsqueeze(2), features, noise)
    ours, theirs = (net(Described(given, globally, mask, estimate, ESTIMATED)) for given in (other, features))
    torch.testing.assert_close(ours[mask], theirs[mask])


def test_the_residual_adds_the_estimate_as_a_value() -> None:
    """The same weights with and without: the difference is the estimate, or its logarithm."""
    features, globally, mask, estimate = candidates(5)
    estimate = 1 - 0.1 * estimate  # none is hopeless
    plain, linear, logarithmic = (
        network(residual=kind)(Described(features, globally, mask, estimate, ESTIMATED))
        for kind in ("none", "linear", "log")
    )
    torch.testing.assert_close(linear - plain, estimate)
    torch.testing.assert_close(logarithmic - plain, estimate.log())


def test_where_the_look_ahead_is_exact_the_values_are_its_own() -> None:
    features, globally, mask, estimate = candidates(6)
    estimate = 1 - 0.1 * estimate  # none is hopeless
    exact = torch.arange(BATCH) % 2 == 0
    values = network(residual="log")(Described(features, globally, mask, estimate, exact))
    torch.testing.assert_close(values[exact], estimate[exact].log())
    assert not torch.allclose(values[~exact], estimate[~exact].log())


def test_estimates_hopelessly_below_the_best_are_not_told_apart() -> None:
    net = network(residual="log")
    mask = torch.tensor([[True, True, True, False]])
    a_little_worse = 0.5 * math.exp(-HOPELESS / 2)
    base = net.base(mask, torch.tensor([[0.5, a_little_worse, -1.0, 0.9]]))
    expected = torch.tensor([math.log(0.5), math.log(0.5) - HOPELESS / 2, math.log(0.5) - HOPELESS])
    torch.testing.assert_close(base[0, :3], expected)


# --- whole networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NETWORKS)
def test_action_values_are_finite_and_every_action_has_one(
    kind: type[SplitQNetwork | FlatQNetwork], problems: Problems, states: Partial
) -> None:
    net = kind(size())
    values = net(net.describe(problems, states))
    assert values.shape == (len(problems.stages), 16 + 17)
    assert values.isfinite().all()


@pytest.mark.parametrize("kind", NETWORKS)
def test_problems_are_prepared_once_for_all_their_states(
    kind: type[SplitQNetwork | FlatQNetwork], problems: Problems, states: Partial
) -> None:
    """With the cost-to-go tables where a network reads any; a state is worth the same without."""
    net = kind(size())
    prepared = net.prepare(problems)
    assert (prepared.cost_to_go is not None) == (kind is LookAheadQNetwork)
    assert net.prepare(prepared) is prepared
    values = [net(net.describe(given, states)) for given in (prepared, problems)]
    assert torch.equal(*values)


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_state_is_worth_the_same_in_any_batch(
    kind: type[SplitQNetwork | FlatQNetwork], env: PipelineEnv, problems: Problems, states: Partial
) -> None:
    """States that cut instructions and states that cut devices side by side, and each alone: its legal actions."""
    net = kind(size())
    together = net(net.describe(problems, states))
    assert set((states.step % 2).tolist()) == {0, 1}
    legal = env.legal(problems, states)
    for i in range(len(problems.stages)):
        row = torch.tensor([i])
        alone = net(net.describe(problems.take(row), states.take(row)))
        torch.testing.assert_close(alone[0, legal[i]], together[i, legal[i]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_legal_actions_values_average_to_the_states_value(
    kind: type[SplitQNetwork | FlatQNetwork], env: PipelineEnv, problems: Problems, states: Partial
) -> None:
    """Dueling in the whole network: a head whose advantages are shifted as one gives the same values."""
    net = kind(size(residual="none"))
    before = net(net.describe(problems, states))
    heads = (net.cut.advantage, net.device_cut.advantage) if isinstance(net, SplitQNetwork) else (net.advantage,)
    with torch.no_grad():
        for head in heads:
            head.bias += 3.0
    legal = env.legal(problems, states)
    torch.testing.assert_close(net(net.describe(problems, states))[legal], before[legal], rtol=1e-4, atol=1e-5)


def test_only_the_half_that_a_step_chooses_from_has_values(problems: Problems, states: Partial) -> None:
    net = LookAheadQNetwork(size(residual="none"))
    values = net(net.describe(problems, states))
    cuts_instructions = states.step % 2 == 0
    assert not values[cuts_instructions, 16:].any()
    assert not values[~cuts_instructions, :16].any()


def test_devices_that_no_cluster_of_the_batch_has_cost_nothing_and_are_worth_nothing(
    problems: Problems, states: Partial
) -> None:
    """An environment for larger clusters gives the same values; only the largest cluster's devices are looked at."""
    narrow, wide = LookAheadQNetwork(size()), LookAheadQNetwork(size(max_devices=128))
    wide.load_state_dict(narrow.state_dict())
    described = wide.describe(problems, states)
    assert described.device.legal.shape[1] == int(problems.devices.max()) - 1
    values = wide(described)
    assert values.shape == (len(problems.stages), 16 + 127)
    assert torch.equal(values[:, : 16 + 17], narrow(narrow.describe(problems, states)))
    assert not values[:, 16 + 17 :].any()


@pytest.mark.parametrize("reward", REWARDS)
def test_the_estimate_is_what_the_environment_pays(reward: str, problems: Problems, env: PipelineEnv) -> None:
    """With two stages the look-ahead is exact: the value of the best device cut is what it then earns."""
    two = problems.take(problems.stages == 2)
    paying = replace(env, reward=reward)
    net = LookAheadQNetwork(size(residual="linear", reward=reward))
    first = torch.multinomial(env.legal(two, env.reset(two)).float(), 1).squeeze(1)
    state, _, _ = paying.step(two, env.reset(two), first)
    values = masked(net(net.describe(two, state)), env.legal(two, state))
    _, earned, ended = paying.step(two, state, values.argmax(1))
    assert ended.all()
    assert (earned > 0).any()
    torch.testing.assert_close(values.amax(1), earned, rtol=1e-4, atol=1e-5)


def test_illegal_candidates_have_no_features(env: PipelineEnv, problems: Problems, states: Partial) -> None:
    described = LookAheadQNetwork(size()).describe(problems, states)
    legal = env.legal(problems, states)
    assert torch.equal(described.cut.legal, legal[described.cut_rows, :16])
    devices = int(problems.devices.max()) - 1
    assert torch.equal(described.device.legal, legal[described.device_rows, 16 : 16 + devices])
    for half in (described.cut, described.device):
        assert half.features.isfinite().all()
        assert not half.features[~half.legal].any()
        assert not half.estimate[~half.legal].any()


def test_the_flat_state_is_the_papers_in_the_unit_interval(problems: Problems, states: Partial) -> None:
    """C, A, W, the interconnect matrix, the partial plan and four scalars: 3·16 + 18² + 2·3 + 4 numbers."""
    flat = FlatQNetwork(size()).flatten(problems, states)
    assert flat.shape == (len(problems.stages), 3 * 16 + 18**2 + 2 * 3 + 4)
    assert 0 <= float(flat.min()) <= float(flat.max()) <= 1
    np.testing.assert_array_equal(flat[:, :48], problems.arrays[:, :3].flatten(1))
    matrix = flat[:, 48 : 48 + 18**2].unflatten(1, (18, 18))
    assert torch.equal((matrix > 0).sum((1, 2)), problems.devices.long() ** 2)
    np.testing.assert_allclose(flat[:, -10:-7] * 16 - 1, states.cuts, atol=1e-5)
    np.testing.assert_allclose(flat[:, -7:-4] * 18, states.device_cuts.clamp(min=0), atol=1e-5)


def test_the_floor_is_the_best_estimates_value_less_what_is_hopeless(problems: Problems, states: Partial) -> None:
    net = LookAheadQNetwork(size())
    described = net.describe(problems, states)
    floor = net.floor(described)
    for i, row in enumerate(described.cut_rows):
        best = described.cut.estimate[i][described.cut.legal[i]].max().clamp(min=1e-9).log()
        torch.testing.assert_close(floor[row], best.clamp(min=-6.0) - HOPELESS)
    unbounded = LookAheadQNetwork(size(residual="none"))
    assert torch.isneginf(unbounded.floor(unbounded.describe(problems, states))).all()
