"""What kinds of recomputation run again of a layer's forward pass, and which of its saved values they do without.

    kind         runs again                                      does without
    full         everything, with its collectives                all but what enters the layer
    selective    attention cores (2205.05198); beside a flash    scores; beside a flash kernel, which has none,
                 kernel torchtitan's: half of each product       results of every second product
    modules      their kernels and collectives (MODULES)         what is made in them

What a module is entered with is kept. A perceptron's, a mixture's or a core's result is, too, where something reads it
later. Of norms, activations of experts and what makes queries, keys and values the result itself is made again
(`CheckpointWithoutOutput` of Megatron-Core 0.16). No module but core_attn makes attention cores. No backward pass
but of experts reads the result of a layer's last product, or of the sum behind it: `stops_early` leaves both out.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from automap_models.core.instruction_graph import FloatArray, IntArray
from automap_models.core.model_work import LayerWork, WorkPass, module_bits
from automap_models.core.strategy import Recompute
from automap_models.cost.runtime import Runtime

BoolArray = NDArray[np.bool_]
Kinds = tuple[IntArray, BoolArray, BoolArray, BoolArray, BoolArray]
"""[R] `module_bits` of each; whether it is selective, offload, full; whether the core is among its modules."""


@lru_cache(maxsize=256)
def kinds_of(names: tuple[Recompute, ...]) -> Kinds:
    """Those of these names (ModelWork.kinds)."""
    bits = np.array([module_bits(name) for name in names])
    selective, offload, full = (np.equal(names, name) for name in ("selective", "offload", "full"))
    return bits, selective, offload, full, np.asarray(bits & module_bits("core_attn") > 0)


class Again(NamedTuple):
    """Shares of a layer's forward pass that R kinds of recomputation run again.

    Attributes:
        kernels: [n, R] of each kernel, attention cores apart.
        cores: [R] of the attention core.
        sums: [m, R] of each sum of tensor parallelism.
        exchanges: [R] of the way of tokens to experts and back.
        context: [R] of keys and values of context parallelism on their way.
    """

    kernels: FloatArray
    cores: BoolArray
    sums: BoolArray
    exchanges: BoolArray
    context: BoolArray


def run_again(work: LayerWork, names: tuple[Recompute, ...], runtime: Runtime) -> Again:
    """What each kind runs again of a block.

    Args:
        work: of the block.
        names: of R kinds, see ModelWork.kinds.
        runtime: says what selective recomputation is.
    """
    kernels, (bits, selective, _, full, cores) = work.kernels, kinds_of(names)
    of_products = selective & (runtime.flash and runtime.selects == "products")
    shares = np.where(full, 1.0, _made_by(kernels.modules, len(kernels), bits))
    sums = full | _made_by(work.sums_forward.modules, work.sums_forward.values.size, bits)
    if runtime.stops_early and not work.exchanged.values.size:
        shares[np.flatnonzero(kernels.products & (kernels.passes == WorkPass.FORWARD))[-1:]] = 0.0
        sums[-1:] = False
    shares[:, of_products] = np.where(kernels.products, 0.5, 1.0)[:, None]
    return Again(
        np.where((kernels.passes == WorkPass.FORWARD)[:, None], shares, 0.0),
        full | (selective & ~of_products) | cores,
        sums,
        full | _made_by(work.exchanged.modules, work.exchanged.values.size, bits).any(axis=0),
        full,
    )


def _made_by(modules: IntArray | int, count: int, bits: IntArray) -> BoolArray:
    """[count, R] whether one of a kind's modules makes each."""
    return np.asarray(np.broadcast_to(modules, count)[:, None] & bits > 0)
