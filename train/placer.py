"""Training of the learned placer by imitation of simulated moves: `python train/run.py experiment=gdp_pretrain`.

    random graphs, traced models ── examples: placements with the gains of their moves ── cross-entropy ── policy

The gains that moves have, as shares of all gains of an example, are taken for the probability of each. Every draw
follows from the seed and the number of the update, so that a run that is gone on with draws what it would have drawn;
examples are kept in the folder of the run. Graphs are traced once in a process.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from omegaconf import DictConfig
from torch import Tensor

from automap_models.core.placement import PlacementGraph, PlacementProblem
from automap_models.envs.placement.features import DEVICES, SEGMENT, PlacerInputs
from automap_models.envs.placement.generator import random_problem
from automap_models.errors import AutomapError, BadInput
from automap_models.onnx_runtime import OnnxFile
from automap_models.planners.placement.learned import KIND, OUTPUT, VERSION
from automap_models.rl.networks.placement import PlacerNetwork, PlacerSize

from .build import FOLDER, LAST, checked, checkpoints, resume_from, trainer_of, write_config
from .console import say
from .export import write_onnx
from .interrupts import fit
from .placer_examples import MoveExample, examples, stacked, traced_graph, varied

SEE = "see conf/experiment/gdp_pretrain.yaml"
VALIDATION_SEED = 7919
"""Offset of the seeds of held-out random problems."""
EXAMPLES = "examples"
"""Folder of them in that of a run."""
LEAST_GAIN = 1e-6
"""A smaller gain is none."""


@dataclass
class PlacerConfig:
    """Settings of a training of the placer.

    Attributes:
        graphs: built-in models (traced; this takes jax) or device-placement JSON files, on random devices.
        random_problems: random graphs with examples.
        graph_problems: devices drawn for the graphs, one after the other, with examples.
        moves: simulated for an example.
        steps: updates in all.
        batch: examples of an update.
        learning_rate: of Adam at the first update.
        decay: share of it by which it falls until the last.
        validate: updates between validations and checkpoints.
        held_out: random problems of a validation, beside a draw of devices for each graph.
    """

    graphs: list[str] = field(default_factory=list)
    random_problems: int = 200
    graph_problems: int = 160
    moves: int = 300
    steps: int = 1200
    batch: int = 8
    learning_rate: float = 1e-3
    decay: float = 0.9
    validate: int = 100
    held_out: int = 16
    size: dict[str, Any] = field(default_factory=lambda: asdict(PlacerSize()))


class PlacerModule(L.LightningModule):
    """One update: imitation of a batch of examples.

    Args:
        out: folder of the run, which keeps examples.
    """

    def __init__(self, config: dict[str, Any], seed: int, out: Path) -> None:
        super().__init__()
        self.save_hyperparameters({"placement": config, "seed": seed})
        self.config, self.seed, self.out = config, seed, out
        self.network = PlacerNetwork(PlacerSize(**config["size"]))
        self.automatic_optimization = False
        self._validation: dict[int, list[MoveExample]] = {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.network.parameters(), lr=self.config["learning_rate"])

    def train_dataloader(self) -> Any:
        """Numbers of the next updates, counted through all epochs."""
        first, epoch = self.trainer.current_epoch * self.config["validate"], self.config["validate"]
        return torch.utils.data.DataLoader(range(first, first + epoch), batch_size=None)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        """Numbers of the held-out problems."""
        validation = self.config["held_out"] + len(self.config["graphs"])
        return torch.utils.data.DataLoader(range(validation), batch_size=None)  # type: ignore[arg-type]

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Update number `batch`."""
        step = int(batch)
        optimizer: Any = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = self.config["learning_rate"] * (1.0 - self.config["decay"] * step / self.config["steps"])
        loss = imitation_loss(self.network, self._examples(step))
        self.log("train/imitation", loss.detach())
        optimizer.zero_grad()
        self.manual_backward(loss)
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        optimizer.step()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        """Share of the gains of a held-out problem's moves that are among the 16 that the network would draw first."""
        number, tops = int(batch), []
        with torch.no_grad():
            for example in self._validation_examples(number):
                if (example.gains > LEAST_GAIN).any():
                    share = _shares(example)
                    (log_prob,) = move_log_probs(self.network, [example])
                    first = log_prob.topk(min(16, len(log_prob))).indices
                    tops.append(float(share[first].sum()))
        top = float(np.mean(tops or [1.0]))  # where nothing gains nothing is missed
        self.log("val/top", top, batch_size=1)
        self.log("val/random" if number < self.config["held_out"] else "val/graphs", top, batch_size=1)

    def _validation_examples(self, number: int) -> list[MoveExample]:
        """Of random problems, then of each graph on further devices."""
        if number not in self._validation:
            config, random = self.config, np.random.default_rng([self.seed + VALIDATION_SEED, number])
            index = number - config["held_out"]
            problem = random_problem(random) if index < 0 else varied(graph_of(config["graphs"][index]), random)
            self._validation[number] = held_out_examples(problem, number)
        return self._validation[number]

    def _examples(self, step: int) -> list[MoveExample]:
        """A batch of kept examples of like size, in an order that the seed draws."""
        files = _gaining(self.out / EXAMPLES)
        random = np.random.default_rng([self.seed, step])
        middle = int(random.integers(len(files)))
        near = np.clip(middle + random.integers(-20, 21, self.config["batch"]), 0, len(files) - 1)
        return [_read(files[i]) for i in near.tolist()]


