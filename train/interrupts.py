"""Ctrl-C and SIGTERM end a training between two batches.

Python raises KeyboardInterrupt wherever the program is, in a logger's queue, too: TensorBoard's writer then waits for
ever for what was put there and never announced, and the training with it. A checkpoint may be half-way to its place.
Of several processes, Lightning answers SIGTERM with a collective in the midst of others, in which all of them wait for
ever. So the first signal is only noted, and raised where everything is in order, in all processes after the same
batch; the second one does what it does to any program.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from automap_models.core.streams import INTERRUPTED


def fit(
    trainer: L.Trainer, module: L.LightningModule, data: L.LightningDataModule | None, checkpoint: Path | None
) -> None:
    """Train from `checkpoint`, or from the start; a module may have its own data.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed, or SIGTERM came; the last batch and its checkpoint are complete.
        SystemExit: the same in a process that is not the first of several, which alone says so.
    """
    between = _BetweenBatches()
    trainer.callbacks.append(between)  # type: ignore[attr-defined]  # after the checkpoints
    try:
        trainer.fit(module, data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit as left:  # so Lightning answers KeyboardInterrupt
        if not isinstance(left.__context__, KeyboardInterrupt):
            raise
        if not trainer.is_global_zero:
            sys.exit(INTERRUPTED)
        raise KeyboardInterrupt from left
    finally:
        between.restore()


class _BetweenBatches(Callback):
    """Raises KeyboardInterrupt after the batch in which a signal came."""

    def __init__(self) -> None:
        self._noted = False
        self._before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note what would end the program: a shell's background, which ignores Ctrl-C, goes on ignoring it."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                if handler in (signal.default_int_handler, signal.SIG_DFL):
                    signal.signal(number, self._note)

    def restore(self) -> None:
        """Let signals do what they did before."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any, **__: Any) -> None:
        """Any of several processes may have had the signal."""
        if trainer.strategy.reduce_boolean_decision(self._noted, all=False):
            raise KeyboardInterrupt

    def on_validation_batch_end(self, trainer: L.Trainer, *_: Any, **__: Any) -> None:
        """Several processes agree after the next batch of the training."""
        if self._noted and trainer.world_size == 1:
            raise KeyboardInterrupt

    def _note(self, number: int, _: FrameType | None) -> None:
        self._noted = True
        signal.signal(number, self._before[number])
