"""The LightningModule: each training step plays a batch of episodes and learns from a replayed batch."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from automap_models.envs.pipeline.env import Floats, Problems, rewards
from automap_models.rl.agent import AgentConfig
from automap_models.rl.episodes import PipelineAgent, empty_branches, empty_decision
from automap_models.rl.learner import Learner, LearnerConfig
from automap_models.rl.networks.pipeline import NETWORKS, NetworkSize, PipelineNetwork
from automap_models.rl.replay import Items, PrioritisedReplay


@dataclass(frozen=True)
class OfflineLearnerConfig(LearnerConfig):
    """How a network is trained on many problems.

    Attributes:
        final_learning_rate: at the end of a cosine decay over the run; equal to the first for none.
        branches: episodes played from one state of each problem (rl.episodes); 1 is one ordinary episode a problem.
    """

    final_learning_rate: float = 1e-5
    branches: int = 1


class RainbowModule(L.LightningModule):
    """Rainbow on the pipeline environment.

    Args:
        size, agent, learner: plain mappings of NetworkSize, AgentConfig and OfflineLearnerConfig.
        seed: of exploration, of the replay's draws and of the weights; ranks add their number.
    """

    def __init__(
        self,
        network: str,
        reward: str,
        size: dict[str, Any],
        agent: dict[str, Any],
        learner: dict[str, Any],
        seed: int,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False  # a step has several learner iterations
        self.size, self.settings, self.seed = NetworkSize(**size), OfflineLearnerConfig(**learner), seed
        self.reward, self.agent_config = reward, AgentConfig(**agent)
        torch.manual_seed(seed)
        self.online: PipelineNetwork = NETWORKS[network](self.size)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        branches, most = self.settings.branches, self.size.max_stages
        row = empty_decision(most) if branches == 1 else empty_branches(most, branches)
        self.replay = PrioritisedReplay(self.settings.replay, row, self.settings.alpha, self.settings.beta)
        self.agent = self._agent(torch.Generator().manual_seed(seed))
        self.episodes = 0
        self._gaps: list[Floats] = []
        self._started = (0.0, 0.0, 0)

    def _agent(self, generator: torch.Generator) -> PipelineAgent:
        describe = self.online.describe(self.size)
        most = self.size.max_stages
        return PipelineAgent(self.online, self.target, describe, most, self.reward, self.agent_config, generator)

    def setup(self, stage: str) -> None:
        """The learner and the random states of this process; a resumed run overwrites them with its checkpoint's."""
        seeds = np.random.SeedSequence([self.seed, self.global_rank]).spawn(2)
        rng = np.random.default_rng(seeds[0])
        self.learner = Learner(
            self.online, self.target, self.replay, self.settings, rng, self._weighted_loss, self._optimise
        )
        self.agent = self._agent(torch.Generator().manual_seed(int(seeds[1].generate_state(1)[0])))

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
        epsilon = self.agent_config.epsilon(self.global_step)
        reward = self._play(batch.cpu().numpy(), epsilon)
        losses = [self.learner.learn() for _ in range(self.settings.iterations)]
        self.episodes += len(batch) * self.settings.branches * self.trainer.world_size
        for name, value in (("loss", torch.stack(losses).mean()), ("reward", float(reward.mean()))):
            self.log(f"train/{name}", value, on_step=False, on_epoch=True)
        self.log("train/epsilon", epsilon, prog_bar=True, on_step=False, on_epoch=True)

    def _play(self, index: Any, epsilon: float) -> Floats:
        """Episodes into the replay, one on each problem or one for each branch; what they earned."""
        problems, branches = self.problems.take(index), self.settings.branches
        if branches > 1:
            played = self.agent.branch(index, problems, branches, epsilon)
        else:
            played = self.agent.decisions(index, problems, epsilon)
        self.replay.add(played.items)
        return played.earned

    def _weighted_loss(self, items: Items, weights: Tensor) -> tuple[Tensor, Tensor]:
        """See rl.learner.Loss."""
        problems, loss = self.problems.take(items["problem"]), self.agent.decision_loss
        if self.settings.branches > 1:
            loss = self.agent.branch_loss
        return loss(problems, items, weights.to(self.device))

    def _optimise(self, loss: Tensor) -> None:
        """A step of the optimiser and of its schedule, by way of Lightning, which joins the processes' gradients."""
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(optimizer, self.settings.gradient_clip, "norm")
        optimizer.step()
        scheduler: Any = self.lr_schedulers()
        scheduler.step()

    def on_train_epoch_end(self) -> None:
        """Report episodes and their rate over the epoch, learning included, by the clock and by processor time."""
        since, busy_since, episodes = self._started
        played = self.episodes - episodes
        self.log("train/episodes", float(self.episodes))
        self.log("train/episodes_per_s", played / max(1e-9, time.perf_counter() - since), prog_bar=True)
        self.log("train/episodes_per_processor_s", played / max(1e-9, time.process_time() - busy_since))

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Greedy lengths of held-out problems over their optima."""
        data, rows = self.trainer.datamodule, batch.cpu().numpy()  # type: ignore[attr-defined]
        self._gaps.append(self.gaps(data.validation.take(rows), data.optima[rows]))

    def gaps(self, problems: Problems, optima: Floats) -> Floats:
        """[B] L/L* of greedy plans; inf where a plan does not fit.

        Args:
            optima: [B] their optimal lengths L*, in ideal lengths.
        """
        earned = rewards(problems, self.agent.planned(problems))
        return np.where(earned > 0.0, 1.0 / (np.maximum(earned, 1e-9) * optima), np.inf)

    def on_validation_epoch_end(self) -> None:
        """Log mean, 99th percentile and maximum of L/L*; plans that do not fit are counted apart.

        Where no plan fits, all three are infinite.
        """
        ratio = np.concatenate(self._gaps)
        self._gaps.clear()
        fits = ratio[np.isfinite(ratio)]
        fits = fits if len(fits) else np.array([np.inf])
        percentile = np.quantile(fits, 0.99) if np.isfinite(fits[0]) else np.inf
        self.log("val/gap_mean", float(fits.mean()), prog_bar=True, sync_dist=True)
        self.log("val/gap_p99", float(percentile), sync_dist=True)
        self.log("val/gap_max", float(fits.max()), sync_dist=True)
        self.log("val/out_of_memory", float((~np.isfinite(ratio)).mean()), sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add replay, counters and random states, of every process."""
        mine = {**self.learner.state_dict(), "generator": self.agent.generator.get_state()}
        states: list[Any] = [mine]
        if self.trainer.world_size > 1:
            states = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(states, mine)
        checkpoint["rainbow"] = {"episodes": self.episodes, "processes": states}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with replay, counters and random states as they were; build.require_resumable has checked them."""
        if self._trainer is None or self.trainer.state.fn != TrainerFn.FITTING:
            return  # only the weights were asked for
        saved = checkpoint["rainbow"]
        mine = saved["processes"][self.global_rank]
        self.episodes = int(saved["episodes"])
        self.learner.load_state_dict(mine)
        self.learner.iteration = int(checkpoint["global_step"])
        self.agent.generator.set_state(mine["generator"].cpu())
