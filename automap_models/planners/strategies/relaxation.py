"""A lower bound of a family's steps by linear programming, and the cuts that attain it.

    y[v, c, j]     blocks of kind c with recomputation j in virtual stage v, any number 0 or more, whole or not
    T              when the last rank has run its passes and summed its gradients
    O              the slowest rank's update

    least T + O
      Σ_v,j y[v, c, j] = blocks of kind c
      every rank       bytes at each moment of its order, ≥ 0 left
      every chain      Σ count · seconds of passes and messages + gradients of its rank ≤ T
      every rank       its update ≤ O

A chain is passes each of which waits for the one before it (simulate.rounds.longest_chains), so that no strategy of the
family ends before it does. Seconds of passes are sums over blocks: each chain is one row. The program is solved with
few chains first. Then its solution is played by the simulator, and the chains that make the ranks end become rows,
until the simulator says what the program says. With whole blocks it is an integer program, which takes longer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.strategy import RECOMPUTE
from automap_models.planners import effort
from automap_models.planners.strategies.chain_bounds import fullest_moments, passes_laid_out, usual_chains
from automap_models.planners.strategies.family_costs import FamilyCosts
from automap_models.simulate.rounds import Chain, PassTimes, longest_chains
from automap_models.simulate.strategy import WITHOUT_WAITING

CLOSE = 1e-3
"""Relative gap with which a program of whole blocks ends."""
TOLERANCE = 1e-6
"""Relative, of the solver's values: bounds are lowered and memory is enlarged by it. A solver may else call a program
infeasible that a strategy solves to the last byte."""
MOST_NODES = 10**9
"""That HiGHS counts as a limit."""
NOT_ENDED = (1, 4)
"""Of a solver that a limit stopped: of iterations, or of nodes, which is among its other reasons."""
CHAINS = 4
"""Of the ranks that end last, that become rows at a time."""


@dataclass(frozen=True, eq=False)
class Relaxed:
    """A solution.

    Attributes:
        bound_s: no step of the family is shorter.
        blocks: [V, k, R] of each virtual stage; none where nothing fits.
        exact: whether the simulator, given such pieces of blocks, says the same.
        ended_early: whether more time would make the bound tighter.
    """

    bound_s: float
    blocks: FloatArray | None
    exact: bool = False
    ended_early: bool = False


class Relaxation:
    """The program of one family.

    Args:
        costs: of the family.
        recompute: kinds of recomputation that blocks may have.
    """

    def __init__(self, costs: FamilyCosts, recompute: list[int]) -> None:
        self.costs, self.strategy = costs, costs.strategy
        self.kinds = np.flatnonzero(costs.ranks.blocks)
        self.recompute = recompute
        self.stages = self.strategy.stages
        self.shape = (self.stages, self.kinds.size, len(recompute))
        self.size = int(np.prod(self.shape))
        columns = np.ix_(np.arange(self.strategy.pp), self.kinds, np.array(recompute))
        self.of_blocks = costs.ranks.passes[columns][costs.rank_of]  # [V, kinds, R', 3]
        self.constant = self._constant()
        self.scale = float(self.strategy.micro_batches * self.of_blocks.sum(axis=-1).min() * costs.ranks.blocks.sum())
        self.passes = passes_laid_out(self.strategy)
        self.rows: list[FloatArray] = []
        self.limits: list[float] = []
        self._memory_rows()
        self._update_rows()
        self._least_blocks()
        for chain in self._first_chains():
            self.add(chain)

    def _constant(self) -> FloatArray:
        """[3, V] seconds of F, I and W that are there whatever blocks a virtual stage has."""
        costs, none = self.costs, RECOMPUTE.index("none")
        constant = np.zeros((3, self.stages))
        constant[:2] = costs.sends
        constant[0] += costs.starts
        for stage, layer in ((0, costs.ranks.ends.first), (-1, costs.ranks.ends.last)):
            constant[:, stage] += costs.ranks.passes[costs.rank_of[stage], layer, none]
        return constant

    def _row(self, of_blocks: FloatArray, step: float = 0.0, update: float = 0.0) -> FloatArray:
        return np.concatenate([np.broadcast_to(of_blocks, self.shape).ravel(), [step, update]])

    def _limit(self, row: FloatArray, limit: float) -> None:
        self.rows.append(row)
        self.limits.append(limit)

    # ---- rows

    def _memory_rows(self) -> None:
        costs, strategy = self.costs, self.strategy
        shape = (strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
        saved, kept = (of[np.ix_(self.kinds, np.array(self.recompute))] for of in (costs.ranks.saved, costs.ranks.kept))
        for rank, (stages, moments) in enumerate(fullest_moments(*shape)):
            for waiting in moments:
                of_blocks, room = np.zeros(self.shape), costs.room[rank]
                for stage, for_backward, for_weights in zip(stages, *waiting.tolist(), strict=True):
                    of_blocks[stage] = costs.ranks.state[self.kinds, None] + for_backward * saved + for_weights * kept
                    for layer in self._ends(stage):
                        room -= costs.ranks.state[layer]
                        room -= for_backward * costs.ranks.saved[layer, 0] + for_weights * costs.ranks.kept[layer, 0]
                self._limit(self._row(of_blocks / costs.room.max()), room / costs.room.max() + TOLERANCE)

    def _least_blocks(self) -> None:
        """No virtual stage is empty: those at the ends have the layers there."""
        for stage in range(1, self.stages - 1):
            chosen = np.zeros(self.shape)
            chosen[stage] = -1.0
            self._limit(self._row(chosen), -1.0)

    def _ends(self, stage: int) -> list[int]:
        """What a virtual stage has beside blocks."""
        first, last = self.costs.ranks.ends
        return [first] * (stage == 0) + [last] * (stage == self.stages - 1)

    def _update_rows(self) -> None:
        costs = self.costs
        for rank in range(self.strategy.pp):
            own = (costs.rank_of == rank)[:, None, None]
            ends = sum(
                costs.ranks.optimizer[layer] for stage in np.flatnonzero(own) for layer in self._ends(int(stage))
            )
            row = self._row(own * costs.ranks.optimizer[self.kinds][None, :, None] / self.scale, update=-1.0)
            self._limit(row, -ends / self.scale)

    def _first_chains(self) -> list[Chain]:
        """Those of equal stages."""
        strategy = self.strategy
        chains = usual_chains(strategy.schedule, strategy.pp, strategy.micro_batches, strategy.vp)
        return [Chain(*of) for of in zip(chains.counts, chains.messages, chains.ranks.tolist(), strict=True)]

    def add(self, chain: Chain) -> None:
        """Let no step be shorter than a chain and what of its rank's gradients never hides.

        Where ranks do not wait for one another, the chain begins with the first pass of its rank.
        """
        costs = self.costs
        own = costs.rank_of == chain.rank
        gradients = costs.ranks.gradients[chain.rank]
        of_blocks = np.einsum("pv,vcjp->vcj", chain.passes, self.of_blocks)
        of_blocks = of_blocks + own[:, None, None] * gradients[self.kinds][None, :, None]
        constant = float((chain.passes * self.constant).sum() + chain.messages @ costs.messages)
        constant += sum(gradients[layer] for stage in np.flatnonzero(own) for layer in self._ends(int(stage)))
        self._limit(self._row(of_blocks / self.scale, step=-1.0), -constant / self.scale)

    # ---- solving

    def solve(self, rounds: int, enough_s: float) -> Relaxed:
        """The bound after so many rounds of chains at most, or as soon as it is as long as `enough_s`."""
        solution = self._solved()
        for _ in range(rounds):
            if solution.blocks is None or solution.bound_s >= enough_s or self.stages == 1:
                break
            forward, inputs, weights = self._durations(solution.blocks)
            times = PassTimes(forward, inputs, weights, self.costs.messages)
            effort.count(effort.PRICE, self.passes)
            ends, chains = longest_chains(*self._schedule(), times)
            if self.strategy.schedule in WITHOUT_WAITING:
                ends = ends - np.concatenate([[0.0], np.cumsum(forward[:-1] + times.transfer_s)])
            step_s = float((ends + self._gradients(solution.blocks)).max())
            exact = step_s <= self._step_s * (1 + 1e-4)
            if exact:
                return Relaxed(solution.bound_s, solution.blocks, True)
            chains.sort(key=lambda chain: -ends[chain.rank])
            for chain in chains[:CHAINS]:
                self.add(chain.from_first_pass() if self.strategy.schedule in WITHOUT_WAITING else chain)
            solution = self._solved()
        return solution

    def _schedule(self) -> tuple[str, int, int]:
        return self.strategy.schedule, self.strategy.micro_batches, self.strategy.vp

    def _durations(self, blocks: FloatArray) -> FloatArray:
        """[3, V] seconds of F, I and W."""
        return np.asarray(np.einsum("vcj,vcjp->pv", blocks, self.of_blocks) + self.constant)

    def _gradients(self, blocks: FloatArray) -> FloatArray:
        """[S] seconds of gradients that never hide."""
        result = np.zeros(self.strategy.pp)
        counts = blocks.sum(axis=2)
        for stage, rank in enumerate(self.costs.rank_of.tolist()):
            gradients = self.costs.ranks.gradients[rank]
            result[rank] += gradients[self.kinds] @ counts[stage] + sum(gradients[i] for i in self._ends(stage))
        return result

    def nodes_in(self, seconds: float) -> float:
        """Nodes of a program of whole blocks that so many counted seconds are enough for; less than 1 for none."""
        return (seconds - self.size * effort.ROOT.unit_s) / (self.size**2 * effort.NODES.unit_s)

    def whole(self, nodes: float, enough_s: float = float("inf")) -> Relaxed:
        """The bound with whole blocks, of so many nodes of the search at most; `enough_s` where it is that or more.

        That nothing is shorter than `enough_s` is often seen at once where finding the bound takes minutes.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp

        integrality = np.ones(self.size + 2, dtype=np.int64)
        integrality[-2:] = 0
        rows = LinearConstraint(np.array(self.rows), -np.inf, np.array(self.limits))
        equal, counts = self._equalities()
        enough = (enough_s - self.costs.tied_s) / (self.scale * (1 - TOLERANCE))
        shorter = LinearConstraint(self._objective()[None], -np.inf, enough)
        effort.count(effort.ROOT, self.size)
        solution = milp(
            self._objective(),
            integrality=integrality,
            bounds=Bounds(0, np.inf),
            constraints=[rows, LinearConstraint(equal, counts, counts), shorter],
            options={"node_limit": int(min(nodes, MOST_NODES)), "mip_rel_gap": CLOSE},
        )
        stopped = solution.status in NOT_ENDED
        effort.count(effort.NODES, self.size**2 * (solution.mip_node_count or stopped * nodes))
        if solution.status == 2:  # as far as it was looked for
            return Relaxed(enough_s, None)
        least = solution.mip_dual_bound
        if least is None or not np.isfinite(least):
            return Relaxed(0.0, None, ended_early=stopped)
        blocks = None if solution.x is None else np.maximum(solution.x[: self.size], 0.0).reshape(self.shape)
        bound_s = least * self.scale * (1 - TOLERANCE) + self.costs.tied_s
        return Relaxed(bound_s, blocks, ended_early=stopped)

    def _objective(self) -> FloatArray:
        objective = np.zeros(self.size + 2)
        objective[-2:] = 1.0
        return objective

    def _equalities(self) -> tuple[FloatArray, FloatArray]:
        """All blocks of each kind are in some virtual stage."""
        equal = np.zeros((self.kinds.size, self.size + 2))
        for i in range(self.kinds.size):
            chosen = np.zeros(self.shape)
            chosen[:, i] = 1.0
            equal[i, : self.size] = chosen.ravel()
        return equal, self.costs.ranks.blocks[self.kinds]

    def _solved(self) -> Relaxed:
        from scipy.optimize import linprog

        equal, counts = self._equalities()
        effort.count(effort.PROGRAM, len(self.rows) * self.size)
        solution = linprog(
            self._objective(),
            A_ub=np.array(self.rows),
            b_ub=np.array(self.limits),
            A_eq=equal,
            b_eq=counts,
            method="highs",
            options={"presolve": False},  # takes a third of the time of so small and dense a program
        )
        if solution.status == 2:
            return Relaxed(float("inf"), None)
        if solution.status != 0 or solution.x is None or solution.fun is None:
            return Relaxed(0.0, None)
        self._step_s = float(solution.x[-2]) * self.scale
        bound_s = float(solution.fun) * self.scale * (1 - TOLERANCE) + self.costs.tied_s
        return Relaxed(bound_s, np.maximum(solution.x[: self.size], 0.0).reshape(self.shape))
