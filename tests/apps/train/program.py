"""A training as its own process, watched: run by the tests of resuming and of several processes.

`program.py KILL_AT FOLDER OVERRIDES…`: the process kills itself when the learner reaches iteration KILL_AT (0: never);
each process of the training leaves its weights and the problems it visited in FOLDER.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import hydra
import torch

from automap_models.resources import conf_dir
from automap_models.train.console import quiet
from automap_models.train.main import train
from automap_models.train.rainbow import RainbowModule


def main() -> None:
    kill_at, folder, overrides = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    quiet()
    visited: list[torch.Tensor] = []
    step = RainbowModule.training_step

    def watched(self: RainbowModule, batch: torch.Tensor, batch_idx: int) -> None:
        if kill_at and self.global_step >= kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        visited.append(batch.clone())
        step(self, batch, batch_idx)

    RainbowModule.training_step = watched  # type: ignore[method-assign]
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        config = hydra.compose("train", overrides=overrides)
    trainer = train(config)
    left = {"weights": trainer.lightning_module.state_dict(), "visited": torch.cat(visited)}
    torch.save(left, folder / f"process-{trainer.global_rank}.pt")


if __name__ == "__main__":
    main()
