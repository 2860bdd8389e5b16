"""The LightningModule: each training step plays a batch of episodes and learns from a replayed batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from automap_models.envs.pipeline.cost_to_go import POINTS, UNITS, CostToGo, levels
from automap_models.envs.pipeline.env import PipelineEnv, Problems
from automap_models.errors import BadInput
from automap_models.rl.agent import AgentConfig
from automap_models.rl.learner import Learner, LearnerConfig
from automap_models.rl.networks.one_step import OneStepQNetwork
from automap_models.rl.networks.pipeline import FlatQNetwork, LookAheadQNetwork, NetworkSize, SplitQNetwork
from automap_models.rl.offline import (
    PipelineAgent,
    branch,
    branch_loss,
    empty_branches,
    empty_transition,
    replayed,
    rollout,
    transitions,
)
from automap_models.rl.replay import Items, PrioritisedReplay

NETWORKS: dict[str, type[SplitQNetwork] | type[FlatQNetwork]] = {
    "look_ahead": LookAheadQNetwork,
    "one_step": OneStepQNetwork,
    "flat": FlatQNetwork,
}


@dataclass(frozen=True)
class OfflineLearnerConfig(LearnerConfig):
    """How a network is trained on many problems.

    Attributes:
        final_learning_rate: at the end of a cosine decay over the run; equal to the first for none.
        branches: episodes played from one state of each problem (rl.offline); 1 is one ordinary episode a problem.
    """

    final_learning_rate: float = 1e-5
    branches: int = 1


class RainbowModule(L.LightningModule):
    """Rainbow on the pipeline environment.

    Args:
        network: one of NETWORKS.
        size, agent, learner: plain mappings of NetworkSize, AgentConfig and OfflineLearnerConfig.
        seed: of exploration, of the replay's draws and of the weights; ranks add their number.
    """

    def __init__(
        self,
        network: str,
        size: dict[str, Any],
        agent: dict[str, Any],
        learner: dict[str, Any],
        seed: int,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False  # a step has several learner iterations
        self.size, self.settings, self.seed = NetworkSize(**size), OfflineLearnerConfig(**learner), seed
        torch.manual_seed(seed)
        self.online: SplitQNetwork | FlatQNetwork = NETWORKS[network](self.size)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        env = PipelineEnv(self.size.max_stages, self.size.max_devices, self.size.reward, self.size.objective)
        self.agent = PipelineAgent(env, self.online, self.target, AgentConfig(**agent))
        row, derived = self._empty_row(), self._empty_derived()
        self.replay = PrioritisedReplay(
            self.settings.replay, {**row, **derived}, self.settings.alpha, self.settings.beta, derived
        )
        self.episodes = 0
        self._gaps: list[Tensor] = []
        self._started = (0.0, 0.0, 0)

    def setup(self, stage: str) -> None:
        """The learner and the random states of this process; a resumed run overwrites them with its checkpoint's."""
        seeds = np.random.SeedSequence([self.seed, self.global_rank]).spawn(2)
        rng = np.random.default_rng(seeds[0])
        self.learner = Learner(
            self.online, self.target, self.replay, self.settings, rng, self._weighted_loss, self._optimise
        )
        self.generator = torch.Generator().manual_seed(int(seeds[1].generate_state(1)[0]))

    @property
    def exact_decisions(self) -> int:
        """The last decisions of an episode that the look-ahead makes exactly, with nothing to learn."""
        return self.online.exact_last

    @property
    def problems(self) -> Problems:
        """The training set."""
        problems: Problems = self.trainer.datamodule.problems  # type: ignore[attr-defined]
        return problems

    def configure_optimizers(self) -> Any:
        """Adam with a cosine decay over the learner iterations of the whole run."""
        optimizer = torch.optim.Adam(self.online.parameters(), lr=self.settings.learning_rate)
        total = max(1, int(self.trainer.estimated_stepping_batches) * self.settings.iterations)
        low = self.settings.final_learning_rate / self.settings.learning_rate

        def factor(step: int) -> float:
            return float(low + (1 - low) * 0.5 * (1 + np.cos(np.pi * min(1.0, step / total))))

        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, factor)}

    def on_train_epoch_start(self) -> None:
        """Start the clocks of this epoch."""
        self._started = (time.perf_counter(), time.process_time(), self.episodes)

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Play on each problem of the batch, then learn."""
        epsilon = self.agent.config.epsilon(self.global_step)
        reward = self._play(batch.cpu(), epsilon)
        losses = [self.learner.learn() for _ in range(self.settings.iterations)]
        self.episodes += len(batch) * self.settings.branches * self.trainer.world_size
        for name, value in (("loss", torch.stack(losses).mean()), ("reward", reward.mean())):
            self.log(f"train/{name}", value, on_step=False, on_epoch=True)
        self.log("train/epsilon", epsilon, prog_bar=True, on_step=False, on_epoch=True)

    def _play(self, index: Tensor, epsilon: float) -> Tensor:
        """Episodes into the replay; rewards [B]."""
        problems = self._pick(index)
        items, reward = self._episodes(index, problems, epsilon)
        if not self.replay.derived <= items.keys():
            place = {number: row for row, number in enumerate(index.tolist())}
            rows = torch.tensor([place[number] for number in items["problem"].tolist()], dtype=torch.int64)
            items = items | self._derive(problems.take(rows), items)
        self.replay.add(items)
        return reward

    def _episodes(self, index: Tensor, problems: Problems, epsilon: float) -> tuple[Items, Tensor]:
        """One episode on each problem, or one for each branch: rows for the replay, rewards [B]."""
        exact, branches = self.exact_decisions, self.settings.branches
        if branches > 1:
            return branch(self.agent, index, problems, branches, epsilon, self.generator, exact)
        episodes = rollout(self.agent, problems, epsilon, self.generator)
        return transitions(index, episodes, skip_last=exact), episodes.reward

    def _empty_row(self) -> Items:
        """One row of `_episodes` as the replay wants to know it."""
        branches, max_stages = self.settings.branches, self.size.max_stages
        return empty_transition(max_stages) if branches == 1 else empty_branches(max_stages, branches)

    def _pick(self, index: Tensor) -> Problems:
        """Problems of the training set with what the network derives once for all their states."""
        return self.online.prepare(self.problems.take(index).to(self.device))

    def _empty_derived(self) -> Items:
        """One problem's cost-to-go tables as the replay wants to know them; none for a network that has none."""
        if not isinstance(self.online, LookAheadQNetwork):
            return {}
        points = min(POINTS, self.size.points)
        depth = 1 if self.settings.branches > 1 else levels(self.size.max_stages)
        table = np.zeros((depth, points, UNITS), dtype=np.float32)
        return dict.fromkeys(CostToGo._fields, table) | {"points": np.zeros(points, dtype=np.int64)}

    def _derive(self, problems: Problems, items: Items) -> Items:
        """The tables of the rows' problems; of one that holds a single state only what this state looks up."""
        tables = problems.cost_to_go
        if tables is None:
            return {}
        if self.settings.branches > 1:
            stage = torch.from_numpy(items["step"]).long().to(self.device) // 2
            tables = tables.only(problems.stages.long() - 1 - stage)
        return {name: table.cpu().numpy() for name, table in tables._asdict().items()}

    def _replayed(self, items: Items) -> Problems:
        """The problems of replayed rows; their tables are remembered, as making them takes longer than learning."""
        problems = self.problems.take(torch.from_numpy(items["problem"]))
        if self.replay.derived:
            problems = problems._replace(
                cost_to_go=CostToGo(*(torch.from_numpy(items[name]) for name in CostToGo._fields))
            )
        return problems.to(self.device)

    def _weighted_loss(self, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See rl.learner.Loss."""
        return self._loss(self._replayed(items), items, weights.to(self.device))

    def _optimise(self, loss: Tensor) -> None:
        """A step of the optimiser and of its schedule, by way of Lightning, which joins the processes' gradients."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, self.settings.gradient_clip, "norm")
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()

    def _loss(self, problems: Problems, items: Items, importance: Tensor) -> tuple[Tensor, Tensor]:
        """Weighted loss of replayed rows and the errors [B] that become their priorities."""
        if self.settings.branches > 1:
            return branch_loss(self.agent, problems, items, importance)
        return self.agent.loss(problems, replayed(self.agent.config, problems, items), importance)

    def on_train_epoch_end(self) -> None:
        """Report episodes and their rate over the epoch, learning included, by the clock and by processor time."""
        since, busy_since, episodes = self._started
        played = self.episodes - episodes
        self.log("train/episodes", float(self.episodes))
        self.log("train/episodes_per_s", played / max(1e-9, time.perf_counter() - since), prog_bar=True)
        self.log("train/episodes_per_processor_s", played / max(1e-9, time.process_time() - busy_since))

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Greedy lengths, or steps, of held-out problems over their optima."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self._gaps.append(self.gaps(data.validation.take(batch.cpu()), data.optima[batch.cpu()], self.generator))

    def gaps(self, problems: Problems, optima: Tensor, generator: torch.Generator) -> Tensor:
        """[B] L/L* of greedy plans; inf where a plan does not fit. Under a schedule steps stand for lengths.

        Args:
            problems: B of them.
            optima: [B] their optimal lengths L*, or the shortest steps known.
            generator: of random draws.
        """
        problems = problems.to(self.device)
        episodes = rollout(self.agent, problems, 0.0, generator)
        time, fits = self.agent.env.taken(problems, episodes.complete)
        return torch.where(fits, time / optima.to(self.device), torch.inf)

    def on_validation_epoch_end(self) -> None:
        """Log mean, 99th percentile and maximum of L/L*; plans that do not fit are counted apart.

        Where no plan fits, all three are infinite.
        """
        ratio = torch.cat(self._gaps)
        self._gaps.clear()
        fits = ratio[ratio.isfinite()]
        percentile = fits.quantile(0.99) if len(fits) else torch.inf  # torch's quantile of infinities is NaN
        if not len(fits):
            fits = ratio.new_tensor([torch.inf])
        self.log("val/gap_mean", fits.mean(), prog_bar=True, sync_dist=True)
        self.log("val/gap_p99", percentile, sync_dist=True)
        self.log("val/gap_max", fits.amax(), sync_dist=True)
        self.log("val/out_of_memory", (~ratio.isfinite()).float().mean(), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add replay, counters and random states, of every process."""
        mine = {**self.learner.state_dict(), "generator": self.generator.get_state()}
        states: list[Any] = [mine]
        if self.trainer.world_size > 1:
            states = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(states, mine)
        checkpoint["rainbow"] = {"episodes": self.episodes, "processes": states}

    def _remember_derived(self) -> None:
        """Fill in what a checkpoint leaves out of the replay."""
        for start in range(0, len(self.replay), 256):
            rows = np.arange(start, min(start + 256, len(self.replay)))
            items = {name: column[rows] for name, column in self.replay.items.items()}
            for name, table in self._derive(self._pick(torch.from_numpy(items["problem"])), items).items():
                self.replay.items[name][rows] = table

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with replay, counters and random states as they were.

        Raises:
            BadInput: another number of processes wrote it.
        """
        if self._trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return  # only the weights were asked for
        saved = checkpoint["rainbow"]
        require_processes(saved, self.trainer.world_size, "the checkpoint")
        mine = saved["processes"][self.global_rank]
        self.episodes = int(saved["episodes"])
        self.learner.load_state_dict(mine)
        self.learner.iteration = int(checkpoint["global_step"])
        if self.replay.derived:
            self._remember_derived()
        self.generator.set_state(mine["generator"].cpu())


def require_processes(saved: Mapping[str, Any], processes: int, where: str) -> None:
    """Each process goes on with its own replay and random states, so there must be as many as before.

    Raises:
        BadInput: there are not.
    """
    before = len(saved["processes"])
    if before != processes:
        raise BadInput(
            f"was written by {before} process(es), this run has {processes}",
            where=where,
            do=f"go on with trainer.devices × trainer.num_nodes = {before}, or take the weights only with init_from=",
        )
