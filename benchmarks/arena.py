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
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, combinations, pairwise, product
from operator import itemgetter
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np
from common import print_rows, require_commit, tracked

from automap_models.core.cluster import Cluster, NodeGroup, ZoneLink
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

COMMIT = "cf2c8e3cc53ce178fe58a4003f46b4b6b848fc33"
MODELS = {"OPT-350": "training_config_opt_350.json", "GPT-Neo-2.7": "training_config_gpt_neo27.json"}
ZONE = "us-central1-a"
TRACES = {
    "homogeneous": "gpu_trace_scaled",
    "mixed": "gpu_trace_heterogeneous_imbalanced",
    "zones": "gpu_trace_multizone",
    "cost": "gpu_trace_2zones_2gpus",
    "budget": "gpu_trace_2zones_2gpus",
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
    "cost": (least_cost := ("SAILOR", "AMP", "DTFM", "FlashFlex", "Galvatron", "Metis")),
    "budget": least_cost,
}
"""Clusters → the planners that their evaluation of them has."""


class Goal(NamedTuple):
    """What a trace asks for: the most steps a second, of at most so many dollars each where that is given; or the least
    dollars a step, of at least so many a second."""

    cheapest: bool = False
    limit: float = 0.0

    def missed(self, rate: float, dollars: float) -> bool:
        """Whether a plan of so many steps a second, of so many dollars each, is beyond the limit."""
        return bool(self.limit) and (rate < self.limit if self.cheapest else dollars > self.limit)

    def merit(self, rate: float, dollars: float) -> float:
        """The more the better, 0 where there is no plan."""
        return 1.0 / dollars if self.cheapest and rate else rate

    @property
    def words(self) -> str:
        """What is more where a plan is better."""
        if self.cheapest:
            return f"steps a dollar, at {self.limit:g} steps a second or more"
        return "steps a second" + (f", at {self.limit:g} $ a step or less" if self.limit else "")


GOALS = {"cost": Goal(cheapest=True, limit=0.2), "budget": Goal(limit=1.2)}
"""Clusters → the goal that their evaluation of them has, if that is not just the most steps a second."""


def goal_of(trace: str) -> Goal:
    """What a trace asks for."""
    return GOALS.get(trace, Goal())


DOLLARS = {"A100-40": 3.673385, "V100-16": 2.859998}
"""An hour of a device, in their zones."""
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
    answers = []
    for plan in plans:
        rate, _, computing, sending, *_ = simulate_plan(simulator, plan, zone)
        reduced_s = simulator.estimate_sync_time(convert_homogeneous(plan, simulator.training_config))
        answers.append((bool(simulator.check_config_fits(plan)), rate, computing + sending, reduced_s))
