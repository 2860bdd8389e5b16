"""Pipeline planning as a Markov decision process, many episodes at a time (cost-model.md; Auto-MAP §3.5).

    state    a problem (arrays, cluster, S, M), the cuts and the device cuts made so far, the step
    action   even steps end the current stage at a point of the grid, odd steps say with which device the next one
             begins; front to back, 2(S-1) steps an episode
    legal    cuts increase, on distinct points, and leave room for what is still to be cut
    reward   0 until the end; then ideal / L with ideal = ΣC·M / D, in (0, 1]; -1 where a stage is out of memory

All times are in units of the ideal length, so that the reward is 1 / L and problems of every size are one task. What a
network reads of a state is features.describe's matter, or flat.describe's. numpy and numba only: the planner that asks
a network plays here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.compiled import jit
from automap_models.cost.link_kernel import all_reduce, transfer
from automap_models.envs.pipeline.encoding import COMPUTE, FORWARDS, SAVED, SENT, WEIGHTS, EncodedProblems, cut_masks

OUT_OF_MEMORY_REWARD = -1.0
DEVICES, PER_NODE, RATIO, STATE, STAGES, MICRO, IDEAL = range(7)
"""Columns of a problem's numbers: D, devices of a node, inter / intra, memory per unit of parameters, S, M and the
ideal length in units of the problem's joint MAX."""

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Problems(NamedTuple):
    """B problems.

    Attributes:
        arrays: float32 [B, 5, P] in the order of encoding.CHANNELS, all but the stash in units of the ideal length.
        legal: bool [B, P] the points that are cuts.
        numbers: [B, 7] in the order above.
    """

    arrays: NDArray[np.float32]
    legal: NDArray[np.bool_]
    numbers: Floats

    @classmethod
    def from_encoded(cls, encoded: EncodedProblems) -> Problems:
        """What an encoded batch holds."""
        devices = encoded.nodes.astype(np.float64) * encoded.devices_per_node
        ideal = encoded.arrays[:, COMPUTE, -1] * encoded.micro_batches / devices
        unit = np.ones((len(encoded), encoded.arrays.shape[1], 1))
        unit[:, :SAVED] = ideal[:, None, None]
        columns = (
            devices,
            encoded.devices_per_node,
            encoded.inter_over_intra,
            encoded.state_over_memory * ideal,
            encoded.stages,
            encoded.micro_batches,
            ideal,
        )
        legal = cut_masks(encoded.instructions, encoded.arrays.shape[2])
        return cls((encoded.arrays / unit).astype(np.float32), legal, np.stack(columns, axis=1).astype(np.float64))

    def take(self, index: Any) -> Problems:
        """The problems selected by an index or a mask."""
        return Problems(*(array[index] for array in self))

    @property
    def stages(self) -> Integers:
        """[B] numbers of stages S."""
        return self.numbers[:, STAGES].astype(np.int64)

    @property
    def decisions(self) -> Integers:
        """[B] decisions in an episode."""
        return 2 * (self.stages - 1)


class States(NamedTuple):
    """Plans under way: cuts and first devices of the next stages, int64 [B, S_max-1], -1 where none yet; step [B]."""

    cuts: Integers
    firsts: Integers
    step: Integers

    @classmethod
    def empty(cls, count: int, max_stages: int) -> States:
        """So many plans without a decision."""
        none = np.full((count, max_stages - 1), -1)
        return cls(none, none.copy(), np.zeros(count, dtype=np.int64))

    def take(self, index: Any) -> States:
        """The states selected by an index or a mask."""
        return States(*(array[index] for array in self))

    def after(self, choice: Integers) -> States:
        """The states after one more decision each, a point or a first device, [B]."""
        rows, stage = np.arange(len(choice)), self.step // 2
        cuts, firsts, points = self.cuts.copy(), self.firsts.copy(), self.step % 2 == 0
        cuts[rows[points], stage[points]] = choice[points]
        firsts[rows[~points], stage[~points]] = choice[~points]
        return States(cuts, firsts, self.step + 1)

    def before(self, step: Integers) -> States:
        """The states as they were when only so many decisions had been made, [B]."""
        stage = np.arange(self.cuts.shape[1])
        cuts = np.where(2 * stage < step[:, None], self.cuts, -1)
        return States(cuts, np.where(2 * stage + 1 < step[:, None], self.firsts, -1), step)


class Choices(NamedTuple):
    """What B states can be followed by, and what a network reads of it.

    Attributes:
        choice: int64 [B, K] points or first devices; -1 for none.
        settled: bool [B] whether it is clear what each choice leads to, without a network.
        estimate: [B, K] what choices earn where that is settled; elsewhere anything.
        inputs: of the network, [B, …] each.
    """

    choice: Integers
    settled: NDArray[np.bool_]
    estimate: NDArray[np.float32]
    inputs: tuple[NDArray[np.float32], ...]

    @property
    def legal(self) -> NDArray[np.bool_]:
        """[B, K] which there are."""
        return self.choice >= 0

    def take(self, index: Any) -> Choices:
        """Those of some states."""
        inputs = tuple(array[index] for array in self.inputs)
        return Choices(self.choice[index], self.settled[index], self.estimate[index], inputs)


