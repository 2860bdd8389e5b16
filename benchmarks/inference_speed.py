"""How fast plans come: the whole command, one warm plan, a batch of a thousand, and beside them the exact search.

    python benchmarks/inference_speed.py [--policy FILE] [--profile FILE] [--exact 20]

The claims: warm planning of one problem ≤ 2 ms on cluster C, ≤ 10 ms for 16 stages on 16 nodes of 8, a batch of 1,000
on C at ≥ 2,000 plans a second. Aimed at and not reached (results/inference_speed.md): the whole command
`automap-infer --objective length` in ≤ 0.6 s; on C the policy ≥ 500 times as fast as the exact search from nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from common import EXAMPLES, timed
from rich.console import Console
from rich.table import Table

from automap_models.core.cluster import Cluster
from automap_models.core.profile import Profile
from automap_models.core.staged import StagedProblem
from automap_models.cost.staged import plan_cost
from automap_models.envs.pipeline.encoding import cut_masks, encode
from automap_models.formats.files import read_profile
from automap_models.formats.hardware_yaml import read_cluster
from automap_models.onnx_runtime import onnxruntime_module
from automap_models.planners.options import OBJECTIVES
from automap_models.planners.staged.policy import PolicyConfig, PolicyPlanner
from automap_models.planners.staged.search import exact_search
from automap_models.resources import zoo_dir

BATCH = 16
"""Problems planned at once where a policy's operators are timed."""


def seconds(run: Callable[[], object], repeats: int) -> tuple[list[float], float]:
    """Wall time of each of some runs, after one that does not count, and the mean processor time of a run.

    The processor time is that of this process and of those that it started, all threads together.
    """
    run()
    times, before = [], os.times()
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times, sum(after - begun for after, begun in zip(os.times()[:4], before[:4], strict=True)) / repeats


def cells(label: str, measured: tuple[list[float], float], count: int = 0) -> list[str]:
    """A row of the first table: label, median, worst, processor time; plans a second where `count` are made at once."""
    times, processor = measured
    shown = [
        f"{1e3 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s" for value in (median(times), max(times), processor)
    ]
    return [label, *shown, f"{count / median(times):.0f} plans/s" if count else ""]


def random_profile(rng: np.random.Generator, instructions: int = 3000) -> Profile:
    """A model of uniform random instructions whose communication matters."""
    C = rng.random(instructions) * 1e-4
    return Profile.create(C, A=rng.random(instructions) * 1e7, W=rng.random(instructions) * 1e6)


def command(profile: Path, policy: Path | None, objective: str) -> None:
    """Run automap-infer once as a process of its own."""
    launcher = Path(sys.executable).with_name("automap-infer")
    more = ["--policy", str(policy)] if policy else []
    arguments = [str(launcher), str(profile), "--topo", "C", "--objective", objective, *more]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path, default=None, help="policy file (default: the shipped one)")
    parser.add_argument("--profile", type=Path, default=EXAMPLES / "bert48_v100.npz")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--exact", type=int, default=20, help="problems for the exact search")
    arguments = parser.parse_args()

    cluster = read_cluster("C")
    profile = read_profile(arguments.profile)
    problem = StagedProblem(profile, cluster, stages=4)
    rng = np.random.default_rng(1)
    batch = [StagedProblem(random_profile(rng), cluster, stages=4) for _ in range(arguments.batch)]
    table = Table("what", "median", "worst", "processor time, mean", "rate")

    for objective in OBJECTIVES:
        whole = seconds(lambda objective=objective: command(arguments.profile, arguments.policy, objective), 10)  # type: ignore[misc]
        table.add_row(*cells(f"automap-infer --objective {objective}, whole command", whole))
    for beam in (1, PolicyConfig().beam):
        planner = PolicyPlanner(PolicyConfig(beam=beam, policy=arguments.policy))
        one = seconds(lambda planner=planner: planner.raw_plans([problem]), 50)  # type: ignore[misc]
        table.add_row(*cells(f"one warm plan, beam {beam}", one))
        many = seconds(lambda planner=planner: planner.raw_plans(batch), 2)  # type: ignore[misc]
        table.add_row(*cells(f"{len(batch)} plans at once, beam {beam}", many, len(batch)))
    large = StagedProblem(profile, Cluster(16, 8, 130e9, 3.125e9, 32e9, "16 × 8"), stages=16, micro_batches=64)
    for beam in (1, PolicyConfig().beam):
        planner = PolicyPlanner(PolicyConfig(beam=beam, policy=arguments.policy))
        one = seconds(lambda planner=planner: planner.raw_plans([large]), 20)  # type: ignore[misc]
        table.add_row(*cells(f"one warm plan of 16 stages on 128 devices, beam {beam}", one))
    console = Console(width=110)
    console.print(table)
    console.print(matrix_products(batch[:BATCH]))
    console.print(against_exact(batch[: arguments.exact], arguments.policy))