def _shares(example: MoveExample) -> Tensor:
    gains = np.maximum(example.gains, 0.0)
    return torch.from_numpy(gains / gains.sum()).float()


def tensors(inputs: list[PlacerInputs]) -> dict[str, Tensor]:
    """Name → the arrays of several placements with a batch dimension, padded to the largest."""
    return {name: torch.from_numpy(stacked([getattr(one, name) for one in inputs])) for name in vars(inputs[0])}


def move_log_probs(network: PlacerNetwork, batch: list[MoveExample]) -> list[Tensor]:
    """[m] logarithm of the probability of each simulated move, among these, for each example."""
    logits = network(**tensors([example.inputs for example in batch]))
    return [
        torch.log_softmax(logits[i, example.moves[:, 0], example.moves[:, 1]], dim=0) for i, example in enumerate(batch)
    ]


def imitation_loss(network: PlacerNetwork, batch: list[MoveExample]) -> Tensor:
    """Cross-entropy of the moves' shares of the gains, mean over the examples; each has a move that gains."""
    losses = [
        -(_shares(example) * log_prob).sum()
        for example, log_prob in zip(batch, move_log_probs(network, batch), strict=True)
    ]
    return torch.stack(losses).mean()


def keep_examples(config: dict[str, Any], seed: int, out: Path) -> None:
    """Make the examples of a run that are not there yet."""
    folder = out / EXAMPLES
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [("random", i) for i in range(config["random_problems"])]
    wanted += [("graph", i) for i in range(config["graph_problems"] if config["graphs"] else 0)]
    for kind, i in wanted:
        done = folder / f"{kind}_{i}.done"
        if done.is_file():
            continue
        random = np.random.default_rng([seed, i, kind == "random"])
        graphs = config["graphs"]
        problem = random_problem(random) if kind == "random" else varied(graph_of(graphs[i % len(graphs)]), random)
        for j, example in enumerate(examples(problem, seed + i, config["moves"])):
            gaining = "gains" if (example.gains > LEAST_GAIN).any() else "none"
            example.write(folder / f"{len(example.inputs.pieces):05d}_{kind}_{i}_{j}_{gaining}.npz")
        done.touch()
        if i % 50 == 0:
            say(f"examples of {i + 1} {kind} problems")