json.dump(answers, sys.stdout)
"""
"""Whether plans fit by their simulator, their steps a second, dollars a step, and seconds of a step in all-reduces."""
OUR_CLOCK, THEIR_PROFILE = "automap", "automap on their profile"
FREE = 1e15
"""Bytes, and bytes a second, of which nobody lacks any."""
MACHINE = 4
"""Devices of one of their machines."""
ROUNDED = 1.02
"""Most samples of a step over those that are asked for."""
NEAR = 1.1
"""Most seconds of a step over the shortest, of plans that stand by in case those before them do not fit."""
PRICED: dict[str, Any] = {"precision": "fp32", "schedule": "1f1b", "zero": 0, "recompute": "none", "cp": 1, "vp": 1}
"""Strategies that their simulator can price."""


@dataclass(frozen=True)
class Answer:
    """A planner's plan for one cluster.

    Attributes:
        planner: who made it.
        plan: in words.
        throughput: steps a second by their simulator; 0 where no plan fits.
        dollars: of a step, what leaves zones included.
        search_s: to plan: of ours of a core, of theirs by the wall.
        refused: plans before it, in the planner's order, that do not fit.
        reduced_s: that all-reduces take of a step; of theirs nobody says.
        here: steps a second by automap's clock, of as many samples as are asked for; nan where a strategy cannot say
            the plan, where that takes part of a machine, or the cluster is not of one kind in one zone.
    """

    planner: str
    plan: str
    throughput: float
    dollars: float
    search_s: float
    refused: int
    reduced_s: float = math.nan
    here: float = math.nan


class Replicas(NamedTuple):
    """Equal replicas of a stage: the kind of device and its zone, devices that share one, and how many there are."""

    kind: str
    tp: int
    copies: int


@dataclass(frozen=True)
class Pipeline:
    """Samples of a micro-batch, and the layers and the devices of each stage."""

    micro_batch: int
    stages: tuple[tuple[range, tuple[Replicas, ...]], ...]

    def dictionary(self) -> dict[str, Any]:
        """As Sailor's simulator reads it, where kinds are A100-40_us-central1-a and the like."""
        teams: list[list[tuple[list[tuple[str, int, str]], int]]] = []
        used: dict[str, int] = {}
        for _, team in self.stages:
            teams.append([])
            for name, tp, copies in team:
                kind, zone = name.split("_")
                teams[-1] += [([(kind, tp, zone)], tp)] * copies
                used[kind] = used.get(kind, 0) + tp * copies
        layers = [list(stage) for stage, _ in self.stages]
        counts = {"num_stages": len(layers), "layers_per_stage": layers, "dp": [len(team) for team in teams]}
        pipeline = {**counts, "tmp_per_stage": teams}
        return {"pipeline_list": [pipeline], "mbs": self.micro_batch, "used_gpus": used}

    def described(self) -> dict[str, Any]:
        """As Sailor's simulator writes it."""
        (pipeline,) = self.dictionary()["pipeline_list"]
        return {"mbs": self.micro_batch, "pipelines": [{**pipeline, "tmp_stages": pipeline["tmp_per_stage"]}]}


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

    def theirs(self, planner: str, model: str, trace: str, number: int, asked: Asked) -> Answer:
        """One of their planners on a row of a trace; in place of a plan the reason why there is none."""
        goal = f"-{trace}" if trace in GOALS else ""
        folder = self.answers.resolve() / f"{TRACES[trace]}-{number}{goal}"
        path = folder / f"{planner}_{model}.json"
        if not path.exists():
            heading, rows = self.rows(trace)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "trace.csv").write_text(f"{heading}\n{rows[number]}\n")
            try:
                self._run(self.command(planner, model, folder, goal_of(trace)), self.root, limit_s=self.limit_s)
            except subprocess.TimeoutExpired:
                return Answer(planner, f"no answer in {self.limit_s:.0f} s", 0.0, math.nan, math.nan, 0)
            except subprocess.CalledProcessError as error:
                return Answer(planner, error.stderr.strip().rpartition("\n")[2][:80], 0.0, math.nan, math.nan, 0)
        (row,) = json.loads(path.read_text())
        plan = words(row["plan"]) if row["throughput"] else "none fits"
        here = asked.steps_per_s(row["plan"]) if row["throughput"] else math.nan
        rate, dollars = row["throughput"], row["cost_per_iteration"]
        return Answer(planner, plan, rate, dollars, row["search_time"], row["oom_plans"], here=here)

    def command(self, planner: str, model: str, folder: Path, goal: Goal) -> list[str | Path]:
        """That runs one of their planners on the trace in a folder, as their ae_scripts/planner/run_all_sim.py does."""
        base, sizes = self.planner, "_aceso" if planner == "Aceso" else ""
        profile = PROFILES[planner]
        options = {
            "sailor_path": self.root,
            "trace_file": folder / "trace.csv",
            "basic_cluster_config_json": base / "simulations/configs/basic_cluster_config.json",
            "training_config_json": base / f"simulations/configs/{MODELS[model]}",
            "result_dir_path": folder,
            "objective": "iteration_cost" if goal.cheapest else "throughput",
            "min_throughput" if goal.cheapest else "max_cost": goal.limit,
            "planner": planner,
            "sailor_profile_file_dir": f"{base}/sailor_planner/profiles/{model}/",
            "quotas_dict": base / "sailor_planner/dummy_quotas_dict.json",
            "simulator_profile_file": base / f"simulations/profiles_tmp{sizes}.json",
        }
        if profile is not None:
            options["planner_profile_file"] = base / profile.format(model=model)
        pairs = ((f"--{name}", str(value)) for name, value in options.items())
        return [self.python, base / "simulations/simulator.py", *(word for pair in pairs for word in pair)]

    @cached_property
    def bandwidths(self) -> Any:
        """[zone][kind][devices][zone][kind][devices] → coefficients of the bandwidth, and the most in bytes/s."""
        return self.read("../providers/multizone_bandwidths_het.json")

    def link(self, sender: str, receiver: str, count: int, sent_bytes: float | None = None) -> float:
        """Bytes a second between so many devices of a machine each, by their kinds in zones; None is of any size."""
        (kind, zone), (other, place) = sender.split("_"), receiver.split("_")
        coefficients, most = self.bandwidths[zone][kind][str(count)][place][other][str(count)]
        return float(most if sent_bytes is None else 1e9 * np.polyval(coefficients, np.log2(sent_bytes / 1e6)))

    def cluster(
        self, devices: Mapping[str, int], sharing: int = 1, sent_bytes: float | None = None, **speeds: float
    ) -> Cluster:
        """Of their machines; their simulator has no latency between zones.

        Args:
            devices: by kind and zone.
            sharing: devices of a machine that stand for one; the others of it are then far from them.
            sent_bytes: that bandwidths are of; None is the most of whole machines.
            speeds: of what stands for one of each kind, over an A100.
        """
        used = MACHINE if sent_bytes is None else sharing
        groups = []
        for name, count in devices.items():
            kind, zone = name.split("_")
            intra, inter = 300e9, self.link(name, name, used, sent_bytes)
            of = KINDS[kind]
            memory, speed = sharing * MEMORY_GIB[kind] * 2.0**30, speeds.get(of)
            groups.append(NodeGroup(count // used, used // sharing, intra, inter, memory, of, speed=speed, zone=zone))
        named = {name.split("_")[1]: name for name in devices}
        pairs = combinations(named, 2)
        links = [ZoneLink((a, b), self.link(named[a], named[b], used, sent_bytes)) for a, b in pairs]
        return Cluster.of_groups(groups, zone_links=links)

    def judged(self, model: str, plans: Sequence[Pipeline]) -> list[tuple[bool, float, float, float]]:
        """What JUDGE says of plans."""
        dictionaries = [plan.dictionary() for plan in plans]
        question = json.dumps([str(self.root), MODELS[model], ZONE, dictionaries])
        answers = self._run([self.python, "-c", JUDGE], self.planner / "simulations", question)
        return [tuple(answer) for answer in json.loads(answers)]


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


class Asked:
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


def ours(asked: Asked, profiled: Asked) -> Iterator[Answer]:
    """Answers of ours on a cluster, without their profile and with it."""
    timed, sailor, model = [], asked.sailor, asked.model
    for name, of in ((OUR_CLOCK, asked), (THEIR_PROFILE, profiled)):
        begin = time.process_time()
        plans = of.plans()
        timed.append((name, plans, time.process_time() - begin))
    judged = iter(sailor.judged(model, [plan for _, plans, _ in timed for plan in plans]))
    for name, plans, search_s in timed:
        verdicts = [next(judged) for _ in plans]
        good = (i for i, (fits, rate, cost, _) in enumerate(verdicts) if fits and not asked.goal.missed(rate, cost))
        first = next(good, None)
        if first is None:
            yield Answer(name, "none fits", 0.0, math.nan, search_s, len(plans))
        else:
            _, throughput, dollars, reduced_s = verdicts[first]
            described = plans[first].described()
            here = asked.steps_per_s(described)
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
                asked, profiled = (Asked(sailor, model, devices, goal, profiled=told) for told in (False, True))
                mine = list(ours(asked, profiled))
                others = [sailor.theirs(name, model, trace, number, asked) for name in tracked(planners, "theirs")]
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
