"""Aceso (Liu et al., EuroSys 2024) from a clone of its repository, for benchmarks/aceso_plans.py.

The clone (github.com/microsoft/SuperScaler, branch Aceso) has times and memory of the operators of five GPTs, measured
on V100, a cost model over them, a search, and the grid of Megatron-LM's layouts that the paper compares with. Its
programs run as they are, in processes of their own.

    embedding │ 13 operators a layer: norm, qkv, score, softmax, dropout, context, dense, … │ norm, loss
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput

MEMORY_LIMIT_MIB = 28_000
"""Of a device, as the paper's searches have it."""
GLOBAL_BATCH = 1_024
LAYER_OPERATORS = 13
RECOMPUTED = {"none": (), "selective": (2, 3, 4, 5), "full": tuple(range(LAYER_OPERATORS))}
"""Which of a layer's operators the kinds of recomputation compute again: none, the attention core, or all."""
MICRO_BATCHES = (1, 2, 4, 8)
"""Samples that operators were measured with."""


@dataclass(frozen=True)
class Size:
    """One of the paper's GPTs, on as many V100 as the paper has for it.

    Attributes:
        name: as in the clone's file names.
        layers, hidden, heads: of the model; 2,048 tokens a sample, 51,200 words.
        devices: V100 with 32 GB, 8 a node.
        measured_s: seconds of a step of Aceso's plan that the paper measured, as the clone's results/ref has them.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    devices: int
    measured_s: float

    @property
    def nodes(self) -> int:
        """Of up to 8 devices."""
        return max(1, self.devices // 8)

    @property
    def shape(self) -> TransformerShape:
        """Its sizes."""
        return TransformerShape(
            name=f"GPT {self.name}",
            layers=self.layers,
            hidden=self.hidden,
            heads=self.heads,
            kv_heads=self.heads,
            ffn=4 * self.hidden,
            sequence=2_048,
            vocabulary=51_200,
        )


SIZES = (
    Size("350M", 24, 1_024, 16, 1, 190.58),
    Size("1_3B", 24, 2_048, 32, 4, 100.28),
    Size("2_6B", 32, 2_560, 32, 8, 84.6),
    Size("6_7B", 32, 4_096, 32, 16, 85.82),
    Size("13B", 40, 5_120, 40, 32, 86.57),
)
SINGLE_DEVICE_BYTES = 14_820 * 2**20
"""Measured of the smallest one's step, in micro-batches of 8 samples, all layers recomputed."""


@dataclass(frozen=True)
class Price:
    """What the clone's cost model says of a plan: seconds of a step, and MiB of the fullest device."""

    step_s: float
    memory_mib: float