@lru_cache(maxsize=1)
def _gaining(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*_gains.npz"))
    if not files:
        raise BadInput("no example has a move that gains", where=str(folder), do="draw more problems")
    return files


_read = lru_cache(maxsize=4096)(MoveExample.read)


@lru_cache(maxsize=32)
def graph_of(name: str) -> PlacementGraph:
    """The graph of a file, or of a built-in model's traced step."""
    if name.endswith(".json"):
        from automap_models.formats.planning_graphs import read_placement

        return read_placement(name)
    return traced_graph(name)


def held_out_examples(problem: PlacementProblem, seed: int) -> list[MoveExample]:
    """Examples that no training sees."""
    return list(examples(problem, VALIDATION_SEED + seed, 300, walks=(0, 100)))


def placer_config(config: DictConfig) -> dict[str, Any]:
    """The settings of a training of the placer.

    Raises:
        BadInput: one is unknown or of another kind.
    """
    if not isinstance(config.get("placement"), DictConfig):
        raise BadInput("is not a group of settings", where="placement", do=SEE)
    merged = checked(PlacerConfig, "placement", config.placement, do=SEE)
    unknown = sorted(set(merged["size"]) - set(asdict(PlacerSize())))
    if unknown:
        raise BadInput("is no setting", where=f"placement.size.{unknown[0]}", do=SEE)
    for key in ("steps", "moves", "batch", "validate", "held_out"):
        if merged[key] < 1:
            raise BadInput(f"is {merged[key]}", where=f"placement.{key}", do="give a whole number of at least 1")
    return merged


def train_placer(config: DictConfig) -> L.Trainer:
    """Run one training of the placer and export its policy.

    Raises:
        BadInput: a setting or a file cannot be used.
    """
    settings = placer_config(config)
    L.seed_everything(config.seed, verbose=False)
    torch.set_num_threads(max(int(config.trainer.threads), 1))
    out = Path(config.out)
    module = PlacerModule(settings, config.seed, out)
    if config.init_from is not None and config.ckpt_path is None:
        load_placer(module, Path(config.init_from))
        say(f"starting with the weights of {config.init_from}")
    last = resume_from(config)
    if last is not None and not last.is_file():
        raise BadInput("no such checkpoint", where=str(last), do="give an existing file as ckpt_path=")
    write_config(config)
    keep_examples(settings, config.seed, out)
    epochs, logger = -(-settings["steps"] // settings["validate"]), CSVLogger(config.out, name="csv")
    options: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "log_every_n_steps": 20}
    trainer = trainer_of(config, epochs, logger, checkpoints(config, "val/top", "max"), **options)
    fit(trainer, module, None, last)
    if config.export:
        best: Any = trainer.checkpoint_callback
        load_placer(module, Path(best.best_model_path or out / FOLDER / f"{LAST}.ckpt"))
        difference = export_placer(module, out / "policy.onnx")
        say(f"{out / 'policy.onnx'}: agrees with torch, largest difference {difference:.1e}")
    return trainer


def load_placer(module: PlacerModule, path: Path) -> None:
    """Take over the weights of a checkpoint.

    Raises:
        BadInput: the file is no checkpoint of such a network.
    """
    if not path.is_file():
        raise BadInput("no such checkpoint", where=str(path), do="give an existing file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(content["state_dict"])
    except Exception as error:  # zipfile, pickle and torch raise a dozen kinds on what is no checkpoint
        raise BadInput(
            "is no checkpoint of such a placer", where=str(path), do="train one with gdp_pretrain"
        ) from error


def export_placer(module: PlacerModule, path: Path) -> float:
    """Write the policy; the largest difference of a logit to torch's, on eight random problems.

    Raises:
        AutomapError: it differs from torch by more than 1e-3.
    """
    network = module.network.eval()
    problems = [random_problem(np.random.default_rng([module.seed, 31, i])) for i in range(8)]
    validation = [held_out_examples(problem, i)[0] for i, problem in enumerate(problems)]
    feeds = [example.inputs for example in validation]
    segments, devices = torch.export.Dim("segments", min=1, max=64), torch.export.Dim("devices", min=2, max=DEVICES)
    sizes: dict[str, dict[int, Any]] = {name: {1: SEGMENT * segments} for name in feeds[0].feed()}
    sizes["devices"] = {1: devices}
    for name in ("home", "pairs", "move_mask"):
        sizes[name][2] = devices
    largest_feed = tensors([max(feeds, key=lambda one: len(one.pieces) + len(one.devices))])
    metadata = {"kind": KIND, "version": str(VERSION), "seed": str(module.seed)}
    write_onnx(network, metadata, path, kwargs=largest_feed, output_names=[OUTPUT], dynamic_shapes=sizes)
    policy, largest = OnnxFile(path), 0.0
    for inputs in feeds:
        (logits,) = policy.run(inputs.feed(), [OUTPUT], 60.0)
        with torch.no_grad():
            expected = network(**tensors([inputs])).numpy()
        there = expected > -1e8
        largest = max(largest, float(np.abs(logits - expected)[there].max()))
    if largest > 1e-3:
        raise AutomapError(f"the exported policy differs from torch by {largest:.1e}", where=str(path))
    return largest
