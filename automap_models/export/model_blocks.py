"""A plan of stages in the words that frameworks share: a strategy whose virtual stages hold whole blocks.

    instructions   embedding │ block 0 │ block 1 │ block 2 │ block 3 │ head
    cuts of a plan                               ↑
    layers         2 and 2: the embedding with the first, the head with the last stage

A cut is expressible where no block lies on both of its sides: after the embedding and after every block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import get_args

from automap_models.core.framework import UNKNOWN, Limits, ModelFacts, Objection
from automap_models.core.layers import Block, repeated_blocks
from automap_models.core.microbatch import required_size
from automap_models.core.plan import Plan
from automap_models.core.profile import Profile
from automap_models.core.schedules import DEFAULT_SCHEDULE
from automap_models.core.strategy import Precision, Recompute, Strategy
from automap_models.core.units import listed
from automap_models.errors import BadInput
from automap_models.export.target import Source, Target, Written

_PRECISIONS: dict[object, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


class Inexpressible(BadInput):
    """A plan that a target has no words for."""


@dataclass(frozen=True)
class BlockPlan:
    """A plan of stages, or a strategy, as a framework is told it.

    Attributes:
        model: its name.
        strategy: with the blocks of every virtual stage in `layers`.
        tensor: [pp] devices that share the operators of each rank; all `strategy.tp` but where a target takes others.
        facts: of the model, as far as they are known.
        where: the file.
    """

    model: str
    strategy: Strategy
    tensor: tuple[int, ...]
    facts: ModelFacts = UNKNOWN
    where: str = "the plan"

    @property
    def layers(self) -> tuple[int, ...]:
        """[pp·vp] blocks of each virtual stage in the order of the model."""
        assert self.strategy.layers is not None
        return self.strategy.layers

    @property
    def recomputed(self) -> tuple[tuple[Recompute, int], ...]:
        """[pp·vp] what each virtual stage recomputes, and of how many of its blocks, the first ones."""
        s = self.strategy
        return tuple(zip(s.recompute_kinds, s.recompute_blocks or self.layers, strict=True))

    @property
    def offloaded(self) -> int:
        """Of how many blocks, the first ones, hosts save activations."""
        return sum(blocks for kind, blocks in self.recomputed if kind == "offload")

    def recompute(self, target: str) -> Recompute:
        """What all stages recompute in all of their blocks, or save on hosts of some.

        Raises:
            Inexpressible: they differ, for which the target has no words.
        """
        counts = zip(self.recomputed, self.layers, strict=True)
        kinds = {
            kind if kind == "offload" or blocks == count else "none" if not blocks else "part"
            for (kind, blocks), count in counts
            if count
        }
        if len(kinds) > 1 or kinds == {"part"}:
            what = f"{target} recomputes alike in all stages, and the strategy does not"
            raise Inexpressible(what, where=self.where, do="give one `recompute`, or export it to galvatron")
        (kind,) = kinds or {"none"}
        return kind


def block_plan(source: Source, target: str, limits: Limits) -> BlockPlan:
    """The blocks of a plan of stages or a strategy, the only kinds of which targets that ask for blocks take any.

    Raises:
        Inexpressible: the target has no words for it.
        BadInput: the model was not given, or says too little.
    """
    strategy = source.plan.strategy
    if strategy is None:
        plan = staged_blocks(source, target, limits)
    else:
        plan = BlockPlan(source.name, strategy, (strategy.tp,) * strategy.pp, source.plan.facts, source.plan.where)
    require_none(limits.objection(plan.strategy, plan.facts), plan.where)
    if limits.recompute_alike:
        plan.recompute(target)
    return plan


def block_target(
    limits: Limits,
    distribution: str,
    ending: str,
    write: Callable[[BlockPlan, Path], Written],
    read_back: Callable[[BlockPlan, Path], None],
) -> Target:
    """The target whose files tell the blocks of a plan of stages or of a strategy; see Target."""

    def blocks(source: Source) -> BlockPlan:
        return block_plan(source, limits.name, limits)

    functions = (
        (lambda source, path: write(blocks(source), path)),
        (lambda source, path: read_back(blocks(source), path)),
    )
    return Target(limits.name, distribution, ending, ("stages", "strategy"), *functions, limits)


def require_none(objection: Objection | None, where: str) -> None:
    """Refuse what a target objects to.

    Raises:
        Inexpressible: there is an objection.
    """
    if objection is not None:
        raise Inexpressible(objection.what, where=where, do=objection.do)


def staged_blocks(source: Source, target: str, limits: Limits) -> BlockPlan:
    """The blocks of a plan of stages.

    Raises:
        Inexpressible: the target has no words for its cuts, its devices or its shardings.
        BadInput: the model was not given, or its profile does not say what a micro-batch holds.
    """
    plan, where, profile = source.plan, source.plan.where, source.require_result(target).problem.profile
    blocks = require_blocks(profile, target, limits, where)
    objection = _misplaced_cut(profile, plan, blocks, target, limits) or unequal_devices(plan, target, limits)
    if objection:
        raise Inexpressible(objection, where=where)
    tied = [name for stage in plan.stages for name, _ in stage.tied]
    require_none(limits.tied_objection(len(plan.stages), bool(tied), *tied[:1]), where)
    replicas = plan.stages[0].replicas
    samples, rest = divmod(required_size(profile), replicas)
    if rest:
        what = f"{required_size(profile)} samples of a micro-batch do not make {replicas} equal shares, one a replica"
        raise Inexpressible(what, where=where, do=f"plan with micro-batches of a multiple of {replicas} samples")
    before = [sum(block.last <= end for block in blocks) for end in (-1, *(stage.last for stage in plan.stages))]
    strategy = Strategy(
        micro_batch=samples,
        global_batch=samples * replicas * plan.micro_batches,
        tp=plan.stages[0].tensor,
        pp=len(plan.stages),
        dp=replicas,
        schedule=plan.schedule or DEFAULT_SCHEDULE,
        precision=_PRECISIONS.get(profile.dtype, get_args(Precision)[0]),
        layers=tuple(stop - begin for begin, stop in pairwise(before)),
    )
    return BlockPlan(source.name, strategy, tuple(stage.tensor for stage in plan.stages), where=where)


def require_blocks(profile: Profile, target: str, limits: Limits, where: str) -> tuple[Block, ...]:
    """The repeated blocks of a model, which the target's stages hold whole.

    Raises:
        Inexpressible: nothing repeats, blocks of several series do where the target takes one, or it lacks their code.
    """
    require_none(limits.code_objection(own_code=profile.own_code), where)
    blocks = repeated_blocks(profile, where)
    if not blocks:
        what = f"no blocks repeat among its layers, and stages of {target} hold whole blocks"
        raise Inexpressible(what, where=where, do="export it to torch-split-spec or torch-csv")
    series = sorted({block.series for block in blocks})
    if limits.one_series and len(series) > 1:
        what = f"{target} takes blocks of one series, and the model has {' and '.join(series)}"
        raise Inexpressible(what, where=where, do="export it to galvatron or deepspeed")
    return blocks


def boundaries(profile: Profile, blocks: Sequence[Block], limits: Limits) -> tuple[int, ...]:
    """The instructions after which the target may cut the model, ascending."""
    if limits.cuts == "anywhere":
        return tuple(range(len(profile) - 1))
    between = {block.last for block in blocks[:-1]}
    if limits.cuts == "blocks":
        between |= {blocks[0].first - 1, blocks[-1].last}
    return tuple(sorted(between - {-1, len(profile) - 1}))


def unequal_devices(plan: Plan, target: str, limits: Limits) -> str | None:
    """What the target objects to in the devices of the stages; None where it does not."""
    devices, tensor = [stage.device_count for stage in plan.stages], [stage.tensor for stage in plan.stages]
    if limits.equal_replicas and len(set(devices)) > 1:
        return f"{target} gives every stage equally many devices, and the plan gives them {listed(devices)}"
    if limits.sharding == "none" and max(tensor) > 1:
        stage = tensor.index(max(tensor))
        return f"stage {stage} divides its operators among {max(tensor)} devices, for which {target} has no words"
    if limits.sharding == "equal" and len(set(tensor)) > 1:
        return f"{target} divides the operators of all stages by one number, and the plan by {listed(tensor)}"
    return None


def _misplaced_cut(profile: Profile, plan: Plan, blocks: Sequence[Block], target: str, limits: Limits) -> str | None:
    """Which stage does not end where the target may cut; None where all do."""
    allowed = set(boundaries(profile, blocks, limits))
    for stage, cut in enumerate(one.last for one in plan.stages[:-1]):
        if cut not in allowed:
            inside = next((block for block in blocks if block.first <= cut < block.last), None)
            place = f"inside {inside.path}" if inside else "outside the blocks"
            return f"stage {stage} ends {place} (instruction {cut}), and {target} cuts at the ends of blocks"
    return None


def place_in_words(profile: Profile, blocks: Sequence[Block], cut: int) -> str:
    """`after model.layers.3`, or the name of the instruction where no block ends there."""
    if blocks and cut == blocks[0].first - 1:
        return f"before {blocks[0].path}"
    return f"after {next((block.path for block in blocks if block.last == cut), profile.name(cut))}"
