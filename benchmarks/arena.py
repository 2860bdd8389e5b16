"""Sailor's planners and ours on Sailor's profiles, all judged by Sailor's simulator.

    python benchmarks/arena.py CLONE --python INTERPRETER --answers FOLDER [--limit 300] [--rows 1]
                               [--planner NAME …] [--model NAME …] [--cluster NAME …]

CLONE is a clone of Sailor's artefact (SOSP '25, github eth-easl/sailor) at COMMIT, INTERPRETER a Python 3.10 that has
what its planners import (numpy, pandas, scipy, pymetis, pyomo, pybind11, torch, transformers), where a C++ compiler
finds jsoncpp (CPATH, LIBRARY_PATH and LD_LIBRARY_PATH name its folders where these are not the usual ones). A copy of
the clone is built beside the answers, in FOLDER; a planner whose answers lie there is not run again.

A planner's plan is the first of its own order that fits by their simulator, as in their evaluation. Beside them stand

- `automap`: the planner of strategies on automap's clock of the devices, which reads no profile of theirs; its
  strategies are those that their simulator can price (fp32 by TF32, 1F1B, no ZeRO, no recomputation);
- `automap on their profile`: the same planner told what theirs are. The devices that share a layer are one device to
  it, as fast as makes a micro-batch take the time that it takes by their profile, and as far from others as as many of
  a machine are by their measured bandwidths, at the size of a micro-batch's activations. Nothing goes beside
  computation, and no share of a link is lost.

Their simulator rounds micro-batches up and counts all steps as of the samples that are asked for, so that each search
also has the batch, 2 % larger at most, which most degrees of data parallelism divide.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise, product
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from common import print_rows, require_commit, tracked
from sailor import (
    COMMIT,
    DOLLARS,
    KINDS,
    MACHINE,
    MODELS,
    PLANNERS,
    PROFILES,
    TRACES,
    Answer,
    Goal,
    Pipeline,
    Replicas,
    Sailor,
    goal_of,
    words,
)

from automap_models.core.cluster import Cluster
from automap_models.core.device import Device
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.errors import BadInput
from automap_models.formats.hardware_yaml import read_device
from automap_models.planners.strategies.part_search import PartSearch
from automap_models.planners.strategies.parts import Part
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import read_model_work

OUR_CLOCK, THEIR_PROFILE = "automap", "automap on their profile"
FREE = 1e15
"""Bytes, and bytes a second, of which nobody lacks any."""
ROUNDED = 1.02
"""Most samples of a step over those that are asked for."""
NEAR = 1.1
"""Most seconds of a step over the shortest, of plans that stand by in case those before them do not fit."""
PRICED: dict[str, Any] = {"precision": "fp32", "schedule": "1f1b", "zero": 0, "recompute": "none", "cp": 1, "vp": 1}
"""Strategies that their simulator can price."""


def in_tf32(name: str) -> Device:
    """A kind of device with products of float32 in TF32 where it has that, as the times of their profile are."""
    device = read_device(name)
    return replace(device, matrix={**device.matrix, "float32": device.matrix.get("tf32", device.matrix["float32"])})


def speed(device: Device, work: ModelWork, micro_batch: int, profile: Mapping[str, Sequence[float]]) -> float:
    """How many times as fast a device would be on which micro-batches take the times of the profile's layers."""
    pricing = StrategyPricing(work, Cluster(1, 1, FREE, FREE, FREE), device)
    same: dict[str, Any] = PRICED | {"micro_batch": micro_batch}
    few, many = (pricing.price(Strategy(**same, global_batch=n * micro_batch))[0] for n in (8, 16))
    return (many - few) / 8 / sum(forward_s + backward_s for forward_s, backward_s, _ in profile.values())


