"""Operator graphs, the problem of placing them on devices, and its plan.

Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020), §3: throughput of
a pipeline, where the most loaded device sets the pace, and latency of one sample. Beside these the makespan of one step
whose operations are spread over devices (GDP, arXiv 1910.01578; cost.makespan).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from automap_models.core.dag import find_cycle
from automap_models.core.result import Result
from automap_models.core.step_devices import ACCELERATOR, CPU, StepDevices
from automap_models.core.units import counted, rounded_up
from automap_models.errors import BadInput, Infeasible

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

Objective = Literal["throughput", "latency", "step"]
Communication = Literal["sum", "max"]

ROUNDING = 1e-9
"""Sums of bytes and of times may pass a limit by this share, which is floating-point rounding."""


@dataclass(frozen=True, eq=False)
class PlacementGraph:
    """A directed acyclic graph of n operators with e edges, and the devices that they are to be placed on.

    Attributes:
        ids: [n] numbers of the nodes in the file they come from, ascending.
        names: [n] what the file calls them; "" where it does not.
        accelerator_s: [n] time of each on an accelerator.
        cpu_s: [n] time of each on a CPU.
        memory_bytes: [n] what each takes on an accelerator.
        transfer_s: [n] time to move its output between an accelerator and the CPUs' memory, whoever reads it; 0
            without readers.
        output_bytes: [n] size of that output; 0 without readers.
        supported: [n] whether it can be placed on an accelerator.
        backward: [n] whether it belongs to the backward pass; an inference graph has none that do.
        classes: [n] nodes of one class must share a device; a node that may stand alone has a class of its own.
        edges: [e, 2] positions of producer and consumer, in ascending order, each pair once.
        accelerators: how many there are (K).
        cpus: how many there are (ℓ).
        accelerator_bytes: memory of one accelerator.
        meta: where the graph comes from.
        live_bytes: [n] what the output of each occupies while it is needed; None where memory_bytes counts outputs.
        kind_s: kind of device → [n] time of each on it, for kinds beside accelerator and CPU.
        opcodes: [n] what each does, in StableHLO's words; empty where nobody says.
    """

    ids: tuple[int, ...]
    names: tuple[str, ...]
    accelerator_s: FloatArray
    cpu_s: FloatArray
    memory_bytes: FloatArray
    transfer_s: FloatArray
    output_bytes: FloatArray
    supported: BoolArray
    backward: BoolArray
    classes: IntArray
    edges: IntArray
    accelerators: int
    cpus: int
    accelerator_bytes: float
    meta: Mapping[str, object] = field(default_factory=dict)
    live_bytes: FloatArray | None = None
    kind_s: Mapping[str, FloatArray] = field(default_factory=dict)
    opcodes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_training(self) -> bool:
        """Whether the graph has a backward pass."""
        return bool(self.backward.any())

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over ids, times, sizes, kinds and edges: a plan belongs to exactly these."""
        digest = hashlib.sha256(np.array(self.ids, dtype=np.int64).tobytes())
        for times in (self.accelerator_s, self.cpu_s, self.memory_bytes, self.transfer_s):
            digest.update(np.ascontiguousarray(times, dtype=np.float64).tobytes())
        for kinds in (self.supported, self.backward, self.classes, self.edges):
            digest.update(np.ascontiguousarray(kinds, dtype=np.int64).tobytes())
        for more in (*self.kind_s.values(), *(() if self.live_bytes is None else (self.live_bytes, self.output_bytes))):
            digest.update(np.ascontiguousarray(more, dtype=np.float64).tobytes())
        return digest.hexdigest()

    @property
    def link_bytes_per_s(self) -> float:
        """Bandwidth between an accelerator and the CPUs by which the transfer times were made; infinite without any."""
        took_s = float(self.transfer_s.sum())
        return float(self.output_bytes.sum()) / took_s if took_s > 0 else math.inf

    def times_on(self, kind: str) -> FloatArray:
        """[n] time of each node on a kind of device.

        Raises:
            BadInput: the graph has no times for it.
        """
        time_of = {ACCELERATOR: self.accelerator_s, CPU: self.cpu_s, **self.kind_s}
        if kind not in time_of:
            do = f"choose from {', '.join(time_of)}, or give the devices a `speed`"
            raise BadInput(f"has no times for devices of kind {kind!r}", where=model_name(self), do=do)
        return time_of[kind]

    def successors(self) -> list[list[int]]:
        """[n] positions of each node's consumers, ascending."""
        consumers: list[list[int]] = [[] for _ in self.ids]
        for producer, consumer in self.edges.tolist():
            consumers[producer].append(consumer)
        return consumers