class Aceso:
    """The programs of a clone.

    Args:
        folder: the clone.
        work: where the programs write.

    Raises:
        BadInput: the folder is no such clone.
    """

    def __init__(self, folder: Path, work: Path) -> None:
        self.search_folder, self.work = folder.resolve() / "search", work
        self.times = folder.resolve() / "profiler" / "profiled-time-eurosys"
        if not self.times.is_dir():
            do = "give a clone of github.com/microsoft/SuperScaler, branch Aceso"
            raise BadInput("there is no profiler/profiled-time-eurosys in it", where=str(folder), do=do)

    def pass_times_s(self, size: Size, micro_batch: int) -> tuple[float, float]:
        """Seconds of the forward and of the backward pass of a micro-batch through the model on one device."""
        file = self.times / f"gpt_{size.name}_mbs{micro_batch}_tp1_algo0.csv"
        with file.open(encoding="utf-8") as lines:
            first, *layer, norm, loss = csv.DictReader(lines)
        counts = [1, *[size.layers] * len(layer), 1, 1]
        operators = list(zip(counts, [first, *layer, norm, loss], strict=True))
        forward, backward = (
            sum(count * float(operator[f"{name}-compute"]) for count, operator in operators)
            for name in ("forward", "backward")
        )
        return forward / 1e6, backward / 1e6

    def searched(self, size: Size, seconds: int) -> dict[str, Any]:
        """The plan that Aceso's search finds in so many seconds; it runs a process for each number of stages."""
        budget = ["--max-num-hops", "7", "--time-budget-total", str(seconds), "--initial-point", "balance"]
        return self._best("aceso_search.py", size, budget)

    def megatron(self, size: Size) -> dict[str, Any]:
        """The shortest of Megatron-LM's layouts by Aceso's cost model: equal stages, all recomputed or nothing."""
        return self._best("gen_megatron_plan.py", size, [])

    def price(self, plan: dict[str, Any], size: Size) -> Price:
        """What the cost model says of a plan."""
        file = self.work / "plan.json"
        file.write_text(json.dumps(plan))
        printed = self._run("aceso_cost_model.py", ["--initial-point", str(file), *self._of(size)])
        numbers = [re.search(rf"{name} = ([\d.]+)", printed) for name in ("overall time", "max allocated memory")]
        if None in numbers:
            raise BadInput(f"the cost model prints no {'time' if numbers[0] is None else 'memory'}", where=str(file))
        milliseconds, mib = (float(number[1]) for number in numbers if number is not None)
        return Price(milliseconds / 1e3, mib)

    def _best(self, program: str, size: Size, more: Sequence[str]) -> dict[str, Any]:
        log, saved = self.work / f"{program}-{size.name}", self.work / f"{program}-{size.name}-plans"
        for folder in (log / "trends", saved / "top_configs", saved / "csv"):
            folder.mkdir(parents=True, exist_ok=True)
        self._run(
            program,
            [
                *("--model-name", "gpt", "--model-size", size.name, "--global-batch-size", str(GLOBAL_BATCH)),
                *("--micro-batch-size", *map(str, MICRO_BATCHES), "--memory-limit", str(MEMORY_LIMIT_MIB)),
                *("--log-path", f"{log}/", "--config-save-path", f"{saved}/", "--config-suffix", "plan"),
                *self._of(size),
                *more,
            ],
        )
        plans = [json.loads(path.read_text()) for path in saved.rglob("*.json")]
        prices = {number: self.price(plan, size) for number, plan in enumerate(plans)}
        fitting = [number for number in prices if prices[number].memory_mib <= MEMORY_LIMIT_MIB]
        if not fitting:
            raise BadInput("it found no plan that fits", where=f"{program} for {size.name}", do="give it more time")
        best: dict[str, Any] = plans[min(fitting, key=lambda number: prices[number].step_s)]
        return best

    def _of(self, size: Size) -> list[str]:
        devices = ["--num-nodes", str(size.nodes), "--num-gpus-per-node", str(min(size.devices, 8))]
        return [*devices, "--profiled-time-path", f"{self.times}/"]

    def _run(self, program: str, arguments: Sequence[str]) -> str:
        command = [sys.executable, program, *arguments]
        done = subprocess.run(command, cwd=self.search_folder, capture_output=True, text=True, check=False)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
            raise BadInput(f"{program} ended with {done.returncode}: {last[0]}", where=str(self.search_folder))
        return done.stdout


def as_plan(strategy: Strategy, size: Size) -> dict[str, Any]:
    """A strategy of whole layers and equally many devices a stage as a plan of Aceso's.

    Micro-batches are there those of all ranks of data parallelism together. The embedding and the loss are never
    computed again, the norm before the loss with the whole of the last stage.
    """
    operators: list[list[int]] = []
    for stage, (kind, blocks) in enumerate(strategy.stage_recompute(size.shape)):
        layers = strategy.stage_layers(size.shape)[stage]
        again = [int(position in RECOMPUTED[kind]) for position in range(LAYER_OPERATORS)]
        own = again * blocks + [0] * (LAYER_OPERATORS * (layers - blocks))
        norm = int(kind == "full" and blocks == layers)
        operators.append([0] * (stage == 0) + own + [norm, 0] * (stage == strategy.pp - 1))
    counts, stages = [len(own) for own in operators], strategy.pp
    return {
        "model_name": "gpt",
        "model_size": size.name,
        "num_layers": size.layers,
        "seq_length": size.shape.sequence,
        "max_position_embeddings": size.shape.sequence,
        "num_attention_heads": size.heads,
        "hidden_size": size.hidden,
        "global_batch_size": strategy.global_batch,
        "micro_batch_size": strategy.micro_batch * strategy.dp,
        "num_stages": stages,
        "num_gpus": [strategy.tp * strategy.dp] * stages,
        "checkpoint_activations": [True] * stages,
        "resharding_stages": [False] * stages,
        "num_ops_in_each_stage": counts,
        "model_parallel_size_of_each_op": [[strategy.tp] * count for count in counts],
        "data_parallel_size_of_each_op": [[strategy.dp] * count for count in counts],
        "recompute_ops": operators,
        "algo_of_each_op": [[0] * count for count in counts],
    }
