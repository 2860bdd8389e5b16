"""What a person sees of a training: a progress bar, one line for each event of note, nothing else."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from lightning.pytorch.utilities import rank_zero_only


@rank_zero_only
def say(line: str) -> None:
    """Print a line, in the first of several processes only."""
    print(line, flush=True)


def quiet() -> None:
    """Silence what libraries say on every run: hints at their other products, deprecations between themselves."""
    for name in ("lightning.pytorch", "lightning.fabric", "torch.distributed", "torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)


def progress() -> list[Callback]:
    """A progress bar on a terminal; in a file it would be noise."""
    if not sys.stdout.isatty():
        return []
    return [_Bar(theme=RichProgressBarTheme(metrics_text_delimiter="\n"))]


class _Bar(RichProgressBar):
    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Any:
        """What was logged for the bar, without the loggers' version number."""
        metrics: Any = super().get_metrics(trainer, pl_module)
        return {name: value for name, value in metrics.items() if name != "v_num"}
