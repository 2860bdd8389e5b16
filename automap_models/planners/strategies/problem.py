"""Which strategies are searched, of which model, on which cluster, with which fields given; and how far.

What makes a strategy harder to run than data parallelism alone are steps: each of STEPS asks for a step that is
`min_gain` shorter, so that strategies compare by one number:

    charged_s = step · (1 - min_gain) ^ -(steps of difficulty)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.estimate import Estimate
from automap_models.core.framework import Limits
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.microbatch import usual_samples
from automap_models.core.model_work import ModelWork
from automap_models.core.schedules import DEFAULT_MIN_GAIN
from automap_models.core.strategy import (
    ONCE_A_NODE,
    RECOMPUTE,
    Dispatcher,
    Offload,
    Precision,
    Recompute,
    Strategy,
    TransformerShape,
    modules_of,
)
from automap_models.core.units import size
from automap_models.cost.runtime import DEFAULT_RUNTIME, DISPATCHER_DEVICES, Runtime
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_kinds
from automap_models.simulate.strategy import StrategyPricing

if TYPE_CHECKING:
    from automap_models.planners.strategies.subspace_costs import RankCosts

TENSOR, CONTEXT, PIPELINE = "tensor parallelism", "context parallelism", "a pipeline"
SPLIT, UNEQUAL, PARTIAL = "a backward pass in two parts", "unequal layers", "partial recomputation"
INSTALLED, GROUPS = "a dispatcher that has to be installed", "ZeRO within groups of ranks"
PARALLEL: Mapping[str, str] = {"tp": TENSOR, "cp": CONTEXT, "pp": PIPELINE}
"""Degree of a strategy → what it is harder by where that is more than 1."""
STEPS = frozenset({*PARALLEL.values(), SPLIT, UNEQUAL, PARTIAL, INSTALLED, GROUPS})
SEARCHED = frozenset({"layernorm", "mla_up_proj", "moe_act", "moe"})
"""Modules of which a search tries all sets. The others are recomputed where that is given: a flash kernel spares
nothing, of seven searches none of a dense model recomputed perceptrons, and shared experts keep too little."""
NONE, OFFLOAD = RECOMPUTE.index("none"), RECOMPUTE.index("offload")
SPLITTING = frozenset({"zb-h1", "zb-h2", "zb-v", "dualpipev"})
"""Schedules whose ranks have gradients of inputs and of weights in passes of their own."""


def steps_of(strategy: Strategy) -> frozenset[str]:
    """Which of STEPS a strategy takes."""
    s = strategy
    taken = {name: getattr(s, degree) > 1 for degree, name in PARALLEL.items()}
    taken[SPLIT] = s.stages > 1 and s.schedule in SPLITTING
    taken[UNEQUAL] = s.layers is not None and len(set(s.layers)) > 1
    taken[PARTIAL] = s.recompute_blocks is not None or isinstance(s.recompute, tuple)
    taken[INSTALLED] = s.ep > 1 and s.dispatcher in ONCE_A_NODE
    taken[GROUPS] = s.dp_replicate > 1
    return frozenset(name for name, does in taken.items() if does)


def charged_s(step_s: float, steps: float, min_gain: float = DEFAULT_MIN_GAIN) -> float:
    """By what strategies compare: seconds of a step, as much longer as they have to be shorter."""
    return float(step_s / (1.0 - min_gain) ** steps)


def usual_dispatcher(
    shape: TransformerShape, devices: Sequence[Device], within: Limits | None = None
) -> Dispatcher | None:
    """How tokens go to experts where nobody says: once a node where the devices and the framework have that.

    Args:
        shape: of the model; None is the answer for one without experts.
        devices, within: see `usual_precision`.
    """
    if shape.experts is None:
        return None
    for name, kinds in DISPATCHER_DEVICES.items():
        if kinds.issuperset(device.name for device in devices) and (within is None or name in within.dispatchers):
            return name
    return "alltoall"


HALF: Mapping[Precision, str] = {"bf16": "bfloat16", "fp16": "float16"}


def usual_precision(devices: Sequence[Device], within: Limits | None = None) -> Precision:
    """The one of 16 bits in which products are faster on the slowest device, bf16 where they are alike; or fp32.

    Args:
        devices: of the cluster.
        within: a framework that may not have all of them.
    """
    rates = {
        name: min(device.matrix.get(dtype, 0.0) for device in devices)
        for name, dtype in HALF.items()
        if within is None or name in within.precisions
    }
    if not any(rates.values()):
        return "fp32"
    return max(rates, key=rates.__getitem__)


def usual_batch(shape: TransformerShape, devices: int) -> int:
    """Samples of a step where nobody says (`core.microbatch.usual_samples`)."""
    parameters = shape.layers * shape.hidden * (4 * shape.hidden + 3 * shape.ffn * (shape.experts or 1))
    return usual_samples(parameters, shape.sequence, devices)


FREE = tuple(f.name for f in fields(Strategy) if f.name != "global_batch")
"""Fields of a strategy that may be given or searched; precision and dispatcher are the usual ones of the devices, and
nothing is offloaded, unless they are given."""


class SharedCosts(NamedTuple):
    """What searches of one model on one cluster have worked out, and share.

    Attributes:
        pricing: prices of strategies.
        ranks: costs of ranks, by all that they depend on (Grid.costs).
    """

    pricing: StrategyPricing
    ranks: dict[tuple[object, ...], RankCosts]


@dataclass(frozen=True, eq=False, kw_only=True)
class StrategyProblem:
    """The search for the fastest strategy of one global batch.

    Attributes:
        work: of the model.
        cluster: on what.
        device: of the cluster, with constants of training steps.
        global_batch: samples of a step.
        fixed: fields of the strategy (FREE) by name with the values that they are to have.
        reserve_bytes: of each device that no strategy may use.
        rank_reserve_bytes: of the devices of a rank beside that, by its number, from the last one on below 0; ranks
            that a strategy does not have reserve nothing.
        within: what the framework can express that is to run it; None for all that there is.
        most_ranks: of the pipeline; None is any number.
        without: what its strategies do without, of STEPS.
        start: strategies that the search begins with: one that may be of another problem, beside which it begins, and
            others of this one.
        below_s: longer steps are of no interest: the search ends when it is proven that none is shorter.
        runtime: how the framework runs strategies.
        kinds: devices by the names that the groups of a mixed cluster have for them.
        hosted: whether blocks may save in the memory of hosts where nobody says what they recompute.
        shared: costs of each model on each cluster, which all problems that are made of this one have in common: a
            search that goes on with those of another one gets further in as many counted seconds.

    Raises:
        BadInput: a field that no strategy has, or a global batch or a reserve that is no positive number.
    """

    work: ModelWork
    cluster: Cluster
    device: Device
    global_batch: int
    fixed: Mapping[str, Any] = field(default_factory=dict)
    reserve_bytes: float = 0.0
    rank_reserve_bytes: Mapping[int, float] = field(default_factory=dict)
    within: Limits | None = None
    most_ranks: int | None = None
    without: frozenset[str] = frozenset()
    start: Sequence[Strategy] = ()
    below_s: float = float("inf")
    runtime: Runtime = DEFAULT_RUNTIME
    kinds: Mapping[str, Device] = field(default_factory=dict)
    hosted: bool = False
    shared: dict[Hashable, SharedCosts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.fixed:
            if name not in FREE:
                raise BadInput("no strategy has such a field", where=f"`{name}`", do=f"they have {', '.join(FREE)}")
        if self.global_batch < 1:
            raise BadInput(f"{self.global_batch} samples", where="`global_batch`", do="give 1 or more")
        for reserve in (0.0, *self.rank_reserve_bytes.values()):
            if not 0 <= reserve + self.reserve_bytes < self.cluster.memory:
                what = f"{size(reserve + self.reserve_bytes)} of the {size(self.cluster.memory)} of a device"
                raise BadInput(what, where="`reserve_bytes`", do="give less than the memory")

    @classmethod
    def from_work(
        cls, work: Callable[[str], ModelWork], cluster: Cluster, device: Device, **others: Any
    ) -> StrategyProblem:
        """The search with the usual reserve, unless it is given, and the kinds of devices that the cluster names.

        Args:
            work: type that layers compute in → the model's work.
            others: further fields; None is the usual reserve, or the usual batch.
        """
        kinds, fixed = read_kinds(cluster), others["fixed"]
        precision = fixed.get("precision") or usual_precision([*kinds.values()] or [device], others.get("within"))
        if others.get("reserve_bytes") is None:
            others["reserve_bytes"] = others.get("runtime", DEFAULT_RUNTIME).reserve * cluster.memory
        dtype = Strategy(micro_batch=1, global_batch=1, precision=precision).dtype
        given = fixed.get("recompute", "none")
        model = work(dtype).with_modules(given if isinstance(given, tuple) else (given,), SEARCHED)
        others["global_batch"] = others["global_batch"] or usual_batch(model.shape, cluster.devices)
        return cls(work=model, cluster=cluster, device=device, kinds=kinds, **others)

    @property
    def devices(self) -> list[Device]:
        """Of the cluster, one of each kind."""
        return [*self.kinds.values()] or [self.device]

    @property
    def precision(self) -> Precision:
        """The one that is given, or the usual one of the devices."""
        return self.fixed.get("precision") or usual_precision(self.devices, self.within)

    @property
    def dispatcher(self) -> Dispatcher | None:
        """The one that is given, or the usual one of the devices, or what needs nothing installed."""
        usual = usual_dispatcher(self.work.shape, self.devices, self.within)
        return self.fixed.get("dispatcher") or ("alltoall" if usual and INSTALLED in self.without else usual)

    @property
    def offload(self) -> Offload:
        """What is given, or nothing."""
        offload: Offload = self.fixed.get("offload", "none")
        return offload

    @property
    def costs(self) -> SharedCosts:
        """Costs of the model on the cluster, which are shared."""
        key = (self.cluster, self.work, self.runtime, id(self.device))
        if key not in self.shared:
            priced = (costs.pricing for costs in self.shared.values())
            like = (one.layers for one in priced if (one.work, one.runtime) == (self.work, self.runtime))
            pricing = StrategyPricing(
                self.work, self.cluster, self.device, self.runtime, self.kinds, chain.from_iterable(like)
            )
            self.shared[key] = SharedCosts(pricing, {})
        return self.shared[key]

    @property
    def recompute(self) -> list[int]:
        """Kinds of recomputation, as numbers, that blocks of a strategy may have."""
        given, within, work = self.fixed.get("recompute"), self.within, self.work
        kinds: Sequence[Recompute]
        if isinstance(given, tuple):
            kinds = given
        elif given is not None:
            kinds = (given,)
        else:
            by_name = SEARCHED if within is not None and within.modules else frozenset[str]()
            named = (kind for kind in work.kinds if by_name.issuperset(modules_of(kind) or "-"))
            kinds = (*work.recompute, *(RECOMPUTE if self.hosted else ()), *named)
        allowed = [kind for kind in kinds if within is None or within.recompute_objection(kind) is None]
        return sorted(set(map(work.kind, allowed)))

    def recompute_sets(self, kinds: Sequence[int], pp: int) -> list[list[int]]:
        """Of some kinds those that blocks of one strategy of so many ranks may have; of several sets it has one.

        A framework whose blocks recompute alike saves some of them on hosts, and not all, on one rank.
        """
        if not self.recompute_alike:
            return [list(kinds)]
        if self.within is None:
            return [[kind] for kind in kinds]
        offloads = OFFLOAD in kinds and pp == 1 and PARTIAL not in self.without
        return [*([kind] for kind in kinds if kind != OFFLOAD), *([[NONE, OFFLOAD]] if offloads else [])]

    @property
    def recompute_alike(self) -> bool:
        """Whether all blocks of a strategy recompute the same."""
        return PARTIAL in self.without or (self.within is not None and self.within.recompute_alike)

    def fits(self, estimate: Estimate) -> bool:
        """Whether a strategy leaves the reserve of every device, and hosts hold what they have to."""
        used = np.array([memory.total for memory in estimate.memory]) + self.reserve(len(estimate.memory))
        return estimate.host[0] <= estimate.host[1] and bool((used <= np.array(estimate.memory_bytes)).all())

    def reserve(self, ranks: int) -> FloatArray:
        """[S] bytes that devices of each rank leave free."""
        reserve = np.full(ranks, self.reserve_bytes)
        for rank, more in self.rank_reserve_bytes.items():
            if -ranks <= rank < ranks:
                reserve[rank] += more
        return reserve


@dataclass(frozen=True)
class StrategiesConfig:
    """How far to search.

    Attributes:
        gap: share of the step by which another strategy may be shorter at most when the search ends; 0 is to the end.
        guesses: strategies that closed forms say are good, and that are simulated before all others.
        far: a guess that is so many times as long as the best strategy is not simulated, nor neighbours of a strategy.
        refined: subspaces of the best guesses whose other cuts and recomputation are tried at once.
        rounds: of chains that become rows of a subspace's linear program; 0 solves none, and simulates one subspace of
            each division that bounds do not rule out, unless there are too many to bound.
        trials: neighbouring cuts that are simulated of a subspace that may have the best strategy.
        nodes: of the search tree of a program of whole blocks; 0 solves none.
        exhaustive: strategies of a subspace up to which all of them are simulated where bounds do not rule it out.
        patience: strategies after which a search may give up that has proven what it can.
        budget_s: counted seconds (planners.effort) after which the search ends with the gap that it has reached.
    """

    gap: float = 0.01
    guesses: int = 80
    far: float = 1.15
    refined: int = 4
    rounds: int = 6
    trials: int = 24
    nodes: int = 1
    exhaustive: int = 200
    patience: int = 100
    budget_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.gap < 1.0:
            raise BadInput(f"a gap of {self.gap:g}", where="`gap`", do="give a share from 0 to 1, such as 0.01")
