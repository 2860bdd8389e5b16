"""The only module that imports onnxruntime: its telemetry is off, and no file can hang it or take all memory.

Since version 1.31, onnxruntime writes an identifier of the device and a queue of events (processor, path of the
interpreter) into the user's cache folder, to be sent later. Measured on 1.31.1: `disable_telemetry_events()` comes too
late, because the import itself opens the queue; the variable ORT_DISABLE_TELEMETRY stops it when it is set before.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from automap_models.errors import BadInput
from automap_models.resources import is_file

if TYPE_CHECKING:
    import onnxruntime

DISABLE_TELEMETRY = "ORT_DISABLE_TELEMETRY"
FATAL = 4
"""Severity of onnxruntime's log below which it says nothing: what fails is raised, and said once."""
EXPORT_AGAIN = "export the policy again"


class OnnxFile:
    """An ONNX file, ready to run on one thread of the processor.

    Args:
        path: the file; whatever it holds, it is refused in one sentence or runs.

    Raises:
        BadInput: the file is missing or onnxruntime cannot read it.
    """

    def __init__(self, path: Path) -> None:
        if not is_file(path):
            raise BadInput("no such policy file", where=str(path), do="train one with python train/run.py")
        self.path = path
        onnxruntime = onnxruntime_module()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # small graphs lose more to threads than they gain
        options.log_severity_level = FATAL
        # Measured: a tenth of the time to load the graph, and the plans take no longer.
        options.enable_mem_reuse = False
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if _limit_memory():
            options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            self.session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            self.metadata: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        except Exception as error:  # onnxruntime's errors have no common base class
            raise BadInput("cannot be read as an ONNX model", where=str(path), do=EXPORT_AGAIN) from error

    def run(self, feed: dict[str, NDArray[Any]], outputs: Sequence[str], allowance_s: float) -> list[NDArray[Any]]:
        """Some of the graph's outputs.

        Args:
            feed: the graph's inputs.
            outputs: names of outputs.
            allowance_s: processor time after which the run is stopped, since a damaged loop may never end.

        Raises:
            BadInput: the graph fails, or takes too much time or memory.
        """
        options = onnxruntime_module().RunOptions()
        options.log_severity_level = FATAL
        with _watcher(os.getpid()).stopped_after(options, allowance_s):
            try:
                values: list[NDArray[Any]] = self.session.run(list(outputs), feed, options)
            except Exception as error:
                what = f"fails while it plans ({type(error).__name__})"
                if options.terminate:
                    what = f"has no plan after {allowance_s:g} s of processor time"
                elif "memory" in str(error).lower():
                    what = f"needs more than {_memory_limit_bytes() / 1e9:.0f} GB of memory to plan"
                raise BadInput(what, where=str(self.path), do=EXPORT_AGAIN) from error
        if not all(isinstance(value, np.ndarray) for value in values):  # ONNX knows sequences and maps, too
            raise BadInput("answers something else than tensors", where=str(self.path), do=EXPORT_AGAIN)
        return values


@cache
def onnxruntime_module() -> Any:
    """The library, imported without its telemetry."""
    os.environ[DISABLE_TELEMETRY] = "1"
    import onnxruntime

    return onnxruntime


def _memory_limit_bytes() -> int:
    """Half of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@cache
def _limit_memory() -> bool:
    """Limit the memory of all graphs of this process together; False where the program has set its own allocator."""
    onnxruntime = onnxruntime_module()
    place = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    try:
        limit = onnxruntime.OrtArenaCfg({"max_mem": _memory_limit_bytes()})
        onnxruntime.create_and_register_allocator(place, limit)
    except Exception:  # its errors have no common base class
        return False
    return True


class _Watcher:
    """One thread of a process that stops what takes too much processor time; it sleeps while nothing runs.

    A paused program or a busy machine uses up no processor time. A thread for each run took as long as the run.
    """

    def __init__(self) -> None:
        self._until_s: dict[int, tuple[onnxruntime.RunOptions, float]] = {}
        self._busy = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._busy.wait():
            self._busy.clear()  # before the look: a run that begins from here on sets it again
            while self._until_s:
                time.sleep(0.25)
                for options, until_s in list(self._until_s.values()):
                    if time.process_time() > until_s:
                        options.terminate = True

    @contextmanager
    def stopped_after(self, options: onnxruntime.RunOptions, allowance_s: float) -> Iterator[None]:
        """Stop a run that takes more processor time."""
        cores = os.cpu_count() or 1  # runs beside this one count, too
        self._until_s[id(options)] = options, time.process_time() + allowance_s * cores
        self._busy.set()
        try:
            yield
        finally:
            del self._until_s[id(options)]


@cache
def _watcher(_process: int) -> _Watcher:
    """Of a process: a forked one has none of its parent's threads."""
    return _Watcher()