def matrix_products(problems: list[StagedProblem]) -> Table:
    """What share of the shipped policies' time goes into products with weights: what int8 or float16 could shorten."""
    onnxruntime = onnxruntime_module()
    table = Table("shipped policy", "operators run", "products", "share of the operators' time")
    encoded = encode(problems)
    scalars = {name: a.astype(np.float32) for name, a in encoded.as_dict().items() if a.ndim == 1}
    feed = {"arrays": encoded.arrays, "cut_mask": cut_masks(encoded.instructions, encoded.arrays.shape[2]), **scalars}
    for path in sorted(zoo_dir().glob("pipeline*.onnx")):
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.intra_op_num_threads = True, 1
        with tempfile.TemporaryDirectory() as folder:
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = onnxruntime.InferenceSession(path, options)
            known = {given.name for given in session.get_inputs()}
            session.run(None, {name: a for name, a in {**feed, "beam": np.array([1])}.items() if name in known})
            events = json.loads(Path(session.end_profiling()).read_text())
        time_us: dict[str, list[int]] = {}
        for event in events:
            kind = event.get("args", {}).get("op_name")
            if event.get("cat") == "Node" and kind and kind != "Loop":
                time_us.setdefault(kind, []).append(event["dur"])
        products = [kind for kind in time_us if kind.removeprefix("Fused") in ("MatMul", "Gemm")]
        share = sum(sum(time_us[kind]) for kind in products) / sum(map(sum, time_us.values()))
        counts = [sum(len(time_us[kind]) for kind in kinds) for kinds in (time_us, products)]
        table.add_row(path.name, *map(str, counts), f"{share:.2%}")
    return table


def against_exact(problems: list[StagedProblem], policy: Path | None) -> Table:
    """The policy beside the exact search, both one problem at a time on one thread."""
    planner = PolicyPlanner(PolicyConfig(beam=1, policy=policy))
    bounds = [
        plan_cost(problem, plan).length_s
        for problem, plan in zip(problems, planner.raw_plans(problems), strict=True)
        if plan
    ]
    batched = processor_s(lambda: planner.raw_plans(problems)) / len(problems)
    alone = [processor_s(lambda p=problem: planner.raw_plans([p])) for problem in problems]  # type: ignore[misc]
    nothing = [processor_s(lambda p=problem: exact_search(p)) for problem in problems]  # type: ignore[misc]
    bounded = [
        processor_s(lambda p=problem, u=bound: exact_search(p, u))  # type: ignore[misc]
        for problem, bound in zip(problems, bounds, strict=True)
    ]
    table = Table("on C, processor time", "median", "times the policy's, alone", "times the policy's, in a batch")
    for label, times in (
        ("policy, greedy, one by one", alone),
        ("policy, greedy, in a batch", [batched]),
        ("exact search from nothing", nothing),
        ("exact search with the policy's bound", bounded),
    ):
        one = median(times)
        table.add_row(label, f"{1e3 * one:.2f} ms", f"{one / median(alone):.1f}", f"{one / batched:.1f}")
    return table


def processor_s(run: Callable[[], object]) -> float:
    """Processor time of a run after one that does not count."""
    run()
    return timed(run)[1]


if __name__ == "__main__":
    main()
