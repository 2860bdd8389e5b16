"""The fastest sharding plans by price on clusters A, B and C, and the price's all-reduces held against compiled XLA.

    OMP_NUM_THREADS=1 python benchmarks/sharding_costs.py [MODEL …]
    OMP_NUM_THREADS=1 python benchmarks/sharding_costs.py --verify

Everything is allowed that propagates (`--rules shardy`); V100s. Beside the
proven optimum stand data parallelism on the same devices and the plan that partitions the most parameters under the
paper's rules (Auto-MAP's), with the batch along the data axis, priced alike.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from automap_models import workloads
from automap_models.core.mesh import Mesh, MeshAxis
from automap_models.core.sharding import ShardingPlan, ShardingProblem
from automap_models.cost.sharding import plan_price
from automap_models.errors import BadInput, Infeasible
from automap_models.formats.hardware_yaml import read_cluster, read_device
from automap_models.hlo.adapter import trace
from automap_models.hlo.graph import instruction_graph
from automap_models.hlo.rule_sets import read_rule_set
from automap_models.hlo.sharding_classes import sharding_classes
from automap_models.hlo.sharding_work import sharding_work
from automap_models.hlo.shardy import sharding_rules
from automap_models.planners.registry import make_planner
from automap_models.workloads.bert import BertConfig
from automap_models.workloads.t5 import T5Config
from automap_models.workloads.training import training_step
from automap_models.workloads.vgg import VggConfig

MODELS = {"vgg19": 96, "t5_base": 96, "bert48": 48, "t5_11b": 8}
"""Model → batch."""
MESHES = ("data=N,model=8", "data=2N,model=4", "model=N,data=8", "model=8N")
"""Axes on a cluster of N nodes of 8; the last one has neighbouring devices."""
VERIFIED = (
    ("sharding_costs:vgg", "--rules", "paper"),
    ("sharding_costs:bert",),
    ("sharding_costs:t5",),
    ("vgg19", "--batch", "8"),
    ("bert48", "--batch", "2", "--sequence", "32"),
    ("t5_base", "--batch", "2", "--sequence", "32"),
)
"""Small models that run, real ones that are only compiled."""


def t5(batch: int = 8) -> Any:

    config = T5Config(width=256, heads=8, head_width=32, feed_forward=1024, layers=3, vocabulary=1024)
    return training_step("t5", config, (batch, 64), "float32")


def bert(batch: int = 8) -> Any:

    config = BertConfig(width=256, heads=8, layers=3, vocabulary=1024, positions=64)
    return training_step("bert", config, (batch, 64), "float32")


def vgg(batch: int = 8) -> Any:

    config = VggConfig(blocks=((8, 1), (16, 2)), width=256, classes=64, image=32)
    return training_step("vgg", config, (batch,), "float32")


def mesh_of(text: str, nodes: int) -> Mesh:
    sizes = {"N": nodes, "2N": 2 * nodes, "8N": 8 * nodes}
    parts = (part.split("=") for part in text.split(","))
    return tuple(MeshAxis(name, sizes[size] if size in sizes else int(size)) for name, size in parts)


class Pricer:
    """A model's problems and the prices of plans for them."""

    def __init__(self, model: str) -> None:
        self.model, self.device = model, read_device("v100")
        module = trace(workloads.build(model, batch=MODELS.get(model)))
        rules, graph = sharding_rules(module), instruction_graph(module)
        self._of_rules = {}
        for name in ("shardy", "paper"):
            sharding = sharding_classes(module, rules, read_rule_set(name))
            self._of_rules[name] = sharding.classes, sharding_work(module, sharding, graph, self.device)

    def problem(self, topo: str, mesh: Mesh, rules: str) -> ShardingProblem:
        """The model on a mesh of a cluster, under a rule set."""
        classes, work = self._of_rules[rules]
        cluster, launch_s = read_cluster(topo), self.device.constants.launch_s
        return ShardingProblem(self.model, classes, cluster, mesh, "time", work, rules, launch_s)

    def counted(self, topo: str, mesh: Mesh, rules: str) -> str:
        """Time of the plan that partitions the most variables along each axis; – where there is none."""
        try:
            problem = self.problem(topo, mesh, rules)
        except BadInput:
            return "–"
        counted = [replace(problem, mesh=(axis,), objective="count") for axis in mesh]
        dims = tuple(make_planner("milp", kind="sharding").plan(alone).dims[0] for alone in counted)
        price = plan_price(problem, ShardingPlan(mesh, problem.classes.variables, dims, "count"))
        full = " (does not fit)" if price.memory_bytes > problem.cluster.memory else ""
        return f"{1e3 * price.time_s:,.0f} ms{full}"

    def row(self, topo: str, mesh: Mesh) -> list[str]:
        """The fastest plan, and the two beside it."""
        parallel = self.counted(topo, (MeshAxis("data", math.prod(axis.size for axis in mesh)),), "shardy")
        beside = [parallel, self.counted(topo, mesh, "paper")]
        try:
            result = make_planner("milp", kind="sharding").solve(self.problem(topo, mesh, "shardy"))
            plan, price = result.required_plan(), result.cost
        except (BadInput, Infeasible) as error:
            return [f"none: {error.what[:44]}", *[""] * 4, *beside]
        assert result.bound is not None
        parts = f"{1e3 * price.compute_s:,.0f}+{1e3 * sum(price.all_reduce_s):,.0f}"
        searched = f"{1e3 * result.taken_s:.0f} ms ({result.bound.proof})"
        step, memory = f"{1e3 * price.time_s:,.0f} ms", f"{price.memory_bytes / 1e9:.1f} GB"
        return [summary(plan), step, parts, memory, searched, *beside]


