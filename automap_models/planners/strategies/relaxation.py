"""A lower bound of a subspace's steps by linear programming, and the cuts that attain it.

    v  virtual stage, of V          s  rank, of S          c  kind of block          j  kind of recomputation, of R'
    p  pass: F, I or W              n  row: a chain, or a moment of a rank          k  layer that is distinct

    rank 0    F ─┐ x      ┌─ I W         a chain: Σ over its passes of y[v, ·, ·] · seconds, and x of each message
    rank 1       └─ F I ──┘              is one row, as linear in y as seconds of a stage are in its blocks

    y[v, c, j]     blocks of kind c with recomputation j in virtual stage v, any number 0 or more, whole or not
    T              when the last rank has run its passes and summed its gradients
    O              the slowest rank's update

    least T + O
      Σ_v,j y[v, c, j] = blocks of kind c
      every rank       bytes at each moment of its order, ≥ 0 left
      every chain      Σ count · seconds of passes and messages + gradients of its rank ≤ T
      every rank       its update ≤ O

A chain is passes each of which waits for the one before it (simulate.rounds.longest_chains), so that no strategy of the
subspace ends before it does. Seconds of passes are sums over blocks: each chain is one row. The program is solved with
few chains first. Then its solution is played by the simulator, and the chains that make the ranks end become rows,
until the simulator says what the program says. Where each rank has whole blocks, Σ_v,j y[v, c, j] of its virtual
stages, it is an integer program, which takes longer: with 3.94 blocks on each of 32 ranks, some rank has 4.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from automap_models.core.instruction_graph import FloatArray
from automap_models.core.strategy import RECOMPUTE
from automap_models.cost.strategy import laid_out
from automap_models.planners import effort
from automap_models.planners.strategies.chain_bounds import Chains, as_arrays, passes_laid_out, usual_chains
from automap_models.planners.strategies.subspace_costs import SubspaceCosts
from automap_models.simulate.rounds import PassTimes, longest_chains
from automap_models.simulate.strategy import WITHOUT_WAITING

TOLERANCE = 1e-6
"""Relative, of the solver's values: bounds are lowered and memory is enlarged by it. A solver may else call a program
infeasible that a strategy solves to the last byte."""


class Relaxed(NamedTuple):
    """A solution.

    Attributes:
        bound_s: no step of the subspace is shorter.
        blocks: [V, kinds, R'] of each virtual stage; none where nothing fits.
    """

    bound_s: float
    blocks: FloatArray | None


class Relaxation:
    """The program of one subspace; rows are [n, columns], and columns are y, T and O.

    Args:
        costs: of the subspace.
        recompute: kinds of recomputation that blocks may have.
    """

    def __init__(self, costs: SubspaceCosts, recompute: list[int]) -> None:
        self.costs, self.strategy, ranks = costs, costs.strategy, costs.ranks
        self.kinds = np.flatnonzero(ranks.blocks)
        self.recompute = np.array(recompute)
        self.stages = self.strategy.stages
        self.shape = (self.stages, self.kinds.size, len(recompute))
        self.size = int(np.prod(self.shape))
        self.on_rank = (costs.rank_of == np.arange(self.strategy.pp)[:, None]).astype(np.float64)  # [S, V]
        self.ends = np.zeros((self.stages, ranks.blocks.size))  # [V, k] layers of a virtual stage beside blocks
        self.ends[0, ranks.ends.first], self.ends[-1, ranks.ends.last] = 1.0, self.ends[-1, ranks.ends.last] + 1.0
        columns = np.ix_(np.arange(self.strategy.pp), self.kinds, self.recompute)
        self.of_blocks = ranks.passes[columns][costs.rank_of]  # [V, kinds, R', 3]
        self.scale = float(self.strategy.micro_batches * self.of_blocks.sum(axis=-1).min() * ranks.blocks.sum())
        self.passes = passes_laid_out(self.strategy)
        # [3, V] seconds of F, I and W that are there whatever blocks a virtual stage has
        none = RECOMPUTE.index("none")
        self.constant = np.einsum("vk,vkp->pv", self.ends, ranks.passes[costs.rank_of][:, :, none])
        self.constant[:2] += costs.sends
        self.constant[0] += costs.starts
        # [S] seconds of the ends' gradients
        self.gradients_of_ends = (self.on_rank @ self.ends * ranks.gradients).sum(axis=1)
        self.rows: FloatArray = np.zeros((0, self.size + 2))
        self.limits: FloatArray = np.zeros(0)
        self._limit_memory()
        self._limit_updates()
        inner = np.eye(self.stages)[1:-1, :, None, None]  # no virtual stage is empty: those at the ends have the ends
        self._limit(np.broadcast_to(-inner, (len(inner), *self.shape)), np.full(len(inner), -1.0))
        self._limit_chains(usual_chains(*self._schedule(), self.strategy.vp))

    def _schedule(self) -> tuple[str, int, int]:
        return self.strategy.schedule, self.strategy.pp, self.strategy.micro_batches

    # ---- rows

    def _limit(self, of_blocks: FloatArray, limits: FloatArray, step: float = 0.0, update: float = 0.0) -> None:
        """Let [n, V, kinds, R'] times blocks, and so many T and O, be [n] limits or less."""
        times = np.broadcast_to([step, update], (len(limits), 2))
        rows = np.concatenate([of_blocks.reshape(-1, self.size), times], axis=1)
        self.rows, self.limits = np.concatenate([self.rows, rows]), np.concatenate([self.limits, limits])

    def _limit_memory(self) -> None:
        """At each of its twelve fullest moments, and while it updates, a rank holds what it has room for, or less."""
        ranks, most = self.costs.ranks, self.costs.room.max()
        bytes_of = np.stack([ranks.saved, ranks.for_weights])  # [2, k, R]
        of_kinds, least = bytes_of[:, self.kinds][:, :, self.recompute], bytes_of[:, :, self.recompute].min(axis=2)
        rows, rooms = [], []
        for rank, (stages, fullest) in enumerate(laid_out(self.strategy).fullest):
            moments = fullest[:12]
            on_rank, ends = list(stages), self.ends[list(stages)]
            of_blocks = np.zeros((len(moments), *self.shape))
            of_blocks[:, on_rank] = np.einsum("mpv,pkr->mvkr", moments, of_kinds) + ranks.state[self.kinds, None]
            of_ends = (ends @ ranks.state).sum() + np.einsum("mpv,vk,pk->m", moments, ends, least)
            rows.append(of_blocks)
            rooms.append(self.costs.room[rank] - of_ends)
        if self.costs.costings[0].copied_bytes:
            of_blocks = np.einsum("sv,k,r->svkr", self.on_rank, ranks.updating[self.kinds], np.ones(self.shape[-1]))
            rows.append(of_blocks)
            rooms.append(self.costs.update_room - self.on_rank @ self.ends @ ranks.updating)
        self._limit(np.concatenate(rows) / most, np.concatenate(rooms) / most + TOLERANCE)

    def _limit_updates(self) -> None:
        """No rank's update is longer than O."""
        of_layers = self.costs.ranks.optimizer / self.scale
        of_blocks = np.einsum("sv,k,r->svkr", self.on_rank, of_layers[self.kinds], np.ones(self.recompute.size))
        self._limit(of_blocks, -self.on_rank @ self.ends @ of_layers, update=-1.0)

    def _limit_chains(self, chains: Chains) -> None:
        """Let no step be shorter than chains and what of their ranks' gradients never hides."""
        passes, messages, ranks = chains
        gradients = ranks @ self.costs.ranks.gradients[:, self.kinds]
        of_blocks = np.einsum("npv,vkrp->nvkr", passes, self.of_blocks)
        of_blocks += ((ranks @ self.on_rank)[:, :, None] * gradients[:, None])[..., None]
        constant = np.einsum("npv,pv->n", passes, self.constant) + messages @ self.costs.messages
        constant += ranks @ self.gradients_of_ends
        self._limit(of_blocks / self.scale, -constant / self.scale, step=-1.0)

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
            name, ranks, micro_batches = self._schedule()
            ends, chain = longest_chains(name, micro_batches, self.strategy.vp, times)
            if name in WITHOUT_WAITING:
                ends = ends - np.concatenate([[0.0], np.cumsum(forward[:-1] + times.transfer_s)])
            step_s = float((ends + self._gradients(solution.blocks)).max())
            longest = filter(None, map(chain, np.argsort(-ends, kind="stable").tolist()))  # of ranks that end last
            chains = list(islice(longest, 4)) if step_s > self._step_s * (1 + 1e-4) else []
            if not chains:
                break
            self._limit_chains(as_arrays(name, ranks, chains))
            solution = self._solved()
        return solution

    def _durations(self, blocks: FloatArray) -> FloatArray:
        """[3, V] seconds of F, I and W."""
        return np.asarray(np.einsum("vcj,vcjp->pv", blocks, self.of_blocks) + self.constant)

    def _gradients(self, blocks: FloatArray) -> FloatArray:
        """[S] seconds of gradients that never hide."""
        of_ranks = self.on_rank @ blocks.sum(axis=2)
        return np.asarray((of_ranks * self.costs.ranks.gradients[:, self.kinds]).sum(axis=1) + self.gradients_of_ends)

    def integer(self, nodes: int, enough_s: float = float("inf")) -> float:
        """The bound where each rank has whole blocks of each kind, in any pieces in its virtual stages.

        Args:
            nodes: of the search that is looked at, at most.
            enough_s: where the bound is that or more, this is what it is.
        """
        kinds, more = self.kinds.size, self.strategy.pp * self.kinds.size  # columns: blocks of each on each rank
        sums = np.einsum("sv,ck,r->scvkr", self.on_rank, np.eye(kinds), np.ones(self.recompute.size)).reshape(more, -1)
        effort.count(effort.INTEGER, self.size * more)
        limit = (enough_s - self.costs.tied_s) / (self.scale * (1 - TOLERANCE))
        options = {"node_limit": nodes, "mip_rel_gap": 1e-3}
        solution = self._solution(np.hstack([sums, np.zeros((more, 2)), -np.eye(more)]), limit, options)
        if solution.status == 2:  # infeasible, as far as it was looked for
            return enough_s
        least = solution.mip_dual_bound
        return 0.0 if least is None or not np.isfinite(least) else self._seconds(least)

    def _solved(self) -> Relaxed:
        effort.count(effort.PROGRAM, len(self.rows) * self.size)
        options = {"presolve": False}  # takes a third of the time of so small and dense a program
        solution = self._solution(np.zeros((0, self.size + 2)), np.inf, options)
        if solution.x is None:
            return Relaxed(float("inf") if solution.status == 2 else 0.0, None)
        self._step_s = float(solution.x[-2]) * self.scale
        return Relaxed(self._seconds(solution.fun), np.maximum(solution.x[: self.size], 0.0).reshape(self.shape))

    def _seconds(self, optimum: float) -> float:
        return float(optimum) * self.scale * (1 - TOLERANCE) + self.costs.tied_s

    def _solution(self, integer: FloatArray, limit: float, options: Any) -> Any:
        """What scipy has for the program with further columns of whole numbers, so that T and O are a limit or less.

        Args:
            integer: [n, columns + n] rows that are 0: what each of the n further columns is the sum of.
        """
        from scipy.optimize import LinearConstraint, milp

        more = len(integer)
        of_kinds = np.repeat(np.eye(self.kinds.size), self.recompute.size, axis=1)  # all blocks are somewhere
        equal = np.pad(np.tile(of_kinds, self.stages), ((0, 0), (0, 2 + more)))
        counts = np.pad(self.costs.ranks.blocks[self.kinds], (0, more))
        objective = np.pad(np.append(np.zeros(self.size), [1.0, 1.0]), (0, more))
        rows = [np.pad(self.rows, ((0, 0), (0, more))), objective[None]] if more else [self.rows]
        limits = np.append(self.limits, limit) if more else self.limits
        return milp(
            objective,
            integrality=np.repeat([0, 1], [self.size + 2, more]),
            constraints=[
                LinearConstraint(np.concatenate(rows), -np.inf, limits),
                LinearConstraint(np.concatenate([equal, integer]), counts, counts),
            ],
            options=options,
        )
