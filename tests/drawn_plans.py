"""Plans drawn at random, and what they must come back as: stages are drawn first, plans made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.framework import UNKNOWN, ModelFacts
from automap_models.core.mesh import MeshAxis
from automap_models.core.plan import Plan
from automap_models.core.profile import Profile
from automap_models.core.profiled_model import ProfiledModel
from automap_models.core.result import PlanReport, Result
from automap_models.core.schedules import SCHEDULES, require_runnable
from automap_models.core.sharding import ShardingPlan
from automap_models.core.sharding_classes import Variable
from automap_models.core.staged import StagedPlan, StagedProblem
from automap_models.core.strategy import Strategy
from automap_models.cost.staged import StagedCost
from automap_models.errors import BadInput
from automap_models.export.target import Source
from automap_models.formats.atomic import write_json
from automap_models.formats.plan import written_plan
from automap_models.formats.staged_plan import StagedDocument, plan_document
from automap_models.simulate.plan_step import step_cost

Rng = np.random.Generator
PER_BLOCK = 4
"""Instructions of a block."""
SAMPLES = 8
"""Of a micro-batch."""
MICRO_BATCHES = 8


def profile(blocks: int, *, series: tuple[str, ...] = ("layers",), seed: int = 0) -> Profile:
    """An embedding of two instructions, blocks of PER_BLOCK alike in each series, and a head of two."""
    rng = np.random.default_rng(seed)
    paths = [f"{name}.{i}" for name in series for i in range(blocks)]
    layers = ["embed", "embed", *(f"{path}.part" for path in paths for _ in range(PER_BLOCK)), "head", "head"]
    n = len(layers)
    weights = np.concatenate(([9e6, 0.0], np.tile([1e6, 0.0, 2e6, 0.0], len(paths)), [3e6, 0.0]))
    meta = {"model": "drawn", "microbatch_size": SAMPLES, "parameter_dtype": "bfloat16"}
    return Profile.create(
        C=rng.uniform(1e-3, 2e-3, n),
        A=rng.uniform(1e5, 1e6, n),
        W=weights,
        names=[f"op{i}" for i in range(n)],
        layers=layers,
        meta=meta,
    )


def block_end(block: int) -> int:
    """Last instruction of a block of `profile`; of the embedding for -1."""
    return 1 + PER_BLOCK * (block + 1)


def costed(problem: StagedProblem, plan: StagedPlan) -> Result[StagedProblem, StagedPlan]:
    """A plan with its cost."""
    cost: StagedCost = step_cost(problem, plan)
    return Result(problem, plan, cost, "feasible")


def staged_source(problem: StagedProblem, plan: StagedPlan, folder: Any) -> Source:
    """A plan as it is read of its file."""
    report = PlanReport(**vars(costed(problem, plan)), single_device_s=1.0)
    path = folder / "plan.json"
    write_json(path, plan_document(report))
    return Source(written_plan(path, StagedDocument), report, ProfiledModel(problem.profile))


def cut_plan(
    drawn: Profile, cluster: Cluster, cuts: tuple[int, ...], device_cuts: tuple[int, ...], schedule: str = "1f1b"
) -> tuple[StagedProblem, StagedPlan]:
    """A plan with these cuts."""
    problem = StagedProblem(drawn, cluster, stages=len(cuts) + 1, micro_batches=MICRO_BATCHES, schedule=schedule)
    return problem, StagedPlan(cuts, device_cuts, MICRO_BATCHES, "drawn")


@dataclass(frozen=True)
class DrawnStages:
    """A staged plan and what its stages hold."""

    source: Source
    layers: tuple[int, ...]
    replicas: int


def draw_stages(rng: Rng, cluster: Cluster, folder: Any) -> DrawnStages:
    """Stages of whole blocks on equally many devices; the first may be the embedding, the last the head alone."""
    blocks = int(rng.integers(4, 13))
    stages = int(rng.choice([s for s in (1, 2, 4, 8) if s <= blocks and s <= cluster.devices]))
    ends = np.sort(rng.choice(np.arange(-1, blocks), stages - 1, replace=False))
    layers = np.diff(np.concatenate(([-1], ends, [blocks - 1])))
    count = cluster.devices // stages
    cuts = tuple(block_end(int(end)) for end in ends)
    schedule = str(rng.choice(["1f1b", "gpipe", "1f1b-deep"]))
    problem, plan = cut_plan(profile(blocks), cluster, cuts, tuple(range(count, cluster.devices, count)), schedule)
    return DrawnStages(staged_source(problem, plan, folder), tuple(layers.tolist()), count)


def draw_strategy(rng: Rng) -> Strategy:
    """Any strategy that can be run; of a schedule with rounds, one that makes them."""
    while True:
        schedule = str(rng.choice(list(SCHEDULES)))
        pp = int(rng.integers(1, 9))
        vp = SCHEDULES[schedule].virtual or int(rng.integers(1, 4))
        micro_batches = pp * int(rng.integers(1, 5)) if rng.random() < 0.7 else int(rng.integers(1, 20))
        try:
            require_runnable(schedule, pp, micro_batches, vp)
        except BadInput:
            continue
        layers = rng.integers(1, 6, pp * vp)
        layers[[0, -1]] -= rng.integers(0, 2, 2)
        if not layers.sum():
            continue
        dp, micro_batch, zero = int(rng.integers(1, 5)), int(rng.integers(1, 4)), int(rng.integers(0, 4))
        return Strategy(
            micro_batch=micro_batch,
            global_batch=dp * micro_batch * micro_batches,
            tp=int(rng.choice([1, 2, 4])),
            pp=pp,
            dp=dp,
            vp=vp,
            schedule=schedule,
            recompute=str(rng.choice(["none", "selective", "full"])),  # type: ignore[arg-type]
            zero=zero,
            dp_replicate=2 if zero and dp % 2 == 0 < dp - 2 and rng.random() < 0.5 else 1,
            sequence_parallel=bool(rng.random() < 0.5),
            precision=str(rng.choice(["fp32", "fp16", "bf16", "fp8"])),  # type: ignore[arg-type]
            layers=tuple(map(int, np.maximum(layers, 0))),
        )


def draw_data_parallel(rng: Rng) -> Strategy:
    """A strategy of data and context parallelism alone."""
    zero = int(rng.choice([0, 2, 3]))
    return Strategy(
        micro_batch=(micro_batch := int(rng.integers(1, 4))),
        global_batch=(dp := int(rng.integers(1, 9))) * micro_batch * int(rng.integers(1, 20)),
        dp=dp,
        dp_replicate=2 if zero and dp % 2 == 0 < dp - 2 and rng.random() < 0.5 else 1,
        cp=int(rng.choice([1, 1, 2, 4])),
        zero=zero,
        recompute=str(rng.choice(["none", "full"])),  # type: ignore[arg-type]
        precision=str(rng.choice(["fp32", "fp16", "bf16"])),  # type: ignore[arg-type]
        layers=(int(rng.integers(1, 9)),),
    )


def strategy_source(strategy: Strategy, facts: ModelFacts = UNKNOWN) -> Source:
    """A strategy as it is read of its file."""
    return Source(Plan("drawn", "drawn", (), strategy.micro_batches, strategy=strategy, facts=facts))


def sharding_source(plan: ShardingPlan, model: str = "drawn") -> Source:
    """A sharding plan likewise."""
    return Source(Plan("drawn", model, (), 1, sharding=plan))


def draw_sharding(rng: Rng) -> ShardingPlan:
    """Variables of some blocks, each dimension partitioned along one axis at most."""
    axes = [("data",), ("model",), ("data", "model")][int(rng.integers(3))]
    mesh = tuple(MeshAxis(name, int(rng.choice([2, 4]))) for name in axes)
    variables, dims = [], []
    for i in range(int(rng.integers(1, 6))):
        for name in ("kernel", "bias"):
            shape = tuple(map(int, 8 * rng.integers(1, 4, int(rng.integers(1, 4)))))
            variables.append(Variable(f"params/block_{i}/{name}", shape, "f32", 4.0, "parameter"))
            places = rng.permutation(len(shape)).tolist()
            dims.append([places.pop() if places and rng.random() < 0.6 else -1 for _ in mesh])
    return ShardingPlan(mesh, tuple(variables), tuple(zip(*dims, strict=True)), "drawn")


LLAMA_LAYERS = 3
LLAMA_WEIGHTS = {
    **{f"self_attn.{name}": 0 for name in ("q_proj", "k_proj", "v_proj")},
    "self_attn.o_proj": 1,
    **{f"mlp.{name}": 0 for name in ("gate_proj", "up_proj")},
    "mlp.down_proj": 1,
}
"""Module of a Llama layer → the dimension of its weight that Megatron's plan partitions."""


def llama_plan(dims: dict[str, int], around: dict[str, int], size: int = 2) -> Source:
    """A plan of a Llama with these dimensions in every layer, and of what is around the layers."""
    of_weights = {f"model.layers.{i}.{name}.weight": dim for i in range(LLAMA_LAYERS) for name, dim in dims.items()}
    of_weights |= {f"{name}.weight": dim for name, dim in around.items()}
    of_weights |= {"model.norm.weight": -1}
    variables = tuple(
        Variable(name, (8,) if "norm" in name else (8, 8), "f32", 256.0, "parameter") for name in of_weights
    )
    plan = ShardingPlan((MeshAxis("model", size),), variables, (tuple(of_weights.values()),), "drawn")
    return sharding_source(plan, "llama")


def draw_llama(rng: Rng) -> tuple[dict[str, int], dict[str, int]]:
    """The dimension of every weight of a layer that is partitioned, and of those around the layers; -1 is none."""
    around = ("model.embed_tokens", "lm_head")
    dims, outside = ({name: int(rng.integers(-1, 2)) for name in names} for names in (LLAMA_WEIGHTS, around))
    return dims, outside
