"""The replay of a schedule against the discrete-event engine, and its rounds against all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from most_held import most_held

from automap_models.core import schedules
from automap_models.core.passes import build_schedule
from automap_models.core.schedules import SCHEDULES, repeating_micro_batches
from automap_models.simulate.engine import simulate
from automap_models.simulate.rounds import PassTimes, longest_chains, rank_ends


@st.composite
def pipelines(draw: st.DrawFn, most_rounds: int = 4) -> tuple[str, int, int, int]:
    """Schedule, S, M and vp."""
    name = draw(st.sampled_from(sorted(SCHEDULES)))
    ranks = draw(st.integers(2, 4))
    virtual = SCHEDULES[name].virtual or draw(st.integers(1, 3))
    rounds = draw(st.integers(2, most_rounds))
    micro_batches = ranks * rounds
    if SCHEDULES[name].virtual is not None:
        micro_batches += draw(st.integers(0, ranks - 1))
    return name, ranks, micro_batches, virtual


def _times(seed: int, stages: int, transfers: bool) -> PassTimes:
    rng = np.random.default_rng(seed)
    forward, inputs, weights = rng.uniform(0.5, 1.5, (3, stages)) if seed % 2 else np.ones((3, stages))
    return PassTimes(forward, inputs, weights, transfers * rng.uniform(0.0, 0.6, stages - 1))


def _engine_s(name: str, ranks: int, micro_batches: int, virtual: int, times: PassTimes) -> float:
    forward, inputs, weights, transfer = times
    schedule = build_schedule(name, ranks, micro_batches, virtual)
    return simulate(forward, inputs + weights, transfer, np.zeros(forward.size), schedule, weight_s=weights).length_s


@given(pipelines(), st.integers(0, 9), st.booleans())
def test_it_is_the_engine(pipeline: tuple[str, int, int, int], seed: int, transfers: bool) -> None:
    name, ranks, micro_batches, virtual = pipeline
    times = _times(seed, ranks * virtual, transfers)
    assert rank_ends(name, micro_batches, virtual, times).max() == pytest.approx(_engine_s(*pipeline, times), rel=1e-9)


@given(pipelines(most_rounds=20), st.integers(0, 9), st.booleans())
def test_a_few_rounds_give_what_all_rounds_give(
    pipeline: tuple[str, int, int, int], seed: int, transfers: bool
) -> None:
    name, ranks, micro_batches, virtual = pipeline
    times = _times(seed, ranks * virtual, transfers)
    shortened = rank_ends(name, micro_batches, virtual, times)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedules, "ROUNDS_SHOWN", 1000)
        whole = rank_ends(name, micro_batches, virtual, times)
    assert shortened == pytest.approx(whole, rel=1e-9)


def test_a_long_schedule_is_not_played_to_the_end() -> None:
    """One round more than the warm-up of 8 ranks needs is played of 1,000 micro-batches."""
    assert repeating_micro_batches("1f1b", 8, 1000) == (24, 1)
    assert repeating_micro_batches("interleaved", 8, 1000) == (32, 8)
    assert repeating_micro_batches("interleaved", 8, 1001) == (1001, 1001)
    assert repeating_micro_batches("gpipe", 8, 1000) == (1000, 1000)


@given(pipelines(most_rounds=20), st.integers(0, 9))
def test_a_few_rounds_hold_what_all_rounds_hold(pipeline: tuple[str, int, int, int], seed: int) -> None:
    name, ranks, micro_batches, virtual = pipeline
    saved, kept, *_ = _times(seed, ranks * virtual, transfers=False)
    shown, _ = repeating_micro_batches(name, ranks, micro_batches)
    few, all_of_them = (build_schedule(name, ranks, count, virtual) for count in (shown, micro_batches))
    assert most_held(few, saved.tolist(), kept.tolist()) == pytest.approx(
        most_held(all_of_them, saved.tolist(), kept.tolist())
    )


@given(pipelines(most_rounds=12), st.integers(0, 99), st.integers(0, 99), st.booleans())
def test_no_rank_ends_before_a_chain_of_its_passes_whatever_they_take(
    pipeline: tuple[str, int, int, int], seed: int, other: int, transfers: bool
) -> None:
    """Chains that were the longest with some times are still chains with any others."""
    name, ranks, micro_batches, virtual = pipeline
    times, others = (_times(of, ranks * virtual, transfers) for of in (seed, other))
    ends, chain = longest_chains(name, micro_batches, virtual, times)
    chains = [longest for longest in map(chain, range(ranks)) if longest is not None]
    assert ends == pytest.approx(rank_ends(name, micro_batches, virtual, times))
    assert [chain.rank for chain in chains] == list(range(ranks))
    assert [chain.seconds(times) for chain in chains] == pytest.approx(ends.tolist())
    later = rank_ends(name, micro_batches, virtual, others)
    for chain in chains:
        assert chain.seconds(others) <= later[chain.rank] * (1 + 1e-9)
