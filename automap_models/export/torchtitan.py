"""torchtitan: a Python module with the `parallelism`, `training` and `activation_checkpoint` of a Trainer.Config.

A stage is a list of names of modules (`module_fqns_per_model_part`). Schedules that torch has a class for go by its
name; the others are written beside the file as rows of passes (torch_csv.py). Virtual stages lie on ranks in a loop,
and in a V for ZBVZeroBubble and DualPipeV alone.

Checked against torchtitan 0.3 (config/configs.py, distributed/pipeline_parallel.py), whose configs are Python and whose
last module is `lm_head`; before 0.3 it was `output`, and the file TOML.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from automap_models.core.framework import Divided, Limits, both_halves
from automap_models.core.passes import Schedule
from automap_models.core.strategy import Strategy
from automap_models.export import torch_csv
from automap_models.export.model_blocks import BlockPlan, Inexpressible, block_target
from automap_models.export.target import Written, parser_module, require_same

NAME = "torchtitan"
DISTRIBUTION = "torchtitan"
BY_ROWS = "PipelineScheduleMulti"
"""The class that torchtitan asks for where the passes stand in rows."""


def _multiple(divided: Divided) -> int:
    """Of what torchtitan's trainer wants the tokens of a sample to be a multiple."""
    return (divided.tp if divided.sequence_parallel else 1) * both_halves(divided)


LIMITS = Limits(
    name=NAME,
    schedules={
        "1f1b": "1F1B",
        "gpipe": "GPipe",
        "interleaved": "Interleaved1F1B",
        "zb-v": "ZBVZeroBubble",
        "dualpipev": "DualPipeV",
        "1f1b-deep": BY_ROWS,
        "zb-h1": BY_ROWS,
        "zb-h2": BY_ROWS,
    },
    own_code=False,
    recurrent=False,
    encoders=False,
    tower=("tp", "pp"),
    mtp=False,
    one_series=True,
    zeros=(0, 2, 3),
    precisions=("fp32", "bf16"),
    stacked=False,
    filled=("1f1b",),
    ties=False,
    whole_heads=True,
    sequence=_multiple,
    expert_tensor=False,
    sharded_experts=True,
    dispatchers=("deepep", "hybridep", "alltoall"),
    replicates=True,
)
"""torchtitan 0.3 refuses pipelines of tied weights, and tp that does not divide the heads of keys and values
(models/common/decoder.py); its experts are whole, on devices of dp_shard · cp · tp (distributed/parallel_dims.py).
Models of images have neither tp nor pipelines (experiments/vlm/infra/parallelize.py)."""
ROWS_ENDING = ".csv"
SCHEDULE = "pipeline_parallel_schedule"
COUNTS = {
    "pp": "pipeline_parallel_degree",
    "micro_batch": "pipeline_parallel_microbatch_size",
    "tp": "tensor_parallel_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
}
"""Field of a strategy → that of ParallelismConfig."""
_RECOMPUTE = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
RESHARD = {2: "never", 3: "always"}
"""ZeRO stage → whether FSDP gives weights back after the forward pass, and gathers them again for the backward one."""
PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}


def write(plan: BlockPlan, path: Path) -> Written:
    """The module, and the rows of a schedule that torch has no class for."""
    schedule = _require_layers(plan)
    lines = [
        f'"""{plan.model} for torchtitan 0.3, written by automap export: give these to Trainer.Config."""',
        "",
        "from torchtitan.config.configs import ParallelismConfig, TrainingConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
        "",
        "parallelism = ParallelismConfig(",
        *(f"    {key}={value!r}," for key, value in parallelism(plan.strategy).items()),
    ]
    beside = {}
    if plan.strategy.stages > 1:
        name = LIMITS.schedules[plan.strategy.schedule]
        lines += [f"    {SCHEDULE}={name!r},"]
        if name == BY_ROWS:
            lines += [f"    {SCHEDULE}_csv={str(path.with_suffix(ROWS_ENDING))!r},"]
            beside[ROWS_ENDING] = str(schedule)
        lines += ["    module_fqns_per_model_part=["]
        lines += [f"        {parts}," for parts in module_names(plan.layers)]
        lines += ["    ],"]
    lines += [")", "training = TrainingConfig("]
    lines += [f"    {key}={value!r}," for key, value in training(plan.strategy).items()]
    lines += [")", f"activation_checkpoint = {_RECOMPUTE[plan.recompute(NAME)]}", ""]
    backend = {"alltoall": "standard"}.get(plan.strategy.dispatcher or "", plan.strategy.dispatcher)
    notes = (f"build the model with moe_comm_backend={backend!r}",) if backend and plan.strategy.ep > 1 else ()
    return Written("\n".join(lines), beside, notes)


