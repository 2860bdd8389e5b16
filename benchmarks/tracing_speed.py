"""How long it takes from a model's name to what planners read, step by step.

    OMP_NUM_THREADS=1 python benchmarks/tracing_speed.py [MODEL …] [--device v100] [--topo C]

Each model runs in a process of its own, which starts from nothing. Seconds are of processor time:

- imports: JAX, flax, optax, SciPy and the library;
- trace: a few blocks traced by JAX, lowered, read and repeated;
- graph: the instruction graph of all blocks;
- profile: kernels, their times by the roofline, attribution: what `automap-profile` needs ends here;
- rules: Shardy's rules of the trace, repeated, and the classes of dimensions that follow from them;
- shardings: by which stages can share a micro-batch on the cluster: what `automap-plan` needs ends here.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from importlib import import_module
from itertools import pairwise

from rich.console import Console
from rich.table import Table

MODELS = ("llama3-405b", "t5_11b", "bert48", "gpt3-175b", "mixtral-8x7b", "deepseek-v3")
STEPS = ("imports", "trace", "graph", "profile", "rules", "shardings")
PROFILED, PLANNED = 4, 6
"""How many of the steps `automap-profile` and `automap-plan` need."""


def measure(name: str, device_name: str, topo: str) -> tuple[list[float], int]:
    """Seconds of each step, and the number of instructions."""
    from automap_models.collection import uncollected

    start = time.process_time()
    with uncollected():  # as workloads.source.module_of does
        import_module("automap_models.workloads.training")
    from automap_models.formats.hardware_yaml import read_cluster, read_device
    from automap_models.hlo.clock import clock_times
    from automap_models.hlo.graph import instruction_graph, rules_of
    from automap_models.hlo.profile import profile_from_graph
    from automap_models.hlo.rule_sets import read_rule_set
    from automap_models.hlo.sharding_classes import sharding_classes
    from automap_models.planners.staged.stage_shardings import stage_shardings
    from automap_models.workloads.registry import sized

    clock = [start, time.process_time()]
    device, cluster = read_device(device_name), read_cluster(topo)
    module = sized(name).module()
    clock.append(time.process_time())
    graph = instruction_graph(module)
    clock.append(time.process_time())
    profile = profile_from_graph(graph, clock_times(graph, device))
    clock.append(time.process_time())
    sharding = sharding_classes(module, rules_of(module), read_rule_set("shardy"))
    clock.append(time.process_time())
    stage_shardings(module, sharding, graph, profile, device, cluster, across_nodes=True)
    clock.append(time.process_time())
    return [after - before for before, after in pairwise(clock)], len(graph)


def in_its_own_process(name: str, device: str, topo: str) -> tuple[list[float], int]:
    """The same in a fresh interpreter."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (name, device, topo))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("--device", default="v100", help="whose roofline gives the times")
    parser.add_argument("--topo", default="C", help="the cluster whose stages share micro-batches")
    args = parser.parse_args()
    table = Table("model", "instructions", *STEPS, "automap-profile", "automap-plan")
    for name in args.models:
        taken_s, instructions = in_its_own_process(name, args.device, args.topo)
        totals = (sum(taken_s[:PROFILED]), sum(taken_s[:PLANNED]))
        table.add_row(name, f"{instructions:,}", *(f"{s:.2f} s" for s in (*taken_s, *totals)))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
