"""Thirty tasks that people give to agents, by the calls that an agent makes of the tools of `automap mcp`.

    plan    a model and a cluster: fit, plan for a program, harder ones where one is shorter, its price, export
    doctor  a bad command line or configuration: its better setting, and where a harder one is shorter, that
    choose  plans that somebody measured (with ROWS): price of each, and the shortest is taken

What a task ends with is held against the best known: of plan and doctor the shortest that the same search comes to in
`--budget` of computing without a preference for simple strategies, of choose the shortest that was measured. A task is
solved within 3 %.

    OMP_NUM_THREADS=1 python benchmarks/agent_tasks.py [ROWS.json …]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common import print_rows
from measured_steps import files_in

from automap_models.cost.measured_step import MeasuredModel, MeasuredStep
from automap_models.errors import BadInput
from automap_models.formats.measured_rows import read_measured_steps
from automap_models.infer.tools import outcome
from automap_models.planners.base import SILENT

NEAR = 0.03
"""Above the best known, of a task that is solved."""
LEAST_PLANS = 3
"""Of a group that was measured."""
UNLIKE = ("nanotron-degraded-network", "nanotron-floor")
"""Sources whose own notes say that their rows rank the network of a day, or the host, and not plans."""
PLANS = """
    llama3-8b          32xh100     megatron    8192   512
    llama3-8b          8xa100-40   torchtitan  4096   128
    llama3-70b         64xh100     megatron    8192   256
    llama3-70b         128xh200    torchtitan  8192   512
    qwen2.5-72b        128xh100    megatron    4096   1024
    llama2-13b         16xa100     deepspeed   4096   256
    gpt3_7b            32xv100     megatron    1024   256
    gpt3-175b          256xa100    megatron    2048   1536
    mixtral-8x7b       64xh100     megatron    4096   512
    qwen3-30b-a3b      32xh100     megatron    4096   512
    deepseek-v2-lite   16xh200     megatron    4096   512
    gemma2-9b          16xh100     torchtitan  8192   128
    mistral-7b         8xl40s      megatron    4096   64
    gpt-neox-20b       96xa100-40  megatron    2048   1152
    llama3-405b        512xh100    megatron    8192   512