Describe = Callable[[Problems, States], Choices]
Value = Callable[[Choices], NDArray[np.float32]]
"""[B, K] what choices are worth; of those that are none anything."""
Choose = Callable[[Floats, NDArray[np.bool_]], Integers]
"""The columns [B] to take, from what choices are worth [B, K], -∞ where there is none, and which there are."""


def best(worth: Floats, _legal: NDArray[np.bool_]) -> Integers:
    """The columns of the most worth; of equal ones the first."""
    columns: Integers = worth.argmax(axis=1)
    return columns


def values_of(choices: Choices, value: Value) -> Floats:
    """[B, K] what choices are worth, -∞ where there is none; settled ones are worth what they earn."""
    worth, unsettled = choices.estimate.astype(np.float64), ~choices.settled
    if unsettled.any():
        worth[unsettled] = value(choices if unsettled.all() else choices.take(unsettled))
    return np.where(choices.legal, worth, -np.inf)


def alike(problems: Problems, states: States, rows: Integers) -> Iterator[Integers]:
    """The rows in chunks of states with about as many choices: points, or devices of clusters of like size."""
    devices = problems.numbers[rows, DEVICES] - states.firsts[rows].max(axis=1, initial=0)
    rows = rows[np.argsort(np.where(states.step[rows] % 2 == 0, np.inf, devices), kind="stable")]
    chunk = 128  # what is computed of so many stays in a processor's cache
    for start in range(0, len(rows), chunk):
        yield rows[start : start + chunk]


def follow(
    problems: Problems, states: States, until: Integers, describe: Describe, value: Value, choose: Choose = best
) -> States:
    """Go on with plans until each has made so many decisions, [B]."""
    states = States(*(array.copy() for array in states))
    while len(waiting := np.flatnonzero(states.step < until)):
        for rows in alike(problems, states, waiting):
            here = states.take(rows)
            choices = describe(problems.take(rows), here)
            column = choose(values_of(choices, value), choices.legal)
            after = here.after(choices.choice[np.arange(len(rows)), column])
            for old, new in zip(states, after, strict=True):
                old[rows] = new
    return states


def rewards(problems: Problems, complete: States) -> Floats:
    """[B] what complete plans earn: ideal / L, or -1."""
    earned = np.empty(len(complete.step))
    _rewards(problems, complete, earned)
    return earned


@jit
def _rewards(problems: Problems, complete: States, earned: Floats) -> None:
    for b in range(earned.size):
        stages = int(problems.numbers[b, STAGES])
        passed = prefix_of(problems.arrays[b], problems.numbers[b], complete.cuts[b], complete.firsts[b], stages)
        earned[b] = 1.0 / (passed.span + passed.reduce) if passed.memory <= 1.0 else OUT_OF_MEMORY_REWARD


class Prefix(NamedTuple):
    """What is settled by the first stages of a plan.

    Attributes:
        remaining: stages after the next one.
        point, first, previous: the last point; the first device of the next stage, and that of the last one.
        through, back: Σu and ΣB of the stages and the transfers between them.
        span, reduce: T so far; max (AR_s - Σ B before it), 0 at least.
        memory: of the fullest stage.
        compute, forwards, weights, saved: sums until the last point.
    """

    remaining: float
    point: int
    first: float
    previous: float
    through: float
    back: float
    span: float
    reduce: float
    memory: float
    compute: float
    forwards: float
    weights: float
    saved: float


@jit
def prefix_of(arrays: NDArray[np.float32], given: Floats, cuts: Integers, firsts: Integers, complete: int) -> Prefix:
    """The first so many stages of a plan of a problem, whose arrays [5, P] and numbers [7] are given."""
    stages, micro, per_node, ratio = given[STAGES], given[MICRO], given[PER_NODE], given[RATIO]
    point, first, previous = -1, 0.0, 0.0
    through, back, span, reduce, memory = 0.0, 0.0, 0.0, 0.0, 0.0
    compute, forwards, weights, saves = 0.0, 0.0, 0.0, 0.0
    for s in range(complete):
        last = s == stages - 1
        end, stop = (arrays.shape[1] - 1, given[DEVICES]) if last else (int(cuts[s]), float(firsts[s]))
        parts = stop - first
        both, forward = (arrays[COMPUTE, end] - compute) / parts, (arrays[FORWARDS, end] - forwards) / parts
        sent = arrays[SENT, point] * transfer(previous, first, stop, per_node, ratio) if s else 0.0
        span = max(span, through + 2.0 * micro * sent, through + 2.0 * sent + micro * both)
        through += 2.0 * sent + both
        back += sent
        trained, saved = arrays[WEIGHTS, end] - weights, (arrays[SAVED, end] - saves) / parts
        reduce = max(reduce, trained * all_reduce(first, stop, per_node, ratio) - back)
        back += both - forward
        memory = max(memory, given[STATE] * trained + min(micro, stages - s) * saved)
        point, previous, first = end, first, stop
        compute, forwards = arrays[COMPUTE, end], arrays[FORWARDS, end]
        weights, saves = arrays[WEIGHTS, end], arrays[SAVED, end]
    rest = stages - 1.0 - complete
    return Prefix(rest, point, first, previous, through, back, span, reduce, memory, compute, forwards, weights, saves)
