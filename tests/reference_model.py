"""The pipeline cost model once more, as slowly and as plainly as it is described: an oracle for the library's own.

Written from the description of the cost model alone, in plain Python, and never from the library's code: sums are
loops, the simulation is a queue of events. `reference_vectors()` draws cases and evaluates them. Where the folder of
reference data is beside the checkout, `tests/cost/test_reference_model.py` holds this module against values that
somebody else computed.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

Case = dict[str, Any]

WARM_UP = {
    "1f1b": lambda stages, s, m: min(m, stages - s),
    "1f1b-deep": lambda stages, s, m: min(m, 2 * (stages - s) - 1),
    "gpipe": lambda stages, s, m: m,
}
"""Schedule → forward passes before the first backward pass of stage s."""

CASES = 40
WITH_OPTIMUM = (3, 9, 12, 15, 21, 30, 31, 32, 34, 38)
"""Cases small enough for the best of all plans."""


def evaluate(case: Case) -> dict[str, Any]:
    """What the plan of a case costs; the keys are those of the vectors."""
    profile, cluster, micro_batches = case["profile"], case["cluster"], case["micro_batches"]
    n, devices = len(profile["C"]), cluster["nodes"] * cluster["devices_per_node"]
    first = [0, *(cut + 1 for cut in case["cuts"]), n]
    first_device = [0, *case["device_cuts"], devices]
    stages = len(case["cuts"]) + 1
    forward_of = profile["C_fwd"] or [c / 3 for c in profile["C"]]
    stash_of = profile["stash"] or [0.0] * n
    forward, backward, all_reduce, memory = [], [], [], []
    for s in range(stages):
        instructions, replicas = range(first[s], first[s + 1]), first_device[s + 1] - first_device[s]
        forward.append(math.fsum(forward_of[i] for i in instructions) / replicas)
        backward.append(math.fsum(profile["C"][i] - forward_of[i] for i in instructions) / replicas)
        weights = math.fsum(profile["W"][i] for i in instructions)
        stash = math.fsum(stash_of[i] for i in instructions)
        counts = _devices_of_nodes(cluster, first_device[s], first_device[s + 1])
        g, used = max(counts), sum(1 for count in counts if count)
        all_reduce.append(weights * (2 * (g - 1) / g / cluster["intra"] + 2 * (used - 1) / used / cluster["inter"]))
        memory.append(4 * weights + min(micro_batches, stages - s) * stash / replicas)
    transfer = [
        profile["A"][cut] * _seconds_per_byte(cluster, *first_device[s : s + 3]) for s, cut in enumerate(case["cuts"])
    ]
    steps = [forward[s // 2] + backward[s // 2] if s % 2 == 0 else 2 * transfer[s // 2] for s in range(2 * stages - 1)]
    back = [backward[s // 2] if s % 2 == 0 else transfer[s // 2] for s in range(2 * stages - 1)]
    span = max(math.fsum(steps[:e]) + micro_batches * steps[e] for e in range(len(steps)))
    return {
        "forward_s": forward,
        "backward_s": backward,
        "transfer_s": transfer,
        "all_reduce_s": all_reduce,
        "memory_bytes": memory,
        "feasible": all(need <= cluster["memory"] for need in memory),
        "span_s": span,
        "length_s": max(span - math.fsum(back[: 2 * s]) + all_reduce[s] for s in range(stages)),
        "simulated_length_s": {
            name: _simulated(forward, backward, transfer, all_reduce, micro_batches, name) for name in WARM_UP
        },
    }


def tied(case: Case) -> dict[str, Any]:
    """What parameters that several stages use cost, besides `evaluate`; `shared` holds (bytes, instructions) of each.

    A stage holds every parameter that one of its instructions uses. Returns: memory_bytes and all_reduce_s of each
    stage; tied_s: holders → seconds that summing their gradients takes, once a step.
    """
    profile, cluster, shared = case["profile"], case["cluster"], case["shared"]
    n, devices = len(profile["C"]), cluster["nodes"] * cluster["devices_per_node"]
    first = [0, *(cut + 1 for cut in case["cuts"]), n]
    first_device = [0, *case["device_cuts"], devices]
    stages = len(case["cuts"]) + 1
    alone = list(profile["W"])
    for nbytes, instructions in shared:
        alone[instructions[0]] -= nbytes
    uses = [[any(first[s] <= i < first[s + 1] for i in users) for _, users in shared] for s in range(stages)]
    memory, all_reduce = [], []
    for s in range(stages):
        weights = math.fsum(alone[first[s] : first[s + 1]])
        weights += math.fsum(nbytes for (nbytes, _), used in zip(shared, uses[s], strict=True) if used)
        stash = math.fsum(profile["stash"][first[s] : first[s + 1]]) / (first_device[s + 1] - first_device[s])
        memory.append(4 * weights + min(case["micro_batches"], stages - s) * stash)
        counts = _devices_of_nodes(cluster, first_device[s], first_device[s + 1])
        g, used = max(counts), sum(1 for count in counts if count)
        all_reduce.append(weights * (2 * (g - 1) / g / cluster["intra"] + 2 * (used - 1) / used / cluster["inter"]))
    tied_s: dict[tuple[int, ...], float] = {}
    for p, (nbytes, _) in enumerate(shared):
        holders = tuple(s for s in range(stages) if uses[s][p])
        nodes = {u // cluster["devices_per_node"] for s in holders for u in range(first_device[s], first_device[s + 1])}
        most = max((max(_devices_of_nodes(cluster, first_device[s], first_device[s + 1])) for s in holders), default=1)
        link = cluster["inter"] / most if len(nodes) > 1 else cluster["intra"]
        if len(holders) > 1:
            tied_s[holders] = tied_s.get(holders, 0.0) + 2 * (len(holders) - 1) / len(holders) * nbytes / link
    return {"memory_bytes": memory, "all_reduce_s": all_reduce, "tied_s": tied_s}


def coarsened(n: int, granularity: int) -> list[int]:
    """The instruction that each point stands for: ceil((j + 1) · n / granularity) - 1, in whole numbers."""
    return [-(-(j + 1) * n // granularity) - 1 for j in range(granularity)]


def reference_vectors() -> dict[str, list[Case]]:
    """Cases and what they cost, the same ones every time, in the form of the shared file."""
    sizes = ((1000, 128), (128, 128), (26, 128), (50001, 128))
    return {
        "cost": [_case(number) for number in range(CASES)],
        "coarsening": [
            {"n": n, "granularity": points, "instruction_of_point": coarsened(n, points)} for n, points in sizes
        ],
    }


def _devices_of_nodes(cluster: dict[str, Any], begin: int, end: int) -> list[int]:
    per_node = cluster["devices_per_node"]
    return [sum(1 for u in range(begin, end) if u // per_node == node) for node in range(cluster["nodes"])]


def _seconds_per_byte(cluster: dict[str, Any], begin: int, boundary: int, end: int) -> float:
    """Of a transfer between stages on the devices begin … boundary-1 and boundary … end-1."""
    node, inside = divmod(boundary, cluster["devices_per_node"])
    out = [count / (boundary - begin) for count in _devices_of_nodes(cluster, begin, boundary)]
    into = [count / (end - boundary) for count in _devices_of_nodes(cluster, boundary, end)]
    stays = 0.0
    if inside:
        stays = max(0.0, out[node] + into[node] - 1.0)
        out[node] -= stays
        into[node] -= stays
    return max(max(map(max, out, into)) / cluster["inter"], stays / cluster["intra"])


def _simulated(
    forward: Sequence[float],
    backward: Sequence[float],
    transfer: Sequence[float],
    all_reduce: Sequence[float],
    micro_batches: int,
    schedule: str,
) -> float:
    """Stages run their passes in their schedule's order; each direction of a link moves one thing at a time."""
    stages = len(forward)
    queues = [_order(WARM_UP[schedule](stages, s, micro_batches), micro_batches) for s in range(stages)]
    there = [{("F", m) for m in range(micro_batches)} if s == 0 else set() for s in range(stages)]
    stage_busy, link_busy = [False] * stages, dict.fromkeys(itertools.product("FB", range(stages - 1)), False)
    waiting: dict[tuple[str, int], list[int]] = {link: [] for link in link_busy}
    last_backward, events, ticket = [0.0] * stages, [], itertools.count()

    def start(now: float) -> None:
        for s in range(stages):
            if not stage_busy[s] and queues[s] and queues[s][0] in there[s]:
                kind, m = queues[s].pop(0)
                stage_busy[s] = True
                took = forward[s] if kind == "F" else backward[s]
                heapq.heappush(events, (now + took, next(ticket), "stage", s, kind, m))
        for (kind, at), queue in waiting.items():
            if not link_busy[kind, at] and queue:
                link_busy[kind, at] = True
                heapq.heappush(events, (now + transfer[at], next(ticket), "link", at, kind, queue.pop(0)))

    start(0.0)
    while events:
        now, _, where, at, kind, m = heapq.heappop(events)
        if where == "link":
            link_busy[kind, at] = False
            there[at + 1 if kind == "F" else at].add((kind, m))
        else:
            stage_busy[at] = False
            if kind == "B":
                last_backward[at] = now
            if kind == "F" and at == stages - 1:
                there[at].add(("B", m))
            elif kind == "F":
                waiting["F", at].append(m)
            elif at:
                waiting["B", at - 1].append(m)
        if not events or events[0][0] > now:
            start(now)
    return max(end + reduce_s for end, reduce_s in zip(last_backward, all_reduce, strict=True))


