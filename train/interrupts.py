"""Ctrl-C in a training ends it between two batches.

Python raises KeyboardInterrupt wherever the program is, in a logger's queue, too: TensorBoard's writer then waits for
ever for what was put there and never announced, and the training with it. A checkpoint may be half-way to its place.
So the first Ctrl-C is only noted, and raised where everything is in order; the second one is Python's own.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback


def fit(trainer: L.Trainer, module: L.LightningModule, data: L.LightningDataModule, checkpoint: Path | None) -> None:
    """Train from `checkpoint`, or from the start.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the last batch and its checkpoint are complete.
    """
    between = _BetweenBatches()
    trainer.callbacks.append(between)  # type: ignore[attr-defined]  # after the checkpoints
    try:
        with _noted_by(between):
            trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as left:  # so Lightning answers Ctrl-C
        if isinstance(left.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from left
        raise


class _BetweenBatches(Callback):
    """Raises KeyboardInterrupt after the batch in which Ctrl-C was `noted`."""

    noted = False

    def on_train_batch_end(self, *_: Any) -> None:
        self._end()

    def on_validation_batch_end(self, *_: Any) -> None:
        self._end()

    def _end(self) -> None:
        if self.noted:
            raise KeyboardInterrupt


@contextmanager
def _noted_by(between: _BetweenBatches) -> Iterator[None]:
    """Note the first Ctrl-C where one would raise; a shell's background, which ignores it, goes on ignoring it."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(_: int, __: FrameType | None) -> None:
        between.noted = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
