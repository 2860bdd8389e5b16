"""The layers of a profile, as strategies of data and pipeline parallelism divide them.

    instructions   0 … │ … │ … │ …   … │ … n-1          bars: where the first block begins, and where each ends
    places         0     1   2           L+1            blocks 1 … L, and what lies before and after them

A profile tells seconds, parameters and saved bytes of its micro-batch, and its clock those of other sizes
(core.microbatch). So a rank of data parallelism takes what the profile takes with its own samples; ZeRO, recomputation,
schedules and memory are those of every strategy (cost.stage_costs).

What a profile does not tell is not divided: it has no operators for tp, cp and ep, no attention cores for selective
recomputation, and does not say what of a backward pass makes gradients of parameters, which some schedules run apart.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.framework import ModelFacts
from automap_models.core.instruction_graph import FloatArray
from automap_models.core.layers import Block, block_ends, repeated_blocks
from automap_models.core.microbatch import clock_factor, on_device, required_size, rescaled
from automap_models.core.model_work import Amounts, Kernels, LayerWork, ModelWork, SharedWork
from automap_models.core.profile import Profile, SharedParameter
from automap_models.core.strategy import ON_DEVICES, RECOMPUTE, Precision, Strategy, TransformerShape
from automap_models.cost.layer_costs import KernelCosts, LayerCosting
from automap_models.cost.process_groups import ProcessGroups
from automap_models.cost.runtime import DEFAULT_RUNTIME, Runtime
from automap_models.cost.stage_costs import SENDING_ALONE
from automap_models.errors import BadInput

PRECISIONS: dict[str, Precision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
"""Element type of most parameters → what a strategy calls it; others are none of a strategy."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ProfileWork(ModelWork):
    """A profiled model as a strategy's layers.

    Attributes:
        profile: of a micro-batch that says how many samples it has.
        begins: first instruction of each place, ascending; 0 first.
    """

    profile: Profile
    begins: tuple[int, ...]

    recompute = tuple(kind for kind in ON_DEVICES if kind != "selective")
    schedules = tuple(sorted(SENDING_ALONE))

    @classmethod
    def from_profile(cls, profile: Profile) -> ProfileWork:
        """The layers of a profile.

        Raises:
            BadInput: it does not say how many samples it has, has fewer than three layers, or parameters of a type that
                no strategy has.
        """
        required_size(profile)
        dtype = str(profile.meta.get("parameter_dtype", profile.dtype))
        if dtype not in PRECISIONS:
            do = f"profile it in {', '.join(PRECISIONS)}"
            raise BadInput(f"strategies have no parameters in {dtype}", where=profile.model, do=do)
        begins = layer_begins(profile)
        keys = [tuple(f"{value:.9g}" for value in sums) for sums in _sums(profile, begins).T.tolist()]
        distinct = tuple(dict.fromkeys(keys))
        blocks = _blocks(profile)
        series = {begin: use.series for use in blocks for begin in begins if use.first <= begin <= use.last}
        sizes = dict.fromkeys(("hidden", "heads", "kv_heads", "ffn", "sequence", "vocabulary"), 1)
        shared = [(*_shared(begins, use), 0.0) for use in profile.shared_parameters]
        shared += [(places, 0.0, nbytes) for places, nbytes in (_shared(begins, use) for use in profile.shared_frozen)]
        both_ends, item_bytes = (0, len(keys) - 1), _item_bytes(dtype)
        return cls(
            shape=TransformerShape(name=profile.model, layers=len(keys) - 2, **sizes),
            layers=tuple(_layer(series.get(begins[keys.index(key)], "layers")) for key in distinct),
            order=tuple(map(distinct.index, keys)),
            dtype=dtype,
            tied=sum(trained / item_bytes for places, trained, _ in shared if places == both_ends),
            shared=tuple(
                SharedWork(trained / item_bytes, frozen, places)
                for places, trained, frozen in shared
                if len(places) > 1 and (places != both_ends or frozen)
            ),
            profile=profile,
            begins=begins,
        )

    def fields(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a strategy of the profile, with the precision that it was profiled in.

        Raises:
            BadInput: one is given that needs what a profile does not tell.
        """
        precision = PRECISIONS[self.dtype]
        require_fields(given, (precision,))
        return {"precision": precision, **given}

    @cached_property
    def facts(self) -> ModelFacts:
        """Whether its ends are tied, and whose code it is; nothing says its sizes."""
        return ModelFacts(None, self.tied > 0, self.profile.own_code, training=self.training)


def require_fields(given: Mapping[str, Any], precisions: Sequence[Precision] = tuple(PRECISIONS.values())) -> None:
    """Nothing, where fields of a strategy need nothing that no profile tells.

    Raises:
        BadInput: one does; it is the first.
    """
    operators = "leave it out: plans of stages share operators, in the ranking, where the model has them"
    for name, allowed, untold, do in (
        *((name, (1,), "operations that devices could share", operators) for name in ("tp", "cp", "ep")),
        ("sequence_parallel", (False,), "operations that devices could share", operators),
        ("tower_tp", (None,), "operations that devices could share", operators),
        ("precision", precisions, "times of another type of elements", "give the model itself in it"),
        (
            "schedule",
            (*ProfileWork.schedules, "1f1b-deep"),
            "times of gradients of parameters alone, which it runs apart",
            f"choose from {', '.join(ProfileWork.schedules)}",
        ),
        ("recompute", ProfileWork.recompute, "attention cores", f"choose from {', '.join(ProfileWork.recompute)}"),
    ):
        value = given.get(name, allowed[0])
        if not set(value if isinstance(value, tuple) else (value,)) <= set(allowed):
            what = f"strategies of such a model are of its profile, which has no {untold}"
            raise BadInput(what, where=f"`{name}`", do=do)


class ProfileCosting(LayerCosting):
    """Costs of a profile's layers; see LayerCosting.

    Raises:
        BadInput: the cluster is a mixed one.
    """

    def __init__(self, work: ProfileWork, cluster: Cluster, device: Device, runtime: Runtime = DEFAULT_RUNTIME) -> None:
        super().__init__(work, cluster, device, runtime)
        cluster.require_uniform("a strategy of a profile", "give a cluster of equal nodes")
        factor = clock_factor(work.profile, cluster)
        self.profile = work.profile if factor == 1.0 else on_device(work.profile, cluster.device, factor)
        self.begins, order = work.begins, list(work.order)
        self.places = [order.index(layer) for layer in range(len(work.layers))]

    def timed(self, strategies: Sequence[Strategy], groups: Sequence[ProcessGroups]) -> list[KernelCosts]:
        """Of each of some strategies, on a rank of data parallelism."""
        return [self._of_samples(strategy.micro_batch) for strategy in strategies]

    def _of_samples(self, samples: int) -> KernelCosts:
        """A micro-batch of so many: all of the backward pass is INPUT, and a block that is computed again keeps what
        enters it, and needs what it saves otherwise while it is."""
        sums = _sums(rescaled(self.profile, samples), self.begins)[:, self.places]
        forward, both, weights, frozen, saved, entering, leaving = sums
        times = np.zeros((forward.size, len(RECOMPUTE), 12))
        times[..., 0], times[..., 1] = forward[:, None], (both - forward)[:, None]
        memory = np.zeros((forward.size, len(RECOMPUTE), 4))
        memory[..., 0] = saved[:, None]
        again, full = np.flatnonzero(self.recomputed), RECOMPUTE.index("full")
        times[again, full, 3] = forward[again]
        memory[again, full, 0], memory[again, full, 2] = entering[again], saved[again]
        parameters = np.stack([weights / _item_bytes(self.work.dtype), np.zeros_like(weights)], axis=1)
        return KernelCosts(times, memory, parameters, leaving, np.outer(frozen, (1.0, 0.0)))


def layer_begins(profile: Profile) -> tuple[int, ...]:
    """The first instruction of each place; see this module. Without blocks that repeat, of each layer.

    Between the ends every place holds parameters: one without any is part of the place before it.

    Raises:
        BadInput: there are fewer than three.
    """
    ends = block_ends(profile)
    before = min((block.first for block in _blocks(profile)), default=0)
    nbytes_of = profile.W + profile.frozen
    for parameter in (*profile.shared_parameters, *profile.shared_frozen):
        nbytes_of[list(parameter.instructions)] += parameter.nbytes
    cuts = sorted({before, *(end + 1 for end in ends)} - {0})
    sums = np.add.reduceat(nbytes_of, [0, *cuts])
    begins = (0, *(cut for cut, here in zip(cuts, sums[1:], strict=True) if here or cut == cuts[-1]))
    if len(begins) < 3:
        do = "profile the model with the paths of its modules, as automap profile does"
        raise BadInput("has no layers between which a strategy could divide it", where=profile.model, do=do)
    return begins


def _blocks(profile: Profile) -> tuple[Block, ...]:
    return repeated_blocks(profile) if profile.layers or profile.names else ()


def _sums(profile: Profile, begins: tuple[int, ...]) -> FloatArray:
    """[7, places] seconds forward, and of both passes; bytes of parameters, frozen ones, saved, entering, leaving."""
    firsts = np.array(begins)
    of_places = [
        np.add.reduceat(row, firsts) for row in (profile.C_fwd, profile.C, profile.W, profile.frozen, profile.stash)
    ]
    leaving = profile.A[np.append(firsts[1:], len(profile)) - 1]
    return np.array([*of_places, np.append(0.0, leaving[:-1]), leaving])


def _shared(begins: tuple[int, ...], parameter: SharedParameter) -> tuple[tuple[int, ...], float]:
    """The places that use a parameter, and its bytes."""
    return tuple(sorted({bisect_right(begins, i) - 1 for i in parameter.instructions})), parameter.nbytes


def _item_bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def _layer(name: str) -> LayerWork:
    """A layer that says nothing but its name: the profile has its costs."""
    marks, flags, nothing = np.zeros(0, np.int8), np.zeros(0, np.bool_), Amounts(np.zeros(0), np.zeros(0, np.int8))
    sizes, places = np.zeros((0, 4)), np.zeros(0, np.int64)
    kernels = Kernels(marks, marks, flags, sizes, sizes.astype(np.int8), places, nothing.values, marks, flags, flags)
    return LayerWork(name, kernels, *(nothing,) * 9)