def prices(model: str, table: Table) -> None:
    pricer = Pricer(model)
    for topo in ("A", "B", "C"):
        for text in MESHES:
            mesh = mesh_of(text, read_cluster(topo).nodes)
            table.add_row(model, topo, ",".join(f"{axis.name}={axis.size}" for axis in mesh), *pricer.row(topo, mesh))


def summary(plan: ShardingPlan) -> str:
    """`batch; q:1 k:1 …`: what is partitioned along data, and the kernels and embeddings along model."""
    partitioned = {}
    for number, axis in enumerate(plan.mesh):
        names: dict[str, None] = {}
        for variable, dim in plan.candidates(number).items():
            *_, parent, leaf = variable.name.split("/")
            if dim < 0 or leaf in {"bias", "scale"}:
                continue
            name = "conv" if parent.startswith("conv") else leaf if parent == "params" else parent
            names[f"{name}:{dim}"] = None
        partitioned[axis.name] = " ".join(names) or "nothing"
    return "; ".join(f"{name}: {partitioned[name]}" for name in sorted(partitioned))


def verify(table: Table) -> None:
    """Each through the command itself."""
    for what, *options in VERIFIED:
        command = [
            str(Path(sys.executable).with_name("automap-search")),
            "opp",
            what,
            "--topo",
            "A",
            "--mesh",
            "data=2,model=4",
            "--verify",
            "--json",
            *options,
        ]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        if done.returncode:
            table.add_row(what, done.stderr.strip()[-100:])
            continue
        verified = json.loads(done.stdout)["verified"]
        ran = f"{verified['loss']:.0e}, {verified['arrays']:.0e}" if verified["loss"] is not None else "compiled only"
        for name, sums in verified["collectives"].items():
            kinds = ", ".join(f"{one['number']} {kind}" for kind, one in sums["by_kind"].items())
            ratio = sums["bytes"] / (sums["estimated_bytes"] or 1.0)
            sizes = (f"{sums['estimated_bytes'] / 1e6:.3f} MB", f"{sums['bytes'] / 1e6:.3f} MB", f"{ratio:.3f}")
            table.add_row(" ".join((what, *options)), name, *sizes, kinds, ran if name == "plan" else "")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", metavar="MODEL", nargs="*", default=MODELS, help="only these")
    options.add_argument("--verify", action="store_true", help="hold all-reduces against compiled XLA instead")
    given = options.parse_args()
    screen = Console(width=240)
    if given.verify:
        table = Table("step", "plan", "estimated", "XLA", "ratio", "collectives", "differences (loss, arrays)")
        verify(table)
    else:
        ends = ("compute+all-reduce", "memory", "search", "data parallel", "Auto-MAP's")
        table = Table("model", "cluster", "mesh", "fastest plan", "step", *ends)
        for model in given.models:
            prices(model, table)
            print(f"{model} done", file=sys.stderr)
    screen.print(table)


if __name__ == "__main__":
    main()
