"""What fine-tuning on CNN distributions changes, on CNN arrays and on all others (Auto-MAP §3.5 needs it for CNNs).

    python benchmarks/finetune_cnn.py CHECKPOINT [--episodes 51200] [--problems 200] [--seed 2026]

Trains experiment=finetune_cnn from the checkpoint and compares greedy L / L* before and after on fresh problems of
every distribution. The claim: the policy needs no fine-tuning.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from common import drawn, optimum_s, refuse, run_program
from hydra import compose, initialize_config_dir
from rich.console import Console
from rich.progress import track
from rich.table import Table

from automap_models.core.staged import StagedProblem
from automap_models.envs.pipeline.encoding import encode
from automap_models.envs.pipeline.env import Problems, complete_cost
from automap_models.resources import conf_dir
from automap_models.rl.offline import rollout
from automap_models.train.build import build_module, load_weights
from automap_models.train.rainbow import RainbowModule

DISTRIBUTIONS = ("cnn", "transformer", "uniform", "normal", "binomial", "exponential", "lognormal")


def module_of(checkpoint: Path) -> RainbowModule:
    """The shipped network with a checkpoint's weights."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        module = build_module(compose("train"))
    load_weights(module, checkpoint)
    return module.eval()


def lengths(module: RainbowModule, problems: list[StagedProblem]) -> np.ndarray:
    """[B] lengths of greedy plans in the problems' own units; infinite where one does not fit."""
    tensors = Problems.from_encoded(encode(problems))
    episodes = rollout(module.agent, tensors, 0.0, torch.Generator())
    cost = complete_cost(tensors, episodes.complete)
    ideal = tensors.arrays[:, 0, -1] * tensors.micro_batches / tensors.devices
    ratio = torch.where(cost.feasible, cost.length / ideal, torch.inf).double().numpy()
    own = np.array([p.profile.C.sum() * p.micro_batches / p.cluster.devices for p in problems])
    return np.asarray(ratio * own)


def main() -> None:
    """Fine-tune and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "checkpoint", type=Path, nargs="?", help="of a training, such as runs/rainbow/checkpoints/last.ckpt"
    )
    parser.add_argument("--episodes", type=int, default=51200)
    parser.add_argument("--problems", type=int, default=200, help="of each distribution")
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    if arguments.checkpoint is None or not arguments.checkpoint.is_file():
        missing = "none is shipped" if arguments.checkpoint is None else f"{arguments.checkpoint} is none"
        refuse(f"this needs a checkpoint of a training, and {missing}: train with `python train/run.py`")
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "data", Path(folder) / "run"
        run_program("datagen", "dist=cnn", "groups=60000", "seed=1", f"out={data}")
        settings = (f"init_from={arguments.checkpoint.resolve()}", f"episodes={arguments.episodes}", "export=false")
        run_program("train", "experiment=finetune_cnn", f"data.path={data}", f"out={out}", *settings)
        modules = [module_of(path) for path in (arguments.checkpoint, out / "checkpoints" / "last.ckpt")]
    table = Table("distribution", "problems", "before: mean", "p99", "max", "after: mean", "p99", "max")
    for name in track(DISTRIBUTIONS, "optima", console=Console(stderr=True)):
        problems, _, _ = drawn(arguments.problems, arguments.seed, dist=name)
        optima = np.array([optimum_s(problem) for problem in problems])
        solved = np.isfinite(optima)
        kept = [problem for problem, own in zip(problems, solved, strict=True) if own]
        cells = []
        for module in modules:
            ratios = lengths(module, kept) / optima[solved]
            ratios = ratios[np.isfinite(ratios)]
            cells += [f"{ratios.mean():.4f}", f"{np.quantile(ratios, 0.99):.3f}", f"{ratios.max():.3f}"]
        table.add_row(name, str(len(kept)), *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