def _order(warm_up: int, micro_batches: int) -> list[tuple[str, int]]:
    order = [("F", m) for m in range(warm_up)]
    for m in range(micro_batches):
        order.append(("B", m))
        if warm_up + m < micro_batches:
            order.append(("F", warm_up + m))
    return order


def _case(number: int) -> Case:
    """A case by its number: clusters of the paper at first, then all sorts of small ones."""
    draw = random.Random(number)
    small = number in WITH_OPTIMUM
    if number < CASES * 3 // 4 and not small:
        cluster = {"nodes": 2 + number % 3, "devices_per_node": 8, "intra": 130e9, "inter": 3.125e9, "memory": 32e9}
    else:
        nodes, per_node = draw.choice([(1, 3), (2, 2), (2, 3), (3, 2), (4, 2), (6, 1)])
        cluster = {"nodes": nodes, "devices_per_node": per_node, "intra": 50e9, "inter": 10e9, "memory": 16e9}
    if number % 4 == 2 and not small:
        cluster["memory"] = 2e9
    n, devices = draw.randint(6, 12 if small else 60), cluster["nodes"] * cluster["devices_per_node"]
    stages = draw.randint(1, 3 if small else min(5, devices, n))
    compute = [draw.expovariate(1 / 5e-3) for _ in range(n)]
    case: Case = {
        "cluster": cluster,
        "profile": {
            "C": compute,
            "A": [draw.uniform(0, 4e7) for _ in range(n)],
            "W": [draw.choice([0.0, draw.expovariate(1 / 1e8)]) for _ in range(n)],
            "C_fwd": None if number % 2 == 0 else [c * draw.uniform(0.2, 0.6) for c in compute],
            "stash": None if number % 3 == 1 else [draw.uniform(0, 3e8) for _ in range(n)],
        },
        "micro_batches": draw.randint(1, 32),
        "cuts": sorted(draw.sample(range(n - 1), stages - 1)),
        "device_cuts": sorted(draw.sample(range(1, devices), stages - 1)),
    }
    case["expected"] = {**evaluate(case), "optimum_over_all_plans_of_S_stages": _optimum(case) if small else None}
    return case


def _optimum(case: Case) -> dict[str, Any] | None:
    """The shortest of all plans of as many stages that fit."""
    best: dict[str, Any] | None = None
    for cuts, device_cuts in _plans(case):
        result = evaluate({**case, "cuts": cuts, "device_cuts": device_cuts})
        if result["feasible"] and (best is None or result["length_s"] < best["length_s"]):
            best = {"length_s": result["length_s"], "cuts": list(cuts), "device_cuts": list(device_cuts)}
    return best


def _plans(case: Case) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    devices = case["cluster"]["nodes"] * case["cluster"]["devices_per_node"]
    boundaries = len(case["cuts"])
    yield from itertools.product(
        itertools.combinations(range(len(case["profile"]["C"]) - 1), boundaries),
        itertools.combinations(range(1, devices), boundaries),
    )