@dataclass(frozen=True, eq=False)
class PlacementProblem:
    """The operators to place, the devices to place them on, and the objective.

    Devices 0 … accelerators-1 are accelerators, the others are CPUs.

    Attributes:
        graph: n operators.
        accelerators: how many there are (K).
        cpus: how many there are (ℓ). For latency they are one machine with as many cores as needed.
        memory_bytes: memory of one accelerator; CPUs have as much as is needed.
        objective: "throughput" minimises the largest load of a device, which is the time per sample of a pipeline in
            steady state; "latency" the time from a sample's first operator to the end of its last; "step" the
            makespan of the whole graph, whose operations start as soon as inputs and device are there.
        communication: whether a device's transfers and its compute take turns ("sum") or overlap ("max"); throughput.
        split_passes: whether all devices do forward passes first and then all backward passes, so that each pass has
            a slowest device of its own: max_i FW_i + max_i BW_i; throughput.
        pieces: subgraphs that one accelerator may hold and run one after the other (q); latency.
        network: the devices with their kinds and links, accelerators first; step. None: as many equal accelerators and
            CPUs with links by which the graph's transfer times were made.

    Raises:
        BadInput: a number out of range, a cycle, a node that no device supports.
        Infeasible: a class that fits no device.
    """

    graph: PlacementGraph
    accelerators: int
    cpus: int
    memory_bytes: float
    objective: Objective = "throughput"
    communication: Communication = "sum"
    split_passes: bool = False
    pieces: int = 1
    network: StepDevices | None = None

    def __post_init__(self) -> None:
        _require_in_range(self)
        _require_meaning(self)
        _require_network(self)
        cycle = find_cycle(self.graph.successors())
        if cycle:
            text = " → ".join(_listed(self.graph, [*cycle, cycle[0]]))
            raise BadInput(f"the edges form a cycle, {text}", where=model_name(self.graph), do="give an acyclic graph")
        _require_a_device_for_all(self)

    @classmethod
    def create(cls, graph: PlacementGraph, **overrides: Any) -> PlacementProblem:
        """The problem with the devices and the memory that the graph's file gives, but for the overrides."""
        settings: dict[str, Any] = {
            "accelerators": graph.accelerators,
            "cpus": graph.cpus,
            "memory_bytes": graph.accelerator_bytes,
        }
        return cls(graph, **{**settings, **overrides})

    @classmethod
    def of_step(cls, graph: PlacementGraph, network: StepDevices) -> PlacementProblem:
        """The problem of the shortest step on those devices."""
        cpus = int(network.is_cpu.sum())
        accelerators = len(network) - cpus
        least = float(network.memory_bytes[:accelerators].min()) if accelerators else 0.0
        return cls(graph, accelerators, cpus, least, objective="step", network=network)

    @property
    def devices(self) -> int:
        """Accelerators and CPUs."""
        return self.accelerators + self.cpus

    @cached_property
    def step_devices(self) -> StepDevices:
        """The devices of a step."""
        if self.network is not None:
            return self.network
        return StepDevices.equal(self.accelerators, self.cpus, self.memory_bytes, self.graph.link_bytes_per_s)

    @cached_property
    def device_times_s(self) -> FloatArray:
        """[D, n] time of each node on each device of a step; infinite on an accelerator that does not support it."""
        devices = self.step_devices
        times = np.stack([self.graph.times_on(kind) for kind in devices.kinds]) * devices.slowdown[:, None]
        unsupported = ~devices.is_cpu[:, None] & ~self.graph.supported[None, :]
        return np.asarray(np.where(unsupported, np.inf, times))

    @cached_property
    def class_memory_bytes(self) -> FloatArray:
        """[n] what the whole class of each node takes on an accelerator."""
        classes = self.graph.classes
        return sums_by(classes, self.graph.memory_bytes, int(classes.max()) + 1)[classes]

    @cached_property
    def class_supported(self) -> BoolArray:
        """[n] whether every node of each node's class can run on an accelerator, memory aside."""
        lacking = np.zeros(self.graph.classes.max() + 1, dtype=np.bool_)
        lacking[self.graph.classes[~self.graph.supported]] = True
        return ~lacking[self.graph.classes]

    @cached_property
    def may_accelerate(self) -> BoolArray:
        """[n] whether each node may be placed on an accelerator: its class is supported there and fits."""
        largest = self.memory_bytes
        if self.network is not None and self.accelerators:
            largest = float(self.network.memory_bytes[: self.accelerators].max())
        fits = self.class_memory_bytes <= largest * (1.0 + ROUNDING)
        return fits & self.class_supported & (self.accelerators > 0)


