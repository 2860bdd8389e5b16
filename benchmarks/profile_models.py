"""From the built-in models to profiles: how big they are, how long it takes, and how they compare with XLA's totals.

    OMP_NUM_THREADS=1 python benchmarks/profile_models.py [MODEL …] [--device v100]

Every model at its default batch and sequence. Each row runs in a process of its own: its peak memory is that of a fresh
interpreter and this one model, imports included, XLA's own total, which is asked for last, left out. The smallest cut
is the one with the fewest bytes among those that leave at least a tenth of the time on either side. Seconds are of
processor time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from automap_models.formats.hardware_yaml import known_devices
from automap_models.workloads import names

HIDDEN_SHARE = 0.1


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    parameters: int
    instructions: int
    forward_instructions: int
    trace_s: float
    graph_s: float
    profile_s: float
    peak_mb: float
    flop: float
    xla_flop: float
    step_s: float
    parameter_bytes: float
    smallest_cut_bytes: float
    unattributed: float


def measure(name: str, device: str) -> Row:
    """Profile one model."""
    import jax

    from automap_models.formats.hardware_yaml import read_device
    from automap_models.hlo.adapter import trace
    from automap_models.hlo.clock import clock_times
    from automap_models.hlo.graph import instruction_graph
    from automap_models.hlo.profile import profile_from_graph
    from automap_models.workloads import build

    step = build(name)
    clock = [time.process_time()]
    module = trace(step)
    clock.append(time.process_time())
    graph = instruction_graph(module)
    clock.append(time.process_time())
    profile = profile_from_graph(graph, clock_times(graph, read_device(device)))
    clock.append(time.process_time())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    trainable = jax.tree.leaves(step.arguments[step.trainable])
    xla_costs = jax.jit(step.function).lower(*step.arguments).cost_analysis() or {}
    done = profile.C.cumsum() / profile.C.sum()
    inner = (done >= HIDDEN_SHARE) & (done <= 1 - HIDDEN_SHARE)
    return Row(
        parameters=sum(leaf.size for leaf in trainable),
        instructions=len(graph),
        forward_instructions=len(profile),
        trace_s=clock[1] - clock[0],
        graph_s=clock[2] - clock[1],
        profile_s=clock[3] - clock[2],
        peak_mb=peak_mb,
        flop=float(graph.flop.sum()),
        xla_flop=float(xla_costs["flops"]),
        step_s=float(profile.C.sum()),
        parameter_bytes=float(profile.W.sum()),
        smallest_cut_bytes=float(np.min(profile.A[inner])),
        unattributed=float(str(profile.meta["unattributed_share"])),
    )


def in_its_own_process(name: str, device: str) -> Row:
    """The same in a fresh interpreter."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (name, device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=names(), metavar="MODEL", help="default: all")
    parser.add_argument("--device", default="v100", choices=known_devices(), help="whose roofline gives the times")
    args = parser.parse_args()
    columns = "parameters", "instr.", "forward", "trace s", "graph s", "profile s", "peak MB", "FLOP", "/ XLA's"
    table = Table("model", *columns, "step s", "ΣW MB", "cut MB", "unattributed %")
    for name in args.models:
        row = in_its_own_process(name, args.device)
        table.add_row(
            name,
            f"{row.parameters:,}",
            f"{row.instructions:,}",
            f"{row.forward_instructions:,}",
            *(f"{taken_s:.1f}" for taken_s in (row.trace_s, row.graph_s, row.profile_s)),
            f"{row.peak_mb:.0f}",
            f"{row.flop:.4g}",
            f"{row.flop / row.xla_flop:.4f}",
            f"{row.step_s:.3f}",
            f"{row.parameter_bytes / 1e6:.1f}",
            f"{row.smallest_cut_bytes / 1e6:.2f}",
            f"{100 * row.unattributed:.2f}",
        )
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
