"""From an instruction graph and the time of every instruction to a profile: C, A, W, forward times and stash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from automap_models.collection import uncollected
from automap_models.core.device import Device
from automap_models.core.instruction_graph import FloatArray, InstructionGraph, IntArray, Phase
from automap_models.core.microbatch import CLOCK_S, clock_table
from automap_models.core.profile import Profile, SharedParameter
from automap_models.cost.kernel_traffic import DTYPE_NAMES
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import known_devices, read_device
from automap_models.hlo.attribution import homes
from automap_models.hlo.clock import clock_seconds, clock_times
from automap_models.hlo.liveness import NEVER, Liveness


def clock_profile(graph: InstructionGraph, device: Device) -> Profile:
    """The profile of a training step by the clock of a device; see `profile_from_graph`.

    Its meta says how long other kinds of devices take for a micro-batch, `roofline_s` (files keep the key from before
    the clock): that tells how fast the devices of a cluster are. Where the graph says how many samples its micro-batch
    has, meta also says what micro-batches of other sizes take (core.microbatch).

    Raises:
        BadInput: the graph has no backward pass or no parameters, or the device no rate for one of its types.
    """

    def passes_s(factor: float) -> tuple[float, float]:
        times_s = clock_times(graph, device, factor)
        forward, backward = (float(times_s[graph.phases == phase].sum()) for phase in (Phase.FORWARD, Phase.BACKWARD))
        return forward, backward

    times_s = clock_times(graph, device)
    seconds = clock_seconds(graph, [*map(read_device, known_devices()), device])
    meta: dict[str, object] = {"times": "clock, not measured", "device": device.name, "constants": device.origin}
    meta["roofline_s"] = seconds
    samples = graph.meta.get("microbatch_size")
    if isinstance(samples, int) and samples > 0:
        meta[CLOCK_S] = clock_table(samples, passes_s)
    return profile_from_graph(graph, times_s, meta)


@uncollected()
def profile_from_graph(
    graph: InstructionGraph, times_s: ArrayLike, meta: Mapping[str, object] | None = None
) -> Profile:
    """The profile of a training step, one entry per forward instruction in execution order.

    - C: forward time plus that of the backward instructions that belong to it (attribution.py). What belongs nowhere
      is spread in proportion, so that ΣC is the time of the forward and the backward pass of one micro-batch. The
      update is no part of it: it comes once for a global batch, not with every micro-batch.
    - A: bytes of activations alive across the cut, each once; W: bytes of each parameter at its first use; frozen: the
      same of what is not trained; stash: bytes of activations that the backward pass reads. liveness.py says what an
      activation is.

    Added to the graph's and the caller's meta: `forward_s`, `backward_s`, `update_per_step_s`; `unattributed_s` and
    `unattributed_share`, of C; `parameter_dtype`, the element type of most of the parameters' bytes;
    `loops`, in the forward pass, each one instruction that no cut divides; `unused_parameters`, counted with the first
    instruction; `long_lived_values`, alive across more than an eighth of
    all cuts.

    Args:
        graph: of a whole step: forward, backward, update.
        times_s: [n] seconds of every instruction.
        meta: what else is known of the step, such as the device.

    Raises:
        BadInput: the graph has no backward pass or no parameters, or all times are zero.
    """
    times = np.asarray(times_s, dtype=np.float64)
    _require(graph, times)
    liveness = Liveness(graph)
    forward_s = times[liveness.forward]
    microbatch_s = np.where(graph.in_microbatch, times, 0.0)
    C, unattributed_s = _attributed(microbatch_s, homes(liveness), forward_s)
    reported = {
        key: float(times[graph.phases == phase].sum())
        for key, phase in zip(("forward_s", "backward_s", "update_per_step_s"), Phase, strict=True)
    }
    reported |= {"unattributed_s": unattributed_s, "unattributed_share": unattributed_s / float(microbatch_s.sum())}
    return Profile.create(
        C=C,
        A=liveness.crossing(),
        W=liveness.trained.first_using(graph.value_bytes),
        C_fwd=forward_s,
        stash=liveness.keeping(),
        names=[graph.names[i] for i in liveness.forward],
        layers=[graph.layers[i] for i in liveness.forward],
        meta={"model": graph.model} | dict(graph.meta) | dict(meta or {}) | reported | _reported(liveness),
        shared_parameters=_shared(liveness, liveness.trained.shared),
        frozen=liveness.frozen.first_using(graph.value_bytes),
        shared_frozen=_shared(liveness, liveness.frozen.shared),
        source=graph.model,
    )


def _shared(liveness: Liveness, several: Iterable[tuple[int, tuple[int, ...]]]) -> list[SharedParameter]:
    """Arguments, or constants, that several instructions use: value ids and positions of these."""
    graph = liveness.graph
    shared = []
    for v, users in several:
        argument = int(liveness.argument[v])
        name = graph.names[graph.producers[v]] if argument == NEVER else graph.arguments[argument].name
        shared.append(SharedParameter(name, float(graph.value_bytes[v]), users))
    return shared


def _require(graph: InstructionGraph, times: FloatArray) -> None:
    loops = graph.meta.get("loops_with_both_passes")
    if isinstance(loops, list) and loops:
        raise BadInput(
            f"its forward and backward passes are inside a loop ({', '.join(map(str, loops[:3]))})",
            where=graph.model,
            do="give the step of one micro-batch, without the loop that adds up gradients",
        )
    if not (graph.phases == Phase.BACKWARD).any():
        raise BadInput(
            "has no backward pass that can be told from the forward pass",
            where=graph.model,
            do="give a step that differentiates its loss, as by jax.value_and_grad"
            if graph.meta.get("source") == "jax"
            else "give a whole training step with its locations, such as "
            "jax.jit(step).lower(…).as_text(debug_info=True), where the backward pass is marked transpose(…)",
        )
    if not any(argument.kind == "parameter" for argument in graph.arguments):
        raise BadInput("has no trainable parameters", where=graph.model, do="give a whole training step")
    if not times[graph.in_microbatch].any():
        raise BadInput("all times are zero", where=graph.model, do="measure the model again")


def _attributed(times: FloatArray, home: IntArray, forward_s: FloatArray) -> tuple[FloatArray, float]:
    """Time per forward instruction, and how much of it belonged nowhere and is spread over all."""
    housed = home != NEVER
    later = np.bincount(home[housed], times[housed], minlength=forward_s.size) - forward_s
    C = forward_s + np.maximum(later, 0.0)
    unattributed_s = float(times[~housed].sum())
    share = C / C.sum() if C.any() else np.full(C.size, 1.0 / C.size)
    return C + unattributed_s * share, unattributed_s


def _reported(liveness: Liveness) -> dict[str, object]:
    """What else people should know of the parameters, and of values with a long life."""
    graph, parameters = liveness.graph, liveness.parameters.tolist()
    nbytes: dict[str, float] = {}
    for v in parameters:
        dtype = DTYPE_NAMES.get(graph.dtypes[v], graph.dtypes[v])
        nbytes[dtype] = nbytes.get(dtype, 0.0) + float(graph.value_bytes[v])
    return {
        "parameter_dtype": max(nbytes, key=lambda dtype: nbytes[dtype]),
        "loops": [graph.names[i] for i in liveness.forward if graph.opcodes[i] == "while"],
        "unused_parameters": [graph.arguments[v].name for v in parameters if liveness.first_use[v] == NEVER],
        "long_lived_values": _long_lived(liveness),
    }


def _long_lived(liveness: Liveness) -> list[dict[str, object]]:
    """Values that skip over many cuts, largest first: an encoder's output, a relative position bias."""
    graph = liveness.graph
    life = np.where(liveness.born != NEVER, liveness.last_read - liveness.born, 0)
    long = np.flatnonzero(liveness.is_activation & (life > liveness.forward.size / 8))
    largest = long[np.argsort(-graph.value_bytes[long], kind="stable")][:16]
    return [
        {
            "name": graph.names[graph.producers[v]],
            "bytes": float(graph.value_bytes[v]),
            "first": graph.layers[graph.producers[v]],
            "last": graph.layers[liveness.forward[liveness.last_read[v]]],
        }
        for v in largest.tolist()
    ]
