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
- `automap on their times`: the same with each kind of device as fast as makes micro-batches take the time that they
  take by their profile, sums of tensor parallelism included;
- `search of this script`: an exact one on the numbers that their simulator computes with (sailor_clock.py), which no
  user of automap has: it says what is to be had there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, combinations, pairwise, product
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from common import print_rows, require_commit, tracked
from sailor_clock import Clock, ClockedPlan, End, Replicas, shortest

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink
from automap_models.core.device import Device
from automap_models.core.model_work import ModelWork
from automap_models.core.strategy import Strategy, TransformerShape
from automap_models.formats.hardware_yaml import read_device
from automap_models.planners.strategies.parts import Part, PartSearch
from automap_models.planners.strategies.problem import StrategiesConfig, StrategyProblem
from automap_models.simulate.strategy import StrategyPricing
from automap_models.workloads.source import read_model_work

COMMIT = "cf2c8e3cc53ce178fe58a4003f46b4b6b848fc33"
MODELS = {"OPT-350": "training_config_opt_350.json", "GPT-Neo-2.7": "training_config_gpt_neo27.json"}
ZONE = "us-central1-a"
TRACES = {
    "homogeneous": "gpu_trace_scaled",
    "mixed": "gpu_trace_heterogeneous_imbalanced",
    "zones": "gpu_trace_multizone",
}
PROFILES = {
    "SAILOR": None,
    "AMP": "baselines/AMP/profiles/{model}",
    "Aceso": "baselines/Aceso/profiler/A100-40",
    "Atlas": "simulations/profiles_tmp.json",
    "DTFM": "simulations/profiles_tmp.json",
    "FlashFlex": "baselines/FlashFlex/src/machine_amounts.json",
    "Galvatron": "baselines/Galvatron/profiles/{model}/A100-40",
    "Metis": "baselines/Metis/profiles/{model}",
    "Piper": "baselines/Piper/profiles/{model}/A100-40/profile.json",
    "Varuna": "baselines/Varuna/profiles/{model}/A100-40/profile_4.json",
}
"""Planner → where its profile lies under sailor/Planner."""
PLANNERS = {
    "homogeneous": tuple(PROFILES),
    "mixed": ("SAILOR", "AMP", "FlashFlex", "Metis"),
    "zones": ("SAILOR", "DTFM"),
}
"""Clusters → the planners that their evaluation of them has."""
MEMORY_GIB = {"A100-40": 40, "V100-16": 16}
KINDS = {"A100-40": "a100-40", "V100-16": "v100"}
"""Kind of device → its name here."""
JUDGE = """
import contextlib, io, json, sys
from sailor.Planner.simulations.runtime_simulator import Simulator, convert_homogeneous
from sailor.Planner.simulations.simulator import simulate_plan
root, model, zone, plans = json.load(sys.stdin)
base = root + "/sailor/sailor/Planner"
read = lambda path: json.load(open(base + path))
said = io.StringIO()
with contextlib.redirect_stdout(said):
    simulator = Simulator(root, read("/simulations/configs/" + model), read("/llm_info.json"), False,
                          read("/simulations/profiles_tmp.json"), zone)
    answers = [(bool(simulator.check_config_fits(plan)), simulate_plan(simulator, plan, zone)[0],
                simulator.estimate_sync_time(convert_homogeneous(plan, simulator.training_config))) for plan in plans]
json.dump(answers, sys.stdout)
"""
"""Whether plans fit by their simulator, their steps a second, and the seconds that all-reduces take of a step."""
THEIR_CLOCK, OUR_CLOCK, THEIR_TIMES = "search of this script", "automap", "automap on their times"
FREE = 1e15
"""Bytes, and bytes a second, of which nobody lacks any."""
PRICED: dict[str, Any] = {"precision": "fp32", "schedule": "1f1b", "zero": 0, "recompute": "none", "cp": 1, "vp": 1}
"""Strategies that their simulator can price."""


@dataclass(frozen=True)
class Answer:
    """A planner's plan for one cluster.

    Attributes:
        planner: who made it.
        plan: in words.
        throughput: steps a second by their simulator; 0 where no plan fits.
        search_s: to plan: of ours of a core, of theirs by the wall.
        refused: plans before it, in the planner's order, that do not fit.
        reduced_s: that all-reduces take of a step; of theirs nobody says.
    """

    planner: str
    plan: str
    throughput: float
    search_s: float
    refused: int
    reduced_s: float = math.nan


