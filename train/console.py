"""What a person sees of a training: a progress bar, one line for each event of note, nothing else."""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import lightning as L
from lightning.pytorch.callbacks import Callback, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from rich.progress import track

from automap_models.core.units import percent

T = TypeVar("T")
EVERY_S = 10.0
"""Between two lines on how far it is."""


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


def narrated(items: Sequence[T], what: str) -> Iterator[T]:
    """The items, while people see how many are done: a bar on a terminal, else a line every EVERY_S seconds."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, what, console=console, transient=True)
        return
    last_s = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last_s >= EVERY_S:
            last_s = time.monotonic()
            say(f"{what}: {done:,} of {len(items):,}")
        yield item


def progress(episodes: int, gap: float | None = None) -> list[Callback]:
    """A progress bar on a terminal; elsewhere lines.

    Args:
        gap: to the optimum before it, as L/L* - 1; None where it is not known.
    """
    if not sys.stdout.isatty():
        return [_Lines(episodes, gap)]
    return [_Bar(gap)]


class _Bar(RichProgressBar):
    def __init__(self, gap: float | None = None) -> None:
        super().__init__(theme=RichProgressBarTheme(metrics_text_delimiter="\n"))
        self._first_gap = gap

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Any:
        """The gap, that before the training until there is another, and what else was logged, in people's words."""
        metrics: Any = super().get_metrics(trainer, pl_module)
        mean = metrics.get("val/gap_mean")
        gap = self._first_gap if mean is None else float(mean) - 1.0
        words = {} if gap is None else {"gap to the optimum": percent(gap)}
        named = {"train/episodes_per_s": "episodes/s", "train/epsilon": "random actions"}
        return words | {words: metrics[name] for name, words in named.items() if name in metrics}


class _Lines(Callback):
    """A line with the episodes, the gap and the time to go, after the first validation and then every EVERY_S seconds.

    Until then the gap is that before the training, if it is known.
    """

    def __init__(self, episodes: int, gap: float | None = None) -> None:
        self._total = episodes
        self._begun = self._last = (0.0, 0)
        self._gap, self._validated = gap, False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._begun = self._last = (time.monotonic(), _episodes(pl_module))

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *_: Any, **__: Any) -> None:
        """Say how far it is, if nothing was said for a while."""
        self._say(pl_module, EVERY_S)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Remember the gap; the first one is said at once."""
        first, self._validated = not self._validated, True
        self._gap = float(trainer.callback_metrics["val/gap_mean"]) - 1.0
        self._say(pl_module, 0.0 if first else EVERY_S)

    def _say(self, module: L.LightningModule, after_s: float) -> None:
        now_s, episodes = time.monotonic(), _episodes(module)
        if now_s - self._last[0] < after_s:
            return
        self._last = (now_s, episodes)
        rate = (episodes - self._begun[1]) / max(now_s - self._begun[0], 1e-9)
        gap = "" if self._gap is None else f", gap to the optimum {percent(self._gap)}"
        to_go_s = (self._total - episodes) / max(rate, 1e-9)
        say(
            f"{episodes:,} of {self._total:,} episodes ({percent(episodes / self._total)}){gap}, "
            f"{rate:,.0f} episodes/s, {timedelta(seconds=round(to_go_s))} to go"
        )


def _episodes(module: L.LightningModule) -> int:
    episodes: Any = module.episodes
    return int(episodes)