"""
"""Model, cluster, program, tokens of a sample, samples of a step."""
LLAMA = """pretrain_gpt.py --swiglu --untie-embeddings-and-output-weights --bf16 --group-query-attention
--num-query-groups 8 --vocab-size 128256 --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1"""
LLAMA_8B = f"{LLAMA} --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32"
LLAMA_70B = f"{LLAMA} --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
TITAN = """[model]
name = "llama3"
flavor = "{flavor}"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = {tp}
[activation_checkpoint]
mode = "full"
"""
ZERO = """{{"train_batch_size": 128, "train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": true}},
"zero_optimization": {{"stage": {stage}}}}}"""
DOCTORS: Mapping[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tp 8 and all recomputed": (
        f"torchrun --nnodes 4 --nproc-per-node 8 {LLAMA_8B} {FULL} --tensor-model-parallel-size 8 "
        "--global-batch-size 512",
        {"device": "h100"},
        {"what": "llama3-8b", "gpus": "32xh100", "for": "megatron", "global_batch": 512},
    ),
    "pp 8 of 16 micro-batches": (
        f"torchrun --nnodes 4 --nproc-per-node 8 {LLAMA_8B} --pipeline-model-parallel-size 8 --global-batch-size 64",
        {"device": "h100"},
        {"what": "llama3-8b", "gpus": "32xh100", "for": "megatron", "global_batch": 64},
    ),
    "no room, tp 1": (
        f"torchrun --nnodes 8 --nproc-per-node 8 {LLAMA_70B} --pipeline-model-parallel-size 8 --global-batch-size 256",
        {"device": "h100"},
        {"what": "llama3-70b", "gpus": "64xh100", "for": "megatron", "global_batch": 256},
    ),
    "tp 8, pp 8, all recomputed": (
        f"torchrun --nnodes 16 --nproc-per-node 8 {LLAMA_70B} {FULL} --tensor-model-parallel-size 8 "
        "--pipeline-model-parallel-size 8 --use-distributed-optimizer --global-batch-size 512",
        {"device": "h100"},
        {"what": "llama3-70b", "gpus": "128xh100", "for": "megatron", "global_batch": 512},
    ),
    "torchtitan, tp 8": (
        TITAN.format(flavor="8B", tp=8),
        {"gpus": "32xh100", "global_batch": 128},
        {"what": "llama3-8b", "gpus": "32xh100", "for": "torchtitan", "global_batch": 128},
    ),
    "torchtitan, no tp": (
        TITAN.format(flavor="70B", tp=1),
        {"gpus": "64xh100", "global_batch": 128},
        {"what": "llama3-70b", "gpus": "64xh100", "for": "torchtitan", "global_batch": 128},
    ),
    "DeepSpeed, ZeRO-3 of a small model": (
        ZERO.format(stage=3),
        {"model": "qwen2.5-1.5b", "gpus": "8xh100", "sequence": 4096, "recompute": "none"},
        {
            **{"what": "qwen2.5-1.5b", "gpus": "8xh100", "for": "deepspeed", "global_batch": 128},
            **{"sequence": 4096, "recompute": "none"},
        },
    ),
    "DeepSpeed, no room without ZeRO": (
        ZERO.format(stage=0),
        {"model": "llama2-7b", "gpus": "8xa100", "sequence": 4096, "recompute": "full"},
        {
            **{"what": "llama2-7b", "gpus": "8xa100", "for": "deepspeed", "global_batch": 128},
            **{"sequence": 4096, "recompute": "full"},
        },
    ),
}
"""What is wrong → the text of the file or the line, what it does not say, and the same question to plan."""


@dataclass(frozen=True)
class Ending:
    """What a task comes to.

    Attributes:
        kind, name: of the task.
        calls: of tools.
        step_s: with which it ends.
        best_s: the best known.
        taken_s: wall-clock time of the calls.
    """

    kind: str
    name: str
    calls: int
    step_s: float
    best_s: float
    taken_s: float

    @property
    def excess(self) -> float:
        """Share above the best known."""
        return max(self.step_s / self.best_s - 1.0, 0.0)


class Agent:
    """Calls tools, and counts."""

    def __init__(self) -> None:
        self.calls, self.begun_s = 0, time.perf_counter()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool answers.

        Raises:
            BadInput: it refuses.
        """
        self.calls += 1
        as_sent = json.loads(json.dumps(arguments))
        document: dict[str, Any]
        document, failed = outcome(tool, as_sent, SILENT, threading.Event())
        if failed:
            raise BadInput(document["error"], where=tool)
        return document

    def ending(self, kind: str, name: str, step_s: float, best_s: float) -> Ending:
        """Of its task, before the best known is looked for."""
        return Ending(kind, name, self.calls, step_s, best_s, time.perf_counter() - self.begun_s)


def best_known(question: Mapping[str, Any], budget: str) -> float:
    """Seconds of the shortest step that a long search comes to."""
    return float(Agent().call("plan", **question, budget=budget, min_gain="0")["step_s"])


def planned(line: str, budget: str) -> Ending:
    """Whether it fits, the best plan, or a harder one that is shorter, the price of its strategy, and its file."""
    agent, (model, gpus, program, sequence, samples) = Agent(), line.split()
    sizes = {"what": model, "gpus": gpus, "sequence": int(sequence), "global_batch": int(samples)}
    if agent.call("fit", **sizes, **{"for": program})["verdict"] == "does not fit":
        raise BadInput("does not fit", where=line)
    plan = agent.call("plan", **sizes, **{"for": program})
    if plan["shorter"]:
        plan = agent.call("plan", **sizes, **{"for": program}, min_gain="0")
    price = agent.call("price", **sizes, **{"for": program}, **typed(plan))
    agent.call("export", plan=price, to=program, out="plan")
    ending = agent.ending("plan", f"{model} on {gpus} for {program}", price["step_s"], 1.0)
    return replace(ending, best_s=best_known({**sizes, "for": program}, budget))