@dataclass(frozen=True, eq=False)
class PlacementPlan:
    """The decision, apart from what it costs (cost.placement says that).

    Attributes:
        planner: who made it.
        assignment: [n] device of each node.
        pieces: [n] which subgraph of its accelerator each node belongs to; one accelerator's run in ascending order.
            Of no meaning on a CPU. None: one each.
    """

    planner: str
    assignment: IntArray
    pieces: IntArray | None = None

    def check_valid(self, problem: PlacementProblem) -> tuple[bool, str]:
        """Whether this plan solves that problem, memory included, and if not, why not."""
        for objection in (_shape_objection, _device_objection, _memory_objection, _latency_objection):
            reason = objection(problem, self)
            if reason:
                return False, reason
        return True, ""


PlacementResult = Result[PlacementProblem, PlacementPlan]
"""What a planner of placements returns; its cost is a `cost.placement.PlacementCost`."""


def model_name(graph: PlacementGraph) -> str:
    """What messages and plans call the graph."""
    return str(graph.meta.get("model", "graph"))


def unit_of_work(graph: PlacementGraph) -> str:
    """What the graph's times are of: `micro-batch of 16 samples`, or a sample where the graph does not say."""
    samples = graph.meta.get("microbatch_size")
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        return "sample"
    return f"micro-batch of {counted(samples, 'sample')}"


def node_name(graph: PlacementGraph, node: int) -> str:
    """`node 17 (MatMul)`: the number in its file and, where there is one, the name."""
    return f"node {graph.ids[node]}" + (f" ({graph.names[node]})" if graph.names[node] else "")


def _listed(graph: PlacementGraph, nodes: list[int]) -> list[str]:
    names = [str(graph.ids[node]) for node in nodes]
    return names if len(names) <= 9 else [*names[:7], "…", names[-1]]


def _require_in_range(problem: PlacementProblem) -> None:
    # Beyond these nobody places operators: larger numbers are mistakes, and plans hold arrays of that length.
    for option, count in (("`accelerators`", problem.accelerators), ("`cpus`", problem.cpus)):
        if not 0 <= count <= 4096:
            raise BadInput(f"{count} devices", where=option, do="give 0 to 4,096")
    if not problem.devices:
        raise BadInput("there is no device to place anything on", where="`accelerators`", do="give at least 1")
    if not (math.isfinite(problem.memory_bytes) and problem.memory_bytes >= 0):
        raise BadInput(f"{problem.memory_bytes} bytes", where="`memory_bytes`", do="give the bytes of one accelerator")
    if not 1 <= problem.pieces <= 64:
        raise BadInput(f"{problem.pieces} subgraphs a device", where="`pieces`", do="give 1 to 64")


def _require_network(problem: PlacementProblem) -> None:
    """The network has the problem's devices, accelerators first, and the graph has times for them."""
    network = problem.network
    if network is None:
        return
    if problem.objective != "step":
        raise BadInput("is for the objective step", where="`network`", do="leave it out, or give `objective='step'`")
    first_cpus = np.flatnonzero(network.is_cpu)
    in_order = first_cpus.tolist() == list(range(problem.accelerators, problem.devices))
    if len(network) != problem.devices or not in_order:
        what = f"has {len(network)} devices, {first_cpus.size} of them CPUs, which must come last"
        do = f"give {problem.accelerators} accelerator(s), then {problem.cpus} CPU(s)"
        raise BadInput(what, where="`network`", do=do)
    for kind in network.kinds:
        problem.graph.times_on(kind)