class Sailor:
    """A copy of the clone that is built, with the interpreter that runs it."""

    def __init__(self, clone: Path, python: Path, answers: Path, limit_s: float) -> None:
        self.root, self.python, self.answers, self.limit_s = answers.resolve() / "copy", python, answers, limit_s
        self.planner = self.root / "sailor/sailor/Planner"
        if not self.planner.exists():
            shutil.copytree(clone / "sailor", self.root / "sailor/sailor")
            self.build()

    @cached_property
    def environment(self) -> dict[str, str]:
        """In which their programs run: their fixed paths are relative to a home folder."""
        code = "import pybind11, sysconfig; print(pybind11.get_include(), sysconfig.get_path('include'), sep=':')"
        headers = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        home, machine = str(self.root), platform.machine()
        changed = {"HOME": home, "SAILOR_PATH": home, "PYTHONPATH": f"{home}/sailor", "OMP_NUM_THREADS": "1"}
        changed |= {"MAKEFLAGS": f"ARCH={machine}", "PATH": f"{self.python.parent}:{os.environ['PATH']}"}
        return {**os.environ, **changed, "CPATH": f"{headers}:{os.environ.get('CPATH', '')}"}

    def build(self) -> None:
        """What their installation builds beside the planners, and their files of operators where a clone has none."""
        library = f"galvatron_dp_core.cpython-310-{platform.machine()}-linux-gnu.so"
        command = ["g++", "-O3", "-shared", "-std=c++17", "-fPIC", "dp_core.cpp", "-o", library]
        self._run(command, self.planner / "baselines/Galvatron/csrc")
        if not (self.planner / "llm_info_aceso.json").exists():
            self._run(["bash", "run_all.sh"], self.planner / "baselines/Aceso/csv2json")

    def _run(
        self, command: Sequence[str | Path], folder: Path, question: str | None = None, limit_s: float | None = None
    ) -> str:
        done = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=folder,
            input=question,
            timeout=limit_s,
        )
        return done.stdout

    def read(self, path: str) -> Any:
        """A JSON file of theirs, by its place under sailor/Planner."""
        return json.loads((self.planner / path).read_text())

    def rows(self, trace: str) -> tuple[str, list[str]]:
        """The heading of a trace and its rows."""
        heading, *rows = (self.planner / f"simulations/configs/{TRACES[trace]}.csv").read_text().split()
        return heading, rows

    def clusters(self, trace: str) -> list[dict[str, int]]:
        """Devices by kind and zone (A100-40_us-central1-a) of each row of a trace."""
        heading, rows = self.rows(trace)
        return [dict(zip(heading.split(",")[2:], map(int, row.split(",")[2:]), strict=True)) for row in rows]

    def theirs(self, planner: str, model: str, trace: str, number: int) -> Answer:
        """One of their planners on a row of a trace; in place of a plan the reason why there is none."""
        folder = self.answers.resolve() / f"{TRACES[trace]}-{number}"
        path = folder / f"{planner}_{model}.json"
        if not path.exists():
            heading, rows = self.rows(trace)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trace.csv").write_text(f"{heading}\n{rows[number]}\n")
            try:
                self._run(self.command(planner, model, folder), self.root, limit_s=self.limit_s)
            except subprocess.TimeoutExpired:
                return Answer(planner, f"no answer in {self.limit_s:.0f} s", 0.0, math.nan, 0)
            except subprocess.CalledProcessError as error:
                return Answer(planner, error.stderr.strip().rpartition("\n")[2][:80], 0.0, math.nan, 0)
        (row,) = json.loads(path.read_text())
        plan = words(row["plan"]) if row["throughput"] else "none fits"
        return Answer(planner, plan, row["throughput"], row["search_time"], row["oom_plans"])

    def command(self, planner: str, model: str, folder: Path) -> list[str | Path]:
        """That runs one of their planners on the trace in a folder, as their ae_scripts/planner/run_all_sim.py does."""
        base, sizes = self.planner, "_aceso" if planner == "Aceso" else ""
        profile = PROFILES[planner]
        options = {
            "sailor_path": self.root,
            "trace_file": folder / "trace.csv",
            "basic_cluster_config_json": base / "simulations/configs/basic_cluster_config.json",
            "training_config_json": base / f"simulations/configs/{MODELS[model]}",
            "result_dir_path": folder,
            "objective": "throughput",
            "planner": planner,
            "sailor_profile_file_dir": f"{base}/sailor_planner/profiles/{model}/",
            "quotas_dict": base / "sailor_planner/dummy_quotas_dict.json",
            "simulator_profile_file": base / f"simulations/profiles_tmp{sizes}.json",
        }
        if profile is not None:
            options["planner_profile_file"] = base / profile.format(model=model)
        pairs = ((f"--{name}", str(value)) for name, value in options.items())
        return [self.python, base / "simulations/simulator.py", *(word for pair in pairs for word in pair)]

    def clock(self, model: str, devices: Mapping[str, int]) -> Clock:
        """The numbers that their simulator computes with; between regions the least bandwidth of their zones."""
        profiles, sizes = self.read("simulations/profiles_tmp.json"), self.read("llm_info.json")
        samples, places = self.read(f"simulations/configs/{MODELS[model]}")["global_batch_size"], regions(devices)
        kinds, tps = {place: place.partition("_")[0] for place in places}, (1, 2, 4)
        links = {
            ((a, m), (b, n)): min((self.link((x, m), (y, n)) for x in places[a] for y in places[b]), key=itemgetter(1))
            for a, b, m, n in product(places, places, tps, tps)
        }
        times = {place: profiles[model][kind] for place, kind in kinds.items()}
        memory = {place: MEMORY_GIB[kind] for place, kind in kinds.items()}
        return Clock(times, sizes[model], {ends: link[0] for ends, link in links.items()}, memory, samples)

    @cached_property
    def bandwidths(self) -> Any:
        """[zone][kind][devices][zone][kind][devices] → coefficients of the bandwidth, and the most in bytes/s."""
        return self.read("../providers/multizone_bandwidths_het.json")

    def link(self, sender: End, receiver: End) -> tuple[list[float], float]:
        """Between so many devices of a kind in a zone: coefficients of the bandwidth over the size, and the most."""
        (kind, zone), (other, place) = sender[0].split("_"), receiver[0].split("_")
        coefficients, most = self.bandwidths[zone][kind][str(sender[1])][place][other][str(receiver[1])]
        return coefficients, most

    def cluster(self, devices: Mapping[str, int]) -> Cluster:
        """Ours of their nodes; their simulator has no latency between zones."""
        groups = []
        for name, count in devices.items():
            kind, zone = name.split("_")
            inter, memory = 4 * self.link((name, 1), (name, 1))[1], MEMORY_GIB[kind] * 2.0**30
            groups.append(NodeGroup(count // 4, 4, 300e9, inter, memory, KINDS[kind], zone=zone))
        named = {name.split("_")[1]: name for name in devices}
        links = [ZoneLink((a, b), 4 * self.link((named[a], 1), (named[b], 1))[1]) for a, b in combinations(named, 2)]
        return Cluster.of_groups(groups, zone_links=links)

    def judged(self, model: str, plans: Sequence[ClockedPlan]) -> list[tuple[bool, float, float]]:
        """What JUDGE says of plans."""
        dictionaries = [plan.dictionary() for plan in plans]
        question = json.dumps([str(self.root), MODELS[model], ZONE, dictionaries])
        answers = self._run([self.python, "-c", JUDGE], self.planner / "simulations", question)
        return [(fits, throughput, reduced_s) for fits, throughput, reduced_s in json.loads(answers)]


def regions(devices: Mapping[str, int]) -> dict[str, list[str]]:
    """Kind and region (A100-40_us-central1) → the devices' names in its zones, which have about the same bandwidth."""
    places: dict[str, list[str]] = {}
    for name in devices:
        places.setdefault(name.rpartition("-")[0], []).append(name)
    return places


def spread(plan: ClockedPlan, devices: Mapping[str, int]) -> ClockedPlan:
    """A plan on regions with its replicas in their zones, of which one after the other is filled."""
    free, stages = dict(devices), []
    for layers, team in plan.stages:
        replicas = []
        for place, tp, copies in team:
            rest = copies
            for name in regions(devices)[place]:
                count = min(rest, free[name] // tp)
                rest, free[name] = rest - count, free[name] - count * tp
                replicas.append(Replicas(name, tp, count))
        stages.append((layers, tuple(part for part in replicas if part.copies)))
    return replace(plan, stages=tuple(stages))


def words(plan: Mapping[str, Any]) -> str:
    """A plan of theirs: micro-batch, and the stages of each pipeline with layers, replicas and tensor parallelism; of
    Aceso, whose stages are of parts of layers with degrees of their own, how many there are and which these are."""
    if (one := plan.get("pipeline")) is not None:
        stages_of = zip(one["dp_degrees"], one["tp_degrees"], strict=True)
        pairs = sorted({pair for degrees in stages_of for pair in zip(*degrees, strict=True)})
        return f"mbs {plan['mbs']}: {one['num_stages']} stages, {', '.join(f'{dp} × tp {tp}' for dp, tp in pairs)}"
    first, *others = plan["pipelines"]
    stages = []
    for layers, replicas in zip(first["layers_per_stage"], first["tmp_stages"], strict=True):
        kinds = sorted({f"{vms[0][0]} tp {tp}" for vms, tp in replicas})
        stages.append((f"{len(replicas)} × {' + '.join(kinds)}", len(layers)))
    parts = [(kind, [count for name, count in stages if name == kind]) for kind in dict.fromkeys(s for s, _ in stages)]
    text = "; ".join(f"{kind}, {len(counts)} stages of {span(counts)} layers" for kind, counts in parts)
    return f"mbs {plan['mbs']}: {text}" + (f"; {len(others)} more pipelines" if others else "")


def span(counts: Sequence[int]) -> str:
    """The least and the most of some counts."""
    least, most = min(counts), max(counts)
    return f"{least}" if least == most else f"{least} to {most}"


def in_tf32(device: Device) -> Device:
    """The device with products of float32 in TF32 where it has that, as the times of their profile are."""
    rates = device.matrix
    return replace(device, matrix={**rates, "float32": rates.get("tf32", rates["float32"])})


def speed(device: Device, work: ModelWork, micro_batch: int, tp: int, profile: Mapping[str, Sequence[float]]) -> float:
    """How many times as fast a device would be by whose clock micro-batches take the profile's time, sums included."""
    pricing = StrategyPricing(work, Cluster(1, tp, FREE, FREE, FREE), device)
    same: dict[str, Any] = PRICED | {"micro_batch": micro_batch, "tp": tp}
    few, many = (pricing.price(Strategy(**same, global_batch=n * micro_batch))[0] for n in (8, 16))
    return (many - few) / 8 / sum(forward_s + backward_s for forward_s, backward_s, _ in profile.values())


def own_clock(sailor: Sailor, model: str, devices: Mapping[str, int], on_theirs: bool) -> list[ClockedPlan]:
    """The shortest strategies of each micro-batch and tp that all kinds have times of, in the planner's order.

    Args:
        on_theirs: take the times of the profile in place of automap's.
    """
    sizes = sailor.read(f"simulations/configs/{MODELS[model]}")
    names = {"hidden_size": "n_embd", "num_layers": "n_layer", "heads": "n_head", "vocab_size": "vocab_size"}
    config = {"model_type": "gpt2", "n_positions": sizes["sequence_length"], "tie_word_embeddings": False}
    config |= {name: sizes[key] for key, name in names.items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        work = read_model_work(f"{folder}/config.json", sequence=sizes["sequence_length"], dtype="float32")
    cluster, times = sailor.cluster(devices), sailor.read("simulations/profiles_tmp.json")[model]
    kinds = dict.fromkeys(name.partition("_")[0] for name in devices)
    device, best = in_tf32(read_device("a100-40")), []
    for micro_batch, tp in product((1, 2, 4, 8), (1, 2, 4)):
        if any(str(tp) not in times[kind].get(str(micro_batch), {}) for kind in kinds):
            continue
        groups = cluster.groups
        if on_theirs:
            lasting = {KINDS[kind]: times[kind][str(micro_batch)][str(tp)] for kind in kinds}
            speeds = {name: speed(device, work, micro_batch, tp, profile) for name, profile in lasting.items()}
            groups = tuple(replace(group, intra=FREE, speed=speeds[group.device]) for group in groups)
        problem = StrategyProblem(
            work=work,
            cluster=Cluster.of_groups(groups, zone_links=cluster.zone_links),
            device=device,
            kinds={} if on_theirs else {KINDS[kind]: in_tf32(read_device(KINDS[kind])) for kind in kinds},
            global_batch=sizes["global_batch_size"],
            fixed={**PRICED, "micro_batch": micro_batch, "tp": tp},
        )
        search = PartSearch(problem, StrategiesConfig(budget_s=1.0))
        full = search.full()
        search.run(partial(on_part, problem), full)
        results = [*([] if full is None else [(Part(problem.cluster), full)]), *search.results]
        charged = [(part.charged_s(one.cost.step_s), one) for part, one in results if one.plan is not None]
        if charged:
            _, result = min(charged, key=itemgetter(0))
            plan = clocked(result.required_plan(), result.cost.step_s, work.shape, result.problem.cluster)
            best.append((result.cost.step_s, plan))
    return [plan for _, plan in sorted(best, key=lambda entry: entry[0])]


def on_part(problem: StrategyProblem, cluster: Cluster) -> StrategyProblem:
    """The same problem on a part of its cluster."""
    return replace(problem, cluster=cluster)


def clocked(strategy: Strategy, step_s: float, shape: TransformerShape, cluster: Cluster) -> ClockedPlan:
    """A strategy as a pipeline of their layers, of which the first is the embedding and the last one the head."""
    ends = list(accumulate(strategy.stage_layers(shape), initial=1))
    ends[0], ends[-1] = 0, ends[-1] + 1
    kinds = {device: kind for kind, device in KINDS.items()}
    names = [f"{kinds[g.device]}_{g.zone}" for g in cluster.groups for _ in range(g.nodes * g.devices_per_node)]
    size = strategy.devices // strategy.pp
    ranks = [names[first : first + size] for first in range(0, strategy.devices, size)]
    teams = [
        tuple(Replicas(name, strategy.tp, rank.count(name) // strategy.tp) for name in dict.fromkeys(rank))
        for rank in ranks
    ]
    stages = [(range(*pair), team) for pair, team in zip(pairwise(ends), teams, strict=True)]
    return ClockedPlan(strategy.micro_batch, tuple(stages), step_s)


def ours(sailor: Sailor, model: str, devices: Mapping[str, int]) -> Iterator[Answer]:
    """Answers of ours on a cluster, by each of the clocks that has something to say of it."""
    clock, places = sailor.clock(model, devices), regions(devices)
    counts = {place: sum(devices[name] for name in names) for place, names in places.items()}
    searches: dict[str, Callable[[], list[ClockedPlan]]] = {
        THEIR_CLOCK: lambda: [spread(plan, devices) for plan in shortest(clock, counts)],
        OUR_CLOCK: lambda: own_clock(sailor, model, devices, on_theirs=False),
        THEIR_TIMES: lambda: own_clock(sailor, model, devices, on_theirs=True),
    }
    timed = []
    for name, search in searches.items():
        begin = time.process_time()
        timed.append((name, search(), time.process_time() - begin))
    judged = iter(sailor.judged(model, [plan for _, plans, _ in timed for plan in plans]))
    for name, plans, search_s in timed:
        verdicts = [next(judged) for _ in plans]
        first = next((i for i, (fits, *_) in enumerate(verdicts) if fits), None)
        if first is None:
            yield Answer(name, "none fits", 0.0, search_s, len(plans))
        else:
            _, throughput, reduced_s = verdicts[first]
            yield Answer(name, words(plans[first].described()), throughput, search_s, first, reduced_s)


HEADINGS = (
    *("model", "cluster", "planner", "plan", "steps a second", "over the best"),
    *("plans in s", "do not fit before", "all-reduce in s"),
)


def cells(case: tuple[str, str], answer: Answer, best: float) -> tuple[str, ...]:
    """A row of the table."""
    numbers = (answer.throughput, 4), (answer.throughput / best, 3), (answer.search_s, 2), (answer.reduced_s, 2)
    rate, ratio, search, reduced = ("–" if math.isnan(number) else f"{number:.{digits}f}" for number, digits in numbers)
    return *case, answer.planner, answer.plan, rate, ratio, search, str(answer.refused), reduced


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
    comparisons: list[tuple[Answer, Answer]] = []

    def rows() -> Iterator[tuple[str, ...]]:
        for model, trace in product(options.model or MODELS, options.cluster or TRACES):
            planners = [name for name in PLANNERS[trace] if name in (options.planner or PROFILES)]
            for number, devices in enumerate(sailor.clusters(trace)[: options.rows]):
                mine = list(ours(sailor, model, devices))
                others = [sailor.theirs(name, model, trace, number) for name in tracked(planners, "theirs")]
                best = max(others, key=lambda answer: answer.throughput)
                comparisons.extend((answer, best) for answer in mine)
                case = model, " + ".join(f"{count} {name.replace('_', ' ')}" for name, count in devices.items())
                yield from (cells(case, answer, best.throughput or math.nan) for answer in [*mine, *others])

    print_rows(HEADINGS, rows())
    for name in (THEIR_CLOCK, OUR_CLOCK, THEIR_TIMES):
        pairs = [
            (mine, best) for mine, best in comparisons if mine.planner == name and mine.throughput * best.throughput
        ]
        if pairs:
            ratios = [mine.throughput / best.throughput for mine, best in pairs]
            times = geometric_mean(mine.search_s / best.search_s for mine, best in pairs)
            print(f"\n{name}: throughput over that of the best of theirs {geometric_mean(ratios):.3f} in the geometric")
            print(f"mean, {min(ratios):.3f} at worst, in {times:.2f} times its time, on {len(pairs)} clusters")


if __name__ == "__main__":
    main()