def typed(plan: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a strategy as an agent writes them again."""
    fields = {name: value for name, value in plan["strategy"].items() if value not in (None, False)}
    for name in ("global_batch", "micro_batches", "recompute_blocks"):
        fields.pop(name, None)
    return {**fields, "layers": plan["stage_layers"]}


def treated(name: str, budget: str) -> Ending:
    """The better setting of a bad one, or the bad one where there is none."""
    agent, (text, options, question) = Agent(), DOCTORS[name]
    with TemporaryDirectory() as folder:
        what = text.replace("\n", " ")
        if not text.startswith("torchrun"):
            file = Path(folder) / ("config.json" if text.startswith("{") else "config.toml")
            file.write_text(text)
            what = str(file)
        document = agent.call("doctor", what=what, **options)
        if document["shorter"]:
            document = agent.call("doctor", what=what, **options, min_gain="0")
    ending = agent.ending("doctor", name, (document["better"] or document["current"])["step_s"], 1.0)
    return replace(ending, best_s=best_known(question, budget))


def groups(paths: Iterable[Path]) -> Iterator[list[MeasuredStep]]:
    """Of each source the largest group of one dense decoder, cluster, batch and day, of LEAST_PLANS or more plans."""
    rows: dict[str, dict[Any, list[MeasuredStep]]] = defaultdict(lambda: defaultdict(list))
    for step in (step for path in paths for step in read_measured_steps(path)):
        if not isinstance(step, MeasuredStep) or step.step_s is None:
            continue
        if step.model.mixture or step.model.family == "bert":
            continue
        batch = step.strategy.global_batch, step.strategy.precision, step.day
        rows[step.source][step.system, step.model.shape, step.cluster, *batch].append(step)
    for source, some in rows.items():
        largest = max(some.values(), key=lambda steps: len({step.strategy for step in steps}))
        if source not in UNLIKE and len({step.strategy for step in largest}) >= LEAST_PLANS:
            yield largest


def config_of(model: MeasuredModel) -> dict[str, Any]:
    """The config.json of a dense decoder."""
    shape = model.shape
    sizes: dict[str, Any] = {"hidden_size": shape.hidden, "num_hidden_layers": shape.layers}
    if model.family == "gpt":
        sizes = {"n_embd": shape.hidden, "n_layer": shape.layers, "n_head": shape.heads, "n_inner": shape.ffn}
        sizes |= {"model_type": "gpt2", "n_positions": shape.sequence}
    else:
        sizes |= {"model_type": "llama", "intermediate_size": shape.ffn, "num_key_value_heads": shape.kv_heads}
        sizes |= {"num_attention_heads": shape.heads, "max_position_embeddings": shape.sequence}
    return {**sizes, "vocab_size": shape.vocabulary, "tie_word_embeddings": model.tied}


def chosen(steps: list[MeasuredStep]) -> Ending:
    """The plan of the lowest price, held against the shortest measured; what is refused is not taken."""
    agent, first, prices = Agent(), steps[0], list[tuple[float, float]]()
    cluster = first.cluster
    with TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config_of(first.model)))
        gpus = f"{cluster.nodes}x{cluster.devices_per_node}x{first.device}"
        question: dict[str, Any] = {"what": str(file), "gpus": gpus}
        question |= {"sequence": first.model.shape.sequence, "runtime": first.runtime.name}
        for step in steps:
            fields = {name: value for name, value in vars(step.strategy).items() if value not in (None, False)}
            with suppress(BadInput):
                prices.append((agent.call("price", **question, **fields)["step_s"], step.step_s or 0.0))
    name = f"{first.source}: {len(steps)} plans of {first.model.shape.name} on {cluster.devices} {first.device}"
    return agent.ending("choose", name, min(prices)[1], min(step.step_s or 0.0 for step in steps))


def row(ending: Ending) -> tuple[str, ...]:
    """Of the table."""
    seconds = (f"{value:.4g} s" for value in (ending.step_s, ending.best_s))
    return (ending.kind, ending.name, str(ending.calls), *seconds, f"{ending.excess:.1%}", f"{ending.taken_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, nargs="*", help="files of measured steps, or folders of them")
    parser.add_argument("--budget", default="90 s", help="of computing, of each long search")
    arguments = parser.parse_args()
    endings = list[Ending]()

    def rows() -> Iterator[tuple[str, ...]]:
        plans = (partial(planned, line, arguments.budget) for line in PLANS.strip().splitlines())
        doctors = (partial(treated, name, arguments.budget) for name in DOCTORS)
        choices = (partial(chosen, group) for group in groups(files_in(arguments.rows)))
        for task in (*plans, *doctors, *choices):
            endings.append(task())
            yield row(endings[-1])

    print_rows(("kind", "task", "calls", "ends with", "best known", "above it", "took"), rows())
    solved = sum(ending.excess <= NEAR for ending in endings)
    worst = max(endings, key=lambda ending: ending.excess)
    print(f"\n{solved} of {len(endings)} within {NEAR:.0%}; the worst is {worst.name}, {worst.excess:.1%} above.")


if __name__ == "__main__":
    main()
