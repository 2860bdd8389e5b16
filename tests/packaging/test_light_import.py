"""Planning starts fast and without torch: what each import pulls in, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {"torch", "jax", "lightning", "pytorch_lightning", "tensorboard", "onnxscript"}
FOR_SOME_ONLY = {"hydra", "omegaconf", "onnxruntime", "matplotlib", "rich", "yaml", "scipy", "numba"}
LIGHT_LAYERS = {"errors", "core", "cost", "simulate", "formats"}
COMPILED = {
    "automap_models.cost.link_kernel",
    "automap_models.cost.makespan_kernel",
    "automap_models.simulate.play",
}
"""Imported when a step or a schedule is simulated, or a pipeline searched."""

REPORT = "\nimport json, sys\nprint(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def top_level_modules(code: str) -> set[str]:
    """Top-level names in sys.modules after running the code in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", code + REPORT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def run_command(arguments: list[str], command: str = "infer") -> str:
    """Code that runs a command as its console script does and goes on."""
    return f"from automap_models.infer.app import {command} as main\nassert main({arguments!r}) == 0"


def test_importing_the_package_brings_numpy_at_most() -> None:
    assert not top_level_modules("import automap_models") & (HEAVY | FOR_SOME_ONLY)


def test_the_layers_below_the_planners_need_none_of_the_extras(module_files: dict[str, Path]) -> None:
    light = [m for m in module_files if len(m.split(".")) > 1 and m.split(".")[1] in LIGHT_LAYERS]
    code = "\n".join(f"import {module}" for module in light if module not in COMPILED)
    assert not top_level_modules(code) & (HEAVY | (FOR_SOME_ONLY - {"yaml"}))


def test_the_list_of_planners_imports_none_of_them() -> None:
    assert not top_level_modules("import automap_models.planners.registry") & (HEAVY | FOR_SOME_ONLY)


def test_a_whole_plan_needs_neither_torch_nor_onnxruntime_nor_hydra_nor_matplotlib(root: Path) -> None:
    """Help needs no library at all, see test_app."""
    profile = sorted((root / "examples").glob("*.npz"))[0]
    runs = [
        run_command([str(profile), "--topo", "A", "--stages", "2", "--planner", planner, "--json"])
        for planner in ("auto", "exact", "tables", "uniform")
    ]
    seen = top_level_modules("\n".join(runs))  # scipy comes with numba
    assert not seen & (HEAVY | {"onnx", "onnxruntime", "hydra", "omegaconf", "matplotlib", "rich"})


def test_a_transformer_is_planned_without_jax() -> None:
    """Its layers were traced by JAX, which took most of the time of the command."""
    arguments = ["gpt2", "--gpus", "8xh100", "--for", "megatron", "--budget", "0.5", "--json"]
    assert not top_level_modules(run_command(arguments, "plan")) & {"jax", "jaxlib", "flax", "optax", "torch"}
