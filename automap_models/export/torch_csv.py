"""The order of passes as torch.distributed.pipelining reads it: a row a rank, a cell a pass, such as 2F0.

`_PipelineScheduleRuntime._load_csv(FILE, format="compute_only")` reads it, and torchtitan's
`pipeline_parallel_schedule_csv`. A cell is the virtual stage, F (forward), B (backward), I (gradients of inputs) or W
(gradients of weights), and the micro-batch; torch infers from the rows which rank holds which virtual stage.

Checked against torch 2.13 (torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from automap_models.core.passes import Schedule
from automap_models.export.target import Target, Written, parser_module, require_same

NAME = "torch-csv"
DISTRIBUTION = "torch"


def check(schedule: Schedule, path: Path) -> None:
    """Torch reads the schedule's orders, and puts its virtual stages on its ranks."""
    orders, ranks = load(path, schedule)
    require_same("passes", orders, [[str(action) for action in order] for order in schedule.orders])
    require_same("ranks of virtual stages", ranks, dict(enumerate(schedule.rank_of)))


def load(path: Path, schedule: Schedule) -> tuple[list[list[str]], dict[int, int]]:
    """The passes of each rank and the rank of each virtual stage, as torch's runtime for schedules loads them.

    Args:
        path: the file.
        schedule: whose numbers of ranks, stages and micro-batches the runtime is made for.
    """
    torch_schedules = parser_module("torch.distributed.pipelining.schedules", DISTRIBUTION)
    numbers = {"group_size": schedule.ranks, "num_stages": schedule.stages, "group_rank": 0, "is_last": False}
    rank_stages = [stage for stage, rank in enumerate(schedule.rank_of) if rank == 0]
    stages = [SimpleNamespace(**numbers, group=None, stage_index=stage, has_backward=True) for stage in rank_stages]
    runtime = torch_schedules._PipelineScheduleRuntime(stages, schedule.micro_batches)
    runtime._load_csv(str(path), format="compute_only")
    computed = {"F", "B", "I", "W"}
    read = [
        [str(action) for action in runtime.pipeline_order_with_comms[rank] if action.computation_type.value in computed]
        for rank in range(schedule.ranks)
    ]
    return read, dict(runtime.stage_index_to_group_rank)


TARGET = Target(
    NAME,
    DISTRIBUTION,
    ".csv",
    ("stages", "strategy"),
    lambda source, _: Written(str(source.plan.build_schedule())),
    lambda source, path: check(source.plan.build_schedule(), path),
)