def parallelism(s: Strategy) -> dict[str, Any]:
    """Fields of ParallelismConfig but those of the pipeline's stages."""
    fields: dict[str, Any] = {key: getattr(s, name) for name, key in COUNTS.items()}
    fields |= {COUNTS["ep"]: LIMITS.expert_degree(s), "enable_sequence_parallel": s.sequence_parallel and s.tp > 1}
    if s.zero:
        copies, shards = s.dp_replicate, s.dp // s.dp_replicate
        fields |= {"data_parallel_replicate_degree": copies, "data_parallel_shard_degree": shards}
        fields |= {"fsdp_reshard_after_forward": RESHARD[s.zero]}
    else:
        fields |= {"data_parallel_replicate_degree": s.dp, "data_parallel_shard_degree": 1}
    return fields


def training(s: Strategy) -> dict[str, Any]:
    """Fields of TrainingConfig: without a pipeline micro-batches are steps of gradient accumulation."""
    local = s.micro_batch * (s.micro_batches if s.pp > 1 else 1)
    fields: dict[str, Any] = {"local_batch_size": local, "global_batch_size": s.global_batch}
    fields |= {"mixed_precision_param": PRECISIONS[s.precision]}
    if s.pp > 1:
        fields |= {"disable_cuda_graphs": True}
    return fields


def _require_layers(plan: BlockPlan) -> Schedule:
    """The order of passes of a plan whose inner virtual stages have layers.

    Raises:
        Inexpressible: one has none.
    """
    for stage, count in enumerate(plan.layers[1:-1], start=1):
        if not count:
            raise Inexpressible(f"stage {stage} has no layer", where=plan.where, do="give it one")
    return plan.strategy.build_schedule()


def check(plan: BlockPlan, path: Path) -> None:
    """torchtitan's configs hold the plan's stages, and its placement puts them on the schedule's ranks."""
    schedule = _require_layers(plan)
    s = plan.strategy
    pipeline = parser_module("torchtitan.distributed.pipeline_parallel", DISTRIBUTION)
    read = runpy.run_path(str(path))
    config, batches = read["parallelism"], read["training"]
    for fields, part in ((parallelism(s), config), (training(s), batches)):
        require_same("config", {key: getattr(part, key) for key in fields}, fields)
    if s.stages > 1:
        require_same("modules", config.module_fqns_per_model_part, [*module_names(plan.layers)])
        embedding_parts = [
            pipeline._get_pp_rank_to_stage_indices_mapping(rank, s.pp, config.pipeline_parallel_schedule, s.stages)
            for rank in range(s.pp)
        ]
        ranks = {stage: rank for rank, stages in enumerate(embedding_parts) for stage in stages}
        require_same("ranks of virtual stages", ranks, dict(enumerate(schedule.rank_of)))
        if config.pipeline_parallel_schedule_csv:
            torch_csv.check(schedule, Path(config.pipeline_parallel_schedule_csv))


def module_names(layers: tuple[int, ...]) -> Iterator[list[str]]:
    """Of each virtual stage, the names of its modules."""
    bounds = [*pairwise(accumulate(layers, initial=0))]
    for stage, (begin, stop) in enumerate(bounds):
        first = ["tok_embeddings"] if stage == 0 else []
        last = ["norm", "lm_head"] if stage == len(bounds) - 1 else []
        yield [*first, *(f"layers.{i}" for i in range(begin, stop)), *last]


TARGET = block_target(LIMITS, DISTRIBUTION, ".py", write, check)
