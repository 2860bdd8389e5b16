"""Moves of a placement: pieces of whole units on one device, draws without repetition, and a search that only gains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from automap_models.core.placement import FloatArray
from automap_models.envs.placement.features import PlacerInputs
from automap_models.envs.placement.generator import random_problem
from automap_models.planners.base import NEVER, SILENT
from automap_models.planners.placement.step_groups import StepUnits
from automap_models.planners.placement.step_moves import DrawSettings, MoveSpace, drawn_moves
from automap_models.planners.placement.step_search import anneal, best_start, score_of


@pytest.fixture(scope="module")
def units() -> StepUnits:
    return StepUnits.from_problem(random_problem(np.random.default_rng(12)))


def test_a_piece_is_on_one_device_and_pieces_share_nothing(units: StepUnits) -> None:
    random = np.random.default_rng(0)
    device = random.integers(0, units.problem.devices, len(units))
    space = MoveSpace(units, 0)
    for level in range(len(space.levels)):
        pieces = space.pieces(device, level, random)
        members = [pieces.members(piece) for piece in range(len(pieces.may))]
        assert sorted(np.concatenate(members).tolist()) == list(range(len(units)))
        assert all(len(set(device[own].tolist())) == 1 for own in members)
        assert all(len(set(space.levels[level][own].tolist())) == 1 for own in members)


def test_of_more_pieces_than_the_network_looks_at_it_sees_a_window(units: StepUnits) -> None:
    device = np.zeros(len(units), dtype=np.int64)
    space = MoveSpace(units, 0, DrawSettings(pieces=20))
    seen = set()
    for seed in range(60):
        pieces = space.pieces(device, len(space.levels) - 1, np.random.default_rng(seed))
        assert len(pieces.may) == 20
        inside = np.flatnonzero(pieces.of_unit >= 0)
        assert (np.diff(inside) == 1).all()
        seen |= set(inside.tolist())
        assert space.inputs(device, pieces).piece_mask.sum() == 20
    assert len(seen) > len(units) // 2


def _inputs(units: StepUnits) -> PlacerInputs:
    space = MoveSpace(units, 0)
    device = best_start(units, 0, NEVER, SILENT)[1]
    return space.inputs(device, space.pieces(device, 0, np.random.default_rng(0)))


def test_draws_are_different_moves_that_may_be(units: StepUnits) -> None:
    inputs = _inputs(units)
    moves = drawn_moves(np.zeros(inputs.move_mask.shape), inputs, 30, 0.0, np.random.default_rng(1))
    assert len({tuple(move) for move in moves.tolist()}) == len(moves) == 30
    assert (inputs.move_mask[moves[:, 0], moves[:, 1]] > 0).all()


def test_draws_follow_the_logits(units: StepUnits) -> None:
    """Of two moves with 0.9 and 0.1 the first one drawn is the likelier 90 % of the time (binomial, 4 deviations)."""
    inputs = _inputs(units)
    logits = np.full(inputs.move_mask.shape, -1e3)
    likely, rare = np.argwhere(inputs.move_mask > 0)[:2]
    logits[tuple(likely)], logits[tuple(rare)] = np.log(0.9), np.log(0.1)
    random = np.random.default_rng(2)
    first = [tuple(drawn_moves(logits, inputs, 1, 0.0, random)[0]) == tuple(likely) for _ in range(1000)]
    assert abs(sum(first) - 900) < 4 * np.sqrt(1000 * 0.9 * 0.1)


def test_refining_gains_whatever_the_network_says_and_repeats_with_its_seed(units: StepUnits) -> None:
    device = np.zeros(len(units), dtype=np.int64)
    score = score_of(units, device)

    def nonsense(inputs: PlacerInputs) -> FloatArray:
        return np.random.default_rng(0).normal(size=inputs.move_mask.shape)

    moves = partial(MoveSpace(units, 0).moves, nonsense)
    results = [anneal(units, (device, score), moves, 2_000, 5, NEVER, SILENT) for _ in range(2)]
    assert results[0][1] == results[1][1] < score
    assert (results[0][0] == results[1][0]).all()
    assert score_of(units, results[0][0]) == results[0][1]


def test_a_placement_with_few_moves_is_looked_at_no_more_often_than_one_with_many(units: StepUnits) -> None:
    """A look costs as much as dozens of simulations: a graph of two operations took thousands of them."""
    allowed = np.zeros_like(units.allowed)
    allowed[:, 0], allowed[-1] = True, True
    few = replace(units, allowed=allowed)
    looks: list[PlacerInputs] = []

    def alike(inputs: PlacerInputs) -> FloatArray:
        looks.append(inputs)
        return np.zeros(inputs.move_mask.shape)

    device = np.zeros(len(few), dtype=np.int64)
    moves = partial(MoveSpace(few, 0).moves, alike)
    anneal(few, (device, score_of(few, device)), moves, 640, 0, NEVER, SILENT)
    assert len(looks) == 640 / DrawSettings().moves
