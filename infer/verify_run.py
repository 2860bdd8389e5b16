"""The process in which XLA verifies a plan: what to run comes in on stdin as JSON, what came of it goes out on stdout.

A process of its own, because the number of a host's devices is fixed when jax starts.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from automap_models import workloads
from automap_models.errors import AutomapError


def main() -> int:
    """Compile, run and compare; an error of ours goes out as `error`."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            told = _verified(asked)
        except AutomapError as error:
            told = {"error": str(error)}
    print(json.dumps(told))
    return 0


def _verified(asked: dict[str, Any]) -> dict[str, Any]:
    from automap_models.hlo.sharded_step import Along, compile_step, differences, on_one_device, run

    build = workloads.build if asked["what"] in workloads.names() else workloads.from_factory
    step = build(asked["what"], **asked["sizes"])
    told: dict[str, Any] = {"communication": {}}
    compiled = {name: compile_step(step, Along(plan["sizes"], plan["dims"])) for name, plan in asked["plans"].items()}
    for name, one in compiled.items():
        told["communication"][name] = {kind: tuple(found) for kind, found in one.communication.items()}
    if asked["run"]:
        values, expected = on_one_device(step, asked["seed"])
        told["loss"], told["arrays"] = differences(run(compiled["plan"], step, values), expected)
    return told


if __name__ == "__main__":
    raise SystemExit(main())