def _require_meaning(problem: PlacementProblem) -> None:
    """Options that belong to the other objective are refused rather than ignored."""
    choices: Mapping[str, tuple[str, tuple[str, ...]]] = {
        "`objective`": (problem.objective, ("throughput", "latency", "step")),
        "`communication`": (problem.communication, ("sum", "max")),
    }
    for option, (value, allowed) in choices.items():
        if value not in allowed:
            raise BadInput(f"is {value!r}", where=option, do=f"choose from {', '.join(allowed)}")
    for option, given in (
        ("`communication='max'`", problem.communication == "max"),
        ("`split_passes`", problem.split_passes),
    ):
        if given and problem.objective != "throughput":
            raise BadInput(f"is for throughput, not for {problem.objective}", where=option, do="leave it out")
    if problem.objective != "latency" and problem.pieces != 1:
        raise BadInput(f"{problem.pieces} subgraphs a device", where="`pieces`", do="they are for latency only")
    if problem.objective == "latency" and problem.graph.is_training:
        what = "has a backward pass, but latency is that of one sample's inference"
        do = "give an inference graph, `objective='throughput'` or `objective='step'`"
        raise BadInput(what, where=model_name(problem.graph), do=do)


def _require_a_device_for_all(problem: PlacementProblem) -> None:
    """Without CPUs everything must run on an accelerator; with CPUs everything can run there."""
    graph = problem.graph
    if problem.cpus:
        return
    if not graph.supported.all():
        node = int(np.argmin(graph.supported))
        what = f"no device supports {node_name(graph, node)}: it does not run on accelerators, and there is no CPU"
        raise BadInput(what, where=model_name(graph), do="give at least one CPU with `cpus`")
    if not problem.may_accelerate.all():
        node = int(np.argmin(problem.may_accelerate))
        members = np.flatnonzero(graph.classes == graph.classes[node]).tolist()
        what = (
            f"{node_name(graph, node)} needs"
            if len(members) == 1
            else f"nodes {', '.join(_listed(graph, members))}, which must share a device, need"
        )
        most = problem.memory_bytes
        if problem.network is not None:
            most = float(problem.network.memory_bytes[: problem.accelerators].max())
        raise Infeasible(
            f"{what} {problem.class_memory_bytes[node] / 1e9:.3g} GB, "
            f"an accelerator has {most / 1e9:.3g} GB, and there is no CPU",
            where=model_name(graph),
            do=f"give accelerators with at least {rounded_up(float(problem.class_memory_bytes.max())) / 1e9:.3g} GB "
            "(`memory_bytes`), or at least one CPU with `cpus`",
        )


def _shape_objection(problem: PlacementProblem, plan: PlacementPlan) -> str:
    n = len(problem.graph)
    for what, array in (("assignment", plan.assignment), ("pieces", plan.pieces)):
        if array is not None and array.shape != (n,):
            return f"{what} has shape {array.shape} instead of ({n},)"
    return ""


def _device_objection(problem: PlacementProblem, plan: PlacementPlan) -> str:
    """Each node on one device that there is and that supports it, classes together."""
    graph, assignment = problem.graph, plan.assignment
    unknown = (assignment < 0) | (assignment >= problem.devices)
    unsupported = (assignment < problem.accelerators) & ~graph.supported
    first_of_class = np.unique(graph.classes, return_index=True)
    home = assignment[first_of_class[1]][np.searchsorted(first_of_class[0], graph.classes)]
    apart = assignment != home
    for wrong, reason in (
        (unknown, f"is on a device outside 0..{problem.devices - 1}"),
        (unsupported, "is on an accelerator, which does not support it"),
        (apart, "is on another device than its class"),
    ):
        if wrong.any():
            return f"{node_name(graph, int(np.argmax(wrong)))} {reason}"
    return ""


