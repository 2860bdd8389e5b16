"""The only module that imports onnxruntime, so that its telemetry is off wherever automap starts it.

Since version 1.31, onnxruntime writes an identifier of the device and a queue of events (processor, path of the
interpreter) into the user's cache folder, to be sent later. Measured on 1.31.1: `disable_telemetry_events()` comes too
late, because the import itself opens the queue; the variable ORT_DISABLE_TELEMETRY stops it when it is set before.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from automap_models.errors import BadInput

if TYPE_CHECKING:
    import onnxruntime

DISABLE_TELEMETRY = "ORT_DISABLE_TELEMETRY"


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """An ONNX file, ready to run on one thread of the processor.

    Raises:
        BadInput: the file is missing or onnxruntime cannot read it.
    """
    os.environ[DISABLE_TELEMETRY] = "1"
    import onnxruntime

    if not path.is_file():
        raise BadInput("no such policy file", where=str(path), do="train one with python train/run.py")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # small graphs lose more to threads than they gain
    options.log_severity_level = 3
    # Measured: a tenth of the time to load the graph, and the plans take no longer.
    options.enable_mem_reuse = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common base class
        raise BadInput("cannot be read as an ONNX model", where=str(path), do="export the policy again") from error