def batches(samples: int, micro_batch: int, units: int) -> list[int]:
    """Samples of a step, and the rounded ones that most degrees of data parallelism of so many units divide."""
    degrees = {units // stages for stages in range(1, units + 1)}
    among = range(samples, int(ROUNDED * samples) + 1)
    shared = [sum(batch % (degree * micro_batch) == 0 for degree in degrees) for batch in among]
    return [*{samples: None, among[shared.index(max(shared))]: None}]


class Question:
    """What automap is asked of a model on a cluster, for each micro-batch and tp that all kinds have times of.

    Args:
        goal: what is best.
        profiled: whether it is told their profile, in place of kinds of devices that it knows.
    """

    def __init__(self, sailor: Sailor, model: str, devices: Mapping[str, int], goal: Goal, *, profiled: bool) -> None:
        self.sailor, self.model, self.devices, self.goal, self.profiled = sailor, model, devices, goal, profiled
        sizes = sailor.read(f"simulations/configs/{MODELS[model]}")
        names = {"hidden_size": "n_embd", "num_layers": "n_layer", "heads": "n_head", "vocab_size": "vocab_size"}
        config = {"model_type": "gpt2", "n_positions": sizes["sequence_length"], "tie_word_embeddings": False}
        config |= {name: sizes[key] for key, name in names.items()}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self.work = read_model_work(f"{folder}/config.json", sequence=sizes["sequence_length"], dtype="float32")
        self.samples, self.sample_bytes = (
            sizes["global_batch_size"],
            4 * sizes["sequence_length"] * sizes["hidden_size"],
        )
        times, kinds = sailor.read("simulations/profiles_tmp.json")[model], {name.split("_")[0] for name in devices}
        self.times = {KINDS[kind]: times[kind] for kind in sorted(kinds)}
        a100 = in_tf32("a100-40")
        bare = replace(a100.constants, overlap=0.0, intra_efficiency=1.0, inter_efficiency=1.0)
        self.device = replace(a100, step=bare) if profiled else a100

    def problems(self) -> Iterator[tuple[int, StrategyProblem]]:
        """Problems, each with the devices that stand for one in it."""
        for micro_batch, tp in product((1, 2, 4, 8), (1, 2, 4)):
            if any(str(tp) not in times.get(str(micro_batch), {}) for times in self.times.values()):
                continue
            for batch in batches(self.samples, micro_batch, sum(self.devices.values()) // tp):
                yield (tp if self.profiled else 1), self.problem(micro_batch, tp, batch)

    def problem(self, micro_batch: int, tp: int, batch: int) -> StrategyProblem:
        """Of one micro-batch, tp and batch."""
        kinds = {} if self.profiled else {kind: in_tf32(kind) for kind in self.times}
        cluster = self.sailor.cluster(self.devices)
        if self.profiled:
            lasting = {kind: times[str(micro_batch)][str(tp)] for kind, times in self.times.items()}
            speeds = {kind: speed(self.device, self.work, micro_batch, layers) for kind, layers in lasting.items()}
            cluster = self.sailor.cluster(self.devices, tp, micro_batch * self.sample_bytes, **speeds)
        return StrategyProblem(
            work=self.work,
            cluster=cluster,
            device=self.device,
            kinds=kinds,
            global_batch=batch,
            fixed={**PRICED, "micro_batch": micro_batch, "tp": 1 if self.profiled else tp},
        )

    def charged(self, sharing: int, part: Part, step_s: float) -> tuple[float, float]:
        """What a step on a part is compared by: whether it misses the goal's limit, and its seconds or dollars."""
        kinds = {device: kind for kind, device in KINDS.items()}
        hour = sum(g.nodes * g.devices_per_node * DOLLARS[kinds[g.device]] for g in part.cluster.node_groups)
        dollars = sharing * hour / 3600 * step_s
        return float(self.goal.missed(1 / step_s, dollars)), part.charged_s(dollars if self.goal.cheapest else step_s)

    def plans(self) -> list[Pipeline]:
        """The best strategies of the problems, in the planner's order."""
        ranked: list[tuple[tuple[float, float], Pipeline]] = []
        for sharing, problem in self.problems():
            missed, least = min((charged for charged, _ in ranked), default=(math.inf, math.inf))
            limit = missed, NEAR * least
            below_s = limit[1] if self.goal == Goal() else math.inf
            charge = partial(self.charged, sharing)
            search = PartSearch(
                replace(problem, below_s=below_s), StrategiesConfig(budget_s=1.0), charge, sized=self.goal.cheapest
            )
            with suppress(BadInput):  # no devices share so many samples
                full = search.full()
                search.run(partial(on_part, problem), full, limit)
                results = [*([] if full is None else [(Part(problem.cluster), full)]), *search.results]
                fitting = [(charge(part, one.cost.step_s), one) for part, one in results if one.plan is not None]
                if fitting:
                    charged, best = min(fitting, key=itemgetter(0))
                    plan = pipeline(best.required_plan(), self.work.shape, best.problem.cluster, sharing)
                    ranked.append((charged, plan))
        return [plan for _, plan in sorted(ranked, key=itemgetter(0))]

    def steps_per_s(self, plan: Mapping[str, Any]) -> float:
        """Of the samples that are asked for, of a plan of one kind of device in one zone; nan where none says it."""
        if len(self.devices) > 1 or len(plan.get("pipelines", ())) != 1:
            return math.nan
        (one,), micro_batch = plan["pipelines"], plan["mbs"]
        teams = {(len(team), *{tp for _, tp in team}) for team in one["tmp_stages"]}
        if len(teams) > 1 or len(team := teams.pop()) != 2:
            return math.nan
        (dp, tp), layers = team, [len(stage) for stage in one["layers_per_stage"]]
        layers[0] -= 1  # the embedding
        layers[-1] -= 1  # the head
        devices = tp * dp * len(layers)
        if min(layers) < 1 or devices % MACHINE:
            return math.nan
        batch = math.ceil(self.samples / (dp * micro_batch)) * dp * micro_batch
        degrees: dict[str, Any] = PRICED | {"tp": tp, "dp": dp, "pp": len(layers), "layers": tuple(layers)}
        strategy = Strategy(**degrees, micro_batch=micro_batch, global_batch=batch)
        (group,), kinds = self.sailor.cluster(self.devices).node_groups, dict.fromkeys(self.times, self.device)
        cluster = Cluster.of_groups([replace(group, nodes=devices // MACHINE)])
        step_s, *_ = StrategyPricing(self.work, cluster, self.device, kinds=kinds).price(strategy)
        return float(batch / self.samples / step_s)


def on_part(problem: StrategyProblem, cluster: Cluster) -> StrategyProblem:
    """The same problem on a part of its cluster."""
    return replace(problem, cluster=cluster)


def pipeline(strategy: Strategy, shape: TransformerShape, cluster: Cluster, sharing: int) -> Pipeline:
    """A strategy as a pipeline of their layers, of which the first is the embedding and the last one the head."""
    ends = list(accumulate(strategy.stage_layers(shape), initial=1))
    ends[0], ends[-1] = 0, ends[-1] + 1
    kinds = {device: kind for kind, device in KINDS.items()}
    names = [f"{kinds[g.device]}_{g.zone}" for g in cluster.groups for _ in range(g.nodes * g.devices_per_node)]
    size, tp = strategy.devices // strategy.pp, strategy.tp
    ranks = [names[first : first + size] for first in range(0, strategy.devices, size)]
    teams = [
        tuple(Replicas(name, tp * sharing, rank.count(name) // tp) for name in dict.fromkeys(rank)) for rank in ranks
    ]
    stages = [(range(*pair), team) for pair, team in zip(pairwise(ends), teams, strict=True)]
    return Pipeline(strategy.micro_batch, tuple(stages))


def ours(question: Question, profiled: Question) -> Iterator[Answer]:
    """Answers of ours on a cluster, without their profile and with it."""
    timed, sailor, model = [], question.sailor, question.model
    for name, asking in ((OUR_CLOCK, question), (THEIR_PROFILE, profiled)):
        begin = time.process_time()
        plans = asking.plans()
        timed.append((name, plans, time.process_time() - begin))
    judged = iter(sailor.judged(model, [plan for _, plans, _ in timed for plan in plans]))
    for name, plans, search_s in timed:
        verdicts = [next(judged) for _ in plans]
        good = (i for i, (fits, rate, cost, _) in enumerate(verdicts) if fits and not question.goal.missed(rate, cost))
        first = next(good, None)
        if first is None:
            yield Answer(name, "none fits", 0.0, math.nan, search_s, len(plans))
        else:
            _, throughput, dollars, reduced_s = verdicts[first]
            described = plans[first].described()
            here = question.steps_per_s(described)
            yield Answer(name, words(described), throughput, dollars, search_s, first, reduced_s, here)


HEADINGS = (
    *("model", "cluster", "planner", "plan", "steps a second", "$ a step", "over the best"),
    *("plans in s", "do not fit before", "all-reduce in s", "by automap's clock"),
)


def cells(case: tuple[str, str], answer: Answer, ratio: float) -> tuple[str, ...]:
    """A row of the table."""
    numbers = (answer.throughput, 4), (answer.dollars, 4), (ratio, 3), (answer.search_s, 2), (answer.reduced_s, 2)
    texts = ["–" if math.isnan(number) else f"{number:.{digits}f}" for number, digits in (*numbers, (answer.here, 4))]
    return *case, answer.planner, answer.plan, *texts[:4], str(answer.refused), *texts[4:]


def compared(pairs: Sequence[tuple[Answer, Sequence[Answer]]], goal: Goal) -> str:
    """How ours compare with the best of theirs, and in how much of the time of that one and of all of theirs."""

    def merit(answer: Answer) -> float:
        return goal.merit(answer.throughput, answer.dollars)

    best = [max(others, key=merit) for _, others in pairs]
    ratios = [merit(mine) / merit(one) for (mine, _), one in zip(pairs, best, strict=True)]
    times = geometric_mean(mine.search_s / one.search_s for (mine, _), one in zip(pairs, best, strict=True))
    ours_s = sum(mine.search_s for mine, _ in pairs)
    theirs_s = sum(one.search_s for _, others in pairs for one in others if not math.isnan(one.search_s))
    return (
        f"{goal.words}, over the best of theirs, {geometric_mean(ratios):.3f} in the geometric mean, "
        f"{min(ratios):.3f} at worst,\nin {times:.2f} times its time and {ours_s / theirs_s:.3f} of that of all theirs"
    )


def main() -> None:
    """Print the table, and how ours compare with the best of theirs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clone", type=Path, metavar="CLONE")
    parser.add_argument("--python", type=Path, required=True, help="interpreter that has what theirs import")
    parser.add_argument("--answers", type=Path, required=True, help="folder of the copy and of their answers")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of one of theirs on a cluster")
    parser.add_argument("--rows", type=int, default=None, help="of each trace, from the first one on; all of them")
    parser.add_argument("--planner", action="append", choices=PROFILES, default=[], help="of theirs; those that run")
    parser.add_argument("--model", action="append", choices=MODELS, default=[])
    parser.add_argument("--cluster", action="append", choices=TRACES, default=[])
    options = parser.parse_args()
    require_commit(options.clone, COMMIT, "Sailor's artefact")
    sailor = Sailor(options.clone, options.python.absolute(), options.answers, options.limit)
    comparisons: dict[tuple[Goal, str], list[tuple[Answer, list[Answer]]]] = {}

    def rows() -> Iterator[tuple[str, ...]]:
        for model, trace in product(options.model or MODELS, options.cluster or TRACES):
            planners, goal = [name for name in PLANNERS[trace] if name in (options.planner or PROFILES)], goal_of(trace)
            for number, devices in enumerate(sailor.clusters(trace)[: options.rows]):
                question, profiled = (
                    Question(sailor, model, devices, goal, profiled=is_profiled) for is_profiled in (False, True)
                )
                mine = list(ours(question, profiled))
                others = [
                    sailor.theirs(name, model, trace, number, question.steps_per_s)
                    for name in tracked(planners, "theirs")
                ]
                for answer in mine:
                    comparisons.setdefault((goal, answer.planner), []).append((answer, others))
                where = " + ".join(f"{count} {name.replace('_', ' ')}" for name, count in devices.items())
                case = model, f"{where}: {goal.words}" if goal.limit else where
                merits = [goal.merit(answer.throughput, answer.dollars) for answer in (*mine, *others)]
                best = max(merits[len(mine) :]) or math.nan
                yield from (
                    cells(case, answer, merit / best) for answer, merit in zip([*mine, *others], merits, strict=True)
                )

    print_rows(HEADINGS, rows())
    for (goal, name), pairs in comparisons.items():
        print(f"\n{name}: {compared(pairs, goal)}, on {len(pairs)} clusters")


if __name__ == "__main__":
    main()