def _memory_objection(problem: PlacementProblem, plan: PlacementPlan) -> str:
    used = device_memory_bytes(problem, plan.assignment)[: problem.accelerators]
    limits = np.full(used.size, problem.memory_bytes)
    if problem.network is not None:
        limits = problem.network.memory_bytes[: problem.accelerators]
    over = used > limits * (1.0 + ROUNDING)
    if not over.any():
        return ""
    device = int(np.argmax(over))
    has = "an accelerator has" if problem.network is None else "it has"
    return f"device {device} needs {used[device] / 1e9:.3g} GB, {has} {limits[device] / 1e9:.3g} GB"


def _latency_objection(problem: PlacementProblem, plan: PlacementPlan) -> str:
    """Subgraphs can run: none waits for itself through others, those before it on its accelerator included."""
    if problem.objective != "latency":
        return "subgraphs are for latency only" if plan.pieces is not None else ""
    accelerated = plan.assignment < problem.accelerators
    pieces = np.zeros_like(plan.assignment) if plan.pieces is None else plan.pieces
    wrong = accelerated & ((pieces < 0) | (pieces >= problem.pieces))
    if wrong.any():
        node = int(np.argmax(wrong))
        return f"{node_name(problem.graph, node)} is in subgraph {pieces[node]} outside 0..{problem.pieces - 1}"
    cycle = find_cycle(job_successors(problem, plan))
    if cycle is None:
        return ""
    first = next(job for job in cycle if job < problem.accelerators * problem.pieces)
    device, piece = divmod(first, problem.pieces)
    return f"subgraph {piece} of device {device} is not contiguous or waits for one that waits for it"


def device_memory_bytes(problem: PlacementProblem, assignment: IntArray) -> FloatArray:
    """[devices] what the nodes on each device take; counted on CPUs as well, which have as much as is needed."""
    return sums_by(assignment, problem.graph.memory_bytes, problem.devices)


def sums_by(keys: IntArray, values: FloatArray, total: int) -> FloatArray:
    """[total] sum of the values under each key 0 … total-1."""
    return np.bincount(keys, weights=values, minlength=total).astype(np.float64)


def job_of_nodes(problem: PlacementProblem, plan: PlacementPlan) -> IntArray:
    """[n] what each node runs as part of, for latency.

    Job accelerator · q + piece is a subgraph of an accelerator; a node on a CPU is a job of its own, number
    accelerators · q + its position.
    """
    pieces = np.zeros_like(plan.assignment) if plan.pieces is None else plan.pieces
    alone = problem.accelerators * problem.pieces + np.arange(len(problem.graph))
    on_accelerator = plan.assignment < problem.accelerators
    return np.where(on_accelerator, plan.assignment * problem.pieces + pieces, alone)


def job_successors(problem: PlacementProblem, plan: PlacementPlan) -> list[list[int]]:
    """Jobs that wait for each job (see `job_of_nodes`): for its results, or for their accelerator."""
    jobs = job_of_nodes(problem, plan)
    total = problem.accelerators * problem.pieces + len(problem.graph)
    ends = jobs[problem.graph.edges]
    pairs = {(a, b) for a, b in ends.tolist() if a != b}
    for job in range(problem.accelerators * problem.pieces):
        if (job + 1) % problem.pieces:
            pairs.add((job, job + 1))
    successors: list[list[int]] = [[] for _ in range(total)]
    for a, b in sorted(pairs):
        successors[a].append(b)
    return successors


def describe_objective(problem: PlacementProblem) -> str:
    """`throughput, transfers beside compute`."""
    if problem.objective == "step":
        return "makespan of one step"
    if problem.objective == "latency":
        return "latency" + (f", up to {problem.pieces} subgraphs an accelerator" if problem.pieces > 1 else "")
    passes = ", passes apart" if problem.split_passes else ""
    return "throughput" + (", transfers beside compute" if problem.communication == "max" else "") + passes


def device_name(problem: PlacementProblem, device: int) -> str:
    """`0`, `1`, … for accelerators, `CPU 6` for what comes after them; of a step the devices' own names."""
    if problem.network is not None:
        return problem.network.names[device]
    return str(device) if device < problem.accelerators else f"CPU {device}"
